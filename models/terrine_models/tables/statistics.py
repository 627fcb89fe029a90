"""What is counted of the values of a column, in one pass and in bounded memory."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from terrine_protocol.schema import Commas, DateOrder
from terrine_tables.columns import (
    DECIMAL_COMMA,
    MISSING_TEXTS,
    THOUSANDS,
    CodedValues,
    as_text,
    date_orders,
    is_date,
    is_other_date,
    is_other_number,
    parse_number,
    read_date,
    says_nothing,
)

# A column with at most this many distinct values is not taken for names, text or identifiers.
FEW_VALUES = 20
# Share of the rows whose value may be no number in a column of numbers, or no date in one of dates,
# without saying that nothing is known: half of what may be read, as other files may have more.
MAX_STRAY_SHARE = 0.05
# Mean number of words from which values are prose.
PROSE_WORDS = 5
# Mean number of characters from which they are.
PROSE_CHARACTERS = 40

_MONTH = r"(jan|feb|m[aä]r|mrz|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\w*\.?"
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]m)?(z|[+-]\d{2}:?\d{2})?"
_DAY = (
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2})|"
    r"(19|20)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])|"
    rf"\d{{1,2}}\.?[- ]?{_MONTH}[- ,]*\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
)
_DATE = re.compile(rf"{_DAY}([t ]{_CLOCK})?|(?=\d\d:){_CLOCK}", re.IGNORECASE)
_UNREAD_NUMBER = re.compile(
    r"(?=.*[ \u00a0\u202f'’.%€£$¥])[+-]?([€£$¥] ?|(USD|EUR|GBP|CHF) )?[+-]?"
    r"(\d+|\d{1,3}([ \u00a0\u202f'’.,]\d{3})+)([.,]\d+)?( ?[%€£$¥]| (USD|EUR|GBP|CHF))?"
)
_NINES = re.compile(r"-?9{2,}|-9")
# Other values beside one that may stand for a missing one.
MIN_OTHER_VALUES = 3
LIFE_DAYS = 100 * 366
_PLAIN = re.compile(r"[0-9+\-.eE\n]+")
_HEX = re.compile(r"[0-9a-f-]{16,}", re.IGNORECASE)


# Different values of a column that are counted.
MAX_VALUES = 100_000
# Of the counted values of a column, together.
MAX_CHARACTERS = 10_000_000
# Different values of all columns that are counted.
MAX_VALUES_OF_TABLE = 5_000_000
# Different values of a column that are counted however many columns there are.
MIN_COUNTED_VALUES = 2_000


def max_counted_values(columns: int) -> int:
    """How many different values of each of so many columns are counted."""
    return min(MAX_VALUES, max(MIN_COUNTED_VALUES, MAX_VALUES_OF_TABLE // columns))


@dataclass
class Overflow:
    """What is known of the values that are not counted."""

    orders: list[DateOrder] = field(default_factory=list)
    """In which all of them are dates."""
    read_as: Commas | None = None
    """What commas are read as, by the values that are counted."""
    first: dict[DateOrder, datetime] = field(default_factory=dict)
    last: dict[DateOrder, datetime] = field(default_factory=dict)
    low: float = math.inf
    high: float = -math.inf
    words: int = 0
    """Rows whose value is not a number."""
    otherwise: bool = False
    """Whether a value is a number that is written in another way."""
    undated: int = 0
    """Rows whose value is not a date."""
    points: int = 0
    """Rows whose number has a point and no comma."""
    commas: bool = False
    """Whether a number has a comma."""

    def add(self, text: str, rows: int) -> None:
        """Note a value, and how many rows have it."""
        comma, thousands = "," in text, self.read_as == "thousands"
        decimal = comma and self.read_as == "decimal"
        value = parse_number(text, decimal_comma=decimal, thousands=thousands)
        if math.isfinite(value):
            self.low, self.high = min(self.low, value), max(self.high, value)
        else:
            self.words += rows
            self.otherwise |= is_other_number(text)
        self.commas |= comma and (math.isfinite(value) or is_other_number(text))
        self.points += rows if "." in text and not comma and math.isfinite(value) else 0
        known = date_orders([text]) if self.orders else []
        if known or is_other_date(text):
            self.orders = [order for order in self.orders if order in known]
        elif self.orders:
            self.undated += rows
        for order in self.orders:
            if day := read_date(text, order):
                self.first[order] = min(self.first.get(order, day), day)
                self.last[order] = max(self.last.get(order, day), day)


def form_of(value: str) -> str:
    """Return a value with every digit as 9 and every letter as a."""
    return re.sub(r"\d", "9", re.sub(r"[^\W\d_]", "a", value))


@dataclass
class ColumnStats:
    """Clues in the values of a column; `delimiter` separates the table's fields.

    Values are added in one pass and bounded memory: the first `max_counted` different ones are
    counted. Of those beyond, only what must hold for every row is kept: whether all are numbers or
    dates, and their range. So what else is said of such a column comes from the rows with a counted
    value.
    """

    path: Path
    name: str
    delimiter: str
    max_counted: int
    """Different values that are counted."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows of each of the first different values, by the order in which they appear."""
    rows: int = 0
    given: int = 0
    """Rows with a value."""
    not_available: int = 0
    """Rows with NA, which counts as no value."""
    rest: Overflow | None = None
    """None if all values are counted."""
    runs: int = 0
    """Runs of rows with one value."""
    _last: object = None
    _characters: int = 0

    def add(self, coded: CodedValues) -> None:
        """Count the values of some more rows."""
        rows_of = np.bincount(coded.places, minlength=len(coded.values)).tolist()
        self.rows += len(coded.places)
        self._count_runs(coded)
        for value, rows in zip(coded.values, rows_of, strict=True):
            text = as_text(value)
            if text in MISSING_TEXTS:
                self.not_available += rows if text == "NA" else 0
                continue
            self.given += rows
            if text in self.counts:
                self.counts[text] += rows
            elif len(self.counts) < self.max_counted and self._characters < MAX_CHARACTERS:
                self.counts[text] = rows
                self._characters += len(text)
            else:
                if self.rest is None:
                    usual: Commas | None = None if self.delimiter == "," else "decimal"
                    read_as = _commas(self.counts, self.delimiter) or usual
                    self.rest = Overflow(self._common_orders(), read_as)
                self.rest.add(text, rows)

    def _common_orders(self) -> list[DateOrder]:
        """In which all of the counted values that are dates are; none if too few are."""
        dated = list(filter(is_date, self.counts))
        return date_orders(dated) if 10 * len(dated) >= 9 * len(self.counts) else []

    def _count_runs(self, coded: CodedValues) -> None:
        if len(coded.places):
            first, last = coded.values[coded.places[0]], coded.values[coded.places[-1]]
            starts = not self.runs or first != self._last
            self.runs += int(np.count_nonzero(np.diff(coded.places))) + starts
            self._last = last

    @cached_property
    def distinct(self) -> list[str]:
        """The distinct values that were counted, sorted."""
        return sorted(self.counts)

    @property
    def different(self) -> str:
        """How many distinct values there are, for people."""
        return f"{'more than ' if self.rest else ''}{len(self.distinct):,}"

    @property
    def gaps(self) -> int:
        """Rows without a value."""
        return self.rows - self.given

    @property
    def decimal(self) -> bool:
        """Whether commas are decimal signs, as in 3,5."""
        return self.commas == "decimal"

    @cached_property
    def commas(self) -> Commas | None:
        """What commas are read as; None if there are none, or if no value is a number with one."""
        if self.rest is not None:
            return self.rest.read_as if self.rest.commas else _commas(self.counts, self.delimiter)
        return _commas(self.counts, self.delimiter)

    @cached_property
    def low(self) -> float:
        """The least number, of a numeric column."""
        rest = self.rest
        return min([*self.numbers.values(), *([rest.low] if rest else [])])

    @cached_property
    def high(self) -> float:
        """The greatest number, of a numeric column."""
        rest = self.rest
        return max([*self.numbers.values(), *([rest.high] if rest else [])])

    @property
    def median(self) -> float:
        """The median of a numeric column."""
        ordered = sorted((number, self.counts[text]) for text, number in self.numbers.items())
        ends = list(itertools.accumulate(rows for _, rows in ordered))
        middle = ((ends[-1] - 1) // 2, ends[-1] // 2)
        low, high = (ordered[bisect.bisect_right(ends, place)][0] for place in middle)
        return low if low == high else (low + high) / 2

    @cached_property
    def words(self) -> int:
        """Rows whose value is not a number."""
        counts, rest = self.counts, self.rest
        words = sum(counts[text] for text in self.word_texts)
        if rest is None:
            return words
        return words + rest.words + (rest.points if self.decimal else 0)

    @cached_property
    def word_texts(self) -> list[str]:
        """The counted values that are not numbers, those of most rows first."""
        words = (text for text in self.distinct if text not in self.numbers)
        return sorted(words, key=lambda text: -self.counts[text])

    def rows_between(self, edges: Sequence[float]) -> list[int]:
        """The rows below, between and above increasing edges, of those with a counted number."""
        rows = [0] * (len(edges) + 1)
        for text, value in self.numbers.items():
            rows[bisect.bisect_right(edges, value)] += self.counts[text]
        return rows

    @cached_property
    def numeric(self) -> bool:
        """Whether the values are quantities, not codes such as 00417.

        Of many numbers, those in a few rows may be other texts: they count as missing.
        """
        if not self.words:
            return self.given > 0 and not self.coded
        rest, words = self.rest, self.word_texts
        if rest is not None and (rest.otherwise or (self.decimal and rest.points)):
            return False
        many = len(self.numbers) > FEW_VALUES and not self.coded
        return many and not any(map(is_other_number, words)) and self._are_few(words, self.words)

    def _are_few(self, texts: Sequence[str], rows: int) -> bool:
        """Whether few of these rows have another text than what says that nothing is known."""
        known = sum(self.counts[text] for text in texts if says_nothing(text))
        return rows - known <= MAX_STRAY_SHARE * self.given

    @property
    def stand_ins(self) -> list[float]:
        """Ends of a numeric column that look as if they stood for a missing number: -999 or 9999,
        far from all others."""
        rest = sorted({self.low, self.high, *self.numbers.values()})
        found = list[float]()
        while len(rest) > MIN_OTHER_VALUES:
            low, high = rest[0], rest[-1]
            below = rest[1] - low > high - rest[1] or rest[1] >= 0
            above = high - rest[-2] > max(rest[-2] - low, abs(rest[-2]) / 10)
            if below and low < 0 and low.is_integer() and _NINES.fullmatch(f"{low:.0f}"):
                found.append(rest.pop(0))
            elif above and high.is_integer() and _NINES.fullmatch(f"{high:.0f}"):
                found.append(rest.pop())
            else:
                break
        return found

    def stand_in_days(self, order: DateOrder) -> list[date]:
        """First or last dates in this order that are further from all others than these are from
        each other, and than a life is long: 9999-12-31."""
        days = sorted({day.date() for text in self.distinct if (day := read_date(text, order))})
        days = sorted({*days, *self.span(order)})
        found = list[date]()
        while len(days) > MIN_OTHER_VALUES:
            usual = max((days[-2] - days[0]).days, LIFE_DAYS)
            if (days[-1] - days[-2]).days > usual:
                found.append(days.pop())
            elif (days[1] - days[0]).days > max((days[-1] - days[1]).days, LIFE_DAYS):
                found.append(days.pop(0))
            else:
                break
        return found

    @property
    def whole(self) -> bool:
        """Whether there are numbers, and all are integers."""
        return bool(self.numbers) and all(value.is_integer() for value in self.numbers.values())

    @property
    def unread_number(self) -> str | None:
        """A number that is written in a way that is not read, if nearly all values are such: 1 234,
        1'234, 1.234.567, $5 or 12 %."""
        others = self.word_texts
        unread = [text for text in others if _UNREAD_NUMBER.fullmatch(text)]
        nearly = 10 * (len(others) - len(unread)) <= len(self.distinct)
        return unread[0] if len(unread) > FEW_VALUES and nearly else None

    @property
    def unique(self) -> bool:
        """Whether all rows have different values."""
        return not self.gaps and len(self.distinct) == self.counted

    @property
    def uniform(self) -> bool:
        """Whether all values have one form with four or more digits, as P-00417, or are hex."""
        form = form_of(self.distinct[0]) if self.distinct else ""
        alike = form.count("9") >= 4 and all(form_of(value) == form for value in self.distinct)
        return alike or all(map(_HEX.fullmatch, self.distinct))

    @property
    def rare(self) -> bool:
        """Whether values repeat too rarely to learn from; uniform values must repeat more often."""
        rows = 5 if self.uniform else 2
        return len(self.distinct) > FEW_VALUES and rows * len(self.distinct) > self.counted

    @property
    def prose(self) -> bool:
        """Whether the values are long or have line breaks, and rarely repeat."""
        counts, rows = self.counts, self.counted
        words = sum(len(text.split()) * counts[text] for text in counts)
        length = sum(len(text) * counts[text] for text in counts)
        long = words >= PROSE_WORDS * rows or length >= PROSE_CHARACTERS * rows
        broken = any("\n" in text or "\r" in text for text in counts)
        return (long or broken) and 5 * len(counts) > rows

    @property
    def has_phrases(self) -> bool:
        """Whether values have two words or more, on average."""
        counts = self.counts
        words = sum(len(text.split()) * counts[text] for text in counts)
        return words >= 2 * self.counted

    @cached_property
    def dates(self) -> bool:
        """Whether nine of ten distinct values are dates or times."""
        others, count = 0, len(self.distinct)
        for value in self.distinct:
            others += _DATE.fullmatch(value) is None
            if others * 10 > count:
                return False
        return count > 0

    @property
    def days(self) -> bool:
        """Whether there are dates among them, and not times of day alone."""
        return any(re.match(_DAY, value, re.IGNORECASE) for value in self.distinct)

    @cached_property
    def date_order(self) -> DateOrder | None:
        """The order of year, month and day, if all values are dates and it is unambiguous.

        Those in a few rows may be other texts: they count as missing.
        """
        if not self.dates:
            return None
        rest, texts = self.rest, self.undated_texts
        orders = self._common_orders() if rest is None else rest.orders
        if any(map(is_other_date, texts)) or not self._are_few(texts, self.undated):
            return None
        return orders[0] if len(orders) == 1 or "year-month-day" in orders else None

    @cached_property
    def undated_texts(self) -> list[str]:
        """The counted values that are no dates in any order, those of most rows first."""
        texts = (text for text in self.distinct if not is_date(text))
        return sorted(texts, key=lambda text: -self.counts[text])

    @property
    def undated(self) -> int:
        """Rows whose value is not a date."""
        rest = 0 if self.rest is None else self.rest.undated
        return sum(self.counts[text] for text in self.undated_texts) + rest

    def span(self, order: DateOrder) -> tuple[date, date]:
        """The first and the last day, of dates in this order."""
        days = [day for text in self.distinct if (day := read_date(text, order))]
        if rest := self.rest:
            days += [ends[order] for ends in (rest.first, rest.last) if order in ends]
        return min(days).date(), max(days).date()

    def hours(self, order: DateOrder) -> bool:
        """Whether dates in this order have a time of day other than midnight."""
        return any((day := read_date(text, order)) and day.hour for text in self.distinct)

    @property
    def boolean(self) -> bool:
        """Whether the values are true and false, however they are written."""
        return {value.lower() for value in self.distinct} == {"true", "false"}

    @property
    def repeats(self) -> bool:
        """Whether there are many values, and some in several rows."""
        return FEW_VALUES < len(self.distinct) < self.counted

    @property
    def rows_per_value(self) -> float:
        """In how many rows a value is on average; 0 if there is none."""
        return self.counted / len(self.distinct) if self.distinct else 0.0

    @property
    def fractional(self) -> bool:
        """Whether some value is a number that is not whole."""
        return any(not value.is_integer() for value in self.numbers.values())

    @property
    def counted(self) -> int:
        """Rows that have one of the values that were counted."""
        return self.counts.total()

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Of the counted values those that are finite numbers, as such."""
        comma, thousands = self.decimal, self.commas == "thousands"
        found = dict[str, float]()
        if _PLAIN.fullmatch("\n".join(self.distinct)):  # what else float reads has other letters
            with suppress(ValueError):
                found = {text: float(text) for text in self.distinct}
        found = found or {
            text: parse_number(text, decimal_comma=comma, thousands=thousands)
            for text in self.distinct
        }
        return {text: value for text, value in found.items() if math.isfinite(value)}

    @property
    def coded(self) -> bool:
        """Whether the numbers are codes, of one length with leading zeros: 00417."""
        lengths = set(map(len, self.numbers))
        if len(lengths) > 1 or lengths == {1} or not self.whole:
            return False
        return any(text.startswith("0") for text in self.numbers)


def _is_marked(text: str) -> bool:
    """Whether a text is a number with a comma."""
    return bool(DECIMAL_COMMA.fullmatch(text) or THOUSANDS.fullmatch(text))


def _commas(texts: Iterable[str], delimiter: str) -> Commas | None:
    """What the commas in a column's values are, by all that have one; None if there is no telling.

    Where 1,234 may be either, they separate thousands in a file whose fields commas separate, and
    are decimal signs in others.
    """
    marked = [text for text in texts if "," in text and (_is_marked(text) or is_other_number(text))]
    if not marked:
        return None
    decimal = all(map(DECIMAL_COMMA.fullmatch, marked))
    if all(map(THOUSANDS.fullmatch, marked)) and (delimiter == "," or not decimal):
        return "thousands"
    return "decimal" if decimal or delimiter != "," else None
