"""`terrine ensemble …`: made of private records, shown, registered; people who leave and join."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from terrine_models.addons import added_names, load_added_as
from terrine_models.data.arrays import DataError, Dataset, load_groups
from terrine_models.features.public import PublicData
from terrine_models.formats import PICTURES, TABLE, format_of, load_private
from terrine_models.storage.manifests import manifest_digest
from terrine_models.tables.loading import load_people
from terrine_models.tables.proposal import SchemaProposal, propose_schema
from terrine_models.tables.roles import RoleGuess
from terrine_protocol import EnsembleRegister, SumRelease
from terrine_protocol.base import quantity
from terrine_protocol.files import write_atomically
from terrine_protocol.names import show_name
from terrine_server import views
from terrine_server.cli import reading
from terrine_server.cli.console import (
    as_json,
    command_text,
    console,
    errors,
    fail,
    output,
    print_json,
    say,
    tabulate,
    warn,
    with_json,
    writing,
)
from terrine_server.cli.ledger import open_current_ledger
from terrine_server.cli.options import SPEC, NewEnsemble, Yes, parse_kind, takes, teacher_kinds
from terrine_server.cli.reading import Classes, Images, Schema, note
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import NEIGHBOURS, SUMS, EnsembleRecord, Ledger
from terrine_server.owner import editions, operations
from terrine_server.owner.editions import EditionChange, records_key
from terrine_server.owner.operations import make_directories
from terrine_server.owner.sums import SumSettings, make_sums
from terrine_server.planning.first_project import default_delta
from terrine_server.progress import stages_bar, teachers_bar
from terrine_server.quickstart.dialogue import declare_schema
from terrine_server.settings import HERE, Settings
from terrine_tables.encoding import encode_table
from terrine_tables.formats import is_table

if TYPE_CHECKING:  # PyTorch comes with these: a command that needs them imports them itself
    from terrine_models.teachers.manifests import Manifest, TeacherSettings
    from terrine_models.teachers.neighbours import NeighbourSettings
    from terrine_models.teachers.training import Trainer

# Of a proposed schema, on a terminal; the file has all.
MAX_SHOWN_COLUMNS = 200
# Whose shard is whose is no secret.
PARTITION_SEED = 0
TRAINING_PLACES = (HERE, *added_names("trainers"))
MAX_LISTED_CLASSES = 5
# Times the δ of a project of sums: of a cap that has room for one.
CAP_DELTA_FACTOR = 1.2
# Of the teachers, that may lack a class.
MAX_LACKING_SHARE = 0.2


@contextmanager
def connect_trainer(where: str) -> Iterator[Trainer]:
    """Yield what trains teachers there; disconnect from a cluster at the end."""
    from terrine_models.teachers.training import train_locally

    if where not in TRAINING_PLACES:
        fail(f"--on is {where!r}. Expected {' or '.join(TRAINING_PLACES)}.")
    elsewhere = load_added_as("trainers", where)
    if elsewhere is None:
        yield train_locally
        return
    with elsewhere(Settings()) as train_elsewhere:
        yield train_elsewhere


def train(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Private records: a directory of MNIST-style IDX files, an IDX file of "
            "images, a folder of PNG and JPEG files with one folder for each class, an .npz with "
            "x, y and optionally group, or a table: CSV, JSON lines, Parquet or Arrow.",
        ),
    ],
    name: NewEnsemble,
    teachers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of teachers to train; neighbours and sums need none."),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            metavar=SPEC,
            help="What votes: teachers that are trained, heads, networks or forest, such as "
            "networks:epochs=50; or neighbours, such as neighbours:near=100. Or what is released "
            "once and answers all: sums, such as sums:epsilon=1. `terrine parameters` shows all.",
        ),
    ] = "heads",
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="POOL",
            help="Public data, such as students ask about, to fit the feature map on: IDX images, "
            "pictures, .npy, .npz, or a table. Neighbours and sums need them.",
        ),
    ] = None,
    classes: Classes = None,
    images: Images = None,
    schema: Schema = None,
    on: Annotated[
        str,
        typer.Option(
            metavar=f"[{'|'.join(TRAINING_PLACES)}]",
            help="Where teachers are trained; elsewhere than here, by the add-on of this name.",
        ),
    ] = HERE,
) -> None:
    """Make an ensemble: train teachers on parts of private data, place neighbours, or add up.

    Neighbours are not trained: each person votes, by records on a public map, for what lies near.
    The directory holds a transformed copy of every private record then.

    Of sums nothing is kept but noisy sums of public features, by class. A project on them pays that
    ε, once, at its first charge, and all labels follow from them, free.

    If interrupted, run the same command again to continue where it stopped.

    [bold]Examples[/bold]

      terrine ensemble train mnist/ --name digits --teachers 1000 --public pool.npy

      terrine ensemble train clothes/ --name clothes --teachers 500 --public pool.npy
          --kind heads:augmentations=0,ridge=0.03

      terrine ensemble train patients.csv --name wards --teachers 100 --kind forest
          --schema schema.json

      terrine ensemble train adult.csv --name income --teachers 250
          --public census-sample.csv --schema schema.json

      terrine ensemble train mnist/ --name digits --kind neighbours --public pool.npy

      terrine ensemble train patients.csv --name wards --kind neighbours:near=100
          --public census-sample.csv --schema schema.json

      terrine ensemble train adult.csv --name income --kind sums:epsilon=1
          --public census-sample.csv --schema schema.json
    """
    from terrine_models.teachers.neighbours import NeighbourSettings
    from terrine_server.quickstart.records import describe_private_rows, load_pool

    own = Settings()
    out = own.ensembles_dir / name
    config = parse_kind("--kind", kind, teacher_kinds())
    make: Callable[..., Manifest]
    if isinstance(config, NeighbourSettings | SumSettings):
        if teachers is not None or on != HERE:
            fail(f"--teachers and --on are for training; {config.kind} are made without any.")
        if public is None:
            fail(
                f"--public is missing: {config.kind} need public rows, on which the map of inputs "
                "to features is fitted."
            )
        if isinstance(config, NeighbourSettings):
            make = partial(_place, config)
        else:
            make = partial(_add_up, config)
    elif teachers is None:
        fail(
            "--teachers is missing: how many are to be trained? Only neighbours and sums need no "
            "number."
        )
    else:
        make = partial(_train, config, teachers, on)
    with stages_bar(console, f"Reading {data.name}") as (progress,):
        private = load_private(
            data,
            schema,
            classes=reading.parse_classes(classes),
            image=reading.parse_images(images),
            public=public,
            note=reading.note,
            progress=progress,
        )
    pool = None
    if public is not None:
        with stages_bar(console, f"Reading {public.name}") as (progress,):
            pool, _ = load_pool(public, private, reading.note, progress)
    if pool is not None:
        say(describe_private_rows(pool, private))
    make_directories(own)
    manifest = make(private, pool, out, name=name, key=records_key(own, make=True))
    show_manifest(out, manifest)
    if isinstance(config, NeighbourSettings):
        say(f"How long people vote, by public rows: terrine plan neighbours --ensemble {name}")
    if isinstance(config, SumSettings):
        delta = config.paid_delta(manifest.units)
        # In Gaussian DP a release takes of a cap just what it costs. A tenth of a cap's δ is for
        # what queries add.
        whole = f"--epsilon {config.epsilon:g} --delta {CAP_DELTA_FACTOR * delta:g} --rule gdp"
        say(f"Next: terrine ensemble register {name} {whole}")
        return
    say(f"Next: terrine ensemble register {name} --epsilon ε --delta δ")


def _train(
    config: TeacherSettings,
    teachers: int,
    on: str,
    private: Dataset,
    public: PublicData | None,
    out: Path,
    *,
    name: str,
    key: bytes | None,
) -> Manifest:
    from terrine_models.teachers.training import train_ensemble

    show_shards(private, teachers)
    with connect_trainer(on) as trainer, teachers_bar(console, teachers) as on_trained:
        return train_ensemble(
            private,
            out,
            name=name,
            teachers=teachers,
            config=config,
            public=public,
            seed=PARTITION_SEED,
            on_trained=on_trained,
            trainer=trainer,
            key=key,
        )


def _place(
    config: NeighbourSettings,
    private: Dataset,
    public: PublicData,
    out: Path,
    *,
    name: str,
    key: bytes | None,
) -> Manifest:
    from terrine_models.teachers.neighbours import build

    with console.status("Placing the records"):
        return build(private, out, name=name, public=public, settings=config, key=key)


def _add_up(
    config: SumSettings,
    private: Dataset,
    public: PublicData,
    out: Path,
    *,
    name: str,
    key: bytes | None,
) -> Manifest:
    with console.status("Adding the records up"):
        return make_sums(private, public, out, config, name=name, key=key)


def show_shards(data: Dataset, teachers: int) -> None:
    """Print what each teacher will see, and warn of classes that many lack."""
    from terrine_models.teachers.shards import ShardSummary

    found = ShardSummary.of(data, teachers, PARTITION_SEED)
    people = "" if found.people is None else f" of {found.people:,} people"
    smallest, middle, largest = found.rows
    fewest, usual, most = found.classes
    classes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    say(
        f"Private, for your eyes only: {found.records:,} records{people} for "
        f"{teachers:,} teachers. The smallest shard has {smallest:,} records, the median "
        f"{middle:,}, the largest {largest:,}. A teacher sees {classes} "
        f"of {len(data.classes)} classes, {usual} in the middle."
    )
    rare = {name: n for name, n in found.lacking.items() if n > MAX_LACKING_SHARE * teachers}
    if rare:
        named = [f"{name} ({n:,} teachers)" for name, n in list(rare.items())[:MAX_LISTED_CLASSES]]
        more = (
            f" and {len(rare) - MAX_LISTED_CLASSES} more" if len(rare) > MAX_LISTED_CLASSES else ""
        )
        warn(
            f"Many teachers have no record of a class, and such a teacher never votes for it: "
            f"{', '.join(named)}{more}. Train fewer teachers, or merge rare classes."
        )


@takes(EnsembleRegister, arguments=("name",), without=("rule", "order"))
def register(
    wanted: EnsembleRegister,
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="rdp[:ORDER]|gdp",
            help="How a new cap adds up what projects cost. rdp, the default: at one Rényi order, "
            "by default what suits ε and δ, where joint prices and published bounds hold; "
            "`terrine plan` proposes an order for data-dependent accounting. gdp: in Gaussian DP, "
            "where about a tenth more of plain gnmax fits, but neither of these.",
        ),
    ] = None,
) -> None:
    """Allow projects on an ensemble, under the cap of the people whom its records are about.

    All ensembles of a population share one cap. The first fixes it, for good; by default
    everything in a data directory is of one population.

    [bold]Examples[/bold]

      terrine ensemble register digits --epsilon 4 --delta 1e-5

      terrine ensemble register digits-again

      terrine ensemble register staff --population staff --disjoint --epsilon 2 --delta 1e-5
    """
    if rule is not None:
        found = re.fullmatch(r"(rdp|gdp)(?::([\d.]+))?", rule)
        if found is None:
            fail(f"--rule is rdp, rdp:ORDER (such as rdp:12) or gdp; not {rule}.")
        wanted = EnsembleRegister.model_validate(
            {**wanted.model_dump(), "rule": found[1], "order": found[2]}
        )
    ledger = open_current_ledger()
    record = operations.register_ensemble(ledger, Settings(), wanted)
    population = record.population
    others = [
        each.name
        for each in ledger.ensembles.list()
        if each.population.id == population.id and each.name != record.name
    ]
    shared = f" It shares this cap with {', '.join(others)}." if others else ""
    say(
        f"Registered {record.name}, of the population {population.name}: all projects on its "
        f"ensembles together stay within ε = {population.epsilon:g}, δ = {population.delta:g}, "
        f"added up in {population.rule}.{shared}"
    )
    name, facts, epsilon = record.name, record.facts, min(1.0, population.epsilon)
    if facts.kind == SUMS:
        delta = default_delta(record.most_units)
        cost = operations.find_epsilon_of_sums(record, delta)
        budget = f"--epsilon {cost:g} --delta {delta:g}"
        say(f"Next: terrine project open {name} --ensemble {name} --mechanism sums {budget}")
        return
    plan = f"neighbours --ensemble {name}"
    if facts.kind != NEIGHBOURS:
        plan = f"noisy_votes --teachers {facts.teachers} --classes {len(facts.classes)}"
    say(
        "Next, what a project can buy, and the command that opens it: "
        f"terrine plan {plan} --epsilon {epsilon:g}"
    )


@with_json
def show(
    ensemble: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENSEMBLE]",
            help="Name of an ensemble, or its directory. Default: all that are registered.",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="First check every file against the digests in the manifest. Owners who keep "
            "their teachers are asked about one blank input. Exits with code 1 if files differ or "
            "owners are fewer than the quorum.",
        ),
    ] = False,
) -> None:
    """Show an ensemble's manifest; or list registered ensembles, with caps and what is reserved.

    A cap is of a population: it is listed with each ensemble that shares it.

    [bold]Examples[/bold]: terrine ensemble show, terrine ensemble show digits --verify
    """
    if ensemble is None:
        if verify:
            fail("--verify is of one ensemble: name it.")
        _list_ensembles()
        return
    show_directory(ensemble_directory(ensemble), verify=verify)


def _list_ensembles() -> None:
    records = open_current_ledger().ensembles.list()
    if as_json():
        voters = AnyVoters(Settings())
        print_json([views.ensemble_account(record, voters.available(record)) for record in records])
        return
    listed = [
        {
            "ensemble": record.name,
            "protects": record.protects,
            "teachers": record.facts.teachers,
            "classes": len(record.facts.classes),
            "population": record.population.name,
            "cap": f"ε = {record.population.epsilon:g}, δ = {record.population.delta:g}",
            "reserved": f"{record.population.reserved / record.population.cap:.1%}",
        }
        for record in records
    ]
    output(None, listed)


def ensemble_directory(ensemble: str) -> Path:
    """The directory of an ensemble that is named, or given by path: of its newest edition."""
    from terrine_models.teachers.kinds import ensemble_format

    path = Path(ensemble)
    if not (path / ensemble_format(path).document).exists() and len(path.parts) == 1:
        named = Settings().ensembles_dir / ensemble
        path = named if named.exists() else path
    made = [each for each in path.glob("edition-*") if each.name[8:].isdigit()]
    return max(made, key=lambda each: int(each.name[8:]), default=path)


def show_directory(directory: Path, *, verify: bool) -> None:
    """Print what a directory of an ensemble holds, once it is verified if that is wanted.

    Raises StoreError for what cannot be read or is not as it should be.
    """
    from terrine_models.teachers.ensemble import load
    from terrine_models.teachers.kinds import Reached, ensemble_format, load_manifest

    held = ensemble_format(directory)
    said, reached = "", Reached()
    if verify and held.has_manifest:
        files = load(directory, device="cpu").manifest.files
        said = f"{directory}: {quantity(len(files), 'file')} as in the manifest."
    elif verify:
        held.verify(directory)
        said = f"{directory}: {held.document} is as it should be."
        ask = load_added_as("probes", held.facts(directory)[1].kind)
        reached = Reached() if ask is None else ask(directory)
    if held.has_manifest and not as_json():
        show_manifest(directory, load_manifest(directory))
    else:
        print_json(held.load(directory))
    if reached.answers and not as_json():
        console.print(tabulate(reached.answers))
    if said and not as_json():
        say(said)
    if reached.wrong is not None:
        fail(reached.wrong)


def show_manifest(directory: Path, manifest: Manifest) -> None:
    """Print what a manifest says."""
    spec, kind, image = manifest.input, manifest.teacher, manifest.image
    features, partition, encoding = kind.features, manifest.partition, manifest.encoding
    names = ", ".join(map(show_name, manifest.classes))
    fields: dict[str, object] = {
        "name": manifest.name,
        "teachers": f"{manifest.teachers} ({manifest.kind})",
        "inputs": f"{spec.dtype} {list(spec.shape)}, {spec.low:g} to {spec.high:g}",
        "classes": f"{len(manifest.classes)}: {names if len(names) <= 80 else names[:79] + '…'}",
    }
    if features is not None:
        source, backbone = features.fitted_on, features.backbone
        fields |= {
            "features": f"{features.base}, {features.projection}, {features.width} wide",
            "backbone": backbone and f"{backbone.name}, SHA-256 {backbone.sha256}",
            "fitted on": f"{source.name} ({source.records} public records)"
            if source
            else "no data",
        }
    if image is not None:
        bits = "" if image.bits is None else f", {image.bits} of 16 bits"
        colours = "grey" if image.grey else "colour"
        fields["pictures"] = f"{image.height} × {image.width}, {colours}{bits}"
    if encoding is not None:
        table = encoding.fitted_on
        fields["encoding"] = f"from {table.name if table else 'a hand-written schema'}"
    unit = "people" if partition is not None and partition.recipe == "groups" else "records"
    fields |= {**kind.described(), unit: str(manifest.units)}
    if isinstance(manifest.release, SumRelease):
        sums = manifest.release
        fields["released"] = (
            f"{sums.features + 1:,} sums for each class, once: σ = {sums.sigma:g}, features of "
            f"norm {sums.norm:,} at most"
        )
    if partition is not None and manifest.kind not in (NEIGHBOURS, SUMS):
        fields["shards"] = f"{partition.smallest} to {partition.largest} {unit} each"
    fields |= {"manifest": f"SHA-256 {manifest_digest(directory)}", "directory": str(directory)}
    console.print(tabulate(fields), soft_wrap=True)


def forget(
    who: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Who leaves: a table with the column that names people, alone or beside others, "
            "or an .npz with `group`.",
        ),
    ],
    population: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose people. Default: the only population.")
    ] = None,
    records: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENSEMBLE=FILE",
            help="The records that an ensemble of trained teachers was trained on, or what is left "
            "of them without who leaves. May be repeated.",
        ),
    ] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENSEMBLE=FILE",
            help="The public table of its `train`, where teachers match their prior on its rows. "
            "May be repeated.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Forget people in every ensemble of their population, for good, while the service runs.

    Their records are gone when this is done, teachers that learned from them are trained anew
    without them, and what is charged afterwards is answered without them, under the same caps,
    projects and tokens. Of sums nobody's records are there: they stay as they were released. Keyed
    digests of their names stay, which keep them from coming back. If this is interrupted, run it
    again. Backups, FILE and the files that ensembles were made of are yours to clean.

    [bold]Examples[/bold]

      terrine ensemble forget --who withdrawn.csv

      terrine ensemble forget --who withdrawn.csv --records wards=patients.csv
          --public wards=census-sample.csv
    """
    from terrine_models.teachers.people import name_digests

    settings, ledger = Settings(), open_current_ledger()
    key = editions.records_key(settings)
    members = editions.members(ledger, population)
    files = _parse_files("--records", records or ())
    pools = _parse_files("--public", public or ())
    for name in pools:
        if name not in files:
            fail(f"--public {name}=… is for training {name} anew: give --records {name}=… as well.")
    retraining = {}
    for name, path in files.items():
        manifest = _newest_manifest(ledger, settings, name)
        pool = None
        if name in pools:
            if manifest.encoding is None:
                fail("--public is for tables: only their teachers match a prior on public rows.")
            rows = encode_table(
                pools[name],
                manifest.encoding,
                note,
                accept_clipped=True,
                accept_empty=False,
                go_on=None,
            )
            pool = PublicData.declare(pools[name].name, rows)
        retraining[name] = editions.Retraining(_load_records(manifest, path), pool)
    named = _names_of_people(members, who)
    if not yes:
        whose = members[0].population.name
        typer.confirm(
            f"Forget {quantity(len(named), 'person', 'people')} of {whose} for good?", abort=True
        )
    with console.status("Forgetting"):
        done = editions.forget(ledger, settings, population, name_digests(named, key), retraining)
    nameless = [each.name for each in members if each.name not in done]
    _show_forgotten(done, nameless, settings)


