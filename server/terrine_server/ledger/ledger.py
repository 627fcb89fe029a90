"""The ledger: every read and every write, each in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import (
    EnsembleFacts,
    LogEntry,
    LogVerification,
    Outcome,
    ProjectStatus,
    SecretSpend,
    Verification,
)
from terrine_protocol.transparency import HEIGHT, WIDTH, Policy, Tile, prove_consistency
from terrine_server.errors import (
    ConcurrentUpdate,
    Conflict,
    DatabaseUnavailable,
    InvalidTerms,
    LedgerCorrupted,
    NotFound,
    ServiceError,
)
from terrine_server.ledger import (
    accounts,
    charging,
    database,
    log,
    losses,
    rows,
    transparency,
    verifying,
)
from terrine_server.ledger.chain import Action, Actor, canonical_json
from terrine_server.ledger.database import Transaction, appending, reading, snapshot, writing
from terrine_server.ledger.ensembles import (
    check_delta,
    check_name,
    check_sizes,
    check_unit,
    join_population,
)
from terrine_server.ledger.history import Histories
from terrine_server.ledger.losses import LostSpend
from terrine_server.ledger.migrating import schema_differences
from terrine_server.ledger.projects import (
    Maintenance,
    NewProject,
    RestoredProjects,
    change_status,
    check_reserved,
    end_maintenance,
    insert_project,
    maintenance_of,
    reserve,
)
from terrine_server.ledger.records import (
    ChargedBatch,
    ChargeRecord,
    Edition,
    EnsembleRecord,
    History,
    Payment,
    PopulationRecord,
    ProjectRecord,
    ProjectSnapshot,
    Proposal,
    QueryDigest,
    SpentAccounts,
    TokenRecord,
)
from terrine_server.ledger.schema import (
    Seals,
    administrative_log,
    charges,
    editions,
    ensembles,
    payments,
    projects,
    readable,
    tokens,
    tree_head,
    tree_leaves,
)
from terrine_server.ledger.tokens import (
    NewToken,
    insert_token,
)
from terrine_server.ledger.transparency import LogCheck
from terrine_server.ledger.verifying import Progress, verify_log, verify_project
from terrine_server.privacy import Accounts, Cap

_PAGE_ENTRIES = 1000
"""Entries that are read in one transaction where all are streamed."""

# Built once: SQLAlchemy takes longer to build a statement than a database to run it.
_ON_ENSEMBLE = (
    select(projects.c.id).where(projects.c.ensemble_id == bindparam("id")).order_by(projects.c.id)
)
_PAYMENT = (
    select(payments)
    .where(payments.c.project_id == bindparam("project"), payments.c.first_seq <= bindparam("seq"))
    .order_by(payments.c.first_seq.desc())
    .limit(1)
)


def now() -> datetime:
    """Return the time of what is written from now on, in UTC."""
    return datetime.now(UTC)


class Ledger:
    """Ensembles, projects, charges and tokens in one database. Thread-safe.

    Each write is one transaction. It locks the rows that it changes, a request first, the ensemble
    before the project and the end of the administrative log last, and a charge is written only if
    the account has not changed since it was looked up. So no interleaving of threads, processes or
    machines overspends a budget or a cap. Any method raises DatabaseUnavailable when the database
    cannot be reached or is busy for too long, and LedgerCorrupted when its contents contradict each
    other or were edited by somebody without the key; nothing is half-written then.

    What the data owner does is recorded in the administrative log, in the same transaction. `by`:
    who does it; by default the account that this process runs as.
    """

    # --------------------------------------------------------------------------------- The database

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine = engine
        self._seals = Seals(key)
        self._cache = rows.ProjectCache(self._seals)
        self._histories = Histories()
        # By project: its number of charges after the last one made here. Older records are stale.
        self._charged: dict[int, int] = {}
        self._check_history: Callable[[], None] | None = None

    def guard(self, check_history: Callable[[], None]) -> None:
        """Let nothing be spent from now on unless this check passes."""
        self._check_history = check_history

    def check_history(self) -> None:
        """Raise LedgerRestored or LogNotSigned if nothing may be spent, as found by its guard."""
        if self._check_history is not None:
            self._check_history()

    @contextmanager
    def _writing(self, by: Actor | None) -> Iterator[Transaction]:
        with writing(self._engine) as connection:
            yield Transaction(connection, self._seals, now(), by)

    def _project(self, connection: Connection, name: str) -> ProjectRecord:
        """Return the project with this name. Raises NotFound."""
        return rows.fetch_project(connection, self._seals, f"called {name}", name=name)

    # ------------------------------------------------------------------------------------ Ensembles

    def ensembles(self) -> list[EnsembleRecord]:
        """Return all ensembles, by name."""
        with reading(self._engine) as connection:
            found = connection.execute(rows.select_ensembles())
            records = [rows.ensemble_record(row, self._seals) for row in found.all()]
            return [rows.load_newest_edition(connection, self._seals, record) for record in records]

    def ensemble(self, name: str) -> EnsembleRecord:
        """Return one ensemble. Raises NotFound."""
        with reading(self._engine) as connection:
            return rows.fetch_ensemble(connection, self._seals, name)[1]

    def populations(self) -> list[PopulationRecord]:
        """Return all populations, by name."""
        with reading(self._engine) as connection:
            found = connection.execute(rows.select_populations()).mappings().all()
            return [rows.population_record(row, self._seals) for row in found]

    def editions(self, name: str) -> list[Edition]:
        """Return all editions of an ensemble, in order. Raises NotFound."""
        record = self.ensemble(name)
        with reading(self._engine) as connection:
            return list(rows.load_editions(connection, self._seals, record))

    def register_ensemble(
        self,
        name: str,
        path: str,
        manifest_sha256: str,
        facts: EnsembleFacts,
        units: int,
        cap: Cap | None = None,
        by: Actor | None = None,
        *,
        population: str | None = None,
        disjoint: bool = False,
    ) -> EnsembleRecord:
        """Register an ensemble of the people of a population, whose cap all its projects share.

        `units`: the number of training records, or of people where they are grouped. `population`:
        by default the only one, or `DEFAULT_POPULATION` if there is none yet. The first ensemble of
        a population fixes its `cap`; later ones give none, or the same. `disjoint`: the owner says
        that nobody of a new population is in another.

        Raises InvalidTerms when the cap's δ is 1/units or more, or a new population has no cap;
        NotFound for a population that is not there and not said to be disjoint; and Conflict when
        the name, or the same manifest under another name, is registered already, or the population
        has another cap, protects other units, is not named where there are several, or is there
        and said to be new; and what `check_history` raises.
        """
        check_name("an ensemble", name)
        check_sizes(units=units)
        fields = {
            "name": name,
            "path": path,
            "manifest_sha256": bytes.fromhex(manifest_sha256),
            "info": canonical_json(facts.model_dump(mode="json", exclude_defaults=True)),
            "units": units,
        }
        same = ensembles.c.manifest_sha256 == fields["manifest_sha256"]
        query = rows.select_ensembles().where((ensembles.c.name == name) | same)
        self.check_history()
        with self._writing(by) as tx:
            # Of two that are registered at once, the second sees the population of the first.
            log.check_head(tx.connection, tx.seals, lock=True)
            for row in tx.connection.execute(query):
                taken = rows.ensemble_record(row, tx.seals)
                if taken.name == name:
                    raise Conflict(f"An ensemble called {name} is registered already.")
                raise Conflict(
                    f"These very teachers are registered as {taken.name}. "
                    "Open projects on that ensemble, so that they share its cap."
                )
            joined = join_population(tx, name, cap, population, disjoint)
            check_delta(f"The δ of the cap of {joined.name}", joined.delta, units)
            registered = {**fields, "population_id": joined.id, "registered_at": tx.now}
            try:
                tx.insert_named(ensembles, registered)
            except IntegrityError as error:
                raise Conflict(
                    f"The ensemble {name} was registered by someone else just now."
                ) from error
            shown = {**registered, "population": joined.name}
            log.record_row(tx, Action.ENSEMBLE_REGISTERED, name, shown)
            made = rows.ensemble_record(tx.connection.execute(query).one(), tx.seals)
            if made.facts.disjoint_by is None:
                found = tx.connection.execute(rows.select_ensembles()).all()
                others = (rows.ensemble_record(row, tx.seals) for row in found)
                of_it = (each for each in others if each.population.id == joined.id)
                by_person = made.person_column is not None
                check_unit(name, joined.name, of_it, by_person=by_person)
            return rows.load_newest_edition(tx.connection, tx.seals, made)

    # ------------------------------------------------------------------------------------- Projects

    def project(self, name: str) -> ProjectRecord:
        """Return one project. Raises NotFound."""
        with reading(self._engine) as connection:
            return self._project(connection, name)

    def project_with_shadows(self, name: str) -> tuple[ProjectRecord, Accounts | None]:
        """Return one project, and its shadow accounts as of the same moment; None without any.

        Raises NotFound, and LedgerCorrupted.
        """
        with snapshot(self._engine) as connection:
            project = self._project(connection, name)
            if project.terms.allowance is None:
                return project, None
            return project, accounts.load_shadow_accounts(connection, self._seals, project)

    def cached_project(self, name: str) -> ProjectRecord:
        """Return one project for its fixed fields; all others may be out of date.

        Reads the database only if the project is not in memory. Raises NotFound.
        """
        found = self._cache.get(name)
        return self._cache.add(self.project(name)) if found is None else found

    def projects(
        self,
        after: str | None = None,
        limit: int = 100,
        ensemble: str | None = None,
        status: ProjectStatus | None = None,
        search: str = "",
    ) -> list[ProjectRecord]:
        """Return up to `limit` projects in order of their names, starting after `after`.

        `search`: only those whose name or title has this text, in capitals or not.
        """
        query = rows.select_projects().limit(limit)
        if after is not None:
            query = query.where(projects.c.name > after)
        if ensemble is not None:
            query = query.where(ensembles.c.name == ensemble)
        if status is not None:
            query = query.where(projects.c.status == status)
        if search:
            named = projects.c.name.icontains(search, autoescape=True)
            query = query.where(named | projects.c.title.icontains(search, autoescape=True))
        with reading(self._engine) as connection:
            found = connection.execute(query).all()
            records = [rows.project_record(row, self._seals) for row in found]
            newest = {
                of.id: rows.load_newest_edition(connection, self._seals, of)
                for of in {record.ensemble.id: record.ensemble for record in records}.values()
            }
            return [replace(record, ensemble=newest[record.ensemble.id]) for record in records]

    def project_names(self) -> list[str]:
        """Return the names of all projects, even damaged ones, which `verify` can still check."""
        names = select(projects.c.name).order_by(projects.c.name)
        with reading(self._engine) as connection:
            return list(connection.execute(names).scalars())

    def spent_of_caps(self) -> dict[int, int]:
        """Return what has been spent of the cap of each population, by the population's id.

        Each project's seal is checked. Raises LedgerCorrupted.
        """
        spent: dict[int, int] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(rows.SELECT_SPENT):
                with readable(f"The account of project {row.name!r}", str(row.name)):
                    self._seals.check("projects", row._mapping)
                spent[row.population_id] = spent.get(row.population_id, 0) + row.cap_spent
        return spent

    def open_project(self, new: NewProject, by: Actor | None = None) -> ProjectRecord:
        """Open a project and reserve its budget from the ensemble's cap.

        Raises NotFound, Conflict when the name is taken, InvalidTerms when δ is 1/units or more or
        the terms were quoted for another mechanism, CapExceeded when the budget does not fit in
        what is left of the cap, and what `check_history` raises.
        """
        self.check_history()
        with self._writing(by) as tx:
            return insert_project(tx, new)

    def set_status(
        self, name: str, status: ProjectStatus, by: Actor | None = None
    ) -> ProjectRecord:
        """Pause, resume or close a project.

        Closing is final and returns the unspent budget to the cap. Raises NotFound, Conflict when a
        closed project would be reopened, or charges of it were lost, and, unless it is paused, what
        `check_history` raises.
        """
        status = ProjectStatus(status)
        if status is not ProjectStatus.PAUSED:
            self.check_history()
        with self._writing(by) as tx:
            found = self._project(tx.connection, name)
            rows.lock_population(tx.connection, found.ensemble.population.id)
            project = rows.lock_project(tx, found.id)
            if project.status is status:
                return project
            if project.status is ProjectStatus.CLOSED:
                raise Conflict(f"The project {name} is closed for good. Open a new one.")
            if status is not ProjectStatus.PAUSED:
                losses.check_nothing_lost(tx.connection, name)
            closing = status is ProjectStatus.CLOSED
            if closing:
                check_reserved(tx, project.ensemble)
                accounts.check_closing(tx, project)
            change_status(tx, project, status)
            if closing:
                # Sound because the cap is itself a privacy filter, which may be filled adaptively:
                # only what was released counts against it, not what might have been.
                unspent = project.terms.cap_budget - project.cap_spent
                delta_unspent = project.terms.delta_budget - project.delta_spent
                reserve(tx, project.ensemble, -unspent, -delta_unspent)
            return self._project(tx.connection, name)

    def maintenance(self) -> Maintenance | None:
        """Return the maintenance that is on, if there is one."""
        with reading(self._engine) as connection:
            return maintenance_of(log.load_maintenance(connection))

    def pause_all(self, by: Actor | None = None) -> list[str]:
        """Pause every active project, so that `resume_all` resumes these. Returns their names.

        In one transaction. Done again, it adds what is active by then. Raises LedgerCorrupted.
        """
        with self._writing(by) as tx:
            active = [p for p in _lock_all_projects(tx) if p.status is ProjectStatus.ACTIVE]
            for project in active:
                change_status(tx, project, ProjectStatus.PAUSED)
            paused = sorted(project.name for project in active)
            if paused:
                log.record(tx, Action.MAINTENANCE_BEGUN, log.MAINTENANCE, {"paused": paused})
            return paused

    def resume_all(self, by: Actor | None = None) -> list[str]:
        """Resume what `pause_all` paused, and end the maintenance. Returns the names.

        What was paused before, or was paused, resumed or closed by itself since, stays as it is. In
        one transaction. Without a maintenance it does nothing. Raises LedgerCorrupted, also if an
        entry of the log was altered since the maintenance began, and what `check_history` raises.
        """
        self.check_history()
        with self._writing(by) as tx:
            held = {project.name: project for project in _lock_all_projects(tx)}
            log.check_head(tx.connection, tx.seals, lock=True)  # nothing is added meanwhile
            entries = log.load_maintenance(tx.connection)
            if not entries:
                return []
            found = maintenance_of(
                log.load_verified_entries(tx.connection, tx.seals, entries[0].seq - 1, None)
            )
            resumed = [] if found is None else list(found.paused)
            for name in resumed:
                change_status(tx, held[name], ProjectStatus.ACTIVE)
            end_maintenance(tx, resumed)
            return resumed

    def make_edition(
        self,
        name: str,
        number: int,
        manifest_sha256: str,
        slots: int,
        erased: Collection[int],
    ) -> EnsembleRecord:
        """Record that people left or came: edition `number` of an ensemble.

        `slots`: how many people there are or were; a project of `neighbours` has as many accounts.
        `erased`: the slots of all who ever left. In one transaction, the accounts of all projects
        follow, and the log says that an edition was made. How many people there are is published
        anew with the first edition of a calendar month (UTC): as it was when the month began.
        Raises NotFound, Conflict unless it follows the newest edition, or if nobody knows whose the
        records are, and InvalidTerms for one that takes slots away or brings anybody back, or with
        so many people that the cap's δ is not below one over their number.
        """
        with self._writing(None) as tx:
            _, ensemble = rows.lock_ensemble(tx, name)
            before = ensemble.edition
            if before is None or ensemble.person_column is None:
                raise Conflict(
                    f"Nobody leaves or joins {name}: it does not know whose records it has."
                )
            if number != before.number + 1:
                raise Conflict(
                    f"{name} is in edition {before.number} by now. Run the command again."
                )
            if slots < before.slots or not {*before.erased} <= {*erased} <= {*range(slots)}:
                raise InvalidTerms("No slot is taken away, and nobody who left is there again.")
            if slots > before.slots:
                delta = ensemble.population.delta
                check_delta("The cap's δ", delta, slots - len({*erased}))
            on_it = []
            for id in tx.connection.execute(_ON_ENSEMBLE, {"id": ensemble.id}).scalars().all():
                on_it.append(rows.lock_project(tx, id))
            month = (tx.now.year, tx.now.month)
            published = (before.made_at.year, before.made_at.month) == month
            edition = Edition(
                number=number,
                manifest_sha256=manifest_sha256,
                units=before.units if published else before.slots - len(before.erased),
                slots=slots,
                erased=tuple(sorted(erased)),
                begins={project.id: project.charges for project in on_it},
                made_at=tx.now,
            )
            for project in on_it:
                if project.terms.allowance is not None:
                    accounts.follow_edition(tx, project, edition)
            made = rows.edition_row(ensemble, edition)
            tx.insert(editions, made)
            log.record_row(tx, Action.EDITION_MADE, f"{name}/{number}", made)
            return rows.load_newest_edition(tx.connection, tx.seals, ensemble)

    def fill_accounts(self) -> RestoredProjects:
        """After a restore: pause every active project, and count every account as spent.

        What was charged after the backup is not known any more, so no unit of a project of
        `neighbours` votes again in it. Such a project is never closed: what it has spent of the cap
        is not known either. All in one transaction; done again, it changes nothing that is open.
        Raises LedgerCorrupted, with nothing changed.
        """
        paused, filled = [], []
        with self._writing(None) as tx:
            for project in _lock_all_projects(tx):
                if project.status is ProjectStatus.ACTIVE:
                    change_status(tx, project, ProjectStatus.PAUSED)
                    paused.append(project.name)
                if project.terms.allowance is None or project.status is ProjectStatus.CLOSED:
                    continue
                accounts.fill_accounts(tx, project)
                detail = {"charges": project.charges}
                log.record(tx, Action.ACCOUNTS_FILLED, project.name, detail)
                filled.append(project.name)
            if log.load_maintenance(tx.connection):
                end_maintenance(tx, [])  # whoever restored says of each project that it may go on
        return RestoredProjects(sorted(paused), sorted(filled))

    def record_losses(
        self, signed: int, spent: Mapping[str, LostSpend], *, of_projects: bool
    ) -> None:
        """Record that entries were lost, and what was spent by them, by population.

        `signed`: how many had been signed. `of_projects`: whether there may be charges among them
        of the projects that are here, which stay as they are then. In one transaction.
        """
        with self._writing(None) as tx:
            rows.lock_populations(tx.connection)
            losses.record_losses(tx, signed, spent, _lock_all_projects(tx) if of_projects else ())

    def has_losses(self) -> bool:
        """Return whether entries of this ledger were lost once."""
        with reading(self._engine) as connection:
            return losses.has_losses(connection)

    # -------------------------------------------------------------------------------------- Charges

    def look_up(
        self,
        project: str,
        digests: Sequence[QueryDigest],
        tokens: Collection[TokenRecord] = (),
    ) -> ProjectSnapshot:
        """Return a project's account and what is on record for queries to it. Locks nothing.

        `tokens`: those by which they came. Raises TokenChanged if any of these is not as it is in
        the ledger, and NotFound.
        """
        with reading(self._engine) as connection:
            rows.check_unchanged(connection, self._seals, tokens)
            return charging.look_up(connection, self._cache, project, digests)

    def unit_accounts(self, project: ProjectRecord) -> Accounts:
        """Return what each unit has spent in a project as it was looked up, uint32[U]. Secret.

        Raises ConcurrentUpdate if the project has moved since, and LedgerCorrupted, also if it has
        fewer charges than this process has made: then an older backup was restored.
        """
        made = self._charged.get(project.id, 0)
        with reading(self._engine) as connection:
            found = accounts.load_unit_accounts(connection, self._seals, project)
        if project.charges < made:
            raise LedgerCorrupted(
                f"The project {project.name} is older than its last charge: a backup was restored. "
                "Run `terrine ledger restored`.",
                project.name,
            )
        return found

    def shadow_accounts(self, project: ProjectRecord, count: int | None = None) -> Accounts:
        """Return what public points would have spent in a project as it was looked up, uint32[S].

        `count`: how many there are, before the first charge. Raises ConcurrentUpdate if the project
        has moved since, and LedgerCorrupted.
        """
        with reading(self._engine) as connection:
            return accounts.load_shadow_accounts(connection, self._seals, project, count or 0)

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
        refused one does not affect the others. `record`: what `look_up` returned for them; it is
        looked up again only if it is out of date. `cast`: for a project of `neighbours`, the
        accounts that belong to its proposals; with `record`, which is never looked up again then.
        `payers`: by batch, the id of the token that asks, which is stored with what it pays for.
        Raises what concerns all of them: ProjectPaused, ProjectClosed, ConcurrentUpdate (accounts
        were cast, and the project has moved), DatabaseUnavailable (also if the project is not the
        one in `record`).
        """
        if cast is not None and record is not None:
            return self._charge_cast(batches, record, cast, payers)
        genesis = None if record is None else record.project.genesis

        def look_up(connection: Connection) -> ProjectSnapshot:
            digests = [
                QueryDigest(p.query_digest, p.input_digest) for batch in batches for p in batch
            ]
            found = charging.look_up(connection, self._cache, project_id, digests)
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
            with suppress(ConcurrentUpdate, LedgerCorrupted):
                with (appending if pays else reading)(self._engine) as connection:
                    tx = Transaction(connection, self._seals, now(), None)
                    tried = charging.charge(tx, record, batches, payers=payers)
                paid = tried  # only after the commit, which may raise LedgerCorrupted, too
        if paid is None:
            with self._writing(None) as tx:
                tx.connection.execute(rows.LOCK_PROJECT, {"id": project_id})
                record = look_up(tx.connection)
                try:
                    paid = charging.charge(tx, record, batches, payers=payers)
                except ConcurrentUpdate:  # nobody can have moved it: it is locked
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
        with self._writing(None) as tx:
            tx.connection.execute(rows.LOCK_PROJECT, {"id": id})
            project, answers = charging.charge(tx, record, batches, cast, payers)
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
            id = self._project(connection, project).id
            for seq in sorted(entries, reverse=True):
                if paid is None or not paid.first <= seq <= paid.last:
                    row = connection.execute(_PAYMENT, {"project": id, "seq": seq}).one_or_none()
                    paid = None if row is None else rows.payment_record(row, self._seals)
                if paid is not None and paid.first <= seq <= paid.last:
                    found[seq] = paid.token
        return found

    def project_lock(self, project_id: int) -> AbstractContextManager[None]:
        """Return a lock of a project among all processes; see `database.project_lock`."""
        return database.project_lock(self._engine, project_id)

    # -------------------------------------------------------------------------------------- Entries

    def secret_spend(self, project: str) -> SecretSpend:
        """Return the actual cost of a data-dependent project's queries, given their votes. Secret.

        For the data owner only: no guarantee covers its disclosure. Raises NotFound, and Conflict
        for a project that is priced at the worst case.
        """
        with snapshot(self._engine) as connection:
            account = self._project(connection, project)
            return accounts.secret_spend(connection, self._seals, account)

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
            account = self._project(connection, project)
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
        while page := self.charges(project, after, _PAGE_ENTRIES, outcome, since, until):
            yield from page
            after = page[-1].seq

    def history(self, project: str) -> History:
        """Return how a project's budget was spent, entry by entry and day by day.

        It follows from the entries, of which this process sums each once, and LedgerCorrupted is
        raised unless it ends at the balance. Raises NotFound.
        """
        with reading(self._engine) as connection:
            return self._histories.load(connection, self._project(connection, project))

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield a project's account, then the entries that it counts, as lines of an export.

        In constant memory. Raises NotFound.
        """
        with reading(self._engine) as connection:
            row = connection.execute(rows.project_by("name"), {"name": project}).one_or_none()
            if row is None:
                raise NotFound(f"There is no project called {project}.")
        last = rows.project_record(row, self._seals).charges
        yield verifying.account_line(row._mapping)
        for entry in self.stream_charges(project):
            if entry.seq > last:
                return
            yield verifying.entry_line(entry)

    def verify(self, project: str, progress: Progress | None = None) -> Verification:
        """Recompute a project's ledger from its charges, in constant memory. Raises NotFound."""
        with snapshot(self._engine) as connection:
            return verify_project(connection, self._seals, project, progress)

    # --------------------------------------------------------------------------------------- Tokens

    def find_token(self, id: str) -> TokenRecord | None:
        """Return the token with this id, even if revoked or expired, or None."""
        with reading(self._engine) as connection:
            return rows.fetch_token(connection, self._seals, id)

    def list_tokens(
        self, project: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[TokenRecord]:
        """Return up to `limit` tokens, oldest first: all, or those of one project.

        `after`: a token's id; only later tokens are returned. Raises NotFound for an unknown id.
        """
        query = rows.select_tokens().limit(limit)
        if project is not None:
            query = query.where(projects.c.name == project)
        with reading(self._engine) as connection:
            if after is not None:
                last = rows.fetch_token(connection, self._seals, after)
                if last is None:
                    raise NotFound(f"There is no token {after}.")
                query = query.where(rows.later_than(tokens, last))
            return [rows.token_record(row, self._seals) for row in connection.execute(query)]

    def token_labels(self, ids: Collection[str]) -> dict[str, str]:
        """Return the labels of tokens by their ids. Who has none, or was altered, is left out."""
        labels: dict[str, str] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(rows.select_tokens().where(tokens.c.id.in_(ids))):
                with suppress(LedgerCorrupted):
                    token = rows.token_record(row, self._seals)
                    if token.label:
                        labels[token.id] = token.label
        return labels

    def create_token(self, new: NewToken, by: Actor | None = None) -> TokenRecord:
        """Store a token. Raises NotFound for an unknown project, Conflict when the id is taken."""
        with self._writing(by) as tx:
            return insert_token(tx, new)

    def revoke_token(self, id: str, by: Actor | None = None) -> TokenRecord:
        """Revoke a token, from now on. Doing it again changes nothing. Raises NotFound."""
        with self._writing(by) as tx:
            locked = select(tokens.c.id).where(tokens.c.id == id).with_for_update()
            tx.connection.execute(locked)
            found = rows.fetch_token(tx.connection, tx.seals, id)
            if found is None:
                raise NotFound(f"There is no token {id}.")
            if found.revoked_at is not None:
                return found
            revoked = tx.change(tokens, id, {"revoked_at": tx.now})
            log.record_row(tx, Action.TOKEN_REVOKED, id, {**revoked, "project": found.project})
            return rows.token_record(
                tx.connection.execute(rows.SELECT_TOKEN, {"id": id}).one(), tx.seals
            )

    # ----------------------------------------------------------------------- The administrative log

    def check_sealed(self) -> None:
        """Raise NotSealed, with the command to run, unless the ledger is sealed with this key."""
        with snapshot(self._engine) as connection:
            log.check_head(connection, self._seals)

    def record_action(
        self,
        action: Action,
        subject: str,
        detail: Mapping[str, Any] | None = None,
        by: Actor | None = None,
    ) -> None:
        """Append an entry to the administrative log about something that changes no row."""
        with self._writing(by) as tx:
            log.record(tx, action, subject, detail or {})

    def log(
        self,
        after_seq: int = 0,
        limit: int = 100,
        newest: bool = False,
        before_seq: int | None = None,
    ) -> list[LogEntry]:
        """Return up to `limit` entries of the administrative log numbered above `after_seq`.

        And below `before_seq`, if given. In order: the first of them, or the `newest`.
        """
        seq = administrative_log.c.seq
        query = log.select_log().where(seq > after_seq).limit(limit)
        if before_seq is not None:
            query = query.where(seq < before_seq)
        if newest:
            query = query.order_by(None).order_by(seq.desc())
        with reading(self._engine) as connection:
            found = [log.log_entry(row) for row in connection.execute(query)]
        return found[::-1] if newest else found

    def log_before(self, time: datetime) -> int:
        """Return the number of the last entry of the administrative log before a time, or 0."""
        entries = administrative_log.c
        query = select(entries.seq).where(entries.created_at < time)
        with reading(self._engine) as connection:
            last = query.order_by(entries.seq.desc()).limit(1)
            return connection.execute(last).scalar_one_or_none() or 0

    def log_since(self, seq: int, hash: str | None = None) -> list[LogEntry]:
        """Return all entries of the administrative log after the one with this number.

        They are trusted because their hashes lead from that entry's to the log's sealed end, so
        that an edit of any of them raises LedgerCorrupted. `hash`: that of the entry, if it is
        known.
        """
        with snapshot(self._engine) as connection:
            return log.load_verified_entries(connection, self._seals, seq, hash)

    def export_log(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the administrative log, then its entries, as lines of an export.

        In constant memory. Raises LedgerCorrupted if the log does not end where it should.
        """
        with snapshot(self._engine) as connection:
            end = log.check_head(connection, self._seals)
        yield verifying.log_line(end.entries, end.head)
        after = 0
        while after < end.entries:
            page = self.log(after, min(_PAGE_ENTRIES, end.entries - after))
            yield from map(verifying.log_entry_line, page)
            after = page[-1].seq

    def verify_log(self) -> LogVerification:
        """Recompute the administrative log, and compare the rows of today with it."""
        with snapshot(self._engine) as connection:
            return verify_log(connection, self._seals)

    def verify_schema(self) -> list[str]:
        """Return in what the whole schema is not as this version's migrations make it."""
        return [f"schema: {found}" for found in schema_differences(self._engine)]

    # ------------------------------------------------------------------------- The transparency log

    def grow_tree(self) -> int:
        """Append every entry that is not in the tree yet, and return its size.

        Entries that were committed before this began are in it afterwards. Raises
        DatabaseUnavailable.
        """
        while True:
            with snapshot(self._engine) as connection:
                added = transparency.compute_growth(connection, transparency.MAX_NEW_LEAVES)
            if added.runs:
                with writing(self._engine) as connection:
                    database.lock_tree(connection)
                    if transparency.count_leaves(connection) != added.size:  # another was sooner
                        added = transparency.compute_growth(connection, transparency.MAX_NEW_LEAVES)
                    transparency.append_leaves(connection, added)
            if added.leaves < transparency.MAX_NEW_LEAVES:
                return added.size + added.leaves

    def try_lock_tree(self) -> AbstractContextManager[bool]:
        """Return whether this process alone may grow the tree and sign its root now."""
        return database.try_lock_ledger(self._engine)

    def checkpoint(self) -> str | None:
        """Return the last checkpoint that was signed, with its cosignatures, if there is one."""
        with reading(self._engine) as connection:
            return connection.execute(select(tree_head.c.checkpoint)).scalar_one_or_none()

    def save_checkpoint(self, note: str, before: str | None) -> None:
        """Store a checkpoint in place of the one `before`.

        Raises DatabaseUnavailable if another process has stored one meanwhile.
        """
        with writing(self._engine) as connection:
            transparency.replace_checkpoint(connection, note, before)

    def tree_root(self, size: int) -> bytes:
        """Return the root over the first `size` leaves. Raises ProofError if there are fewer."""
        with snapshot(self._engine) as connection:
            return transparency.root_of(connection, size)

    def consistency(self, old: int, size: int) -> list[bytes]:
        """Return the proof that the tree of `size` leaves begins with that of `old` leaves.

        Raises ProofError if there are fewer leaves.
        """
        with snapshot(self._engine) as connection:
            return prove_consistency(old, size, transparency.tiles_of(connection, size).perfect)

    def tile(self, tile: Tile) -> bytes:
        """Return a tile, or a bundle of entries. Raises NotFound if the tree has no such tile."""
        unit = 1 if tile.level is None else 1 << HEIGHT * tile.level
        with snapshot(self._engine) as connection:
            if transparency.count_leaves(connection) // unit < tile.index * WIDTH + tile.width:
                raise NotFound("The log has no such tile yet.")
            return transparency.load_tile(connection, tile)

    def leaf_key(self, project: str | None) -> bytes | None:
        """Return the leaf key of a project, or of the administrative log for None.

        It is None before anything was logged. Raises NotFound.
        """
        with reading(self._engine) as connection:
            head = transparency.load_head(connection)
            source = transparency.load_source(connection, project)
            return (
                None if head is None else transparency.derive_leaf_key(head.blinding, source.start)
            )

    def positions(self, project: str | None, after_seq: int, limit: int) -> list[tuple[int, int]]:
        """Return number and position in the tree of up to `limit` entries after `after_seq`.

        Those of a project, or of the administrative log for None; in order. Raises NotFound.
        """
        with reading(self._engine) as connection:
            source = transparency.load_source(connection, project)
            leaves = tree_leaves.c
            query = (
                select(leaves.seq, leaves.position)
                .where(leaves.source == source.number, leaves.seq > after_seq)
                .order_by(leaves.seq)
                .limit(limit)
            )
            return [(row.seq, row.position) for row in connection.execute(query)]

    def leaves(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield source, number and commitment of every leaf, in order, in constant memory."""
        next = 0
        while True:
            with reading(self._engine) as connection:
                page = transparency.load_leaves(connection, next)
            if not page:
                return
            for row in page:
                if row.position != next:
                    raise NotFound(f"Leaf {next} is missing.")
                next += 1
                yield row.source, row.seq, row.entry

    def check_tree(self, policy: Policy, earlier: Mapping[str, str]) -> LogCheck:
        """Compare the tree with the ledger's entries, its checkpoint and `earlier` ones."""
        with snapshot(self._engine) as connection:
            head = transparency.load_head(connection)
            current = None if head is None else head.checkpoint
            return transparency.check(connection, policy, current, earlier)


def _lock_all_projects(tx: Transaction) -> list[ProjectRecord]:
    """Lock all projects until the transaction ends, before the end of the log is locked."""
    ids = tx.connection.execute(select(projects.c.id).order_by(projects.c.id)).scalars().all()
    return [rows.lock_project(tx, id) for id in ids]
