"""`terrine student …`: commands for students. They need a URL, a token and public data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from terrine_protocol import Outcome
from terrine_protocol.files import read
from terrine_server.cli.console import console, fail, output, spent_by_whom, with_json, writing
from terrine_server.cli.reading import AcceptClipped, StudentFiles, note, rehearse, save_labels
from terrine_server.sheets import CsvWriter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from terrine_client import Client
    from terrine_client.distill import Report
    from terrine_models.students.models import StudentModel
    from terrine_models.students.settings import Threshold


def summary(report: Report, out: Path) -> Table:
    """A table of what was bought and the result."""
    from terrine_client._report import format_metrics

    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
    table = Table(show_header=False, box=None, pad_edge=False)
    if report.accuracy is not None:
        table.add_row(
            "accuracy",
            f"{report.accuracy:.2%}, within {_interval(report.accuracy, report.held_out)} at 95 %, "
            f"of {report.held_out:,} held-out inputs; of the plain student {report.plain:.2%}; "
            f"always to say their largest class: {report.majority:.2%}",
        )
    else:
        table.add_row(
            "accuracy",
            "not known: answers are not the truth. Labelled inputs of your own tell: --held-out",
        )
    found = report.choice.figures
    if found is not None:
        table.add_row("agreement", f"{format_metrics(found, report.choice)}; {_meaning(report)}")
    if report.choice.threshold is not None:
        table.add_row(
            "threshold",
            f"from a probability of {report.choice.threshold:.3f} on it is {report.classes[1]}",
        )
    table.add_row("protects", report.protects)
    table.add_row(
        "ε spent",
        f"{report.epsilon_spent:.4g} of {report.epsilon:g}, δ {report.delta:g}"
        f"{spent_by_whom(str(report.mechanism['name']))}",
    )
    table.add_row("method", f"{report.choice.chosen} ({report.choice.asked} was asked for)")
    table.add_row("queries", f"{sum(report.outcomes.values()):,}: {outcomes}")
    if exhausted := report.outcomes.get("exhausted"):
        table.add_row(
            "exhausted",
            f"{exhausted:,} inputs, near which people are used up: free, and left out of training",
        )
    if report.reinforced is not None:
        table.add_row("reinforced", f"{report.reinforced:.1%} of the labels: the student was right")
    table.add_row("ended by", "the budget" if report.refused else f"the student. {report.ended}")
    if report.queries_left:
        more = f"budget for at least {report.queries_left:,} more queries"
        table.add_row("left", more + _of_what(report))
    table.add_row("student", f"{out / 'model.json'}, {out / 'model.safetensors'}")
    drawn = out / "accuracy.png"
    table.add_row("report", f"{out / 'report.json'}{f', {drawn}' if drawn.exists() else ''}")
    return table


def _interval(share: float, inputs: int) -> str:
    from scipy.stats import binomtest

    between = binomtest(round(share * inputs), inputs).proportion_ci(method="wilson")
    return f"{between.low:.1%} to {between.high:.1%}"


def _meaning(report: Report) -> str:
    """Say what the figures of answers are shares of."""
    if report.choice.noisy:
        return (
            "of held-out answers. This is no accuracy: a voter by itself is often "
            "wrong, and a good student is right more often"
        )
    return (
        "by held-out answers. Labels are on inputs that teachers agree on, so it is right less "
        "often on others"
    )


def _of_what(report: Report) -> str:
    """Say why budget is left although all inputs were asked."""
    asked = sum(report.outcomes.values())
    return ", of other inputs: to ask these again is free" * (asked >= report.public_inputs)


def class_figures(report: Report) -> Table:
    """Recall and precision of each class on the held-out inputs."""

    def percent(share: float | None) -> str:
        return "–" if share is None else f"{share:.2%}"

    table = Table("class")
    for heading in ("held out", "recall", "precision"):
        table.add_column(heading, justify="right")
    for each in report.by_class:
        row = (f"{each.inputs:,}", percent(each.recall), percent(each.precision))
        table.add_row(each.name, *row)
    return table


app = typer.Typer(no_args_is_help=True)

CONNECTION = "terrine.student.connection"
"""Where the group's options are kept for its commands."""


@dataclass(frozen=True)
class ServerOptions:
    """The server, and how to speak to it."""

    url: str | None
    token_file: Path | None
    insecure: bool

    @contextmanager
    def open(self) -> Iterator[Client]:
        """A client with the token from the file, or else from the environment."""
        from terrine_client import Client

        if self.url is None:
            fail("No server is named: set TERRINE_URL, or terrine student --url URL COMMAND.")

        token = read(self.token_file).decode().strip() if self.token_file else None
        with Client(self.url, token, insecure=self.insecure) as client:
            yield client


@app.callback()
def student(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="TERRINE_URL", help="URL of the server, such as https://labels.example.org"
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the token. Default: the variable TERRINE_TOKEN."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow plain http to another machine: anyone on the network path can read the "
            "token.",
        ),
    ] = False,
) -> None:
    """Request labels from a server and train on them.

    The options of the connection come before the command.
    """
    context.meta[CONNECTION] = ServerOptions(url, token_file, insecure)