def add(
    ensemble: Annotated[
        str, typer.Argument(metavar="ENSEMBLE", help="A registered ensemble of neighbours.")
    ],
    more: Annotated[
        Path,
        typer.Argument(metavar="MORE", help="Private records, in the format of those it has."),
    ],
) -> None:
    """Let people join, while the service runs: they vote from the next query on.

    Only where the ensemble knows whose its records are (the role group). Each new person has an
    empty account in every project. More records of a person who is there are added to that
    person's, those that are there already are not; who was forgotten is left out.

    [bold]Example[/bold]: terrine ensemble add wards admitted-in-may.csv
    """
    from terrine_models.teachers.neighbours import NeighbourTeachers

    settings, ledger = Settings(), open_current_ledger()
    manifest = _newest_manifest(ledger, settings, ensemble)
    if manifest.kind == SUMS:
        fail(
            f"{ensemble} is of the kind sums: its noise and its number of people are those of what "
            "was released, so nobody joins it. Make another ensemble of the population."
        )
    if not isinstance(manifest.teacher, NeighbourTeachers):
        fail(
            f"{ensemble} has trained teachers, of the kind {manifest.kind}, and nobody joins "
            "these. Train another ensemble of the population."
        )
    made = editions.add(ledger, settings, ensemble, _load_records(manifest, more))
    left_out = f" Left out, as they were forgotten before: {made.left_out:,}."
    say(
        f"Edition {made.edition} of {ensemble} serves. New people: {made.people:,}."
        f"{left_out if made.left_out else ''}"
    )


