"""How the records are asked: each way is forecast, and one is taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from terrine_models.data.arrays import number_distinct_rows
from terrine_models.tables.designed import NATURAL_ROWS
from terrine_protocol import EnsembleRegister
from terrine_server.errors import NotFound
from terrine_server.ledger import (
    Ledger,
    PopulationRecord,
    check_delta,
    check_unit,
    choose_population,
)
from terrine_server.owner.operations import suggest_room
from terrine_server.planning.first_project import DesignedProject, FirstProject, Setting
from terrine_server.planning.forecast import Forecast, compare_options, forecast_design
from terrine_server.quickstart.dialogue import Owner, QuickstartError
from terrine_server.quickstart.records import ProjectData, PublicRows
from terrine_server.quickstart.report import describe_model, name_option, write_auc, write_range


@dataclass(frozen=True)
class Membership:
    """The population that an ensemble is of, or joins, whose people share a cap that is fixed."""

    ledger: Ledger
    population: PopulationRecord

    @classmethod
    def find(cls, ledger: Ledger, register: EnsembleRegister) -> Membership | None:
        """Return that of an ensemble, registered or not; None if its population is new."""
        try:
            found = ledger.ensembles.get(register.name).population
        except NotFound:
            known = ledger.ensembles.list_populations()
            joined = choose_population(known, register.population, disjoint=register.disjoint)
            return None if joined is None else cls(ledger, joined)
        if register.population not in (None, found.name):
            raise QuickstartError(
                f"{register.name} is registered in the population {found.name}, for good. Leave "
                "--population out, or choose another --name."
            )
        return cls(ledger, found)

    def check(self, name: str, first: FirstProject, *, by_person: bool) -> None:
        """Refuse, before anything is made, what cannot be registered or opened under the cap."""
        joined = self.population
        members = [each for each in self.ledger.ensembles.list() if each.population.id == joined.id]
        check_unit(name, joined.name, members, by_person=by_person)
        check_delta(f"The δ of the cap of {joined.name}", joined.delta, first.units)
        wanted = first.terms
        fits = (
            joined.reserved + wanted.cap_budget <= joined.cap
            and joined.delta_reserved + wanted.delta_budget <= joined.delta_cap
        )
        if not fits:
            raise QuickstartError(
                f"The cap of the population {joined.name} (ε = {joined.epsilon:g}, "
                f"δ = {joined.delta:g}) has no room for a project of ε = {first.epsilon:g}. "
                f"{suggest_room(self.ledger, members[0], first.epsilon, first.price)}"
            )


@dataclass(frozen=True)
class Choice:
    """How the records are asked, of which ensemble, and what is expected of it."""

    data: ProjectData
    register: EnsembleRegister
    """With the cap, unless it is fixed already."""
    joined: PopulationRecord | None
    """The population whose cap it is then."""
    forecast: Forecast
    first: FirstProject
    """The project to open: by default, that of the best option."""


def choose(
    data: ProjectData,
    membership: Membership | None,
    register: EnsembleRegister,
    epsilon: float,
    owner: Owner,
) -> Choice:
    """Forecast what each way to ask the records would buy, and take the best.

    By public rows, if there are any. Raises QuickstartError, or what else the ledger or planning
    would refuse, before anything is made.
    """
    joined = None if membership is None else membership.population
    forecast = _forecast(data, epsilon, joined, owner)
    first = forecast.first
    if membership is None:
        cap = {"epsilon": first.cap.epsilon, "delta": first.cap.delta, "rule": first.cap.rule.name}
        register = register.model_copy(update=cap)
    else:
        membership.check(register.name, first, by_person=data.person is not None)
    if isinstance(first, DesignedProject) and isinstance(data.asked, PublicRows):
        owner.note(
            f"Published with the project: up to {NATURAL_ROWS:,} of the public rows, by which its "
            "student says a class about as often as it occurs."
        )
    return Choice(data, register, joined, forecast, first)


def _forecast(
    data: ProjectData, epsilon: float, joined: PopulationRecord | None, owner: Owner
) -> Forecast:
    """Forecast what each way to ask the records would buy, from public rows if there are any."""
    asked, limit = data.asked, None if joined is None else joined.limit
    if not isinstance(asked, PublicRows):
        label = next(each for each in asked.columns if each.role == "label")
        setting = Setting.of(
            units=data.units,
            classes=len(label.values or ()),
            epsilon=epsilon,
            joined=limit,
        )
        return forecast_design(setting, asked)
    setting = Setting.of(
        units=data.units,
        rows=int(number_distinct_rows(asked.pool.inputs).max()) + 1,
        classes=len(asked.sample.classes),
        epsilon=epsilon,
        joined=limit,
    )
    with owner.console.status("Simulating each option on public rows"):
        return compare_options(
            setting,
            asked.sample,
            asked.pool,
            labelled=asked.labelled,
            people=data.person is not None,
        )


def check_worth(forecast: Forecast, schema: Path | None) -> None:
    """Refuse a project whose simulated students learn next to nothing, or what is there already.

    `schema`: the file of a table's schema, whose columns could be fewer.
    """
    _check_learning(forecast, schema)
    _check_own_labels(forecast)


STOPPED = "Stopped before anything was made of the records, or spent"


def _check_learning(forecast: Forecast, schema: Path | None) -> None:
    """Refuse a project whose students are no better than a guess, or hardly."""
    found, first = forecast.students, forecast.first
    if found is None or (found.above_chance and not found.useless):
        return
    balanced = write_range(found.balanced_accuracy)
    best = f"Those of the best option, {name_option(first)}"
    said = (
        f"{STOPPED}: the simulated students are "
        f"{'hardly better than' if found.above_chance else 'no better than'} chance, however the "
        f"records are asked. {best}, have a balanced accuracy of {balanced}; a guess has "
        f"{found.chance:.1%}."
    )
    if found.auc is not None:
        said += f" Their AUC is {write_auc(found.auc)}; that of a guess is 0.50."
    if forecast.truth is not None and (forecast.truth.useless or not forecast.truth.above_chance):
        said += (
            " Even the true labels of the same public rows teach no more: what is known of a row "
            "may not tell its class."
        )
    fewer = "inputs of fewer features"
    if schema is not None:
        fewer = f'fewer columns (those that tell little get the role "ignored" in {schema})'
    said += (
        f" What would help: more people than these {first.units:,}; a larger ε than "
        f"{first.epsilon:g}; {fewer}; or teachers that you have already (`terrine ensemble "
        "import`)."
    )
    raise QuickstartError(f"{said} To open it all the same, add --anyway.")


def _check_own_labels(forecast: Forecast) -> None:
    """Refuse a project whose students are not clearly better than the owner's own labels."""
    found, own, first = forecast.students, forecast.own, forecast.first
    if found is None or own is None or not forecast.beaten:
        return
    has = f"balanced accuracy {write_range(found.balanced_accuracy)}"
    if found.auc is not None and own.students.auc is not None:
        has = f"AUC {write_auc(found.auc, 3)}"
    raise QuickstartError(
        f"{STOPPED}: the trials do not show that private records add to the labels of your own "
        f"public rows, which cost no privacy. A plain model of these {own.rows:,} rows alone: "
        f"{describe_model(own)}. The simulated students of the best option, {name_option(first)}, "
        f"are not clearly better: {has}. Private records are for what such labels cannot teach: "
        "public rows without labels; public rows of other people or another time, whose labels do "
        "not carry over, which no trial on them can show; and classes that are rare among them, of "
        "which trials on so few rows tell little. If that is so here, or the student shall learn "
        "from both, add --anyway."
    )
