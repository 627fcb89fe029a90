"""Writes a charge: new entries, the balance after them, and the answers kept for keys.

Everything is written if the project is still exactly as it was read; otherwise, nothing is. On
PostgreSQL this is one statement, which needs no transaction around it and no lock taken before.
"""

# ruff: noqa: S608 - statements are made of constants
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, TextClause, select, text
from sqlalchemy.dialects import postgresql

from terrine_protocol import ProjectStatus
from terrine_server.ledger.chain import CHARGE_FIELDS, canonical_json, iso
from terrine_server.ledger.charging import idempotency_keys
from terrine_server.ledger.records import ProjectRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.database import check_written
from terrine_server.ledger.store.tables import charges, idempotency
from terrine_server.ledger.store.transaction import Transaction

KEYS_KEPT = timedelta(days=7)
"""How long an idempotency key is kept. Its charges are kept for ever, so a later retry is still
free; only the fact that the key was used is forgotten."""

MOST_KEYS = 100_000
"""Keys kept of a project; the oldest are forgotten sooner. A retry of what was paid stays free."""
COUNT_SECONDS = 60.0
"""How often a process counts the keys of a project."""
_COUNTED: WeakKeyDictionary[Engine, dict[int, float]] = WeakKeyDictionary()

COLUMNS = ("seq", "query_digest", "input_digest", *CHARGE_FIELDS[5:], "counts", "hash")
"""The columns in an entry's tuple; project and time are the same for all entries of a charge."""
_KEY_COLUMNS = ("key", "body_digest", "results", "seal")

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
    kept: Sequence[tuple[str, bytes, idempotency_keys.Kept]],
) -> bool:
    """Append entries (tuples of `COLUMNS`), update the balance, store the answers `kept` for keys.

    Returns False, and writes nothing, if the project is not active or no longer as `before` because
    of other charges. Raises IntegrityError if a key was used meanwhile, and LedgerCorrupted (on
    PostgreSQL: DataError) if the database ignored a part; nothing is written then either, once the
    transaction, if there is one, is rolled back.
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
    keys = [_kept(tx.seals, tx.now, before.id, *answer) for answer in kept]
    move["forget"] = _oldest_kept(tx.connection, tx.now, before.id) if keys else tx.now
    write = _in_sqlite if tx.connection.dialect.name == "sqlite" else _in_postgresql
    return write(tx.connection, tx.now, move, entries, keys)


def _oldest_kept(connection: Connection, now: datetime, project: int) -> datetime:
    """Return the time before which a project's keys are forgotten."""
    oldest, counted = now - KEYS_KEPT, _COUNTED.setdefault(connection.engine, {})
    if time.monotonic() - counted.setdefault(project, time.monotonic()) >= COUNT_SECONDS:
        counted[project] = time.monotonic()
        times = select(idempotency.c.created_at).where(idempotency.c.project_id == project)
        last = times.order_by(idempotency.c.created_at.desc()).offset(MOST_KEYS - 1).limit(1)
        found = connection.execute(last).scalar_one_or_none()
        oldest = max(oldest, found) if isinstance(found, datetime) else oldest
    return oldest


def _kept(
    seals: Seals,
    now: datetime,
    project_id: int,
    key: str,
    body_digest: bytes,
    own: idempotency_keys.Kept,
) -> tuple[Any, ...]:
    """Return what is kept of a request with a key, in the order of `_KEY_COLUMNS`."""
    row: dict[str, Any] = {
        "project_id": project_id,
        "key": key,
        "body_digest": body_digest,
        "results": idempotency_keys.written(own),
        "created_at": now,
    }
    row["seal"] = seals.of("idempotency", row)
    return tuple(row[name] for name in _KEY_COLUMNS)


def _in_sqlite(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
    keys: Sequence[tuple[Any, ...]],
) -> bool:
    project, at = move["project"], iso(now)
    if connection.exec_driver_sql(_MOVE, dict(move)).rowcount != 1:
        return False
    if entries:
        rows = [(project, at, *entry) for entry in entries]
        check_written(connection.exec_driver_sql(_SQLITE_APPEND, rows).rowcount, len(rows))
    if keys:
        connection.exec_driver_sql(_SQLITE_FORGET, (project, iso(move["forget"])))
        rows = [(project, at, *key) for key in keys]
        check_written(connection.exec_driver_sql(_SQLITE_KEEP, rows).rowcount, len(rows))
    return True


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * (2 + len(columns)))
    return f"INSERT INTO {table} (project_id, created_at, {', '.join(columns)}) VALUES ({marks})"


_SQLITE_APPEND = _insert("charges", COLUMNS)
_SQLITE_KEEP = _insert("idempotency", _KEY_COLUMNS)
_SQLITE_FORGET = "DELETE FROM idempotency WHERE project_id = ? AND created_at < ?"


def _in_postgresql(
    connection: Connection,
    now: datetime,
    move: Mapping[str, Any],
    entries: Sequence[Sequence[Any]],
    keys: Sequence[tuple[Any, ...]],
) -> bool:
    given = {**move, "now": now, "entries": len(entries), "keys": len(keys)}
    if len(entries) == 1:
        given |= zip(COLUMNS, entries[0], strict=True)
    else:
        given |= zip(COLUMNS, map(list, zip(*entries, strict=True)), strict=False)
    names = ("key", "body_digest", "results", "seal_of_key")  # `seal` is the balance's
    given |= zip(names, map(list, zip(*keys, strict=True)), strict=False)
    statement = _statement(min(len(entries), 2), bool(keys))
    return connection.execute(statement, given).one_or_none() is not None


@cache
def _statement(entries: int, keys: bool) -> TextClause:
    """For 0, 1 or 2 (many) `entries`: one is passed as values, which is faster; many as arrays."""
    parts = [f"moved AS ({_MOVE} RETURNING id)"]
    if entries:
        one, types = entries == 1, [_TYPES[name] for name in COLUMNS]
        form = "CAST(:{} AS {})" if one else "CAST(:{} AS {}[])"
        values = ", ".join(map(form.format, COLUMNS, types))
        source = f"(VALUES ({values}))" if one else f"unnest({values})"
        parts.append(f"appended AS ({_from_moved('charges', COLUMNS, source)})")
    if keys:
        parts.append(
            "forgotten AS (DELETE FROM idempotency USING moved "
            "WHERE project_id = moved.id AND created_at < :forget)"
        )
        source = (
            "unnest(CAST(:key AS text[]), CAST(:body_digest AS bytea[]), CAST(:results AS text[]), "
            "CAST(:seal_of_key AS bytea[]))"
        )
        parts.append(f"kept AS ({_from_moved('idempotency', _KEY_COLUMNS, source)})")
    # The statement commits by itself, so it must fail as a whole if a part of it was ignored.
    counts = {"appended": "entries"} if entries else {}
    counts |= {"kept": "keys"} if keys else {}
    whole = " AND ".join(
        f"(SELECT count(*) FROM {part}) = CAST(:{count} AS bigint)"
        for part, count in counts.items()
    )
    written = f"1 / CASE WHEN {whole} THEN 1 ELSE 0 END"
    return text(f"WITH {', '.join(parts)} SELECT id, {written} FROM moved")


def _from_moved(table: str, columns: Sequence[str], source: str) -> str:
    names = ", ".join(columns)
    return (
        f"INSERT INTO {table} (project_id, created_at, {names}) "
        f"SELECT moved.id, :now, {names} FROM moved CROSS JOIN {source} AS given ({names}) "
        "RETURNING 1"
    )


_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_TYPES = {column.name: column.type.compile(_DIALECT) for column in charges.c}
