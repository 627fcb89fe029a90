"""`make reproduce`: a paper's experiment on data given by path, and a table beside the paper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from terrine_experiments.papers import Name
from terrine_server.cli.console import console, errors, fail

QUICK_TEACHERS = 40


def reproduce(
    data: Annotated[Name, typer.Argument(help="The data set.")],
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory with its files, as published: the four IDX files of mnist or fashion, "
            "adult.data and adult.test (also .gz), train_32x32.mat and test_32x32.mat of svhn, "
            "diabetic_data.csv; for glyph, what `make glyphs` writes.",
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
        Literal["folds", "last-1000"],
        typer.Option(
            help="folds: every test input measures a student that has not seen it. last-1000: the "
            "last 1,000 test inputs measure one that has seen all others, as in P18."
        ),
    ] = "folds",
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
    mechanism: Annotated[
        Literal["noisy_votes", "neighbours"],
        typer.Option(
            help="noisy_votes: the counts of every public input once. neighbours: the same, of "
            "records instead of teachers."
        ),
    ] = "noisy_votes",
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
    """
    from terrine_experiments.experiment import Experiment
    from terrine_experiments.neighbours import NEAR, NeighbourExperiment, near
    from terrine_experiments.pictures import draw
    from terrine_experiments.results import keep, table
    from terrine_experiments.setup import Setup
    from terrine_experiments.sources import load
    from terrine_server import logs

    if mechanism == "neighbours" and (teachers or data not in NEAR):
        fail(f"neighbours have no teachers to choose, and are for {', '.join(NEAR)}.")
    logs.configure("error")
    source = load(data, path)
    number = min(source.teachers, QUICK_TEACHERS) if quick else source.teachers
    source = replace(source, teachers=teachers or number)
    out = out or Path(f"reproduce-{data}")
    out.mkdir(parents=True, exist_ok=True)
    setups = [
        Setup(
            protocol=protocol,
            mechanism=mechanism,
            epsilon=budget,
            delta=source.delta if delta is None else delta,
            runs=runs,
        )
        for budget in epsilon or [0.3]
    ]
    kind_of = NeighbourExperiment if mechanism == "neighbours" else Experiment
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
    picture = out / f"{source.name}-{protocol}.png"
    draw(keep(results, out), picture)
    for result in results:
        console.print(table(result))
    for warning in dict.fromkeys(text for each in results for text in each.warnings):
        console.print(f"[bold yellow]Note:[/] {warning}", soft_wrap=True, highlight=False)
    console.print(f"{out / 'results.json'}, {picture}", soft_wrap=True, highlight=False)
