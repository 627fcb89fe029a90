"""Ensembles and their caps, projects and their budgets: registered, opened and closed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Table, insert, select, update
from sqlalchemy.exc import IntegrityError

from terrine_protocol import Name, ProjectStatus
from terrine_server.errors import CapExceeded, Conflict, InvalidTerms, LedgerCorrupted, NotFound
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.chain import canonical_json, genesis
from terrine_server.ledger.charging import tallies
from terrine_server.ledger.epochs import events_of
from terrine_server.ledger.records import EnsembleRecord, ProjectRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import log, rows
from terrine_server.ledger.store.database import write
from terrine_server.ledger.store.tables import ensembles, projects
from terrine_server.privacy import Cap, ParameterError, Terms, build_mechanism

_LARGEST = 2**63 - 1
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_CHANGES = {
    ProjectStatus.ACTIVE: Action.PROJECT_RESUMED,
    ProjectStatus.PAUSED: Action.PROJECT_PAUSED,
    ProjectStatus.CLOSED: Action.PROJECT_CLOSED,
}


UNSEALED = bytes(32)
"""In the seal of a row whose id is not known yet: no seal is this."""


def register_ensemble(
    connection: Connection,
    seals: Seals,
    now: datetime,
    by: Actor | None,
    name: str,
    path: str,
    manifest_sha256: str,
    info: Mapping[str, Any],
    units: int,
    cap: Cap,
) -> EnsembleRecord:
    """See `Ledger.register_ensemble`."""
    check_name("an ensemble", name)
    _check_delta("The cap's δ", cap.delta, units)
    _check_sizes(units=units, cap=cap.budget, delta_cap=cap.delta_budget)
    fields = {
        "name": name,
        "path": path,
        "manifest_sha256": bytes.fromhex(manifest_sha256),
        "info": canonical_json(dict(info)),
        "units": units,
        "epsilon": float(cap.epsilon),
        "delta": float(cap.delta),
        "rdp_order": cap.rule.order,
        "cap": cap.budget,
        "delta_cap": cap.delta_budget,
        "reserved": 0,
        "delta_reserved": 0,
        "registered_at": now,
    }
    query = rows.select_ensembles().where(
        (ensembles.c.name == name) | (ensembles.c.manifest_sha256 == fields["manifest_sha256"])
    )
    for row in connection.execute(query):
        taken = rows.ensemble_record(row, seals)
        if taken.name == name:
            raise Conflict(f"An ensemble called {name} is registered already.")
        raise Conflict(
            f"These very teachers are registered as {taken.name}. "
            "Open projects on that ensemble, so that they share its cap."
        )
    try:
        write(connection, insert(ensembles).values({**fields, "seal": UNSEALED}))
    except IntegrityError as error:
        raise Conflict(f"The ensemble {name} was registered by someone else just now.") from error
    _seal_new(connection, seals, ensembles, fields)
    log.record_row(connection, seals, now, by, Action.ENSEMBLE_REGISTERED, name, fields)
    return rows.ensemble_record(connection.execute(query).one(), seals)


def open_project(
    connection: Connection,
    seals: Seals,
    now: datetime,
    by: Actor | None,
    name: str,
    ensemble_name: str,
    mechanism: Mapping[str, Any],
    terms: Terms,
    title: str | None = None,
    purpose: str | None = None,
) -> ProjectRecord:
    """See `Ledger.open_project`."""
    check_name("a project", name)
    row = rows.lock_ensemble(connection, ensembles.c.name == ensemble_name)
    if row is None:
        raise NotFound(f"There is no ensemble called {ensemble_name}.")
    ensemble = rows.ensemble_record(row, seals)
    _check_reserved(connection, seals, ensemble)
    _check_delta("The project's δ", terms.delta, ensemble.units)
    _check_sizes(budget=terms.budget, delta_budget=terms.delta_budget, cap_budget=terms.cap_budget)
    fields: dict[str, Any] = {
        "name": name,
        "ensemble_id": ensemble.id,
        "status": ProjectStatus.ACTIVE,
        "mechanism": canonical_json(dict(mechanism)),
        "events": canonical_json(_events(mechanism, terms, ensemble)),
        "terms": canonical_json(terms.to_json()),
        "budget": terms.budget,
        "delta_budget": terms.delta_budget,
        "cap_budget": terms.cap_budget,
        "spent": 0,
        "delta_spent": 0,
        "cap_spent": 0,
        "charges": 0,
        "published": "[]",
        "opened_at": now,
        "closed_at": None,
        "title": title,
        "purpose": purpose,
    }
    start = genesis({**row._mapping, **fields})
    if connection.execute(rows.select_projects().where(projects.c.name == name)).first():
        raise Conflict(f"A project called {name} exists already; names are never used twice.")
    _check_cap(ensemble, terms)
    try:
        fields |= {"genesis": start, "head": start}
        write(connection, insert(projects).values({**fields, "seal": UNSEALED}))
    except IntegrityError as error:
        raise Conflict(f"The project {name} was opened by someone else just now.") from error
    _reserve(connection, seals, ensemble, terms.cap_budget, terms.delta_budget)
    _seal_new(connection, seals, projects, fields)
    opened = {**fields, "ensemble": ensemble.name}
    log.record_row(connection, seals, now, by, Action.PROJECT_OPENED, name, opened)
    project = rows.fetch_project(connection, seals, projects.c.name == name, f"called {name}")
    if terms.schedule is not None:
        tallies.open_tally(connection, seals, project)
    return project


def set_status(
    connection: Connection,
    seals: Seals,
    now: datetime,
    by: Actor | None,
    name: str,
    status: ProjectStatus,
) -> ProjectRecord:
    """See `Ledger.set_status`."""
    condition = projects.c.name == name
    found = rows.fetch_project(connection, seals, condition, f"called {name}")
    rows.lock_ensemble(connection, ensembles.c.id == found.ensemble.id)
    connection.execute(rows.HOLD, {"id": found.id})
    project = rows.fetch_project(connection, seals, condition, f"called {name}")
    if project.status is status:
        return project
    if project.status is ProjectStatus.CLOSED:
        raise Conflict(f"The project {name} is closed for good. Open a new one.")
    closing = status is ProjectStatus.CLOSED
    if closing:
        _check_reserved(connection, seals, project.ensemble)
    changed = {"status": str(status), "closed_at": now if closing else None}
    row = _change(connection, seals, projects, project.id, changed)
    logged = {**row, "ensemble": project.ensemble.name}
    log.record_row(connection, seals, now, by, _CHANGES[status], name, logged)
    if closing:
        # Sound because the cap is itself a privacy filter, which may be filled adaptively: only
        # what was released counts against it, not what might have been.
        unspent = project.terms.cap_budget - project.cap_spent
        delta_unspent = project.terms.delta_budget - project.delta_spent
        _reserve(connection, seals, project.ensemble, -unspent, -delta_unspent)
    return rows.fetch_project(connection, seals, condition, f"called {name}")


def _events(mechanism: Mapping[str, Any], terms: Terms, ensemble: EnsembleRecord) -> dict[str, Any]:
    """Return the mechanism's cost events. Raises InvalidTerms unless the terms fit it."""
    try:
        built = build_mechanism(
            mechanism, teachers=ensemble.info["teachers"], classes=len(ensemble.info["classes"])
        )
    except ParameterError as error:
        raise InvalidTerms(str(error)) from error
    same_prices = set(built.events()) == set(terms.prices)
    same_epochs = (built.opening is None) == (terms.opening is None)
    if not (same_prices and same_epochs):
        raise InvalidTerms(f"The terms were not quoted for the mechanism {built.name}.")
    return events_of(built)


