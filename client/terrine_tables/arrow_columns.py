"""Arrow's columns by their types, with pyarrow: of files, and of the data frames that hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from terrine_protocol.errors import DataError
from terrine_protocol.schema import Column
from terrine_tables.columns import CodedValues, Values

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def unread_type(kind: Any) -> str | None:
    """What a typed column holds that cannot be read, such as lists; None if it can."""
    packed = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    plain = kind.value_type if packed else kind
    readable = (
        pa.types.is_primitive(plain)
        or pa.types.is_decimal(plain)
        or pa.types.is_null(plain)
        or any(is_text(plain) for is_text in _TEXT)
    )
    return None if readable else str(kind)


def read_typed(array: Any, column: Column) -> Values | None:
    """Read a numeric column of numbers, or one of dates, by its type; None if it is of others."""
    kind = array.type
    if column.role == "numeric" and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        whole: Values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return whole
    if column.role == "date" and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        moments = _in_microseconds(array).to_numpy(zero_copy_only=False)
        dates: Values = moments.astype("datetime64[s]")
        return dates
    return None


def code_array(array: Any, what: str) -> CodedValues:
    """Return the values of a column [N], an array or a chunked one, each once, as Python has them.

    what: where the column is, in an error. Raises DataError for lists and the like.
    """
    array = _in_microseconds(_unpack(array, what))
    short = {pa.float16(): np.float16, pa.float32(): np.float32}.get(array.type)
    if short is not None:
        array = array.cast(pa.float64())
    array = array.dictionary_encode()  # in the order in which they first appear
    found = array.dictionary.to_pylist()
    if short is not None:  # 0.1, and not 0.10000000149011612
        found = list(map(short, found))
    places = array.indices.fill_null(len(found)).to_numpy(zero_copy_only=False).astype(np.intp)
    return CodedValues([*found, None] if array.null_count else found, places)


def _unpack(array: Any, what: str) -> Any:
    """An array of plain values, whichever way they are stored."""
    if unread := unread_type(array.type):
        raise DataError(f"{what} holds {unread}; expected numbers, text or dates.")
    if pa.types.is_dictionary(array.type):
        array = compute.cast(array, array.type.value_type)
    elif pa.types.is_run_end_encoded(array.type):
        array = compute.run_end_decode(array)
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    elif pa.types.is_decimal(array.type) and array.type.bit_width < 128:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _in_microseconds(array: Any) -> Any:
    """Dates, times as they are written where they were taken, and durations: what Python holds."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        array = compute.local_timestamp(array) if kind.tz else array
        array = compute.floor_temporal(array, unit="microsecond")
        return array.cast(pa.timestamp("us"), safe=False)
    if pa.types.is_duration(kind):
        return array.cast(pa.duration("us"), safe=False)
    if pa.types.is_time64(kind):
        return array.cast(pa.time64("us"), safe=False)
    return array
