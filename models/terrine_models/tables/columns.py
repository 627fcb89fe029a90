"""Columns of a table as numbers from 0 to 1, by what a public schema says of them.

A column comes as numbers or moments, one for each row, or as the values that it has, each once, and
which of them each row has: a value that repeats is read once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError
from terrine_protocol.tables import FEATURES, Column, DateOrder, TableSchema

MISSING = frozenset(("", "?", "NA", "NaN"))
TRUE = ("true", "t", "yes", "y", "1", "1.0")
FALSE = ("false", "f", "no", "n", "0", "0.0")
"""How a boolean is written, in capitals or not."""
FEW = 10
"""So many values, none of them known, are no accident where columns are told by their order."""
MUCH = 0.1
"""Share of a column's numbers that may be clipped or missing without a word from the student."""
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")

_DATE = re.compile(
    r"(\d{4}|\d{1,2})([-./])(\d{1,2})\2(\d{4}|\d{1,2})"
    r"(?:[T ](?:(\d{1,2}):\d{2}(?::\d{2})?(?:[.,]\d+)?(?: ?([aApP])[mM])?)?.*)?",
    re.DOTALL,
)
_EIGHT_DIGITS = re.compile(r"\d{8}(?:[T ].*)?", re.DOTALL)
_PLACES: dict[DateOrder, tuple[int, int, int]] = {
    "year-month-day": (0, 1, 2),
    "day-month-year": (2, 1, 0),
    "month-day-year": (2, 0, 1),
}
"""Where year, month and day stand."""


@dataclass(frozen=True)
class Coded:
    """Values of a column, each once (text, or as a data frame holds it), and each row's [N]."""

    values: Sequence[Any]
    places: NDArray[np.intp]

    @classmethod
    def of(cls, values: Iterable[Any]) -> Coded:
        """One value for each row."""
        index: dict[Any, int] = {}
        places = [index.setdefault(value, len(index)) for value in values]
        return cls(list(index), np.array(places, dtype=np.intp))

    def taken(self, each: Sequence[Any], dtype: Any) -> NDArray[Any]:
        """What was found for each value, for each row [N]."""
        return np.array(each, dtype=dtype)[self.places]


Values = NDArray[Any] | Coded
"""Of a column: float64 [N], NaN where a number is missing; datetime64 [N], NaT where one is; or
others."""


@dataclass(frozen=True)
class Block:
    """Some rows of a table; at least the columns that are needed."""

    columns: Mapping[str, Values]
    rows: int
    where: Callable[[int], str]
    """Names a row in an error."""
    named: bool = True
    """Whether columns were found by name, not by their order."""
    commas: frozenset[str] = frozenset()
    """Columns with decimal commas."""
    hint: Callable[[str, str], str] = lambda column, text: ""
    """What else to say of a field that is no number."""


class ClippedError(DataError):
    """More of a column than a tenth is clipped to the schema's range, or missing."""


@dataclass
class Tally:
    """What a schema does not foresee in a column."""

    rows: int = 0
    missing: int = 0
    other: int = 0
    """Values that it does not list."""
    outside: int = 0
    """Numbers and dates outside its range."""


class Encoder:
    """Encodes the rows of a table, a block at a time, and counts what the schema does not foresee.

    what: the table, in messages.
    """

    def __init__(self, schema: TableSchema, what: str) -> None:
        self.what, self._named = what, True
        self._columns = [column for column in schema.columns if column.role in FEATURES]
        self._tallies = {column.name: Tally() for column in self._columns}

    def encode(self, block: Block) -> NDArray[np.float32]:
        """Encode rows as [N, width]. Raises DataError, which names row and column."""
        self._named = block.named
        encoded = np.zeros((block.rows, sum(map(width, self._columns))), dtype=np.float32)
        start = 0
        for column in self._columns:
            end = start + width(column)
            encode(column, block, encoded[:, start:end], self._tallies[column.name])
            start = end
        return encoded

    def finish(self, note: Callable[[str], object], accept_clipped: bool = True) -> None:
        """Say what was not foreseen.

        Raises ClippedError if that is much of a column's numbers and not accepted, and DataError if
        nothing of a column is known and there is no header.
        """
        for column in self._columns:
            tally = self._tallies[column.name]
            given = tally.rows - tally.missing
            if tally.other == given >= FEW and not self._named:
                raise DataError(
                    f"{self.what} has no header, and none of the {given:,} values of column "
                    f"{column.name} is in the schema. Are the columns in its order? Add a header "
                    "that names them."
                )
        for sentence in self._sentences():
            note(sentence)
        much = [column.name for column in self._columns if self._share(column) > MUCH]
        if much and not accept_clipped:
            raise ClippedError(
                f"{self.what}: of column {', '.join(much)} more than a tenth is outside the "
                "schema's range or missing, and was not so for the teachers: labels of such rows "
                "may be bought for nothing. Are its units those of the schema? To go on as it is: "
                "--accept-clipped, in Python accept_clipped=True."
            )

    def _share(self, column: Column) -> float:
        """The rows that say something else than what is sent, where the schema has no such rows."""
        tally = self._tallies[column.name]
        unforeseen = column.role == "numeric" and column.missing is None
        return (tally.outside + (tally.missing if unforeseen else 0)) / max(1, tally.rows)

    def _sentences(self) -> Iterator[str]:
        for column in self._columns:
            tally = self._tallies[column.name]
            start, given = f"{self.what}: column {column.name}:", tally.rows - tally.missing
            if tally.other:
                yield (
                    f"{start} {tally.other:,} of {given:,} values are not in the schema; they "
                    "count as other."
                )
            if tally.outside:
                low, high = _ends(column)
                yield (
                    f"{start} {tally.outside:,} of {given:,} values are outside the schema's "
                    f"range, {low} to {high}, and clipped to it."
                )
            if tally.missing and column.role == "numeric":
                yield (
                    f"{start} {tally.missing:,} of {tally.rows:,} values are missing; "
                    f"{_instead(column):g} stands for them."
                )


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


