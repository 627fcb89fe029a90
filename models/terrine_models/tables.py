"""Tables: encode CSV files and data frames as numbers by a public schema.

Categories and ranges are stored in the manifest, and students need them to encode their own rows.
So they come from a schema that the owner wrote, or from a table that the owner declared public, and
never from private rows. A private value that is not in the schema is encoded as "other"; a number
outside the range is clipped to it.

Encoding needs NumPy and pydantic alone, so that it is part of the light client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from terrine_protocol.tables import Column, TableSchema

from .csv_files import Note, Sheet, number, read_sheet, silent
from .data import DataError, Dataset, InputSpec, number_groups

MISSING = ("", "?", "NA", "NaN")
NOT_THERE = ("None", "nan", "NaN", "NaT", "<NA>")
"""How data frames print a missing value."""


class Frame(Protocol):
    """A data frame of pandas or Polars, a table of Arrow, or a mapping of names to columns."""

    def __getitem__(self, name: str, /) -> Any: ...


def load_csv(path: Path, schema: TableSchema, note: Note = silent) -> Dataset:
    """Load the records of a labelled CSV file, plain or gzip, encoded by `schema`.

    The file has either a header that names the columns of the schema (those that are ignored may
    be absent), or no header and exactly those columns in order. Raises DataError, which names line
    and column.
    """
    label = next(column for column in schema.columns if column.role == "label")
    group = next((column.name for column in schema.columns if column.role == "group"), None)
    needed = [*schema.features, label.name, *([group] if group else [])]
    sheet, rows = _read(Path(path), schema, needed, note)
    groups = None if group is None else number_groups(rows.column(group))
    return Dataset(
        _encode(rows, schema),
        np.array(_class_indices(rows, label)),
        label.values or (),
        encoded_input(schema),
        groups=groups,
        group_column=group,
        encoding=schema,
        name=str(sheet.path),
        sha256=sheet.sha256,
    )


def encode_csv(path: Path, schema: TableSchema, note: Note = silent) -> NDArray[np.float32]:
    """Encode a CSV file as inputs [N, width], as students send them.

    It needs the columns that are features, in a header, or without one all columns of the schema,
    or just its features, in order. Raises DataError.
    """
    _, rows = _read(Path(path), schema, schema.features, note)
    return _encode(rows, schema)


def encode_frame(frame: Frame, schema: TableSchema) -> NDArray[np.float32]:
    """Encode a data frame as inputs [N, width], as students send them.

    It needs the columns that are features, by name. Of pandas, Polars, Arrow, or a dictionary of
    equally long columns. Raises DataError.
    """
    described = {column.name: column for column in schema.columns}
    _check_names(_names(frame), schema.features, "The data frame")
    columns = [
        [_text(value, described[name]) for value in np.asarray(frame[name], dtype=object).tolist()]
        for name in schema.features
    ]
    if len({len(column) for column in columns}) > 1:
        raise DataError("The columns of the data frame are not equally long.")
    if not columns[0]:
        raise DataError("The data frame holds no rows.")
    places = {name: i for i, name in enumerate(schema.features)}
    return _encode(_Rows(list(zip(*columns, strict=True)), places, "row {}".format), schema)


def encoded_input(schema: TableSchema) -> InputSpec:
    """What an encoded row looks like."""
    return InputSpec(shape=(encoded_width(schema),), dtype="float32", low=0, high=1)


def encoded_width(schema: TableSchema) -> int:
    """Numbers per encoded row.

    One per numeric column, two if it says what stands for a missing number; one per category and
    one for "other".
    """
    numeric = [column for column in schema.columns if column.role == "numeric"]
    categorical = [column.values or () for column in schema.columns if column.role == "categorical"]
    indicators = sum(column.missing is not None for column in numeric)
    return len(numeric) + indicators + sum(len(values) + 1 for values in categorical)


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


@dataclass(frozen=True)
class _Rows:
    """Rows as text."""

    fields: Sequence[Sequence[str]]
    places: dict[str, int]
    """Of the columns by name, in every row."""
    where: Callable[[int], str]
    """Names a row in an error."""
    delimiter: str | None = None

    def column(self, name: str) -> list[str]:
        place = self.places[name]
        return [fields[place] for fields in self.fields]


def _encode(rows: _Rows, schema: TableSchema) -> NDArray[np.float32]:
    encoded = np.zeros((len(rows.fields), encoded_width(schema)), dtype=np.float32)
    at = 0
    for column in schema.columns:
        if column.role == "numeric":
            scaled, missing = _scaled(rows, column)
            encoded[:, at] = scaled
            at += 1
            if column.missing is not None:
                encoded[:, at] = missing
                at += 1
        elif column.role == "categorical":
            index = {value: k for k, value in enumerate(column.values or ())}
            for r, value in enumerate(rows.column(column.name)):
                encoded[r, at + index.get(value, len(index))] = 1
            at += len(index) + 1
    return encoded


def _scaled(rows: _Rows, column: Column) -> tuple[list[float], list[bool]]:
    """Scale the numbers of a column from its range to 0..1; and which are missing."""
    low, high = column.low or 0.0, column.high or 0.0
    texts = rows.column(column.name)
    comma = rows.delimiter not in (None, ",") and any("," in text for text in texts)
    instead = (low + high) / 2 if column.missing is None else column.missing
    scaled = []
    for r, text in enumerate(texts):
        value = instead if text in MISSING else number(text, decimal_comma=comma)
        if not math.isfinite(value):
            raise DataError(
                f"{rows.where(r)}: column {column.name} holds {text!r}, expected a finite "
                f"number. {_number_hint(rows.delimiter, text, comma)}".rstrip()
            )
        scaled.append(min(max((value - low) / (high - low), 0.0), 1.0))
    return scaled, [text in MISSING for text in texts]


def _number_hint(delimiter: str | None, text: str, comma: bool) -> str:
    if delimiter is None:
        return ""
    if comma and "." in text:
        return "Other rows of this column have a decimal comma: use the same format in all rows."
    if "," in text and delimiter == ",":
        return "Decimal commas are read only if another character separates fields, as in a;3,5."
    return "If this line is a header, it must name every column that is needed."


def _class_indices(rows: _Rows, label: Column) -> list[int]:
    index = {value: k for k, value in enumerate(label.values or ())}
    found = []
    for r, text in enumerate(rows.column(label.name)):
        known = index.get(text, index.get(text.removesuffix(".")))  # a full stop: UCI Adult's test
        if known is None:
            raise DataError(
                f"{rows.where(r)}: column {label.name} holds {text!r}, expected one of "
                f"{', '.join(index)}."
            )
        found.append(known)
    return found


def _read(
    path: Path, schema: TableSchema, needed: Sequence[str], note: Note
) -> tuple[Sheet, _Rows]:
    """Read all rows; find the needed columns by the header, or by their order."""
    orders = {len(order): order for order in (needed, [c.name for c in schema.columns])}
    sheet = read_sheet(path, lambda first: len(first) in orders or set(needed) <= set(first), note)
    rows = list(sheet.rows)
    if rows and _is_header(rows[0][1], schema):
        names: Sequence[str] = rows.pop(0)[1]
        _check_names(names, needed, str(path))
    else:
        names = orders.get(len(rows[0][1]) if rows else 0, [c.name for c in schema.columns])
    if not rows:
        raise DataError(f"{path} holds no records.")
    for line, fields in rows:
        if len(fields) != len(names):
            raise DataError(
                f"{path} line {line}: found {len(fields)} fields, expected {len(names)}: "
                f"{', '.join(names)}."
            )
    places = {name: i for i, name in enumerate(names)}
    lines = [line for line, _ in rows]
    return sheet, _Rows(
        [fields for _, fields in rows],
        places,
        lambda r: f"{path} line {lines[r]}",
        sheet.delimiter,
    )


def _is_header(first: Sequence[str], schema: TableSchema) -> bool:
    """Whether a first row names more than half of the features."""
    return 2 * len(set(first) & set(schema.features)) > len(schema.features)


def _check_names(names: Sequence[str], needed: Iterable[str], what: str) -> None:
    absent = [name for name in needed if name not in names]
    if absent:
        raise DataError(
            f"{what} has no column {', '.join(absent)}; it has {', '.join(map(str, names))}."
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise DataError(f"{what} has two columns named {twice!r}.")


def _names(frame: Frame) -> list[str]:
    for attribute in ("column_names", "columns", "keys"):  # Arrow; pandas and Polars; a mapping
        found = getattr(frame, attribute, None)
        if found is not None:
            return list(found() if callable(found) else found)
    raise DataError(
        f"A {type(frame).__name__} is not a data frame: expected one of pandas, Polars or Arrow, "
        "or a dictionary of columns."
    )


def _text(value: object, column: Column) -> str:
    """A value as it is written in a CSV file, and in the schema: 1.0 and True as 1 and true."""
    text = str(value).strip()
    if isinstance(value, str):
        return text
    if text in NOT_THERE:
        return ""
    ways = (text, text.removesuffix(".0"), f"{text}.0", text.lower(), text.upper())
    return next((way for way in ways if way in (column.values or ())), text)
