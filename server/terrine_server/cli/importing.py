"""`terrine ensemble import`: teachers that were trained elsewhere, as ONNX files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from terrine_server.cli.console import console, fail
from terrine_server.cli.tables import split

if TYPE_CHECKING:
    import numpy as np

    from terrine_models.data import InputSpec
    from terrine_models.importing import Declared
    from terrine_models.store import Manifest


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
    records: Annotated[
        int | None,
        typer.Option(min=1, help="Training records of all teachers together: δ must be below 1/N."),
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
          --records 30000 --disjoint-by "one model per hospital; no patient is in two"

      terrine ensemble import models/*.onnx --name ward --schema schema.json --output probabilities
          --records 30000 --disjoint-by "one model per hospital; no patient is in two"
    """
    from terrine_models.importing import import_ensemble

    declared = _declared(disjoint_by, classes, inputs, schema, records, output)
    if out is None:
        from terrine_server.settings import Settings

        out = Settings().ensembles_dir / name
    tried = None if public is None else _public(public, declared)
    with console.status(f"Checking {len(models)} files"):
        manifest = import_ensemble(models, out, name, declared, tried)
    _say(out, manifest)


def parse_input(text: str) -> InputSpec:
    """Parse DTYPE:SHAPE[:LOW..HIGH]. Only bytes have a range by themselves, 0 to 255."""
    from terrine_models.data import InputSpec

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
    records: int | None,
    output: str | None,
) -> Declared:
    from terrine_models.importing import Declared

    if not disjoint_by.strip():
        fail("--disjoint-by is empty. Say how no person's records came to train two teachers.")
    if records is None:
        fail("--records is missing: how many records trained the teachers, all together?")
    if schema is not None:
        if classes or inputs:
            fail("--schema says what --classes and --input say; drop these.")
        return _of_table(schema, records, disjoint_by, output)
    if classes is None or inputs is None:
        fail("Give --classes and --input, or the --schema of a table.")
    names = split(classes) or []
    if len(names) == 1 and names[0].isdigit():
        names = [str(i) for i in range(int(names[0]))]
    if len(names) < 2 or len(set(names)) < len(names) or not all(names):
        fail(f"--classes takes two or more different names, or their number; not {classes!r}.")
    return Declared(parse_input(inputs), tuple(names), records, disjoint_by.strip(), output=output)


def _of_table(schema: Path, records: int, disjoint_by: str, output: str | None) -> Declared:
    from terrine_models.importing import Declared
    from terrine_models.tables import encoded_input, read_schema

    known = read_schema(schema)
    label = next(column for column in known.columns if column.role == "label")
    return Declared(
        encoded_input(known), label.values or (), records, disjoint_by.strip(), known, output
    )


def _public(path: Path, declared: Declared) -> np.ndarray:
    from terrine_models.csv_files import is_table
    from terrine_models.data import load_inputs
    from terrine_models.tables import encode_csv

    if not is_table(path):
        return load_inputs(path)
    if declared.encoding is None:
        fail(f"{path} is a table: to try its rows, give the --schema that encodes them.")
    return encode_csv(path, declared.encoding)


def _say(out: Path, manifest: Manifest) -> None:
    console.print(
        f"Imported {manifest.teachers:,} teachers into {out}. Disjoint, as declared by you and "
        f"not checked: {manifest.foreign.disjoint_by if manifest.foreign else ''}\n"
        f"Next: terrine ensemble register {manifest.name} --epsilon ε --delta δ",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
