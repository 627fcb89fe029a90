"""Tables: encode CSV, Parquet and Arrow files and data frames as numbers by a public schema.

Categories and ranges are stored in the manifest, and students need them to encode their own rows.
So they come from a schema that the owner wrote, or from a table that the owner declared public, and
never from private rows. A private value that is not in the schema is encoded as "other", a number
outside the range is clipped to it, and how many there are is said.

Data frames need NumPy and pydantic alone, so that they are part of the light client; files need
pyarrow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from terrine_models.data.arrays import DataError, Dataset, InputSpec, check_classes
from terrine_models.data.blocks import GroupNumbering, GrowingArray, Records, remark_on_people
from terrine_models.data.reading import Progress, files_within, rows_at_a_time, unchanged, unseen
from terrine_models.tables.columns import (
    CodedValues,
    Encoder,
    Note,
    RowBlock,
    Values,
    check_names,
    class_indices,
    texts,
    width,
)
from terrine_protocol.files import read
from terrine_protocol.names import listed, normalize
from terrine_protocol.tables import Column, TableSchema, first_problem

if TYPE_CHECKING:
    from terrine_models.tables.files import TableFile

TEXT = {".csv", ".tsv", ".tab", ".txt", ".data", ".test"}
TYPED = {".parquet", ".pq", ".arrow", ".arrows", ".feather", ".ipc", ".orc"}
FOREIGN = {
    *(".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"),
    *(".dta", ".sas7bdat", ".xpt", ".sav", ".zsav", ".por", ".rds", ".rda", ".rdata", ".mat"),
    *(".json", ".jsonl", ".ndjson", ".arff", ".avro", ".sqlite", ".sqlite3", ".pkl", ".pickle"),
}
"""Ends of the names of tables, readable or not."""


def warn(sentence: str) -> None:
    """Say it as a warning of Python."""
    warnings.warn(sentence, stacklevel=2)


@contextmanager
def _noted(note: Note | None) -> Iterator[Note]:
    """Yield what is to hear how a table was read: if nobody is, one warning of Python says it all.

    For functions that are called by whoever is to be warned.
    """
    if note is not None:
        yield note
        return
    sentences: list[str] = []
    try:
        yield sentences.append
    finally:
        if sentences:
            warnings.warn("\n".join(sentences), stacklevel=4)


def _nothing(sentence: str) -> None:
    """It was said when the file was read before."""


class Frame(Protocol):
    """A data frame of pandas or Polars, a table of Arrow, or a mapping of names to columns."""

    def __getitem__(self, name: str, /) -> Any: ...


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table, readable or not, or those in a folder do."""
    known, path = TEXT | FOREIGN | TYPED, Path(path)
    names = [path]
    if path.is_dir():
        names = []
        for each in files_within(path):  # of many pictures, the first is enough
            if known.isdisjoint(suffix.lower() for suffix in each.suffixes):
                return False
            names.append(each)
    return any(not known.isdisjoint(suffix.lower() for suffix in each.suffixes) for each in names)


def check_table(path: Path) -> None:
    """Refuse a file whose beginning is that of no table. Raises DataError."""
    with opened_table(Path(path), digest=False):
        pass


def has_column(path: Path, name: str, columns: Sequence[str] | None = None) -> bool:
    """Whether a table has a column. `columns`: of a file without a header. Raises DataError."""
    name = normalize(name)
    if columns is not None:
        return name in columns
    with opened_table(Path(path), fits=lambda first: name in first, digest=False) as file:
        return name in file.first


@contextmanager
def opened_table(path: Path, **options: Any) -> Iterator[TableFile]:
    """Open a file with `files.open_file`, which needs pyarrow. It must not change meanwhile."""
    try:
        from terrine_models.tables.files import open_file
    except ImportError:
        raise DataError(
            f"{path}: reading tables from files needs pyarrow. In a checkout: pip install "
            "'.[arrow]'. Data frames are encoded without it."
        ) from None
    with unchanged(path), open_file(path, **options) as file:
        yield file


