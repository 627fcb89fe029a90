"""Columns of a table as numbers from 0 to 1, by what a public schema says of them.

A column comes as numbers or moments, one for each row, or as the values that it has, each once, and
which of them each row has: a value that repeats is read once.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.base import (
    LISTED,
    fold,
    list_names,
    map_class_numbers,
    normalize,
    quote_name,
    quote_text,
)
from terrine_protocol.errors import ClippedError, DataError
from terrine_protocol.schema import FEATURE_ROLES, Column, DateOrder, TableSchema
from terrine_tables.texts import MAX_TEXT_CHARACTERS, clean_text, encode_texts

MISSING_TEXTS = frozenset(("", "?", "NA", "NaN"))
# What else says that there is no number, date or truth value, in capitals or not. Among categories
# it is one of them.
_NO_VALUE = re.compile(
    r"-+|\.+|#?n/a|n\.a\.|<na>|nan|nat|nil|none|null|missing|unknown|not (available|known)|"
    r"unbekannt|k\. ?a\.|inconnu|desconocido|desconhecido|sconosciuto|onbekend",
    re.IGNORECASE,
)
TRUE_TEXTS = ("true", "t", "yes", "y", "1", "1.0")
# How a boolean is written, in capitals or not.
FALSE_TEXTS = ("false", "f", "no", "n", "0", "0.0")
# Values of a column, none of them known, that are not an accident where columns are identified by
# their order.
MIN_UNKNOWN_VALUES = 10
# Characters of a value that an error quotes.
MAX_SHOWN_CHARACTERS = 200
# Rows in all of which a column is empty, that are not an accident.
MIN_EMPTY_ROWS = 10
GO_ON = (
    "To go on as it is: --accept-clipped, in Python accept_clipped=True, by HTTP "
    "?accept_clipped=true"
)
CORRECT_SCHEMA = (
    "If it is, correct the schema: a range (low, high) that its values fit, what stands for a "
    "missing one (missing), or the role ignored. `terrine ensemble schema` makes one from public "
    "rows, for --schema"
)
# Share of a column's numbers that may be clipped or missing unless it is accepted.
MAX_CLIPPED_SHARE = 0.1
# Share of a column's values that count as missing because they are no numbers, dates or truth
# values, without saying that nothing is known.
MAX_UNREADABLE_SHARE = 0.1
# Numbers that float32 tells apart in a range, if numbers are rounded to it.
MIN_SINGLE_STEPS = 2**16
MAX_SINGLE = float(np.finfo(np.float32).max)
# Receives a sentence for the user about how a table was read.
Note = Callable[[str], object]
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?", re.ASCII)
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d+(\.0+)?", re.ASCII)
# Digits of any script, with separators, a unit, a percent sign or a currency; and infinity.
_OTHER_NUMBER = re.compile(
    r"\(?([€£$¥]|[^\W\d_]{3})?\s?[-+−]?\s?"
    r"(0x[\da-f]+|\d[\d\s.,'’_]*(e[+-]?\d+)?|[.,]\d+|inf|infinity)"
    r"\s?([%‰€£$¥]|°?[^\W\d_]{1,6}[²³]?(/[^\W\d_]{1,6}[²³]?)?)?\)?",
    re.IGNORECASE,
)

# A date, and what may follow: a time of day, and its zone, which is not read.
_DATE = re.compile(
    r"(\d{4}|\d{1,2})([-./])(\d{1,2})\2(\d{4}|\d{1,2})"
    r"(?:[T ](\d{1,2}):[0-5]\d(?::(?:[0-5]\d|60)(?:[.,]\d+)?)?(?: ?([aApP])[mM])?"
    r"(?: ?(?:Z|[A-Z]{3,4}|[+-]\d\d(?::?\d\d)?)(?:\[[\w/+-]+\])?)?)?",
    re.ASCII,
)
_SHORT_YEAR = re.compile(r"\d{1,2}([-./])\d{1,2}\1\d{2}(?:[T ].*)?", re.ASCII)
_EIGHT_DIGITS = re.compile(r"\d{8}(?:[T ].*)?", re.ASCII)
# Where year, month and day stand.
_PLACES: dict[DateOrder, tuple[int, int, int]] = {
    "year-month-day": (0, 1, 2),
    "day-month-year": (2, 1, 0),
    "month-day-year": (2, 0, 1),
}


@dataclass(frozen=True)
class CodedValues:
    """Values of a column, each once (text, or as a data frame holds it), and each row's [N]."""

    values: Sequence[Any]
    places: NDArray[np.intp]

    @classmethod
    def of(cls, values: Iterable[Any]) -> CodedValues:
        """One value for each row."""
        values = list(values)
        kinds, index, keys = set(map(type, values)), dict[Any, int](), values
        if any(issubclass(kind, datetime) for kind in kinds):  # a moment has many local times
            keys = [(type(value), str(value)) for value in values]
        elif not kinds.isdisjoint((bool, np.bool_)) and len(kinds) > 1:  # as True == 1
            keys = [(type(value), value) for value in values]
        places = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.intp)
        if keys is values:
            return cls(list(index), places)
        return cls([values[row] for row in np.unique(places, return_index=True)[1]], places)


