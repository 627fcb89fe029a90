"""Writes a charge: new entries, who paid for them, and the balance after them.

Everything is written if the project is still exactly as it was read; otherwise, nothing is. On
PostgreSQL this is one statement, which needs no transaction around it and no lock taken before.
"""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, TextClause, text
from sqlalchemy.dialects import postgresql

from terrine_protocol import ProjectStatus
from terrine_server.ledger.chain import CHARGE_FIELDS, canonical_json, iso
from terrine_server.ledger.records import Payment, ProjectRecord
from terrine_server.ledger.store.database import check_written
from terrine_server.ledger.store.tables import charges
from terrine_server.ledger.store.tables import payments as payments_table
from terrine_server.ledger.store.transaction import Transaction

COLUMNS = ("seq", "query_digest", "input_digest", *CHARGE_FIELDS[5:], "counts", "hash")
"""The columns in an entry's tuple; project and time are the same for all entries of a charge."""

PAYMENT_COLUMNS = ("first_seq", "last_seq", "token_id", "seal")

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
    paid: Sequence[Payment] = (),
) -> bool:
    """Append entries (tuples of `COLUMNS`; at least one) and who paid, and update the balance.

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
    return write(tx.connection, tx.now, move, entries, [_sealed(tx, before.id, p) for p in paid])


def _sealed(tx: Transaction, project_id: int, payment: Payment) -> tuple[Any, ...]:
    """Return a payment as a tuple of `PAYMENT_COLUMNS`."""
    row = payment.first, payment.last, payment.token
    return *row, tx.seals.over("payments", (project_id, *row))


def _in_sqlite(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
    paid: Sequence[Sequence[Any]],
) -> bool:
    if connection.exec_driver_sql(_MOVE, dict(move)).rowcount != 1:
        return False
    rows = [(move["project"], iso(now), *entry) for entry in entries]
    check_written(connection.exec_driver_sql(_SQLITE_APPEND, rows).rowcount, len(rows))
    if paid:
        rows = [(move["project"], *payment) for payment in paid]
        check_written(connection.exec_driver_sql(_SQLITE_PAYMENTS, rows).rowcount, len(rows))
    return True


_NAMES = ", ".join(COLUMNS)
_SQLITE_APPEND = (
    f"INSERT INTO charges (project_id, created_at, {_NAMES}) "
    f"VALUES ({', '.join('?' * (2 + len(COLUMNS)))})"
)
_PAYMENT_NAMES = ", ".join(PAYMENT_COLUMNS)
_SQLITE_PAYMENTS = (
    f"INSERT INTO payments (project_id, {_PAYMENT_NAMES}) "
    f"VALUES ({', '.join('?' * (1 + len(PAYMENT_COLUMNS)))})"
)


def _in_postgresql(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
    paid: Sequence[Sequence[Any]],
) -> bool:
    given = {
        **move,
        "now": now,
        "entries": len(entries),
        **_parameters("", COLUMNS, entries),
        **_parameters("paid_", PAYMENT_COLUMNS, paid),
    }
    if paid:
        given["payments"] = len(paid)
    statement = _statement(len(entries) == 1, min(len(paid), 2))
    return connection.execute(statement, given).one_or_none() is not None


def _parameters(prefix: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return one row's values, or of many a list for each column. `prefix`: of their names."""
    if not rows:
        return {}
    values = rows[0] if len(rows) == 1 else map(list, zip(*rows, strict=True))
    return {f"{prefix}{name}": value for name, value in zip(names, values, strict=True)}


@cache
def _statement(one_entry: bool, payments: int) -> TextClause:
    """One entry is passed as values, which is faster; many as arrays. `payments`: 0, 1, or many."""
    # The statement commits by itself, so it must fail as a whole if a part of it was ignored.
    source = _source("", charges, COLUMNS, one_entry)
    appended = (
        f"appended AS (INSERT INTO charges (project_id, created_at, {_NAMES}) "
        f"SELECT moved.id, :now, {_NAMES} FROM moved CROSS JOIN {source} RETURNING 1)"
    )
    written = "(SELECT count(*) FROM appended) = CAST(:entries AS bigint)"
    if payments:
        source = _source("paid_", payments_table, PAYMENT_COLUMNS, payments == 1)
        appended += (
            f", paid AS (INSERT INTO payments (project_id, {_PAYMENT_NAMES}) "
            f"SELECT moved.id, {_PAYMENT_NAMES} FROM moved CROSS JOIN {source} RETURNING 1)"
        )
        written += " AND (SELECT count(*) FROM paid) = CAST(:payments AS bigint)"
    return text(
        f"WITH moved AS ({_MOVE} RETURNING id), {appended} "
        f"SELECT id, 1 / CASE WHEN {written} THEN 1 ELSE 0 END FROM moved"
    )


def _source(prefix: str, table: Table, names: Sequence[str], one: bool) -> str:
    """Return the rows that are given as parameters, as SQL. `prefix`: of the parameters' names."""
    form = "CAST(:{}{} AS {})" if one else "CAST(:{}{} AS {}[])"
    types = {name: table.c[name].type.compile(_DIALECT) for name in names}
    values = ", ".join(form.format(prefix, name, type) for name, type in types.items())
    source = f"(VALUES ({values}))" if one else f"unnest({values})"
    return f"{source} AS given ({', '.join(names)})"


_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
