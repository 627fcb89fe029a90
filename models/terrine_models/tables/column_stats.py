"""Clues in a column's name and values: people, identifiers, dates, text or numbers.

Values are counted in one pass and in bounded memory: each of the first 100,000 different values of
a column (`most`). Of those beyond, only what must hold for every row is kept: whether all are
numbers or dates, and their range. So what is said of a column with more different values comes from
the rows that have one of the first.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from terrine_models.tables import column_names
from terrine_protocol.tables import Commas, DateOrder
from terrine_protocol.tables.columns import (
    DECIMAL_COMMA,
    MISSING,
    THOUSANDS,
    CodedValues,
    date_orders,
    number,
    read_date,
    written,
)

FEW = 20
"""A column with at most this many distinct values is not taken for names, text or identifiers."""
LONG_WORDS, LONG_LENGTH = 5, 40
"""From this average number of words or characters on, values are prose."""

_MONTH = r"(jan|feb|m[aä]r|mrz|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])\w*\.?"
_CLOCK = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[ap]m)?(z|[+-]\d{2}:?\d{2})?"
_DAY = (
    r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3(\d{4}|\d{2})|"
    r"(19|20)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])|"
    rf"\d{{1,2}}\.?[- ]?{_MONTH}[- ,]*\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}})"
)
_DATE = re.compile(rf"{_DAY}([t ]{_CLOCK})?|(?=\d\d:){_CLOCK}", re.IGNORECASE)
SCALES = [
    scale.split(", ")
    for scale in (
        "no, none, minimal, slight, mild, some, moderate, much, severe, very severe",
        "keine, gering, leicht, mäßig, mittel, schwer, sehr schwer",
        "never, rarely, sometimes, often, usually, always",
        "nie, selten, manchmal, oft, häufig, immer",
        "very low, low, below normal, normal, medium, above normal, high, very high",
        "sehr niedrig, niedrig, normal, mittel, hoch, sehr hoch",
        "very poor, poor, fair, good, very good, excellent",
        "xs, s, m, l, xl, xxl",
        "small, medium, large",
        "i, ii, iii, iv, v, vi",
    )
]
"""Words that are levels, from least to most, in lower case."""
_BAND = re.compile(
    r"(?P<only>\d+)|[\[(]?(?P<low>\d+)( ?[-–] ?| to | bis |, ?)(?P<high>\d+)[\])]?|"
    r"(<|under|below|unter) ?=?(?P<below>\d+)|"
    r"(>|over|above|über|≥) ?=?(?P<above>\d+)|(?P<least>\d+) ?(\+|and over|or more|und mehr)",
    re.IGNORECASE,
)
_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
"""Of numbers that may be whole, with points between thousands."""
_UNREAD_NUMBER = re.compile(
    r"(?=.*[ \u00a0\u202f'’.%€£$¥])[+-]?([€£$¥] ?|(USD|EUR|GBP|CHF) )?[+-]?"
    r"(\d+|\d{1,3}([ \u00a0\u202f'’.,]\d{3})+)([.,]\d+)?( ?[%€£$¥]| (USD|EUR|GBP|CHF))?"
)
_NINES = re.compile(r"-?9{2,}|-9")
LEAST_BESIDE = 3
"""Other values beside one that may stand for a missing one."""
LIFE_DAYS = 100 * 366
YEARS = 1800, 2100
EVEN = 0.9
"""Share of the values that are in equally many rows, or of the rows that have a value of their
own."""
LEAST_RECORDS = 100
"""Fewer numbers of records are told by their names alone."""
EVENLY = 1.63
"""Times the square root of their count: how far evenly spread numbers are from evenly spaced ones,
in 99 of 100 cases (Kolmogorov and Smirnov)."""
_TWO_LETTERS = re.compile(r"[A-Z]{2}")
_PLAIN = re.compile(r"[0-9+\-.eE\n]+")
_HEX = re.compile(r"[0-9a-f-]{16,}", re.IGNORECASE)


MOST, MOST_CHARACTERS = 100_000, 10_000_000
"""Different values of a column that are counted, and how long they may be together."""
OF_ALL, LEAST = 5_000_000, 2_000
"""Different values of all columns that are counted; of one, so many in any case."""


def most(columns: int) -> int:
    """How many different values of each of so many columns are counted."""
    return min(MOST, max(LEAST, OF_ALL // columns))


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
    """Rows whose value is no number."""
    points: int = 0
    """Rows whose value has a point and no comma."""
    commas: bool = False
    """Whether a value has a comma."""

    def add(self, text: str, rows: int) -> None:
        """Note a value, and how many rows have it."""
        comma, thousands = "," in text, self.read_as == "thousands"
        decimal = comma and self.read_as == "decimal"
        value = number(text, decimal_comma=decimal, thousands=thousands)
        if math.isfinite(value):
            self.low, self.high = min(self.low, value), max(self.high, value)
        else:
            self.words += rows
        self.commas |= comma
        self.points += rows if "." in text and not comma else 0
        for order in self.orders:
            if (day := read_date(text, order)) is None:
                self.orders = [other for other in self.orders if other != order]
            else:
                self.first[order] = min(self.first.get(order, day), day)
                self.last[order] = max(self.last.get(order, day), day)


@dataclass
class ColumnStats:
    """A column of a table whose fields `delimiter` separates: its values are added, then read."""

    path: Path
    name: str
    delimiter: str
    most: int
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
            text = written(value)
            if text in MISSING:
                self.not_available += rows if text == "NA" else 0
                continue
            self.given += rows
            if text in self.counts:
                self.counts[text] += rows
            elif len(self.counts) < self.most and self._characters < MOST_CHARACTERS:
                self.counts[text] = rows
                self._characters += len(text)
            else:
                if self.rest is None:
                    usual: Commas | None = None if self.delimiter == "," else "decimal"
                    read_as = _commas(self.counts, self.delimiter) or usual
                    self.rest = Overflow(date_orders(self.counts), read_as)
                self.rest.add(text, rows)

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
        return min([*self._numbers.values(), *([rest.low] if rest else [])])

    @cached_property
    def high(self) -> float:
        """The greatest number, of a numeric column."""
        rest = self.rest
        return max([*self._numbers.values(), *([rest.high] if rest else [])])

    @property
    def median(self) -> float:
        """The median of a numeric column."""
        ordered = sorted((self._numbers[text], rows) for text, rows in self.counts.items())
        ends = list(itertools.accumulate(rows for _, rows in ordered))
        middle = ((ends[-1] - 1) // 2, ends[-1] // 2)
        low, high = (ordered[bisect.bisect_right(ends, place)][0] for place in middle)
        return low if low == high else (low + high) / 2

    @cached_property
    def words(self) -> int:
        """Rows whose value is no number."""
        counts, rest = self.counts, self.rest
        words = sum(counts[text] for text, value in self._numbers.items() if math.isnan(value))
        if rest is None:
            return words
        return words + rest.words + (rest.points if self.decimal else 0)

    def is_word(self, value: str) -> bool:
        """Whether a counted value is no number."""
        return math.isnan(self._numbers[value])

    def rows_between(self, edges: Sequence[float]) -> list[int]:
        """The rows below, between and above increasing edges, of those with a counted number."""
        rows = [0] * (len(edges) + 1)
        for text, value in self._numbers.items():
            rows[bisect.bisect_right(edges, value)] += self.counts[text]
        return rows

    @cached_property
    def numeric(self) -> bool:
        """Whether the values are quantities, not codes such as 00417."""
        return self._all_numbers and not self._coded

    @property
    def stand_ins(self) -> list[float]:
        """Ends of a numeric column that look as if they stood for a missing number: -999 or 9999,
        far from all others."""
        rest = sorted({self.low, self.high, *self._numbers.values()})
        found = list[float]()
        while len(rest) > LEAST_BESIDE:
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
        while len(days) > LEAST_BESIDE:
            usual = max((days[-2] - days[0]).days, LIFE_DAYS)
            if (days[-1] - days[-2]).days > usual:
                found.append(days.pop())
            elif (days[1] - days[0]).days > max((days[-1] - days[1]).days, LIFE_DAYS):
                found.append(days.pop(0))
            else:
                break
        return found

    @property
    def names_places(self) -> bool:
        """Whether NA may be a place: the name says so, or all values are codes of two letters."""
        codes = [value for value in self.distinct if _TWO_LETTERS.fullmatch(value)]
        pairs = len(codes) == len(self.distinct) >= LEAST_BESIDE
        return pairs or column_names.names_place(self.name)

    @property
    def whole(self) -> bool:
        """Whether all numbers are integers."""
        return all(value.is_integer() for value in self._numbers.values())

    @property
    def unread_number(self) -> str | None:
        """A number that is written in a way that is not read, if nearly all values are such: 1 234,
        1'234, 1.234.567, $5 or 12 %."""
        others = [text for text, value in self._numbers.items() if math.isnan(value)]
        unread = [text for text in others if _UNREAD_NUMBER.fullmatch(text)]
        nearly = 10 * (len(others) - len(unread)) <= len(self.distinct)
        return unread[0] if len(unread) > FEW and nearly else None

    @property
    def ask_of_commas(self) -> str | None:
        """Ask what commas are, or points, if both readings are possible."""
        marked = [text for text in self.distinct if "," in text]
        if self.commas is None:
            dots = [text for text in self.distinct if "." in text]
            if self.delimiter == "," or not dots or not all(map(_POINTS.fullmatch, dots)):
                return None
            return (
                f"Do the points separate thousands? {dots[0]} is read as "
                f"{self._numbers[dots[0]]:.12g}. If they do, leave them out in all files."
            )
        thousands = all(map(THOUSANDS.fullmatch, marked))
        if not marked or (thousands and not all(map(DECIMAL_COMMA.fullmatch, marked))):
            return None
        read = f"{marked[0]} is read as {self._numbers[marked[0]]:.12g}"
        if thousands:
            others = "decimal signs" if self.commas == "thousands" else "thousands separators"
            way = "decimal" if self.commas == "thousands" else "thousands"
            return (
                f"Are the commas {others}? {read}. If they are, write "
                f'"commas": "{way}" and another range in the schema.'
            )
        if self.delimiter != ",":
            return None
        return f"Is this a number? {read}. If not, use --ignore {self.name}."

    @property
    def unique(self) -> bool:
        """Whether all rows have different values."""
        return not self.gaps and len(self.distinct) == self._counted

    @property
    def nameless(self) -> bool:
        """Whether nobody named it: such is the number of a row that a data frame was saved with."""
        return not self.name.strip() or self.name.startswith("Unnamed: ")

    @property
    def counts_rows(self) -> bool:
        """Whether the values are consecutive integers, each once."""
        rows, span = self.rows, self.high - self.low
        return self.unique and self.whole and rows > FEW and span == rows - 1

    @property
    def uniform(self) -> bool:
        """Whether all values have one form with four or more digits, as P-00417, or are hex."""
        forms = {re.sub(r"\d", "9", re.sub(r"[^\W\d_]", "a", value)) for value in self.distinct}
        alike = len(forms) == 1 and forms.pop().count("9") >= 4
        return alike or all(map(_HEX.fullmatch, self.distinct))

    @property
    def rare(self) -> bool:
        """Whether values repeat too rarely to learn from; uniform values must repeat more often."""
        rows = 5 if self.uniform else 2
        return len(self.distinct) > FEW and rows * len(self.distinct) > self._counted

    @property
    def prose(self) -> bool:
        """Whether the values are long or have line breaks, and rarely repeat."""
        counts, rows = self.counts, self._counted
        words = sum(len(text.split()) * counts[text] for text in counts)
        length = sum(len(text) * counts[text] for text in counts)
        long = words >= LONG_WORDS * rows or length >= LONG_LENGTH * rows
        broken = any("\n" in text or "\r" in text for text in counts)
        return (long or broken) and 5 * len(counts) > rows

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
        """The order of year, month and day, if all values are dates and it is unambiguous."""
        if not self.dates:
            return None
        rest = self.rest
        orders = date_orders(self.distinct) if rest is None else rest.orders
        return orders[0] if len(orders) == 1 or "year-month-day" in orders else None

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
    def levels(self) -> tuple[str, ...] | None:
        """The values from least to most, if they are three or more known levels, or bands."""
        if len(self.distinct) < 3 or self._all_numbers:
            return None
        words = [value.lower() for value in self.distinct]
        for scale in SCALES:
            if set(words) <= set(scale) and len(set(words)) == len(words):
                return tuple(sorted(self.distinct, key=lambda value: scale.index(value.lower())))
        bands = [_BAND.fullmatch(word) for word in words]
        spans = {
            value: _span(band) for value, band in zip(self.distinct, bands, strict=True) if band
        }
        if len(spans) < len(words) or not _disjoint(list(spans.values())):
            return None
        return tuple(sorted(spans, key=spans.__getitem__))

    @property
    def names_people(self) -> bool:
        """Whether the name is one for people; yes and no under "patient" are not people, and nor
        are 1.5 workers."""
        if not self.distinct or self.fractional or not column_names.names_person(self.name):
            return False
        answer = len(self.distinct) <= 2 and not self.unique
        return not (answer and column_names.is_noun_for_person(self.name))

    @property
    def may_be_a_category_of_people(self) -> bool:
        """Whether the name is a bare noun such as "subject", and the values are few."""
        few = len(self.distinct) <= FEW < self.rows
        return few and column_names.is_noun_for_person(self.name)

    @property
    def names_repeated_records(self) -> bool:
        """Whether the name is one for cases or stays, or just "id", and values repeat."""
        return self.repeats and not self.fractional and column_names.names_record(self.name)

    @property
    def names_identifier(self) -> bool:
        """Whether the name is one for what has a number, and no value is 1.5."""
        return column_names.names_identifier(self.name) and not self.fractional

    @property
    def names_contact(self) -> bool:
        """Whether the name is one for names or contact details, and there are many values."""
        many = len(self.distinct) > FEW or self.unique
        return many and column_names.names_contact(self.name)

    @property
    def quantity(self) -> bool:
        """Whether the name is one for what is measured or counted, or all values are years."""
        years = YEARS[0] <= self.low and self.high <= YEARS[1]
        return column_names.names_quantity(self.name) or years

    @property
    def repeats(self) -> bool:
        """Whether there are many values, and some in several rows."""
        return FEW < len(self.distinct) < self._counted

    @property
    def rows_per_value(self) -> float:
        """In how many rows a value is on average; 0 if there is none."""
        return self._counted / len(self.distinct) if self.distinct else 0.0

    @property
    def fractional(self) -> bool:
        """Whether some value is a number that is not whole."""
        return any(not value.is_integer() for value in self._numbers.values() if value == value)

    @property
    def numbers_people(self) -> bool:
        """Whether whole numbers stand for groups of rows, whatever their name: each in equally many
        rows that follow one another, as where somebody is asked every year."""
        if not (self.numeric and self.whole and self.repeats and self.rest is None):
            return False
        usual = Counter(self.counts.values()).most_common(1)[0]
        even = usual[0] > 1 and usual[1] >= EVEN * len(self.distinct)
        return even and self.runs == len(self.distinct) and not self.quantity

    @property
    def numbers_records(self) -> bool:
        """Whether whole numbers stand for rows, whatever their name: nearly each row has its own,
        and they are spread evenly, as measured quantities are not."""
        count = len(self.distinct)
        if not (self.numeric and self.whole and count >= LEAST_RECORDS) or self.quantity:
            return False
        ordered = np.sort(np.fromiter(self._numbers.values(), dtype=np.float64))
        even = (ordered - ordered[0]) / max(ordered[-1] - ordered[0], 1)
        distance = float(np.abs(even - np.linspace(0, 1, count)).max())
        return count >= EVEN * self._counted and distance * math.sqrt(count) <= EVENLY

    @property
    def _all_numbers(self) -> bool:
        return self.given > 0 and not self.words

    @property
    def _counted(self) -> int:
        """Rows that have one of the values that were counted."""
        return self.counts.total()

    @cached_property
    def _numbers(self) -> dict[str, float]:
        """The counted values as numbers; NaN for those that are not finite numbers."""
        comma, thousands = self.decimal, self.commas == "thousands"
        if _PLAIN.fullmatch("\n".join(self.distinct)):  # what else float reads has other letters
            with suppress(ValueError):
                return {
                    text: value if math.isfinite(value := float(text)) else math.nan
                    for text in self.distinct
                }
        found = {
            text: number(text, decimal_comma=comma, thousands=thousands) for text in self.distinct
        }
        return {text: v if math.isfinite(v) else math.nan for text, v in found.items()}

    @property
    def _coded(self) -> bool:
        lengths = set(map(len, self.distinct))
        if len(lengths) > 1 or lengths == {1} or not self.whole:
            return False
        return any(text.startswith("0") for text in self.distinct)