# Of a column: float64 [N], NaN where a number is missing; datetime64 [N], NaT where one is; or
# others.
Values = NDArray[Any] | CodedValues


@dataclass(frozen=True)
class RowBlock:
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
    """What else to say of a field that is not a number."""


@dataclass
class Tally:
    """What a schema does not expect in a column."""

    rows: int = 0
    missing: int = 0
    unreadable: int = 0
    """Those of them that say something else than that nothing is known."""
    first: DataError | None = None
    """What is wrong with the first of these."""
    example: str = ""
    """Its text."""
    other: int = 0
    """Values that it does not list."""
    outside: int = 0
    """Numbers and dates outside its range."""
    cut: int = 0
    """Texts of which only the beginning is read."""


# Encodes a column into zeros [N, width], and counts. Raises `DataError`.
ColumnEncoder = Callable[[Column, RowBlock, NDArray[np.float32], Tally], None]


class Encoder:
    """Encodes the rows of a table, a block at a time, and counts what the schema does not expect.

    what: the table, in messages.

    A few values that are no numbers, dates or truth values count as missing: at most a tenth of a
    column's. None may where columns are known by their order alone, nor may what is written in
    another way, such as 3,5 or 12 kg.
    """

    def __init__(self, schema: TableSchema, what: str) -> None:
        self._what, self._named = what, True
        self._columns = [
            (column, Tally(), encoded_width(column))
            for column in schema.columns
            if column.role in FEATURE_ROLES
        ]
        self.width = sum(width for _, _, width in self._columns)

    def encode(self, block: RowBlock) -> NDArray[np.float32]:
        """Encode rows as [N, width]. Raises DataError, which names row and column."""
        encoded, start = np.zeros((block.rows, self.width), dtype=np.float32), 0
        for column, tally, wide in self._columns:
            tally.rows += block.rows
            _ENCODERS[column.role](column, block, encoded[:, start : start + wide], tally)
            start += wide
        self._named = block.named
        return encoded

    def finish(
        self,
        note: Note,
        accept_clipped: bool = False,
        accept_empty: bool = False,
        go_on: str | None = None,
    ) -> None:
        """Say what was not expected.

        Raises ClippedError if that is much of a column's numbers, or if all of a column is empty,
        and not accepted, and DataError if nothing of a column is known and there is no header.

        go_on: how whoever asks accepts it; None for whoever has the schema, and corrects that.
        """
        much, gaps, empty = list[str](), list[str](), list[str]()
        for column, tally, _ in self._columns:
            if tally.first and tally.unreadable > MAX_UNREADABLE_SHARE * tally.rows:
                raise tally.first
            name, given = column.name, tally.rows - tally.missing
            if tally.other == given >= MIN_UNKNOWN_VALUES and not self._named:
                raise DataError(
                    f"{self._what} has no header, and none of the {given:,} values of column "
                    f"{name} is in the schema. Are the columns in its order? Add a header that "
                    "names them."
                )
            start, of = f"{self._what}: column {name}:", f"of {given:,} values are"
            if tally.other:
                note(f"{start} {tally.other:,} {of} not in the schema; they count as other.")
            if tally.unreadable:
                note(
                    f"{start} {tally.unreadable:,} of {tally.rows:,} values, such as "
                    f"{_quote(tally.example)}, are no {_KINDS[column.role]}; they count as missing."
                )
            if tally.outside:
                ends = f", {column.low:g} to {column.high:g}," if column.since is None else ""
                note(
                    f"{start} {tally.outside:,} {of} outside the schema's range{ends} and clipped "
                    "to it."
                )
            if tally.cut:
                note(
                    f"{start} {tally.cut:,} {of} longer than {MAX_TEXT_CHARACTERS:,} characters; "
                    "what follows is not read."
                )
            if tally.missing == tally.rows >= MIN_EMPTY_ROWS:
                empty.append(name)
            if tally.missing and column.role != "numeric":
                gaps.append(f"{name} ({tally.missing:,} of {tally.rows:,})")
            elif tally.missing:
                note(
                    f"{start} {tally.missing:,} of {tally.rows:,} values are missing; "
                    f"{_missing_value(column):g} stands for them."
                )
            expected = column.role != "numeric" or column.missing is not None
            if tally.outside + (0 if expected else tally.missing) > MAX_CLIPPED_SHARE * tally.rows:
                much.append(name)
        if gaps:
            note(f"{self._what}: values are missing in column {list_names(gaps)}.")
        if empty and not accept_empty:
            raise ClippedError(
                f"{self._what}: column {list_names(empty)} is empty in all "
                f"{self._columns[0][1].rows:,} rows, as where a join found nothing. "
                f"{go_on or 'If it is to be empty, give it the role ignored in the schema'}."
            )
        if much and not accept_clipped:
            raise ClippedError(
                f"{self._what}: of column {', '.join(much)} more than a tenth is outside the "
                "schema's range, or missing where the schema knows no gaps: labels of such rows "
                "may be bought for nothing. Is it in the schema's units? "
                f"{go_on or CORRECT_SCHEMA}."
            )


