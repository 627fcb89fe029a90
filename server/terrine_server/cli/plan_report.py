"""How a plan is printed: tables, the command to type, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from terrine_server.cli.console import console
from terrine_server.cli.mechanism import mechanism_text

if TYPE_CHECKING:
    from terrine_models.teachers.manifests import Manifest
    from terrine_models.teachers.neighbours import NeighbourForecast
    from terrine_server.planning.neighbour_plan import NeighbourPlan
    from terrine_server.planning.plan import Candidate, Plan

FEATURES = 150
"""Of public rows, that shares are fitted to: about as many as the default student has."""


def show(found: Plan, rows: int) -> None:
    """Print a plan. `rows`: public rows, of a plan for noisy counts."""
    chosen = found.chosen
    name = chosen.spec["name"]
    _say(f"[bold]{name} with {chosen.teachers:,} teachers: {_parameters(chosen)}[/]")
    against = "the labels" if found.labelled else "what most teachers say"
    _say(
        f"Answers {chosen.answered:.1%} of queries; {chosen.accuracy:.2%} of the answers agree "
        f"with {against}. ε = {found.epsilon:g}, δ = {found.delta:g} buys, by each sound rule,"
    )
    table = Table("rule")
    for heading in ("answers", "queries at least"):
        table.add_column(heading, justify="right")
    for quoted in found.quotes:
        each = quoted.considered
        together = "" if each.answer_share is None else ", test and maximum priced together"
        table.add_row(f"{each.rule}{together}", f"{each.answers:,}", f"{each.queries:,}")
    console.print(table)
    if found.pass_rate < 1:
        _say(
            "Queries at least: whatever teachers say. Answers: if they agree as far as was said; "
            "how a price is divided between answers and abstentions does not depend on it."
        )
    if name == "noisy_votes":
        _show_fitted(found, rows)
    else:
        _show_publishing(found)
    if len(found.by_teachers) > 1:
        _show_by_teachers(found)
    _say(f"To open the project:\n  {command(found)}")


def show_all(plans: Sequence[Plan]) -> None:
    """Print the best plans of several mechanisms, and the command for the first of them."""
    best = plans[0]
    against = "the labels" if best.labelled else "what most teachers say"
    _say(
        f"What ε = {best.epsilon:g}, δ = {best.delta:g} buys of each mechanism, by right answers, "
        f"for labels that are used one by one. Right: agrees with {against}."
    )
    table = Table()
    table.add_column("mechanism", no_wrap=True)
    table.add_column("parameters")
    for heading in ("answered", "right", "answers", "queries at least"):
        table.add_column(heading, justify="right")
    several = len({each.chosen.teachers for each in plans}) > 1
    for each in plans:
        chosen, name = each.chosen, str(each.chosen.spec["name"])
        of_how_many = f"{chosen.teachers:,} teachers, " if several else ""
        table.add_row(
            f"[bold]{name}[/]" if each is best else name,
            of_how_many + _parameters(chosen),
            f"{chosen.answered:.1%}",
            f"{chosen.accuracy:.2%}",
            f"{chosen.answers:,.0f}",
            f"{each.quotes[0].considered.queries:,}",
        )
    console.print(table)
    _say(
        "To train a model, labelled public rows tell what it will be: terrine plan --public POOL "
        "--units N."
    )
    _say(f"To open a project with the first one:\n  {command(best)}")
    _say("More about one of them: terrine plan MECHANISM")


def show_lasting(
    found: NeighbourPlan, ensemble: str, of: DescribedStandIns, epsilon: float, delta: float
) -> None:
    """Print what public rows foretell of the units of an ensemble, and the command."""
    from terrine_server.planning.neighbour_plan import near_for

    _say(
        f"[bold]neighbours: σ = {found.sigma:g}[/] for {found.queries:,} public rows, each asked "
        f"once, at ε = {epsilon:g}, δ = {delta:g}."
    )
    _say(lasts(found, of))
    suited = near_for(of.units, found.queries, epsilon, delta)
    if not 0.5 <= suited / found.near <= 2:
        _say(f"For this, --near {suited:,} would suit: `terrine neighbours build`.")
    spec = {"name": "neighbours", "sigma": found.sigma, "queries": found.queries}
    _say(
        f"To open the project:\n  terrine project open NAME --ensemble {ensemble} --mechanism "
        f"{mechanism_text(spec)} --epsilon {epsilon:g} --delta {delta:g}"
    )


@dataclass(frozen=True)
class DescribedStandIns:
    """Who stands for the units of an ensemble of neighbours in what is foretold, in words."""

    units: int
    who: str
    but: str = ""


def stand_ins(manifest: Manifest, found: NeighbourForecast) -> DescribedStandIns:
    """Say what is assumed of people with several records."""
    if found.people:
        return DescribedStandIns(manifest.units, "people of the public rows, with all of these")
    if manifest.partition is None:
        return DescribedStandIns(manifest.units, "public rows, of one record each")
    return DescribedStandIns(
        manifest.units,
        "public rows, each as a person with one record",
        f" The pool does not say whose its rows are ({manifest.partition.group_column}), so this "
        "assumes that nobody has several records near a query. Whoever does has spent theirs "
        "sooner.",
    )


def lasts(found: NeighbourPlan, of: DescribedStandIns) -> str:
    """Say what public rows foretell of a project of neighbours."""
    return (
        f"By {of.who}: some {found.votes:,.0f} vote on a query, on average "
        f"over all, so the noise of one answer is {found.noise:.0%} of its votes; the allowance is "
        f"{found.allowance:,}, and {found.retired:.0%} of the units will have spent theirs after "
        f"{found.queries:,} queries.{of.but}"
    )


def _show_fitted(found: Plan, rows: int) -> None:
    """Print what the noise of counts is worth once shares are fitted to public features."""
    from terrine_server.planning.counts import fitted_noise

    sigma, n = float(str(found.chosen.spec["sigma"])), found.chosen.teachers
    _say(
        f"noisy_votes answers each of {rows:,} rows with noisy counts. The noise of one row's "
        f"share is {sigma / n:.1%} of the {n:,} teachers; of shares that are fitted to {FEATURES} "
        f"features over all rows, {fitted_noise(rows, n, sigma, FEATURES):.2%}, however many rows: "
        "compare it with how far the votes of the classes lie apart."
    )


def _show_publishing(found: Plan) -> None:
    publishing = found.publishing
    worst = max(int(quoted.considered.answers / found.pass_rate) for quoted in found.quotes)
    if publishing is None or publishing.queries <= worst:
        _say("Data-dependent accounting does not pay here: use the worst case.")
        return
    order = publishing.publication.order
    _say(
        f"Data-dependent accounting would answer {publishing.queries / worst - 1:.0%} more, with "
        f"figures published after {', '.join(f'{k:,}' for k in publishing.schedule)} queries. To "
        f"use it, register the ensemble with --rule rdp:{order:g} and open the project with "
        "--accounting data_dependent and the --consensus of this plan."
    )


def _show_by_teachers(found: Plan) -> None:
    _say("The best candidate for each number of teachers:")
    table = Table("teachers", "parameters", "answered", "right")
    table.add_column("answers", justify="right")
    for each in found.by_teachers:
        name = _parameters(each)
        table.add_row(
            f"{each.teachers:,}",
            f"[bold]{name}[/]" if each is found.chosen else name,
            f"{each.answered:.1%}",
            f"{each.accuracy:.2%}",
            f"{each.answers:,.0f}",
        )
    console.print(table)


def command(found: Plan) -> str:
    """Return the command that opens the planned project, with names to fill in."""
    mechanism = mechanism_text(dict(found.chosen.spec))
    parts = ["terrine project open NAME --ensemble ENSEMBLE", f"--mechanism {mechanism}"]
    return " ".join([*parts, f"--epsilon {found.epsilon:g}", f"--delta {found.delta:g}"])


def document(found: Plan, votes: str) -> dict[str, Any]:
    """Return a plan as JSON; `votes` says where the votes came from."""
    considered = [asdict(quoted.considered) for quoted in found.quotes]
    fields = asdict(replace(found, quotes=())) | {"quotes": considered}
    return {"command": command(found), "votes": votes, **fields}


def _parameters(candidate: Candidate) -> str:
    given = candidate.spec.items()
    return ", ".join(f"{key} {value:g}" for key, value in given if key != "name")


def _say(text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
