"""How a plan is printed: tables, the command to type, JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from terrine_server.cli.console import console
from terrine_server.cli.mechanism import mechanism_text

if TYPE_CHECKING:
    from terrine_server.planning.comparison import Contender
    from terrine_server.planning.plan import Candidate, Plan

ALTERNATIVES = 8
"""About how many candidates of the frontier are shown."""

ALL_COUNTS = (
    "Noisy counts cost what gnmax costs at the same σ under GDP. In Rényi DP the label alone costs "
    "about a third less: it reveals less."
)
ANSWER_ALONE = "fixed-order RDP charges for the answer; the other methods for all noisy counts."


def show(found: Plan) -> None:
    """Print a plan."""
    chosen = found.chosen
    console.print(f"[bold]{_named(chosen)}[/]", highlight=False, soft_wrap=True)
    against = "the labels" if found.labelled else "what most teachers say"
    console.print(
        f"Answers {chosen.answered:.1%} of queries; {chosen.accuracy:.2%} of the answers agree "
        f"with {against}. At δ = {found.delta:g}:",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("accounting", "sound")
    for heading in (f"queries for ε = {found.epsilon:g}", "answers", f"ε of {found.wanted:,}"):
        table.add_column(heading, justify="right")
    for line in found.lines:
        table.add_row(
            f"[bold]{line.name}, enforced[/]" if line.enforced else line.name,
            "yes" if line.sound else "no",
            f"{line.queries:,}",
            f"{line.answers:,.0f}",
            f"{line.epsilon:.3f}" if math.isfinite(line.epsilon) else "–",
        )
    console.print(table)
    console.print("Sound: its guarantee holds if it decides refusals and students adapt.")
    if chosen.spec["name"] == "noisy_votes":
        console.print(ALL_COUNTS, highlight=False, soft_wrap=True)
    if chosen.spec["name"] == "gnmax":
        console.print(ANSWER_ALONE, highlight=False, soft_wrap=True)
    _show_divisions(found)
    _show_publishing(found)
    _show_alternatives(found)
    console.print("To open the project:", highlight=False)
    console.print(f"  {command(found)}", highlight=False, soft_wrap=True)


def show_contenders(contenders: Sequence[Contender], rows: int, features: int) -> None:
    """Print the best plans of several mechanisms, and the command for the first of them.

    `rows`, `features`: of noisy counts.
    """
    best = contenders[0].plan
    against = "the labels" if best.labelled else "what most teachers say"
    console.print(
        f"What ε = {best.epsilon:g}, δ = {best.delta:g} buys of each mechanism. Right: agrees with "
        f"{against}.",
        highlight=False,
        soft_wrap=True,
    )
    table = Table()
    table.add_column("mechanism", no_wrap=True)
    table.add_column("parameters")
    for heading in ("answered", "right", "answers", "queries at least"):
        table.add_column(heading, justify="right")
    several = len({each.plan.chosen.teachers for each in contenders}) > 1
    for each in contenders:
        chosen, noise = each.plan.chosen, each.fitted_noise
        name = str(chosen.spec["name"])
        of_how_many = f"{chosen.teachers:,} teachers, " if several else ""
        table.add_row(
            f"[bold]{name}[/]" if each.plan is best else name,
            of_how_many + _parameters(chosen),
            f"{chosen.answered:.1%}",
            f"{chosen.accuracy:.2%}" if noise is None else f"± {noise:.2%}",
            f"{chosen.answers:,.0f}",
            f"{each.plan.quotes[0].considered.queries:,}",
        )
    console.print(table)
    for each in contenders:
        if each.fitted_noise is not None:
            console.print(
                f"noisy_votes answers each of {rows:,} rows with noisy counts. Fitted to "
                f"{features} features of theirs, the standard error of a share is "
                f"{each.fitted_noise:.2%} of the {each.plan.chosen.teachers:,} teachers, however "
                "many rows: compare it with how far their votes lie apart.",
                highlight=False,
                soft_wrap=True,
            )
    console.print("To open a project with the first one:", highlight=False)
    console.print(f"  {command(best)}", highlight=False, soft_wrap=True)
    console.print("More about one of them: terrine plan MECHANISM", highlight=False)


def show_fitted(found: Plan, rows: int, features: int) -> None:
    """Print what the noise of counts is worth once shares are fitted to public features."""
    from terrine_server.planning.counts import fitted_noise

    sigma, n = float(str(found.chosen.spec["sigma"])), found.chosen.teachers
    each, fitted = sigma / n, fitted_noise(rows, n, sigma, features)
    console.print(
        f"σ = {sigma:g} pays for each of {rows:,} rows once. The noise of one row's share is "
        f"{each:.1%} of the teachers; of shares that are fitted to {features} features over all "
        f"rows, {fitted:.2%} on average.",
        highlight=False,
        soft_wrap=True,
    )


def _show_divisions(found: Plan) -> None:
    """Print how a joint price is divided between answers and abstentions, and how it could be."""
    if not found.divisions:
        return
    console.print(
        "The joint price is divided before the first query, by the share of queries that are "
        f"expected to pass ({found.pass_rate:.1%}). Of one price for both outcomes,",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("an answer costs", "an abstention", "answers", "queries at least")
    for column in table.columns:
        column.justify = "right"
    share = found.quotes[0].answer_share
    for each in found.divisions:
        chosen = each.answer == share
        answer = f"{each.answer:.3g}"
        table.add_row(
            f"[bold]{answer}, chosen[/]" if chosen else answer,
            f"{each.abstention:.2f}",
            f"{each.answers:,}",
            f"{each.queries:,}",
        )
    console.print(table)


def _show_publishing(found: Plan) -> None:
    enforced = next(line.queries for line in found.lines if line.enforced)
    gain = found.publishing.queries / enforced - 1 if found.publishing is not None else 0.0
    if found.chosen.spec["name"] == "noisy_votes":
        text = "Data-dependent accounting is not for noisy counts: they cost the same at any votes."
    elif found.publishing is None or gain <= 0:
        text = "Data-dependent accounting does not pay here: use the worst case."
    else:
        published, schedule = found.publishing.publication, found.publishing.schedule
        text = (
            f"Data-dependent accounting would answer {gain:.0%} more: order {published.order:g}, "
            f"β = {published.beta:.4g}, σ = {published.sigma:.4g}, z = {published.z:.4g}, "
            f"published after {', '.join(f'{k:,}' for k in schedule)} queries. To use it, register "
            f"the ensemble with --rule rdp:{published.order:g} and open the project with "
            "--accounting data_dependent and the --consensus of this plan."
        )
    console.print(text, highlight=False, soft_wrap=True)


def _show_alternatives(found: Plan) -> None:
    from terrine_server.planning.plan import frontier

    if len(found.by_teachers) > 1:
        console.print("The best candidate for each number of teachers:")
        _show_candidates(found, found.by_teachers)
    best = frontier(found.candidates)
    if len(best) > 1:
        step = -(-len(best) // ALTERNATIVES)
        shown = {id(each): each for each in [*best[::step], found.chosen]}
        console.print("Other parameters:")
        _show_candidates(found, sorted(shown.values(), key=lambda each: each.accuracy))


def _show_candidates(found: Plan, candidates: Sequence[Candidate]) -> None:
    table = Table("teachers", "parameters", "answered", "right")
    if found.certain:
        table.add_column("queries at least", justify="right")
    price = "answers" if found.chosen.epsilon is None else f"ε of {found.wanted:,}"
    table.add_column(f"{price} of them" if found.certain else price, justify="right")
    for each in candidates:
        name = _parameters(each)
        cost = f"{each.answers:,.0f}" if each.epsilon is None else f"{each.epsilon:.3f}"
        certain = [f"{each.queries:,}"] if found.certain else []
        table.add_row(
            f"{each.teachers:,}",
            f"[bold]{name}[/]" if each is found.chosen else name,
            f"{each.answered:.1%}",
            f"{each.accuracy:.2%}",
            *certain,
            cost,
        )
    console.print(table)


def command(found: Plan) -> str:
    """Return the command that opens the planned project, with names to fill in."""
    mechanism = mechanism_text(dict(found.chosen.spec))
    parts = ["terrine project open NAME --ensemble ENSEMBLE", f"--mechanism {mechanism}"]
    if found.pass_rate < 1:
        parts.append(f"--expected-pass-rate {found.pass_rate:g}")
    return " ".join([*parts, f"--epsilon {found.epsilon:g}", f"--delta {found.delta:g}"])


def _named(candidate: Candidate) -> str:
    name = candidate.spec["name"]
    return f"{name} with {candidate.teachers:,} teachers: {_parameters(candidate)}"


def _parameters(candidate: Candidate) -> str:
    given = candidate.spec.items()
    return ", ".join(f"{key} {value:g}" for key, value in given if key != "name")


def document(found: Plan, votes: str) -> dict[str, Any]:
    """Return a plan as JSON; `votes` says where the votes came from."""
    return {"command": command(found), "votes": votes, **_plain(_fields(found))}


def _fields(found: Plan) -> dict[str, Any]:
    """A plan's fields; of its quotes what a project keeps of them."""
    considered = [asdict(quoted.considered) for quoted in found.quotes]
    return asdict(replace(found, quotes=())) | {"quotes": considered}


def _plain(value: Any) -> Any:
    """JSON has no infinity: what no ε allows is null."""
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value
