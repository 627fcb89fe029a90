"""Projects and their budgets: opened under an ensemble's cap, paused, resumed and closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import LogEntry, ProjectStatus, SecretSpend
from terrine_server.errors import CapExceeded, Conflict, InvalidTerms, LedgerCorrupted
from terrine_server.ledger import accounts, charging, locks, log, losses, rows, tallies
from terrine_server.ledger.chain import ACTIONS_ABOUT, Action, Actor, canonical_json, genesis
from terrine_server.ledger.database import Access, Transaction
from terrine_server.ledger.ensembles import check_delta, check_name, check_sizes
from terrine_server.ledger.records import (
    EnsembleRecord,
    ProjectRecord,
    events_of,
)
from terrine_server.ledger.rows import ProjectCache
from terrine_server.ledger.schema import ensembles, populations, projects
from terrine_server.ledger.seals import readable
from terrine_server.privacy import Accounts, ParameterError, Terms, build_mechanism

_ACTION_OF_STATUS = {
    ProjectStatus.ACTIVE: Action.PROJECT_RESUMED,
    ProjectStatus.PAUSED: Action.PROJECT_PAUSED,
    ProjectStatus.CLOSED: Action.PROJECT_CLOSED,
}


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


def change_status(tx: Transaction, project: ProjectRecord, status: ProjectStatus) -> None:
    """Change the status of a locked project, and record it in the log."""
    closed_at = tx.now if status is ProjectStatus.CLOSED else None
    row = tx.change(projects, project.id, {"status": str(status), "closed_at": closed_at})
    log.record_row(
        tx, _ACTION_OF_STATUS[status], project.name, {**row, "ensemble": project.ensemble.name}
    )


def end_maintenance(tx: Transaction, resumed: Sequence[str]) -> None:
    """Record that a maintenance ended, with the names of the projects that were resumed."""
    detail = {"resumed": list(resumed)}
    log.record(tx, Action.MAINTENANCE_ENDED, log.MAINTENANCE, detail)


def maintenance_of(entries: Sequence[LogEntry]) -> Maintenance | None:
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
        elif entry.action in ACTIONS_ABOUT["project"]:
            paused -= {entry.subject}
    return Maintenance(entries[0].created_at, entries[0].actor, sorted(paused))


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
    if (None if terms.release is None else dict(terms.release.spec)) != ensemble.release_spec:
        raise InvalidTerms(f"The terms do not begin with what {ensemble.name} was made of.")
    return events_of(built)


def reserve(tx: Transaction, ensemble: EnsembleRecord, cost: int, delta_cost: int) -> None:
    """Reserve so much of a locked population's cap, or give back what is negative."""
    id = ensemble.population.id
    reserved = select(populations.c.reserved, populations.c.delta_reserved)
    row = tx.connection.execute(reserved.where(populations.c.id == id)).one()
    changed = {
        "reserved": row.reserved + cost,
        "delta_reserved": row.delta_reserved + delta_cost,
    }
    tx.change(populations, id, changed)


def check_reserved(tx: Transaction, ensemble: EnsembleRecord) -> None:
    """Raise LedgerCorrupted unless what its projects and losses take is reserved of a locked
    population's cap.

    Reading them also checks that each was opened on its ensemble as it is now.
    """
    population = ensemble.population
    on_it = rows.select_projects().where(ensembles.c.population_id == population.id)
    for row in tx.connection.execute(on_it):
        rows.project_record(row, tx.seals)
    taken = zip(
        rows.sum_projects(tx.connection, population.id),
        losses.sum_lost(tx.connection, population.name),
        strict=True,
    )
    if (population.reserved, population.delta_reserved) != tuple(map(sum, taken)):
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


