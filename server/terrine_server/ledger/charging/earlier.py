"""What is on record: how a project stands, earlier answers, and what requests were told before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from terrine_protocol import Outcome
from terrine_server.errors import (
    BrokenBooks,
    IdempotencyConflict,
    InvalidQuery,
    NotFound,
    TerrineError,
)
from terrine_server.ledger.charging.admission import REFUSED
from terrine_server.ledger.records import (
    OnRecord,
    ProjectRecord,
    QueryDigest,
    Receipt,
    Recorded,
    Result,
)
from terrine_server.ledger.store import searches
from terrine_server.ledger.store.rows import Accounts


def look_up(
    connection: Connection,
    accounts: Accounts,
    project: str | int,
    keys: Sequence[tuple[str, bytes] | None],
    digests: Sequence[QueryDigest],
) -> OnRecord:
    """Return how the project with this name or number stands, and what is on record of it.

    Of requests with these keys and queries with these digests, all of one moment; see
    `Ledger.consult`. Raises NotFound, and BrokenBooks where the last charge of all is not the one
    that the balance was reckoned with.
    """
    names = [key[0] for key in keys if key is not None]
    if len(set(names)) < len(names):
        raise ValueError("requests with the same key go into groups of their own")
    row, found = searches.find(connection, project, names, digests)
    if row is None:
        called = "called" if isinstance(project, str) else "number"
        raise NotFound(f"There is no project {called} {project}.")
    account = accounts.current(connection, row)
    by_query: dict[bytes, Result] = {}
    by_input: dict[bytes, Result] = {}
    by_key: dict[str, tuple[bytes, str]] = {}
    last: set[tuple[int, str]] = set()
    for kind, digest, seq, outcome, label, key, told in found:
        if kind == searches.KEY:
            by_key[key] = digest, told
        elif kind == searches.LAST:
            last.add((seq, digest.hex()))
        else:
            result = Result(Outcome(outcome), label, seq, replayed=True)
            (by_query if kind == searches.QUERY else by_input)[digest] = result
    if (last or {(0, account.genesis)}) != {(account.charges, account.head)}:
        raise BrokenBooks(
            f"The last charge of project {account.name} is not the one its balance stands on; "
            f"nothing is answered. The server's operator should run "
            f"`terrine ledger verify {account.name}`."
        )
    receipts = [key and _recall(connection, account, *key, by_key.get(key[0])) for key in keys]
    return OnRecord(account, receipts, Recorded(by_query, by_input))


def _recall(
    connection: Connection,
    project: ProjectRecord,
    key: str,
    body_digest: bytes,
    told: tuple[bytes, str] | None,
) -> Receipt | TerrineError | None:
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        return InvalidQuery("An Idempotency-Key is 1 to 255 printable ASCII characters.")
    if told is None:
        return None
    if told[0] != body_digest:
        return IdempotencyConflict(
            "This Idempotency-Key came before with a different request. "
            "Use a fresh key for every new request."
        )
    return Receipt(_results(connection, project.id, json.loads(told[1])), project)


def numbers(results: Sequence[Result]) -> list[int]:
    """What is kept of results: a charge's number where it was paid, its negative where it was
    replayed, 0 where it was refused."""
    return [0 if r.seq is None else -r.seq if r.replayed else r.seq for r in results]


def _results(connection: Connection, project_id: int, numbers: Sequence[int]) -> list[Result]:
    """The inverse of `numbers`."""
    wanted = sorted({abs(number) for number in numbers} - {0})
    by_seq: dict[int, Result] = {}
    for seq, outcome, label in searches.numbered(connection, project_id, wanted):
        by_seq[seq] = Result(Outcome(outcome), label, seq, replayed=False)
    return [
        replace(by_seq[abs(number)], replayed=number < 0) if number else REFUSED
        for number in numbers
    ]
