"""`terrine ensemble …`: train, show, verify and register ensembles; propose table schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_protocol import EnsembleRegister
from terrine_server.cli import reading
from terrine_server.cli.console import (
    SPEC,
    as_json,
    built,
    console,
    errors,
    fail,
    opened_ledger,
    output,
    print_json,
    show_kind,
    show_kinds,
    takes,
    with_json,
    writing,
)
from terrine_server.cli.plan import by_stand_ins, ensemble_directory, evaluate
from terrine_server.cli.reading import split
from terrine_server.progress import stages_bar, teachers_bar

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.teachers.manifests import Manifest
    from terrine_models.teachers.training import Trainer


LISTED = 5
"""Classes that are named."""
OFTEN = 0.2
"""Share of the teachers that may lack a class."""


def show_shards(data: Dataset, teachers: int, seed: int) -> None:
    """Print what each teacher will see, and warn of classes that many lack."""
    from terrine_models.teachers.shards import ShardSummary

    found = ShardSummary.of(data, teachers, seed)
    people = "" if found.people is None else f" of {found.people:,} people"
    smallest, middle, largest = found.rows
    fewest, usual, most = found.classes
    classes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    _say(
        f"[bold]Private, for your eyes only:[/] {found.records:,} records{people} for "
        f"{teachers:,} teachers. The smallest shard has {smallest:,} records, the median "
        f"{middle:,}, the largest {largest:,}. A teacher sees {classes} "
        f"of {len(data.classes)} classes, {usual} in the middle."
    )
    rare = {name: n for name, n in found.lacking.items() if n > OFTEN * teachers}
    if rare:
        named = [f"{escape(name)} ({n:,} teachers)" for name, n in list(rare.items())[:LISTED]]
        more = f" and {len(rare) - LISTED} more" if len(rare) > LISTED else ""
        _warn(
            f"Many teachers have no record of a class, and such a teacher never votes for it: "
            f"{', '.join(named)}{more}. Train fewer teachers, or merge rare classes."
        )


def private_rows(public: PublicData, private: Dataset) -> str:
    """Say how many public rows are private ones as well. Raises DataError if these are many.

    Nothing is changed by it, and it is stored nowhere: which rows are private may not be told.
    """
    shared = public.count_private_rows(private)
    return (
        f"Private, for your eyes only: {shared:,} of {len(public.inputs):,} public rows are rows "
        "of private records as well. Nothing is left out or stored because of that: what a public "
        "row says of somebody is not protected."
    )


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False)


def _warn(text: str) -> None:
    console.print(f"[yellow]Warning:[/] {text}", soft_wrap=True, highlight=False)


app = typer.Typer(no_args_is_help=True, help="Train, show, verify and register ensembles.")
app.command()(evaluate)

Named = Annotated[
    str, typer.Argument(metavar="ENSEMBLE", help="Name of an ensemble, or its directory.")
]
Group = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column that names the person a row belongs to."),
]


class TrainingPlace(StrEnum):
    """Where teachers are trained."""

    HERE = "here"
    RAY = "ray"


@app.command()
def train(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Private training data: a directory of MNIST-style IDX files, an IDX file of "
            "images, a folder of PNG and JPEG files with one folder for each class, an .npz with "
            "x, y and optionally group, or a table: a .csv, .tsv, .txt or .data file (optionally "
            ".gz), a Parquet or an Arrow file.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the ensemble: a-z, 0-9, '-' and '_'.")],
    teachers: Annotated[int, typer.Option(min=1, help="Number of teachers to train.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to save. Default: ensembles/NAME in the data directory."
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            metavar=SPEC,
            help="What each teacher is: heads, networks or forest, such as networks:epochs=50. "
            "`terrine ensemble kinds` shows their parameters.",
        ),
    ] = "heads",
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Public data to fit the feature map on: IDX images, pictures, .npy, .npz, or a "
            "table.",
        ),
    ] = None,
    classes: reading.Classes = None,
    images: reading.Images = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Public schema of a table: `terrine ensemble schema`."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the partition and the training.")] = 0,
    on: Annotated[
        TrainingPlace,
        typer.Option(
            help="ray: on the cluster at TERRINE_RAY_ADDRESS, or on one of this machine's "
            "processors."
        ),
    ] = TrainingPlace.HERE,
) -> None:
    """Train teachers on disjoint parts of private data.

    If interrupted, run the same command again to continue where it stopped.

    [bold]Examples[/bold]

      terrine ensemble train mnist/ --name digits --teachers 1000 --public pool.npy

      terrine ensemble train clothes/ --name clothes --teachers 500 --public pool.npy
          --kind heads:augmentations=0,ridge=0.03

      terrine ensemble train patients.csv --name wards --teachers 100 --kind forest
          --schema schema.json

      terrine ensemble train adult.csv --name income --teachers 250
          --public census-sample.csv --schema schema.json
    """
    from terrine_models.tables.loading import is_table
    from terrine_models.teachers.kinds import trainable
    from terrine_models.teachers.training import train_ensemble
    from terrine_server.owner.editions import records_key
    from terrine_server.owner.operations import make_directories
    from terrine_server.settings import Settings

    own = Settings()
    out = out or own.ensembles_dir / name
    config = built("--kind", kind, trainable())
    if is_table(data):
        if classes or images:
            fail("--classes and --images are for images and arrays; a table has a schema.")
        private, named_public, _ = reading.load_table_data(data, schema, public)
    else:
        if schema:
            fail("--schema is for tables only.")
        options = reading.Arrays(public, classes, images)
        private, named_public, _ = reading.load_array_data(data, options)
    if named_public is not None:
        reading.note(private_rows(named_public, private))
    show_shards(private, teachers, seed)
    make_directories(own)
    key = records_key(own, make=True)
    with trainer(on) as where, teachers_bar(console, teachers) as on_trained:
        manifest = train_ensemble(
            private,
            out,
            name=name,
            teachers=teachers,
            config=config,
            public=named_public,
            seed=seed,
            on_trained=on_trained,
            trainer=where,
            key=key,
        )
    show_manifest(out, manifest)


@app.command()
@with_json
def kinds(
    name: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="Show this one's parameters.")
    ] = None,
) -> None:
    """Show the kinds of teacher that `train` takes, and their parameters."""
    from terrine_models.teachers.kinds import trainable

    found = trainable()
    if name is None:
        show_kinds(found)
    elif name in found:
        show_kind(found[name])
    else:
        fail(f"There is no kind {name!r}, but {', '.join(found)}.")


@app.command()
@with_json
def show(ensemble: Named) -> None:
    """Show an ensemble's manifest.

    [bold]Example[/bold]: terrine ensemble show digits
    """
    from terrine_models.teachers.kinds import ensemble_format, load_manifest

    directory = ensemble_directory(ensemble)
    held = ensemble_format(directory)
    if held.has_manifest:
        show_manifest(directory, load_manifest(directory))
    else:
        print_json(held.load(directory))


@app.command()
def verify(ensemble: Named) -> None:
    """Check every file of an ensemble against the digests in its manifest.

    [bold]Example[/bold]: terrine ensemble verify digits
    """
    from terrine_models.teachers.ensemble import load
    from terrine_models.teachers.kinds import ensemble_format

    directory = ensemble_directory(ensemble)
    held = ensemble_format(directory)
    if not held.has_manifest:
        held.verify(directory)
        console.print(f"{directory}: {held.document} is as it should be.")
        return
    manifest = load(directory, device="cpu").manifest
    console.print(f"{directory}: all {len(manifest.files)} files match the manifest.")


@app.command()
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
    from terrine_server.owner.operations import register_ensemble
    from terrine_server.settings import Settings

    if rule is not None:
        found = re.fullmatch(r"(rdp|gdp)(?::([\d.]+))?", rule)
        if found is None:
            fail(f"--rule is rdp, rdp:ORDER (such as rdp:12) or gdp; not {rule}.")
        wanted = EnsembleRegister.model_validate(
            {**wanted.model_dump(), "rule": found[1], "order": found[2]}
        )
    ledger = opened_ledger()
    record = register_ensemble(ledger, Settings(), wanted)
    population = record.population
    others = [
        each.name
        for each in ledger.ensembles()
        if each.population.id == population.id and each.name != record.name
    ]
    shared = f" It shares this cap with {', '.join(others)}." if others else ""
    console.print(
        f"Registered {record.name}, of the population {population.name}: all projects on its "
        f"ensembles together stay within ε = {population.epsilon:g}, δ = {population.delta:g}, "
        f"added up in {population.rule}.{shared} "
        f"Next: terrine project open --ensemble {record.name} …",
        soft_wrap=True,
    )


@app.command()
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Forget people in every ensemble of their population, for good, while the service runs.

    Their records are gone when this is done, teachers that learned from them are trained anew
    without them, and what is charged afterwards is answered without them, under the same caps,
    projects and tokens. Keyed digests of their names stay, which keep them from coming back. If
    this is interrupted, run it again. Backups, FILE and the files that ensembles were made of are
    yours to clean.

    [bold]Examples[/bold]

      terrine ensemble forget --who withdrawn.csv

      terrine ensemble forget --who withdrawn.csv --records wards=patients.csv
          --public wards=census-sample.csv
    """
    from terrine_models.features.maps import PublicData
    from terrine_models.teachers.people import name_digests
    from terrine_protocol.tables.encoding import encode_table
    from terrine_server.owner import editions
    from terrine_server.settings import Settings

    settings, ledger = Settings(), opened_ledger()
    key = editions.records_key(settings)
    members = editions.members(ledger, population)
    files = reading.by_ensemble("--records", records or ())
    pools = reading.by_ensemble("--public", public or ())
    for name in pools:
        if name not in files:
            fail(f"--public {name}=… is for training {name} anew: give --records {name}=… as well.")
    retraining = {}
    for name, path in files.items():
        manifest = reading.newest(ledger, settings, name)
        pool = None
        if name in pools:
            if manifest.encoding is None:
                fail("--public is for tables: only their teachers match a prior on public rows.")
            rows = encode_table(pools[name], manifest.encoding, reading.note, accept_clipped=True)
            pool = PublicData.declare(pools[name].name, rows)
        retraining[name] = editions.Retraining(reading.records(manifest, path), pool)
    named = reading.names(members, settings, who)
    if not yes:
        whose = members[0].population.name
        typer.confirm(f"Forget {len(named)} people of {whose} for good?", abort=True)
    with console.status("Forgetting"):
        done = editions.forget(ledger, settings, population, name_digests(named, key), retraining)
    nameless = [each.name for each in members if each.name not in done]
    reading.show_who_left(done, nameless, settings)


