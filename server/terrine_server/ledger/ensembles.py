"""Populations, each with the cap for all that is made of its people, and their ensembles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter, ValidationError

from terrine_protocol import Name
from terrine_server.errors import Conflict, InvalidTerms, NotFound
from terrine_server.ledger import log, losses, rows
from terrine_server.ledger.chain import Action, canonical_json
from terrine_server.ledger.database import Transaction
from terrine_server.ledger.records import EnsembleRecord, PopulationRecord
from terrine_server.ledger.schema import populations
from terrine_server.privacy import Cap

DEFAULT_POPULATION = "people"
"""The name of a ledger's first population, if its owner gives it none."""
_MAX_AMOUNT = 2**63 - 1
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def choose_population(
    known: Sequence[PopulationRecord], name: str | None, *, disjoint: bool
) -> PopulationRecord | None:
    """Return the population that an ensemble joins; None if a new one is to be declared.

    Raises NotFound and Conflict as `Ledger.register_ensemble` does.
    """
    names = ", ".join(each.name for each in known)
    if name is None and len(known) > 1:
        raise Conflict(
            f"There are several populations: {names}. Say which one this is: --population NAME."
        )
    found = next((each for each in known if name in (None, each.name)), None)
    if found is not None and disjoint:
        raise Conflict(
            f"The population {found.name} is there already, with a cap for all ensembles of its "
            "people. Name a new one to say that nobody in it is in another, or leave out "
            "--disjoint."
        )
    if found is None and known and not disjoint:
        raise NotFound(
            f"There is no population called {name}; there is {names}. To declare a new one, state "
            f"with --disjoint that nobody in it is also in {names}. It gets a cap of its own: "
            "whoever is in two populations loses up to the sum of their caps."
        )
    return found


def join_population(
    tx: Transaction, ensemble: str, cap: Cap | None, name: str | None, disjoint: bool
) -> PopulationRecord:
    """Return the population that a new ensemble joins, locked; it is declared if it is new."""
    found = tx.connection.execute(rows.select_populations()).mappings().all()
    known = [rows.population_record(row, tx.seals) for row in found]
    joined = choose_population(known, name, disjoint=disjoint)
    if joined is None:
        return _declare(tx, name or DEFAULT_POPULATION, cap, [each.name for each in known])
    if cap is not None and (cap.epsilon, cap.delta, cap.rule) != (
        joined.epsilon,
        joined.delta,
        joined.rule,
    ):
        raise Conflict(
            f"{ensemble} is of the population {joined.name}, whose cap is final: "
            f"ε = {joined.epsilon:g}, δ = {joined.delta:g}, added up in {joined.rule}. Register "
            "it without --epsilon, --delta and --rule, to share this cap."
        )
    return joined


def _declare(tx: Transaction, name: str, cap: Cap | None, others: list[str]) -> PopulationRecord:
    check_name("a population", name)
    if cap is None:
        raise InvalidTerms(
            f"The population {name} is new, and its cap is fixed now, for good: give --epsilon and "
            "--delta."
        )
    check_sizes(cap=cap.budget, delta_cap=cap.delta_budget)
    declared = {
        "name": name,
        "epsilon": float(cap.epsilon),
        "delta": float(cap.delta),
        "rdp_order": cap.rule.order,
        "cap": cap.budget,
        "delta_cap": cap.delta_budget,
        "reserved": 0,
        "delta_reserved": 0,
        "disjoint_from": canonical_json(others),
        "declared_at": tx.now,
    }
    tx.insert_named(populations, declared)
    log.record_row(tx, Action.POPULATION_DECLARED, name, declared)
    made = rows.select_populations().where(populations.c.name == name)
    new = rows.population_record(tx.connection.execute(made).mappings().one(), tx.seals)
    return losses.reduce_new_cap(tx, new)


def check_unit(
    name: str, population: str, others: Iterable[EnsembleRecord], *, by_person: bool
) -> None:
    """Raise Conflict if the other ensembles of a population protect another unit than a new one.

    `by_person`: whether the new ensemble knows whose its records are, and protects people.
    """
    for other in others:
        if (other.person_column is not None) != by_person and not other.facts.disjoint_by:
            unit = "person with all their records" if by_person else "record"
            raise Conflict(
                f"{name} protects one {unit}, and {other.name}, of the same population "
                f"{population}, one {other.unit}. These do not add up in one cap. Make {name} "
                "again with the same unit (a column of the role group, or none), or, if nobody is "
                "in both, register it in another population: --population NAME --disjoint."
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


def check_delta(what: str, delta: float, units: int) -> None:
    """Raise InvalidTerms unless a δ is below one over the number of units."""
    if units < 1:
        raise InvalidTerms(f"An ensemble protects at least one record or person, not {units}.")
    if not 0 < delta < 1 / units:
        raise InvalidTerms(
            f"{what} is {delta:g}; it must be above 0 and below 1/{units} = {1 / units:.3g}, "
            "one over the number of those whom it protects: a larger δ would allow publishing all "
            "of one."
        )


def check_sizes(**amounts: int) -> None:
    """Raise InvalidTerms for an amount that a column cannot hold."""
    for name, amount in amounts.items():
        if not 0 <= amount <= _MAX_AMOUNT:
            raise InvalidTerms(f"{name} = {amount} is outside what the ledger can count.")
