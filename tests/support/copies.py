"""Backups that take milliseconds: copy a whole database, and restore it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
from postgres import as_owner
from sqlalchemy.engine import make_url


class Copies:
    """Copies of one database. Its connections must be closed when it is restored."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory, self._made = make_url(as_owner(url)), directory, 0

    def make(self) -> str:
        """Copy the database and return the copy's name."""
        self._made += 1
        if self._url.get_backend_name() == "sqlite":
            copy = self._directory / f"copy-{self._made}.sqlite"
            with (
                closing(sqlite3.connect(self._file)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
            return str(copy)
        copy_name = f"{self._url.database}_{self._made}"
        self._create(copy_name, str(self._url.database))
        return copy_name

    def restore(self, copy: str) -> None:
        """Restore the database to the state of the copy."""
        if self._url.get_backend_name() == "sqlite":
            for suffix in ("-wal", "-shm"):
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)
            self._file.write_bytes(Path(copy).read_bytes())
        else:
            self._create(str(self._url.database), copy)

    def drop(self, copy: str) -> None:
        """Remove a copy that is no longer needed."""
        if self._url.get_backend_name() == "sqlite":
            Path(copy).unlink()
        else:
            self._run(f"DROP DATABASE {copy} WITH (FORCE)")

    @property
    def _file(self) -> Path:
        return Path(self._url.database or "")

    def _create(self, name: str, template: str) -> None:
        assert re.fullmatch(r"\w+", name + template)
        self._run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._run(f"CREATE DATABASE {name} TEMPLATE {template}")

    def _run(self, statement: str) -> None:
        plain = self._url.set(drivername="postgresql", database="postgres")
        with psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True) as admin:
            admin.execute(statement.encode())