def encoded_width(column: Column) -> int:
    """How many numbers a column becomes.

    One per number, ordinal or boolean, and per part of a date; one more that says that it is
    missing, for a number only if the schema says what stands for it. One per category, and one for
    "other". Of a text those of its n-grams, and one that says that it is missing.
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
        case "text":
            return (column.width or 0) + 1
        case _:
            return 0


def class_indices(column: Column, block: RowBlock) -> NDArray[np.int64]:
    """The classes of rows [N] by the label's column, whose edges cut numbers. Raises DataError for
    a row that has none."""
    index = {value: k for k, value in enumerate(column.values or ())}
    index |= {f"{value}.": k for value, k in index.items() if f"{value}." not in index}
    values, places = column_texts(column, block)  # a full stop: in UCI Adult's test
    if column.edges is not None:
        comma = column.name in block.commas
        numbers = {text: parse_number(text, decimal_comma=comma) for text in values}
        cut = {text: bisect_right(column.edges, n) for text, n in numbers.items() if n == n}
        index |= {text: k for text, k in cut.items() if math.isfinite(numbers[text])}
    found = np.array([index.get(text, -1) for text in values], dtype=np.int64)[places]
    if (found < 0).any():
        first = values[places[int(np.flatnonzero(found < 0)[0])]]
        raise _explain_unexpected(column, block, found < 0, _classes_expected(column, first))
    return found


def index_classes(labels: Any, classes: Sequence[str]) -> NDArray[np.int64]:
    """Which class each label is of, [N].

    labels: [N], or [N, 1], of any sequence, array or series: names of classes. They are text; a
        number or a boolean stands for the class that is named by it: 1, 1.0 and True for "1".

    Raises ValueError for the first label that names no class, as an index does where classes have
    other names.
    """
    given = np.asarray(labels, dtype=object)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.ndim != 1:
        raise ValueError(f"labels have shape {list(given.shape)}; expected [N], a name for each")
    known = {name: place for place, name in enumerate(classes)}

    def find(label: Any) -> int:
        place = known.get(as_text(label, known))
        if place is not None:
            return place
        value = label.item() if isinstance(label, np.generic) else label
        if not isinstance(value, int | float | Decimal) or value != value // 1:
            return -1
        return (map_class_numbers(classes) or {}).get(int(value), -1)

    coded = CodedValues.of(given.tolist())
    found = np.array([find(label) for label in coded.values], dtype=np.int64)[coded.places]
    if (found < 0).any():
        row = int(np.flatnonzero(found < 0)[0])
        names = list_names([repr(str(name)) for name in classes])
        raise ValueError(
            f"label of row {row} is {given[row]!r}; expected the name of a class: {names}. Of "
            "indices, the names are np.array(classes)[indices]"
        )
    indices: NDArray[np.int64] = found
    return indices


def _classes_expected(column: Column, found: str) -> str:
    """What a label's column may hold, for people, where it holds this."""
    classes = column.values or ()
    expected = f"one of {list_names(classes)}."
    if column.edges is not None:
        expected = f"a number to be cut into {list_names(classes)}."
    if says_nothing(found):
        return f"{expected} Leave rows without a label out of the file: they teach nothing."
    if len(classes) > LISTED and not any(
        math.isnan(parse_number(text)) for text in (found, *classes)
    ):
        return (
            f"{expected} Is this a quantity? Terrine predicts classes: propose a schema with "
            "--bins, by which it is cut into ranges."
        )
    if fold(found) in map(fold, classes):
        return f"{expected} Write it as one of these: it differs in capitals or the like alone."
    return expected


