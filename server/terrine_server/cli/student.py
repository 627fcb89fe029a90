"""`terrine student …`: commands for students. They need a URL, a token and public data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_protocol.files import read
from terrine_server.bars import steps_bar
from terrine_server.cli.console import as_json, console, errors, fail, output, with_json
from terrine_server.cli.specs import SPEC, built, show_kind
from terrine_server.cli.student_data import StudentFiles, rehearse, save_labels
from terrine_server.cli.student_report import class_figures, summary
from terrine_server.cli.tables import EncodingOption, TextEncoding

if TYPE_CHECKING:
    from terrine_client import Client

app = typer.Typer(no_args_is_help=True, help="Request labels from a server and train on them.")

Url = Annotated[
    str,
    typer.Option(
        envvar="TERRINE_URL", help="URL of the server, such as https://labels.example.org"
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the token. Default: the variable TERRINE_TOKEN."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow plain http to another machine: anyone on the network path can read the token.",
    ),
]
Public = Annotated[
    Path,
    typer.Argument(
        metavar="PUBLIC",
        help="Your own public inputs, without labels: IDX images, .npy, .npz with x, a table "
        "(CSV, Parquet or Arrow), or a folder of PNG and JPEG files.",
    ),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The data owner's public schema, for a table. Default: as the server says.",
    ),
]


class AskOption(StrEnum):
    """Which inputs are asked from the second round on."""

    AUTO = "auto"
    REPRESENTATIVE = "representative"
    UNCERTAIN = "uncertain"
    DISAGREEMENT = "disagreement"


class Stop(StrEnum):
    """When a project ends that could go on."""

    AUTO = "auto"
    NEVER = "never"


@app.command()
def train(
    public: Public,
    url: Url,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the student and its report.")
    ] = Path("student"),
    token_file: TokenFile = None,
    insecure: Insecure = False,
    schema: Schema = None,
    encoding: EncodingOption = TextEncoding.UTF_8,
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
            metavar=SPEC,
            help="How the final student is trained, such as vat:steps=1000 or auto:students=5. "
            "auto chooses by cross-validation on the bought labels. `terrine student methods` "
            "names all, and their parameters.",
        ),
    ] = "auto",
    ask: Annotated[
        AskOption,
        typer.Option(
            help="Inputs to ask from the second round on: those that represent the whole, those "
            "that a student is least sure of, or those on which two plain models disagree."
        ),
    ] = AskOption.AUTO,
    stop: Annotated[
        Stop,
        typer.Option(
            help="auto leaves budget unspent once another round is not expected to help; the same "
            "command with never continues."
        ),
    ] = Stop.NEVER,
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

    After an interruption the same command continues where it stopped; nothing is paid twice.

    [bold]Examples[/bold]

      export TERRINE_URL=https://labels.example.org TERRINE_TOKEN=terrine_…

      terrine student train pool.npy --held-out own.npz --out student

      terrine student train census.csv
    """
    from terrine_client.distill import distill
    from terrine_models.students.methods import methods
    from terrine_models.students.networks import Training

    kinds = dict.fromkeys(methods(), Training)
    training = built("--method", method, kinds, method=method.partition(":")[0].strip())
    source = StudentFiles(schema, encoding.value)
    source.check(public)
    with connect(url, token_file, insecure) as client:
        inputs, described = source.public(public, client)
        examples = source.held_out(held_out, client) if held_out else None
        if dry_run:
            console.print(rehearse(client, inputs, examples, queries, training))
            return
        with steps_bar(console) as on_step:
            made = distill(
                client,
                inputs,
                out,
                held_out=examples,
                rounds=rounds,
                queries=queries,
                ask=ask.value,
                stop=stop.value,
                training=training,
                encoding=described,
                seed=seed,
                tell=lambda line: console.print(line, soft_wrap=True, highlight=False),
                on_step=on_step,
            )
    console.print(summary(made.report, out))
    if made.report.by_class:
        console.print(class_figures(made.report))
    for warning in made.report.notes:
        console.print(f"[yellow]Note:[/] {warning}", soft_wrap=True, highlight=False)


@app.command("methods")
@with_json
def list_methods() -> None:
    """Show the methods of training a student, and their parameters.

    vat and fixmatch learn from unlabelled inputs too, and are replaced by a plain model if they
    collapse. kernel and neighbours are for images.
    """
    from terrine_models.students.methods import methods
    from terrine_models.students.networks import Training

    if not as_json():
        console.print(f"Methods: {', '.join(methods())}.")
    show_kind(Training)


@app.command()
def label(
    public: Public,
    url: Url,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The .npz or .csv file to write.")],
    token_file: TokenFile = None,
    insecure: Insecure = False,
    schema: Schema = None,
    encoding: EncodingOption = TextEncoding.UTF_8,
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
    if out.suffix not in (".npz", ".csv"):
        fail(f"--out must end in .npz or .csv; {out} does not.")
    source = StudentFiles(schema, encoding.value)
    source.check(public)
    with connect(url, token_file, insecure) as client:
        inputs, _ = source.public(public, client)
        labels = client.label(inputs, progress=True)
    save_labels(labels, out)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in labels.counts.items() if count)
    console.print(f"{out}: {counts}. ε spent {labels.budget.epsilon_spent:.4g}.", soft_wrap=True)


@app.command()
@with_json
def budget(url: Url, token_file: TokenFile = None, insecure: Insecure = False) -> None:
    """Show the account of the token's project.

    [bold]Example[/bold]: terrine student budget --url https://labels.example.org
    """
    with connect(url, token_file, insecure) as client:
        account = client.budget()
    people = {
        "project": f"{account.project} ({account.status})",
        "budget": f"ε = {account.epsilon:g}, δ = {account.delta:g}",
        "ε spent": f"{account.epsilon_spent:.6g}",
        "charges": account.charges,
        "queries left": f"at least {account.affordable}",
    }
    output(account, people)


@contextmanager
def connect(url: str, token_file: Path | None, insecure: bool) -> Iterator[Client]:
    """A client with the token from `token_file`, or else from the environment."""
    from stamina.instrumentation import RetryDetails, set_on_retry_hooks

    from terrine_client import Client

    def say(details: RetryDetails) -> None:
        if details.retry_num == 1:
            errors.print(f"{details.caused_by} Trying again …", soft_wrap=True)

    set_on_retry_hooks([say])
    token = read(token_file).decode().strip() if token_file else None
    with Client(url, token, insecure=insecure) as client:
        yield client