@app.command("list")
@with_json
def list_ensembles() -> None:
    """List the registered ensembles, the caps of their populations, and what is reserved of these.

    A cap is listed with each ensemble that shares it.
    """
    from terrine_server import views
    from terrine_server.labeling.any_voters import AnyVoters
    from terrine_server.settings import Settings

    records = opened_ledger().ensembles()
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


@app.command()
def schema(
    public: Annotated[
        Path, typer.Argument(metavar="PUBLIC", help="A public table: CSV, Parquet or Arrow.")
    ],
    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict.")],
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
    group: Group = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column to leave out. May be repeated."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column to use as a feature. May be repeated."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Names of the columns of a CSV file without a header."),
    ] = None,
) -> None:
    """Propose a schema for a public table, explain it, and write it to a file you can edit.

    Students will see every value in the schema. None may come from private rows.

    [bold]Example[/bold]: terrine ensemble schema census-sample.csv --label income --out schema.json
    """
    from terrine_models.tables.roles import propose_schema
    from terrine_protocol.files import write_atomically

    printed = str(out) == "-"
    note = reading.note_aside if printed else reading.note
    if not printed and out.is_file():
        fail(f"{out} already exists; remove it or choose another file.")
    with stages_bar(errors if printed else console, f"Reading {public.name}") as (progress,):
        proposal = propose_schema(
            public,
            label=label,
            classes=reading.class_names(classes),
            bins=reading.edges(bins),
            group=group,
            columns=split(columns),
            ignore=ignore or (),
            keep=keep or (),
            note=note,
            progress=progress,
        )
    if printed:
        with writing(None) as standard_output:
            standard_output.write(proposal.to_json())
        reading.show(proposal, public, "The schema", errors)
        return
    write_atomically(out, proposal.to_json().encode(), public=True)
    reading.show(proposal, public, out)
    note(f"Then: terrine ensemble train PRIVATE.csv --name NAME --teachers N --schema {out}")


