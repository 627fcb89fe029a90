"""The values of one column of a public table, counted in one pass and in bounded memory.

Each of the first 100,000 different values is counted (`most`). Of those beyond, only what must hold
for every row is kept: whether all are numbers or dates, and their range. So what is said of a
column with more different values comes from the rows that have one of the first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from terrine_models.tables.columns import MISSING, date_orders, read_date
from terrine_models.tables.csv_files import number
from terrine_protocol.tables import DateOrder

MOST, MOST_CHARACTERS = 100_000, 10_000_000
"""Different values of a column that are counted, and how long they may be together."""
OF_ALL, LEAST = 5_000_000, 2_000
"""Different values of all columns that are counted; of one, so many in any case."""


@dataclass
class Overflow:
    """What is known of the values that are not counted."""

    orders: list[DateOrder] = field(default_factory=list)
    """In which all of them are dates."""
    first: dict[DateOrder, date] = field(default_factory=dict)
    last: dict[DateOrder, date] = field(default_factory=dict)
    low: float = math.inf
    high: float = -math.inf
    words: int = 0
    """Rows whose value is no number."""
    points: int = 0
    """Rows whose value has a point and no comma."""
    commas: bool = False
    """Whether a value has a comma."""

    def add(self, text: str, rows: int, comma_may_be_decimal: bool) -> None:
        """Note a value, and how many rows have it."""
        comma = "," in text
        value = number(text, decimal_comma=comma and comma_may_be_decimal)
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


def most(columns: int) -> int:
    """How many different values of each of so many columns are counted."""
    return min(MOST, max(LEAST, OF_ALL // columns))


@dataclass
class ColumnStats:
    """The values of a column of a table whose fields `delimiter` separates."""

    delimiter: str
    most: int
    """Different ones that are counted."""
    counts: Counter[str] = field(default_factory=Counter)
    """Rows of each of the first different values, by the order in which they appear."""
    rows: int = 0
    given: int = 0
    """Rows with a value."""
    rest: Overflow | None = None
    """None if all values are counted."""
    _characters: int = 0

    def add(self, texts: Sequence[str]) -> None:
        """Count the values of some more rows."""
        self.rows += len(texts)
        for text, rows in Counter(texts).items():
            if text in MISSING:
                continue
            self.given += rows
            if text in self.counts:
                self.counts[text] += rows
            elif len(self.counts) < self.most and self._characters < MOST_CHARACTERS:
                self.counts[text] = rows
                self._characters += len(text)
            else:
                self.rest = self.rest or Overflow(date_orders(self.counts))
                self.rest.add(text, rows, self.delimiter != ",")

    @property
    def decimal_commas(self) -> bool:
        """Whether the column has decimal commas, as in 3,5; never if commas separate fields."""
        if self.delimiter == ",":
            return False
        return bool(self.rest and self.rest.commas) or any("," in text for text in self.counts)
