"""Tables: encode CSV, Parquet and Arrow files and data frames as numbers by a public schema.

Categories and ranges are stored in the manifest, and students need them to encode their own rows.
So they come from a schema that the owner wrote, or from a table that the owner declared public, and
never from private rows. A private value that is not in the schema is encoded as "other"; a number
outside the range is clipped to it.

Encoding needs NumPy and pydantic alone, and pyarrow for Parquet and Arrow, so that it is part of
the light client.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from terrine_models.data.arrays import DataError, Dataset, InputSpec, check_classes
from terrine_models.data.blocks import Growing, Numbering, Records
from terrine_models.data.reading import Progress, rows_at_a_time, sha256, unchanged, unseen
from terrine_models.tables import arrow_files, columns, csv_files
from terrine_models.tables.csv_files import Encoding, Note, silent
from terrine_models.tables.rows import Part, Reading, check_names, noted, read_parts, spelled
from terrine_protocol.files import read
from terrine_protocol.tables import Column, TableSchema

NOT_THERE = ("None", "nan", "NaN", "NaT", "<NA>")
"""How data frames print a missing value."""


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
        csv_files.check(path, encoding=encoding)


@dataclass(frozen=True)
class Table:
    """The labelled records of a file, encoded by a schema, a block at a time."""

    path: Path
    encoding: TableSchema
    reading: Reading
    sha256: str

    @property
    def name(self) -> str:
        """The file."""
        return str(self.path)

    @property
    def classes(self) -> tuple[str, ...]:
        """What the schema lists."""
        return self._label.values or ()

    @property
    def spec(self) -> InputSpec:
        """What an encoded row looks like."""
        return encoded_input(self.encoding)

    @property
    def group_column(self) -> str | None:
        """The column that names people."""
        return next((c.name for c in self.encoding.columns if c.role == "group"), None)

    def blocks(self) -> Iterator[Records]:
        """Read all records. Raises DataError, which names line and column."""
        schema, group, people = self.encoding, self.group_column, Numbering()
        needed = [*schema.features, self._label.name, *([group] if group else [])]
        with unchanged(self.path):
            if sha256(self.path) != self.sha256:
                raise DataError(f"{self.path} is not the file that it was.")
            for part in read_parts(self.path, schema, needed, self.reading):
                inputs, labels = _encode(part, schema), _class_indices(part, self._label)
                yield Records(inputs, labels, people.of(part.columns[group]) if group else None)

    @property
    def _label(self) -> Column:
        return next(column for column in self.encoding.columns if column.role == "label")


def open_table(
    path: Path,
    schema: TableSchema,
    note: Note = silent,
    encoding: Encoding = "utf-8",
    progress: Progress = unseen,
) -> Table:
    """Open a labelled CSV, Parquet or Arrow file, whose rows are encoded by `schema`.

    A CSV file may be packed with gzip. The file has either a header that names the columns of the
    schema (those that are ignored may be absent), or no header and exactly those columns in order.
    `encoding` is that of text that is not UTF-8. Raises DataError.
    """
    table = Table(Path(path), schema, Reading(note, encoding, progress), sha256(path))
    check_classes(table.classes, table.name)
    return table


def load_table(
    path: Path,
    schema: TableSchema,
    note: Note = silent,
    encoding: Encoding = "utf-8",
    progress: Progress = unseen,
) -> Dataset:
    """Load the records of a file that `open_table` opens. Raises DataError.

    What is held is the encoded rows, and never the text of all.
    """
    table = open_table(path, schema, note, encoding, progress)
    return Dataset.of(table)


def encode_table(
    path: Path,
    schema: TableSchema,
    note: Note = silent,
    encoding: Encoding = "utf-8",
    progress: Progress = unseen,
) -> NDArray[np.float32]:
    """Encode a CSV, Parquet or Arrow file as inputs [N, width], as students send them.

    It needs the columns that are features, in a header, or without one all columns of the schema,
    or just its features, in order. Raises DataError.
    """
    path, encoded = Path(path), Growing((encoded_width(schema),), np.float32)
    with unchanged(path):
        for part in read_parts(path, schema, schema.features, Reading(note, encoding, progress)):
            encoded.add(_encode(part, schema))
    return encoded.array()


def encode_frame(frame: Frame, schema: TableSchema, note: Note = silent) -> NDArray[np.float32]:
    """Encode a data frame as inputs [N, width], as students send them.

    It needs the columns that are features, by name. Of pandas, Polars, Arrow, or a dictionary of
    equally long columns. Raises DataError.
    """
    described = {column.name: column for column in schema.columns}
    check_names(_names(frame), schema.features, "The data frame")
    values = {name: _values(frame[name]) for name in schema.features}
    rows = len(next(iter(values.values())))
    if any(len(column) != rows for column in values.values()):
        raise DataError("The columns of the data frame are not equally long.")
    if not rows:
        raise DataError("The data frame holds no rows.")
    encoded = Growing((encoded_width(schema),), np.float32)
    for part in noted(_parts(values, described, rows), schema, "The data frame", note):
        encoded.add(_encode(part, schema))
    return encoded.array()


def encoded_input(schema: TableSchema) -> InputSpec:
    """What an encoded row looks like."""
    return InputSpec(shape=(encoded_width(schema),), dtype="float32", low=0, high=1)


def encoded_width(schema: TableSchema) -> int:
    """Numbers per encoded row: those of each column, see `columns.width`."""
    return sum(map(columns.width, schema.columns))


def read_schema(path: Path) -> TableSchema:
    """Read a schema from a JSON file. Raises DataError."""
    try:
        return TableSchema.model_validate_json(read(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise DataError(f"{path} is not a table schema: at {where}: {first['msg']}.") from None


def _encode(part: Part, schema: TableSchema) -> NDArray[np.float32]:
    features = [column for column in schema.columns if column.name in schema.features]
    return np.concatenate([columns.encode(each, part.texts(each)) for each in features], axis=1)


def _parts(
    values: dict[str, list[object]], described: dict[str, Column], rows: int
) -> Iterator[Part]:
    some = rows_at_a_time(len(values))
    for start in range(0, rows, some):
        texts = {
            name: [_text(value, described[name]) for value in column[start : start + some]]
            for name, column in values.items()
        }
        yield Part(texts, partial(_row, start), named=True)


def _row(start: int, row: int) -> str:
    return f"row {start + row}"


def _class_indices(part: Part, label: Column) -> NDArray[np.int64]:
    index = {value: k for k, value in enumerate(label.values or ())}
    index |= {f"{value}.": k for value, k in index.items() if f"{value}." not in index}
    texts = part.columns[label.name]  # a full stop: in UCI Adult's test
    found = [index.get(text, -1) for text in texts]
    if -1 in found:
        row = found.index(-1)
        raise DataError(
            f"{part.where(row)}: column {label.name} holds {texts[row]!r}, expected one of "
            f"{', '.join(label.values or ())}."
        )
    return np.array(found, dtype=np.int64)


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
    return spelled(text, column)
