"""What is on record: earlier answers to queries, and what requests were told before."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, TextClause, bindparam, delete, insert, text

from terrine_client.protocol import Outcome
from terrine_server.errors import BrokenBooks, IdempotencyConflict, InvalidQuery, TerrineError
from terrine_server.ledger.admission import REFUSED, Recorded
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.records import ProjectRecord, QueryDigest, Receipt, Result
from terrine_server.ledger.tables import idempotency

KEYS_KEPT = timedelta(days=7)
"""How long an idempotency key is remembered. The charges behind it are for ever, so a later retry
is still free; what is forgotten is only that the key was used."""
_CHUNK = 5000
_QUERY, _INPUT, _LAST = range(3)


def find(
    connection: Connection, project: ProjectRecord, digests: Sequence[QueryDigest], held: bool
) -> Recorded:
    """Return the project's charges that answer these queries.

    `held`: the transaction holds the project; its last charge must then be the one that its balance
    was reckoned with, and none may follow. Raises BrokenBooks.
    """
    by_query: dict[bytes, Result] = {}
    by_input: dict[bytes, Result] = {}
    last: set[tuple[int, str]] = set()
    given = {"project": project.id, "last": project.charges} if held else {"project": project.id}
    for part in _chunks(digests):
        wanted = {
            "queries": sorted({digest.query for digest in part}),
            "inputs": sorted({digest.input for digest in part}),
        }
        what = "charged, and the last" if held else "charged"
        for kind, digest, seq, outcome, label in _search(connection, what, given, wanted):
            if kind == _LAST:
                last.add((seq, digest.hex()))
                continue
            result = Result(Outcome(outcome), label, seq, replayed=True)
            (by_query if kind == _QUERY else by_input)[digest] = result
    if held and (last or {(0, project.genesis)}) != {(project.charges, project.head)}:
        raise BrokenBooks(
            f"The last charge of project {project.name} is not the one its balance stands on; "
            f"nothing is answered. The server's operator should run "
            f"`terrine ledger verify {project.name}`."
        )
    return Recorded(by_query, by_input)


def recall(
    connection: Connection, project: ProjectRecord, keys: Sequence[tuple[str, bytes] | None]
) -> list[Receipt | TerrineError | None]:
    """Return what requests with these keys were told; see `Ledger.consult`."""
    names = [key[0] for key in keys if key is not None]
    if len(set(names)) < len(names):
        raise ValueError("requests with the same key go into groups of their own")
    known: dict[str, Any] = {}
    for part in _chunks(names):
        found = _search(connection, "keyed", {"project": project.id}, {"keys": part})
        known |= {row.key: row for row in found}
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


_EXPIRED = delete(idempotency).where(
    idempotency.c.project_id == bindparam("project"), idempotency.c.created_at < bindparam("before")
)
_REMEMBERED = insert(idempotency)


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
    for part in _chunks(wanted):
        for row in _search(connection, "numbered", {"project": project_id}, {"numbers": part}):
            by_seq[row.seq] = Result(Outcome(row.outcome), row.label, row.seq, replayed=False)
    return [
        replace(by_seq[abs(number)], replayed=number < 0) if number else REFUSED
        for number in numbers
    ]


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """As many at a time as a statement of SQLite may have parameters, and then some."""
    return (values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK))


def _search(
    connection: Connection,
    what: str,
    given: Mapping[str, int],
    wanted: Mapping[str, Sequence[Any]],
) -> Any:
    if connection.dialect.name == "sqlite":
        wanted = {name: [(value,) for value in values] for name, values in wanted.items()}
    return connection.execute(searches(connection.dialect.name)[what], {**given, **wanted})


@cache  # SQLAlchemy takes longer to make statements than databases to answer them
def searches(dialect: str) -> Mapping[str, TextClause]:
    """All statements that look up many values at a time, by what they find."""

    def each(table: str, columns: str, wanted: str, type: str, condition: str) -> str:
        """SQL that looks up every one of many values by itself.

        Asked for any of them, both databases would rather read all rows of a project as long as
        they lack statistics.
        """
        if dialect == "sqlite":
            condition = condition.replace("?", "column1")
            source = f":{wanted} CROSS JOIN {table} ON project_id = :project AND {condition}"
            return f"SELECT {columns} FROM {source}"  # noqa: S608 - of constants, as all here
        condition = condition.replace("?", "value")
        one = f"SELECT {columns} FROM {table} WHERE project_id = :project AND {condition} LIMIT 1"  # noqa: S608
        given = f"unnest(CAST(:{wanted} AS {type}[])) AS given (value)"
        return f"SELECT found.* FROM {given} CROSS JOIN LATERAL ({one}) AS found"  # noqa: S608

    def statement(*parts: str, wanted: Sequence[str]) -> TextClause:
        made = text(" UNION ALL ".join(parts))
        if dialect == "sqlite":
            return made.bindparams(*(bindparam(name, expanding=True) for name in wanted))
        return made

    charged = "seq, outcome, label"
    by_digest = (
        each(
            *("charges", f"{_QUERY}, query_digest, {charged}"),
            *("queries", "bytea", "query_digest = ?"),
        ),
        each(
            *("charges", f"{_INPUT}, input_digest, {charged}"),
            *("inputs", "bytea", f"input_digest = ? AND outcome = '{Outcome.ANSWERED}'"),
        ),
    )
    last = "project_id = :project AND seq >= :last"
    the_last = f"SELECT {_LAST}, hash, {charged} FROM charges WHERE {last}"  # noqa: S608
    digests = ("queries", "inputs")
    return {
        "charged": statement(*by_digest, wanted=digests),
        "charged, and the last": statement(*by_digest, the_last, wanted=digests),
        "numbered": statement(
            each("charges", charged, "numbers", "bigint", "seq = ?"), wanted=["numbers"]
        ),
        "keyed": statement(
            each("idempotency", "key, body_digest, results", "keys", "text", "key = ?"),
            wanted=["keys"],
        ),
    }
