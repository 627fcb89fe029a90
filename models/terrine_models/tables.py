"""Tables: encode CSV files as numbers by a public schema.

Categories and ranges are stored in the manifest, and students need them to encode their own rows.
So they come from a schema that the owner wrote, or from a table that the owner declared public, and
never from private rows. A private value that is not in the schema is encoded as "other"; a number
outside the range is clipped to it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from .csv_files import Note, Row, Sheet, number, read_sheet, silent
from .data import DataError, Dataset, number_groups
from .store import Column, InputSpec, TableSchema

MISSING = ("", "?", "NA", "NaN")


def load_csv(path: Path, schema: TableSchema, note: Note = silent) -> Dataset:
    """Load the records of a labelled CSV file, plain or gzip, encoded by `schema`.

    The file has either a header that names all columns of the schema, or no header and exactly
    those columns in order. Raises DataError, which names line and column.
    """
    sheet = _records(Path(path), schema, note)
    path, rows = sheet.path, sheet.rows
    by_role = {column.role: i for i, column in enumerate(schema.columns)}
    label = schema.columns[by_role["label"]]
    classes = label.values or ()
    labels = np.array([_class_index(path, row, by_role["label"], label) for row in rows])
    groups = None
    if "group" in by_role:
        groups = number_groups([fields[by_role["group"]] for _, fields in rows])
    width = encoded_width(schema)
    return Dataset(
        _encode(sheet, schema),
        labels.astype(np.int64),
        classes,
        InputSpec(shape=(width,), dtype="float32", low=0, high=1),
        groups=groups,
        group_column=schema.columns[by_role["group"]].name if "group" in by_role else None,
        encoding=schema,
        name=str(path),
        sha256=sheet.sha256,
    )


def encode_csv(path: Path, schema: TableSchema, note: Note = silent) -> NDArray[np.float32]:
    """Encode a CSV file as inputs [N, width], as students send them. Raises DataError."""
    return _encode(_records(Path(path), schema, note), schema)


def encoded_width(schema: TableSchema) -> int:
    """Numbers per encoded row: one per numeric column; one per category and one for "other"."""
    numeric = sum(column.role == "numeric" for column in schema.columns)
    categorical = [column.values or () for column in schema.columns if column.role == "categorical"]
    return numeric + sum(len(values) + 1 for values in categorical)


def read_schema(path: Path) -> TableSchema:
    """Read a schema from a JSON file. Raises DataError."""
    try:
        return TableSchema.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise DataError(f"{path} is not a table schema: at {where}: {first['msg']}.") from None


def _encode(sheet: Sheet, schema: TableSchema) -> NDArray[np.float32]:
    rows = sheet.rows
    encoded = np.zeros((len(rows), encoded_width(schema)), dtype=np.float32)
    at = 0
    for i, column in enumerate(schema.columns):
        if column.role == "numeric":
            encoded[:, at] = _scaled(sheet, i, column)
            at += 1
        elif column.role == "categorical":
            index = {value: k for k, value in enumerate(column.values or ())}
            for r, (_, fields) in enumerate(rows):
                encoded[r, at + index.get(fields[i], len(index))] = 1
            at += len(index) + 1
    return encoded


def _scaled(sheet: Sheet, i: int, column: Column) -> list[float]:
    """Scale the numbers of a column from its range to 0..1."""
    low, high = column.low or 0.0, column.high or 0.0
    comma = sheet.decimal_commas([fields[i] for _, fields in sheet.rows])
    scaled = []
    for line, fields in sheet.rows:
        missing = fields[i] in MISSING
        value = (low + high) / 2 if missing else number(fields[i], decimal_comma=comma)
        if not math.isfinite(value):
            raise DataError(
                f"{sheet.path} line {line}: column {column.name} holds {fields[i]!r}, expected a "
                f"finite number. {_number_hint(sheet, fields[i], comma)}"
            )
        scaled.append(min(max((value - low) / (high - low), 0.0), 1.0))
    return scaled


def _number_hint(sheet: Sheet, text: str, comma: bool) -> str:
    if comma and "." in text:
        return "Other rows of this column have a decimal comma: use the same format in all rows."
    if "," in text and sheet.delimiter == ",":
        return "Decimal commas are read only if another character separates fields, as in a;3,5."
    return "If this line is a header, it must name every column of the schema."


def _class_index(path: Path, row: Row, i: int, label: Column) -> int:
    line, fields = row
    classes = label.values or ()
    for value in (fields[i], fields[i].removesuffix(".")):
        if value in classes:
            return classes.index(value)
    raise DataError(
        f"{path} line {line}: column {label.name} holds {fields[i]!r}, expected one of "
        f"{', '.join(classes)}."
    )


def _records(path: Path, schema: TableSchema, note: Note) -> Sheet:
    """Read all rows with their fields in the order of the schema, using a header if present."""
    names = [column.name for column in schema.columns]
    sheet = read_sheet(
        path, lambda first: len(first) == len(names) or set(names) <= set(first), note
    )
    rows = list(sheet.rows)
    order = list(range(len(names)))
    width = len(names)
    if rows and set(names) <= set(rows[0][1]):
        header = rows.pop(0)[1]
        order, width = [header.index(name) for name in names], len(header)
    if not rows:
        raise DataError(f"{path} holds no records.")
    for line, fields in rows:
        if len(fields) != width:
            raise DataError(
                f"{path} line {line}: found {len(fields)} fields, expected {width}"
                + ("." if width != len(names) else f": {', '.join(names)}.")
            )
    return replace(sheet, rows=[(line, [fields[i] for i in order]) for line, fields in rows])
