"""`terrine student …`: commands for students. They need a URL, a token and public data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from terrine_client import NO_COUNT, Client, Labels
from terrine_client._privacy import verify_papers
from terrine_models.formats import Inputs, format_of
from terrine_protocol import Outcome
from terrine_protocol.files import open_regular_file, read, replacing
from terrine_server.cli.console import console, fail, output, say, tabulate, with_json, writing
from terrine_server.cli.reading import AcceptClipped, note
from terrine_server.sheets import CsvWriter

app = typer.Typer()

CONNECTION = "terrine.student.connection"
"""Key of the group's options in the context of its commands."""


@dataclass(frozen=True)
class ServerOptions:
    """How to reach the server."""

    url: str | None
    token_file: Path | None
    insecure: bool


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
    """Keep the options of the connection for the command that follows them."""
    context.meta[CONNECTION] = ServerOptions(url, token_file, insecure)


PUBLIC_HELP = (
    "Your own public inputs, without labels: IDX images, .npy, .npz with x, a table (CSV, Parquet "
    "or Arrow), or a folder of PNG and JPEG files."
)
Public = Annotated[Path, typer.Argument(metavar="PUBLIC", help=PUBLIC_HELP)]


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
    format_of(public).check(public)
    with connect(context) as client:
        inputs = load_pool(public, client, accept_clipped)
        labels = client.label(inputs, progress=True)
    save_labels(labels, out)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in labels.counts.items() if count)
    say(f"{out}: {counts}. ε spent {labels.budget.epsilon_spent:.4g}.")
    if labels.counts[Outcome.EXHAUSTED]:
        say("Exhausted: all accounts near these are. Nothing was charged for them.")


@with_json
def budget(context: typer.Context) -> None:
    """Show the account of the token's project.

    [bold]Example[/bold]: terrine student --url https://labels.example.org budget
    """
    with connect(context) as client:
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


def verify(
    context: typer.Context,
    student: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of the student, with privacy.json.")
    ] = Path("student"),
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Whose signatures the transparency log needs. Without it, who signed the log is "
            "not checked.",
        ),
    ] = None,
) -> None:
    """Compare a student's privacy.json with its files, its card, the service and the log.

    The token must be of the project that the student learned from. Exits with 1 if anything is
    wrong.

    [bold]Example[/bold]: terrine student --url https://labels.example.org verify student
    --policy policy
    """
    with connect(context) as client:
        found = verify_papers(client, student, policy)
    stated, log = found.statement, found.log
    signed = "by whom it is signed was not checked: --policy" if policy is None else "signed"
    rows = {
        "project": f"{stated.project}, on the ensemble {stated.ensemble}",
        "protects": stated.unit,
        "budget": f"ε = {stated.epsilon:g}, δ = {stated.delta:g}; spent then: ε = "
        f"{stated.epsilon_spent:.6g} by {stated.charges:,} entries",
        "files": ", ".join(sorted(stated.files)),
    }
    if log is not None and log.checkpoint is not None:
        rows["log"] = f"{log.checkpoint.size:,} entries, {signed}"
        rows["receipts"] = f"{len(log.proofs):,} of {stated.receipts:,} are proven to be in it"
    console.print(tabulate(rows))
    if log is not None and log.waiting and log.checkpoint is not None:
        say(f"{len(log.waiting):,} receipts are too new for the log: verify them again later.")
    if found.problems:
        fail("\n".join([f"{student} does not verify:", *found.problems]))
    say(f"{student} verifies.")


@contextmanager
def connect(context: typer.Context) -> Iterator[Client]:
    """Yield a client by the options of the group: its token is of a file or the environment."""
    options: ServerOptions = context.meta[CONNECTION]
    if options.url is None:
        fail("No server is named: set TERRINE_URL, or terrine student --url URL COMMAND.")
    token = read(options.token_file).decode().strip() if options.token_file else None
    with Client(options.url, token, insecure=options.insecure) as client:
        yield client


def load_pool(path: Path, client: Client, accept_clipped: bool) -> Inputs:
    """Return inputs without labels, as the project takes them."""
    if not path.is_dir():
        open_regular_file(path).close()  # what is wrong with it is said without asking the service
    like = client.project().ensemble
    return format_of(path).inputs(path, like, note, accept_clipped, accept_clipped)


def save_labels(labels: Labels, out: Path) -> None:
    """Write answers as arrays to an .npz file, or as rows to a .csv file."""
    names = np.array([name or "" for name in labels.names], dtype=np.str_)
    if out.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {
            name: getattr(labels, name)
            for name in ("outcomes", "labels", "charges", "noisy_counts", "noise_sigma")
        }
        given = {name: value for name, value in arrays.items() if value is not None}
        with replacing(out) as archive:
            np.savez_compressed(archive, **given, names=names)
        return
    columns: dict[str, list[Any]] = {
        "outcome": labels.outcomes.tolist(),
        "label": ["" if label < 0 else label for label in labels.labels.tolist()],
        "label_name": names.tolist(),
        "charge": ["" if charge < 0 else charge for charge in labels.charges.tolist()],
    }
    if labels.noisy_counts is not None:
        for label, counts in enumerate(labels.noisy_counts.T.tolist()):
            columns[f"count_{label}"] = ["" if count == NO_COUNT else count for count in counts]
    with writing(out) as file:
        sheet = CsvWriter(file)
        sheet.write_row(columns)
        for row in zip(*columns.values(), strict=True):
            sheet.write_row(row)