def show_manifest(directory: Path, manifest: Manifest) -> None:
    """Print what a manifest says."""
    from terrine_models.storage.manifests import manifest_digest

    spec, kind, partition = manifest.input, manifest.teacher, manifest.partition
    features = kind.features
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("name", manifest.name)
    table.add_row("teachers", f"{manifest.teachers} ({manifest.kind})")
    table.add_row("inputs", f"{spec.dtype} {list(spec.shape)}, {spec.low:g} to {spec.high:g}")
    table.add_row("classes", f"{len(manifest.classes)}: {_shortened(', '.join(manifest.classes))}")
    if features is not None:
        table.add_row("features", f"{features.base}, {features.projection}, {features.width} wide")
        source = features.fitted_on
        if features.backbone is not None:
            public_model = features.backbone
            table.add_row("backbone", f"{escape(public_model.name)}, SHA-256 {public_model.sha256}")
        fitted = f"{source.name} ({source.records} public records)" if source else "no data"
        table.add_row("fitted on", fitted)
    if manifest.image is not None:
        size = f"{manifest.image.height} × {manifest.image.width}"
        bits = "" if manifest.image.bits is None else f", {manifest.image.bits} of 16 bits"
        table.add_row("pictures", f"{size}, {'grey' if manifest.image.grey else 'colour'}{bits}")
    if manifest.encoding is not None:
        source = manifest.encoding.fitted_on
        table.add_row("encoding", f"from {source.name}" if source else "from a hand-written schema")
    for what, text in kind.described().items():
        table.add_row(what, escape(text))
    grouped = partition is not None and partition.recipe == "groups"
    table.add_row("people" if grouped else "records", str(manifest.units))
    if partition is not None and manifest.kind != "neighbours":
        unit = "people" if partition.recipe == "groups" else "records"
        table.add_row("shards", f"{partition.smallest} to {partition.largest} {unit} each")
    table.add_row("manifest", f"SHA-256 {manifest_digest(directory)}")
    table.add_row("directory", str(directory))
    console.print(table, soft_wrap=True)


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


