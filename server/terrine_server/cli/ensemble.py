"""`terrine ensemble train` and `show`: ensembles that are made of private records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from terrine_models.addons import load_added_as
from terrine_models.data.arrays import Dataset
from terrine_models.features.maps import PublicData
from terrine_models.storage.manifests import manifest_digest
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
from terrine_protocol.names import show_name
from terrine_server.cli import reading
from terrine_server.cli.console import (
    as_json,
    console,
    fail,
    print_json,
    say,
    tabulate,
    warn,
)
from terrine_server.cli.options import SPEC, NewEnsemble, parse_kind, teacher_kinds
from terrine_server.cli.plan import by_stand_ins
from terrine_server.cli.reading import Classes, Images, Schema
from terrine_server.owner.editions import records_key
from terrine_server.owner.operations import make_directories
from terrine_server.progress import teachers_bar
from terrine_server.settings import Settings
from terrine_tables.columns import Note

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


def describe_private_rows(public: PublicData, private: Dataset) -> str:
    """Return how many public rows are private ones as well, as text that is stored nowhere.

    Raises DataError if these are many.
    """
    shared = public.count_private_rows(private)
    return (
        f"Private, for your eyes only: {shared:,} of {len(public.inputs):,} public rows are rows "
        "of private records as well, as they are encoded. Nothing is left out or stored because of "
        "that: what a public row says of somebody is not protected."
    )


def load_pool(
    public: Path, private: Dataset, note: Note = reading.note
) -> tuple[PublicData, Dataset | None]:
    """Return public records, of the format of private ones, and with labels if they have any."""
    found = reading.load_public(public, private, note)
    labels = None if private.encoding or found.labelled is None else found.labelled.labels
    return PublicData.declare(public.name, found.inputs, found.groups, labels), found.labelled


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
            "x, y and optionally group, or a table: a .csv, .tsv, .txt or .data file (optionally "
            ".gz), a Parquet or an Arrow file.",
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
    private = reading.load_private(data, schema, classes, images, public)
    pool = None if public is None else load_pool(public, private)[0]
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
