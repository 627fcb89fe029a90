"""`terrine plan`: how many answers, how accurate, for which ε, before anything is spent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import as_json, console, fail, with_json
from terrine_server.cli.plan_report import document, show, show_contenders, show_fitted
from terrine_server.cli.votes import VotesAre, check_origin, load_votes

if TYPE_CHECKING:
    from terrine_server.planning.grid import Grid


ASSUMED_ROWS = 10_000
"""Public rows, if nothing is said. What a share is worth after fitting does not depend on them."""


class Criterion(StrEnum):
    """What a plan makes as large as it can."""

    EXPECTED = "expected"
    CERTAIN = "certain"


@with_json
def plan(
    mechanism: Annotated[
        str | None,
        typer.Argument(
            metavar="[MECHANISM]",
            help="lnmax, gnmax, noisy_votes, confident_gnmax, interactive_gnmax, immutable or "
            "stable. Without one, the best plans of all are compared for --epsilon.",
        ),
    ] = None,
    teachers: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="Number of teachers; several to compare ensembles."),
    ] = None,
    classes: Annotated[int, typer.Option(min=2, help="Number of classes.")] = 10,
    epsilon: Annotated[float | None, typer.Option(help="ε that may be spent.")] = None,
    delta: Annotated[float, typer.Option(help="δ; below 1 / training records.")] = 1e-5,
    answers: Annotated[
        int | None, typer.Option(min=1, help="Answers wanted; finds the smallest ε for them.")
    ] = None,
    by: Annotated[
        Criterion,
        typer.Option(
            help="Choose by the answers that --epsilon is expected to buy, or by the queries that "
            "are certain to fit, whatever their outcomes."
        ),
    ] = Criterion.EXPECTED,
    accuracy: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Minimum share of right answers. Default: within 1 % of the best."
        ),
    ] = None,
    consensus: Annotated[
        str,
        typer.Option(
            metavar="C[:SHARE],…",
            help="Share of teachers that agree; several levels with their shares of the queries.",
        ),
    ] = "0.9",
    runner_up: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the dissenters that agree on one other class."),
    ] = 0.5,
    student_accuracy: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="How often the student is right (interactive_gnmax)."),
    ] = None,
    votes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An .npz with counts [B, m] and optional labels [B], instead of --consensus.",
        ),
    ] = None,
    votes_are: Annotated[
        VotesAre | None, typer.Option(help="What the teachers of --votes were trained on.")
    ] = None,
    acknowledge_leak: Annotated[
        bool,
        typer.Option("--acknowledge-leak", help="Plan on private votes, outside every guarantee."),
    ] = False,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=V,V,…", help="Values to try; 0.1n is a tenth of the teachers. Repeatable."
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For noisy_votes: public rows that are all asked once; chooses σ for --epsilon. "
            f"To compare mechanisms, {ASSUMED_ROWS:,} if nothing is said.",
        ),
    ] = None,
    features: Annotated[
        int, typer.Option(min=1, help="With --rows: features that the shares are fitted to.")
    ] = 150,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw ε against answers, as a PNG.")
    ] = None,
) -> None:
    """Plan a project: how many answers, how accurate, for which ε?

    Nothing is spent and no teacher votes: the votes are generated from levels of consensus, or read
    from a file and were cast by teachers trained on public or synthetic data.

    [bold]Examples[/bold]

      terrine plan --teachers 1000 --epsilon 1 --consensus 0.95:6,0.8:3,0.5:1 --rows 9000

      terrine plan confident_gnmax --teachers 1000 --epsilon 2 --consensus 0.95:6,0.8:3,0.5:1

      terrine plan gnmax --teachers 250,1000,4000 --answers 500 --picture plan.png

      terrine plan noisy_votes --teachers 1000 --epsilon 1 --rows 9000

      terrine plan gnmax --votes public.npz --votes-are public --epsilon 2 --grid sigma=0.05n,0.1n
    """
    from terrine_server.planning.forecast import Consensus, Votes
    from terrine_server.planning.plan import curves
    from terrine_server.planning.plan import plan as make_plan

    if picture is not None and picture.suffix.lower() != ".png":
        fail(f"--picture writes a PNG file. Name it something like {picture.with_suffix('.png')}.")
    sizes = _sizes(teachers)
    if votes is not None:
        check_origin(votes_are, acknowledge_leak, "--votes-are")
        ensembles = [load_votes(votes, sizes)]
    elif votes_are is not None:
        fail("--votes-are describes the votes of --votes, but there is no --votes.")
    else:
        if not sizes:
            fail("Say how many teachers there are, such as --teachers 1000.")
        levels = [replace(level, runner_up=runner_up) for level in Consensus.parse(consensus)]
        ensembles = [Votes.synthetic(levels, teachers=n, classes=classes) for n in sizes]
    if mechanism is None:
        if epsilon is None or answers is not None or grid or picture is not None:
            fail(
                "All mechanisms are compared for an --epsilon. --answers, --grid and --picture "
                "are for one of them: name it, as in terrine plan confident_gnmax."
            )
        from terrine_server.planning.comparison import Rows, compare

        contenders = compare(
            ensembles,
            delta=delta,
            epsilon=epsilon,
            accuracy=accuracy,
            certain=by is Criterion.CERTAIN,
            student_accuracy=student_accuracy,
            rows=Rows(rows or ASSUMED_ROWS, features),
        )
        if as_json():
            plans = [
                {**document(each.plan, _origin(votes_are)), "fitted_noise": each.fitted_noise}
                for each in contenders
            ]
            typer.echo(json.dumps(plans, indent=2, ensure_ascii=False))
        else:
            show_contenders(contenders, rows or ASSUMED_ROWS, features)
        return
    if mechanism == "interactive_gnmax":
        if student_accuracy is None:
            fail(
                "interactive_gnmax answers what the student gets wrong. Say how often the student "
                "is right, such as --student-accuracy 0.9."
            )
        ensembles = [each.with_student(student_accuracy) for each in ensembles]
    values = _grid(grid or [])
    if rows is not None:
        values = _for_rows(mechanism, rows, classes, epsilon, delta, grid)
    found = make_plan(
        mechanism,
        ensembles,
        delta=delta,
        epsilon=epsilon,
        answers=answers,
        accuracy=accuracy,
        grid=values,
        certain=by is Criterion.CERTAIN,
    )
    if picture is not None:
        from terrine_server.cli.picture import draw

        chosen = next(each for each in ensembles if each.teachers == found.chosen.teachers)
        draw(found, curves(found, chosen), picture, private=votes_are is VotesAre.PRIVATE)
    if as_json():
        shown = document(found, _origin(votes_are))
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        show(found)
        if rows is not None:
            show_fitted(found, rows, features)
        if picture is not None:
            console.print(f"Drew {picture}.", soft_wrap=True)


# -------------------------------------------------------------------------------- arguments


def _origin(votes_are: VotesAre | None) -> str:
    return "assumed" if votes_are is None else votes_are.value


def _sizes(text: str | None) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        fail(f"--teachers takes whole numbers, such as 250 or 250,1000; not {text!r}.")


def _for_rows(
    mechanism: str,
    rows: int,
    classes: int,
    epsilon: float | None,
    delta: float,
    grid: list[str] | None,
) -> Callable[[int], Grid]:
    """Return the noise at which one budget pays for every row, for a number of teachers."""
    from terrine_server.planning.counts import sigma_for_rows

    if mechanism != "noisy_votes" or epsilon is None or grid:
        fail("--rows goes with noisy_votes and --epsilon, and replaces --grid.")
    known = epsilon
    return lambda n: {"sigma": [sigma_for_rows(rows, n, classes, known, delta)]}


def _grid(given: Sequence[str]) -> Callable[[int], Grid]:
    """Return a function that gives the values to try for a number of teachers."""
    parts = [text.replace(" ", "").partition("=") for text in given]
    values = {name: part.split(",") for name, _, part in parts}

    def of(teachers: int) -> dict[str, list[float]]:
        return {
            name: [float(v.removesuffix("n")) * (teachers if v[-1:] == "n" else 1) for v in listed]
            for name, listed in values.items()
        }

    try:
        of(1)
    except ValueError:
        fail("--grid takes a parameter and its values, such as sigma=20,0.1n.")
    return of