Public = Annotated[
    Path,
    typer.Argument(
        metavar="PUBLIC",
        help="Your own public inputs, without labels: IDX images, .npy, .npz with x, a table "
        "(CSV, Parquet or Arrow), or a folder of PNG and JPEG files.",
    ),
]


@app.command()
def train(
    context: typer.Context,
    public: Public,
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
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the order of queries and the training.")
    ] = 0,
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
    from terrine_client.distill import distill
    from terrine_models.students.settings import Training

    training = Training(method=method, threshold=threshold_of(threshold))
    source = StudentFiles(accept_clipped)
    source.check(public)
    with connected(context) as client:
        inputs, described = source.public(public, client)
        examples = source.held_out(held_out, client) if held_out else None
        if dry_run:
            console.print(rehearse(client, inputs, examples, queries, training))
            return
        made = distill(
            client,
            inputs,
            out,
            held_out=examples,
            rounds=rounds,
            queries=queries,
            training=training,
            encoding=described,
            seed=seed,
            tell=lambda line: console.print(line, soft_wrap=True, highlight=False),
        )
    console.print(summary(made.report, out))
    if made.report.by_class:
        console.print(class_figures(made.report))
    for warning in made.report.notes:
        console.print(f"[yellow]Note:[/] {warning}", soft_wrap=True, highlight=False)


@app.command()
def label(
    context: typer.Context,
    public: Public,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .npz or .csv file to write.")],
    accept_clipped: AcceptClipped = False,
) -> None:
    """Request labels for inputs and save them, in the order of the inputs.

    As arrays: outcomes, labels, charges, and `names`, the labels' class names, empty where there is
    no label. For a noisy_votes project also noisy_counts and noise_sigma. As CSV: the same, a row
    for each input. For projects that do not need the student's probabilities. Repeating a query is
    free.

    [bold]Examples[/bold]

      terrine student label pool.npy --out labels.npz

      terrine student label census.csv --out labels.csv
    """
    if out.suffix.lower() not in (".npz", ".csv"):
        fail(f"--out must end in .npz or .csv; {out} does not.")
    source = StudentFiles(accept_clipped)
    source.check(public)
    with connected(context) as client:
        inputs, _ = source.public(public, client)
        labels = client.label(inputs, progress=True)
    save_labels(labels, out)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in labels.counts.items() if count)
    console.print(f"{out}: {counts}. ε spent {labels.budget.epsilon_spent:.4g}.", soft_wrap=True)
    if labels.counts[Outcome.EXHAUSTED]:
        console.print("Exhausted: near these, people are used up. Nothing was charged for them.")


@app.command()
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
        Path | None, typer.Option(metavar="FILE", help="The .csv file to write.")
    ] = None,
) -> None:
    """Predict the classes of inputs with a trained student. Needs no server and costs nothing.

    A row for each input, in their order: the class, and the probability of each class.

    [bold]Example[/bold]: terrine student predict census.csv --student student --out labels.csv
    """
    from terrine_models.students.models import Student

    trained = Student.load(student)
    x, names = known_inputs(inputs, trained.model)
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
        console.print(f"{out}: {len(x):,} inputs.", soft_wrap=True)


@app.command()
@with_json
def budget(context: typer.Context) -> None:
    """Show the account of the token's project.

    [bold]Example[/bold]: terrine student --url https://labels.example.org budget
    """
    with connected(context) as client:
        account = client.budget()
    people = {
        "project": f"{account.project} ({account.status})",
        "protects": account.protects,
        "budget": f"ε = {account.epsilon:g}, δ = {account.delta:g}",
        "ε spent": f"{account.epsilon_spent:.6g}",
        "charges": account.charges,
        "queries left": f"at least {account.affordable}",
    }
    output(account, people)


def connected(context: typer.Context) -> AbstractContextManager[Client]:
    """A client by the options of the group."""
    connection: ServerOptions = context.meta[CONNECTION]
    return connection.open()


def threshold_of(text: str) -> Threshold:
    """Read `--threshold`."""
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


def known_inputs(path: Path, model: StudentModel) -> tuple[NDArray[np.generic], list[str]]:
    """Read inputs as a student knows them, and the names of pictures."""
    from terrine_models.data.arrays import load_inputs
    from terrine_models.data.images import list_images, load_images
    from terrine_models.tables.loading import is_table
    from terrine_protocol.tables.encoding import encode_table

    if not is_table(path):
        if not path.is_dir():
            return load_inputs(path), []
        if model.image is None:
            fail(f"{path} is a folder, and this student did not learn from folders of pictures.")
        return load_images(path, model.image), [each.name for each in list_images(path)]
    if model.encoding is None:
        fail(f"{path} is a table, and this student did not learn from tables.")
    return encode_table(path, model.encoding, note, accept_clipped=True), []