class Projects:
    """The projects of a ledger. Thread-safe."""

    def __init__(self, access: Access, cache: ProjectCache) -> None:
        self._access, self._cache = access, cache

    def list(
        self,
        after: str | None = None,
        limit: int = 100,
        ensemble: str | None = None,
        status: ProjectStatus | None = None,
        search: str = "",
    ) -> Sequence[ProjectRecord]:
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
        with self._access.reading() as connection:
            found = connection.execute(query).all()
            records = [rows.project_record(row, self._access.seals) for row in found]
            newest = {
                of.id: rows.load_newest_edition(connection, self._access.seals, of)
                for of in {record.ensemble.id: record.ensemble for record in records}.values()
            }
            return [replace(record, ensemble=newest[record.ensemble.id]) for record in records]

    def list_names(self) -> Sequence[str]:
        """Return the names of all projects, even damaged ones, which `verify` can still check."""
        names = select(projects.c.name).order_by(projects.c.name)
        with self._access.reading() as connection:
            return list(connection.execute(names).scalars())

    def get(self, name: str) -> ProjectRecord:
        """Return one project. Raises NotFound."""
        with self._access.reading() as connection:
            return rows.fetch_project(connection, self._access.seals, name)

    def get_with_shadows(self, name: str) -> tuple[ProjectRecord, Accounts | None]:
        """Return one project, and its shadow accounts as of the same moment; None without any.

        Raises NotFound, and LedgerCorrupted.
        """
        with self._access.snapshot() as connection:
            project = rows.fetch_project(connection, self._access.seals, name)
            if project.terms.allowance is None:
                return project, None
            return project, accounts.load_shadow_accounts(connection, self._access.seals, project)

    def get_cached(self, name: str) -> ProjectRecord:
        """Return one project for its fixed fields; all others may be out of date.

        Reads the database only if the project is not in memory. Raises NotFound.
        """
        found = self._cache.get(name)
        return self._cache.add(self.get(name)) if found is None else found

    def open(self, new: NewProject, by: Actor | None = None) -> ProjectRecord:
        """Open a project and reserve its budget from the ensemble's cap.

        Raises NotFound, Conflict when the name is taken, InvalidTerms when δ is 1/units or more or
        the terms were quoted for another mechanism, CapExceeded when the budget does not fit in
        what is left of the cap, and what `check_history` raises.
        """
        name, terms = new.name, new.terms
        self._access.check_history()
        with self._access.writing(by) as tx:
            check_name("a project", name)
            row, ensemble = rows.lock_ensemble(tx, new.ensemble)
            check_reserved(tx, ensemble)
            check_delta("The project's δ", terms.delta, ensemble.most_units)
            check_sizes(
                budget=terms.budget, delta_budget=terms.delta_budget, cap_budget=terms.cap_budget
            )
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
                raise Conflict(
                    f"A project called {name} exists already; names are never used twice."
                )
            _check_cap(ensemble, terms)
            try:
                fields |= {"genesis": start, "head": start}
                tx.insert_named(projects, fields)
            except IntegrityError as error:
                raise Conflict(
                    f"The project {name} was opened by someone else just now."
                ) from error
            reserve(tx, ensemble, terms.cap_budget, terms.delta_budget)
            opened = {**fields, "ensemble": ensemble.name}
            log.record_row(tx, Action.PROJECT_OPENED, name, opened)
            if terms.release is not None:
                made = tx.connection.execute(rows.project_by("name"), {"name": name}).one()
                charging.charge_release(tx, rows.project_record(made, tx.seals, begun=False))
            project = rows.fetch_project(tx.connection, tx.seals, name)
            if terms.schedule is not None:
                tallies.open_tally(tx, project)
            if terms.allowance is not None:
                accounts.open_accounts(tx, project)
            return project

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
            self._access.check_history()
        with self._access.writing(by) as tx:
            found = rows.fetch_project(tx.connection, self._access.seals, name)
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
            return rows.fetch_project(tx.connection, self._access.seals, name)

    def maintenance(self) -> Maintenance | None:
        """Return the maintenance that is on, if there is one."""
        with self._access.reading() as connection:
            return maintenance_of(log.load_maintenance(connection))

    def pause_all(self, by: Actor | None = None) -> Sequence[str]:
        """Pause every active project, so that `resume_all` resumes these. Returns their names.

        In one transaction. Done again, it adds what is active by then. Raises LedgerCorrupted.
        """
        with self._access.writing(by) as tx:
            active = [p for p in rows.lock_all_projects(tx) if p.status is ProjectStatus.ACTIVE]
            for project in active:
                change_status(tx, project, ProjectStatus.PAUSED)
            paused = sorted(project.name for project in active)
            if paused:
                log.record(tx, Action.MAINTENANCE_BEGUN, log.MAINTENANCE, {"paused": paused})
            return paused

    def resume_all(self, by: Actor | None = None) -> Sequence[str]:
        """Resume what `pause_all` paused, and end the maintenance. Returns the names.

        What was paused before, or was paused, resumed or closed by itself since, stays as it is. In
        one transaction. Without a maintenance it does nothing. Raises LedgerCorrupted, also if an
        entry of the log was altered since the maintenance began, and what `check_history` raises.
        """
        self._access.check_history()
        with self._access.writing(by) as tx:
            held = {project.name: project for project in rows.lock_all_projects(tx)}
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

    def fill_accounts(self) -> RestoredProjects:
        """After a restore: pause every active project, and count every account as spent.

        What was charged after the backup is not known any more, so no unit of a project of
        `neighbours` votes again in it. Such a project is never closed: what it has spent of the cap
        is not known either. All in one transaction; done again, it changes nothing that is open.
        Raises LedgerCorrupted, with nothing changed.
        """
        paused, filled = [], []
        with self._access.writing() as tx:
            for project in rows.lock_all_projects(tx):
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

    def spent_of_caps(self) -> dict[int, int]:
        """Return what has been spent of the cap of each population, by the population's id.

        Each project's seal is checked. Raises LedgerCorrupted.
        """
        spent: dict[int, int] = {}
        with self._access.reading() as connection:
            for row in connection.execute(rows.SELECT_SPENT):
                with readable(f"The account of project {row.name!r}", str(row.name)):
                    self._access.seals.check("projects", row._mapping)
                spent[row.population_id] = spent.get(row.population_id, 0) + row.cap_spent
        return spent

    def secret_spend(self, project: str) -> SecretSpend:
        """Return the actual cost of a data-dependent project's queries, given their votes. Secret.

        For the data owner only: no guarantee covers its disclosure. Raises NotFound, and Conflict
        for a project that is priced at the worst case.
        """
        with self._access.snapshot() as connection:
            account = rows.fetch_project(connection, self._access.seals, project)
            tally = tallies.load_tally(connection, self._access.seals, account)
        if tally is None:
            raise Conflict(
                f"The project {project} is priced at the worst case; it has no secret spend."
            )
        spend = tally.spend()
        return SecretSpend(
            project=project,
            queries=account.account.queries,
            order=tallies.meter_of(account).order,
            cost=spend.cost,
            smooth_sensitivity=spend.smooth_sensitivity,
        )

    def lock(self, project_id: int) -> AbstractContextManager[None]:
        """Return a lock of a project among all processes; see `locks.project_lock`."""
        return locks.project_lock(self._access.engine, project_id)
