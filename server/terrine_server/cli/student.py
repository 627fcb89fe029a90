"""`terrine student …`: commands for students. They need a URL, a token and public data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from terrine_client import NO_COUNT, Client, Labels
from terrine_client._privacy import CARD_FILE, restate_file, verify_papers
from terrine_client._report import (
    describe_cut,
    find_interval,
    format_auc,
    format_metrics,
    replace_cut,
)
from terrine_client.distill import (
    NOTHING,
    Examples,
    Report,
    check_data,
    check_labels,
    check_training,
    distill,
    fetch_sums,
    make_task,
    train_on_sums,
)
from terrine_models.data.images import list_images
from terrine_models.formats import Inputs, format_of
from terrine_models.tables.designed import DesignedPool
from terrine_protocol import Outcome, ProjectInfo
from terrine_protocol.base import quantity
from terrine_protocol.files import open_regular_file, read, replacing, write_atomically
from terrine_server.cli.console import (
    ALL_FREE,
    console,
    explain_spending,
    fail,
    name_output,
    output,
    say,
    tabulate,
    with_json,
    writing,
)
from terrine_server.cli.reading import AcceptClipped, note, note_aside
from terrine_server.sheets import CsvWriter

if TYPE_CHECKING:  # SciPy comes with these
    from terrine_models.students.calibration import Threshold
    from terrine_models.students.models import Training

app = typer.Typer()

# Key of the group's options in the context of its commands.
CONNECTION = "terrine.student.connection"


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
    no label. For a project of noisy counts also `noisy_counts` and `noise_sigma`. As CSV: the same,
    a row for each input. For projects that do not need the student's probabilities. Repeating a
    query is free.

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
        free = client.project().mechanism.free
    people = {
        "project": f"{account.project} ({account.status})",
        "protects": account.protects,
        "budget": f"ε = {account.epsilon:g}, δ = {account.delta:g}",
        "ε spent": f"{account.epsilon_spent:.6g}",
        "charges": account.charges,
        "queries left": ALL_FREE if free else f"at least {account.affordable}",
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


def load_examples(path: Path, client: Client) -> Examples:
    """Return inputs as the project takes them, with the names of their classes."""
    like = client.project().ensemble
    labelled = format_of(path, like).labelled(path, like, note, True)
    return labelled.inputs, np.array(labelled.classes)[labelled.labels]


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
        "label": names.tolist(),
        "charge": ["" if charge < 0 else charge for charge in labels.charges.tolist()],
    }
    if labels.noisy_counts is not None:
        for name, counts in zip(labels.classes or (), labels.noisy_counts.T.tolist(), strict=True):
            columns[f"count_{name}"] = ["" if count == NO_COUNT else count for count in counts]
    with writing(out) as file:
        sheet = CsvWriter(file)
        sheet.write_row(columns)
        for row in zip(*columns.values(), strict=True):
            sheet.write_row(row)


def train(
    context: typer.Context,
    public: Annotated[
        Path | None,
        typer.Argument(
            metavar="PUBLIC",
            help=f"{PUBLIC_HELP} Without it, what the owner designed to be asked, or in a project "
            "of sums the public rows that come with them.",
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
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Public inputs with labels that the student may learn from, too: PUBLIC itself, "
            "or other inputs, as for --held-out. They cost nothing, and nothing protects them.",
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
            metavar="auto|ridge|kernel|neighbours|trees",
            help="How the student is trained: auto takes what suits the inputs; ridge is the plain "
            "student; kernel and neighbours are for images; trees are for tables.",
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
    the budget is spent, another --out has the same answers, free: to train in another way. In a
    project of sums nothing is asked: its student follows from what was released at first.

    [bold]Examples[/bold]

      export TERRINE_URL=https://labels.example.org TERRINE_TOKEN=terrine_…

      terrine student train pool.npy --held-out own.npz --out student

      terrine student train census.csv
    """
    from terrine_models.students.models import Training

    training = Training(method=method, threshold=_parse_threshold(threshold))
    if public is not None:
        format_of(public).check(public)
    with connect(context) as client:
        inputs, examples, known, designed = None, None, None, None
        if public is not None:
            inputs = load_pool(public, client, accept_clipped)
        elif client.project().ensemble.designed:
            designed = DesignedPool.of_bytes(client.pool())
            inputs = designed.rows
        elif not client.project().mechanism.free:
            fail("Name your own public inputs: nothing was designed to be asked of this project.")
        if held_out is not None:
            examples = load_examples(held_out, client)
        if labels is not None:
            known = load_examples(labels, client)
        if dry_run:
            console.print(_estimate(client, inputs, examples, known, queries, training))
            return
        made = distill(
            client,
            inputs,
            out,
            held_out=examples,
            labels=known,
            rounds=rounds,
            queries=queries,
            training=training,
            designed=designed,
            tell=say,
        )
    console.print(summarize(made.report, out))
    model = made.student.model
    if (cut := describe_cut(model)) is not None:
        say(f"Of probabilities: {cut}.")
    if model.cut is not None and model.cut.source == "drawn":
        say("terrine student calibrate ROWS places that on real inputs of yours, without labels.")
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

    A row for each input, in their order: the class, and the probability of each class. A student of
    rows that were designed, not real, says each class among 200 inputs or more as often as its
    project released; [bold]student calibrate[/bold] decides that once.

    [bold]Example[/bold]: terrine student predict census.csv --student student --out labels.csv
    """
    from terrine_models.students.models import MIN_CUT_ROWS, Student

    trained = Student.load(student)
    tell = note_aside if out is None else note  # where the labels are not
    x = format_of(inputs).inputs(inputs, trained.model, tell, True, accept_empty)
    pictures = inputs.is_dir()
    names = [each.name for each in list_images(inputs)] if pictures else []
    cut = trained.model.cut
    if cut is not None and cut.source == "drawn":
        if len(x) >= MIN_CUT_ROWS:
            trained = trained.with_cut(x)
            tell(f"Of these inputs, {describe_cut(trained.model)}. To keep it: student calibrate.")
        else:
            tell(f"{len(x)} inputs are too few to place a cut on: {describe_cut(trained.model)}.")
            tell("terrine student calibrate ROWS places it on real inputs, once.")
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


def calibrate(
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS",
            help="Real inputs, of people like those whom the records are about; labels are not "
            "used. 200 at least.",
        ),
    ],
    student: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the student.")] = Path(
        "student"
    ),
) -> None:
    """Let a student say each class as often as its project released, among real inputs.

    For students of designed rows, which are not like real ones, and of released sums. Whatever
    loads the student then has it, as what is exported does; the card and privacy.json are renewed.

    [bold]Example[/bold]: terrine student calibrate census.csv --student student
    """
    from terrine_models.students.models import MODEL_FILE, Student

    trained = Student.load(student)
    x = format_of(inputs).inputs(inputs, trained.model, note, True, True)
    placed = trained.with_cut(x)
    placed.save(student)
    card = student / CARD_FILE
    if card.exists():
        text = replace_cut(read(card).decode(), trained.model, placed.model)
        write_atomically(card, text.encode())
    say(f"{student}: {describe_cut(placed.model)}.")
    for name in restate_file(student, MODEL_FILE):
        say(f"{name} has the earlier cut: terrine student export {student} --onnx {student / name}")


def summarize(report: Report, out: Path) -> Table:
    """Return a table of what was bought and the result."""
    found, choice, drawn = report.choice.figures, report.choice, out / "accuracy.png"
    asks = report.asking != NOTHING
    asked, exhausted = sum(report.outcomes.values()), report.outcomes.get("exhausted")
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
    accuracy = (
        "not known: answers are not the truth. Labelled inputs of your own show it: --held-out"
    )
    if report.accuracy is not None:
        accuracy = (
            f"{report.accuracy:.2%}, within {_interval(report.accuracy, report.held_out)} at 95 %, "
            f"of {report.held_out:,} held-out inputs; "
            + ("" if report.plain is None else f"of the plain student {report.plain:.2%}; ")
            + f"always to say their largest class: {report.majority:.2%}"
        )
        if report.auc is not None:
            accuracy += f"; {format_auc(report.auc)}"
    others = ", of other inputs: to ask these again is free" * (asked >= report.public_inputs)
    return tabulate(
        {
            "accuracy": accuracy,
            "agreement": found and f"{format_metrics(found, choice)}; {_meaning(report)}",
            "protects": report.protects,
            "ε spent": f"{report.epsilon_spent:.4g} of {report.epsilon:g}, δ {report.delta:g}"
            f"{explain_spending(str(report.mechanism['name']))}",
            "method": f"{choice.chosen} ({choice.asked} was asked for)",
            "queries": f"{asked:,}: {outcomes}"
            if asks
            else f"none: it follows from released sums, and {report.public_inputs:,} public inputs",
            "exhausted": exhausted
            and f"{exhausted:,} inputs with exhausted accounts alone near them: free, and left out "
            "of training",
            "reinforced": None
            if report.reinforced is None
            else f"{report.reinforced:.1%} of the labels: the student was right",
            "ended by": ("the budget" if report.refused else f"the student. {report.ended}")
            if asks
            else None,
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
    inputs: Inputs | None,
    examples: Examples | None,
    labels: Examples | None,
    queries: int | None,
    training: Training,
) -> Table:
    """Check data and options as the training would, and say what it could cost."""
    project = client.project()
    if project.mechanism.free:
        return _estimate_free(client, project, inputs, examples, labels, training)
    if inputs is None:
        fail("Name your own public inputs: nothing was designed to be asked of this project.")
    check_data(inputs, project, examples)
    task = make_task(inputs, project)
    check_training(training, task)
    if labels is not None:
        check_labels(labels, task, project, examples)
    wanted = min(len(inputs), queries or len(inputs))
    left = client.budget()
    fits = f"all {wanted:,}" if wanted <= left.affordable else f"at least {left.affordable:,}"
    return tabulate(
        {
            "project": f"{project.name} ({project.status}), {project.mechanism.name}",
            "inputs": f"{len(inputs):,}, as the ensemble takes them; {wanted:,} to be asked",
            "held out": examples
            and f"{len(examples[0]):,} labelled inputs, none of them to be asked",
            "public labels": labels and f"{len(labels[0]):,}, which nothing protects",
            "ε spent": f"{left.epsilon_spent:.4g} of {left.epsilon:g}, δ {left.delta:g}"
            f"{explain_spending(str(project.mechanism.name))}",
            "queries": f"{fits} fit the budget, whatever the answers",
            "": "Nothing was sent and nothing was charged.",
        }
    )


def _estimate_free(
    client: Client,
    project: ProjectInfo,
    inputs: Inputs | None,
    examples: Examples | None,
    labels: Examples | None,
    training: Training,
) -> Table:
    """The same of a project of sums."""
    released = fetch_sums(client, project)
    x = released.natural if inputs is None else inputs
    check_data(x, project, examples)
    task = make_task(x, project)
    if labels is not None:
        check_labels(labels, task, project, examples)
    train_on_sums(released, task, training)
    left = client.budget()
    return tabulate(
        {
            "project": f"{project.name} ({project.status}), {project.mechanism.name}",
            "inputs": f"{len(x):,} public inputs, of which none is asked",
            "held out": examples and f"{len(examples[0]):,} labelled inputs",
            "public labels": labels and f"{len(labels[0]):,}, which nothing protects",
            "ε spent": f"{left.epsilon_spent:.4g} of {left.epsilon:g}, δ {left.delta:g}",
            "queries": ALL_FREE,
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
