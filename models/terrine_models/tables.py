"""Tables: CSV files become numbers by a public schema.

Categories and ranges end up in the manifest, and students need them to encode their own rows. So
they come from a schema that the owner wrote, or from a table that the owner named as public, and
never from private rows. A private value that the schema does not know is encoded as "other"; a
number outside the range is clipped to it.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from .data import DataError, Dataset, number_groups
from .store import Column, InputSpec, PublicSource, TableSchema

MISSING = ("", "?", "NA", "NaN")
MOST_CATEGORIES = 1000

Row = tuple[int, list[str]]
"""Line number and fields."""


def load_csv(path: Path, schema: TableSchema) -> Dataset:
    """The records of a labelled CSV file, plain or `.gz`, encoded by `schema`.

    The file has a header that names all columns of the schema, or none and then exactly those
    columns in order. Raises DataError that names line and column.
    """
    path = Path(path)
    rows = _records(path, schema)
    by_role = {column.role: i for i, column in enumerate(schema.columns)}
    label = schema.columns[by_role["label"]]
    classes = label.values or ()
    labels = np.array([_class_index(path, row, by_role["label"], label) for row in rows])
    groups = None
    if "group" in by_role:
        groups = number_groups([fields[by_role["group"]] for _, fields in rows])
    width = encoded_width(schema)
    return Dataset(
        _encode(path, rows, schema),
        labels.astype(np.int64),
        classes,
        InputSpec(shape=(width,), dtype="float32", low=0, high=1),
        groups=groups,
        group_column=schema.columns[by_role["group"]].name if "group" in by_role else None,
        encoding=schema,
        name=str(path),
        sha256=_digest(path),
    )


def encode_csv(path: Path, schema: TableSchema) -> NDArray[np.float32]:
    """Inputs [N, width] of a CSV file, labels ignored: what students send. Raises DataError."""
    return _encode(Path(path), _records(Path(path), schema), schema)


def encoded_width(schema: TableSchema) -> int:
    """Numbers per encoded row: one a numeric column, one a category plus one for "other"."""
    numeric = sum(column.role == "numeric" for column in schema.columns)
    categorical = [column.values or () for column in schema.columns if column.role == "categorical"]
    return numeric + sum(len(values) + 1 for values in categorical)


def read_schema(path: Path) -> TableSchema:
    """A schema from a JSON file. Raises DataError that says what is wrong where."""
    try:
        return TableSchema.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise DataError(f"{path} is no table schema: at {where}: {first['msg']}.") from None


def schema_from_public(
    path: Path,
    *,
    label: str,
    group: str | None = None,
    columns: Sequence[str] | None = None,
) -> TableSchema:
    """A schema with the categories, classes and ranges of a CSV file that is public.

    Every distinct value of a categorical column will be visible to everyone. `columns` names the
    columns of a file that has no header. Raises DataError.
    """
    path = Path(path)
    rows = list(_lines(path))
    if columns is None:
        if not rows:
            raise DataError(f"{path} is empty.")
        columns, rows = rows[0][1], rows[1:]
    if not rows:
        raise DataError(f"{path} holds no rows below its header.")
    for wanted in filter(None, (label, group)):
        if wanted not in columns:
            raise DataError(f"{path} has no column {wanted}; it has {', '.join(columns)}.")
    for line, fields in rows:
        if len(fields) != len(columns):
            raise DataError(f"{path} line {line}: expected {len(columns)} fields: {fields!r}.")
    described = tuple(
        _describe(path, name, [fields[i] for _, fields in rows], label, group)
        for i, name in enumerate(columns)
    )
    source = PublicSource(name=path.name, sha256=_digest(path), records=len(rows))
    try:
        return TableSchema(columns=described, fitted_on=source)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{path}: {reason}.") from None


def _describe(
    path: Path, name: str, values: Sequence[str], label: str, group: str | None
) -> Column:
    if name == group:
        return Column(name=name, role="group")
    known = [value for value in values if value not in MISSING]
    if name == label:
        classes = sorted(set(known))
        if all(value.endswith(".") for value in classes):  # as in the test part of UCI Adult
            classes = [value[:-1] for value in classes]
        return Column(name=name, role="label", values=tuple(classes))
    numbers = [_number(value) for value in known]
    if known and all(math.isfinite(number) for number in numbers):
        low, high = min(numbers), max(numbers)
        return Column(name=name, role="numeric", low=low, high=high if high > low else low + 1)
    categories = tuple(sorted(set(known)))
    if not categories:
        return Column(name=name, role="ignored")
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"{path}: column {name} has {len(categories)} distinct values, more than "
            f"{MOST_CATEGORIES}. Give it the role ignored or group in a schema file."
        )
    return Column(name=name, role="categorical", values=categories)


def _encode(path: Path, rows: Sequence[Row], schema: TableSchema) -> NDArray[np.float32]:
    encoded = np.zeros((len(rows), encoded_width(schema)), dtype=np.float32)
    at = 0
    for i, column in enumerate(schema.columns):
        if column.role == "numeric":
            low, high = column.low or 0.0, column.high or 0.0
            for r, (line, fields) in enumerate(rows):
                middle = fields[i] in MISSING
                number = (low + high) / 2 if middle else _number(fields[i])
                if not math.isfinite(number):
                    raise DataError(
                        f"{path} line {line}: column {column.name} holds {fields[i]!r}, "
                        "expected a finite number. If this line is a header, it must name every "
                        "column of the schema."
                    )
                encoded[r, at] = min(max((number - low) / (high - low), 0.0), 1.0)
            at += 1
        elif column.role == "categorical":
            index = {value: k for k, value in enumerate(column.values or ())}
            for r, (_, fields) in enumerate(rows):
                encoded[r, at + index.get(fields[i], len(index))] = 1
            at += len(index) + 1
    return encoded


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


def _records(path: Path, schema: TableSchema) -> list[Row]:
    """All rows with their fields in the order of the schema; a header is recognised and used."""
    names = [column.name for column in schema.columns]
    rows = list(_lines(path))
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
    return [(line, [fields[i] for i in order]) for line, fields in rows]


def _lines(path: Path) -> Iterator[Row]:
    """Rows as line number and trimmed fields; blank lines and UCI's `|` comments are skipped."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            for fields in reader:
                if fields and not fields[0].startswith("|") and any(fields):
                    yield reader.line_num, [field.strip() for field in fields]
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no CSV file in UTF-8 ({error}).") from None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