class Table:
    """The labelled records of a file, encoded by a schema, a block at a time: a `RecordSource`.

    The file is CSV, plain or packed with gzip, Parquet or Arrow. It has either a header that names
    the columns of the schema (those that are ignored may be absent), or no header and exactly those
    columns in order.
    """

    def __init__(
        self,
        path: Path,
        schema: TableSchema,
        note: Note = warn,
        progress: Progress = unseen,
        *,
        public: bool = False,
    ) -> None:
        """Raises DataError for classes that cannot be told apart.

        Rows that are public may be without the column of the role group: `group_column` is None
        once they are read.
        """
        self._path, self._note, self._progress = Path(path), note, progress
        self._public = public
        by_role = {column.role: column for column in schema.columns}
        self._label, self._group = by_role["label"], by_role.get("group")
        self.name, self.classes, self.encoding = str(path), self._label.values or (), schema
        self.spec = encoded_input(schema)
        self.sha256: str | None = None
        self.group_column = None if self._group is None else self._group.name
        self.people: tuple[str, ...] | None = None
        check_classes(self.classes, self.name)

    def blocks(self) -> Iterator[Records]:
        """Read all records. Raises DataError, which names line and column."""
        schema, people = self.encoding, GroupNumbering()
        encoder = Encoder(schema, self.name)
        needed = [*schema.features, self._label.name]
        always = needed if self._group is None or self._public else [*needed, self._group.name]
        with _opened(self._path, schema, always, self._note, True) as (file, read_blocks):
            if self._group is not None and self._public and _lacks(file, schema, self._group.name):
                self._group = self.group_column = None
            if self._group is not None:
                needed.append(self._group.name)
            first = True
            for block in read_blocks(file, schema, needed, self._note, self._progress):
                if first and block.named:
                    self._tell_unused(file.first)
                first = False
                inputs, labels = encoder.encode(block), class_indices(self._label, block)
                if self._group is None:
                    yield Records(inputs, labels, None)
                else:
                    names, places = texts(self._group, block)
                    yield Records(inputs, labels, people.of(names)[places])
            self.sha256 = file.sha256 or None
        if self._group is not None:
            self.people, name = people.names, self._group.name
            if told := remark_on_people(self.people, f"{self.name}: column {name}"):
                self._note(told)
        encoder.finish(self._note)

    def _tell_unused(self, names: Sequence[str]) -> None:
        """Say which columns the schema has not got."""
        known = {column.name for column in self.encoding.columns}
        if unused := [name for name in names if name not in known]:
            self._note(
                f"{self.name}: column {listed(unused)} is not in the schema, and not used: the "
                "public table from which the schema came would need it, too."
            )


def load_table(
    path: Path,
    schema: TableSchema,
    note: Note = warn,
    progress: Progress = unseen,
    *,
    public: bool = False,
) -> Dataset:
    """Load the records of a file: see `Table`. Raises DataError.

    What is held is the encoded rows, and never the text of all. Rows that are public may be without
    the column of the role group; they have no groups then.
    """
    return Dataset.of(Table(path, schema, note, progress, public=public))


def encode_table(
    path: Path,
    schema: TableSchema,
    note: Note | None = None,
    progress: Progress = unseen,
    *,
    accept_clipped: bool = False,
) -> NDArray[np.float32]:
    """Encode a CSV, Parquet or Arrow file as inputs [N, width], as students send them.

    It needs the columns that are features, in a header, or without one all columns of the schema,
    or just its features, in order. What the schema does not foresee is said in one warning, or to
    `note`. Raises DataError, and ClippedError if more than a tenth of a column's numbers are
    outside the schema's range or missing, unless that is accepted.
    """
    path, needed = Path(path), schema.features
    with (
        _noted(note) as note,
        _opened(path, schema, needed, note, digest=False) as (file, read_blocks),
    ):
        blocks = read_blocks(file, schema, needed, note, progress)
        return _encoded(blocks, Encoder(schema, str(path)), note, accept_clipped)


def load_people(path: Path, schema: TableSchema, note: Note = warn) -> list[str]:
    """Read what people are called from a table with the schema's column of the role group.

    Each is named once; the table may have all columns, or this one alone. Raises DataError.
    """
    group = next((column for column in schema.columns if column.role == "group"), None)
    if group is None:
        raise DataError(f"{path}: the schema has no column of the role group, which names people.")
    names: dict[str, None] = {}
    with _opened(Path(path), schema, [group.name], note, digest=False) as (file, read_blocks):
        for block in read_blocks(file, schema, [group.name], note, unseen):
            names |= dict.fromkeys(texts(group, block)[0])
    return list(names)


def load_groups(path: Path, schema: TableSchema) -> NDArray[np.int64] | None:
    """Read whose each row of a table is: the number of its person, [N].

    None if the schema has no column of the role group, or the table has not got it.
    """
    group = next((column for column in schema.columns if column.role == "group"), None)
    if group is None:
        return None
    people, groups, needed = GroupNumbering(), GrowingArray((), np.int64), [group.name]
    try:
        with _opened(Path(path), schema, needed, _nothing, digest=False) as (file, read_blocks):
            for block in read_blocks(file, schema, needed, _nothing, unseen):
                names, places = texts(group, block)
                groups.add(people.of(names)[places])
    except DataError:
        return None
    return groups.array()


def encode_frame(
    frame: Frame, schema: TableSchema, note: Note | None = None, *, accept_clipped: bool = False
) -> NDArray[np.float32]:
    """Encode a data frame as inputs [N, width], as students send them.

    It needs the columns that are features, by name. Of pandas, Polars, Arrow, or a dictionary of
    equally long columns. Warns and raises as `encode_table`.
    """
    held = {_normal(name): name for name in _names(frame)}
    check_names([_normal(name) for name in _names(frame)], schema.features, "The data frame")
    columns = {name: np.asarray(frame[held[name]]) for name in schema.features}
    with _noted(note) as note:
        return _encode_columns(columns, schema, "The data frame", note, accept_clipped)