def encode(column: Column, block: Block, out: NDArray[np.float32], tally: Tally) -> None:
    """Encode a column into zeros [N, width], and count. Raises DataError, which names the row."""
    tally.rows += block.rows
    match column.role:
        case "categorical":
            _categories(column, block, out, tally)
        case "numeric":
            _numbers(column, block, out, tally)
        case "date":
            _dates(column, block, out, tally)
        case "ordinal":
            _levels(column, block, out, tally)
        case _:
            _booleans(column, block, out, tally)


def class_indices(column: Column, block: Block) -> NDArray[np.int64]:
    """The classes of rows [N] by the label's column. Raises DataError for one that has none."""
    index = {value: k for k, value in enumerate(column.values or ())}
    index |= {f"{value}.": k for value, k in index.items() if f"{value}." not in index}
    coded = texts(column, block)  # a full stop: in UCI Adult's test
    found = coded.taken([index.get(text, -1) for text in coded.values], np.int64)
    _check(column, block, found < 0, f"one of {', '.join(column.values or ())}.")
    return found


def texts(column: Column, block: Block) -> Coded:
    """A column's values as they are written in a CSV file and in the schema: 1.0 and True as 1 and
    true."""
    values = block.columns[column.name]
    coded = values if isinstance(values, Coded) else Coded.of(values.tolist())
    return Coded([_spelled(value, column) for value in coded.values], coded.places)


def written(value: object) -> str:
    """A value as a CSV file would hold it: 1, true, 2020-01-31, and nothing for null and NaN."""
    if isinstance(value, str):
        return value.strip()
    if value is None or str(value) in ("nan", "NaT", "<NA>"):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole and isinstance(value, float) else str(value).strip()


def number(text: str, *, decimal_comma: bool = False) -> float:
    """Parse a field as a number; NaN if it is not one.

    With `decimal_comma`, 3,5 and 1.234,5 are numbers, and 1.234 is not: it is ambiguous.
    """
    if decimal_comma and "," in text:
        text = text.replace(".", "").replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else ""
    elif decimal_comma and "." in text:
        return math.nan
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_date(text: str, order: DateOrder) -> datetime | None:
    """Read a date, and its hour if a time of day follows; None if it is not one in this order.

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
        moment = datetime(int(year), int(month), int(day)) if len(year) == 4 else None
    except ValueError:
        return None
    hour, half = int(found[5] or 0), (found[6] or "").lower()
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return moment.replace(hour=hour) if moment and hour < 24 else moment


def date_orders(texts: Iterable[str]) -> list[DateOrder]:
    """The orders in which all of these are dates."""
    orders: list[DateOrder] = list(_PLACES)
    for text in texts:
        orders = [order for order in orders if read_date(text, order)]
        if not orders:
            break
    return orders


def check_names(names: Sequence[str], needed: Sequence[str], what: str) -> None:
    """Raise DataError unless all columns that are needed are there, and no name is there twice."""
    absent = [name for name in needed if name not in names]
    if absent:
        raise DataError(
            f"{what} has no column {', '.join(absent)}; it has {', '.join(map(str, names))}."
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise DataError(f"{what} has two columns named {twice!r}.")


def _spelled(value: object, column: Column) -> str:
    """A value that is no text is found among the schema's values however they are written."""
    text = written(value)
    if isinstance(value, str) or column.values is None or text in column.values:
        return text
    ways = (f"{text}.0", text.capitalize(), text.upper())
    return next((way for way in ways if way in column.values), text)


def _categories(column: Column, block: Block, out: NDArray[np.float32], tally: Tally) -> None:
    coded, index = texts(column, block), {v: k for k, v in enumerate(column.values or ())}
    places = coded.taken([index.get(text, len(index)) for text in coded.values], np.intp)
    out[np.arange(block.rows), places] = 1
    _count_texts(coded, index, tally)