@contextmanager
def trainer(where: TrainingPlace) -> Iterator[Trainer]:
    """Yield what trains teachers there; a cluster is left at the end."""
    from terrine_models.teachers.training import train_locally

    if where is TrainingPlace.HERE:
        yield train_locally
        return
    from terrine_models.addons import added_as
    from terrine_server.settings import Settings

    elsewhere = added_as("trainers", where)
    if elsewhere is None:
        fail(f"`--on {where}` needs the add-on `{where}`, which this installation lacks.")
    with elsewhere(Settings()) as train_elsewhere:
        yield train_elsewhere


neighbours_app = typer.Typer(
    no_args_is_help=True, help="Let every person vote, with an account of their own."
)


@neighbours_app.command()
def build(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="PRIVATE", help="Private records, in a format that `ensemble train` reads."
        ),
    ],
    public: Annotated[
        Path,
        typer.Option(
            metavar="POOL",
            help="Public data, on which the map and the radius are fitted: such as students ask "
            "about.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the ensemble: a-z, 0-9, '-' and '_'.")],
    near: Annotated[
        int,
        typer.Option(
            min=1, help="How many people, by public rows, a query asks: for a smaller ε, more."
        ),
    ] = 240,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public schema of a table: `terrine ensemble schema`. Its column of the role "
            "group says whose a row is.",
        ),
    ] = None,
    classes: reading.Classes = None,
    images: reading.Images = None,
    backbone: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An ONNX model [batch, …] → [batch, D] whose embeddings are the features. It must "
            "be public: nobody's private records may have trained it.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to save. Default: ensembles/NAME in the data directory."
        ),
    ] = None,
) -> None:
    """Place private records on a public map, where each votes for what lies near it.

    Nothing is trained. The directory holds a transformed copy of every private record.

    [bold]Examples[/bold]

      terrine neighbours build mnist/ --public pool.npy --name digits

      terrine neighbours build patients.csv --public census-sample.csv --schema schema.json
          --name wards --near 100
    """
    from terrine_models.teachers.neighbours import (
        NeighbourEnsemble,
        NeighbourSettings,
        forecast_from_public,
    )
    from terrine_models.teachers.neighbours import build as place
    from terrine_server.owner.editions import records_key
    from terrine_server.owner.operations import make_directories
    from terrine_server.settings import Settings

    own = Settings()
    out = out or own.ensembles_dir / name
    private, pool, _ = loaded(data, public, schema, classes, images)
    reading.note(private_rows(pool, private))
    make_directories(own)
    key = records_key(own, make=True)
    with console.status("Placing the records"):
        settings = NeighbourSettings(near=near, backbone=backbone)
        manifest = place(private, out, name=name, public=pool, settings=settings, key=key)
    show_manifest(out, manifest)
    found = forecast_from_public(NeighbourEnsemble.load(out))
    said = (
        f"{found.near:,.0f} people near a query, {found.fewest:,.0f} to {found.most:,.0f} near "
        f"four in five; one of them near {found.appearances:.2%} of the queries, the busiest "
        f"hundredth near {found.busiest:.2%} or more."
    )
    console.print(
        f"{by_stand_ins(found, said)}\n"
        f"Next: terrine ensemble register {name} --epsilon ε --delta δ",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


Ensemble = Annotated[
    str, typer.Argument(metavar="ENSEMBLE", help="A registered ensemble of neighbours.")
]


@neighbours_app.command()
def add(
    ensemble: Ensemble,
    more: Annotated[
        Path,
        typer.Argument(metavar="MORE", help="Private records, in the format of those it has."),
    ],
) -> None:
    """Let people join, while the service runs: they vote from the next query on.

    Only where the ensemble knows whose its records are (the role group). Each new person has an
    empty account in every project. More records of a person who is there are added to that
    person's, those that are there already are not; who was forgotten is left out.

    [bold]Example[/bold]: terrine neighbours add wards admitted-in-may.csv
    """
    from terrine_models.teachers.neighbours import NeighbourTeachers
    from terrine_server.owner import editions
    from terrine_server.settings import Settings

    settings, ledger = Settings(), opened_ledger()
    manifest = reading.newest(ledger, settings, ensemble)
    if not isinstance(manifest.teacher, NeighbourTeachers):
        fail(
            f"{ensemble} has trained teachers, of the kind {manifest.kind}, and nobody joins "
            "these. Train another ensemble of the population."
        )
    made = editions.add(ledger, settings, ensemble, reading.records(manifest, more))
    say = f"Edition {made.edition} of {ensemble} serves. New people: {made.people:,}."
    if made.left_out:
        say += f" Left out, as they were forgotten before: {made.left_out:,}."
    console.print(say, soft_wrap=True)


def loaded(
    data: Path,
    public: Path,
    schema: Path | None,
    classes: str | None,
    images: str | None,
    note: Callable[[str], None] = reading.note,
) -> tuple[Dataset, PublicData, Dataset | None]:
    """Return private records, and public ones: as inputs, and with labels if they have any."""
    from terrine_models.tables.loading import is_table

    if is_table(data):
        if classes or images:
            fail("--classes and --images are for images and arrays; a table has a schema.")
        private, pool, labelled = reading.load_table_data(data, schema, public, note)
    else:
        if schema:
            fail("--schema is for tables only.")
        private, pool, labelled = reading.load_array_data(
            data, reading.Arrays(public, classes, images)
        )
    if pool is None:
        raise RuntimeError("--public was read, and is not there")
    return private, pool, labelled
