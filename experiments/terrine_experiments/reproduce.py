"""`make reproduce`: a paper's experiment on data given by path, and a table beside the paper."""

from __future__ import annotations

import importlib
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import console, errors, fail

if TYPE_CHECKING:
    from terrine_experiments.sources import Source


class Data(StrEnum):
    """A data set of the papers."""

    MNIST = "mnist"
    FASHION = "fashion"
    ADULT = "adult"
    GLYPH = "glyph"


class Protocol(StrEnum):
    """What students are trained and tested on."""

    FOLDS = "folds"
    LAST = "last-1000"
    REST = "rest"


class MechanismChoice(StrEnum):
    """How answers are sold."""

    NOISY_VOTES = "noisy_votes"
    CONFIDENT_GNMAX = "confident_gnmax"
    LNMAX = "lnmax"
    NEIGHBOURS = "neighbours"


class TeacherChoice(StrEnum):
    """Kind of teacher."""

    HEADS = "heads"
    FOREST = "forest"


QUICK_TEACHERS = 40
FORESTS = 250
"""As many as the papers train on tables."""


def reproduce(
    data: Annotated[Data, typer.Argument(help="The data set.")],
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory with its files, as published: the four IDX files of mnist or fashion, "
            "or adult.data and adult.test (also .gz); for glyph, what `make glyphs` writes.",
        ),
    ],
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Budget of one student: ε. Repeat it for several. Default: 0.3."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Its δ. Default: the papers' for this data set.")
    ] = None,
    protocol: Annotated[
        Protocol,
        typer.Option(
            help="folds: every test input measures a student that has not seen it. last-1000: the "
            "last 1,000 test inputs measure one that has seen all others, as in P18. rest: all "
            "that were not asked measure one that has seen the first --queries, as in P17."
        ),
    ] = Protocol.FOLDS,
    queries: Annotated[
        int | None, typer.Option(min=10, help="For rest: test inputs that are asked. Default: 500.")
    ] = None,
    runs: Annotated[
        int,
        typer.Option(
            min=1,
            max=100,
            help="Each partitions the private data anew, trains its own teachers and opens its own "
            "projects.",
        ),
    ] = 3,
    teachers: Annotated[int | None, typer.Option(min=2, help="Number of teachers.")] = None,
    kind: Annotated[
        TeacherChoice | None,
        typer.Option(
            help="heads, the default, or forest: the papers' choice on tables, which takes 250."
        ),
    ] = None,
    mechanism: Annotated[
        MechanismChoice,
        typer.Option(
            help="noisy_votes: the counts of every public input once. confident_gnmax: labels, "
            "until the budget refuses. lnmax: labels with Laplace noise, γ = 0.05, as in P17. "
            "neighbours: the counts of every public input once, of records instead of teachers; "
            "no server is asked."
        ),
    ] = MechanismChoice.NOISY_VOTES,
    method: Annotated[
        str | None, typer.Option(help="As for `terrine student train`. Default: auto.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for everything. Default: reproduce-DATA."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Few teachers, to see that it works."),
    ] = False,
) -> None:
    """Repeat a paper's experiment: train teachers, serve, teach students, compare.

    The table shows students beside the same student on true labels, a plain one on the same
    answers, the teachers' plurality and the paper's figures. ± is the interval in which a new run's
    figure falls, for 95 %. Run the same command again to continue after an interruption: nothing is
    paid for twice. Results gather in results.json and one picture.

    [bold]Examples[/bold]

      make reproduce ARGS="mnist mnist/ --epsilon 0.3 --epsilon 0.6"

      make reproduce ARGS="mnist mnist/ --epsilon 0.6 --protocol last-1000 --runs 5"

      make reproduce ARGS="adult adult/ --epsilon 1"

      make reproduce ARGS="adult adult/ --kind forest --method forest --protocol rest
          --mechanism lnmax --epsilon 5.5"
    """
    from terrine_experiments.experiment import Experiment
    from terrine_experiments.neighbours import NEAR, NeighbourExperiment, near
    from terrine_experiments.results import draw, keep, table
    from terrine_experiments.setup import QUERIES, Setup
    from terrine_experiments.sources import load
    from terrine_server import logs

    if queries is not None and protocol is not Protocol.REST:
        fail("--queries is for --protocol rest; other protocols ask all that is public.")
    if mechanism is MechanismChoice.NEIGHBOURS and (teachers or kind or data.value not in NEAR):
        fail(f"neighbours have no teachers to choose, and are for {', '.join(NEAR)}.")
    logs.configure("error")
    source = _suited(load(data.value, path), teachers, kind, method, quick)
    out = out or Path(f"reproduce-{data.value}")
    out.mkdir(parents=True, exist_ok=True)
    setups = [
        Setup(
            protocol=protocol.value,
            mechanism=mechanism.value,
            epsilon=budget,
            delta=source.delta if delta is None else delta,
            runs=runs,
            queries=QUERIES if queries is None else queries,
        )
        for budget in epsilon or [0.3]
    ]
    kind_of = NeighbourExperiment if mechanism is MechanismChoice.NEIGHBOURS else Experiment
    alike: dict[int, list[Setup]] = {}
    for setup in setups:
        same = 0 if kind_of is Experiment else near(source.name, setup.epsilon)
        alike.setdefault(same, []).append(setup)
    try:
        results = [
            result
            for some in alike.values()
            for result in kind_of(source, some, out, console).run()
        ]
    except KeyboardInterrupt:
        errors.print(f"Interrupted. Run the same command again to continue; see {out}.")
        raise typer.Exit(130) from None
    picture = out / f"{source.name}-{protocol.value}.png"
    draw(keep(results, out), picture)
    for result in results:
        console.print(table(result))
    for warning in dict.fromkeys(text for each in results for text in each.warnings):
        console.print(f"[bold yellow]Note:[/] {warning}", soft_wrap=True, highlight=False)
    console.print(f"{out / 'results.json'}, {picture}", soft_wrap=True, highlight=False)


def _suited(
    source: Source,
    teachers: int | None,
    kind: TeacherChoice | None,
    method: str | None,
    quick: bool,
) -> Source:
    """Replace a data set's defaults by what was asked for."""
    from terrine_models.students.models import Task, check_method
    from terrine_models.teachers.kinds import Forests

    importlib.import_module("terrine_experiments.students")  # registers its methods
    training = source.training
    if kind is TeacherChoice.FOREST:
        source = replace(source, config=Forests(match_prior=False), teachers=FORESTS)
    if method is not None:
        training = replace(training, method=method)
    try:
        test = source.test
        check_method(training.method, Task(test.inputs, test.spec, test.classes, test.encoding))
    except ValueError as error:
        fail(str(error))
    number = teachers or (min(source.teachers, QUICK_TEACHERS) if quick else source.teachers)
    return replace(source, training=training, teachers=number)
