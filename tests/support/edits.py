"""Edits of a SQLite file by hand, past everything that forbids them, and taken back afterwards."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

from books import reseal, unguarded
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from terrine_server.ledger.chain import iso
from terrine_server.ledger.schema import metadata

DEEP = "[" * 100_000
"""JSON nested deeper than Python reads."""
GARBLED_JSON = ("", "null", "{}", "[[1]]", DEEP, b"\xff")
INSTANTS = {"opened_at", "closed_at", "registered_at", "created_at", "expires_at", "revoked_at"}


class Hand:
    """Edits a SQLite file whose guards are off.

    With the secret key, it seals what it edits, so that only other checks can find that.
    """

    def __init__(self, engine: Engine, url: str, with_key: bool = False) -> None:
        self._engine, self._with_key = engine, with_key
        self._kept: dict[str, list[dict[str, Any]]] = {}
        with unguarded(url, with_key=False):
            pass
        self.keep()

    def keep(self) -> None:
        """Remember all as it is now, for edits to be taken back to."""
        self._copy = sqlite3.connect(":memory:", check_same_thread=False)
        with self._file() as file:
            file.backup(self._copy)
        with self._writing() as connection:
            for name, key in KEYS.items():
                ordered = text(f"SELECT * FROM {name} ORDER BY {', '.join(key)}")
                self._kept[name] = [dict(row) for row in connection.execute(ordered).mappings()]

    def value(self, table: str, row: int, column: str) -> Any:
        """What was in a row, counted from 0, before any edit."""
        return self._kept[table][row][column]

    @contextmanager
    def edited(self, edit: str | Callable[[Connection], object], **values: Any) -> Iterator[bool]:
        """Do this; yields whether the database let it. Later all is as it was in the beginning."""
        done = True
        try:
            with self._writing() as connection:
                if callable(edit):
                    edit(connection)
                else:
                    connection.execute(text(edit), values)
                if self._with_key:
                    reseal(connection)
        except (DBAPIError, OverflowError, ValueError):
            done = False
        try:
            yield done
        finally:
            with self._file() as file:
                self._copy.backup(file)

    def set(self, table: str, row: int, column: str, value: Any) -> Any:
        """Change one value of a row, counted from 0; see `edited`."""
        key = {name: self._kept[table][row][name] for name in KEYS[table]}
        where = " AND ".join(f"{name} = :old_{name}" for name in key)
        given = {f"old_{name}": old for name, old in key.items()}
        return self.edited(f"UPDATE {table} SET {column} = :new WHERE {where}", new=value, **given)

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        with closing(self._engine.raw_connection()) as connection:
            file: Any = connection.driver_connection
            yield file

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA foreign_keys = OFF")  # before a transaction begins
            driver.execute("PRAGMA synchronous = OFF")  # a hand need not wait for the disk
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            yield connection
            connection.commit()


KEYS = {table.name: [c.name for c in table.primary_key] for table in metadata.sorted_tables}


def other_values(column: str, value: Any) -> Iterator[Any]:
    """Values that are not this one: near it, far from it, and of other types."""
    if column in INSTANTS:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        later = (instant or datetime.fromisoformat("2026-01-01T00:00:00Z")) + timedelta(seconds=1)
        yield from (iso(later), "yesterday", "infinity", 7, None)
    elif isinstance(value, str) and value[:1] in ("{", "["):
        yield from (*GARBLED_JSON, 7, None)
    elif isinstance(value, str):
        yield from (f"{value}x", "", 7, None)
    elif isinstance(value, bytes):
        yield from (bytes([value[0] ^ 1]) + value[1:], b"", "text", None)
    elif isinstance(value, float):
        yield from (value * 2, float("inf"), "text", None)
    else:
        number = value or 0
        yield from (number + 1, number - 1, 2**62, 1.5, "text", None)


def edited_json(document: Any) -> Iterator[str]:
    """The same JSON with one part at a time removed, made null, or another number or text."""
    for path in _paths(document):
        changes: tuple[Any, ...] = ("remove", None, 0)
        for change in changes:
            edited = copy.deepcopy(document)
            parent = edited
            for step in path[:-1]:
                parent = parent[step]
            if change == "remove":
                del parent[path[-1]]
            elif type(parent[path[-1]]) is type(change) and parent[path[-1]] == change:
                continue
            else:
                parent[path[-1]] = change
            yield json.dumps(edited, sort_keys=True, separators=(",", ":"))


def _paths(document: Any) -> Iterator[list[Any]]:
    steps = document if isinstance(document, Mapping) else range(len(document))
    for step in steps:
        yield [step]
        if isinstance(document[step], Mapping | list):
            yield from ([step, *rest] for rest in _paths(document[step]))
