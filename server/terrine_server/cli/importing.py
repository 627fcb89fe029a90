"""`terrine ensemble split` and `import`: teachers that are trained elsewhere, as ONNX files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.bars import stages_bar
from terrine_server.cli import arrays
from terrine_server.cli.arrays import class_names
from terrine_server.cli.console import console, fail
from terrine_server.cli.tables import note

if TYPE_CHECKING:
    import numpy as np

    from terrine_models.data.arrays import InputSpec, Source
    from terrine_models.storage.manifests import Manifest
    from terrine_models.teachers.importing import Declared


def import_(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL…", help="ONNX files, one for each teacher.")
    ],
    name: Annotated[str, typer.Option(help="Name of the ensemble: a-z, 0-9, '-' and '_'.")],
    disjoint_by: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="How it is sure that no person's records trained two teachers. Everybody who uses "
            "the ensemble sees it, as declared by you and not checked.",
        ),
    ],
    classes: Annotated[
        str | None,
        typer.Option(metavar="N|A,B,…", help="Classes: their number or their names, in order."),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="DTYPE:SHAPE[:LOW..HIGH]",
            help="What students send, for example float32:20:0..1 or uint8:28x28.",
        ),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Public schema of a table, instead of --classes and --input: teachers take its "
            "encoded rows.",
        ),
    ] = None,
    partition: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The partition.json of `terrine ensemble split`, if the teachers were trained on "
            "its shards, instead of --classes, --input, --schema and --units.",
        ),
    ] = None,
    units: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training records of all teachers together, or people where one has several: "
            "δ must be below 1/N.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The output to use, of models with several."),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Public inputs (.npy, .npz, IDX, or CSV with --schema) to try."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to save. Default: ensembles/NAME in the data directory."
        ),
    ] = None,
) -> None:
    """Import teachers that you have: check ONNX files and copy them into an ensemble.

    [bold]Examples[/bold]

      terrine ensemble import models/*.onnx --name ward --classes home,ward --input float32:20:0..1
          --units 30000 --disjoint-by "one model per hospital; no patient is in two"

      terrine ensemble import models/*.onnx --name ward --partition shards/partition.json
          --disjoint-by "terrine ensemble split by patient; model i knows shard i alone"
    """
    from terrine_models.teachers.importing import import_ensemble

    if not disjoint_by.strip():
        fail("--disjoint-by is empty. Say how no person's records came to train two teachers.")
    if partition is None:
        declared = _declared(disjoint_by.strip(), classes, inputs, schema, units, output)
    else:
        if classes or inputs or schema or units:
            fail("--partition says what --classes, --input, --schema and --units say; drop these.")
        declared = _of_shards(partition, len(models), disjoint_by.strip(), output)
    if out is None:
        from terrine_server.settings import Settings

        out = Settings().ensembles_dir / name
    tried = None if public is None else _public(public, declared)
    with console.status(f"Checking {len(models)} files"):
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
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Public schema, for a table.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="IDX file with the labels of the images.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(metavar="N|A,B,…", help="Classes of IDX or .npz data.")
    ] = None,
    image_size: arrays.ImageSize = None,
    grey: arrays.Grey = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed for the partition.")] = 0,
) -> None:
    """Split private data into disjoint shards (.npz), to train a teacher on each with anything.

    All rows of a person go to one shard, if the schema or a `group` array says whose they are.

    [bold]Example[/bold]: terrine ensemble split patients.csv --teachers 250 --schema schema.json
    --out shards
    """
    from terrine_models.tables.loading import is_table, open_table, read_schema
    from terrine_models.teachers.splitting import PARTITION, split

    if is_table(data):
        if labels or classes or image_size:
            fail("--labels, --classes and --image-size are for arrays; a table has a schema.")
        if schema is None:
            fail(
                f"{data} is a table: give the public --schema that encodes it. "
                "`terrine ensemble schema --help` explains how to make one."
            )
    elif schema:
        fail("--schema is for tables.")
    with stages_bar(console, f"Reading {data.name}", "Writing shards") as (reading, writing):
        private: Source
        if schema is not None:
            private = open_table(data, read_schema(schema), note, reading)
        else:
            options = arrays.Arrays(None, labels, classes, image_size, grey)
            private, _, _ = arrays.load(data, options)
        sharded = split(private, out, teachers, seed, writing)
    parts = sharded.partition
    unit = "people" if parts.recipe == "groups" else "records"
    console.print(
        f"{out}: {teachers:,} shards of {parts.smallest:,} to {parts.largest:,} {unit}. They are "
        f"as private as the data. Train teacher i on shard i alone; then\n"
        f"terrine ensemble import MODEL… --name NAME --partition {out / PARTITION} "
        "--disjoint-by TEXT",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def parse_input(text: str) -> InputSpec:
    """Parse DTYPE:SHAPE[:LOW..HIGH]. Only bytes have a range by themselves, 0 to 255."""
    from terrine_models.data.arrays import InputSpec

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
            f"--input takes float32:SHAPE:LOW..HIGH or uint8:SHAPE, for example float32:20:0..1 "
            f"or uint8:28x28 (at most 4 sizes, LOW below HIGH); not {text!r}."
        )


def _declared(
    disjoint_by: str,
    classes: str | None,
    inputs: str | None,
    schema: Path | None,
    units: int | None,
    output: str | None,
) -> Declared:
    from terrine_models.teachers.importing import Declared

    if units is None:
        fail("--units is missing: how many records, or people, trained the teachers?")
    if schema is not None:
        if classes or inputs:
            fail("--schema says what --classes and --input say; drop these.")
        return _of_table(schema, units, disjoint_by, output)
    if classes is None or inputs is None:
        fail("Give --classes and --input, or the --schema of a table.")
    names = class_names(classes) or []
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        fail(f"--classes takes two or more different names, or their number; not {classes!r}.")
    return Declared(parse_input(inputs), tuple(names), units, disjoint_by, output=output)


def _of_table(schema: Path, units: int, disjoint_by: str, output: str | None) -> Declared:
    from terrine_models.tables.loading import encoded_input, read_schema
    from terrine_models.teachers.importing import Declared

    known = read_schema(schema)
    label = next(column for column in known.columns if column.role == "label")
    return Declared(encoded_input(known), label.values or (), units, disjoint_by, known, output)


def _of_shards(partition: Path, models: int, disjoint_by: str, output: str | None) -> Declared:
    from terrine_models.teachers.importing import Declared
    from terrine_models.teachers.splitting import read_partition

    sharded = read_partition(partition)
    if models != sharded.teachers:
        fail(
            f"{partition} has {sharded.teachers:,} shards, and {models:,} models are given: "
            "expected "
            "one for each shard."
        )
    return Declared(
        sharded.input,
        sharded.classes,
        sharded.units,
        disjoint_by,
        sharded.encoding,
        output,
        sharded.partition,
    )


def _public(path: Path, declared: Declared) -> np.ndarray:
    from terrine_models.data.arrays import load_inputs
    from terrine_models.tables.loading import encode_table, is_table

    if not is_table(path):
        return load_inputs(path)
    if declared.encoding is None:
        fail(f"{path} is a table: to try its rows, give the --schema that encodes them.")
    return encode_table(path, declared.encoding, note, accept_clipped=True)


def _say(out: Path, manifest: Manifest) -> None:
    console.print(
        f"Imported {manifest.teachers:,} teachers into {out}. Disjoint, as declared by you and "
        f"not checked: {manifest.foreign.disjoint_by if manifest.foreign else ''}\n"
        f"Next: terrine ensemble register {manifest.name} --epsilon ε --delta δ",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
