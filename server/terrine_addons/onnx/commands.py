"""`terrine ensemble split` and `import`: teachers that are trained elsewhere, as ONNX files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from terrine_addons.onnx.teachers import Declaration, import_ensemble
from terrine_models.data.arrays import InputSpec, RecordSource, load_inputs
from terrine_models.formats import load_private, private_schema
from terrine_models.tables.loading import Table, encoded_input, read_schema
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.shards import PARTITION_FILE, read_partition, split
from terrine_protocol.base import quantity
from terrine_server.cli.console import console, fail, say
from terrine_server.cli.options import NewEnsemble
from terrine_server.cli.reading import (
    Classes,
    Images,
    Schema,
    note,
    parse_classes,
    parse_images,
)
from terrine_server.progress import stages_bar
from terrine_server.settings import Settings
from terrine_tables.encoding import encode_table
from terrine_tables.formats import is_table


def import_(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL…", help="ONNX files, one for each teacher.")
    ],
    name: NewEnsemble,
    disjoint_by: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="How it is sure that no person's records trained two teachers. Everybody who uses "
            "the ensemble sees it, as declared by you and not checked.",
        ),
    ],
    inputs: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="DTYPE:SHAPE[:LOW..HIGH]|FILE",
            help="What students send: float32:20:0..1, uint8:28x28, the public schema of a table, "
            "whose encoded rows teachers take, or the partition.json of `terrine ensemble split`, "
            "if the teachers were trained on its shards.",
        ),
    ],
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,…",
            help="Classes: their number or their names, in order. A file of --input says them.",
        ),
    ] = None,
    units: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training records of all teachers together, or people where one has several: "
            "δ must be below 1/N. A partition.json says it.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The output to use, of models with several."),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Public inputs (.npy, .npz, IDX, or a table) to try."),
    ] = None,
) -> None:
    """Import teachers that you have: check ONNX files and copy them into an ensemble.

    [bold]Examples[/bold]

      terrine ensemble import models/*.onnx --name ward --classes home,ward --input float32:20:0..1
          --units 30000 --disjoint-by "one model per hospital; no patient is in two"

      terrine ensemble import models/*.onnx --name ward --input shards/partition.json
          --disjoint-by "terrine ensemble split by patient; model i knows shard i alone"
    """
    if not disjoint_by.strip():
        fail("--disjoint-by is empty. Say how no person's records came to train two teachers.")
    declared = _declare(disjoint_by.strip(), inputs, classes, units, len(models), output)
    out = Settings().ensembles_dir / name
    tried = None if public is None else _public(public, declared)
    with console.status(f"Checking {quantity(len(models), 'file')}"):
        manifest = import_ensemble(models, out, name, declared, tried)
    _say(out, manifest)


def split_(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Private training data, in a format that `train` reads."
        ),
    ],
    teachers: Annotated[int, typer.Option(min=1, help="Number of shards.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write the shards.")],
    schema: Schema = None,
    classes: Classes = None,
    images: Images = None,
) -> None:
    """Split private data into disjoint shards (.npz), to train a teacher on each with anything.

    All rows of a person go to one shard, if the schema or a `group` array says whose they are.

    [bold]Example[/bold]: terrine ensemble split patients.csv --teachers 250 --schema schema.json
    --out shards
    """
    names, image = parse_classes(classes), parse_images(images)
    table = private_schema(data, schema, names, image)
    with stages_bar(console, f"Reading {data.name}", "Writing shards") as (reading, writing):
        private: RecordSource
        if table is not None:
            private = Table(data, table, note, reading)
        else:
            private = load_private(data, classes=names, image=image, note=note)
        sharded = split(private, out, teachers, progress=writing)
    parts = sharded.partition
    unit = "people" if parts.recipe == "groups" else "records"
    say(
        f"{out}: {teachers:,} shards of {parts.smallest:,} to {parts.largest:,} {unit}. They are "
        f"as private as the data. Train teacher i on shard i alone; then\n"
        f"terrine ensemble import MODEL… --name NAME --input {out / PARTITION_FILE} "
        "--disjoint-by TEXT",
    )


def parse_input(text: str) -> InputSpec:
    """Parse DTYPE:SHAPE[:LOW..HIGH]. Only bytes have a range by themselves, 0 to 255."""
    found = re.fullmatch(r"(uint8|float32):(\d+(?:x\d+)*)(?::([^:]+)\.\.([^:]+))?", text)
    try:
        if found is None:
            raise ValueError
        dtype, shape, low, high = found.groups()
        ends = (0.0, 255.0) if low is None and dtype == "uint8" else (float(low), float(high))
        sizes = tuple(int(size) for size in shape.split("x"))
        return InputSpec(shape=sizes, dtype=dtype, low=ends[0], high=ends[1])
    except (ValueError, TypeError):
        fail(
            "--input takes float32:SHAPE:LOW..HIGH or uint8:SHAPE, for example float32:20:0..1 or "
            "uint8:28x28 (at most 4 sizes, LOW below HIGH), or a schema or partition (.json); "
            f"not {text!r}."
        )


def _declare(
    disjoint_by: str,
    inputs: str,
    classes: str | None,
    units: int | None,
    models: int,
    output: str | None,
) -> Declaration:
    path = Path(inputs)
    if path.suffix.lower() == ".json":
        if classes:
            fail(f"{path} says the classes; drop --classes.")
        if path.name == PARTITION_FILE:
            return _of_shards(path, models, units, disjoint_by, output)
    elif classes is None:
        fail("--classes is missing: their number, or their names.")
    if units is None:
        fail("--units is missing: how many records, or people, trained the teachers?")
    if path.suffix.lower() == ".json":
        known = read_schema(path)
        label = next(column for column in known.columns if column.role == "label")
        spec = encoded_input(known)
        return Declaration(spec, label.values or (), units, disjoint_by, known, output)
    names = parse_classes(classes) or []
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        fail(f"--classes takes two or more different names, or their number; not {classes!r}.")
    return Declaration(parse_input(inputs), tuple(names), units, disjoint_by, output=output)


def _of_shards(
    partition: Path, models: int, units: int | None, disjoint_by: str, output: str | None
) -> Declaration:
    if units:
        fail(f"{partition} says the number of units; drop --units.")
    sharded = read_partition(partition)
    if models != sharded.teachers:
        fail(
            f"{partition} has {sharded.teachers:,} shards, and {models:,} models are given: "
            "expected one for each shard."
        )
    return Declaration(
        sharded.input,
        sharded.classes,
        sharded.units,
        disjoint_by,
        sharded.encoding,
        output,
        sharded.partition,
    )


def _public(path: Path, declared: Declaration) -> np.ndarray:
    if not is_table(path):
        return load_inputs(path)
    if declared.encoding is None:
        fail(f"{path} is a table: to try its rows, give its schema as --input.")
    return encode_table(path, declared.encoding, note, go_on=None)


def _say(out: Path, manifest: Manifest) -> None:
    say(
        f"Imported {manifest.teachers:,} teachers into {out}. Disjoint, as declared by you and "
        f"not checked: {manifest.teacher.declared_disjoint}\n"
        f"Next: terrine ensemble register {manifest.name} --epsilon ε --delta δ",
    )
