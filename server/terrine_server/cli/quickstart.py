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

from terrine_server.cli import arrays, neighbours, preview, serve, tables, ways
from terrine_server.cli.console import command_text, console, fail
from terrine_server.cli.ways import DataOptions
from terrine_server.progress import teachers_bar

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_protocol import EnsembleRegister, ProjectOpen
    from terrine_server.ledger import Ledger, PopulationRecord, ProjectRecord
    from terrine_server.owner.ways import ForecastChoice
    from terrine_server.planning.first_project import FirstProject
    from terrine_server.settings import Settings

LABEL = "quickstart"
"""Of the token, for the owner's records."""


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
    label: ways.Label = None,
    group: ways.Group = None,
    columns: ways.Columns = None,
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
    classes: arrays.Classes = None,
    images: arrays.Images = None,
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
    given = DataOptions(public, label, group, columns, classes, images, *roles)
    for path in (private, public):
        if not path.exists():
            fail(f"There is no {path}.")
    name = _name(private) if name is None else name
    check_epsilon(epsilon)
    # Before anything is made.
    register = EnsembleRegister(name=name, population=population, disjoint=disjoint)
    settings = Settings()
    serve.init()
    ledger = open_ledger(settings)
    try:
        record = ledger.project(name)
    except NotFound:
        record = _open(private, given, ledger, settings, register, epsilon, yes=yes, anyway=anyway)
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
    schema, given = _schema(data, given, settings, name, yes=yes)
    private, pool, labelled = neighbours.loaded(
        data, given.public, schema, None if schema else given.classes, given.images
    )
    preview.show_private_rows(pool, private)
    setting = Setting.of(
        units=unit_count(private),
        rows=int(distinct(pool.inputs).max()) + 1,
        classes=len(private.classes),
        epsilon=epsilon,
        joined=None if joined is None else joined.limit,
    )
    chosen = ways.chosen(setting, pool, labelled, private)
    first = chosen.first
    if joined is None:
        cap = {"epsilon": first.cap.epsilon, "delta": first.cap.delta, "rule": first.cap.rule.name}
        register = register.model_copy(update=cap)
    else:
        _check_joining(ledger, name, joined, first, by_person=private.groups is not None)
    opening = ProjectOpen(
        name=name, ensemble=name, mechanism=first.spec, epsilon=epsilon, delta=first.delta
    )
    _explain(private, labelled, chosen, joined)
    ways.check_above_chance(chosen, schema, anyway=anyway)
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
    from terrine_server.owner.cap_advice import advice

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
    data: Path, given: DataOptions, settings: Settings, name: str, *, yes: bool
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
        _say(f"Using the schema {out}. To have another proposed, remove it.")
        return out, _as_in_schema(given, out)
    given = _with_classes(given, yes=yes)
    proposal = given.proposed(tables.note)
    write_atomically(out, proposal.to_json().encode(), public=True)
    tables.show(proposal, given.public, out)
    _say(
        f"To change it, answer no below. Then edit {out} (a column to leave out has the role "
        '"ignored"), or remove it and use --ignore and --keep; and run this again.'
    )
    return out, given


def _as_in_schema(given: DataOptions, path: Path) -> DataOptions:
    """Return the options with the classes of a schema, if nothing else tells them.

    What they say of columns must be in it.
    """
    from terrine_models.tables.loading import read_schema

    schema = read_schema(path)
    ignored = {column.name for column in schema.columns if column.role == "ignored"}
    if not ignored.issuperset(given.ignore) or not ignored.isdisjoint(given.keep):
        fail(f"{path} says otherwise than --ignore or --keep. Change or remove the schema.")
    label = next(column for column in schema.columns if column.role == "label")
    values, declared = label.values or (), arrays.class_names(given.classes)
    if declared is not None and sorted(declared) != sorted(values):
        fail(
            f"{path} has other classes than --classes: {', '.join(values)}. Leave --classes out, "
            "or change or remove the schema."
        )
    if declared is None and _is_unlabelled(given):
        return replace(given, classes=",".join(values))
    return given


def _with_classes(given: DataOptions, *, yes: bool) -> DataOptions:
    """Return the options with the classes of public rows without labels, asking for them."""
    if yes or given.classes or not _is_unlabelled(given):
        return given
    classes = typer.prompt(
        f"{given.public} has no column {given.label}. Which classes can it have? They become "
        "public, and are never taken from private records (A,B,…)"
    )
    return replace(given, classes=classes)


def _is_unlabelled(given: DataOptions) -> bool:
    from terrine_models.tables.loading import has_column

    columns = tables.split(given.columns)
    return given.label is not None and not has_column(given.public, given.label, columns)


def _explain(
    private: Dataset,
    labelled: Dataset | None,
    chosen: ForecastChoice,
    joined: PopulationRecord | None,
) -> None:
    """Say in five lines who is protected, how much, by what, what it buys, and what is used."""
    from terrine_server.planning.first_project import right_at_most

    first = chosen.first
    unit = "record"
    if private.groups is not None:
        unit = f"{private.group_column or 'group'} with all its records"
    right = right_at_most(first.epsilon, first.delta)
    lines = {
        "Protects": f"one {unit}, {first.units:,} of them.",
        "How much": f"ε = {first.epsilon:g}, δ = {first.delta:g}. Who knows all others, and "
        f"guesses between two equally likely versions of one, is right at most {right:.1%} of the "
        "time, instead of 50 %.",
        "By what": f"{ways.way(first)} {ways.why(chosen)}",
        "It buys": ways.buys(chosen, labelled),
        "It uses": f"{first.share:.0%} of a cap of ε = {first.cap.epsilon:g} on all that is ever "
        f"told of these people, to whomever: {int(1 / first.share)} projects like it would fit, as "
        "several ε add up to less than their sum. The cap is final.",
    }
    if joined is not None:
        lines["It uses"] += (
            f" It is the cap of the population {joined.name}, of which "
            f"{1 - joined.reserved / joined.cap:.0%} is free."
        )
    for heading, text in lines.items():
        console.print(f"[bold]{heading}[/]  {escape(text)}", soft_wrap=True, highlight=False)
    if labelled is not None and chosen.forecast is not None:
        ways.show(chosen, labelled)


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
    from terrine_server.cli.mechanism import mechanism_text

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
    from terrine_protocol import Role, TokenCreate
    from terrine_server.owner.tokens import Tokens, load_secret_key

    name, secret = record.name, "…"
    if ledger.list_tokens(name):
        _say(
            "Its token was shown when it was made, and cannot be again. Another: terrine token "
            f"create --role student --project {name}"
        )
    else:
        tokens = Tokens(ledger, load_secret_key(settings.secret_key_path))
        wanted = TokenCreate(role=Role.STUDENT, project=name, label=LABEL)
        secret = tokens.create(wanted).token
        _say("The student's token is in the second line, and will not be shown again.")
    pool = next(given.public.glob("train-images*"), given.public)  # of IDX, the file is asked
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104
    url = f"http://{host}:{settings.port}"
    _say("What remains is for you, and for the student:")
    _say(f"  {_typed(settings, 'serve')}")
    _say(f"  TERRINE_URL={url} TERRINE_TOKEN={secret} {command_text('student', 'train', pool)}")
    if pool.is_dir() and any(path.is_dir() for path in pool.iterdir()):
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
