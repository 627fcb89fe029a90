"""`terrine quickstart`: from private records to an open project, asking two questions."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from terrine_protocol.base import normalize
from terrine_server.cli import ensemble, plan, reading, serve
from terrine_server.cli.console import command_text, console, fail
from terrine_server.cli.options import mechanism_text
from terrine_server.cli.plan import DataOptions
from terrine_server.progress import teachers_bar

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.tables.roles import SchemaProposal
    from terrine_protocol import EnsembleRegister, ProjectOpen
    from terrine_server.ledger import Ledger, PopulationRecord, ProjectRecord
    from terrine_server.owner.ways import ForecastChoice
    from terrine_server.planning.first_project import FirstProject
    from terrine_server.settings import Settings

LABEL = "quickstart"
"""Of the token, for the owner's records."""
NOTES = 6
"""Lines that are printed below the first five, unless all are wanted."""


class _Said:
    """What is said besides the five lines: what was noticed, below them, and details if wanted."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose
        self.noticed: list[str] = []

    def notice(self, text: str) -> None:
        """Keep what the owner should know, until the five lines are printed."""
        self.noticed.append(text)

    def detail(self, text: str) -> None:
        """Print what only some want to know."""
        if self.verbose:
            _say(text)

    def show_noticed(self) -> None:
        """Print what was kept."""
        shown = self.noticed if self.verbose else self.noticed[:NOTES]
        for text in shown:
            _say(f"- {text}")
        if more := len(self.noticed) - len(shown):
            _say(f"- {more} more: --verbose shows all.")
        self.noticed = []


def quickstart(
    private: Annotated[
        Path,
        typer.Argument(
            metavar="PRIVATE", help="Private records, in a format that `ensemble train` reads."
        ),
    ],
    public: Annotated[
        Path,
        typer.Option(
            metavar="POOL",
            help="Public data, on all of which students will ask: rows of the same kind. With "
            "labels, they foretell what the project buys.",
        ),
    ],
    label: plan.Label = None,
    bins: reading.Bins = None,
    group: plan.Group = None,
    columns: plan.Columns = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Of a table: a column to leave out. May be repeated."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Of a table: a column to use as a feature. May be repeated."
        ),
    ] = None,
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, for scripts.")] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="Go on although simulated students are no better than chance."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Say more: why each column is read as it is, what each way to ask would buy, and "
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
    """
    from terrine_protocol import EnsembleRegister
    from terrine_server.errors import NotFound
    from terrine_server.owner.operations import open_ledger
    from terrine_server.privacy.parameters import check_epsilon
    from terrine_server.settings import Settings

    if not yes and not sys.stdin.isatty():
        fail("This asks two questions, and there is no terminal to answer on. Add --yes.")
    roles = tuple(ignore or ()), tuple(keep or ())
    given = DataOptions(public, label, group, columns, classes, images, *roles, bins)
    for path in (private, public):
        if not path.exists():
            fail(f"There is no {path}.")
    name = _name(private) if name is None else name
    check_epsilon(epsilon)
    # Before anything is made.
    register = EnsembleRegister(name=name, population=population, disjoint=disjoint)
    settings, said = Settings(), _Said(verbose=verbose)
    if not settings.data_dir.exists():
        said.notice(f"New: {settings.data_dir}, with the ledger and its secret key.")
    serve.prepare(settings, said.detail)
    ledger = open_ledger(settings)
    try:
        record = ledger.project(name)
    except NotFound:
        record = _open(
            private, given, ledger, settings, register, epsilon, said, yes=yes, anyway=anyway
        )
        _say(f"Project {name} is open.")
    else:
        if record.terms.epsilon != epsilon:
            fail(
                f"{name} is open with ε = {record.terms.epsilon:g}, for good. Leave --epsilon "
                "as it was, or choose another --name."
            )
        _say(f"Project {name} is open already, with ε = {epsilon:g}.")
    _finish(given, ledger, settings, record)


