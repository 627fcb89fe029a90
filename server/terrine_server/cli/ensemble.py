"""`terrine ensemble …`: train, show, verify and register ensembles; propose table schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_protocol import EnsembleRegister
from terrine_server.cli import arrays, people, preview, tables
from terrine_server.cli.console import (
    as_json,
    console,
    errors,
    fail,
    opened_ledger,
    output,
    print_json,
    with_json,
    writing,
)
from terrine_server.cli.derived import takes
from terrine_server.cli.evaluate import ensemble_directory, evaluate
from terrine_server.cli.importing import import_, split_
from terrine_server.cli.specs import SPEC, built, show_kind, show_kinds
from terrine_server.cli.tables import split
from terrine_server.cli.ways import Bins
from terrine_server.progress import stages_bar, teachers_bar

if TYPE_CHECKING:
    from terrine_models.teachers.manifests import Manifest
    from terrine_models.teachers.training import Trainer

app = typer.Typer(no_args_is_help=True, help="Train, show, verify and register ensembles.")
app.command()(evaluate)
app.command("import")(import_)
app.command("split")(split_)

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
    classes: arrays.Classes = None,
    images: arrays.Images = None,
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
    from terrine_models.teachers.manifests import KINDS
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
        private, named_public, labelled = tables.load(data, schema, public)
    else:
        if schema:
            fail("--schema is for tables only.")
        options = arrays.Arrays(public, classes, images)
        private, named_public, labelled = arrays.load(data, options)
    if named_public is not None:
        tables.note(preview.private_rows(named_public, private))
    seen = preview.show(private, teachers, seed)
    if labelled is not None and KINDS[config.kind].previewed:
        preview.show_agreement(labelled, seen, config, seed)
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
    from terrine_models.teachers.federation import is_federation, load_federation
    from terrine_models.teachers.kinds import load_manifest

    directory = ensemble_directory(ensemble)
    if is_federation(directory):
        print_json(load_federation(directory))
    else:
        show_manifest(directory, load_manifest(directory))


@app.command()
def verify(ensemble: Named) -> None:
    """Check every file of an ensemble against the digests in its manifest.

    [bold]Example[/bold]: terrine ensemble verify digits
    """
    from terrine_models.teachers.ensemble import load
    from terrine_models.teachers.federation import is_federation, load_federation

    directory = ensemble_directory(ensemble)
    if is_federation(directory):
        federation = load_federation(directory)
        console.print(
            f"{directory}: a federation of {len(federation.owners)} owners, as it should be."
        )
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
    files = people.by_ensemble("--records", records or ())
    pools = people.by_ensemble("--public", public or ())
    for name in pools:
        if name not in files:
            fail(f"--public {name}=… is for training {name} anew: give --records {name}=… as well.")
    retraining = {}
    for name, path in files.items():
        manifest = people.newest(ledger, settings, name)
        pool = None
        if name in pools:
            if manifest.encoding is None:
                fail("--public is for tables: only their teachers match a prior on public rows.")
            rows = encode_table(pools[name], manifest.encoding, tables.note, accept_clipped=True)
            pool = PublicData.declare(pools[name].name, rows)
        retraining[name] = editions.Retraining(people.records(manifest, path), pool)
    named = people.names(members, settings, who)
    if not yes:
        whose = members[0].population.name
        typer.confirm(f"Forget {len(named)} people of {whose} for good?", abort=True)
    with console.status("Forgetting"):
        done = editions.forget(ledger, settings, population, name_digests(named, key), retraining)
    nameless = [each.name for each in members if each.name not in done]
    people.show_who_left(done, nameless, settings)


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
    bins: Bins = None,
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
    note = tables.note_aside if printed else tables.note
    if not printed and out.is_file():
        fail(f"{out} already exists; remove it or choose another file.")
    with stages_bar(errors if printed else console, f"Reading {public.name}") as (progress,):
        proposal = propose_schema(
            public,
            label=label,
            classes=arrays.class_names(classes),
            bins=tables.edges(bins),
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
        tables.show(proposal, public, "The schema", errors)
        return
    write_atomically(out, proposal.to_json().encode(), public=True)
    tables.show(proposal, public, out)
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
    from terrine_models.teachers.training import here

    if where is TrainingPlace.HERE:
        yield here
        return
    from terrine_models.teachers.ray_training import on_ray
    from terrine_server.settings import Settings

    with on_ray(Settings().ray_address) as on_cluster:
        yield on_cluster
