"""`terrine quickstart`: from private records to an open project, asking two questions."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from terrine_models.data.arrays import DataError, Dataset, number_distinct_rows
from terrine_models.features.maps import PublicData
from terrine_models.tables.designed import (
    NATURAL_ROWS,
    DesignedPool,
    Margins,
    count_cells,
    design_pool,
    margin_questions,
)
from terrine_models.tables.loading import has_column, is_table, read_schema
from terrine_models.tables.roles import SchemaProposal, find_repeated_people, propose_schema
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.training import load_begun_pool, train_ensemble
from terrine_protocol import EnsembleRegister, HistogramRelease, ProjectOpen, Role, TokenCreate
from terrine_protocol.base import normalize
from terrine_protocol.files import write_atomically
from terrine_protocol.schema import TableSchema
from terrine_server.cli import ensemble, reading, serve
from terrine_server.cli.console import (
    as_json,
    command_text,
    console,
    fail,
    in_compose,
    print_json,
    say,
    with_json,
)
from terrine_server.cli.options import Yes, mechanism_text
from terrine_server.errors import InvalidTerms, NotFound
from terrine_server.ledger import (
    DEFAULT_POPULATION,
    Ledger,
    PopulationRecord,
    ProjectRecord,
    check_delta,
    check_unit,
    choose_population,
)
from terrine_server.owner.editions import records_key
from terrine_server.owner.operations import (
    open_ledger,
    open_project,
    quote_project,
    register_ensemble,
    suggest_room,
)
from terrine_server.owner.sign_in import Tokens, load_token_key
from terrine_server.planning.first_project import (
    DESIGNED_ROWS,
    FirstProject,
    Setting,
    label_mechanisms,
    max_guess_accuracy,
)
from terrine_server.planning.forecast import (
    DRAWS,
    Forecast,
    Option,
    StudentForecast,
    compare_options,
    forecast_design,
)
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.parameters import check_epsilon
from terrine_server.progress import stages_bar, teachers_bar
from terrine_server.settings import Settings

LABEL = "quickstart"
"""Of the token, for the owner's records."""
MAX_NOTES = 6
"""Lines that are printed below the first five, unless all are wanted."""


class _Notes:
    """What is printed besides the five lines: notes below them, and details if wanted."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep what the owner should know, until the five lines are printed."""
        self.notes.append(text)

    def detail(self, text: str) -> None:
        """Print what only some want to know."""
        if self.verbose:
            say(text)

    def show_notes(self) -> None:
        """Print what was kept."""
        shown = self.notes if self.verbose else self.notes[:MAX_NOTES]
        for text in shown:
            say(f"- {text}")
        if more := len(self.notes) - len(shown):
            say(f"- {more} more: --verbose shows all.")
        self.notes = []


@dataclass(frozen=True)
class DataOptions:
    """What the command line says about the data."""

    public: Path | None
    schema: Path | None
    """None: one is proposed."""
    label: str | None
    group: str | None
    columns: str | None
    classes: str | None
    images: str | None
    bins: str | None
    ignore: tuple[str, ...]
    keep: tuple[str, ...]
    embedding: Path | None

    @property
    def pool(self) -> Path:
        """The public data, where it is known that there are some."""
        if self.public is None:
            raise RuntimeError("there are no public data")
        return self.public

    @property
    def asked(self) -> list[object]:
        """The options that say what is asked."""
        named = {"--public": self.public, "--schema": self.schema}
        return [word for option, path in named.items() if path for word in (option, path)]

    @property
    def table(self) -> list[object]:
        """The options that say what is in a table."""
        named: dict[str, str | None] = {
            "--label": self.label,
            "--group": self.group,
            "--columns": self.columns,
        }
        named["--bins"] = self.bins
        named["--embedding"] = None if self.embedding is None else str(self.embedding)
        ignored = [word for name in self.ignore for word in ("--ignore", name)]
        kept = [word for name in self.keep for word in ("--keep", name)]
        return [*_options(named), *ignored, *kept]

    @property
    def formats(self) -> list[object]:
        """The options that say how arrays and pictures are read."""
        return _options({"--classes": self.classes, "--images": self.images})

    def propose_schema(self, note: Callable[[str], None]) -> SchemaProposal:
        """Propose a schema for a table."""
        if self.images:
            fail("--images is for folders of pictures; a table has a schema.")
        if self.label is None:
            fail("Which column is to be predicted? Name it with --label.")
        with stages_bar(console, f"Reading {self.pool.name}") as (progress,):
            return propose_schema(
                self.pool,
                label=self.label,
                classes=reading.parse_classes(self.classes),
                bins=reading.parse_bins(self.bins),
                group=self.group,
                columns=reading.split_names(self.columns),
                ignore=self.ignore,
                keep=self.keep,
                embedding=reading.parse_embedding(self.embedding),
                note=note,
                progress=progress,
            )


