"""Rows of a table's file as a schema needs them: columns found by the header, or by their order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute

from terrine_protocol.tables import Column, DataError, TableSchema
from terrine_protocol.tables.columns import (
    DECIMAL_COMMA,
    MISSING,
    THOUSANDS,
    CodedValues,
    Note,
    RowBlock,
    Values,
    check_names,
)
from terrine_protocol.tables.files import CsvFile, TableFile
from terrine_protocol.tables.reading import Progress

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def read_blocks(
    file: TableFile, schema: TableSchema, needed: Sequence[str], note: Note, progress: Progress
) -> Iterator[RowBlock]:
    """Read the columns that are needed, some rows at a time. Raises DataError.

    A column with decimal commas in some rows and points in others is refused, in whichever rows
    they come first.
    """
    names, every = file.first, [column.name for column in schema.columns]
    named = file.delimiter is None or is_header(names, schema)
    if named:
        if isinstance(file, CsvFile):
            file.check_header()
        check_names(names, needed, str(file.path))
    else:
        names = list({len(order): order for order in (needed, every)}.get(len(names), every))
    wanted = frozenset(needed)
    described = [column for column in schema.columns if column.name in wanted]
    numeric = [column for column in described if column.role == "numeric" or column.edges]
    other = file.delimiter not in (None, ",")
    mixed = [column.name for column in numeric if other and column.commas != "thousands"]
    start, commas, points = 0, set[str](), dict[str, tuple[int, str]]()
    for batch in file.batches(names if file.delimiter else needed, named, progress):
        if not start and not named:
            note(
                f"{file.path} has no header; its columns are taken to be {', '.join(names)}, in "
                "this order."
            )
        for name in mixed:
            texts = batch.column(name)
            if name not in commas and _first(texts, ",") is not None:
                commas.add(name)
                if name in points:
                    record, text = points[name]
                    raise DataError(
                        f"{file.where(record)}: column {name} holds {text!r}, expected a finite "
                        f"number. {_hint(file.delimiter, commas, name, text)}"
                    )
            elif name not in {*commas, *points} and (row := _first(texts, ".")) is not None:
                points[name] = (start + row, texts[row].as_py().strip())
        columns = {c.name: _values(file, c, batch.column(c.name), start, commas) for c in described}
        where = partial(lambda start, row: file.where(start + row), start)
        hint = partial(_hint, file.delimiter, commas)
        yield RowBlock(columns, batch.num_rows, where, named, frozenset(commas), hint)
        start += batch.num_rows
    if not start:
        raise DataError(f"{file.path} holds no records.")


def coded(file: TableFile, name: str, array: Any, start: int) -> CodedValues:
    """The values of a column, each once, of rows from `start` on. Raises DataError."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    kind = array.type
    if unread := unread_type(kind):
        raise DataError(
            f"{file.path}: column {name} holds {unread}; expected numbers, text or dates. To leave "
            f"it out: --ignore {name}."
        )
    array = _moments(array).dictionary_encode()  # in the order in which they first appear
    found = array.dictionary.to_pylist()
    places = array.indices.fill_null(len(found)).to_numpy(zero_copy_only=False).astype(np.intp)
    if isinstance(file, CsvFile):

        def where(place: int) -> str:
            return file.where(start + int(np.flatnonzero(places == place)[0]))

        file.check(found, where, name)
        for place, text in enumerate(found):
            if text[:1] == " " and text.lstrip()[:1] == '"':
                raise DataError(
                    f"{where(place)}: column {name} holds {text!r}: a quote after a space "
                    f"does not open a field. Leave out the space, or the column: --ignore {name}."
                )
    return CodedValues([*found, None] if array.null_count else found, places)


def unread_type(kind: Any) -> str | None:
    """What a typed column holds that cannot be read, such as lists; None if it can."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    readable = (
        pa.types.is_primitive(plain)
        or pa.types.is_decimal(plain)
        or pa.types.is_null(plain)
        or any(is_text(plain) for is_text in _TEXT)
    )
    return None if readable else str(kind)


def _values(
    file: TableFile, column: Column, array: Any, start: int, commas: Collection[str]
) -> Values:
    kind, text = array.type, file.delimiter is not None
    if column.role == "numeric" and text and column.name not in commas:
        for trimmed in (False, True):
            numbers = array
            if trimmed:
                numbers = compute.utf8_trim_whitespace(array)
                missing = compute.is_in(numbers, value_set=pa.array(sorted(MISSING)))
                numbers = compute.if_else(missing, None, numbers)
            try:
                numbers = numbers.cast(pa.float64())
            except pa.ArrowInvalid:
                continue
            found: NDArray[np.float64] = numbers.to_numpy(zero_copy_only=False)
            if len(found) - np.count_nonzero(np.isfinite(found)) == numbers.null_count:
                return found
        # Else one is no finite number, or written in a way that only `columns.number` reads.
    elif column.role == "numeric" and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        whole: Values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return whole
    elif column.role == "date" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        moments: Values = _moments(array).to_numpy(zero_copy_only=False).astype("datetime64[s]")
        return moments
    return coded(file, column.name, array, start)


def _moments(array: Any) -> Any:
    """Dates, and times as they are written where they were taken, in microseconds."""
    if pa.types.is_timestamp(array.type):
        array = compute.local_timestamp(array) if array.type.tz else array
        array = compute.floor_temporal(array, unit="microsecond")
        return array.cast(pa.timestamp("us"), safe=False)
    return array


def _first(texts: Any, character: str) -> int | None:
    """The first row with this character."""
    row = compute.index(compute.match_substring(texts, character), True).as_py()
    return None if row < 0 else row


def is_header(first: Sequence[str], schema: TableSchema) -> bool:
    """Whether a first row names more than half of the features, or any column but by a value."""
    values = {value for column in schema.columns for value in column.values or ()}
    names = {column.name for column in schema.columns}
    many = 2 * len(set(first) & set(schema.features)) > len(schema.features)
    return many or bool(set(first) & names - values)


def _hint(delimiter: str | None, commas: Collection[str], name: str, text: str) -> str:
    if name in commas and "." in text:
        return "Other rows of this column have a decimal comma: use the same format in all rows."
    if "," in text and (DECIMAL_COMMA.fullmatch(text) or THOUSANDS.fullmatch(text)):
        return (
            f'If its commas separate thousands, as in 1,234, write "commas": "thousands" at column '
            f'{name} of the schema; if they are decimal signs, "commas": "decimal".'
        )
    if delimiter is None:
        return ""
    return "If this line is a header, it must name every column that is needed."