def column_texts(column: Column, block: RowBlock) -> tuple[list[str], NDArray[np.intp]]:
    """A column's values as a CSV file and the schema have them, each once, and each row's [N]."""
    values = block.columns[column.name]
    coded = values if isinstance(values, CodedValues) else CodedValues.of(values.tolist())
    known = None if column.values is None else frozenset(column.values)
    return [as_text(value, known) for value in coded.values], coded.places


def as_text(value: object, known: Collection[str] | None = None) -> str:
    """A value as a CSV file would hold it: 1, true, 2020-01-31, and nothing for null and NaN.

    Text is in Unicode NFC. What is not text is found among the `known` values however it is written
    there, and so is a whole number with or without .0.
    """
    if isinstance(value, str):
        text = normalize(value.strip())
        if known is None or text in known or not _WHOLE.fullmatch(text):
            return text
        whole = text.partition(".")[0]
        return next((way for way in (whole, f"{whole}.0") if way in known), text)
    written, value = str(value), _plain(value)
    text = str(value).strip()
    if text in ("None", "nan", "NaT", "<NA>"):
        return ""
    if text in ("True", "False"):
        text = text.lower()
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if known is None or text in known:
        return text
    ways = [text.removesuffix(".0"), f"{text}.0", text.capitalize(), text.upper()]
    if isinstance(value, datetime):
        ways += [written, value.isoformat(), text.removesuffix(" 00:00:00")]
    return next((way for way in ways if way in known), text)


def _plain(value: object) -> object:
    """A scalar as Python prints it: the shortest decimal of a number, and local time."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, np.datetime64 | np.timedelta64):
        kind = "M" if isinstance(value, np.datetime64) else "m"
        return value.astype(f"{kind}8[us]").item()
    if isinstance(value, np.floating):
        return float(str(value))
    if isinstance(value, Decimal) and value.is_finite():
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return value


def check_names(names: Sequence[str], needed: Sequence[str], what: str) -> None:
    """Raise DataError unless all columns that are needed are there, each once."""
    present = set(names)
    absent = [name for name in needed if name not in present]
    if absent:
        alike = {fold(name): name for name in names if isinstance(name, str)}
        found = [alike[fold(name)] for name in absent if fold(name) in alike]
        more = (
            f" Write {list_names(list(map(quote_name, found)))} as it is expected." if found else ""
        )
        raise DataError(
            f"{what} has no column {list_names(absent)}; "
            f"it has {list_names(list(map(str, names)))}.{more}"
        )
    times = Counter(names)
    twice = next((name for name in needed if times[name] > 1), None)
    if twice is not None:
        raise DataError(
            f"{what} has two columns named {twice!r}, apart from spaces around a name and the form "
            "of its letters in Unicode. Give one of them another name in all files."
        )


def parse_number(text: str, *, decimal_comma: bool = False, thousands: bool = False) -> float:
    """Parse a field as a number; NaN if it is not one. 1_2 is not one, nor is what has other
    digits than 0 to 9.

    With `decimal_comma`, 3,5 and 1.234,5 are numbers, and 1.234 is not: it is ambiguous. With
    `thousands`, 1,234 and 1,234.5 are.
    """
    if thousands and "," in text:
        text = text.replace(",", "") if THOUSANDS.fullmatch(text) else ""
    if decimal_comma and "," in text:
        text = text.replace(".", "").replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else ""
    elif decimal_comma and "." in text:
        return math.nan
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def read_date(text: str, order: DateOrder) -> datetime | None:
    """Read a date, and its hour if a time of day follows; None if it is not one in this order, as
    what has other digits than 0 to 9, the hour 25, or another text after it.

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
        hour = hour % 12 + (12 if half == "p" else 0) if 1 <= hour <= 12 else 24
    return moment.replace(hour=hour) if moment and hour < 24 else None


