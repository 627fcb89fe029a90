"""What is on record: how a project stands, earlier answers, and how requests were answered before.

Labels are read from charges alone, and from none whose hash is not its own. What a request with a
key was answered is kept as numbers of charges, which have to be those of the queries it asks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Connection

from terrine_protocol import Outcome
from terrine_server.errors import (
    BrokenBooks,
    IdempotencyConflict,
    InvalidQuery,
    NotFound,
    TerrineError,
)
from terrine_server.ledger.chain import frame_kind, hasher, iso
from terrine_server.ledger.charging.admission import REFUSED
from terrine_server.ledger.epochs import Kinds
from terrine_server.ledger.records import (
    OnRecord,
    ProjectRecord,
    QueryDigest,
    Receipt,
    Recorded,
    Result,
)
from terrine_server.ledger.store import searches
from terrine_server.ledger.store.rows import KnownProjects, check_end
from terrine_server.ledger.store.soundness import UNREADABLE
from terrine_server.privacy import VoteOutcome


def look_up(
    connection: Connection,
    accounts: KnownProjects,
    project: str | int,
    keys: Sequence[tuple[str, bytes] | None],
    digests: Sequence[Sequence[QueryDigest]],
) -> OnRecord:
    """Return how the project with this name or number stands, and what is on record of it.

    Of requests with these keys and with queries of these digests, all of one moment; see
    `Ledger.consult`. Raises NotFound, and BrokenBooks where the last charge of all is not the one
    that the balance was reckoned with, or a charge that answers a query was altered.
    """
    names = [key[0] for key in keys if key is not None]
    if len(set(names)) < len(names):
        raise ValueError("requests with the same key go into groups of their own")
    row, found = searches.find(connection, project, names, list(chain.from_iterable(digests)))
    if row is None:
        called = "called" if isinstance(project, str) else "number"
        raise NotFound(f"There is no project {called} {project}.")
    account = accounts.current(connection, row)
    paid = _Paid(account)
    by_query: dict[bytes, Result] = {}
    by_input: dict[bytes, Result] = {}
    by_key: dict[str, Any] = {}
    ends: set[tuple[int, bytes]] = set()
    for entry in found:
        if entry.kind == searches.KEY:
            by_key[entry.key] = entry
        elif entry.kind == searches.LAST:
            ends.add((entry.seq, entry.hash))
        elif entry.kind == searches.QUERY:
            by_query[entry.query_digest] = paid.result(entry)
        else:
            by_input[entry.input_digest] = paid.result(entry)
    check_end(account, ends)
    recorded = Recorded(by_query, by_input)
    answers = [
        key and _recall(account, *key, by_key.get(key[0]), asked, recorded, paid.times)
        for key, asked in zip(keys, digests, strict=True)
    ]
    return OnRecord(account, answers, recorded)


class _Paid:
    """Reads charges of a project that answer queries, and checks each against its hash.

    The hash covers what an entry cost and why. That is taken from the terms, not from the entry, so
    an entry that was charged at any other price is none of this project's.
    """

    def __init__(self, project: ProjectRecord) -> None:
        self._project = project
        self._genesis = bytes.fromhex(project.genesis)
        self._hashed = hasher(project.id)
        self._framed: dict[tuple[str, int | None], list[bytes]] = {}
        self.times: dict[int | None, Any] = {}
        """When each was charged, by number; all of one transaction at one time."""

    def result(self, entry: Any) -> Result:
        """Return what a row of `searches.find` answers. Raises BrokenBooks."""
        try:
            seq, time = entry.seq, entry.created_at
            fields = (
                self._genesis if seq == 1 else entry.previous,
                seq,
                iso(time) if isinstance(time, datetime) else time,
                entry.query_digest,
                entry.input_digest,
            )
            kinds = self._kinds(entry.outcome, entry.label)
            intact = any(self._hashed(*fields, kind) == entry.hash for kind in kinds)
        except UNREADABLE:
            intact = False
        if not intact:
            name = self._project.name
            raise BrokenBooks(f"Entry {entry.seq} of project {name} was altered.", name)
        self.times[seq] = entry.created_at
        return Result(Outcome(entry.outcome), entry.label, seq, replayed=True)

    def _kinds(self, outcome: str, label: int | None) -> list[bytes]:
        """The frames that an entry with this outcome may have: it may have opened an epoch."""
        framed = self._framed.get((outcome, label))
        if framed is None:
            terms, kinds = self._project.terms, Kinds(self._project)
            framed = [
                frame_kind(
                    *kinds.fields(outcome, terms.price(VoteOutcome(outcome), opens), opens, label)
                )
                for opens in ((False, True) if terms.opening is not None else (False,))
            ]
            self._framed[outcome, label] = framed
        return framed


def _recall(
    project: ProjectRecord,
    key: str,
    body_digest: bytes,
    kept: Any,
    asked: Sequence[QueryDigest],
    recorded: Recorded,
    times: Mapping[int | None, Any],
) -> Receipt | TerrineError | None:
    """Return how a request with a key was answered, from the row that was `kept` of it."""
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        return InvalidQuery("An Idempotency-Key is 1 to 255 printable ASCII characters.")
    if kept is None:
        return None
    if kept.body_digest != body_digest:
        return IdempotencyConflict(
            "This Idempotency-Key came before with a different request. "
            "Use a fresh key for every new request."
        )
    own = {seq for seq, time in times.items() if time == kept.created_at}
    try:
        return Receipt(_results(numbers_kept(kept.results), asked, recorded, own), project)
    except UNREADABLE as error:
        # Returned, since it concerns no other request.
        return BrokenBooks(
            "What is kept of this Idempotency-Key was altered or damaged. Sent without it, the "
            "request is answered at no cost as far as it was paid.",
            project.name,
            repr(error),
        )


def numbers(results: Sequence[Result]) -> list[int]:
    """What is kept of results: a charge's number where it was paid, its negative where it was
    replayed, 0 where it was refused."""
    return [0 if r.seq is None else -r.seq if r.replayed else r.seq for r in results]


def numbers_kept(text: str) -> list[int]:
    """Read what `numbers` wrote, as JSON. ValueError or TypeError for what it never writes."""
    kept = json.loads(text)
    if not isinstance(kept, list) or any(type(number) is not int for number in kept):
        raise TypeError("no list of whole numbers")
    if not any(kept):
        raise ValueError("a request of which nothing was answered keeps no key")
    return kept


def _results(
    numbers: Sequence[int],
    asked: Sequence[QueryDigest],
    recorded: Recorded,
    together: Collection[int | None],
) -> list[Result]:
    """The inverse of `numbers`. ValueError unless each is the number of its query's own charge.

    `together`: charges that were made in the transaction that kept the numbers. What the request
    paid is among them, and what it was refused is not: that may have been paid later.
    """
    newest = max(map(abs, numbers))
    results = []
    for number, digest in zip(numbers, asked, strict=True):
        own = recorded.queries.get(digest.query)
        answer = recorded.answered_inputs.get(digest.input)
        found = {result.seq: result for result in (answer, own) if result is not None}
        if number == 0:
            if any(seq in together or seq is None or seq <= newest for seq in found):
                raise ValueError("refused, and yet answered before")
            results.append(REFUSED)
            continue
        result = found.get(abs(number))
        if result is None or (number > 0 and (result is not own or number not in together)):
            raise ValueError("the number of another query's charge")
        results.append(replace(result, replayed=number < 0))
    return results
