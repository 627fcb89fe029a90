"""Projects and their budgets: opened under an ensemble's cap, paused, resumed and closed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import LogEntry, Outcome, ProjectStatus, SecretSpend, Verification
from terrine_server.errors import CapExceeded, Conflict, InvalidTerms, LedgerCorrupted, NotFound
from terrine_server.ledger import accounts, log, rows, verifying
from terrine_server.ledger.chain import ABOUT, Action, Actor, canonical_json, genesis
from terrine_server.ledger.database import Transaction, reading, snapshot
from terrine_server.ledger.ensembles import check_delta, check_name, check_sizes
from terrine_server.ledger.records import (
    ChargeRecord,
    Edition,
    EnsembleRecord,
    History,
    ProjectRecord,
    events_of,
)
from terrine_server.ledger.rows import DatabaseHandle, load_history
from terrine_server.ledger.schema import charges, ensembles, populations, projects
from terrine_server.ledger.schema import editions as editions_table
from terrine_server.ledger.verifying import Progress, verify_project
from terrine_server.privacy import Accounts, ParameterError, Terms, build_mechanism

_CHANGES = {
    ProjectStatus.ACTIVE: Action.PROJECT_RESUMED,
    ProjectStatus.PAUSED: Action.PROJECT_PAUSED,
    ProjectStatus.CLOSED: Action.PROJECT_CLOSED,
}


_ON_ENSEMBLE = (
    select(projects.c.id).where(projects.c.ensemble_id == bindparam("id")).order_by(projects.c.id)
)
_ALL = select(projects.c.id).order_by(projects.c.id)


@dataclass(frozen=True)
class NewProject:
    """A project that is to be opened on an ensemble.

    `mechanism`: the specification that `terms` were quoted for. `title` and `purpose`: words for
    people, which decide nothing.
    """

    name: str
    ensemble: str
    mechanism: Mapping[str, Any]
    terms: Terms
    title: str | None = None
    purpose: str | None = None


class Projects(DatabaseHandle):
    """The projects of a ledger."""

    def project(self, name: str) -> ProjectRecord:
        """Return one project. Raises NotFound."""
        with reading(self._engine) as connection:
            return self._named(connection, name)

    def project_with_shadows(self, name: str) -> tuple[ProjectRecord, Accounts | None]:
        """Return one project, and its shadow accounts as of the same moment; None without any.

        Raises NotFound, and LedgerCorrupted.
        """
        with reading(self._engine) as connection:
            project = self._named(connection, name)
            if project.terms.allowance is None:
                return project, None
            return project, accounts.load_shadow_accounts(connection, self._seals, project)

    def remembered(self, name: str) -> ProjectRecord:
        """Return one project for its fixed fields; all others may be out of date.

        Reads the database only if the project is not in memory. Raises NotFound.
        """
        found = self._accounts.remembered(name)
        return self._accounts.remember(self.project(name)) if found is None else found

    def projects(
        self,
        after: str | None = None,
        limit: int = 100,
        ensemble: str | None = None,
        status: ProjectStatus | None = None,
    ) -> list[ProjectRecord]:
        """Return up to `limit` projects in order of their names, starting after `after`."""
        query = rows.select_projects().limit(limit)
        if after is not None:
            query = query.where(projects.c.name > after)
        if ensemble is not None:
            query = query.where(ensembles.c.name == ensemble)
        if status is not None:
            query = query.where(projects.c.status == status)
        with reading(self._engine) as connection:
            found = connection.execute(query).all()
            records = (rows.project_record(row, self._seals) for row in found)
            return [rows.load_newest_project(connection, self._seals, record) for record in records]

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
            for row in connection.execute(rows.SPENT):
                with rows.readable(f"The account of project {row.name!r}", str(row.name)):
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
            return open_project(tx, new)

    def set_status(
        self, name: str, status: ProjectStatus, by: Actor | None = None
    ) -> ProjectRecord:
        """Pause, resume or close a project.

        Closing is final and returns the unspent budget to the cap. Raises NotFound, and Conflict
        when a closed project would be reopened.
        """
        status = ProjectStatus(status)
        with self._writing(by) as tx:
            found = self._named(tx.connection, name)
            rows.lock_population(tx.connection, found.ensemble.population.id)
            project = self._held(tx, found.id)
            if project.status is status:
                return project
            if project.status is ProjectStatus.CLOSED:
                raise Conflict(f"The project {name} is closed for good. Open a new one.")
            closing = status is ProjectStatus.CLOSED
            if closing:
                _check_reserved(tx, project.ensemble)
                accounts.check_closing(tx, project)
            _change_status(tx, project, status)
            if closing:
                # Sound because the cap is itself a privacy filter, which may be filled adaptively:
                # only what was released counts against it, not what might have been.
                unspent = project.terms.cap_budget - project.cap_spent
                delta_unspent = project.terms.delta_budget - project.delta_spent
                _reserve(tx, project.ensemble, -unspent, -delta_unspent)
            return self._named(tx.connection, name)

    def maintenance(self) -> Maintenance | None:
        """Return the maintenance that is on, if there is one."""
        with reading(self._engine) as connection:
            return _maintenance(log.maintenance(connection))

    def pause_all(self, by: Actor | None = None) -> list[str]:
        """Pause every active project, so that `resume_all` resumes these. Returns their names.

        In one transaction. Done again, it adds what is active by then. Raises LedgerCorrupted.
        """
        with self._writing(by) as tx:
            active = [p for p in self._all_held(tx) if p.status is ProjectStatus.ACTIVE]
            for project in active:
                _change_status(tx, project, ProjectStatus.PAUSED)
            paused = sorted(project.name for project in active)
            if paused:
                log.record(tx, Action.MAINTENANCE_BEGUN, log.MAINTENANCE, {"paused": paused})
            return paused

    def resume_all(self, by: Actor | None = None) -> list[str]:
        """Resume what `pause_all` paused, and end the maintenance. Returns the names.

        What was paused before, or was paused, resumed or closed by itself since, stays as it is. In
        one transaction. Without a maintenance it does nothing. Raises LedgerCorrupted, also if an
        entry of the log was altered since the maintenance began.
        """
        with self._writing(by) as tx:
            held = {project.name: project for project in self._all_held(tx)}
            log.check_head(tx.connection, tx.seals, lock=True)  # nothing is added meanwhile
            told = log.maintenance(tx.connection)
            if not told:
                return []
            found = _maintenance(log.followed(tx.connection, tx.seals, told[0].seq - 1, None))
            resumed = [] if found is None else list(found.paused)
            for name in resumed:
                _change_status(tx, held[name], ProjectStatus.ACTIVE)
            _end_maintenance(tx, resumed)
            return resumed

    def _all_held(self, tx: Transaction) -> list[ProjectRecord]:
        """Lock all projects until the transaction ends, before the end of the log is."""
        return [self._held(tx, id) for id in tx.connection.execute(_ALL).scalars().all()]

    def _held(self, tx: Transaction, id: int) -> ProjectRecord:
        """Lock a project until the transaction ends, and return it as the last writer left it."""
        tx.connection.execute(rows.HOLD, {"id": id})
        return rows.fetch_project(tx.connection, self._seals, f"number {id}", id=id)

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
            row = rows.lock_ensemble(tx.connection, ensembles.c.name == name)
            if row is None:
                raise NotFound(f"There is no ensemble called {name}.")
            found = rows.ensemble_record(row, tx.seals)
            ensemble = rows.load_newest_edition(tx.connection, tx.seals, found)
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
                on_it.append(self._held(tx, id))
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
                if project.terms.allowance is None:
                    continue
                if accounts.move(tx, project, edition):
                    accounts.renew(tx, project)
            made = rows.row_of(ensemble, edition)
            tx.insert(editions_table, made)
            log.record_row(tx, Action.EDITION_MADE, f"{name}/{number}", made)
            return rows.load_newest_edition(tx.connection, tx.seals, found)

    def fill_accounts(self) -> RestoredProjects:
        """After a restore: pause every active project, and count every account as spent.

        What was charged after the backup is not known any more, so no unit of a project of
        `neighbours` votes again in it. Such a project is never closed: what it has spent of the cap
        is not known either. All in one transaction; done again, it changes nothing that is open.
        Raises LedgerCorrupted, with nothing changed.
        """
        paused, filled = [], []
        with self._writing(None) as tx:
            for project in self._all_held(tx):
                if project.status is ProjectStatus.ACTIVE:
                    _change_status(tx, project, ProjectStatus.PAUSED)
                    paused.append(project.name)
                if project.terms.allowance is None or project.status is ProjectStatus.CLOSED:
                    continue
                accounts.fill_unit_accounts(tx, project)
                accounts.fill_shadow_accounts(tx, project)
                detail = {"charges": project.charges}
                log.record(tx, Action.ACCOUNTS_FILLED, project.name, detail)
                filled.append(project.name)
            if log.maintenance(tx.connection):
                _end_maintenance(tx, [])  # whoever restored says of each project that it may go on
        return RestoredProjects(sorted(paused), sorted(filled))


@dataclass(frozen=True)
class Maintenance:
    """All active projects were paused together. `paused`: those that are resumed when it ends."""

    since: datetime
    by: str
    paused: Sequence[str]


@dataclass(frozen=True)
class RestoredProjects:
    """What was done after a restore: names of projects."""

    paused: Sequence[str]
    filled: Sequence[str]


def _change_status(tx: Transaction, project: ProjectRecord, status: ProjectStatus) -> None:
    closed_at = tx.now if status is ProjectStatus.CLOSED else None
    row = tx.change(projects, project.id, {"status": str(status), "closed_at": closed_at})
    log.record_row(tx, _CHANGES[status], project.name, {**row, "ensemble": project.ensemble.name})


def _end_maintenance(tx: Transaction, resumed: Sequence[str]) -> None:
    detail = {"resumed": list(resumed)}
    log.record(tx, Action.MAINTENANCE_ENDED, log.MAINTENANCE, detail)


def _maintenance(entries: Sequence[LogEntry]) -> Maintenance | None:
    """Return what the log says since a maintenance began, from the first entry about it on.

    A project is of the maintenance if the last entry about it is that of its pausing, which comes
    before the one that names all that were paused.
    """
    if not entries:
        return None
    paused: set[str] = set()
    for entry in entries:
        if entry.action == Action.MAINTENANCE_BEGUN:
            paused |= {*entry.detail["paused"]}
        elif entry.action in ABOUT["project"]:
            paused -= {entry.subject}
    return Maintenance(entries[0].created_at, entries[0].actor, sorted(paused))


def open_project(tx: Transaction, new: NewProject) -> ProjectRecord:
    """Do what `Projects.open_project` does, in a transaction that does more."""
    name, terms = new.name, new.terms
    check_name("a project", name)
    row = rows.lock_ensemble(tx.connection, ensembles.c.name == new.ensemble)
    if row is None:
        raise NotFound(f"There is no ensemble called {new.ensemble}.")
    ensemble = rows.load_newest_edition(
        tx.connection, tx.seals, rows.ensemble_record(row, tx.seals)
    )
    _check_reserved(tx, ensemble)
    newest = ensemble.edition
    units = ensemble.units if newest is None else max(ensemble.units, newest.units)
    check_delta("The project's δ", terms.delta, units)
    check_sizes(budget=terms.budget, delta_budget=terms.delta_budget, cap_budget=terms.cap_budget)
    fields: dict[str, Any] = {
        "name": name,
        "ensemble_id": ensemble.id,
        "status": ProjectStatus.ACTIVE,
        "mechanism": canonical_json(dict(new.mechanism)),
        "events": canonical_json(_events(new.mechanism, terms, ensemble)),
        "terms": canonical_json(terms.to_json()),
        "budget": terms.budget,
        "delta_budget": terms.delta_budget,
        "cap_budget": terms.cap_budget,
        "spent": 0,
        "delta_spent": 0,
        "cap_spent": 0,
        "charges": 0,
        "published": "[]",
        "opened_at": tx.now,
        "closed_at": None,
        "title": new.title,
        "purpose": new.purpose,
    }
    start = genesis({**row._mapping, **fields})
    if tx.connection.execute(rows.project_by("name"), {"name": name}).first():
        raise Conflict(f"A project called {name} exists already; names are never used twice.")
    _check_cap(ensemble, terms)
    try:
        fields |= {"genesis": start, "head": start}
        tx.insert_named(projects, fields)
    except IntegrityError as error:
        raise Conflict(f"The project {name} was opened by someone else just now.") from error
    _reserve(tx, ensemble, terms.cap_budget, terms.delta_budget)
    opened = {**fields, "ensemble": ensemble.name}
    log.record_row(tx, Action.PROJECT_OPENED, name, opened)
    project = rows.fetch_project(tx.connection, tx.seals, f"called {name}", name=name)
    if terms.schedule is not None:
        accounts.open_tally(tx.connection, tx.seals, project)
    if terms.allowance is not None:
        accounts.open_accounts(tx, project)
    return project


def _events(mechanism: Mapping[str, Any], terms: Terms, ensemble: EnsembleRecord) -> dict[str, Any]:
    """Return the mechanism's cost events. Raises InvalidTerms unless the terms fit it."""
    try:
        built = build_mechanism(
            mechanism, teachers=ensemble.facts.teachers, classes=len(ensemble.facts.classes)
        )
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    if set(built.events()) != set(terms.prices):
        raise InvalidTerms(f"The terms were not quoted for the mechanism {built.name}.")
    return events_of(built)