def _commas(texts: Iterable[str], delimiter: str) -> Commas | None:
    """What the commas in a column's values are, by all that have one; None if there is no telling.

    Where 1,234 may be either, they separate thousands in a file whose fields commas separate, and
    are decimal signs in others.
    """
    marked = [text for text in texts if "," in text]
    if not marked:
        return None
    decimal = all(map(DECIMAL_COMMA.fullmatch, marked))
    if all(map(THOUSANDS.fullmatch, marked)) and (delimiter == "," or not decimal):
        return "thousands"
    return "decimal" if decimal or delimiter != "," else None


def _span(band: re.Match[str]) -> tuple[float, float]:
    """The numbers that a band such as 18-29, <18, 65+ or 0 covers."""
    only, low, high, below, above, least = (
        None if text is None else float(text)
        for text in band.group("only", "low", "high", "below", "above", "least")
    )
    if only is not None:
        return only, only
    if low is not None and high is not None:
        return low, high
    if below is not None:
        return -math.inf, below
    return above or least or 0, math.inf


def _disjoint(spans: list[tuple[float, float]]) -> bool:
    """Whether bands may touch, but do not overlap."""
    ordered = sorted(spans)
    starts, ends = [low for low, _ in ordered], [high for _, high in ordered]
    return all(map(operator.le, starts, ends)) and all(map(operator.le, ends[:-1], starts[1:]))