def _open(
    data: Path,
    given: DataOptions,
    ledger: Ledger,
    settings: Settings,
    register: EnsembleRegister,
    epsilon: float,
    said: _Said,
    *,
    yes: bool,
    anyway: bool,
) -> ProjectRecord:
    """Do all that is missing until the project is open."""
    from terrine_models.data.arrays import distinct
    from terrine_models.teachers.shards import unit_count
    from terrine_protocol import ProjectOpen
    from terrine_server.ledger import DEFAULT_POPULATION
    from terrine_server.owner.operations import open_project, register_ensemble
    from terrine_server.planning.first_project import Setting

    name = register.name
    registered, joined = _population(ledger, register)
    directory = settings.ensembles_dir / name
    read = list[str]()
    schema, given = _schema(data, given, settings, name, said, yes=yes)
    classes = None if schema else given.classes
    private = reading.load_private(data, schema, classes, given.images, given.public, read.append)
    pool, labelled = ensemble.load_pool(given.public, private, read.append)
    said.noticed += [ensemble.describe_private_rows(pool, private), *read]
    setting = Setting.of(
        units=unit_count(private),
        rows=int(distinct(pool.inputs).max()) + 1,
        classes=len(private.classes),
        epsilon=epsilon,
        joined=None if joined is None else joined.limit,
    )
    chosen = plan.chosen(setting, pool, labelled, private)
    first = chosen.first
    if joined is None:
        cap = {"epsilon": first.cap.epsilon, "delta": first.cap.delta, "rule": first.cap.rule.name}
        register = register.model_copy(update=cap)
    else:
        _check_joining(ledger, name, joined, first, by_person=private.groups is not None)
    opening = ProjectOpen(
        name=name, ensemble=name, mechanism=first.spec, epsilon=epsilon, delta=first.delta
    )
    rows_of_people = _rows_of_people(data, schema) if private.groups is None else ""
    _explain(private, labelled, chosen, joined, rows_of_people)
    if labelled is not None and chosen.forecast is not None and said.verbose:
        plan.show_ways(chosen, labelled)
    said.show_noticed()
    plan.check_above_chance(chosen, schema, anyway=anyway)
    if directory.exists():
        _check_same(directory, private, first)
    else:
        _made(private, pool, settings, directory, name, first, yes=yes)
    if not registered:
        of = register.population or DEFAULT_POPULATION if joined is None else joined.name
        _ask(
            f"Fix the cap of {of} at ε = {first.cap.epsilon:g}, δ = {first.cap.delta:g}, and open "
            f"a project of ε = {epsilon:g}? Neither can be changed."
            if joined is None
            else f"Open a project of ε = {epsilon:g} under the cap of {of}? It cannot be changed.",
            yes,
        )
        register_ensemble(ledger, settings, register)
    record = open_project(ledger, opening)
    if said.verbose:
        _by_hand(data, given, settings, schema, first, opening, register)
    return record


def _population(ledger: Ledger, register: EnsembleRegister) -> tuple[bool, PopulationRecord | None]:
    """Return whether the ensemble is registered already, and the population that it joins.

    None if the population is new.
    """
    from terrine_server.errors import NotFound
    from terrine_server.ledger import choose_population

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
    from terrine_server.ledger import check_delta, check_unit
    from terrine_server.owner.operations import advice

    members = [each for each in ledger.ensembles() if each.population.id == joined.id]
    check_unit(name, joined.name, members, by_person=by_person)
    check_delta(f"The δ of the cap of {joined.name}", joined.delta, first.units)
    terms = first.terms
    fits = (
        joined.reserved + terms.cap_budget <= joined.cap
        and joined.delta_reserved + terms.delta_budget <= joined.delta_cap
    )
    if not fits:
        fail(
            f"The cap of the population {joined.name} (ε = {joined.epsilon:g}, "
            f"δ = {joined.delta:g}) has no room for a project of ε = {first.epsilon:g}. "
            f"{advice(ledger, members[0], first.mechanism, terms)}"
        )


def _made(
    private: Dataset,
    pool: PublicData,
    settings: Settings,
    directory: Path,
    name: str,
    first: FirstProject,
    *,
    yes: bool,
) -> None:
    """Train the teachers, or place the records."""
    from terrine_models.teachers.neighbours import NeighbourSettings, build
    from terrine_models.teachers.training import train_ensemble
    from terrine_server.owner.editions import records_key

    lasting, key = first.neighbours, records_key(settings, make=True)
    if lasting is not None:
        _ask(f"Copy the records, as points with labels, to {directory}?", yes)
        with console.status("Placing the records"):
            build(
                private,
                directory,
                name=name,
                public=pool,
                settings=NeighbourSettings(near=lasting.near),
                key=key,
            )
        return
    _ask(f"Train {first.teachers:,} teachers in {directory}?", yes)
    with teachers_bar(console, first.teachers) as on_trained:
        train_ensemble(
            private,
            directory,
            name=name,
            teachers=first.teachers,
            public=pool,
            on_trained=on_trained,
            key=key,
        )