def _newest_manifest(ledger: Ledger, settings: Settings, ensemble: str) -> Manifest:
    from terrine_models.teachers.kinds import load_manifest

    record, _ = editions.with_newest_edition(ledger, ensemble)
    return load_manifest(settings.data_dir / record.current.path)


def _load_records(manifest: Manifest, path: Path) -> Dataset:
    """Return private records in the format of an ensemble's, and in no other."""
    form = format_of(path, manifest)
    if manifest.encoding is not None:
        form = TABLE
    elif manifest.image is not None:
        form = PICTURES
    return form.labelled(path, manifest, note, False)


def _parse_files(option: str, given: Iterable[str]) -> dict[str, Path]:
    """Return the files that are given as ENSEMBLE=FILE."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            fail(f"{option} is ENSEMBLE=FILE, such as {option} wards=patients.csv; not {text}.")
        if not Path(path).exists():
            fail(f"There is no {path}.")
        found[name] = Path(path)
    return found


def _names_of_people(records: Iterable[EnsembleRecord], who: Path) -> list[str]:
    """Return what the people in a file are called, by the column that one of the ensembles has."""
    if not is_table(who):
        return load_groups(who)
    schemas = [each.facts.encoding for each in records if each.facts.encoding is not None]
    for schema in schemas:
        try:
            return load_people(who, schema, note)
        except DataError as error:
            if schema is schemas[-1]:
                raise
            note(str(error))
    return fail(
        f"{who} is a table, and no ensemble is of tables: give an .npz with an array `group`."
    )


def _show_forgotten(
    done: Mapping[str, EditionChange], nameless: Iterable[str], settings: Settings
) -> None:
    for ensemble, made in done.items():
        if made.new:
            say(f"Edition {made.edition} of {ensemble} serves. People who left: {made.people:,}.")
        else:
            say(f"They were forgotten in {ensemble} before; edition {made.edition} serves.")
    say(f"What was made of their records is gone from {settings.ensembles_dir}.")
    for ensemble in nameless:
        say(
            f"{ensemble} does not know whose its records are: nobody was looked for in it. If they "
            "may be in it, close its projects, or have its teachers trained anew."
        )


def schema(
    public: Annotated[
        Path | None,
        typer.Argument(metavar="PUBLIC", help="A public table: CSV, Parquet or Arrow."),
    ] = None,
    *,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column to predict.")] = None,
    declare: Annotated[
        bool,
        typer.Option(
            "--declare",
            help="In place of PUBLIC: ask for each column, what it may hold. No file is read, but "
            "a schema that was begun is gone on with.",
        ),
    ] = False,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,…",
            help="What the column to predict can be, all of it public: PUBLIC need not have that "
            "column then.",
        ),
    ] = None,
    bins: reading.Bins = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Where to write the schema (JSON); - is standard output. What explains it is then "
            "on standard error.",
        ),
    ] = Path("schema.json"),
    group: reading.Group = None,
    ignore: reading.Ignore = None,
    keep: reading.Keep = None,
    columns: reading.Columns = None,
) -> None:
    """Propose a schema for a public table, explain it, and write it to a file you can edit.

    Students will see every value in the schema. None may come from private rows.

    [bold]Examples[/bold]

      terrine ensemble schema census-sample.csv --label income --out schema.json

      terrine ensemble schema --declare
    """
    if declare:
        if any((public, label, classes, bins, group, ignore, keep, columns)):
            fail("--declare asks for everything: leave the other options but --out away.")
        _declare_schema(out)
        return
    if public is None or label is None:
        fail("Name a public table and its column to predict (--label); or give --declare.")
    printed = str(out) == "-"
    note_on = reading.note_aside if printed else reading.note
    if not printed and out.is_file():
        fail(f"{out} already exists; remove it or choose another file.")
    with stages_bar(errors if printed else console, f"Reading {public.name}") as (progress,):
        proposal = propose_schema(
            public,
            label=label,
            classes=reading.parse_classes(classes),
            bins=reading.parse_bins(bins),
            group=group,
            columns=reading.split_names(columns),
            ignore=ignore or (),
            keep=keep or (),
            note=note_on,
            progress=progress,
        )
    if printed:
        with writing(None) as standard_output:
            standard_output.write(proposal.to_json())
        show_schema(proposal, public, "The schema", errors)
        return
    write_atomically(out, proposal.to_json().encode(), public=True)
    show_schema(proposal, public, out)
    say(f"Then: terrine ensemble train PRIVATE.csv --name NAME --teachers N --schema {out}")


def _declare_schema(out: Path) -> None:
    """Ask somebody at the terminal what a table may hold, and write it."""
    if str(out) == "-" or not sys.stdin.isatty():
        fail("--declare asks questions at a terminal, and writes a file: --out FILE.")
    features = quantity(len(declare_schema(out, reading.Terminal()).features), "column")
    say(f"{out}: {features} to learn from. Then, without any public data:")
    say(f"  {command_text('quickstart', 'PRIVATE.csv', '--schema', out)}")


def show_schema(
    proposal: SchemaProposal, public: Path, out: Path | str, terminal: Console = console
) -> None:
    """Print each column's role and why, what a schema makes public, and whom it protects.

    `out`: where it was written, or what is said of that.
    """
    _show_guesses(proposal.guesses, terminal)
    columns = proposal.schema.columns
    ranges = sum(column.role in ("numeric", "date") for column in columns)
    lists = sum(
        column.values is not None
        for column in columns
        if column.role != "label" or not proposal.declared
    )
    say(
        f"{out}: {quantity(len(columns), 'column')}. Review it: everything in it will be public.",
        to=terminal,
    )
    say(
        f"Taken from {public}: the column names, the lowest and highest value of "
        f"{quantity(ranges, 'column')}, all values of {quantity(lists, 'column')}, the number of "
        f"rows and the SHA-256. If {public.name} is not public, replace all of this with what you "
        "know without it, or make the schema from an invented table.",
        to=terminal,
    )
    if not any(column.role == "group" for column in columns):
        say(
            "No column identifies people, so the guarantee will protect single rows. If a person "
            "can have several rows, name the column that identifies people with --group.",
            to=terminal,
        )


def _show_guesses(guesses: Sequence[RoleGuess], terminal: Console) -> None:
    """Print a row for each guess, of very many for those with a question first."""
    shown = sorted(guesses, key=lambda guess: guess.doubt is None)[:MAX_SHOWN_COLUMNS]
    table = Table("column", "role", "why", "check")
    for guess in shown if len(guesses) > MAX_SHOWN_COLUMNS else guesses:
        texts = (guess.column.name, guess.column.role, guess.why, guess.doubt or "")
        table.add_row(*map(escape, texts))
    terminal.print(table)
    if more := len(guesses) - len(shown):
        terminal.print(f"… and {more:,} more columns: the schema says the same of each.")
