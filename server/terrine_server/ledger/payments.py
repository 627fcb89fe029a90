"""Paying for queries: what is on record for them, and what is charged for the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress

from sqlalchemy import Connection, bindparam, select

from terrine_server.errors import (
    ConcurrentUpdate,
    DatabaseUnavailable,
    LedgerCorrupted,
    ServiceError,
)
from terrine_server.ledger import accounts as shadow_accounts
from terrine_server.ledger import accounts as unit_accounts
from terrine_server.ledger import charging, database, rows
from terrine_server.ledger.charging import StaleRecord, charge
from terrine_server.ledger.database import reading
from terrine_server.ledger.records import (
    ChargedBatch,
    Payment,
    ProjectRecord,
    ProjectSnapshot,
    Proposal,
    QueryDigest,
    SpentAccounts,
    TokenRecord,
)
from terrine_server.ledger.rows import DatabaseHandle
from terrine_server.ledger.schema import payments
from terrine_server.ledger.tokens import check_unchanged
from terrine_server.privacy import Accounts

_PAYMENT = (
    select(payments)
    .where(payments.c.project_id == bindparam("project"), payments.c.first_seq <= bindparam("seq"))
    .order_by(payments.c.first_seq.desc())
    .limit(1)
)


class Payments(DatabaseHandle):
    """What is paid from the budgets of a ledger."""

    def look_up(
        self,
        project: str,
        digests: Sequence[QueryDigest],
        held: Collection[TokenRecord] = (),
    ) -> ProjectSnapshot:
        """Return a project's account and what is on record for queries to it. Locks nothing.

        `held`: tokens by which they came. Raises TokenChanged if any of these is not as it is in
        the ledger, and NotFound.
        """
        with reading(self._engine) as connection:
            check_unchanged(connection, self._seals, held)
            return charging.look_up(connection, self._accounts, project, digests)

    def accounts(self, project: ProjectRecord) -> Accounts:
        """Return what each unit has spent in a project as it was looked up, uint32[U]. Secret.

        Raises ConcurrentUpdate if the project has moved since, and LedgerCorrupted, also if it has
        fewer charges than this process has made: then an older backup was restored.
        """
        made = self._charged.get(project.id, 0)
        with reading(self._engine) as connection:
            accounts = unit_accounts.load_unit_accounts_as_of(connection, self._seals, project)
        if project.charges < made:
            raise LedgerCorrupted(
                f"The project {project.name} is older than its last charge: a backup was restored. "
                "Run `terrine ledger restored`.",
                project.name,
            )
        return accounts

    def shadows(self, project: ProjectRecord, count: int | None = None) -> Accounts:
        """Return what public points would have spent in a project as it was looked up, uint32[S].

        `count`: how many there are, before the first charge. Raises ConcurrentUpdate if the project
        has moved since, and LedgerCorrupted.
        """
        with reading(self._engine) as connection:
            return shadow_accounts.load_shadow_accounts_as_of(
                connection, self._seals, project, count or 0
            )

    def charge(self, project_id: int, proposals: Sequence[Proposal]) -> ChargedBatch:
        """Pay for a batch in one transaction, which is durable once the receipt is returned.

        A query that was paid before, or that occurs twice, is replayed for free. New ones are paid
        in order while one more at the worst price is certain to fit; then all new ones are refused.
        Raises ProjectPaused, ProjectClosed, InvalidQuery (no query), and BudgetExhausted when
        every query was refused.
        """
        (answer,) = self.charge_group(project_id, [proposals])
        if isinstance(answer, ServiceError):
            raise answer
        return answer

    def charge_group(
        self,
        project_id: int,
        batches: Sequence[Sequence[Proposal]],
        record: ProjectSnapshot | None = None,
        cast: SpentAccounts | None = None,
        payers: Sequence[str | None] | None = None,
    ) -> list[ChargedBatch | ServiceError]:
        """Pay for the batches of several requests, in order, in one transaction.

        Returns for each its receipt, or the error that `charge` would have raised for it alone. A
        refused one does not affect the others. `record`: what
        `look_up` returned for them; it is looked up again only if it is out of date. `cast`: for a
        project of `neighbours`, the accounts that belong to its proposals; with `record`, and never
        looked up again: ConcurrentUpdate if the project has moved. `payers`: by batch, the id of
        the token that asks, which is stored with what it pays for. Raises what
        concerns all of them: ProjectPaused, ProjectClosed, ConcurrentUpdate, DatabaseUnavailable
        (also if the project is not the one in `record`).
        """
        if cast is not None and record is not None:
            return self._charge_cast(batches, record, cast, payers)
        genesis = None if record is None else record.project.genesis

        def look_up(connection: Connection) -> ProjectSnapshot:
            digests = [
                QueryDigest(p.query_digest, p.input_digest) for batch in batches for p in batch
            ]
            found = charging.look_up(connection, self._accounts, project_id, digests)
            if genesis not in (None, found.project.genesis):
                # The same id, but other terms: the outcomes were drawn for another project.
                raise DatabaseUnavailable(
                    "The ledger was replaced by another one. Send the request again."
                )
            return found

        if record is None or record.project.charges < self._charged.get(project_id, 0):
            with reading(self._engine) as connection:
                record = look_up(connection)
        paid, known = None, record.recorded.find
        pays = any(
            proposal.outcome is not None
            and known(proposal.query_digest, proposal.input_digest) is None
            for batch in batches
            for proposal in batch
        )
        if record.project.terms.schedule is None or not pays:  # a tally must be locked first
            # If the record is stale, or contradicts the ledger, look it up again under the lock.
            # What pays for nothing waits for nobody who writes.
            with suppress(StaleRecord, LedgerCorrupted):
                with self._appending() if pays else self._reading() as tx:
                    tried = charge(tx, record, batches, payers=payers)
                paid = tried  # only after the commit, which may raise LedgerCorrupted, too
        if paid is None:
            with self._writing(None) as tx:
                tx.connection.execute(rows.HOLD, {"id": project_id})
                record = look_up(tx.connection)
                try:
                    paid = charge(tx, record, batches, payers=payers)
                except StaleRecord:  # nobody can have moved it: it is locked
                    raise LedgerCorrupted(
                        "The database ignored what was written to it.", record.project.name
                    ) from None
        project, answers = paid
        self._charged[project_id] = project.charges
        return answers

    def _charge_cast(
        self,
        batches: Sequence[Sequence[Proposal]],
        record: ProjectSnapshot,
        cast: SpentAccounts,
        payers: Sequence[str | None] | None,
    ) -> list[ChargedBatch | ServiceError]:
        """Charge, and save the accounts in the same transaction; all of it, or nothing."""
        id = record.project.id
        try:
            with self._writing(None) as tx:
                tx.connection.execute(rows.HOLD, {"id": id})
                project, answers = charge(tx, record, batches, cast, payers)
        except StaleRecord:
            raise ConcurrentUpdate("Another request came first. Send the queries again.") from None
        self._charged[id] = project.charges
        return answers

    def payers(self, project: str, entries: Iterable[int]) -> dict[int, str]:
        """Return for each of these entries the id of the token that paid, by the entry's number.

        For the data owner alone. Entries that are not there, or that were charged before the ledger
        kept who paid, are left out. Raises NotFound, and LedgerCorrupted for what was altered.
        """
        found: dict[int, str] = {}
        paid: Payment | None = None
        with reading(self._engine) as connection:
            id = self._named(connection, project).id
            for seq in sorted(entries, reverse=True):
                if paid is None or not paid.first <= seq <= paid.last:
                    row = connection.execute(_PAYMENT, {"project": id, "seq": seq}).one_or_none()
                    paid = None if row is None else rows.payment(row, self._seals)
                if paid is not None and paid.first <= seq <= paid.last:
                    found[seq] = paid.token
        return found

    def turn(self, project_id: int) -> AbstractContextManager[None]:
        """Hold the turn of a project among all processes: see `store/turns.py`."""
        return database.turn(self._engine, project_id)