def date_orders(texts: Iterable[str]) -> list[DateOrder]:
    """The orders in which all of these are dates."""
    orders: list[DateOrder] = list(_PLACES)
    for text in texts:
        orders = [order for order in orders if read_date(text, order)]
        if not orders:
            break
    return orders


def is_date(text: str) -> bool:
    """Whether a text is a date in some order."""
    return bool(date_orders([text]))


def is_other_date(text: str) -> bool:
    """Whether a text that is not read as a date is one in another order, or with a short year."""
    return is_date(text) or _SHORT_YEAR.fullmatch(text) is not None


def _encode_listed(column: Column, block: RowBlock, out: NDArray[np.float32], tally: Tally) -> None:
    """Categories: a one in their place. Levels: from 0 to 1, and whether there is none."""
    values, places = column_texts(column, block)
    index = {value: k for k, value in enumerate(column.values or ())}
    found = np.array([index.get(text, -1) for text in values], dtype=np.intp)[places]
    if column.role == "categorical":
        out[np.arange(block.rows), np.where(found < 0, len(index), found)] = 1
    else:
        out[:, 0] = np.where(found < 0, 0.5, found / (len(index) - 1))
        out[:, 1] = found < 0
    missing = np.array([text in MISSING_TEXTS for text in values], dtype=bool)[places] & (found < 0)
    tally.missing += int(missing.sum())
    tally.other += int(((found < 0) & ~missing).sum())


def _encode_booleans(
    column: Column, block: RowBlock, out: NDArray[np.float32], tally: Tally
) -> None:
    values, places = column_texts(column, block)
    known = {"": 0.5, **dict.fromkeys(MISSING_TEXTS, 0.5), **dict.fromkeys(TRUE_TEXTS, 1.0)}
    known |= dict.fromkeys(FALSE_TEXTS, 0.0)
    ways = [text if text in MISSING_TEXTS else text.lower() for text in values]
    found = np.array([known.get(way, math.nan) for way in ways], dtype=np.float64)[places]
    if np.isnan(found).any():
        expected = f"one of {', '.join(TRUE_TEXTS)}, {', '.join(FALSE_TEXTS)}, or nothing."
        _count_unreadable(column, block, np.isnan(found), tally, expected)
        found = np.where(np.isnan(found), 0.5, found)
    out[:, 0], out[:, 1] = found, found == 0.5
    tally.missing += int((found == 0.5).sum())


def _encode_numbers(
    column: Column, block: RowBlock, out: NDArray[np.float32], tally: Tally
) -> None:
    numbers, low, high = block.columns[column.name], column.low or 0.0, column.high or 0.0
    if isinstance(numbers, CodedValues):
        values, places = column_texts(column, block)
        thousands, comma = column.commas == "thousands", column.name in block.commas
        comma |= column.commas == "decimal" and any(map(DECIMAL_COMMA.fullmatch, values))
        missing = np.array([text in MISSING_TEXTS for text in values], dtype=bool)[places]
        found = [parse_number(text, decimal_comma=comma, thousands=thousands) for text in values]
        numbers = np.array(found)[places]
    else:
        missing = np.isnan(numbers)
    odd = ~(np.isfinite(numbers) | missing)
    if odd.any():
        _count_unreadable(column, block, odd, tally, "a finite number.", is_other_number)
        missing = missing | odd
    if missing.any():
        tally.missing += int(missing.sum())
        numbers = np.where(missing, _missing_value(column), numbers)
    if _is_single(low, high):
        with np.errstate(over="ignore"):  # what is beyond is clipped
            numbers = numbers.astype(np.float32).astype(np.float64)
        low, high = float(np.float32(low)), float(np.float32(high))
    if not (low <= numbers.min(initial=low) and numbers.max(initial=high) <= high):
        tally.outside += int(((numbers < low) | (numbers > high)).sum())
        numbers = np.clip(numbers, low, high)
    out[:, 0] = (numbers - low) / (high - low)
    if column.missing is not None:
        out[:, 1] = missing