def _levels(column: Column, block: Block, out: NDArray[np.float32], tally: Tally) -> None:
    coded, values = texts(column, block), column.values or ()
    index = {value: k / (len(values) - 1) for k, value in enumerate(values)}
    known = [text in index for text in coded.values]
    out[:, 0] = coded.taken([index.get(text, 0.5) for text in coded.values], np.float32)
    out[:, 1] = ~coded.taken(known, bool)
    _count_texts(coded, index, tally)


def _booleans(column: Column, block: Block, out: NDArray[np.float32], tally: Tally) -> None:
    coded = texts(column, block)
    lower = [text.lower() for text in coded.values]
    missing = coded.taken([text in MISSING for text in coded.values], bool)
    true, false = (coded.taken([t in ways for t in lower], bool) for ways in (TRUE, FALSE))
    ways = f"one of {', '.join(TRUE)}, {', '.join(FALSE)}, or nothing."
    _check(column, block, ~(true | false | missing), ways)
    out[:, 0], out[:, 1] = np.where(missing, 0.5, true), missing
    tally.missing += int(missing.sum())


def _numbers(column: Column, block: Block, out: NDArray[np.float32], tally: Tally) -> None:
    values = block.columns[column.name]
    if isinstance(values, Coded):
        coded, comma = texts(column, block), column.name in block.commas
        missing = coded.taken([text in MISSING for text in coded.values], bool)
        values = coded.taken([number(t, decimal_comma=comma) for t in coded.values], np.float64)
    else:
        missing = np.isnan(values)
    low, high = _range(column)
    if missing.any():
        tally.missing += int(missing.sum())
        values = np.where(missing, _instead(column), values)
    if not (low <= values.min(initial=low) and values.max(initial=high) <= high):
        _check(column, block, ~np.isfinite(values), "a finite number.")
        tally.outside += int(((values < low) | (values > high)).sum())
        values = np.clip(values, low, high)
    out[:, 0] = (values - low) / (high - low)
    if column.missing is not None:
        out[:, 1] = missing


def _dates(column: Column, block: Block, out: NDArray[np.float32], tally: Tally) -> None:
    values, order = block.columns[column.name], column.order or "year-month-day"
    if isinstance(values, Coded):
        coded = texts(column, block)
        missing = coded.taken([text in MISSING for text in coded.values], bool)
        moments = coded.taken([read_date(t, order) for t in coded.values], "datetime64[s]")
    else:
        moments, missing = values, np.isnat(values)
    expected = f"a date written as {order}, with four digits a year."
    _check(column, block, np.isnat(moments) & ~missing, expected)
    since, (low, high) = column.since or date.min, _range(column)
    moments = np.where(missing, np.datetime64(since), moments)
    day = moments.astype("datetime64[D]")
    days = (day - np.datetime64(since)).astype(np.float64)
    first, last = since + timedelta(days=low), since + timedelta(days=high)
    years = day.astype("datetime64[Y]").astype(np.int64) + 1970
    for place, part in enumerate(column.parts or ()):
        match part:
            case "days":
                taken = _between(days, low, high)
            case "year":
                taken = _between(years, first.year, max(last.year, first.year + 1))
            case "month":
                taken = day.astype("datetime64[M]").astype(np.int64) % 12 / 11
            case "weekday":
                taken = (day.astype(np.int64) + 3) % 7 / 6
            case "hour":
                taken = (moments - day).astype("timedelta64[h]").astype(np.int64) / 23
        out[:, place] = np.where(missing, 0.5, taken)
    out[:, -1] = missing
    tally.missing += int(missing.sum())
    if {"days", "year"} & set(column.parts or ()):
        tally.outside += int(((days < low) | (days > high))[~missing].sum())


def _count_texts(coded: Coded, known: Mapping[str, object], tally: Tally) -> None:
    rows = np.bincount(coded.places, minlength=len(coded.values))
    for text, count in zip(coded.values, rows.tolist(), strict=True):
        if text in MISSING:
            tally.missing += count
        elif text not in known:
            tally.other += count


def _check(column: Column, block: Block, odd: NDArray[np.bool_], expected: str) -> None:
    """Raise DataError for the first row that is odd."""
    rows = np.flatnonzero(odd)
    if not len(rows):
        return
    row, values = int(rows[0]), block.columns[column.name]
    value = values.values[values.places[row]] if isinstance(values, Coded) else values[row].item()
    text = written(value)
    more = f" {block.hint(column.name, text)}".rstrip() if column.role == "numeric" else ""
    raise DataError(
        f"{block.where(row)}: column {column.name} holds {text!r}, expected {expected}{more}"
    )


def _range(column: Column) -> tuple[float, float]:
    return column.low or 0.0, column.high or 0.0


def _ends(column: Column) -> tuple[object, object]:
    """The range, for people."""
    low, high = _range(column)
    if column.since is None:
        return f"{low:g}", f"{high:g}"
    return column.since + timedelta(days=low), column.since + timedelta(days=high)


def _instead(column: Column) -> float:
    """What stands for a missing number."""
    low, high = _range(column)
    return (low + high) / 2 if column.missing is None else column.missing


def _between(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.clip((values - low) / (high - low), 0.0, 1.0)
    return found