def _reserve(tx: Transaction, ensemble: EnsembleRecord, cost: int, delta_cost: int) -> None:
    id = ensemble.population.id
    reserved = select(populations.c.reserved, populations.c.delta_reserved)
    row = tx.connection.execute(reserved.where(populations.c.id == id)).one()
    changed = {
        "reserved": row.reserved + cost,
        "delta_reserved": row.delta_reserved + delta_cost,
    }
    tx.change(populations, id, changed)


def _check_reserved(tx: Transaction, ensemble: EnsembleRecord) -> None:
    """Raise LedgerCorrupted unless of a locked cap there is reserved the sum over its projects: the
    budget of each open one, the spend of each closed one. Reading them also checks that each was
    opened on its ensemble as it is now."""
    cost, delta_cost, population = 0, 0, ensemble.population
    on_it = rows.select_projects().where(ensembles.c.population_id == population.id)
    for row in tx.connection.execute(on_it):
        project = rows.project_record(row, tx.seals)
        closed = project.status is ProjectStatus.CLOSED
        cost += project.cap_spent if closed else project.terms.cap_budget
        delta_cost += project.delta_spent if closed else project.terms.delta_budget
    if (population.reserved, population.delta_reserved) != (cost, delta_cost):
        raise LedgerCorrupted(
            f"What is reserved of the cap of the population {population.name} is not what it was."
        )