def _is_single(low: float, high: float) -> bool:
    """Whether numbers of a range are rounded to float32: so a number is the same query whether it
    was stored as float32 or not. Not where the range is narrow, as of seconds since 1970: it would
    hold few numbers."""
    farthest = max(abs(low), abs(high))
    if farthest > MAX_SINGLE:
        return False
    return MIN_SINGLE_STEPS * float(np.spacing(np.float32(farthest))) <= high - low


def _encode_dates(column: Column, block: RowBlock, out: NDArray[np.float32], tally: Tally) -> None:
    moments, order = block.columns[column.name], column.order or "year-month-day"
    if isinstance(moments, CodedValues):
        values, places = column_texts(column, block)
        missing = np.array([text in MISSING_TEXTS for text in values], dtype=bool)[places]
        days_of = [read_date(text, order) for text in values]
        moments = np.array(days_of, dtype="datetime64[s]")[places]
    else:
        missing = np.isnat(moments)
    odd = np.isnat(moments) & ~missing
    if odd.any():
        expected = f"a date written as {order}, with four digits a year."
        _count_unreadable(column, block, odd, tally, expected, is_other_date)
        missing = missing | odd
    since, low, high = column.since or date.min, column.low or 0.0, column.high or 0.0
    moments = np.where(missing, np.datetime64(since), moments)
    day = moments.astype("datetime64[D]")
    days = (day - np.datetime64(since)).astype(np.float64)
    first, last = since + timedelta(days=low), since + timedelta(days=high)
    year, most = day.astype("datetime64[Y]").astype(np.int64) + 1970, max(last.year, first.year + 1)
    taken = {
        "days": np.clip((days - low) / (high - low), 0, 1),
        "year": np.clip((year - first.year) / (most - first.year), 0, 1),
        "month": day.astype("datetime64[M]").astype(np.int64) % 12 / 11,
        "weekday": (day.astype(np.int64) + 3) % 7 / 6,
        "hour": (moments - day).astype("timedelta64[h]").astype(np.int64) / 23,
    }
    for place, part in enumerate(column.parts or ()):
        out[:, place] = np.where(missing, 0.5, taken[part])
    out[:, -1] = missing
    tally.missing += int(missing.sum())
    if {"days", "year"} & set(column.parts or ()):
        tally.outside += int((((days < low) | (days > high)) & ~missing).sum())


def _encode_texts(column: Column, block: RowBlock, out: NDArray[np.float32], tally: Tally) -> None:
    values = block.columns[column.name]
    coded = values if isinstance(values, CodedValues) else CodedValues.of(values.tolist())
    texts, cut = list[str](), np.zeros(len(coded.values), dtype=bool)
    for place, value in enumerate(coded.values):
        text, cut[place] = clean_text(value if isinstance(value, str) else as_text(value))
        texts.append("" if text.strip() in MISSING_TEXTS else text)
    found = encode_texts(texts, column.width or 0)
    missing: NDArray[np.bool_] = np.logical_not(found.any(axis=1))
    out[:, :-1], out[:, -1] = found[coded.places], missing[coded.places]
    tally.missing += int(missing[coded.places].sum())
    tally.cut += int(cut[coded.places].sum())


_ENCODERS: dict[str, ColumnEncoder] = {
    "categorical": _encode_listed,
    "ordinal": _encode_listed,
    "boolean": _encode_booleans,
    "numeric": _encode_numbers,
    "date": _encode_dates,
    "text": _encode_texts,
}


_KINDS = {"numeric": "numbers", "date": "dates", "boolean": "truth values"}


def says_nothing(text: str) -> bool:
    """Whether a text where a number, date or truth value is expected says that none is known."""
    return text in MISSING_TEXTS or _NO_VALUE.fullmatch(text) is not None


