"""Tables: encode CSV, Parquet and Arrow files and data frames as numbers by a public schema.

Categories and ranges are stored in the manifest, and students need them to encode their own rows.
So they come from a schema that the owner wrote, or from a table that the owner declared public, and
never from private rows. A private value that is not in the schema is encoded as "other"; a number
outside the range is clipped to it.

Encoding needs NumPy and pydantic alone, and pyarrow for Parquet and Arrow, so that it is part of
the light client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from terrine_protocol.tables import Column, TableSchema

from . import arrow_files, columns, csv_files
from .columns import MISSING, Texts
from .csv_files import Encoding, Note, read_sheet, silent
from .data import DataError, Dataset, InputSpec, number_groups

NOT_THERE = ("None", "nan", "NaN", "NaT", "<NA>")
"""How data frames print a missing value."""
FEW = 10
"""So many values, none of them known, are no accident where columns are told by their order."""


class Frame(Protocol):
    """A data frame of pandas or Polars, a table of Arrow, or a mapping of names to columns."""

    def __getitem__(self, name: str, /) -> Any: ...


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table, readable or not."""
    known = csv_files.TEXT_SUFFIXES | csv_files.FOREIGN_SUFFIXES.keys() | arrow_files.SUFFIXES
    return not known.isdisjoint(suffix.lower() for suffix in Path(path).suffixes)


def check_table(path: Path, encoding: Encoding = "utf-8") -> None:
    """Refuse a file that is no table, before anything else is asked for. Raises DataError."""
    if arrow_files.is_arrow(path):
        arrow_files.check(path)
    else:
        csv_files.read_text(path, encoding=encoding)


def load_table(
    path: Path, schema: TableSchema, note: Note = silent, encoding: Encoding = "utf-8"
) -> Dataset:
    """Load the records of a labelled CSV, Parquet or Arrow file, encoded by `schema`.

    A CSV file may be packed with gzip. The file has either a header that names the columns of the
    schema (those that are ignored may be absent), or no header and exactly those columns in order.
    `encoding` is that of text that is not UTF-8. Raises DataError, which names line and column.
    """
    path = Path(path)
    label = next(column for column in schema.columns if column.role == "label")
    group = next((column.name for column in schema.columns if column.role == "group"), None)
    needed = [*schema.features, label.name, *([group] if group else [])]
    inputs, labels, people = [], list[int](), list[str]()
    for part in _noted(_read(path, schema, needed, note, encoding), schema, str(path), note):
        inputs.append(_encode(part, schema))
        labels += _class_indices(part, label)
        people += part.columns[group] if group else []
    return Dataset(
        np.concatenate(inputs),
        np.array(labels),
        label.values or (),
        encoded_input(schema),
        groups=None if group is None else number_groups(people),
        group_column=group,
        encoding=schema,
        name=str(path),
        sha256=arrow_files.sha256(path),
    )


def encode_table(
    path: Path, schema: TableSchema, note: Note = silent, encoding: Encoding = "utf-8"
) -> NDArray[np.float32]:
    """Encode a CSV, Parquet or Arrow file as inputs [N, width], as students send them.

    It needs the columns that are features, in a header, or without one all columns of the schema,
    or just its features, in order. Raises DataError.
    """
    parts = _read(Path(path), schema, schema.features, note, encoding)
    return np.concatenate([_encode(p, schema) for p in _noted(parts, schema, str(path), note)])


def encode_frame(frame: Frame, schema: TableSchema, note: Note = silent) -> NDArray[np.float32]:
    """Encode a data frame as inputs [N, width], as students send them.

    It needs the columns that are features, by name. Of pandas, Polars, Arrow, or a dictionary of
    equally long columns. Raises DataError.
    """
    described = {column.name: column for column in schema.columns}
    _check_names(_names(frame), schema.features, "The data frame")
    texts = {
        name: [_text(value, described[name]) for value in _values(frame[name])]
        for name in schema.features
    }
    if len({len(column) for column in texts.values()}) > 1:
        raise DataError("The columns of the data frame are not equally long.")
    if not next(iter(texts.values())):
        raise DataError("The data frame holds no rows.")
    part = _Part(texts, "row {}".format, named=True)
    (part,) = _noted(iter([part]), schema, "The data frame", note)
    return _encode(part, schema)


def encoded_input(schema: TableSchema) -> InputSpec:
    """What an encoded row looks like."""
    return InputSpec(shape=(encoded_width(schema),), dtype="float32", low=0, high=1)


def encoded_width(schema: TableSchema) -> int:
    """Numbers per encoded row: those of each column, see `columns.width`."""
    return sum(map(columns.width, schema.columns))


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
class _Part:
    """Some rows of a table, as text."""

    columns: dict[str, list[str]]
    """Equally long; those that are needed."""
    where: Callable[[int], str]
    """Names a row in an error."""
    named: bool
    """Whether columns were found by name, rather than by their order."""
    delimiter: str | None = None

    def texts(self, column: Column) -> Texts:
        values = self.columns[column.name]
        comma = self.delimiter not in (None, ",") and any("," in value for value in values)
        hint = partial(_number_hint, self.delimiter, comma)
        return Texts(values, self.where, comma, hint)