def _options(given: dict[str, str | None]) -> list[object]:
    return [word for option, value in given.items() if value for word in (option, value)]


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
    embedding: reading.Embedded = None,
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
            "--anyway", help="Go on although simulated students are no better than chance."
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

    It proposes a schema, teachers or neighbours, noise and a cap, says what they protect and should
    buy, and asks before it makes anything of the records and before the budget is fixed for good.
    It stops, with --yes too, where simulated students are no better than chance. If interrupted,
    run it again.

    [bold]Examples[/bold]

      terrine quickstart patients.csv --public census-sample.csv --label income

      terrine quickstart scans.npz --public pool.npz --classes benign,malignant --epsilon 0.5

      terrine quickstart patients.csv --schema schema.json

      terrine quickstart --dry-run --units 32000 --public census-sample.csv --label income
    """
    if public is None and schema is None:
        fail(
            "Say what students will ask: rows of --public data, or rows designed from the --schema "
            "of a table."
        )
    if (units is not None) != (private is None) or (private is None and not dry_run):
        fail("Name the private records; or give --dry-run, and with --units how many there are.")
    if as_json() and not dry_run:
        fail("--json goes with --dry-run.")
    reading.parse_embedding(embedding)  # which a schema that exists may name, too
    if not (yes or dry_run) and not sys.stdin.isatty():
        fail("This asks two questions, and there is no terminal to answer on. Add --yes.")
    roles = tuple(ignore or ()), tuple(keep or ())
    said = label, group, columns, classes, images, bins, *roles, embedding
    given = DataOptions(public, schema, *said)
    if schema is not None:
        _check_stated(private, given, said, anyway=anyway)
    for path in (private, public, schema):
        if path is not None and not path.exists():
            fail(f"There is no {path}.")
    name = _ensemble_name(private or public or Path()) if name is None else name
    check_epsilon(epsilon)
    # Before anything is made.
    register = EnsembleRegister(name=name, population=population, disjoint=disjoint)
    settings, log = Settings(), _Notes(verbose=verbose)
    if dry_run:
        _dry_run(private, units, given, settings, register, epsilon, log, anyway=anyway)
        return
    if private is None:
        raise RuntimeError("there are no private records")
    if not settings.data_dir.exists():
        log.note(f"New: {settings.data_dir}, with the ledger and its secret key.")
    serve.prepare(settings, log.detail)
    ledger = open_ledger(settings)
    try:
        record = ledger.project(name)
    except NotFound:
        record = _open(
            private, given, ledger, settings, register, epsilon, log, yes=yes, anyway=anyway
        )
        say(f"Project {name} is open.")
    else:
        if record.terms.epsilon != epsilon:
            fail(
                f"{name} is open with ε = {record.terms.epsilon:g}, for good. Leave --epsilon as "
                "it was, or choose another --name."
            )
        say(f"Project {name} is open already, with ε = {epsilon:g}.")
    _finish(public, ledger, settings, record)


def _check_stated(
    private: Path | None, given: DataOptions, said: Sequence[object], *, anyway: bool
) -> None:
    """Refuse what does not go with a schema that is stated."""
    if any(said):
        fail("A --schema says all that other options say of a table: leave them out, or edit it.")
    if anyway and given.public is None:
        fail("--anyway is for trials on public rows, and with a --schema alone there are none.")
    for path in (private, given.public):
        if path is not None and not is_table(path):
            fail(
                f"{path} is not a table. Only of rows of a table can be said what they may hold; "
                "pictures and arrays have no --schema, and need --public data to be asked about."
            )


@dataclass(frozen=True)
class _Rows:
    """The files, as a project would read them."""

    like: Dataset | None
    """The private records; public ones where a dry run has none, and None if there are neither."""
    units: int
    person: str | None
    """What names people, each protected with all records; None if each record is alone."""
    pool: PublicData | None
    """None: rows are designed from the schema."""
    labelled: Dataset | None
    schema: Path | None
    rows_of_people: str
    """What to do if people have several rows, and none are named."""


def _dry_run(
    private: Path | None,
    units: int | None,
    given: DataOptions,
    settings: Settings,
    register: EnsembleRegister,
    epsilon: float,
    log: _Notes,
    *,
    anyway: bool,
) -> None:
    """Say what the project would buy, and what would open it."""
    joined = ledger = None
    if private is not None and settings.secret_key_path.exists():
        ledger = open_ledger(settings)
        _, joined = _find_population(ledger, register)
    with TemporaryDirectory() as scratch:
        kept = _schema_file(settings, register.name)
        out = kept if private is not None and kept.exists() else Path(scratch) / kept.name
        if private is None:
            rows, given = _read_public(units or 0, given, out, log)
        else:
            rows, given = _read(private, given, out, log, yes=True)
        forecast = _forecast(rows, epsilon, joined)
    if ledger is not None and joined is not None:
        by_person = rows.person is not None
        _check_joining(ledger, register.name, joined, forecast.first, by_person=by_person)
    words = ["quickstart", private or "PRIVATE", *given.asked]
    words += [*given.table, *given.formats, "--epsilon", f"{epsilon:g}"]
    command = command_text(*words, *(["--yes"] if in_compose() else []))  # files take its input
    if as_json():
        options = [
            {"way": each.first.option, "mechanism": each.first.spec, **asdict(each)}
            for each in forecast.options
        ]
        print_json({"command": command, "ways": options, "true_labels": forecast.truth})
    else:
        _show_forecast(forecast, rows, joined, log)
        asks = "without" if in_compose() else "with"
        say(f"Nothing was made or spent. To open it, {asks} its questions:\n  {command}")
    _check_above_chance(forecast, None, anyway=anyway)


def _read_public(
    units: int, given: DataOptions, out: Path, log: _Notes
) -> tuple[_Rows, DataOptions]:
    """Read labelled public rows, in place of private ones too, of which there are so many units."""
    if given.public is None and given.schema is not None:
        columns = read_schema(given.schema).columns
        person = next((each.name for each in columns if each.role == "group"), None)
        return _Rows(None, units, person, None, None, given.schema, _if_several(given)), given
    public = given.pool
    schema, given = _find_schema(public, given, out, log, yes=True)
    try:
        if schema is not None:
            data = reading.load_labelled_rows(public, read_schema(schema), log.note)
        else:
            classes, images = given.classes, given.images
            data = reading.load_private(public, None, classes, images, public, log.note)
    except DataError as error:
        fail(
            f"What a student will be cannot be forecast without public labels: {error} With "
            "PRIVATE in place of --units, this says what is certain. `terrine plan` ranks "
            "mechanisms by right answers, if teachers agree as its --consensus says."
        )
    pool = PublicData.declare(public.name, data.inputs, labels=data.labels)
    person = _find_person(data)
    return _Rows(data, units, person, pool, data, schema, _if_several(given)), given


def _find_person(records: Dataset) -> str | None:
    """Return what names the people of records, if anything does."""
    return None if records.groups is None else records.group_column or "person"


def _if_several(given: DataOptions) -> str:
    how = "say which column names the person: --group."
    if given.schema is not None:
        how = f'give the column that names the person the role "group" in {given.schema}.'
    return f" If a person can have several, {how}"


def _read(
    private: Path, given: DataOptions, out: Path, log: _Notes, *, yes: bool
) -> tuple[_Rows, DataOptions]:
    """Read private and public records. `out`: the schema of a table, made if there is none."""
    schema, given = _find_schema(private, given, out, log, yes=yes)
    read = list[str]()
    classes = None if schema else given.classes
    records = reading.load_private(
        private, schema, classes, given.images, given.public, read.append
    )
    pool = labelled = None
    if given.public is not None:
        pool, labelled = ensemble.load_pool(given.public, records, read.append)
        log.notes.append(ensemble.describe_private_rows(pool, records))
    log.notes += read
    several, person = _if_several(given), _find_person(records)
    if person is None:
        several = _rows_of_people(private, schema, given) or several
    return _Rows(records, unit_count(records), person, pool, labelled, schema, several), given


def _forecast(rows: _Rows, epsilon: float, joined: PopulationRecord | None) -> Forecast:
    """Forecast what each way to ask the records would buy, from public rows if there are any."""
    like, pool, sample = rows.like, rows.pool, rows.labelled
    encoding = None if rows.schema is None else read_schema(rows.schema)
    limit = None if joined is None else joined.limit
    if pool is None or like is None:
        if encoding is None:
            raise RuntimeError("there is nothing to ask")
        label = next(each for each in encoding.columns if each.role == "label")
        setting = Setting.of(
            units=rows.units,
            rows=DESIGNED_ROWS[0],
            classes=len(label.values or ()),
            epsilon=epsilon,
            joined=limit,
        )
        return forecast_design(setting, encoding)
    setting = Setting.of(
        units=rows.units,
        rows=int(number_distinct_rows(pool.inputs).max()) + 1,
        classes=len(like.classes),
        epsilon=epsilon,
        joined=limit,
    )
    if sample is None:
        unknown = np.zeros(len(pool.inputs), np.int64)
        sample = Dataset(pool.inputs, unknown, like.classes, like.spec, encoding=encoding)
    with console.status("Simulating each option on public rows"):
        return compare_options(
            setting,
            sample,
            pool,
            labelled=rows.labelled is not None,
            people=rows.person is not None,
        )


def _open(
    data: Path,
    given: DataOptions,
    ledger: Ledger,
    settings: Settings,
    register: EnsembleRegister,
    epsilon: float,
    log: _Notes,
    *,
    yes: bool,
    anyway: bool,
) -> ProjectRecord:
    """Do all that is missing until the project is open."""
    name = register.name
    registered, joined = _find_population(ledger, register)
    directory = settings.ensembles_dir / name
    schema = _schema_file(settings, name)
    proposed = given.schema is None and not schema.exists()
    rows, given = _read(data, given, schema, log, yes=yes)
    if rows.schema is not None and proposed:
        log.notes.insert(
            0,
            f"{schema} says how the columns are read, and becomes public: names, ranges and "
            f"categories, all taken from {given.public}. To change it, answer no below; then edit "
            'it (a column to leave out has the role "ignored"), or remove it and use --ignore and '
            "--keep; and run this again.",
        )
    if (private := rows.like) is None:
        raise RuntimeError("there are no private records")
    forecast = _forecast(rows, epsilon, joined)
    first = forecast.first
    if joined is None:
        cap = {"epsilon": first.cap.epsilon, "delta": first.cap.delta, "rule": first.cap.rule.name}
        register = register.model_copy(update=cap)
    else:
        _check_joining(ledger, name, joined, first, by_person=private.groups is not None)
    _show_forecast(forecast, rows, joined, log)
    _check_above_chance(forecast, rows.schema, anyway=anyway)
    of = register.population or DEFAULT_POPULATION if joined is None else joined.name
    if directory.exists():
        _check_same(directory, private, first)
    else:
        _make_ensemble(private, rows.pool, settings, directory, name, first, yes=yes)
    if not registered:
        _ask(
            f"Fix the cap of {of} at ε = {first.cap.epsilon:g}, δ = {first.cap.delta:g}, and open "
            f"a project of ε = {epsilon:g}? Neither can be changed."
            if joined is None
            else f"Open a project of ε = {epsilon:g} under the cap of {of}? It cannot be changed.",
            yes,
        )
    if not _is_registered(ledger, name):
        register_ensemble(ledger, settings, register)
    opening = ProjectOpen(
        name=name,
        ensemble=name,
        mechanism=first.spec,
        epsilon=first.epsilon,
        delta=first.delta,
        expected_pass_rate=first.pass_rate,
    )
    record = open_project(ledger, opening)
    if log.verbose and first.release is None:
        _show_commands(data, given, settings, rows.schema, first, opening, register)
    return record


def _design_rows(
    private: Dataset, public: PublicData | None, first: FirstProject, directory: Path
) -> DesignedPool:
    """Design what is asked, from histograms with noise, which each project begins with.

    Nobody is told anything before a project's first charge has paid for them: until then, the rows
    are in the directory of the teachers alone, which is as private as the records.
    """
    if first.release is None:
        raise ValueError("nothing is designed")
    begun = load_begun_pool(directory)
    if begun is not None:
        return begun
    schema = _schema_of(private)
    questions = margin_questions(schema)
    counts = first.release.add_noise(count_cells(questions, private))
    margins = Margins.of_counts(questions, counts, sigma=first.release.sigma, units=first.units)
    natural = None if public is None else public.inputs.astype(np.float32)
    return design_pool(schema, margins, first.rows, public=natural)


def _schema_of(private: Dataset) -> TableSchema:
    if private.encoding is None:
        raise ValueError("only of a table can rows be designed")
    return private.encoding


def _is_registered(ledger: Ledger, name: str) -> bool:
    try:
        ledger.ensemble(name)
    except NotFound:
        return False
    return True


def _find_population(
    ledger: Ledger, register: EnsembleRegister
) -> tuple[bool, PopulationRecord | None]:
    """Return whether the ensemble is registered already, and the population that it joins.

    None if the population is new.
    """
    try:
        found = ledger.ensemble(register.name).population
    except NotFound:
        known = ledger.populations()
        return False, choose_population(known, register.population, disjoint=register.disjoint)
    if register.population not in (None, found.name):
        fail(
            f"{register.name} is registered in the population {found.name}, for good. Leave "
            "--population out, or choose another --name."
        )
    return True, found


def _check_joining(
    ledger: Ledger, name: str, joined: PopulationRecord, first: FirstProject, *, by_person: bool
) -> None:
    """Refuse, before anything is made, what cannot be registered or opened under a cap."""
    members = [each for each in ledger.ensembles() if each.population.id == joined.id]
    check_unit(name, joined.name, members, by_person=by_person)
    check_delta(f"The δ of the cap of {joined.name}", joined.delta, first.units)
    wanted = first.terms
    fits = (
        joined.reserved + wanted.cap_budget <= joined.cap
        and joined.delta_reserved + wanted.delta_budget <= joined.delta_cap
    )
    if not fits:
        fail(
            f"The cap of the population {joined.name} (ε = {joined.epsilon:g}, "
            f"δ = {joined.delta:g}) has no room for a project of ε = {first.epsilon:g}. "
            f"{suggest_room(ledger, members[0], first.epsilon, first.price)}"
        )


def _make_ensemble(
    private: Dataset,
    public: PublicData | None,
    settings: Settings,
    directory: Path,
    name: str,
    first: FirstProject,
    *,
    yes: bool,
) -> None:
    """Train the teachers, or place the records."""
    plan, key = first.neighbours, records_key(settings, make=True)
    if plan is not None and public is not None:
        _ask(f"Copy the records, as points with labels, to {directory}?", yes)
        with console.status("Placing the records"):
            build(
                private,
                directory,
                name=name,
                public=public,
                settings=NeighbourSettings(near=plan.near),
                key=key,
            )
        return
    _ask(f"Train {first.teachers:,} teachers in {directory}?", yes)
    pool = release = None
    if first.release is not None:
        pool = _design_rows(private, public, first, directory)
        release = HistogramRelease.model_validate(first.release.spec)
    with teachers_bar(console, first.teachers) as on_trained:
        train_ensemble(
            private,
            directory,
            name=name,
            teachers=first.teachers,
            public=None if pool is not None else public,
            pool=pool,
            release=release,
            on_trained=on_trained,
            key=key,
        )


def _schema_file(settings: Settings, name: str) -> Path:
    beside = settings.data_dir.parent  # which a container may not write to
    place = beside if os.access(beside, os.W_OK) else settings.data_dir
    return place / f"{name}-schema.json"


def _find_schema(
    data: Path, given: DataOptions, out: Path, log: _Notes, *, yes: bool
) -> tuple[Path | None, DataOptions]:
    """Return the schema of a table, which is proposed, and written to `out`, if there is none yet.

    And the options, with the classes that were asked for, if the public rows have no labels.
    """
    if not is_table(data):
        if given.table:
            fail(
                "--label, --bins, --group, --columns, --ignore, --keep and --embedding are for "
                "tables."
            )
        return None, given
    if given.schema is not None:
        return given.schema, given
    if out.exists():
        log.note(f"The schema is {out}. To have another proposed, remove it.")
        return out, _check_against_schema(given, out)
    given = _with_classes(given, yes=yes)
    if data != given.public:
        _check_group(data, given)
    proposal, given = _propose(given, log, yes=yes)
    write_atomically(out, proposal.to_json().encode(), public=True)
    for guess in proposal.guesses:
        if guess.doubt is not None:
            log.note(f"Column {guess.column.name} is {guess.column.role}: {guess.doubt}")
    if log.verbose:
        reading.show_schema(proposal, given.pool, out.name)
    return out, given


def _propose(given: DataOptions, log: _Notes, *, yes: bool) -> tuple[SchemaProposal, DataOptions]:
    """Propose a schema; and the options with what was asked of a column that may name people.

    Whom the project protects is not guessed: without an answer, it is a row.
    """
    proposal = given.propose_schema(log.note)
    while (name := proposal.doubtful_group) is not None:
        why = next(each.why for each in proposal.guesses if each.column.name == name)
        question = (
            f"Does the column {name} name the person whom a row is about? ({why}.) If so, each "
            "person is protected with all rows; if not, each row alone, and nothing is learned "
            "from it."
        )
        if yes:
            log.note(f"Column {name} may name people ({why}). Nobody was asked: it is left out.")
        if not yes and typer.confirm(question):
            given = replace(given, group=name)
        else:
            given = replace(given, ignore=(*given.ignore, name))
        proposal = given.propose_schema(lambda sentence: None)  # it was said
    return proposal, given


def _check_group(data: Path, given: DataOptions) -> None:
    """Refuse a --group that neither table has, before there is a schema with it."""
    columns = reading.split_names(given.columns)
    if given.group is not None and not any(
        has_column(path, given.group, columns) for path in (given.pool, data)
    ):
        fail(f"Neither {data} nor {given.public} has a column {given.group}: see --group.")


def _rows_of_people(data: Path, schema: Path | None, given: DataOptions) -> str:
    """Say that people have several rows, if a private table without a group seems to name them."""
    if schema is None or (found := find_repeated_people(data, read_schema(schema))) is None:
        return ""
    name, rows = found
    mean = "more than 1" if rows < 1.05 else f"{rows:,.1f}".removesuffix(".0")
    how = f"use --group {name}, and remove {schema.name} before"
    if given.schema is not None:
        how = f'give it the role "group" in {given.schema}'
    return (
        f" By the column {name}, {mean} rows a person on average: this protects one row, not one "
        f"person. If {name} names people, {how}."
    )


def _check_against_schema(given: DataOptions, path: Path) -> DataOptions:
    """Return the options with the classes of a schema, if nothing else tells them.

    What they say of columns must be in it.
    """
    schema = read_schema(path)
    ignored = {column.name for column in schema.columns if column.role == "ignored"}
    if not ignored.issuperset(given.ignore) or not ignored.isdisjoint(given.keep):
        fail(f"{path} says otherwise than --ignore or --keep. Change or remove the schema.")
    by_role = {str(column.role): column.name for column in schema.columns}
    for option, role, told in (
        ("--label", "label", given.label),
        ("--group", "group", given.group),
    ):
        if told is not None and normalize(told) != by_role.get(role):
            fail(
                f"{path} does not agree with {option} {told}: its {role} is "
                f"{by_role.get(role, 'no column')}. Change or remove the schema."
            )
    label = next(column for column in schema.columns if column.role == "label")
    values, declared = label.values or (), reading.parse_classes(given.classes)
    if declared is not None and sorted(declared) != sorted(values):
        fail(
            f"{path} has other classes than --classes: {', '.join(values)}. Leave --classes out, "
            "or change or remove the schema."
        )
    if (cut := reading.parse_bins(given.bins)) is not None and tuple(cut) != label.edges:
        fail(f"{path} says otherwise than --bins {given.bins}. Change or remove the schema.")
    if declared is None and cut is None and _is_unlabelled(given):
        if label.edges is not None:
            return replace(given, bins=",".join(f"{edge:.17g}" for edge in label.edges))
        return replace(given, classes=reading.join_names(values))
    return given


def _with_classes(given: DataOptions, *, yes: bool) -> DataOptions:
    """Return the options with the classes of public rows without labels, asking for them."""
    if yes or given.classes or given.bins or not _is_unlabelled(given):
        return given
    classes = typer.prompt(
        f"{given.public} has no column {given.label}. Which classes can it have? They become "
        "public, and are never taken from private records (A,B,…)"
    )
    return replace(given, classes=classes)


def _is_unlabelled(given: DataOptions) -> bool:
    columns = reading.split_names(given.columns)
    return given.label is not None and not has_column(given.pool, given.label, columns)


def _show_forecast(
    forecast: Forecast, rows: _Rows, joined: PopulationRecord | None, log: _Notes
) -> None:
    """Say in five lines who is protected, how much, by what, what it buys, and what is used."""
    first = forecast.first
    unit, units, several = "record", "records", rows.rows_of_people
    if rows.person is not None:
        unit, units, several = f"{rows.person}, with all its records", "people", ""
    right = max_guess_accuracy(first.epsilon, first.delta)
    lines = {
        "Protects": f"each single {unit}, of {first.units:,}.{several}",
        "How much": f"ε = {first.epsilon:g}, δ = {first.delta:g}. Somebody who knows all the "
        f"others, and guesses which of two equally likely versions of this one is there, is right "
        f"at most {right:.1%} of the time (50 % without any answer).",
        "By what": f"{_describe_option(first, units)} {_explain_choice(forecast)}".rstrip(),
        "It buys": _describe_purchase(forecast, rows.labelled),
        "It uses": f"{first.share:.0%} of a cap of ε = {first.cap.epsilon:g}: what all projects "
        f"together may ever tell about these people. {int(1 / first.share)} like this one would "
        "fit, as several ε add up to less than their sum. The cap cannot be changed later.",
    }
    if joined is not None:
        lines["It uses"] += (
            f" It is the cap of the population {joined.name}, of which "
            f"{1 - joined.reserved / joined.cap:.0%} is free."
        )
    for heading, text in lines.items():
        console.print(f"[bold]{heading}[/]  {escape(text)}", soft_wrap=True, highlight=False)
    if rows.labelled is not None and forecast.students is not None and log.verbose:
        _show_options(forecast, rows.labelled)
    if first.release is not None and rows.pool is not None:
        log.note(
            f"Published with the project: up to {NATURAL_ROWS:,} of the public rows, by which its "
            "student says a class about as often as it occurs."
        )
    log.show_notes()


def _describe_option(first: FirstProject, unit: str) -> str:
    """Say how the records are asked, which are those of so many `unit`, in the plural."""
    noise = f"Random noise (σ = {first.sigma:g}) is added to the number of votes of each class."
    if first.neighbours is not None:
        return (
            f"neighbours: the {unit} most similar to the row that is asked about vote, some "
            f"{first.neighbours.near:,} of them. {noise} Each has an account in this project, and "
            f"stops voting in it when that is exhausted: {first.neighbours.retired:.0%} of them by "
            "the end."
        )
    teachers = (
        f"{first.teachers:,} teachers: models, each trained on {first.units // first.teachers} or "
        f"more {unit} that no other is trained on."
    )
    if first.confident is not None:
        threshold = int(str(first.confident["threshold"])) / first.teachers
        return (
            f"{teachers} Where about {threshold:.0%} of them agree, by a count with noise, the "
            "answer is their class, and else nothing."
        )
    if (release := first.release) is not None:
        return (
            f"{teachers} {noise} They are asked rows that are designed from the schema. The "
            f"project begins with {len(release.cells)} histograms, in which each of the {unit} "
            f"counts once, with noise of σ = {release.sigma:g} in every count: how common classes "
            f"are (within {min(1.0, 2 * release.sigma / first.units):.1%}), and where the numbers "
            f"of a column lie. By themselves they cost ε = {_describe_release_epsilon(first)}."
        )
    return f"{teachers} {noise}"


def _describe_release_epsilon(first: FirstProject) -> str:
    return f"{first.terms.epsilon_spent(first.terms.start.spent):.2g}"


def _explain_choice(forecast: Forecast) -> str:
    """Say why it is this option and no other."""
    _, *others = forecast.options
    if not others:
        return ""
    if forecast.students is None:
        return (
            f"Its votes have less noise than those of {_join(others)}; nothing could be tried out."
        )
    said = []
    if worse := [each for each in others if each.worse]:
        said.append(f"clearly better than those of {_join(worse)}")
    if alike := [each for each in others if not each.worse]:
        said.append(f"about as good as those of {_join(alike)}")
    measure = "balanced accuracy" if forecast.students.auc is None else "AUC"
    return f"In trials on public rows its students were {', and '.join(said)} (by {measure})."


def _describe_purchase(forecast: Forecast, labelled: Dataset | None) -> str:
    """Say what is certain, and what else the project should buy."""
    certain, found = f"for certain, {_certain_answers(forecast.first)}", forecast.students
    if labelled is None:
        return (
            f"{certain}. How good a student becomes cannot be said: that would take labels of "
            "public rows. A trial on private ones would tell something about them."
        )
    if found is None:
        return (
            f"{certain}. How good a student becomes cannot be said: {len(labelled):,} labelled "
            "public rows are too few for a trial."
        )
    said = (
        f"{certain}. In {DRAWS} trials on public rows, of which {found.stand_ins:,} stood in for "
        f"private ones, students were right on {_percent(found.accuracy)}, balanced accuracy "
        f"{_percent(found.balanced_accuracy)} (the average over the classes; a guess has "
        f"{found.chance:.0%}). Expect the same if the private rows are like the public ones."
    )
    if found.useless:
        ranked = ""
        if found.auc is not None and found.above_chance:
            ranked = f" They rank rows with an AUC of {found.auc[0]:.2f} to {found.auc[1]:.2f}."
        return f"{said} That is next to nothing: more records or a larger ε would help.{ranked}"
    largest = float(np.bincount(labelled.labels).max() / len(labelled))
    if len(labelled.classes) == 2 and found.accuracy[1] < largest:
        said += (
            f" Always predicting the larger class would be right more often ({largest:.1%}), but "
            "would never find the other. Who prefers accuracy trains with --threshold accuracy."
        )
    return said


def _check_above_chance(forecast: Forecast, schema: Path | None, *, anyway: bool) -> None:
    """Refuse a project whose simulated students are no better than a guess."""
    found, first = forecast.students, forecast.first
    if anyway or found is None or found.above_chance:
        return
    said = (
        "Stopped before anything was made of the records, or spent: the simulated students are "
        f"no better than chance, however the records are asked. Those of the best option, "
        f"{_name_option(first)}, have a balanced accuracy of {_percent(found.balanced_accuracy)}; "
        f"a guess has {found.chance:.1%}."
    )
    if found.auc is not None:
        said += f" Their AUC is {found.auc[0]:.2f} to {found.auc[1]:.2f}; that of a guess is 0.50."
    if forecast.truth is not None and not forecast.truth.above_chance:
        said += (
            " Even the true labels of the same public rows teach no more: what is known of a row "
            "may not tell its class."
        )
    fewer = "inputs of fewer features"
    if schema is not None:
        fewer = f'fewer columns (those that tell little get the role "ignored" in {schema})'
    said += (
        f" What would help: more people than these {first.units:,}; a larger ε than "
        f"{first.epsilon:g}; {fewer}; or teachers that you have already (`terrine ensemble "
        "import`)."
    )
    fail(f"{said} To open it all the same, add --anyway.")


def _certain_answers(first: FirstProject) -> str:
    """Say what a project buys, whatever teachers say."""
    if first.release is not None:
        return (
            f"noisy votes on {first.rows:,} rows that are designed from the schema, and published "
            "with the project"
        )
    if first.confident is None:
        said = f"noisy votes on all {first.rows:,} different public rows"
        if first.neighbours is not None:
            said += " (an empty one, and free, where all similar records have stopped voting)"
        return said
    queries = min(first.rows, first.terms.affordable(first.terms.start))
    return f"{queries:,} of {first.rows:,} different public rows are asked, and get a label or none"


def _show_options(forecast: Forecast, labelled: Dataset) -> None:
    """Print what the students of each option would be, and what there is to compare with."""
    measures = ["right on", "balanced accuracy", *(["AUC"] if len(labelled.classes) == 2 else [])]
    table = Table("students of", *measures)
    for each in forecast.options:
        name = _name_option(each.first)
        chosen = each is forecast.options[0]
        _add_row(table, f"[bold]{name}[/]" if chosen else name, each.forecast)
    _add_row(table, "(true labels of the same rows)", forecast.truth)
    counts = np.bincount(labelled.labels)
    table.add_row(
        "(the largest class alone)",
        f"{counts.max() / len(labelled):.1%}",
        f"{1 / np.count_nonzero(counts):.1%}",
        *(["0.50"] if len(labelled.classes) == 2 else []),
    )
    console.print(table)


def _add_row(table: Table, name: str, found: StudentForecast | None) -> None:
    if found is not None:
        ranked = [] if found.auc is None else [f"{found.auc[0]:.2f} to {found.auc[1]:.2f}"]
        table.add_row(name, _percent(found.accuracy), _percent(found.balanced_accuracy), *ranked)


def _name_option(first: FirstProject) -> str:
    """Name the option, with the number of teachers that are trained."""
    return first.option if first.neighbours else f"{first.option} ({first.teachers:,})"


def _percent(between: tuple[float, float]) -> str:
    return f"{between[0]:.1%} to {between[1]:.1%}"


def _join(options: Sequence[Option]) -> str:
    return " and of ".join(each.first.option for each in options)


def _check_same(directory: Path, private: Dataset, first: FirstProject) -> None:
    manifest = load_manifest(directory)
    have = manifest.teachers, manifest.units, manifest.input, manifest.classes
    by_units = manifest.teacher.kind == "neighbours"
    wanted = None if first.release is None else first.release.spec
    begins = None if manifest.release is None else manifest.release.model_dump(mode="json")
    if begins is not None and wanted is not None and begins != wanted:
        fail(
            f"{directory} begins with other histograms: the schema or --epsilon is not the one "
            "that it was made with. Change it back, or choose another --name."
        )
    same = have == (first.teachers, first.units, private.spec, private.classes)
    if not same or by_units != bool(first.neighbours) or begins != wanted:
        fail(
            f"{directory} holds {manifest.teachers:,} teachers of {manifest.units:,} other units, "
            f"of the kind {manifest.teacher.kind}. Choose another --name, or give the data that "
            "they were made of."
        )
    say(f"Made already: {directory}.")


def _ask(question: str, yes: bool) -> None:
    if not yes and not typer.confirm(question):
        fail("Nothing further was done. Run the same command to continue.")


def _show_commands(
    data: Path,
    given: DataOptions,
    settings: Settings,
    schema: Path | None,
    first: FirstProject,
    opening: ProjectOpen,
    registered: EnsembleRegister,
) -> None:
    """Print the commands that do the same."""
    name, budget = registered.name, ["--delta", f"{first.delta:g}"]
    made: list[object] = ["ensemble", "train", data, "--teachers", first.teachers]
    if first.neighbours is not None:
        made[3:] = ["--kind", f"neighbours:near={first.neighbours.near}"]
    made += ["--name", name, "--public", given.pool, *([] if schema else given.formats)]
    register: list[object] = ["ensemble", "register", name]
    if registered.population is not None:
        register += ["--population", registered.population]
    if registered.disjoint:
        register.append("--disjoint")
    if registered.epsilon is not None:
        register += ["--epsilon", f"{registered.epsilon:g}", *budget, "--rule", registered.rule]
    mechanism = mechanism_text(opening.mechanism.model_dump(exclude_defaults=True))
    project = ["project", "open", name, "--ensemble", name, "--mechanism", mechanism]
    rate = first.pass_rate
    shown = [] if rate is None else ["--expected-pass-rate", f"{rate:g}"]
    proposing = ["ensemble", "schema", given.pool, *given.table, *given.formats, "--out", schema]
    acts: list[list[object]] = [
        ["init"],
        *([proposing] if schema and given.label else []),
        [*made, *(["--schema", schema] if schema else [])],
        register,
        [*project, "--epsilon", f"{first.epsilon:g}", *budget, *shown],
        ["token", "create", "--role", "student", "--project", name],
    ]
    say("By hand, this was:")
    for act in acts:
        say(f"  {_command(settings, *act)}")


def _finish(public: Path | None, ledger: Ledger, settings: Settings, record: ProjectRecord) -> None:
    """Make the student's token, unless there was one, and say what remains to be done.

    `public`: what students ask, unless the project has designed that itself.
    """
    name, secret, once = record.name, "…", ""
    if ledger.list_tokens(name):
        say(
            "Its token was shown when it was made, and cannot be again. Another: terrine token "
            f"create --role student --project {name}"
        )
    else:
        tokens = Tokens(ledger, load_token_key(settings))
        wanted = TokenCreate(role=Role.STUDENT, project=name, label=LABEL)
        secret, once = tokens.create(wanted).token, " Its token will not be shown again."
    pool = []
    if public is not None and not record.ensemble.facts.designed:
        pool = [next(public.glob("train-images*"), public)]  # of IDX, the file is asked
    say("Now serve it, unless a server does already:")
    say(f"  {_command(settings, 'serve')}")
    say(f"The student learns by this line.{once}")
    trains = command_text("student", "train", *pool)
    say(f"  TERRINE_URL={settings.url} TERRINE_TOKEN={secret} {trains}")
    for folder in pool:
        if folder.is_dir() and not is_table(folder) and any(map(Path.is_dir, folder.iterdir())):
            say(f"The student's pictures lie in one flat folder: give it those of {folder} so.")
    if record.mechanism["name"] == NoisyVotes.name and not record.ensemble.facts.designed:
        _offer_labels(ledger, settings, record)


def _offer_labels(ledger: Ledger, settings: Settings, record: ProjectRecord) -> None:
    """Print how the same teachers answer with labels alone, of what is left of their cap.

    Nothing, where that would buy too few to learn from.
    """
    name, teachers, terms = f"{record.name}-labels", record.ensemble.facts.teachers, record.terms
    offers = []
    for mechanism in label_mechanisms(teachers):
        opening = ProjectOpen.model_validate(
            {
                "name": name,
                "ensemble": record.ensemble.name,
                "mechanism": mechanism,
                "epsilon": terms.epsilon,
                "delta": terms.delta,
            }
        )
        try:
            quoted = quote_project(ledger, opening)
        except InvalidTerms:  # it would not pay for one query
            continue
        if quoted.fits and quoted.warning is None:
            budget = "--epsilon", f"{terms.epsilon:g}", "--delta", f"{terms.delta:g}"
            words = "project", "open", name, "--ensemble", record.ensemble.name, "--mechanism"
            offers.append(_command(settings, *words, mechanism_text(mechanism), *budget))
    if offers:
        say(
            "The same teachers can answer with labels alone, under the same cap: where most of "
            "them agree, or where they contradict a student that has a model. One of:"
        )
        for offer in offers:
            say(f"  {offer}")


def _command(settings: Settings, *words: object) -> str:
    """Return a command as the owner types it."""
    default = settings.data_dir == type(settings).model_fields["data_dir"].default
    where = [] if default or in_compose() else ["--data-dir", settings.data_dir]
    return command_text(*where, *words)


def _ensemble_name(private: Path) -> str:
    """Return a name for the ensemble of a file or a folder."""
    stem = private.absolute().name.partition(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:60].strip("-") or "private"