def _check_cap(ensemble: EnsembleRecord, terms: Terms) -> None:
    population = ensemble.population
    if terms.cap_rule != population.rule:
        raise InvalidTerms(
            f"These terms count in {terms.cap_rule}, but the cap of the population "
            f"{population.name} adds up in {population.rule}."
        )
    left, delta_left = (
        population.cap - population.reserved,
        population.delta_cap - population.delta_reserved,
    )
    if terms.cap_budget > left or terms.delta_budget > delta_left:
        # What decides: the cost, unless that fits and the additive δ does not.
        what, needs, has, of = "", terms.cap_budget, left, population.cap
        if needs <= left:
            what, needs, has = "additive δ of the ", terms.delta_budget, delta_left
            of = population.delta_cap
        raise CapExceeded(
            f"This budget takes {needs / of:.3%} of the {what}cap of the population "
            f"{population.name} (ε = {population.epsilon:g}, δ = {population.delta:g}), which all "
            f"ensembles of these people share, and {has / of:.3%} is free. "
            "Ask for less, or close a project that no longer needs its budget.",
            required=terms.cap_budget,
            available=left,
            delta_required=terms.delta_budget,
            delta_available=delta_left,
        )


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
            return load_history(connection, self._named(connection, project))

    def export(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield a project's account, then the entries that it counts, in the format of `archive`.

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
