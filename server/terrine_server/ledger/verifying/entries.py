"""Reads entries as plain tuples, as fast as the database returns them.

They come directly from the driver: SQLAlchemy's rows take more time than everything else together.
No value is converted: what is hashed is what is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import date
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from terrine_server.ledger.chain import CHARGE_FIELDS, KIND_FIELDS

COLUMNS = (*CHARGE_FIELDS[1:], "counts", "hash")
"""The columns in an entry's tuple. `created_at` is text in the format of `chain.iso`."""
KIND = slice(len(COLUMNS) - 2 - len(KIND_FIELDS), len(COLUMNS) - 2)
"""The positions of the `KIND_FIELDS` in it."""
PAGE = 1000

StoredEntry = Sequence[Any]
Pages = Iterable[Sequence[StoredEntry]]

# SQLite stores this text as it is.
_POSTGRESQL_ISO = """to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d\.\d{6}Z", re.ASCII
).fullmatch


def stored(connection: Connection, project_id: int) -> Pages:
    """Yield the entries in order, page by page.

    The project is written into the query, since the two drivers mark parameters differently.
    """
    on_postgresql = connection.dialect.name == "postgresql"
    columns = ", ".join(COLUMNS)
    if on_postgresql:
        columns = columns.replace("created_at", _POSTGRESQL_ISO)
    wanted = f"project_id = {int(project_id)}"
    query = f"SELECT {columns} FROM charges WHERE {wanted} ORDER BY seq"  # noqa: S608 - see above
    driver: Any = connection.connection.driver_connection
    try:
        # A named cursor stays in PostgreSQL; any other would fetch all entries at once.
        named = {"name": "entries", "scrollable": False} if on_postgresql else {}
        with closing(driver.cursor(**named)) as cursor:
            cursor.execute(query)
            while page := cursor.fetchmany(PAGE):
                yield page
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(query, None, error) from error


def is_instant(text: str) -> bool:
    """Whether `chain.iso` could have written this. Raises TypeError for anything but text."""
    found = _INSTANT(text)
    return found is not None and _is_date(found[1])


@lru_cache(maxsize=64)
def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
