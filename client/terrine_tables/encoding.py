"""Rows of a table as numbers, by a public schema: of data frames, dictionaries and files.

Whoever has rows encodes them with this: owners what they train on, students what they ask, and the
service what it is sent by name. Data frames and dictionaries need NumPy alone; files need pyarrow.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.base import column_name
from terrine_protocol.errors import DataError
from terrine_protocol.names import show_name
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import (
    GO_ON,
    Encoder,
    GrowingArray,
    Note,
    Progress,
    RowBlock,
    check_names,
    ignore_progress,
    rows_at_a_time,
)
from terrine_tables.files import open_by_schema
from terrine_tables.frames import check_column, read_rows


class Frame(Protocol):
    """A data frame of pandas or Polars, a table of Arrow, or a mapping of names to columns."""

    def __getitem__(self, name: str, /) -> Any: ...


def encode_table(
    path: Path,
    schema: TableSchema,
    note: Note | None = None,
    progress: Progress = ignore_progress,
    *,
    accept_clipped: bool = False,
    accept_empty: bool | None = None,
    go_on: str | None = GO_ON,
) -> NDArray[np.float32]:
    """Encode a CSV, Parquet or Arrow file as inputs [N, width], as students send them.

    It needs the columns that are features, in a header, or without one all columns of the schema,
    or just its features, in order. What the schema does not expect is said in one warning, or to
    `note`. Raises DataError, and ClippedError if more than a tenth of a column's numbers are
    outside the schema's range or missing, or a column is empty in all of ten or more rows, unless
    that is accepted: `accept_empty` is by default as `accept_clipped`,
    and `go_on` says how, or None: the schema is corrected.
    """
    path, needed = Path(path), schema.features
    with (
        _collect_notes(note) as note,
        open_by_schema(path, schema, needed, note, digest=False) as file,
    ):
        blocks = file.read_blocks(schema, needed, note, progress)
        encoder = Encoder(schema, str(path))
        return _encode_blocks(blocks, encoder, note, accept_clipped, accept_empty, go_on)


def encode_frame(
    frame: Frame, schema: TableSchema, note: Note | None = None, *, accept_clipped: bool = False
) -> NDArray[np.float32]:
    """Encode a data frame as inputs [N, width], as students send them.

    It needs the columns that are features, by name. Of pandas, Polars, Arrow, or a dictionary of
    equally long columns. Warns and raises as `encode_table`.
    """
    held = {_normal(name): name for name in _names(frame)}
    check_names([_normal(name) for name in _names(frame)], schema.features, "The data frame")
    columns = {name: frame[held[name]] for name in schema.features}
    with _collect_notes(note) as note:
        return encode_columns(columns, schema, "The data frame", note, accept_clipped)


def _normal(name: Any) -> Any:
    return column_name(name) if isinstance(name, str) else name


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
    columns = columns_of(rows, schema.features)
    with _collect_notes(note) as note:
        return encode_columns(columns, schema, "The rows", note, accept_clipped)


def columns_of(
    rows: Iterable[Mapping[str, Any]], needed: Sequence[str]
) -> dict[str, NDArray[np.object_]]:
    """The columns that are needed, each [N], of rows. Raises DataError, which names the row."""
    columns: dict[str, list[Any]] = {name: [] for name in needed}
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{_row(0, place)} is a {type(row).__name__}; expected a dictionary of columns."
            )
        names = [_normal(name) for name in row]
        check_names(names, needed, _row(0, place))
        values = dict(zip(names, row.values(), strict=True))
        for name, column in columns.items():
            column.append(values[name])
    return {
        name: np.fromiter(column, dtype=object, count=len(column))
        for name, column in columns.items()
    }


def _row(start: int, row: int) -> str:
    return f"row {start + row}"


def encode_columns(
    columns: Mapping[str, Any],
    schema: TableSchema,
    what: str,
    note: Note,
    accept_clipped: bool,
    where: Callable[[int, int], str] = _row,
) -> NDArray[np.float32]:
    """Encode columns [N] by name as inputs [N, width]. Raises DataError, and ClippedError.

    columns: as `frames.read_rows` reads them.
    where: names a row in errors, by the first row of its block and its number there.
    """
    described = [column for column in schema.columns if column.name in columns]
    for name, values in columns.items():
        check_column(values, f"{what}: column {name}")
    rows = len(columns[described[0].name])
    if any(len(column) != rows for column in columns.values()):
        raise DataError(f"{what}: the columns are not equally long.")
    if not rows:
        raise DataError(f"{what}: there are no rows.")
    some = rows_at_a_time(len(columns))

    def blocks() -> Iterator[RowBlock]:
        for start in range(0, rows, some):
            stop = min(start + some, rows)
            part = {
                c.name: read_rows(columns[c.name], start, stop, c, f"{what}: column {c.name}")
                for c in described
            }
            yield RowBlock(part, stop - start, partial(where, start))

    return _encode_blocks(blocks(), Encoder(schema, what), note, accept_clipped)


def _encode_blocks(
    blocks: Iterable[RowBlock],
    encoder: Encoder,
    note: Note,
    accept_clipped: bool,
    accept_empty: bool | None = None,
    go_on: str | None = GO_ON,
) -> NDArray[np.float32]:
    encoded = GrowingArray((encoder.width,), np.float32)
    for block in blocks:
        encoded.add(encoder.encode(block))
    accept_empty = accept_clipped if accept_empty is None else accept_empty
    encoder.finish(note, accept_clipped, accept_empty, go_on)
    return encoded.array()


def _names(frame: Frame) -> list[str]:
    for attribute in ("column_names", "columns", "keys"):  # Arrow; pandas and Polars; a mapping
        found = getattr(frame, attribute, None)
        if found is not None:
            return list(found() if callable(found) else found)
    raise DataError(
        f"A {type(frame).__name__} is not a data frame: expected one of pandas, Polars or Arrow, "
        "or a dictionary of columns."
    )


@contextmanager
def _collect_notes(note: Note | None) -> Iterator[Note]:
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
            warnings.warn("\n".join(map(show_name, sentences)), stacklevel=4)
