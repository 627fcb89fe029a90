"""The entries of projects: read page by page, summed, and who paid for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from sqlalchemy import bindparam, select

from terrine_protocol import Outcome
from terrine_server.ledger import rows
from terrine_server.ledger.database import Access
from terrine_server.ledger.history import Histories
from terrine_server.ledger.records import ChargeRecord, History, Payment
from terrine_server.ledger.schema import charges, payments

PAGE_ENTRIES = 1000
"""Entries that are read in one transaction where all are streamed."""

# Built once: SQLAlchemy takes longer to build a statement than a database to run it.
_PAYMENT = (
    select(payments)
    .where(payments.c.project_id == bindparam("project"), payments.c.first_seq <= bindparam("seq"))
    .order_by(payments.c.first_seq.desc())
    .limit(1)
)


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
            query = rows.select_charges(account.id)
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
            return [rows.charge_record(row, account) for row in connection.execute(here)]

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
                    paid = None if row is None else rows.payment_record(row, self._access.seals)
                if paid is not None and paid.first <= seq <= paid.last:
                    found[seq] = paid.token
        return found