def is_other_number(text: str) -> bool:
    """Whether a text that is not read as a number is one that is written in another way."""
    return _OTHER_NUMBER.fullmatch(text) is not None


def _count_unreadable(
    column: Column,
    block: RowBlock,
    odd: NDArray[np.bool_],
    tally: Tally,
    expected: str,
    is_written_otherwise: Callable[[str], bool] = lambda text: False,
) -> None:
    """Count the rows that are odd as missing: a few of a column may be.

    Raises DataError, of the first of them, where none may be.
    """
    values = block.columns[column.name]
    if not isinstance(values, CodedValues):
        raise _explain_unexpected(column, block, odd, expected)
    texts = column_texts(column, block)[0]
    wrong = np.array([not says_nothing(text) for text in texts], dtype=bool)[values.places] & odd
    refused = [not block.named or is_written_otherwise(text) for text in texts]
    none = np.array(refused, dtype=bool)[values.places] & wrong
    if none.any():
        raise _explain_unexpected(column, block, none, expected)
    if wrong.any() and tally.first is None:
        tally.first = _explain_unexpected(column, block, wrong, expected)
        tally.example = texts[values.places[int(np.flatnonzero(wrong)[0])]]
    tally.unreadable += int(wrong.sum())


def _quote(text: str) -> str:
    shown = text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"
    return quote_text(shown)


def _explain_unexpected(
    column: Column, block: RowBlock, odd: NDArray[np.bool_], expected: str
) -> DataError:
    """What is wrong in the first row that is odd."""
    row, values = int(np.flatnonzero(odd)[0]), block.columns[column.name]
    value = (
        values.values[values.places[row]] if isinstance(values, CodedValues) else values[row].item()
    )
    text = as_text(value)
    numeric = column.role == "numeric" or column.edges is not None
    more = f" {block.hint(column.name, text)}".rstrip() if numeric else ""
    return DataError(
        f"{block.where(row)}: column {column.name} holds {_quote(text)}, expected {expected}{more}"
    )


def _missing_value(column: Column) -> float:
    """What stands for a missing number."""
    middle = ((column.low or 0.0) + (column.high or 0.0)) / 2
    return middle if column.missing is None else column.missing


# Fields that are held as text at a time, or those of some rows if a table is wide.
BLOCK_FIELDS = 2**17
# Rows of a wide table that are held at a time: each block costs some steps per column.
MIN_BLOCK_ROWS = 64
# Fields of a wide table that are held at a time, except where one row has more.
MAX_BLOCK_FIELDS = 2**21
# Receives how much of a file has been read, and how much there is.
Progress = Callable[[int, int], object]
T = TypeVar("T", bound=np.generic)


def ignore_note(sentence: str) -> None:
    """Discard a note."""


def ignore_progress(done: int, total: int) -> None:
    """Show no progress."""


def rows_at_a_time(columns: int) -> int:
    """How many rows of a table are held as text."""
    return max(rows_at_least(columns), BLOCK_FIELDS // max(1, columns))


def rows_at_least(columns: int) -> int:
    """How many rows of a wide table are held as text."""
    return max(1, min(MIN_BLOCK_ROWS, MAX_BLOCK_FIELDS // max(1, columns)))


class GrowingArray(Generic[T]):
    """An array [N, *shape] that grows by blocks of rows, and is never held twice."""

    def __init__(self, shape: tuple[int, ...], dtype: type[T]) -> None:
        self._array = np.empty((0, *shape), dtype)
        self._rows = 0

    def add(self, block: NDArray[T]) -> None:
        """Append rows [b, *shape]. There is room for an eighth more, so that few move the rest."""
        needed = self._rows + len(block)
        if needed > len(self._array):
            # In place, as nobody else knows the array: what is large is not copied, its pages are
            # moved.
            shape = (needed + needed // 8, *self._array.shape[1:])
            self._array.resize(shape, refcheck=False)
        self._array[self._rows : needed] = block
        self._rows = needed

    def array(self) -> NDArray[T]:
        """All rows. Nothing can be added afterwards."""
        self._array.resize((self._rows, *self._array.shape[1:]), refcheck=False)
        return self._array
