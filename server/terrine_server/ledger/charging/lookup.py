"""Looks up what is on record: the account, earlier charges, and earlier answers to requests.

Labels and noisy counts are read only from charges, and only if a charge's hash matches. For a
request with a key, it is kept which charges answered it; they must be those of its queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from sqlalchemy import Connection

from terrine_protocol import Outcome
from terrine_server.errors import (
    IdempotencyConflict,
    InvalidQuery,
    LedgerCorrupted,
    NotFound,
    TerrineError,
)
from terrine_server.ledger.chain import frame_counts, frame_kind, hasher, iso
from terrine_server.ledger.charging import idempotency_keys
from terrine_server.ledger.counts import check_counts, counts_of
from terrine_server.ledger.epochs import Kinds
from terrine_server.ledger.records import (
    OnRecord,
    ProjectRecord,
    QueryDigest,
    Receipt,
    Recorded,
    Result,
)
from terrine_server.ledger.seals import Seals
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
    """Return the project with this name or id, and what is on record for requests to it.

    The requests have these keys, and queries with these digests. Everything is as of one moment;
    see `Ledger.look_up`. Raises NotFound, and LedgerCorrupted if the last charge is not the one
    that the account names as its last, or if a charge that answers a query was altered.
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
        key
        and _recall(account, accounts.seals, *key, by_key.get(key[0]), asked, recorded, paid.times)
        for key, asked in zip(keys, digests, strict=True)
    ]
    return OnRecord(account, answers, recorded)


class _Paid:
    """Reads charges of a project that answer queries, and checks the hash of each.

    The hash covers the price and the cost event. Both are taken from the terms, not from the entry,
    so the hash of an entry that was charged at any other price does not match.
    """

    def __init__(self, project: ProjectRecord) -> None:
        self._project = project
        self._genesis = bytes.fromhex(project.genesis)
        self._hashed = hasher(project.id)
        self._framed: dict[tuple[str, int | None], list[bytes]] = {}
        self.times: dict[int | None, Any] = {}
        """The time of each charge, by number. All charges of a transaction have the same time."""

    def result(self, entry: Any) -> Result:
        """Return the result in a row of `searches.find`. Raises LedgerCorrupted if it was
        altered."""
        counts = None
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
            framed = frame_counts(entry.counts)
            intact = any(self._hashed(*fields, kind + framed) == entry.hash for kind in kinds)
            counts = counts_of(entry.counts)
            check_counts(counts, entry.label, self._project.counts_due(entry.outcome))
        except UNREADABLE:
            intact = False
        if not intact:
            name = self._project.name
            raise LedgerCorrupted(f"Entry {entry.seq} of project {name} was altered.", name)
        self.times[seq] = entry.created_at
        return Result(Outcome(entry.outcome), entry.label, seq, True, counts, entry.hash.hex())

    def _kinds(self, outcome: str, label: int | None) -> list[bytes]:
        """Return the frames that an entry with this outcome may have.

        It may open an epoch, or have any of the baselines that are priced.
        """
        framed = self._framed.get((outcome, label))
        if framed is None:
            terms, kinds = self._project.terms, Kinds(self._project)
            variants = [(False, baseline) for baseline in terms.baselines]
            variants += [(True, 0)] if terms.opening is not None else []
            framed = [
                frame_kind(
                    *kinds.fields(
                        outcome,
                        terms.price(VoteOutcome(outcome), *variant),
                        variant[0],
                        label,
                        baseline=variant[1],
                    )
                )
                for variant in variants
            ]
            self._framed[outcome, label] = framed
        return framed


def _recall(
    project: ProjectRecord,
    seals: Seals,
    key: str,
    body_digest: bytes,
    kept: Any,
    asked: Sequence[QueryDigest],
    recorded: Recorded,
    times: Mapping[int | None, Any],
) -> Receipt | TerrineError | None:
    """Return the earlier answer to a request with a key, from its row `kept`, if there is one."""
    if not 1 <= len(key) <= 255 or not key.isascii() or not key.isprintable():
        return InvalidQuery("An Idempotency-Key is 1 to 255 printable ASCII characters.")
    if kept is None:
        return None
    own = {seq for seq, time in times.items() if time == kept.created_at}
    try:
        sealed = {**kept._mapping, "project_id": project.id, "seal": kept.key_seal}
        seals.check("idempotency", sealed)
        if kept.body_digest != body_digest:
            return IdempotencyConflict(
                "This Idempotency-Key came before with a different request. "
                "Use a fresh key for every new request."
            )
        read = idempotency_keys.read(kept.results)
        if read.last > project.charges:
            raise ValueError("charges that are not there")
        allowance = project.terms.allowance
        allowed = 0 if allowance is None else allowance.queries
        return Receipt(read.results(asked, recorded, own, allowed), project)
    except UNREADABLE as error:
        # Returned, not raised: it concerns this request alone.
        return LedgerCorrupted(
            "What is kept of this Idempotency-Key was altered or damaged. Sent without it, the "
            "request is answered at no cost as far as it was paid.",
            project.name,
            repr(error),
        )
