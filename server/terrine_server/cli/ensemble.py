"""`terrine ensemble train`, `show` and `schema`: ensembles that are made of private records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from terrine_models.addons import load_added_as
from terrine_models.data.arrays import Dataset
from terrine_models.features.maps import PublicData
from terrine_models.formats import load_private
from terrine_models.storage.manifests import manifest_digest
from terrine_models.tables.roles import RoleGuess, SchemaProposal, propose_schema
from terrine_models.teachers.ensemble import load
from terrine_models.teachers.kinds import Reached, ensemble_format, load_manifest
from terrine_models.teachers.manifests import Manifest, TeacherSettings
from terrine_models.teachers.neighbours import (
    NeighbourEnsemble,
    NeighbourSettings,
    forecast_from_public,
)
from terrine_models.teachers.neighbours import build as place_records
from terrine_models.teachers.shards import ShardSummary
from terrine_models.teachers.training import Trainer, train_ensemble, train_locally
from terrine_protocol.base import quantity
from terrine_protocol.files import write_atomically
from terrine_protocol.names import show_name
from terrine_server.cli import reading
from terrine_server.cli.console import (
    as_json,
    command_text,
    console,
    errors,
    fail,
    print_json,
    say,
    tabulate,
    warn,
    writing,
)
from terrine_server.cli.options import SPEC, NewEnsemble, parse_kind, teacher_kinds
from terrine_server.cli.plan import by_stand_ins
from terrine_server.cli.reading import Classes, Images, Schema
from terrine_server.owner.editions import records_key
from terrine_server.owner.operations import make_directories
from terrine_server.progress import stages_bar, teachers_bar
from terrine_server.quickstart.dialogue import declare_schema
from terrine_server.quickstart.records import describe_private_rows, load_pool
from terrine_server.settings import Settings
from terrine_tables.encoders import declare_embedding

MAX_SHOWN_COLUMNS = 200
"""Of a proposed schema, on a terminal; the file has all."""
PARTITION_SEED = 0
"""Whose shard is whose is no secret."""
MAX_LISTED_CLASSES = 5
MAX_LACKING_SHARE = 0.2
"""Of the teachers, that may lack a class."""


def show_shards(data: Dataset, teachers: int) -> None:
    """Print what each teacher will see, and warn of classes that many lack."""
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


class TrainingPlace(StrEnum):
    """Where teachers are trained."""

    HERE = "here"
    RAY = "ray"


@contextmanager
def connect_trainer(where: TrainingPlace) -> Iterator[Trainer]:
    """Yield what trains teachers there; disconnect from a cluster at the end."""
    if where is TrainingPlace.HERE:
        yield train_locally
        return
    elsewhere = load_added_as("trainers", where)
    if elsewhere is None:
        fail(f"`--on {where}` needs the add-on `{where}`, which this installation lacks.")
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
        typer.Option(min=1, help="Number of teachers to train; neighbours need none."),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            metavar=SPEC,
            help="What votes: teachers that are trained, heads, networks or forest, such as "
            "networks:epochs=50; or neighbours, such as neighbours:near=100. `terrine parameters` "
            "shows all.",
        ),
    ] = "heads",
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="POOL",
            help="Public data, such as students ask about, to fit the feature map on: IDX images, "
            "pictures, .npy, .npz, or a table. Neighbours need them.",
        ),
    ] = None,
    classes: Classes = None,
    images: Images = None,
    schema: Schema = None,
    on: Annotated[
        TrainingPlace,
        typer.Option(
            help="ray: on the cluster at TERRINE_RAY_ADDRESS, or on one of this machine's "
            "processors."
        ),
    ] = TrainingPlace.HERE,
) -> None:
    """Make an ensemble: train teachers on disjoint parts of private data, or place neighbours.

    Neighbours are not trained: each person votes, by records on a public map, for what lies near.
    The directory holds a transformed copy of every private record then.

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
    """
    own = Settings()
    out = own.ensembles_dir / name
    config = parse_kind("--kind", kind, teacher_kinds())
    make: Callable[..., Manifest]
    if isinstance(config, NeighbourSettings):
        if teachers is not None or on is not TrainingPlace.HERE:
            fail("--teachers and --on are for training; neighbours are only placed.")
        if public is None:
            fail("--public is missing: neighbours are placed on a map of public data.")
        make = partial(_place, config)
    elif teachers is None:
        fail("--teachers is missing: how many are to be trained? Only neighbours need no number.")
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
        _show_forecast(out)
    say(f"Next: terrine ensemble register {name} --epsilon ε --delta δ")


def _train(
    config: TeacherSettings,
    teachers: int,
    on: TrainingPlace,
    private: Dataset,
    public: PublicData | None,
    out: Path,
    *,
    name: str,
    key: bytes | None,
) -> Manifest:
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
    with console.status("Placing the records"):
        return place_records(private, out, name=name, public=public, settings=config, key=key)


def _show_forecast(directory: Path) -> None:
    """Print how many people will be near a query, by public rows."""
    found = forecast_from_public(NeighbourEnsemble.load(directory))
    forecast = (
        f"{found.near:,.0f} people near a query, {found.fewest:,.0f} to {found.most:,.0f} near "
        f"four in five; one of them near {found.appearances:.2%} of the queries, the busiest "
        f"hundredth near {found.busiest:.2%} or more."
    )
    say(by_stand_ins(found, forecast))


def show_directory(directory: Path, *, verify: bool) -> None:
    """Print what a directory of an ensemble holds, once it is verified if that is wanted.

    Raises StoreError for what cannot be read or is not as it should be.
    """
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
    if partition is not None and manifest.kind != "neighbours":
        fields["shards"] = f"{partition.smallest} to {partition.largest} {unit} each"
    fields |= {"manifest": f"SHA-256 {manifest_digest(directory)}", "directory": str(directory)}
    console.print(tabulate(fields), soft_wrap=True)


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
    embedding: reading.Embedded = None,
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
            embedding=None if embedding is None else declare_embedding(embedding),
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