def _encode(part: _Part, schema: TableSchema) -> NDArray[np.float32]:
    features = [column for column in schema.columns if column.name in schema.features]
    return np.concatenate([columns.encode(each, part.texts(each)) for each in features], axis=1)


def _noted(parts: Iterator[_Part], schema: TableSchema, what: str, note: Note) -> Iterator[_Part]:
    """Pass rows on; say in the end which columns held values that the schema does not list."""
    strange, known = Counter[str](), Counter[str]()
    features = [column for column in schema.columns if column.name in schema.features]
    for part in parts:
        for column in features:
            found = columns.unknown(column, part.texts(column))
            given = sum(text not in MISSING for text in part.columns[column.name])
            strange[column.name] += found
            known[column.name] += given - found
            if found >= FEW and not known[column.name] and not part.named:
                raise DataError(
                    f"{what} has no header, and none of the {found:,} values of column "
                    f"{column.name} is in the schema. Are the columns in its order? Add a header "
                    "that names them."
                )
        yield part
    for name, count in strange.items():
        if count:
            note(
                f"{what}: column {name}: {count:,} of {count + known[name]:,} values are not in "
                "the schema; they count as other."
            )


def _number_hint(delimiter: str | None, comma: bool, text: str) -> str:
    if delimiter is None:
        return ""
    if comma and "." in text:
        return "Other rows of this column have a decimal comma: use the same format in all rows."
    if "," in text and delimiter == ",":
        return "Decimal commas are read only if another character separates fields, as in a;3,5."
    return "If this line is a header, it must name every column that is needed."


def _class_indices(part: _Part, label: Column) -> list[int]:
    index = {value: k for k, value in enumerate(label.values or ())}
    found = []
    for r, text in enumerate(part.columns[label.name]):
        known = index.get(text, index.get(text.removesuffix(".")))  # a full stop: UCI Adult's test
        if known is None:
            raise DataError(
                f"{part.where(r)}: column {label.name} holds {text!r}, expected one of "
                f"{', '.join(index)}."
            )
        found.append(known)
    return found


def _read(
    path: Path, schema: TableSchema, needed: Sequence[str], note: Note, encoding: Encoding
) -> Iterator[_Part]:
    """Read all rows; find the needed columns by the header, or by their order."""
    if arrow_files.is_arrow(path):
        yield from _read_arrow(path, schema, needed)
        return
    orders = {len(order): order for order in (needed, [c.name for c in schema.columns])}

    def fits(first: Sequence[str]) -> bool:
        return len(first) in orders or set(needed) <= set(first)

    sheet = read_sheet(path, fits, note, encoding)
    rows = list(sheet.rows)
    named = bool(rows) and _is_header(rows[0][1], schema)
    if named:
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
    if not named:
        note(
            f"{path} has no header; its columns are taken to be {', '.join(names)}, in this order."
        )
    places = {name: i for i, name in enumerate(names)}
    lines = [line for line, _ in rows]
    yield _Part(
        {name: [fields[places[name]] for _, fields in rows] for name in needed},
        lambda r: f"{path} line {lines[r]}",
        named,
        sheet.delimiter,
    )


def _read_arrow(path: Path, schema: TableSchema, needed: Sequence[str]) -> Iterator[_Part]:
    _check_names(arrow_files.check(path), needed, str(path))
    described, start = {column.name: column for column in schema.columns}, 0
    for batch in arrow_files.read_batches(path, needed):
        texts = {name: [_spelled(v, described[name]) for v in batch[name]] for name in needed}
        yield _Part(texts, partial(_row, path, start), named=True)
        start += len(batch[needed[0]])
    if not start:
        raise DataError(f"{path} holds no records.")


def _row(path: Path, start: int, row: int) -> str:
    return f"{path} row {start + row + 1}"


def _is_header(first: Sequence[str], schema: TableSchema) -> bool:
    """Whether a first row names more than half of the features, or any column but by a value."""
    values = {value for column in schema.columns for value in column.values or ()}
    names = {column.name for column in schema.columns}
    many = 2 * len(set(first) & set(schema.features)) > len(schema.features)
    return many or bool(set(first) & names - values)


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


def _values(column: Any) -> list[object]:
    array = np.asarray(column)
    if array.dtype.kind == "M":  # as an object it would become a number of nanoseconds
        return list(np.datetime_as_string(array).tolist())
    return list(np.asarray(column, dtype=object).tolist())


def _text(value: object, column: Column) -> str:
    """A value as it is written in a CSV file, and in the schema: 1.0 and True as 1 and true."""
    text = str(value).strip()
    if text == "NaT" or (text in NOT_THERE and not isinstance(value, str)):
        return ""
    if isinstance(value, str):
        return text
    return _spelled(text, column)


def _spelled(text: str, column: Column) -> str:
    """A number or boolean as the schema has it, among its values: 1.0 as 1, true as True."""
    ways = (text, text.removesuffix(".0"), f"{text}.0", *_cases(text))
    return next((way for way in ways if way in (column.values or ())), text)


def _cases(text: str) -> tuple[str, ...]:
    known = text.lower() in ("true", "false")
    return (text.lower(), text.capitalize(), text.upper()) if known else ()