def _normal(name: Any) -> Any:
    return normalize(name) if isinstance(name, str) else name


def encode_rows(
    rows: Sequence[Mapping[str, Any]],
    schema: TableSchema,
    note: Note | None = None,
    *,
    accept_clipped: bool = False,
) -> NDArray[np.float32]:
    """Encode rows, each a dictionary with a value for every feature, as inputs [N, width].

    None stands for a missing value. Warns and raises as `encode_table`.
    """
    needed = schema.features
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{_row(0, place)} is a {type(row).__name__}; expected a dictionary of columns."
            )
        check_names([_normal(name) for name in row], needed, _row(0, place))
    named = [{_normal(name): value for name, value in row.items()} for row in rows]
    columns = {
        name: np.fromiter((row[name] for row in named), dtype=object, count=len(named))
        for name in needed
    }
    with _noted(note) as note:
        return _encode_columns(columns, schema, "The rows", note, accept_clipped)


def encoded_input(schema: TableSchema) -> InputSpec:
    """What an encoded row looks like: the numbers of each column, see `columns.width`."""
    numbers = sum(map(width, schema.columns))
    return InputSpec(shape=(numbers,), dtype="float32", low=0, high=1)


def read_schema(path: Path) -> TableSchema:
    """Read a schema from a JSON file. Raises DataError."""
    try:
        return TableSchema.model_validate_json(read(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise DataError(f"{path} is not a table schema: {first_problem(error)}.") from None


def _encode_columns(
    columns: Mapping[str, NDArray[Any]],
    schema: TableSchema,
    what: str,
    note: Note,
    accept_clipped: bool,
) -> NDArray[np.float32]:
    described = [column for column in schema.columns if column.name in columns]
    rows = len(columns[described[0].name])
    if any(len(column) != rows for column in columns.values()):
        raise DataError(f"{what}: the columns are not equally long.")
    if not rows:
        raise DataError(f"{what}: there are no rows.")
    some = rows_at_a_time(len(columns))

    def blocks() -> Iterator[RowBlock]:
        for start in range(0, rows, some):
            part = {
                c.name: _values(columns[c.name][start : start + some], c, what) for c in described
            }
            yield RowBlock(part, min(some, rows - start), partial(_row, start))

    return _encoded(blocks(), Encoder(schema, what), note, accept_clipped)


def _encoded(
    blocks: Iterable[RowBlock], encoder: Encoder, note: Note, accept_clipped: bool
) -> NDArray[np.float32]:
    encoded = GrowingArray((encoder.width,), np.float32)
    for block in blocks:
        encoded.add(encoder.encode(block))
    encoder.finish(note, accept_clipped)
    return encoded.array()


@contextmanager
def _opened(
    path: Path, schema: TableSchema, needed: Sequence[str], note: Note, digest: bool
) -> Iterator[tuple[TableFile, Callable[..., Iterator[RowBlock]]]]:
    """Open a file whose rows are read by a schema; and what reads it, which needs pyarrow."""
    widths = {len(needed), len(schema.columns)}

    def fits(first: Sequence[str]) -> bool:
        return len(first) in widths or set(needed) <= set(first)

    with opened_table(path, fits=fits, note=note, digest=digest) as file:
        from terrine_models.tables.rows import read_blocks

        yield file, read_blocks


def _lacks(file: TableFile, schema: TableSchema, name: str) -> bool:
    """Whether a file with all features and the label has not got this column of the schema."""
    from terrine_models.tables.rows import is_header

    if file.delimiter is None or is_header(file.first, schema):
        return name not in file.first
    return len(file.first) == len(schema.features) + 1 < len(schema.columns)


def _row(start: int, row: int) -> str:
    return f"row {start + row}"


def _names(frame: Frame) -> list[str]:
    for attribute in ("column_names", "columns", "keys"):  # Arrow; pandas and Polars; a mapping
        found = getattr(frame, attribute, None)
        if found is not None:
            return list(found() if callable(found) else found)
    raise DataError(
        f"A {type(frame).__name__} is not a data frame: expected one of pandas, Polars or Arrow, "
        "or a dictionary of columns."
    )


def _values(array: NDArray[Any], column: Column, what: str) -> Values:
    if column.role == "numeric" and array.dtype.kind in "iuf":
        return array.astype(np.float64)
    if array.dtype.kind == "M":
        if column.role == "date":
            return array.astype("datetime64[s]")
        array = np.datetime_as_string(array)
    try:
        return CodedValues.of(array.tolist())
    except TypeError:  # not hashable
        raise DataError(
            f"{what}: column {column.name} holds lists or the like; expected numbers, text "
            "or dates."
        ) from None
