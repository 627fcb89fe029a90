"""Looks up what is on record: the account, and the charges that answer queries.

Labels and noisy counts are read only from charges, and only if a charge's hash matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from terrine_protocol import Outcome
from terrine_server.errors import LedgerCorrupted, NotFound
from terrine_server.ledger.chain import frame_counts, frame_kind, hasher, iso
from terrine_server.ledger.counts import check_counts, counts_of
from terrine_server.ledger.records import (
    EntryFields,
    ProjectRecord,
    ProjectSnapshot,
    QueryDigest,
    RecordedCharges,
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
    digests: Sequence[QueryDigest],
) -> ProjectSnapshot:
    """Return the project with this name or id, and what is on record for queries to it.

    Everything is as of one moment; see `Ledger.look_up`. Raises NotFound, and LedgerCorrupted if
    the last charge is not the one that the account names as its last, or if a charge that answers a
    query was altered.
    """
    row, found = searches.find(connection, project, digests)
    if row is None:
        called = "called" if isinstance(project, str) else "number"
        raise NotFound(f"There is no project {called} {project}.")
    account = accounts.current(connection, row)
    paid = _Paid(account)
    by_query: dict[bytes, Result] = {}
    by_input: dict[bytes, Result] = {}
    ends: set[tuple[int, bytes]] = set()
    for entry in found:
        if entry.kind == searches.LAST:
            ends.add((entry.seq, entry.hash))
        elif entry.kind == searches.QUERY:
            by_query[entry.query_digest] = paid.result(entry)
        else:
            by_input[entry.input_digest] = paid.result(entry)
    check_end(account, ends)
    return ProjectSnapshot(account, RecordedCharges(by_query, by_input))


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
        return Result(Outcome(entry.outcome), entry.label, seq, True, counts, entry.hash.hex())

    def _kinds(self, outcome: str, label: int | None) -> list[bytes]:
        """Return the frames of an entry with this outcome: one for each baseline that is priced."""
        framed = self._framed.get((outcome, label))
        if framed is None:
            terms, kinds = self._project.terms, EntryFields(self._project)
            framed = [
                frame_kind(
                    *kinds.fields(
                        outcome,
                        terms.price(VoteOutcome(outcome), baseline),
                        label,
                        baseline=baseline,
                    )
                )
                for baseline in terms.baselines
            ]
            self._framed[outcome, label] = framed
        return framed
