"""What seals a row: the columns that its seal covers, and the server's key.

A row is trusted if its seal is right and its values are of their types. Whoever edits the database
without the key can make neither.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Column, LargeBinary

from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger.chain import frame, iso
from terrine_server.ledger.schema import metadata

# By table: the columns that a row's seal covers, in order.
SEALED: dict[str, tuple[str, ...]] = {
    table.name: tuple(column.name for column in table.c if column.name != "seal")
    for table in metadata.tables.values()
    if "seal" in table.c
} | {
    # The terms are in `genesis`, and every charge is in `head`. Title and purpose are in the log.
    "projects": (
        "id",
        "name",
        "genesis",
        "status",
        "closed_at",
        "spent",
        "delta_spent",
        "cap_spent",
        "charges",
        "published",
        "head",
    ),
    "log_head": ("key_check", "entries", "head"),
}


class Seals:
    """Makes and checks seals under the server's secret key."""

    def __init__(self, secret_key: bytes) -> None:
        self._key = hmac.digest(secret_key, b"terrine/seals/1", "sha256")
        self.key_check = hmac.digest(self._key, b"terrine/key-check/1", "sha256")
        """Tells whether a ledger is sealed with this key; reveals nothing about it."""

    def of(self, table: str, row: Mapping[Any, Any]) -> bytes:
        """Return the seal of a row of a table. Raises TypeError for a value never written."""
        return self.over(table, [row[name] for name in SEALED[table]])

    def over(self, table: str, values: Sequence[Any]) -> bytes:
        """Return the seal of a row by the values that it covers, in order. Raises TypeError."""
        # A time may come as SQLite's text.
        fields = [iso(value) if isinstance(value, datetime) else value for value in values]
        return hmac.digest(self._key, frame(f"terrine/seal/{table}/1", *fields), "sha256")

    def sealed(self, table: str, row: Mapping[Any, Any]) -> dict[str, Any]:
        """Return a row with its seal."""
        return {**row, "seal": self.of(table, row)}

    def check(self, table: str, row: Mapping[Any, Any]) -> None:
        """Raise ValueError or TypeError unless a row has its seal."""
        if not hmac.compare_digest(row["seal"], self.of(table, row)):
            raise ValueError("its seal is not the one that this server's key makes")


# The errors that reading an altered or damaged value may raise.
READ_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)


@contextmanager
def readable(what: str, project: str = "all") -> Iterator[None]:
    """Raise LedgerCorrupted if reading fails: `what` was altered or damaged then."""
    try:
        yield
    except READ_ERRORS as error:
        raise LedgerCorrupted(f"{what} was altered or damaged.", project, repr(error)) from None


def check_types(columns: Iterable[Column[Any]], row: Mapping[Any, Any]) -> None:
    """Check each value's type. SQLite stores a value of any type in any column."""
    for column in columns:
        value = row[column.name]
        if value is None and column.nullable:
            continue
        if type(value) is not column.type.python_type:
            raise TypeError(f"{column.name} is not of its type")
        if isinstance(column.type, LargeBinary) and len(value) != (
            column.type.length or len(value)
        ):
            raise ValueError(f"{column.name} is not of its length")
