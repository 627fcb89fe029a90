"""`terrine student train` and `predict`: what becomes of the labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from terrine_client import Client
from terrine_client._report import find_interval, format_metrics
from terrine_client.distill import Examples, Report, check_data, check_training, distill, make_task
from terrine_models.data.images import list_images
from terrine_models.formats import Inputs, format_of
from terrine_models.students.models import Student, Threshold, Training
from terrine_models.tables.designed import DesignedPool
from terrine_protocol.base import quantity
from terrine_server.cli.console import (
    console,
    explain_spending,
    fail,
    name_output,
    say,
    tabulate,
    writing,
)
from terrine_server.cli.reading import AcceptClipped, note
from terrine_server.cli.student import PUBLIC_HELP, connect, load_pool
from terrine_server.sheets import CsvWriter


def train(
    context: typer.Context,
    public: Annotated[
        Path | None,
        typer.Argument(
            metavar="PUBLIC",
            help=f"{PUBLIC_HELP} Without it, what the owner designed to be asked.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the student and its report.")
    ] = Path("student"),
    accept_clipped: AcceptClipped = False,
    held_out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Your own labelled data, to measure accuracy: IDX images (labels beside them), "
            ".npz with x and y, a table, or a folder of pictures for each class.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of rounds of queries and training.")
    ] = 3,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of queries. Default: until refused.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="auto|ridge|kernel|neighbours",
            help="How the student is trained: auto takes what suits the inputs; ridge is the plain "
            "student; kernel and neighbours are for images.",
        ),
    ] = "auto",
    threshold: Annotated[
        str,
        typer.Option(
            metavar="prior|accuracy|VALUE",
            help="How shares of two classes become labels: each as often as answers lead to "
            "expect, the likelier one, or the second from this probability on.",
        ),
    ] = "prior",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check inputs, token and options, and print what the budget pays for. Sends no "
            "input and charges nothing.",
        ),
    ] = False,
) -> None:
    """Buy labels in rounds and train a student, until the budget is spent or all inputs are sent.

    After an interruption the same command continues where it stopped; nothing is paid twice. Once
    the budget is spent, another --out has the same answers, free: to train in another way.

    [bold]Examples[/bold]

      export TERRINE_URL=https://labels.example.org TERRINE_TOKEN=terrine_…

      terrine student train pool.npy --held-out own.npz --out student

      terrine student train census.csv
    """
    training = Training(method=method, threshold=_parse_threshold(threshold))
    if public is not None:
        format_of(public).check(public)
    with connect(context) as client:
        inputs, examples, designed = None, None, None
        if public is not None:
            inputs = load_pool(public, client, accept_clipped)
        elif client.project().ensemble.designed:
            designed = DesignedPool.of_bytes(client.pool())
            inputs = designed.rows
        else:
            fail("Name your own public inputs: nothing was designed to be asked of this project.")
        if held_out is not None:
            like = client.project().ensemble
            labelled = format_of(held_out, like).labelled(held_out, like, note, True)
            examples = labelled.inputs, np.array(labelled.classes)[labelled.labels]
        if dry_run:
            console.print(_estimate(client, inputs, examples, queries, training))
            return
        made = distill(
            client,
            inputs,
            out,
            held_out=examples,
            rounds=rounds,
            queries=queries,
            training=training,
            designed=designed,
            tell=say,
        )
    console.print(summarize(made.report, out))
    if made.report.by_class:
        console.print(tabulate_classes(made.report))
    for warning in made.report.notes:
        say(f"[yellow]Note:[/] {escape(warning)}", markup=True)


def predict(
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Inputs as the student knows them: a table (CSV, Parquet or Arrow), a folder of "
            "PNG and JPEG files, IDX images, .npy, or .npz with x.",
        ),
    ],
    student: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the student.")] = Path(
        "student"
    ),
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The .csv file to write; default, as -: standard output.",
            callback=name_output,
        ),
    ] = None,
    accept_empty: Annotated[
        bool,
        typer.Option(
            "--accept-clipped", help="Go on although a table's column is empty in all rows."
        ),
    ] = False,
) -> None:
    """Predict the classes of inputs with a trained student. Needs no server and costs nothing.

    A row for each input, in their order: the class, and the probability of each class.

    [bold]Example[/bold]: terrine student predict census.csv --student student --out labels.csv
    """
    trained = Student.load(student)
    x = format_of(inputs).inputs(inputs, trained.model, note, True, accept_empty)
    pictures = inputs.is_dir()
    names = [each.name for each in list_images(inputs)] if pictures else []
    said = trained.predictions(x)
    with writing(out) as file:
        sheet = CsvWriter(file)
        first = ["file"] if names else []
        sheet.write_row(
            [*first, "label", *(f"probability_{name}" for name in trained.model.classes)]
        )
        for i, (name, row) in enumerate(zip(said.names.tolist(), said.probabilities, strict=True)):
            sheet.write_row([*names[i : i + 1], name, *(f"{each:.6g}" for each in row)])
    if out is not None:
        say(f"{out}: {quantity(len(x), 'input')}.")


def summarize(report: Report, out: Path) -> Table:
    """Return a table of what was bought and the result."""
    found, choice, drawn = report.choice.figures, report.choice, out / "accuracy.png"
    asked, exhausted = sum(report.outcomes.values()), report.outcomes.get("exhausted")
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
    accuracy = "not known: answers are not the truth. Labelled inputs of your own tell: --held-out"
    if report.accuracy is not None:
        accuracy = (
            f"{report.accuracy:.2%}, within {_interval(report.accuracy, report.held_out)} at 95 %, "
            f"of {report.held_out:,} held-out inputs; of the plain student {report.plain:.2%}; "
            f"always to say their largest class: {report.majority:.2%}"
        )
    others = ", of other inputs: to ask these again is free" * (asked >= report.public_inputs)
    return tabulate(
        {
            "accuracy": accuracy,
            "agreement": found and f"{format_metrics(found, choice)}; {_meaning(report)}",
            "threshold": None
            if choice.threshold is None
            else f"from a probability of {choice.threshold:.3f} on it is {report.classes[1]}",
            "protects": report.protects,
            "ε spent": f"{report.epsilon_spent:.4g} of {report.epsilon:g}, δ {report.delta:g}"
            f"{explain_spending(str(report.mechanism['name']))}",
            "method": f"{choice.chosen} ({choice.asked} was asked for)",
            "queries": f"{asked:,}: {outcomes}",
            "exhausted": exhausted
            and f"{exhausted:,} inputs with exhausted accounts alone near them: free, and left out "
            "of training",
            "reinforced": None
            if report.reinforced is None
            else f"{report.reinforced:.1%} of the labels: the student was right",
            "ended by": "the budget" if report.refused else f"the student. {report.ended}",
            "left": f"budget for at least {report.queries_left:,} more queries{others}"
            if report.queries_left
            else None,
            "student": f"{out / 'model.json'}, {out / 'model.safetensors'}",
            "report": f"{out / 'report.json'}{f', {drawn}' if drawn.exists() else ''}",
        }
    )


def _interval(share: float, inputs: int) -> str:
    low, high = find_interval(share, inputs)
    return f"{low:.1%} to {high:.1%}"


def _meaning(report: Report) -> str:
    if report.choice.noisy:
        return (
            "of held-out answers. This is not an accuracy: a voter by itself is often "
            "wrong, and a good student is right more often"
        )
    return (
        "by held-out answers. Labels are on inputs that teachers agree on, so it is right less "
        "often on others"
    )


def tabulate_classes(report: Report) -> Table:
    """Return recall and precision of each class on the held-out inputs."""

    def percent(share: float | None) -> str:
        return "–" if share is None else f"{share:.2%}"

    table = Table("class")
    for heading in ("held out", "recall", "precision"):
        table.add_column(heading, justify="right")
    for each in report.by_class:
        row = (f"{each.inputs:,}", percent(each.recall), percent(each.precision))
        table.add_row(each.name, *row)
    return table


def _estimate(
    client: Client,
    inputs: Inputs,
    examples: Examples | None,
    queries: int | None,
    training: Training,
) -> Table:
    """Check data and options as the training would, and say what it could cost."""
    project = client.project()
    check_data(inputs, project, examples)
    check_training(training, make_task(inputs, project))
    wanted = min(len(inputs), queries or len(inputs))
    left = client.budget()
    fits = f"all {wanted:,}" if wanted <= left.affordable else f"at least {left.affordable:,}"
    return tabulate(
        {
            "project": f"{project.name} ({project.status}), {project.mechanism.name}",
            "inputs": f"{len(inputs):,}, as the ensemble takes them; {wanted:,} to be asked",
            "held out": examples
            and f"{len(examples[0]):,} labelled inputs, none of them to be asked",
            "ε spent": f"{left.epsilon_spent:.4g} of {left.epsilon:g}, δ {left.delta:g}"
            f"{explain_spending(str(project.mechanism.name))}",
            "queries": f"{fits} fit the budget, whatever the answers",
            "": "Nothing was sent and nothing was charged.",
        }
    )


def _parse_threshold(text: str) -> Threshold:
    if text == "prior":
        return "prior"
    if text == "accuracy":
        return "accuracy"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        fail(f"--threshold is prior, accuracy or a probability between 0 and 1, not {text!r}.")
    return value
