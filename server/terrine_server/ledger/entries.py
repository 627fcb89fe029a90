"""What was charged: read, summed, exported and verified."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from terrine_protocol import Outcome, SecretSpend, Verification
from terrine_server.errors import NotFound
from terrine_server.ledger.charging import tallies
from terrine_server.ledger.handle import DatabaseHandle
from terrine_server.ledger.records import ChargeRecord, History
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.database import reading, snapshot
from terrine_server.ledger.store.history import history
from terrine_server.ledger.store.tables import charges
from terrine_server.ledger.verifying import archive
from terrine_server.ledger.verifying.walk import Progress, verify_project

_PAGE = 1000


class Entries(DatabaseHandle):
    """The entries of a ledger's projects."""

    def secret_spend(self, project: str) -> SecretSpend:
        """Return the actual cost of a data-dependent project's queries, given their votes. Secret.

        For the data owner only: no guarantee covers its disclosure. Raises NotFound, and Conflict
        for a project that is priced at the worst case.
        """
        with snapshot(self._engine) as connection:
            account = self._named(connection, project)
            return tallies.secret_spend(connection, self._seals, account)

    def charges(
        self,
        project: str,
        after_seq: int = 0,
        limit: int = 100,
        outcome: Outcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        before_seq: int | None = None,
        newest: bool = False,
    ) -> list[ChargeRecord]:
        """Return up to `limit` entries numbered above `after_seq`, and below `before_seq` if given.

        In order, the first of them; or the `newest`, last one first. `since` (inclusive) and
        `until` (exclusive) limit their times, if given. Raises NotFound.
        """
        with reading(self._engine) as connection:
            account = self._named(connection, project)
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

    def stream_charges(
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
        while page := self.charges(project, after, _PAGE, outcome, since, until):
            yield from page
            after = page[-1].seq

    def history(self, project: str) -> History:
        """Return how a project's budget was spent, entry by entry and day by day.

        It follows from the entries, and LedgerCorrupted is raised unless it ends at the balance.
        Raises NotFound.
        """
        with reading(self._engine) as connection:
            return history(connection, self._named(connection, project))

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield a project's account, then the entries that it counts, in the format of `archive`.

        In constant memory. Raises NotFound.
        """
        with reading(self._engine) as connection:
            row = connection.execute(rows.project_by("name"), {"name": project}).one_or_none()
            if row is None:
                raise NotFound(f"There is no project called {project}.")
        last = rows.project_record(row, self._seals).charges
        yield archive.account_line(row._mapping)
        for entry in self.stream_charges(project):
            if entry.seq > last:
                return
            yield archive.entry_line(entry)

    def verify(self, project: str, progress: Progress | None = None) -> Verification:
        """Recompute a project's ledger from its charges, in constant memory. Raises NotFound."""
        with snapshot(self._engine) as connection:
            return verify_project(connection, self._seals, project, progress)
