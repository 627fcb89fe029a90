"""`terrine plan`: how many answers are right, before a budget is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from terrine_models.data.arrays import read_arrays
from terrine_protocol.mechanisms import mechanism_text
from terrine_server.cli import reading
from terrine_server.cli.console import as_json, console, errors, fail, print_json, say, with_json
from terrine_server.cli.ensemble import ensemble_directory
from terrine_server.cli.options import SPEC, parse_spec
from terrine_server.planning.expected import Consensus, Votes
from terrine_server.planning.first_project import (
    NeighbourPlan,
    default_near,
    fitted_noise,
    plan_neighbours,
)
from terrine_server.planning.opening import Quote, Spec
from terrine_server.planning.plan import Plan, compare, plan_counts
from terrine_server.planning.plan import plan as make_plan

if TYPE_CHECKING:
    from terrine_models.teachers.neighbours import NeighbourForecast


# Of public rows, that shares are fitted to: about as many as the default student has.
STUDENT_FEATURES = 150


def show_plan(found: Plan, rows: int) -> None:
    """Print a plan. `rows`: public rows, of a plan for noisy counts."""
    chosen = found.chosen
    name = chosen.spec["name"]
    say(f"[bold]{mechanism_text(chosen.spec)} with {chosen.teachers:,} teachers[/]", markup=True)
    against = "the labels" if found.labelled else "what most teachers say"
    say(
        f"Answers {chosen.answered:.1%} of queries; {chosen.accuracy:.2%} of the answers agree "
        f"with {against}. ε = {found.epsilon:g}, δ = {found.delta:g} buys, by each sound rule,"
    )
    table = Table("rule")
    for heading in _counts(found):
        table.add_column(heading, justify="right")
    for quoted in found.quotes:
        each = quoted.considered
        together = "" if each.answer_share is None else ", test and maximum priced together"
        table.add_row(
            f"{each.rule}{together}", f"{each.answers:,}", *_fewer(quoted), f"{each.queries:,}"
        )
    console.print(table)
    if found.pass_rate < 1:
        say(_explain_counts(found))
    if name == "noisy_votes":
        _show_fitted(found, rows)
    else:
        _show_publishing(found)
    if len(found.by_teachers) > 1:
        _show_by_teachers(found)
    say(f"To open the project:\n  {command(found)}")


def _counts(found: Plan) -> tuple[str, ...]:
    """Return what columns say of answers: what is counted on, what may be left, what is certain."""
    return ("answers", *(["10 points less"] if found.rate_is_shown else []), "queries at least")


def _fewer(quoted: Quote) -> list[str]:
    return [] if quoted.fewer is None else [f"{int(quoted.fewer):,}"]


def _explain_counts(found: Plan) -> str:
    """Say what is certain, and what the rest assumes."""
    if not found.rate_is_shown:
        return (
            "Queries at least: whatever teachers say. Answers: if they agree as far as was said; "
            "how a price is divided between answers and abstentions does not depend on it."
        )
    return (
        "Queries at least: whatever teachers say. Answers: if as many queries are answered as "
        "these votes show, by which a price is divided between answers and abstentions; and at "
        "most twice as many as are left if that share is ten points less."
    )


def show_all(plans: Sequence[Plan]) -> None:
    """Print the best plans of several mechanisms, and the command for the first of them."""
    best = plans[0]
    against = "the labels" if best.labelled else "what most teachers say"
    say(
        f"What ε = {best.epsilon:g}, δ = {best.delta:g} buys of each mechanism, by right answers, "
        f"for labels that are used one by one. Right: agrees with {against}."
    )
    table = Table()
    several = len({each.chosen.teachers for each in plans}) > 1
    table.add_column("mechanism", overflow="fold")
    for heading in (*(["teachers"] if several else []), "answered", "right", *_counts(best)):
        table.add_column(heading, justify="right")
    for each in plans:
        chosen, name = each.chosen, _breakable(each.chosen.spec)
        table.add_row(
            f"[bold]{name}[/]" if each is best else name,
            *([f"{chosen.teachers:,}"] if several else []),
            f"{chosen.answered:.1%}",
            f"{chosen.accuracy:.2%}",
            f"{chosen.answers:,.0f}",
            *_fewer(each.quotes[0]),
            f"{each.quotes[0].considered.queries:,}",
        )
    console.print(table)
    if best.rate_is_shown:
        say(_explain_counts(best))
    say(
        "To train a model, labelled public rows forecast what it will be: terrine quickstart "
        "--dry-run --public POOL --units N."
    )
    say(f"To open a project with the first one:\n  {command(best)}")
    say("More about one of them: terrine plan MECHANISM")


def _show_fitted(found: Plan, rows: int) -> None:
    """Print what the noise of counts is worth once shares are fitted to public features."""
    sigma, n = float(str(found.chosen.spec["sigma"])), found.chosen.teachers
    fitted = fitted_noise(rows, n, sigma, STUDENT_FEATURES)
    say(
        f"`noisy_votes` answers each of {rows:,} rows with noisy counts. The noise of one row's "
        f"share is {sigma / n:.1%} of the {n:,} teachers; of shares that are fitted to "
        f"{STUDENT_FEATURES} features over all rows, {fitted:.2%}, however many rows: compare it "
        "with how far the votes of the classes lie apart."
    )


def _show_publishing(found: Plan) -> None:
    publishing, published = found.publishing, found.published
    worst = max(quoted.considered.answers for quoted in found.quotes)
    answers = 0.0 if publishing is None else publishing.queries * published.answered
    if publishing is None or answers <= worst:
        say("Data-dependent accounting does not pay here: use the worst case.")
        return
    order = publishing.publication.order
    say(
        f"Data-dependent accounting would give {answers / worst - 1:.0%} more answers: about "
        f"{answers:,.0f} with {mechanism_text(published.spec)}, of which {published.accuracy:.2%} "
        f"agree, and figures published after {', '.join(f'{k:,}' for k in publishing.schedule)} "
        f"queries. To use it, register the ensemble with --rule rdp:{order:g} and open the project "
        f"with --mechanism {mechanism_text(published.spec)}, --accounting data_dependent and the "
        "--consensus of this plan."
    )


def _breakable(spec: Spec) -> str:
    """Return a mechanism as text that a narrow table may break between parameters."""
    return mechanism_text(spec).replace(",", ", ")


def _show_by_teachers(found: Plan) -> None:
    say("The best candidate for each number of teachers:")
    table = Table("teachers")
    table.add_column("mechanism", overflow="fold")
    for heading in ("answered", "right", "answers"):
        table.add_column(heading, justify="right")
    for each in found.by_teachers:
        name = _breakable(each.spec)
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
    mechanism = mechanism_text(found.chosen.spec)
    parts = ["terrine project open NAME --ensemble ENSEMBLE", f"--mechanism {mechanism}"]
    parts += [f"--epsilon {found.epsilon:g}", f"--delta {found.delta:g}"]
    if found.rate_is_shown and found.pass_rate < 1:
        parts.append(f"--expected-pass-rate {found.pass_rate:g}")
    return " ".join(parts)


def document(found: Plan, votes: str) -> dict[str, Any]:
    """Return a plan as JSON; `votes` says where the votes came from."""
    considered = [asdict(each.considered) | {"fewer": each.fewer} for each in found.quotes]
    fields = asdict(replace(found, quotes=())) | {"quotes": considered}
    return {"command": command(found), "votes": votes, **fields}


# Votes for a class: floating point has every whole number up to it.
MAX_COUNT = 2**53


class VoteSource(StrEnum):
    """The training data of the teachers that cast votes."""

    PUBLIC = "public"
    SYNTHETIC = "synthetic"
    LEAK = "private-acknowledge-leak"


def check_origin(votes_are: VoteSource | None, option: str) -> None:
    """Refuse votes that may be private, unless it is acknowledged that no budget covers them."""
    if votes_are is None:
        fail(
            f"Say what the teachers that cast these votes were trained on: {option} public or "
            f"{option} synthetic. Votes of teachers trained on private data are private, whatever "
            "they voted on. Parameters chosen by looking at them, and every number of the report, "
            "reveal something about the training data, and no budget accounts for that: use "
            "teachers trained on public data, or `terrine plan --consensus`. If nobody else will "
            f"ever see the report and no project will be based on it, {option} {VoteSource.LEAK}."
        )
    if votes_are is VoteSource.LEAK:
        errors.print(
            "[bold red]WARNING: this report is made from PRIVATE votes.[/] It is not "
            "differentially private. Show it to nobody and open no project with parameters taken "
            "from it: the project's guarantee would not hold.",
            soft_wrap=True,
        )


def load_votes(path: Path, sizes: Sequence[int]) -> Votes:
    """Read votes: counts [B, m] in an .npy, or `counts` and, optionally, `labels` [B] in an .npz.

    Counts that are whole numbers in floating point, as PATE's own files have them, are read.
    """
    arrays = read_arrays(path)
    if not isinstance(arrays, dict):
        arrays = {"counts": arrays}
    if "counts" not in arrays:
        fail(
            f"{path} has no array `counts` of shape [queries, classes]; it has "
            f"{', '.join(arrays) or 'none'}."
        )
    counts = arrays["counts"]
    if counts.dtype.kind not in "iuf" or not np.all(counts == np.floor(counts)):
        fail(f"{path}: counts must be whole numbers, how many teachers voted for each class.")
    if counts.ndim != 2 or counts.size == 0:
        fail(
            f"{path}: counts must be [queries, classes], a row for each query; found shape "
            f"{list(counts.shape)}."
        )
    if counts.dtype.kind == "f" and np.abs(counts).max() > MAX_COUNT:
        fail(f"{path}: a count is larger than {MAX_COUNT:,}.")
    counts = counts.astype(np.int64)
    down, across = counts.sum(axis=0), counts.sum(axis=1)
    if np.ptp(across) and not np.ptp(down):
        fail(
            f"{path}: counts of shape {list(counts.shape)} have one sum in each column, not in "
            "each row. Expected a row for each query and a column for each class: transpose them."
        )
    if np.ptp(across) and (not sizes or np.any(across != sizes[0])):
        fail(
            f"{path}: each row counts the votes on one query, so all rows have one sum, the number "
            f"of teachers; these have {int(across.min()):,} to {int(across.max()):,}. If each row "
            "has one teacher's labels, [teachers, queries], count them first: "
            "np.stack([np.bincount(query, minlength=classes) for query in labels.T])"
        )
    if not sizes:
        sizes = [int(across[0])]
    if len(sizes) != 1:
        fail("Votes in a file were cast by one ensemble; give its size with --teachers.")
    return Votes.observed(counts, arrays.get("labels"), teachers=sizes[0])


MOVED_TO_QUICKSTART = (
    "--public",
    "--units",
    "--label",
    "--bins",
    "--group",
    "--columns",
    "--images",
)
# Public rows that are asked.
DEFAULT_ROWS = 10_000
DEFAULT_CLASSES = 10


@with_json
def plan(
    mechanism: Annotated[
        str | None,
        typer.Argument(
            metavar=f"[{SPEC}]",
            help="A mechanism of `terrine parameters`; parameters that are not stated are "
            "searched for. Without one, the best plans of all are compared.",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,…", help="Number of classes, or their names. Default: 10."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="ε that may be spent.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ; below 1 / training records.")] = 1e-5,
    teachers: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="Number of teachers; several to compare ensembles."),
    ] = None,
    consensus: Annotated[
        str,
        typer.Option(
            metavar="C[:SHARE],…",
            help="Share of teachers that agree; several levels with their shares of the queries.",
        ),
    ] = "0.9",
    votes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An .npz with counts [B, m] and optional labels [B], instead of --consensus.",
        ),
    ] = None,
    votes_are: Annotated[
        VoteSource | None, typer.Option(help="What the teachers of --votes were trained on.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For `noisy_votes` and `neighbours`: public rows that are all asked once. "
            "Default: 10,000.",
        ),
    ] = None,
    ensemble: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For neighbours: the ensemble whose public rows forecast how long people vote.",
        ),
    ] = None,
    moved: Annotated[str | None, typer.Option(*MOVED_TO_QUICKSTART, hidden=True)] = None,
) -> None:
    """Plan a project: how many answers are right, for which ε?

    Nothing is spent and no teacher votes. Right answers count, of labels that are used one by one:
    votes are generated from levels of consensus, or read from a file and were cast by teachers
    trained on public or synthetic data. What a student will be, labelled public rows forecast:
    `terrine quickstart --dry-run`.

    [bold]Examples[/bold]

      terrine plan --teachers 1000 --epsilon 1 --consensus 0.95:6,0.8:3,0.5:1

      terrine plan confident_gnmax:sigma2=120 --teachers 250,1000 --epsilon 2

      terrine plan gnmax --votes public.npz --votes-are public --epsilon 2

      terrine plan neighbours --ensemble digits --rows 8000 --epsilon 0.3
    """
    if moved is not None:
        fail(
            f"{', '.join(MOVED_TO_QUICKSTART)} are options of `terrine quickstart --dry-run`, "
            "which forecasts what a student will be."
        )
    if mechanism == "neighbours":
        _plan_neighbours(ensemble, rows or DEFAULT_ROWS, epsilon, delta)
        return
    if ensemble is not None:
        fail("--ensemble goes with neighbours alone. Other plans take --teachers.")
    if rows is not None and not (mechanism or "").startswith("noisy_votes"):
        fail("--rows goes with `noisy_votes` or `neighbours`. For labels one by one leave it out.")
    ensembles = _ensembles(_sizes(teachers), _how_many(classes), consensus, votes, votes_are)
    origin = "assumed" if votes_are is None else votes_are.value
    if mechanism is None:
        _compare(ensembles, epsilon, delta, origin)
        return
    rows = rows or DEFAULT_ROWS
    found = _plan_one(mechanism, ensembles, epsilon, delta, rows)
    if as_json():
        print_json(document(found, origin))
    else:
        show_plan(found, rows)


def _compare(ensembles: list[Votes], epsilon: float, delta: float, origin: str) -> None:
    """Rank mechanisms by right answers, for labels that are used one by one."""
    plans = compare(ensembles, epsilon=epsilon, delta=delta)
    if as_json():
        print_json([document(each, origin) for each in plans])
    else:
        show_all(plans)


def _ensembles(
    sizes: list[int], classes: int, consensus: str, votes: Path | None, votes_are: VoteSource | None
) -> list[Votes]:
    if votes is not None:
        check_origin(votes_are, "--votes-are")
        return [load_votes(votes, sizes)]
    if votes_are is not None:
        fail("--votes-are describes the votes of --votes, but there is no --votes.")
    if not sizes:
        fail("Say how many teachers there are, such as --teachers 1000.")
    levels = Consensus.parse(consensus)
    return [Votes.synthetic(levels, teachers=n, classes=classes) for n in sizes]


def _plan_one(text: str, ensembles: list[Votes], epsilon: float, delta: float, rows: int) -> Plan:
    """Return the plan of one mechanism, with the parameters that are stated."""
    name, stated = parse_spec("MECHANISM", text)
    if wrong := [each for each, value in stated.items() if isinstance(value, bool | str)]:
        fail(f"MECHANISM: {', '.join(wrong)} must be a number.")
    if name == "noisy_votes" and not stated:
        return plan_counts(ensembles, epsilon=epsilon, delta=delta, rows=rows)
    values = {parameter: [float(value)] for parameter, value in stated.items()}
    return make_plan(name, ensembles, epsilon=epsilon, delta=delta, grid=lambda _: values)


def _plan_neighbours(name: str | None, rows: int, epsilon: float, delta: float) -> None:
    """Plan for the units of an ensemble, by its public rows alone."""
    # PyTorch comes with it, and other plans need none.
    from terrine_models.teachers.neighbours import NeighbourEnsemble, forecast_from_public

    if name is None:
        fail("Which people are near depends on the data: name their ensemble with --ensemble.")
    by = forecast_from_public(NeighbourEnsemble.load(ensemble_directory(name)))
    found = plan_neighbours(
        by.spent, units=by.units, near=by.near, queries=rows, epsilon=epsilon, delta=delta
    )
    if as_json():
        print_json(asdict(found))
        return
    say(
        f"[bold]neighbours: σ = {found.sigma:g}[/] for {rows:,} public rows, each asked once, at "
        f"ε = {epsilon:g}, δ = {delta:g}.",
        markup=True,
    )
    say(_explain_retirement(found, by))
    suited = default_near(by.units, rows, epsilon, delta)
    if not 0.5 <= suited / found.near <= 2:
        say(f"For this, `terrine ensemble train --kind neighbours:near={suited}` would suit.")
    spec = {"name": "neighbours", "sigma": found.sigma, "queries": rows}
    say(
        f"To open the project:\n  terrine project open NAME --ensemble {name} --mechanism "
        f"{mechanism_text(spec)} --epsilon {epsilon:g} --delta {delta:g}"
    )


def _explain_retirement(found: NeighbourPlan, by: NeighbourForecast) -> str:
    """Say how many units vote, with how much noise, and how many are exhausted in the end.

    And who stands in for them in this forecast, and what that assumes.
    """
    said = (
        f"some {found.votes:,.0f} vote on a query, on average over all, so the noise of one answer "
        f"is {found.noise:.0%} of its votes; the allowance is {found.allowance:,}, and "
        f"{found.retired:.0%} of the units will have spent theirs after {found.queries:,} queries."
    )
    if by.people:
        return f"By people of the public rows, with all of these: {said}"
    if by.group_column is None:
        return f"By public rows, of one record each: {said}"
    return (
        f"By public rows, each as a person with one record: {said} The pool does not say "
        f"whose its rows are ({by.group_column}), so this assumes that nobody has several "
        "records near a query. Whoever does has spent theirs sooner."
    )


def _how_many(classes: str | None) -> int:
    names = reading.parse_classes(classes)
    return DEFAULT_CLASSES if names is None else len(names)


def _sizes(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        fail(f"--teachers takes whole numbers, such as 250 or 250,1000; not {text!r}.")
