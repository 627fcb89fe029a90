"""Columns of a table as numbers from 0 to 1, by what a public schema says of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError
from terrine_models.tables.csv_files import number
from terrine_protocol.tables import Column, DateOrder, DatePart

MISSING = frozenset(("", "?", "NA", "NaN"))
TRUE = ("true", "t", "yes", "y", "1", "1.0")
FALSE = ("false", "f", "no", "n", "0", "0.0")
"""How a boolean is written, in capitals or not."""

_DATE = re.compile(r"(\d{4}|\d{1,2})([-./])(\d{1,2})\2(\d{4}|\d{1,2})(?:[T ].*)?", re.DOTALL)
_EIGHT_DIGITS = re.compile(r"\d{8}(?:[T ].*)?", re.DOTALL)
_PLACES: dict[DateOrder, tuple[int, int, int]] = {
    "year-month-day": (0, 1, 2),
    "day-month-year": (2, 1, 0),
    "month-day-year": (2, 0, 1),
}
"""Where year, month and day stand."""


@dataclass(frozen=True)
class Texts:
    """The values of one column, as they are written in a file."""

    values: Sequence[str]
    where: Callable[[int], str]
    """Names a row in an error."""
    decimal_comma: bool = False
    hint: Callable[[str], str] = lambda text: ""
    """What else to say of a field that is no number."""


def width(column: Column) -> int:
    """How many numbers a column becomes.

    One per number, ordinal or boolean, and per part of a date; one more that says that it is
    missing, for a number only if the schema says what stands for it. One per category, and one for
    "other".
    """
    match column.role:
        case "numeric":
            return 1 if column.missing is None else 2
        case "categorical":
            return len(column.values or ()) + 1
        case "ordinal" | "boolean":
            return 2
        case "date":
            return len(column.parts or ()) + 1
        case _:
            return 0


def encode(column: Column, texts: Texts) -> NDArray[np.float32]:
    """Encode values [N] as [N, width]. Raises DataError, which names the row."""
    if column.role == "categorical":
        return _indicators(column, texts)
    if column.role == "numeric":
        return _numbers(column, texts)
    one = {"ordinal": _ordinal, "boolean": _boolean, "date": _date}[column.role]
    first: dict[str, int] = {}
    places = [first.setdefault(text, len(first)) for text in texts.values]
    rows = [one(column, texts, text) for text in first]  # values repeat: each is read once
    return np.array(rows, dtype=np.float32).reshape(len(rows), width(column))[places]


def unknown(column: Column, texts: Texts) -> int:
    """How many values are none of those that the schema lists for a column, nor missing."""
    if column.role not in ("categorical", "ordinal"):
        return 0
    known = {*(column.values or ()), *MISSING}
    return sum(text not in known for text in texts.values)


def read_date(text: str, order: DateOrder) -> date | None:
    """Read a date, with or without a time of day; None if it is not one in this order.

    What begins with a year of four digits is year-month-day in any order.
    """
    if _EIGHT_DIGITS.fullmatch(text):
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    found = _DATE.fullmatch(text)
    if found is None:
        return None
    parts = (found[1], found[3], found[4])
    places = _PLACES["year-month-day" if len(found[1]) == 4 else order]
    year, month, day = (parts[place] for place in places)
    try:
        return date(int(year), int(month), int(day)) if len(year) == 4 else None
    except ValueError:
        return None


def date_orders(texts: Iterable[str]) -> list[DateOrder]:
    """The orders in which all of these are dates."""
    orders: list[DateOrder] = list(_PLACES)
    for text in texts:
        orders = [order for order in orders if read_date(text, order)]
        if not orders:
            break
    return orders


def _indicators(column: Column, texts: Texts) -> NDArray[np.float32]:
    index = {value: k for k, value in enumerate(column.values or ())}
    encoded = np.zeros((len(texts.values), len(index) + 1), dtype=np.float32)
    places = [index.get(text, len(index)) for text in texts.values]
    encoded[np.arange(len(places)), places] = 1
    return encoded


def _numbers(column: Column, texts: Texts) -> NDArray[np.float32]:
    low, high = column.low or 0.0, column.high or 0.0
    instead = (low + high) / 2 if column.missing is None else column.missing
    missing = [text in MISSING for text in texts.values]
    values = np.array(
        [
            instead if absent else number(text, decimal_comma=texts.decimal_comma)
            for text, absent in zip(texts.values, missing, strict=True)
        ]
    )
    odd = np.flatnonzero(~np.isfinite(values))
    if len(odd):
        text = texts.values[odd[0]]
        raise _unexpected(column, texts, text, f"a finite number. {texts.hint(text)}".rstrip())
    with np.errstate(over="ignore", invalid="ignore"):  # far outside the range is clipped, too
        scaled = (values - low) / (high - low)
    scaled = np.where(scaled < 0, 0, np.where(scaled > 1, 1, scaled))
    found = [scaled] if column.missing is None else [scaled, np.array(missing)]
    return np.stack(found, axis=1).astype(np.float32)


def _ordinal(column: Column, texts: Texts, text: str) -> list[float]:
    values = column.values or ()
    if text not in values:
        return [0.5, 1]
    return [values.index(text) / (len(values) - 1), 0]


def _boolean(column: Column, texts: Texts, text: str) -> list[float]:
    if text in MISSING:
        return [0.5, 1]
    if text.lower() not in TRUE + FALSE:
        ways = f"one of {', '.join(TRUE)}, {', '.join(FALSE)}, or nothing."
        raise _unexpected(column, texts, text, ways)
    return [float(text.lower() in TRUE), 0]


def _date(column: Column, texts: Texts, text: str) -> list[float]:
    parts, order, since = column.parts or (), column.order or "year-month-day", column.since
    if text in MISSING:
        return [*(0.5 for _ in parts), 1]
    day = read_date(text, order)
    if day is None:
        raise _unexpected(
            column, texts, text, f"a date written as {order}, with four digits a year."
        )
    since = since or date.min
    low, high = column.low or 0.0, column.high or 0.0
    first, last = since + timedelta(days=low), since + timedelta(days=high)
    taken: dict[DatePart, float] = {
        "days": _between((day - since).days, low, high),
        "year": _between(day.year, first.year, max(last.year, first.year + 1)),
        "month": (day.month - 1) / 11,
        "weekday": day.weekday() / 6,
    }
    return [*(taken[part] for part in parts), 0]


def _between(value: float, low: float, high: float) -> float:
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _unexpected(column: Column, texts: Texts, text: str, expected: str) -> DataError:
    where = texts.where(texts.values.index(text))
    return DataError(f"{where}: column {column.name} holds {text!r}, expected {expected}")