def _schema(
    data: Path, given: DataOptions, settings: Settings, name: str, said: _Said, *, yes: bool
) -> tuple[Path | None, DataOptions]:
    """Return the schema of a table, which is proposed if there is none yet.

    And the options, with the classes that were asked for, if the public rows have no labels.
    """
    from terrine_models.tables.loading import is_table
    from terrine_protocol.files import write_atomically

    if not is_table(data):
        given.check_no_table()
        return None, given
    beside = settings.data_dir.parent  # which a container may not write to
    place = beside if os.access(beside, os.W_OK) else settings.data_dir
    out = place / f"{name}-schema.json"
    if out.exists():
        said.notice(f"The schema is {out}. To have another proposed, remove it.")
        return out, _as_in_schema(given, out)
    given = _with_classes(given, yes=yes)
    _check_group(data, given)
    proposal, given = _proposed(given, said, yes=yes)
    write_atomically(out, proposal.to_json().encode(), public=True)
    said.notice(
        f"{out} says how the columns are read, and becomes public: names, ranges and categories, "
        f"all taken from {given.public}. To change it, answer no below; then edit it (a column to "
        'leave out has the role "ignored"), or remove it and use --ignore and --keep; and run this '
        "again."
    )
    for guess in proposal.guesses:
        if guess.doubt is not None:
            said.notice(f"Column {guess.column.name} is {guess.column.role}: {guess.doubt}")
    if said.verbose:
        reading.show_schema(proposal, given.public, out)
    return out, given


def _proposed(given: DataOptions, said: _Said, *, yes: bool) -> tuple[SchemaProposal, DataOptions]:
    """Propose a schema; and the options with what was asked of a column that may name people.

    Whom the project protects is not guessed: without an answer, it is a row.
    """
    proposal = given.proposed(said.notice)
    while (name := proposal.doubtful_group) is not None:
        why = next(each.why for each in proposal.guesses if each.column.name == name)
        question = (
            f"Does the column {name} name the person whom a row is about? ({why}.) If so, each "
            "person is protected with all rows; if not, each row alone, and nothing is learned "
            "from it."
        )
        if yes:
            said.notice(f"Column {name} may name people ({why}). Nobody was asked: it is left out.")
        if not yes and typer.confirm(question):
            given = replace(given, group=name)
        else:
            given = replace(given, ignore=(*given.ignore, name))
        proposal = given.proposed(lambda sentence: None)  # it was said
    return proposal, given


def _check_group(data: Path, given: DataOptions) -> None:
    """Refuse a --group that neither table has, before there is a schema with it."""
    from terrine_models.tables.loading import has_column

    columns = reading.split_names(given.columns)
    if given.group is not None and not any(
        has_column(path, given.group, columns) for path in (given.public, data)
    ):
        fail(f"Neither {data} nor {given.public} has a column {given.group}: see --group.")


def _rows_of_people(data: Path, schema: Path | None) -> str:
    """Say that people have several rows, if a private table without a group seems to name them."""
    from terrine_models.tables.loading import read_schema
    from terrine_models.tables.roles import find_repeated_people

    found = None if schema is None else find_repeated_people(data, read_schema(schema))
    if found is None:
        return ""
    name, rows = found
    mean = "more than 1" if rows < 1.05 else f"{rows:,.1f}".removesuffix(".0")
    return (
        f" By the column {name}, {mean} rows a person on average: this protects one row, not one "
        f"person. If {name} names people, remove {schema} and use --group {name}."
    )


def _as_in_schema(given: DataOptions, path: Path) -> DataOptions:
    """Return the options with the classes of a schema, if nothing else tells them.

    What they say of columns must be in it.
    """
    from terrine_models.tables.loading import read_schema

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
                f"{path} says otherwise than {option} {told}: its {role} is "
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
    from terrine_models.tables.loading import has_column

    columns = reading.split_names(given.columns)
    return given.label is not None and not has_column(given.public, given.label, columns)


