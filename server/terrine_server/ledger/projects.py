"""Projects and their budgets: opened under an ensemble's cap, paused, resumed and closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import LogEntry, ProjectStatus
from terrine_server.errors import CapExceeded, Conflict, InvalidTerms, LedgerCorrupted
from terrine_server.ledger import accounts, charging, log, losses, rows
from terrine_server.ledger.chain import ACTIONS_ABOUT, Action, canonical_json, genesis
from terrine_server.ledger.database import Transaction
from terrine_server.ledger.ensembles import check_delta, check_name, check_sizes
from terrine_server.ledger.records import (
    EnsembleRecord,
    ProjectRecord,
    events_of,
)
from terrine_server.ledger.schema import ensembles, populations, projects
from terrine_server.privacy import ParameterError, Terms, build_mechanism

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


def insert_project(tx: Transaction, new: NewProject) -> ProjectRecord:
    """Open a project, and charge what it begins with; see `Ledger.open_project`."""
    name, terms = new.name, new.terms
    check_name("a project", name)
    row, ensemble = rows.lock_ensemble(tx, new.ensemble)
    check_reserved(tx, ensemble)
    check_delta("The project's δ", terms.delta, ensemble.most_units)
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
    reserve(tx, ensemble, terms.cap_budget, terms.delta_budget)
    opened = {**fields, "ensemble": ensemble.name}
    log.record_row(tx, Action.PROJECT_OPENED, name, opened)
    if terms.release is not None:
        made = tx.connection.execute(rows.project_by("name"), {"name": name}).one()
        charging.charge_release(tx, rows.project_record(made, tx.seals, begun=False))
    project = rows.fetch_project(tx.connection, tx.seals, f"called {name}", name=name)
    if terms.schedule is not None:
        accounts.open_tally(tx, project)
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


_PAGE = 1000
