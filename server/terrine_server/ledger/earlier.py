"""What is on record: earlier answers to queries, and what requests were told before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    LargeBinary,
    Select,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import ColumnElement

from terrine_client.protocol import Outcome
from terrine_server.errors import BrokenBooks, IdempotencyConflict, InvalidQuery, TerrineError
from terrine_server.ledger.admission import REFUSED, Recorded
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.records import ProjectRecord, QueryDigest, Receipt, Result
from terrine_server.ledger.tables import charges, idempotency

KEYS_KEPT = timedelta(days=7)
"""How long an idempotency key is remembered. The charges behind it are for ever, so a later retry
is still free; what is forgotten is only that the key was used."""
_CHUNK = 5000
_QUERY, _INPUT, _LAST = range(3)

# Made once: SQLAlchemy takes longer to make statements than databases to answer them.
_KEYS = select(idempotency).where(
    idempotency.c.project_id == bindparam("project"),
    idempotency.c.key.in_(bindparam("keys", expanding=True)),
)
_EXPIRED = delete(idempotency).where(
    idempotency.c.project_id == bindparam("project"), idempotency.c.created_at < bindparam("before")
)
_REMEMBERED = insert(idempotency)


def find(
    connection: Connection, project: ProjectRecord, digests: Sequence[QueryDigest], held: bool
) -> Recorded:
    """Return the project's charges that answer these queries.

    `held`: the transaction holds the project; its last charge must then be the one that its balance
    was reckoned with. Raises BrokenBooks.
    """
    queries, inputs = sorted({d.query for d in digests}), sorted({d.input for d in digests})
    by_query: dict[bytes, Result] = {}
    by_input: dict[bytes, Result] = {}
    last = []
    statement = _recorded(connection.dialect.name, held)
    for start in range(0, max(1, len(queries)), _CHUNK):
        part = slice(start, start + _CHUNK)
        given = {"project": project.id, "queries": queries[part], "inputs": inputs[part]}
        if held:
            given["last"] = project.charges
        for kind, digest, seq, outcome, label in connection.execute(statement, given):
            if kind == _LAST:
                last.append((seq, digest.hex()))
                continue
            result = Result(Outcome(outcome), label, seq, replayed=True)
            (by_input if kind == _INPUT else by_query)[digest] = result
    if held and set(last or [(0, project.genesis)]) != {(project.charges, project.head)}:
        raise BrokenBooks(
            f"The last charge of project {project.name} is not the one its balance stands on; "
            f"nothing is answered. The server's operator should run "
            f"`terrine ledger verify {project.name}`."
        )
    return Recorded(by_query, by_input)


@cache
def _recorded(dialect: str, held: bool) -> CompoundSelect[Any]:
    """Charges by query digest, by answered input digest and, if `held`, the last one."""

    def charged(kind: int, digest: ColumnElement[bytes], *which: Any) -> Select[Any]:
        return select(
            literal(kind, literal_execute=True).label("kind"),
            *(digest, charges.c.seq, charges.c.outcome, charges.c.label),
        ).where(charges.c.project_id == bindparam("project"), *which)

    def each(kind: int, digest: ColumnElement[bytes], wanted: str, *which: Any) -> Select[Any]:
        if dialect != "postgresql":
            return charged(kind, digest, digest.in_(bindparam(wanted, expanding=True)), *which)
        # One search for each: without statistics, PostgreSQL would rather read all charges than
        # search an index for any of several.
        sought = bindparam(wanted, type_=ARRAY(LargeBinary))
        given = func.unnest(sought).table_valued("digest").render_derived(wanted)
        found = charged(kind, digest, digest == given.c.digest, *which).limit(1).lateral()
        return select(*found.c).select_from(given.join(found, true()))

    # Spelled out, not bound: that is how the index of answered inputs is recognised.
    answered = charges.c.outcome == literal(str(Outcome.ANSWERED), literal_execute=True)
    parts = [
        each(_QUERY, charges.c.query_digest, "queries"),
        each(_INPUT, charges.c.input_digest, "inputs", answered),
    ]
    if held:
        parts.append(charged(_LAST, charges.c.hash, charges.c.seq == bindparam("last")))
    return union_all(*parts)


def recall(
    connection: Connection, project: ProjectRecord, keys: Sequence[tuple[str, bytes] | None]
) -> list[Receipt | TerrineError | None]:
    """Return what requests with these keys were told; see `Ledger.consult`."""
    names = [key[0] for key in keys if key is not None]
    if len(set(names)) < len(names):
        raise ValueError("requests with the same key go into groups of their own")
    known: dict[str, Any] = {}
    for start in range(0, len(names), _CHUNK):
        given = {"project": project.id, "keys": names[start : start + _CHUNK]}
        known |= {row.key: row for row in connection.execute(_KEYS, given)}
    return [key and _recall(connection, project, *key, known.get(key[0])) for key in keys]


def _recall(
    connection: Connection, project: ProjectRecord, key: str, body_digest: bytes, row: Any
) -> Receipt | TerrineError | None:
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        return InvalidQuery("An Idempotency-Key is 1 to 255 printable ASCII characters.")
    if row is None:
        return None
    if row.body_digest != body_digest:
        return IdempotencyConflict(
            "This Idempotency-Key came before with a different request. "
            "Use a fresh key for every new request."
        )
    return Receipt(_results(connection, project.id, json.loads(row.results)), project)


def remember(
    connection: Connection,
    now: datetime,
    project_id: int,
    requests: Sequence[tuple[str, bytes, Sequence[Result]]],
) -> None:
    """Keep what requests with a key are about to be told, and forget what is kept no longer."""
    connection.execute(_EXPIRED, {"project": project_id, "before": now - KEYS_KEPT})
    connection.execute(
        _REMEMBERED,
        [
            {
                "project_id": project_id,
                "key": key,
                "body_digest": body_digest,
                "results": canonical_json(_numbers(results)),
                "created_at": now,
            }
            for key, body_digest, results in requests
        ],
    )


def _numbers(results: Sequence[Result]) -> list[int]:
    """A charge's number where it was paid, its negative where replayed, 0 where refused."""
    return [0 if r.seq is None else -r.seq if r.replayed else r.seq for r in results]


def _results(connection: Connection, project_id: int, numbers: Sequence[int]) -> list[Result]:
    """The inverse of `_numbers`."""
    wanted = sorted({abs(number) for number in numbers} - {0})
    by_seq: dict[int, Result] = {}
    for start in range(0, len(wanted), _CHUNK):
        for row in connection.execute(
            select(charges.c.seq, charges.c.outcome, charges.c.label).where(
                charges.c.project_id == project_id,
                charges.c.seq.in_(wanted[start : start + _CHUNK]),
            )
        ):
            by_seq[row.seq] = Result(Outcome(row.outcome), row.label, row.seq, replayed=False)
    return [
        replace(by_seq[abs(number)], replayed=number < 0) if number else REFUSED
        for number in numbers
    ]