def _explain(
    private: Dataset,
    labelled: Dataset | None,
    chosen: ForecastChoice,
    joined: PopulationRecord | None,
    rows_of_people: str,
) -> None:
    """Say in five lines who is protected, how much, by what, what it buys, and what is used."""
    from terrine_server.planning.first_project import right_at_most

    first = chosen.first
    unit, units = "record", "records"
    several = " If a person can have several, say which column names the person: --group."
    if private.groups is not None:
        unit = f"{private.group_column or 'person'}, with all its records"
        units, several = "people", ""
    right = right_at_most(first.epsilon, first.delta)
    lines = {
        "Protects": f"each single {unit}, of {first.units:,}.{rows_of_people or several}",
        "How much": f"ε = {first.epsilon:g}, δ = {first.delta:g}. Somebody who knows all the "
        f"others, and guesses which of two equally likely versions of this one is there, is right "
        f"at most {right:.1%} of the time (50 % without any answer).",
        "By what": f"{plan.way(first, units)} {plan.why(chosen)}",
        "It buys": plan.buys(chosen, labelled),
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


def _check_same(directory: Path, private: Dataset, first: FirstProject) -> None:
    from terrine_models.teachers.kinds import load_manifest

    manifest = load_manifest(directory)
    have = manifest.teachers, manifest.units, manifest.input, manifest.classes
    by_units = manifest.teacher.kind == "neighbours"
    if have != (first.teachers, first.units, private.spec, private.classes) or by_units != bool(
        first.neighbours
    ):
        fail(
            f"{directory} holds {manifest.teachers:,} teachers of {manifest.units:,} other units, "
            f"of the kind {manifest.teacher.kind}. Choose another --name, or give the data that "
            "they were made of."
        )
    _say(f"Made already: {directory}.")


def _ask(question: str, yes: bool) -> None:
    if not yes and not typer.confirm(question):
        fail("Nothing further was done. Run the same command to continue.")


def _by_hand(
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
        made = ["neighbours", "build", data, "--near", first.neighbours.near]
    made += ["--name", name, "--public", given.public, *([] if schema else given.formats)]
    register: list[object] = ["ensemble", "register", name]
    if registered.population is not None:
        register += ["--population", registered.population]
    if registered.disjoint:
        register.append("--disjoint")
    if registered.epsilon is not None:
        register += ["--epsilon", f"{registered.epsilon:g}", *budget, "--rule", registered.rule]
    mechanism = mechanism_text(opening.mechanism.model_dump(exclude_defaults=True))
    project = ["project", "open", name, "--ensemble", name, "--mechanism", mechanism]
    proposing = ["ensemble", "schema", given.public, *given.table, *given.formats, "--out", schema]
    acts: list[list[object]] = [
        ["init"],
        *([proposing] if schema and given.label else []),
        [*made, *(["--schema", schema] if schema else [])],
        register,
        [*project, "--epsilon", f"{first.epsilon:g}", *budget],
        ["token", "create", "--role", "student", "--project", name],
    ]
    _say("By hand, this was:")
    for act in acts:
        _say(f"  {_typed(settings, *act)}")


def _finish(given: DataOptions, ledger: Ledger, settings: Settings, record: ProjectRecord) -> None:
    """Make the student's token, unless there was one, and say what remains to be done."""
    from terrine_models.tables.loading import is_table
    from terrine_protocol import Role, TokenCreate
    from terrine_server.owner.sign_in import Tokens, load_secret_key

    name, secret, once = record.name, "…", ""
    if ledger.list_tokens(name):
        _say(
            "Its token was shown when it was made, and cannot be again. Another: terrine token "
            f"create --role student --project {name}"
        )
    else:
        tokens = Tokens(ledger, load_secret_key(settings.secret_key_path))
        wanted = TokenCreate(role=Role.STUDENT, project=name, label=LABEL)
        secret, once = tokens.create(wanted).token, " Its token will not be shown again."
    pool = next(given.public.glob("train-images*"), given.public)  # of IDX, the file is asked
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    url = f"http://{host}:{settings.port}"
    _say("Now serve it:")
    _say(f"  {_typed(settings, 'serve')}")
    _say(f"The student learns by this line.{once}")
    _say(f"  TERRINE_URL={url} TERRINE_TOKEN={secret} {command_text('student', 'train', pool)}")
    if pool.is_dir() and not is_table(pool) and any(path.is_dir() for path in pool.iterdir()):
        _say(f"The student's pictures lie in one flat folder: give it those of {pool} so.")


def _typed(settings: Settings, *words: object) -> str:
    """Return a command as the owner types it."""
    default = settings.data_dir == type(settings).model_fields["data_dir"].default
    where = [] if default else ["--data-dir", settings.data_dir]
    return command_text(*where, *words)


def _name(private: Path) -> str:
    """Return a name for the ensemble of a file or a folder."""
    stem = private.absolute().name.partition(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:60].strip("-") or "private"


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
