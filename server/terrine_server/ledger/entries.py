"""The entries of projects: read page by page, summed, and who paid for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, bindparam, select

from terrine_protocol import Outcome
from terrine_server.ledger import rows
from terrine_server.ledger.chain import check_counts, counts_from_text, hash_matches
from terrine_server.ledger.database import Access
from terrine_server.ledger.history import Histories
from terrine_server.ledger.records import ChargeRecord, History, Payment, ProjectRecord
from terrine_server.ledger.schema import charges, payments
from terrine_server.ledger.seals import Seals, check_types, readable

# Entries that are read in one transaction where all are streamed.
PAGE_ENTRIES = 1000

# Built once: SQLAlchemy takes longer to build a statement than a database to run it.
_PAYMENT = (
    select(payments)
    .where(payments.c.project_id == bindparam("project"), payments.c.first_seq <= bindparam("seq"))
    .order_by(payments.c.first_seq.desc())
    .limit(1)
)


_before = charges.alias("before")
_previous = (
    select(_before.c.hash)
    .where(_before.c.project_id == charges.c.project_id, _before.c.seq == charges.c.seq - 1)
    .scalar_subquery()
    .label("previous")
)


def select_charges(project_id: int) -> Select[Any]:
    """Select a project's charges in order, each with the previous hash."""
    return (
        select(charges, _previous).where(charges.c.project_id == project_id).order_by(charges.c.seq)
    )


def charge_record(row: Row[Any], project: ProjectRecord) -> ChargeRecord:
    """Return the record of a row of `select_charges`. Raises LedgerCorrupted if its hash is
    wrong."""
    with readable(f"Entry {row.seq} of project {project.name!r}", project.name):
        fields = dict(row._mapping)
        previous = fields.pop("previous")
        check_types(charges.c, fields)
        if not hash_matches(bytes.fromhex(project.genesis) if row.seq == 1 else previous, fields):
            raise ValueError("the hash is not that of its columns and of the entry before")
        counts = counts_from_text(row.counts)
        check_counts(counts, row.label, project.counts_due(row.outcome))
        return ChargeRecord(
            project=project.name,
            **fields
            | {
                "query_digest": row.query_digest.hex(),
                "input_digest": row.input_digest.hex(),
                "outcome": Outcome(row.outcome),
                "counts": counts,
                "mechanism": json.loads(row.mechanism),
                "event": json.loads(row.event),
                "hash": row.hash.hex(),
            },
        )


def payment_record(row: Row[Any], seals: Seals) -> Payment:
    """Return the record of a row of `payments`. Raises LedgerCorrupted unless its seal is right."""
    with readable(f"Who paid for entry {row.first_seq} of project number {row.project_id}"):
        check_types(payments.c, row._mapping)
        seals.check("payments", row._mapping)
        return Payment(row.first_seq, row.last_seq, row.token_id)


class Entries:
    """The entries of a ledger's projects. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access, self._histories = access, Histories()

    def list(
        self,
        project: str,
        after_seq: int = 0,
        limit: int = 100,
        outcome: Outcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before_seq: int | None = None,
        newest: bool = False,
    ) -> Sequence[ChargeRecord]:
        """Return up to `limit` entries numbered above `after_seq`, and below `before_seq` if given.

        In order, the first of them; or the `newest`, last one first. `since` (inclusive) and
        `until` (exclusive) limit their times, if given. Raises NotFound.
        """
        with self._access.reading() as connection:
            account = rows.fetch_project(connection, self._access.seals, project)
            query = select_charges(account.id)
            if outcome is not None:
                query = query.where(charges.c.outcome == outcome)
            if since is not None:
                query = query.where(charges.c.created_at >= since)
            if until is not None:
                query = query.where(charges.c.created_at < until)
            if newest:
                query = query.order_by(None).order_by(charges.c.seq.desc())
            last = min(account.charges, account.charges if before_seq is None else before_seq - 1)
            here = query.where(charges.c.seq > after_seq, charges.c.seq <= last).limit(limit)
            return [charge_record(row, account) for row in connection.execute(here)]

    def stream(
        self,
        project: str,
        outcome: Outcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[ChargeRecord]:
        """Yield all entries in order, in constant memory.

        Each page is one transaction: entries never change, and a slow reader must not hold one.
        """
        after = 0
        while page := self.list(project, after, PAGE_ENTRIES, outcome, since, until):
            yield from page
            after = page[-1].seq

    def history(self, project: str) -> History:
        """Return how a project's budget was spent, entry by entry and day by day.

        It follows from the entries, of which this process sums each once, and LedgerCorrupted is
        raised unless it ends at the balance. Raises NotFound.
        """
        with self._access.reading() as connection:
            account = rows.fetch_project(connection, self._access.seals, project)
            return self._histories.load(connection, account)

    def payers(self, project: str, entries: Iterable[int]) -> dict[int, str]:
        """Return for each of these entries the id of the token that paid, by the entry's number.

        For the data owner alone. Entries that are not there, or that were charged before the ledger
        kept who paid, are left out. Raises NotFound, and LedgerCorrupted for what was altered.
        """
        found: dict[int, str] = {}
        paid: Payment | None = None
        with self._access.reading() as connection:
            id = rows.fetch_project(connection, self._access.seals, project).id
            for seq in sorted(entries, reverse=True):
                if paid is None or not paid.first <= seq <= paid.last:
                    row = connection.execute(_PAYMENT, {"project": id, "seq": seq}).one_or_none()
                    paid = None if row is None else payment_record(row, self._access.seals)
                if paid is not None and paid.first <= seq <= paid.last:
                    found[seq] = paid.token
        return found