def _seal_new(
    connection: Connection, seals: Seals, table: Table, fields: Mapping[str, Any]
) -> None:
    """Seal a row that was just inserted, as it was meant to be."""
    id = connection.execute(select(table.c.id).where(table.c.name == fields["name"])).scalar_one()
    seal = seals.of(table.name, {**fields, "id": id})
    write(connection, update(table).where(table.c.id == id).values(seal=seal))


def _change(
    connection: Connection, seals: Seals, table: Table, id: int, changed: Mapping[str, Any]
) -> Mapping[Any, Any]:
    """Change a locked row, sealed as it is meant to be afterwards, and return it."""
    row = connection.execute(select(table).where(table.c.id == id)).one()._mapping
    sealed = seals.sealed(table.name, {**row, **changed})
    new = {**changed, "seal": sealed["seal"]}
    write(connection, update(table).where(table.c.id == id).values(new))
    return sealed


def _reserve(
    connection: Connection, seals: Seals, ensemble: EnsembleRecord, cost: int, delta_cost: int
) -> None:
    reserved = select(ensembles.c.reserved, ensembles.c.delta_reserved)
    row = connection.execute(reserved.where(ensembles.c.id == ensemble.id)).one()
    changed = {
        "reserved": row.reserved + cost,
        "delta_reserved": row.delta_reserved + delta_cost,
    }
    _change(connection, seals, ensembles, ensemble.id, changed)


