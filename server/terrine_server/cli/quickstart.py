"""`terrine quickstart`: from private records to an open project, asking two questions."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.markup import escape

from terrine_models.tables.proposal import SchemaProposal
from terrine_protocol import EnsembleRegister, ProjectOpen
from terrine_protocol.mechanisms import mechanism_text
from terrine_server.cli import reading
from terrine_server.cli.console import (
    as_json,
    command_text,
    console,
    fail,
    in_compose,
    print_json,
    say,
    tabulate,
    with_json,
)
from terrine_server.cli.ensemble import show_schema
from terrine_server.cli.init import prepare
from terrine_server.cli.options import Yes
from terrine_server.errors import NotFound
from terrine_server.ledger import Ledger, ProjectRecord
from terrine_server.owner.operations import open_ledger
from terrine_server.planning.first_project import (
    DesignedProject,
    NeighbourProject,
    SumProject,
)
from terrine_server.privacy.parameters import check_epsilon
from terrine_server.quickstart.choice import Choice, Membership, check_worth, choose
from terrine_server.quickstart.dialogue import (
    Described,
    Given,
    SchemaAlone,
    Stated,
)
from terrine_server.quickstart.opening import (
    make_student_token,
    offer_labels,
    open_first_project,
    project_of,
)
from terrine_server.quickstart.records import (
    read_public_alone,
    read_records,
    schema_file,
)
from terrine_server.quickstart.report import describe, list_options
from terrine_server.settings import Settings
from terrine_tables.formats import is_table

# Lines that are printed below the first five, unless all are wanted.
MAX_NOTES = 6


class _Owner(reading.Terminal):
    """The owner at a terminal, who reads notes below the first five lines."""

    def __init__(self, *, is_asked: bool, keeps_schema: bool, verbose: bool) -> None:
        super().__init__(is_asked=is_asked)
        self.keeps_schema = keeps_schema
        self.verbose = verbose
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        """Keep what the owner should know, until the five lines are printed."""
        self.notes.append(sentence)

    def detail(self, sentence: str) -> None:
        """Print what only some want to know."""
        if self.verbose:
            say(sentence)

    def read_proposal(self, proposal: SchemaProposal, public: Path, out: Path) -> None:
        """Keep a note on a schema that will be public, and show its columns if wanted."""
        if self.keeps_schema:
            self.notes.insert(
                0,
                f"{out} says how the columns are read, and becomes public: names, ranges and "
                f"categories, all taken from {public}. To change it, answer no below; then edit "
                'it (a column to leave out has the role "ignored"), or remove it and use --ignore '
                "and --keep; and run this again.",
            )
        if self.verbose:
            show_schema(proposal, public, out.name)

    def show(self, choice: Choice) -> None:
        """Print the five lines, details if they are wanted, and the notes."""
        for heading, text in describe(choice.data, choice.forecast, choice.joined).items():
            console.print(f"[bold]{heading}[/]  {escape(text)}", soft_wrap=True, highlight=False)
        labelled = choice.data.labelled
        if labelled is not None and choice.forecast.students is not None and self.verbose:
            console.print(tabulate(list_options(choice.forecast, labelled)))
        shown = self.notes if self.verbose else self.notes[:MAX_NOTES]
        for sentence in shown:
            say(f"- {sentence}")
        if more := len(self.notes) - len(shown):
            say(f"- {more} more: --verbose shows all.")


@with_json
def quickstart(
    private: Annotated[
        Path | None,
        typer.Argument(
            metavar="PRIVATE", help="Private records, in a format that `ensemble train` reads."
        ),
    ] = None,
    *,
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="POOL",
            help="Public data, on all of which students will ask: rows of the same kind. With "
            "labels, they forecast what the project buys.",
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of a table: its public schema, if none is to be proposed. Without --public, rows "
            "to ask are designed from it. `terrine ensemble schema` makes one.",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a table: the column to predict.")
    ] = None,
    bins: reading.Bins = None,
    group: reading.Group = None,
    columns: reading.Columns = None,
    ignore: reading.Ignore = None,
    keep: reading.Keep = None,
    classes: reading.Classes = None,
    images: reading.Images = None,
    epsilon: Annotated[
        float, typer.Option(help="ε of the project: how much it may tell about one person.")
    ] = 1.0,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the ensemble and the project. Default: that of PRIVATE."),
    ] = None,
    population: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The people whom the records are about: all that is made of them shares one cap. "
            "Default: the population that exists, or `people`.",
        ),
    ] = None,
    disjoint: Annotated[
        bool,
        typer.Option(
            "--disjoint",
            help="You state that nobody in this new population is in another one; it gets a cap of "
            "its own.",
        ),
    ] = False,
    yes: Yes = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway",
            help="Go on although simulated students are hardly better than chance, or no better "
            "than labels of public rows alone.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what it would buy; ask nothing, make nothing, spend nothing."
        ),
    ] = False,
    units: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --dry-run, in place of PRIVATE: how many records, or people, it has."
        ),
    ] = None,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Say more: why each column is read as it is, what each option would buy, and "
            "the commands that do the same step by step.",
        ),
    ] = False,
) -> None:
    """Go from private records to a project that students can ask, with one command.

    It proposes a schema, sums, teachers or neighbours, noise and a cap, says what they protect and
    should buy, and asks before it makes anything of the records and before the budget is fixed for
    good. It stops, with --yes too, where simulated students are hardly better than chance, or not
    clearly better than a model of your own labelled public rows. If interrupted, run it again.

    [bold]Examples[/bold]

      terrine quickstart patients.csv --public census-sample.csv --label income

      terrine quickstart scans.npz --public pool.npz --classes benign,malignant --epsilon 0.5

      terrine quickstart patients.csv --schema schema.json

      terrine quickstart --dry-run --units 32000 --public census-sample.csv --label income
    """
    given = _state_data(
        public,
        schema,
        label=label,
        group=group,
        columns=reading.split_names(columns),
        classes=reading.parse_classes(classes),
        image=reading.parse_images(images),
        bins=reading.parse_bins(bins),
        ignore=tuple(ignore or ()),
        keep=tuple(keep or ()),
    )
    records = private if units is None else units
    if records is None or None not in (private, units) or (private is None and not dry_run):
        fail("Name the private records; or give --dry-run, and with --units how many there are.")
    if as_json() and not dry_run:
        fail("--json goes with --dry-run.")
    if not (yes or dry_run) and not sys.stdin.isatty():
        fail("This asks two questions, and there is no terminal to answer on. Add --yes.")
    if anyway and isinstance(given, SchemaAlone):
        fail("--anyway is for trials on public rows, and with a --schema alone there are none.")
    _check_files(private, public, schema)
    name = _ensemble_name(private or public or Path()) if name is None else name
    check_epsilon(epsilon)
    # Before anything is made.
    register = EnsembleRegister(name=name, population=population, disjoint=disjoint)
    settings = Settings()
    owner = _Owner(is_asked=not (yes or dry_run), keeps_schema=not dry_run, verbose=verbose)
    if dry_run or isinstance(records, int):
        _rehearse(records, given, settings, register, epsilon, owner, anyway=anyway)
        return
    if not settings.data_dir.exists():
        owner.note(f"New: {settings.data_dir}, with the ledger and its secret key.")
    prepare(settings, owner.detail)
    ledger = open_ledger(settings)
    try:
        record = ledger.projects.get(name)
    except NotFound:
        record = _open(records, given, ledger, settings, register, epsilon, owner, anyway=anyway)
        say(f"Project {name} is open.")
    else:
        if record.terms.epsilon != epsilon:
            fail(
                f"{name} is open with ε = {record.terms.epsilon:g}, for good. Leave --epsilon as "
                "it was, or choose another --name."
            )
        say(f"Project {name} is open already, with ε = {epsilon:g}.")
    _finish(public, ledger, settings, record)


def _state_data(public: Path | None, schema: Path | None, **said: Any) -> Given:
    """Return what options say of the data; refuse what does not go with a schema."""
    if schema is None:
        if public is None:
            fail(
                "Say what students will ask: rows of --public data, or rows designed from the "
                "--schema of a table."
            )
        return Described(public, **said)
    if any(said.values()):
        fail("A --schema says all that other options say of a table: leave them out, or edit it.")
    return SchemaAlone(schema) if public is None else Stated(schema, public)


def _check_files(private: Path | None, public: Path | None, schema: Path | None) -> None:
    """Refuse files that are not there, and those that a schema is not for."""
    for path in (private, public, schema):
        if path is not None and not path.exists():
            fail(f"There is no {path}.")
        if path is not None and path is not schema and schema is not None and not is_table(path):
            fail(
                f"{path} is not a table. Only of rows of a table can be said what they may hold; "
                "pictures and arrays have no --schema, and need --public data to be asked about."
            )


def _rehearse(
    records: Path | int,
    given: Given,
    settings: Settings,
    register: EnsembleRegister,
    epsilon: float,
    owner: _Owner,
    *,
    anyway: bool,
) -> None:
    """Say what the project would buy, and what would open it. `records`: or how many units."""
    membership = None
    with TemporaryDirectory() as scratch:
        kept = schema_file(settings, register.name)
        out = Path(scratch) / kept.name
        if isinstance(records, int):
            data, given = read_public_alone(records, given, out, owner)
        else:
            if settings.secret_key_path.exists():
                membership = Membership.find(open_ledger(settings), register)
            out = kept if kept.exists() else out
            _, data, given = read_records(records, given, out, owner)
        choice = choose(data, membership, register, epsilon, owner)
    words: list[object] = ["quickstart", records if isinstance(records, Path) else "PRIVATE"]
    words += [*reading.data_options(given), "--epsilon", f"{epsilon:g}"]
    if isinstance(records, Path) and register.name != _ensemble_name(records):
        words += ["--name", register.name]
    words += ["--population", register.population] if register.population is not None else []
    words += ["--disjoint"] if register.disjoint else []
    words += ["--anyway"] if anyway else []
    command = command_text(*words, *(["--yes"] if in_compose() else []))  # files take its input
    if as_json():
        options = [
            {
                "way": each.first.option,
                "mechanism": each.first.spec,
                "first": asdict(each.first),
                "forecast": each.students and each.students.figures,
                "worse": each.worse,
            }
            for each in choice.forecast.options
        ]
        truth, own = choice.forecast.truth, choice.forecast.own
        known = {"command": command, "ways": options, "true_labels": truth and truth.figures}
        print_json({**known, "own_labels": own and own.figures})
    else:
        owner.show(choice)
        asks = "without" if in_compose() else "with"
        say(f"Nothing was made or spent. To open it, {asks} its questions:\n  {command}")
    if not anyway:
        check_worth(choice.forecast, None)


def _open(
    private: Path,
    given: Given,
    ledger: Ledger,
    settings: Settings,
    register: EnsembleRegister,
    epsilon: float,
    owner: _Owner,
    *,
    anyway: bool,
) -> ProjectRecord:
    """Do all that is missing until the project is open."""
    membership = Membership.find(ledger, register)
    out = schema_file(settings, register.name)
    records, data, given = read_records(private, given, out, owner)
    choice = choose(data, membership, register, epsilon, owner)
    owner.show(choice)
    if not anyway:
        check_worth(choice.forecast, data.schema)
    record = open_first_project(choice, records, ledger, settings, owner)
    designed = isinstance(choice.first, DesignedProject)
    if owner.verbose and not isinstance(given, SchemaAlone) and not designed:
        _show_commands(private, given, settings, choice)
    return record


def _show_commands(
    private: Path, given: Stated | Described, settings: Settings, choice: Choice
) -> None:
    """Print the commands that do the same."""
    first, registered, schema = choice.first, choice.register, choice.data.schema
    name, budget = registered.name, ["--delta", f"{first.delta:g}"]
    made: list[object] = ["ensemble", "train", private, "--teachers", first.teachers]
    if isinstance(first, NeighbourProject):
        made[3:] = ["--kind", f"neighbours:near={first.neighbours.near}"]
    if isinstance(first, SumProject):
        made[3:] = ["--kind", f"sums:epsilon={first.epsilon:g},delta={first.delta:g}"]
    made += ["--name", name, "--public", given.public]
    register: list[object] = ["ensemble", "register", name]
    if registered.population is not None:
        register += ["--population", registered.population]
    if registered.disjoint:
        register.append("--disjoint")
    if registered.epsilon is not None:
        register += ["--epsilon", f"{registered.epsilon:g}", *budget, "--rule", registered.rule]
    project = [*_opening_words(project_of(first, name)), *budget]
    if first.pass_rate is not None:
        project += ["--expected-pass-rate", f"{first.pass_rate:g}"]
    acts: list[list[object]] = [["init"]]
    if isinstance(given, Described) and schema is not None:
        _, public, *options = reading.data_options(given)
        acts.append(["ensemble", "schema", public, *options, "--out", schema])
    elif isinstance(given, Described):
        made += reading.data_options(given)[2:]
    acts += [
        [*made, *(["--schema", schema] if schema else [])],
        register,
        project,
        ["token", "create", "--role", "student", "--project", name],
    ]
    say("By hand, this was:")
    for act in acts:
        say(f"  {_command(settings, *act)}")


def _opening_words(opening: ProjectOpen) -> list[object]:
    mechanism = mechanism_text(opening.mechanism.model_dump(exclude_defaults=True))
    words = ["project", "open", opening.name, "--ensemble", opening.ensemble]
    return [*words, "--mechanism", mechanism, "--epsilon", f"{opening.epsilon:g}"]


def _finish(public: Path | None, ledger: Ledger, settings: Settings, record: ProjectRecord) -> None:
    """Print the student's token, unless it was shown, and what remains to be done.

    `public`: what students ask, unless the project has designed that itself.
    """
    name, once = record.name, ""
    secret = make_student_token(ledger, settings, name)
    if secret is None:
        say(
            "Its token was shown when it was made, and cannot be again. Another: terrine token "
            f"create --role student --project {name}"
        )
    else:
        once = " Its token will not be shown again."
    pool = []
    if public is not None and not record.ensemble.facts.designed:
        pool = [next(public.glob("train-images*"), public)]  # of IDX, the file is asked
    say("Now serve it, unless a server does already:")
    say(f"  {_command(settings, 'serve')}")
    say(f"The student learns by this line.{once}")
    trains = command_text("student", "train", *pool)
    say(f"  TERRINE_URL={settings.url} TERRINE_TOKEN={secret or '…'} {trains}")
    for folder in pool:
        if folder.is_dir() and any(map(Path.is_dir, folder.iterdir())):
            say(f"The student's pictures lie in one flat folder: give it those of {folder} so.")
    if offers := [*offer_labels(ledger, record)]:
        say(
            "The same teachers can answer with labels alone, under the same cap: where most of "
            "them agree, or where they contradict a student that has a model. One of:"
        )
        for opening in offers:
            words = [*_opening_words(opening), "--delta", f"{opening.delta:g}"]
            say(f"  {_command(settings, *words)}")


def _command(settings: Settings, *words: object) -> str:
    """Return a command as the owner types it."""
    default = settings.data_dir == type(settings).model_fields["data_dir"].default
    where = [] if default or in_compose() else ["--data-dir", settings.data_dir]
    return command_text(*where, *words)


def _ensemble_name(private: Path) -> str:
    """Return a name for the ensemble of a file or a folder."""
    stem = private.absolute().name.partition(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:60].strip("-") or "private"
