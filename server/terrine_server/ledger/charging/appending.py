"""Writes a charge: new entries, and the balance after them.

Everything is written if the project is still exactly as it was read; otherwise, nothing is. On
PostgreSQL this is one statement, which needs no transaction around it and no lock taken before.
"""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.dialects import postgresql

from terrine_protocol import ProjectStatus
from terrine_server.ledger.chain import CHARGE_FIELDS, canonical_json, iso
from terrine_server.ledger.records import ProjectRecord
from terrine_server.ledger.store.database import check_written
from terrine_server.ledger.store.tables import charges
from terrine_server.ledger.store.transaction import Transaction

COLUMNS = ("seq", "query_digest", "input_digest", *CHARGE_FIELDS[5:], "counts", "hash")
"""The columns in an entry's tuple; project and time are the same for all entries of a charge."""

_MOVE = f"""
    UPDATE projects SET spent = :spent, delta_spent = :delta_spent, cap_spent = :cap_spent,
        charges = :charges, published = :published, head = :head, seal = :seal
    WHERE id = :project AND status = '{ProjectStatus.ACTIVE}'
        AND charges = :from_charges AND head = :from_head AND seal = :from_seal
"""


def append(
    tx: Transaction,
    before: ProjectRecord,
    after: ProjectRecord,
    entries: Sequence[Sequence[Any]],
) -> bool:
    """Append entries (tuples of `COLUMNS`; at least one), and update the balance.

    Returns False, and writes nothing, if the project is not active or no longer as `before` because
    of other charges. Raises LedgerCorrupted (on PostgreSQL: DataError) if the database ignored a
    part; nothing is written then either, once the transaction, if there is one, is rolled back.
    """
    balance = {
        "spent": after.spent,
        "delta_spent": after.delta_spent,
        "cap_spent": after.cap_spent,
        "charges": after.charges,
        "published": canonical_json([(p.seq, p.figure) for p in after.published]),
        "head": bytes.fromhex(after.head),
    }
    fixed = {
        "id": before.id,
        "name": before.name,
        "genesis": bytes.fromhex(before.genesis),
        "status": ProjectStatus.ACTIVE,
        "closed_at": None,
    }
    move = {
        **balance,
        "project": before.id,
        "from_charges": before.charges,
        "from_head": bytes.fromhex(before.head),
        "from_seal": before.seal,
        "seal": tx.seals.of("projects", {**fixed, **balance}),
    }
    write = _in_sqlite if tx.connection.dialect.name == "sqlite" else _in_postgresql
    return write(tx.connection, tx.now, move, entries)


def _in_sqlite(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
) -> bool:
    if connection.exec_driver_sql(_MOVE, dict(move)).rowcount != 1:
        return False
    rows = [(move["project"], iso(now), *entry) for entry in entries]
    check_written(connection.exec_driver_sql(_SQLITE_APPEND, rows).rowcount, len(rows))
    return True


_NAMES = ", ".join(COLUMNS)
_SQLITE_APPEND = (
    f"INSERT INTO charges (project_id, created_at, {_NAMES}) "
    f"VALUES ({', '.join('?' * (2 + len(COLUMNS)))})"
)


def _in_postgresql(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
) -> bool:
    one = len(entries) == 1
    values = entries[0] if one else map(list, zip(*entries, strict=True))
    given = {**move, "now": now, "entries": len(entries), **dict(zip(COLUMNS, values, strict=True))}
    return connection.execute(_statement(one), given).one_or_none() is not None


@cache
def _statement(one: bool) -> TextClause:
    """One entry is passed as values, which is faster; many as arrays."""
    types = [_TYPES[name] for name in COLUMNS]
    form = "CAST(:{} AS {})" if one else "CAST(:{} AS {}[])"
    values = ", ".join(map(form.format, COLUMNS, types))
    source = f"(VALUES ({values}))" if one else f"unnest({values})"
    # The statement commits by itself, so it must fail as a whole if a part of it was ignored.
    return text(
        f"WITH moved AS ({_MOVE} RETURNING id), "
        f"appended AS (INSERT INTO charges (project_id, created_at, {_NAMES}) "
        f"SELECT moved.id, :now, {_NAMES} FROM moved CROSS JOIN {source} AS given ({_NAMES}) "
        "RETURNING 1) "
        "SELECT id, 1 / CASE WHEN (SELECT count(*) FROM appended) = CAST(:entries AS bigint) "
        "THEN 1 ELSE 0 END FROM moved"
    )


_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_TYPES = {column.name: column.type.compile(_DIALECT) for column in charges.c}