def _check_reserved(connection: Connection, seals: Seals, ensemble: EnsembleRecord) -> None:
    """Raise LedgerCorrupted unless a locked ensemble has reserved the sum over its projects: the
    budget of each open one, the spend of each closed one. Reading them also checks that each was
    opened on this ensemble as it is now."""
    cost = delta_cost = 0
    on_it = rows.select_projects().where(ensembles.c.id == ensemble.id)
    for row in connection.execute(on_it):
        project = rows.project_record(row, seals)
        closed = project.status is ProjectStatus.CLOSED
        cost += project.cap_spent if closed else project.terms.cap_budget
        delta_cost += project.delta_spent if closed else project.terms.delta_budget
    if (ensemble.reserved, ensemble.delta_reserved) != (cost, delta_cost):
        raise LedgerCorrupted(
            f"What is reserved of the ensemble {ensemble.name} is not what it was."
        )


def _check_cap(ensemble: EnsembleRecord, terms: Terms) -> None:
    if terms.cap_rule != ensemble.rule:
        raise InvalidTerms(
            f"These terms count in {terms.cap_rule}, but the cap of the ensemble {ensemble.name} "
            f"adds up in {ensemble.rule}."
        )
    left, delta_left = (
        ensemble.cap - ensemble.reserved,
        ensemble.delta_cap - ensemble.delta_reserved,
    )
    if terms.cap_budget > left or terms.delta_budget > delta_left:
        raise CapExceeded(
            f"This budget reserves {terms.cap_budget / 1e12:.6g} in {ensemble.rule} and "
            f"{terms.delta_budget / 1e18:.3g} of additive δ; the ensemble {ensemble.name} has "
            f"{left / 1e12:.6g} and {delta_left / 1e18:.3g} left of its cap "
            f"(ε = {ensemble.epsilon:g}, δ = {ensemble.delta:g}). "
            "Ask for less, or close a project that no longer needs its budget.",
            required=terms.cap_budget,
            available=left,
            delta_required=terms.delta_budget,
            delta_available=delta_left,
        )


def check_name(kind: str, name: str) -> None:
    """Raise InvalidTerms unless `name` is a valid name for `kind`, such as "a project"."""
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        raise InvalidTerms(
            f"{name!r} cannot name {kind}: use at most 64 lower-case letters, digits, "
            "'-' and '_', with a letter or digit at both ends."
        ) from error


def _check_delta(what: str, delta: float, units: int) -> None:
    if units < 1:
        raise InvalidTerms(f"An ensemble is trained on at least one record, not {units}.")
    if not 0 < delta < 1 / units:
        raise InvalidTerms(
            f"{what} is {delta:g}; it must be above 0 and below 1/{units} = {1 / units:.3g}, "
            "one over the number of training records, or people where records are grouped: a "
            "larger δ would allow publishing all of one."
        )


def _check_sizes(**amounts: int) -> None:
    for name, amount in amounts.items():
        if not 0 <= amount <= _LARGEST:
            raise InvalidTerms(f"{name} = {amount} is outside what the ledger can count.")
