"""Columns of data frames, decoded by what their type says, as `arrow_columns.py` does it for files.

NumPy's view of a column drops what the column knows: which values are missing, in which time zone
a moment was written down, which category a code stands for. So each library is asked in its own
words, and is needed only for its own frames.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.errors import DataError
from terrine_protocol.schema import Column
from terrine_tables.columns import CodedValues, Values

# What is no value of a table, although it can be compared.
_UNREAD = (bytes, bytearray, memoryview, tuple, frozenset, complex)
_PLAIN_NUMBERS = {int, float, type(None)}


def check_column(values: Any, what: str) -> None:
    """Raise DataError for a column that has no rows to count, such as one value for all."""
    if isinstance(values, str | bytes) or not isinstance(values, Sized):
        raise DataError(f"{what} is a {type(values).__name__}; expected a value for each row.")


def read_rows(values: Any, start: int, stop: int, column: Column, what: str) -> Values:
    """Read some rows of a column: of pandas, Polars, Arrow, NumPy, or any sequence of values.

    what: the column, in an error. Raises DataError for lists and the like.
    """
    library = type(values).__module__.partition(".")[0]
    if library == "pandas" and hasattr(values, "to_series"):  # an index
        values = values.to_series()
    some = getattr(values, "iloc", values)[start:stop]
    if library == "pyarrow":
        return _read_arrow(some, column, what)
    if library == "pandas":
        if type(some.dtype).__name__ == "ArrowDtype":
            return _read_arrow(some.array.__arrow_array__(), column, what)
        some = _of_pandas(some)
    elif library == "polars":
        some = _of_polars(some, column)
    if isinstance(some, CodedValues):
        return _check_values(some, what)
    if hasattr(some, "dtype") or hasattr(some, "__array__"):
        some = some if isinstance(some, np.ndarray) else np.asarray(some)
        if some.ndim != 1:
            raise DataError(_unread(what))
        return _read_array(some, column, what)
    return _read_values(list(some), column, what)


def _read_arrow(array: Any, column: Column, what: str) -> Values:
    from terrine_tables.arrow_columns import code_array, read_typed

    typed = read_typed(array, column)
    return code_array(array, what) if typed is None else typed


def _of_pandas(some: Any) -> Any:
    """A series of pandas as an array, masked where it says what is missing, or as its categories
    and codes. Moments are local, as they print."""
    dtype = some.dtype
    if hasattr(some, "cat"):
        codes, places = np.unique(some.cat.codes.to_numpy(), return_inverse=True)
        every = some.cat.categories
        every = every.tz_localize(None) if getattr(every, "tz", None) else every
        return CodedValues([None if code < 0 else every[code] for code in codes], places.ravel())
    if getattr(dtype, "tz", None) is not None:
        return some.dt.tz_localize(None).to_numpy()
    plain = getattr(dtype, "numpy_dtype", None)
    if plain is not None and not isinstance(dtype, np.dtype):  # Int64, boolean
        held = some.to_numpy(dtype=plain, na_value=plain.type(0))
        return np.ma.MaskedArray(held, mask=some.isna().to_numpy())
    return some.to_numpy()


def _of_polars(some: Any, column: Column) -> Any:
    """A series of Polars as an array or a list, None or NaN or NaT where a value is missing.
    Moments are local, as they print."""
    dtype = some.dtype
    if column.role == "numeric" and (dtype.is_float() or dtype.is_integer()):
        return some.to_numpy()
    if getattr(dtype, "time_zone", None) is not None:
        some = some.dt.replace_time_zone(None)
    if str(dtype) == "Float32":
        return [None if value is None else np.float32(value) for value in some.to_list()]
    dated = column.role == "date" and dtype.is_temporal() and str(dtype).startswith("Date")
    return some.to_numpy() if dated else some.to_list()


def _read_array(array: NDArray[Any], column: Column, what: str) -> Values:
    """An array [N] of NumPy, perhaps masked."""
    kind, held, mask = array.dtype.kind, np.ma.getdata(array), np.ma.getmaskarray(array)
    if kind == "V":
        raise DataError(_unread(what))
    if kind in "iuf" and column.role == "numeric":
        return np.where(mask, np.nan, held.astype(np.float64)) if mask.any() else held.astype(float)
    if kind == "M" and column.role == "date":
        moments: Values = np.where(mask, np.datetime64("NaT"), held.astype("datetime64[s]"))
        return moments
    if kind in "mM" and np.datetime_data(held.dtype)[0] in ("ns", "ps", "fs", "as"):
        held = held.astype(f"{kind}8[us]")  # which Python holds, and those as whole numbers
    short = kind == "f" and held.dtype.itemsize < 8  # and prints as it was written: 0.1
    values = list(held) if short else held.tolist()
    if mask.any():
        values = [None if gone else value for value, gone in zip(values, mask, strict=True)]
    return _read_values(values, column, what)


def _read_values(values: list[Any], column: Column, what: str) -> Values:
    """Values as Python holds them, None where one is missing."""
    if column.role == "numeric" and set(map(type, values)) <= _PLAIN_NUMBERS:
        try:
            return np.array([np.nan if value is None else value for value in values], np.float64)
        except OverflowError:
            pass  # a whole number beyond float64: it is told as what is not finite
    try:
        return _check_values(CodedValues.of(values), what)
    except TypeError:  # not hashable
        raise DataError(_unread(what)) from None


def _check_values(coded: CodedValues, what: str) -> CodedValues:
    if any(isinstance(value, _UNREAD) for value in coded.values):
        raise DataError(_unread(what))
    return coded


def _unread(what: str) -> str:
    return f"{what} holds lists, bytes or the like; expected numbers, text or dates."
