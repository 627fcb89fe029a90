"""Rows of a table's file as a schema needs them: columns found by the header, or by their order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from terrine_models.data.arrays import DataError
from terrine_models.data.reading import Progress
from terrine_models.tables.columns import MISSING, Block, Coded, Values, check_names
from terrine_models.tables.files import Note, TableFile
from terrine_protocol.tables import Column, TableSchema


def read_blocks(
    file: TableFile, schema: TableSchema, needed: Sequence[str], note: Note, progress: Progress
) -> Iterator[Block]:
    """Read the columns that are needed, some rows at a time. Raises DataError."""
    names: Sequence[str] = file.first
    named = file.delimiter is None or _is_header(file.first, schema)
    if named:
        check_names(names, needed, str(file.path))
    else:
        every = [column.name for column in schema.columns]
        names = {len(order): order for order in (needed, every)}.get(len(names), every)
    described = [column for column in schema.columns if column.name in needed]
    numeric = [column.name for column in described if column.role == "numeric"]
    commas = _Commas(file, [] if file.delimiter in (None, ",") else numeric)
    start = 0
    for batch in file.batches(needed if file.delimiter is None else names, named, progress):
        if not start and not named:
            note(
                f"{file.path} has no header; its columns are taken to be {', '.join(names)}, in "
                "this order."
            )
        found = commas.of(batch, start)
        columns = {c.name: _values(file, c, batch.column(c.name), start, found) for c in described}
        where = partial(_where, file, start)
        hint = partial(_hint, file.delimiter, found)
        yield Block(columns, batch.num_rows, where, named, found, hint)
        start += batch.num_rows
    if not start:
        raise DataError(f"{file.path} holds no records.")


def coded(file: TableFile, name: str, array: Any, start: int) -> Coded:
    """The values of a column, each once, of rows from `start` on. Raises DataError."""
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise DataError(
            f"{file.path}: column {name} holds {kind}; expected numbers, text or dates."
        )
    array = _moments(array) if pa.types.is_timestamp(kind) else array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = array.dictionary_encode()  # by the order in which they first appear
    found = array.dictionary.to_pylist()
    places = array.indices.fill_null(len(found)).to_numpy(zero_copy_only=False).astype(np.intp)
    if file.delimiter is not None:
        for place, text in enumerate(found):
            if text[:1] == " " and text.lstrip()[:1] == '"':
                row = int(np.flatnonzero(places == place)[0])
                raise DataError(
                    f"{file.where(start + row)}: column {name} holds {text!r}: a quote after a "
                    "space does not open a field. Leave out the space."
                )
        found = [text.strip() for text in found]
    return Coded([*found, None] if array.null_count else found, places)


def _values(
    file: TableFile, column: Column, array: Any, start: int, commas: frozenset[str]
) -> Values:
    kind, role, found = array.type, column.role, None
    if role == "numeric" and file.delimiter is not None and column.name not in commas:
        found = _parsed(array)
    elif role == "numeric" and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        found = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    elif role == "date" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        found = _moments(array).to_numpy(zero_copy_only=False).astype("datetime64[s]")
    return coded(file, column.name, array, start) if found is None else found


def _parsed(array: Any) -> NDArray[np.float64] | None:
    """Texts as numbers, NaN where one is missing; None if one is no finite number, or written in a
    way that only `columns.number` reads."""
    text = array
    for trimmed in (False, True):
        if trimmed:
            text = compute.utf8_trim_whitespace(array)
            missing = compute.is_in(text, value_set=pa.array(sorted(MISSING)))
            text = compute.if_else(missing, None, text)
        try:
            numbers = text.cast(pa.float64())
        except pa.ArrowInvalid:
            continue
        found: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
        if len(found) - np.isfinite(found).sum() == numbers.null_count:
            return found
    return None


def _moments(array: Any) -> Any:
    """Dates and times as they are written where they were taken, in microseconds."""
    if pa.types.is_timestamp(array.type):
        array = compute.local_timestamp(array) if array.type.tz else array
        array = compute.floor_temporal(array, unit="microsecond")
        return array.cast(pa.timestamp("us"), safe=False)
    return array


@dataclass
class _Commas:
    """Which columns have decimal commas. A column with commas in some rows and points in others
    is refused, in whichever rows they come first."""

    file: TableFile
    numeric: Sequence[str]
    found: set[str] = field(default_factory=set)
    points: dict[str, tuple[int, str]] = field(default_factory=dict)
    """In which record a column has a number with a point, and which."""

    def of(self, batch: Any, start: int) -> frozenset[str]:
        """The columns that have decimal commas so far."""
        for name in self.numeric:
            texts = batch.column(name)
            if name not in self.found and _first(texts, ",") is not None:
                self.found.add(name)
                if name in self.points:
                    record, text = self.points[name]
                    hint = _hint(self.file.delimiter, self.found, name, text)
                    raise DataError(
                        f"{self.file.where(record)}: column {name} holds {text!r}, expected a "
                        f"finite number. {hint}"
                    )
            elif name not in self.found and name not in self.points:
                row = _first(texts, ".")
                if row is not None:
                    self.points[name] = (start + row, texts[row].as_py().strip())
        return frozenset(self.found)


def _first(texts: Any, character: str) -> int | None:
    """The first row with this character."""
    row = compute.index(compute.match_substring(texts, character), True).as_py()
    return None if row < 0 else row


def _where(file: TableFile, start: int, row: int) -> str:
    return file.where(start + row)


def _is_header(first: Sequence[str], schema: TableSchema) -> bool:
    """Whether a first row names more than half of the features, or any column but by a value."""
    values = {value for column in schema.columns for value in column.values or ()}
    names = {column.name for column in schema.columns}
    many = 2 * len(set(first) & set(schema.features)) > len(schema.features)
    return many or bool(set(first) & names - values)


def _hint(delimiter: str | None, commas: Collection[str], name: str, text: str) -> str:
    if delimiter is None:
        return ""
    if name in commas and "." in text:
        return "Other rows of this column have a decimal comma: use the same format in all rows."
    if "," in text and delimiter == ",":
        return "Decimal commas are read only if another character separates fields, as in a;3,5."
    return "If this line is a header, it must name every column that is needed."
