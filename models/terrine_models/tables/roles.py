"""Guess the role of a column of a public table, and say why.

Names, forms and counts of values are clues, not proof, so doubts are reported. A column that
identifies people becomes the group, and one that may do so in doubt; columns that identify rows or
cannot be learned from are ignored.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from terrine_models.tables.names import (
    is_noun_for_person,
    names_contact,
    names_identifier,
    names_person,
    names_place,
    names_quantity,
    names_record,
)
from terrine_models.tables.statistics import FEW_VALUES, MIN_OTHER_VALUES, ColumnStats
from terrine_protocol.base import ask_whether_one, normalize, quote_text
from terrine_protocol.errors import DataError
from terrine_protocol.schema import Column, DateOrder, DatePart
from terrine_tables.columns import DECIMAL_COMMA, THOUSANDS

MAX_CATEGORIES = 1000
# Categories that are kept where there are more than that, or most are rare: the most common ones.
KEPT_CATEGORIES = 100
# Rows that each of these is in: fewer say little.
MIN_KEPT_ROWS = 10
# Share of the rows that these have at least, together.
MIN_KEPT_SHARE = 0.1
# Of dates; and the hour, if there is a time of day.
DATE_PARTS: tuple[DatePart, ...] = ("days", "month", "weekday")
MAX_CLASSES = 100
# Of values that are no numbers, how many are shown, and of each how many characters.
MAX_STRAYS_SHOWN = 3
MAX_STRAY_CHARACTERS = 30
# Numbers of equally many digits that repeat are asked about from here on: smaller ones are more
# often quantities.
MIN_CODE = 10_000

# Of numbers that may be whole, with points between thousands.
_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
MIN_YEAR, MAX_YEAR = 1800, 2100
# Share of the values that are in equally many rows, or of the rows that have a value of their own.
MIN_EVEN_SHARE = 0.9
# Fewer numbers of records are told by their names alone.
MIN_NUMBERED_RECORDS = 100
# Times the square root of their count: how far evenly spread numbers are from evenly spaced ones,
# in 99 of 100 cases (Kolmogorov and Smirnov).
MAX_UNIFORM_DISTANCE = 1.63
_TWO_LETTERS = re.compile(r"[A-Z]{2}")

EVEN_RUNS = "whole numbers, each in equally many rows that follow one another"
_COMMAS = {"thousands": "thousands separators", "decimal": "decimal signs"}


@dataclass(frozen=True)
class RoleGuess:
    """The role proposed for a column."""

    column: Column
    why: str
    doubt: str | None = None
    """What the owner should check."""


def _may_name_places(column: ColumnStats) -> bool:
    """Whether NA may be a place: the name says so, or all values are codes of two letters."""
    codes = [value for value in column.distinct if _TWO_LETTERS.fullmatch(value)]
    pairs = len(codes) == len(column.distinct) >= MIN_OTHER_VALUES
    return pairs or names_place(column.name)


def _ask_of_commas(column: ColumnStats) -> str | None:
    """Ask what commas are, or points, if both readings are possible."""
    marked = [text for text in column.numbers if "," in text]
    if column.commas is None:
        dots = [text for text in column.numbers if "." in text]
        if column.delimiter == "," or not dots or not all(map(_POINTS.fullmatch, dots)):
            return None
        return (
            f"Do the points separate thousands? {dots[0]} is read as "
            f"{column.numbers[dots[0]]:.12g}. If they do, leave them out in all files."
        )
    thousands = all(map(THOUSANDS.fullmatch, marked))
    if not marked or (thousands and not all(map(DECIMAL_COMMA.fullmatch, marked))):
        return None
    read = f"{marked[0]} is read as {column.numbers[marked[0]]:.12g}"
    if thousands:
        others = "decimal signs" if column.commas == "thousands" else "thousands separators"
        way = "decimal" if column.commas == "thousands" else "thousands"
        return (
            f"Are the commas {others}? {read}. If they are, write "
            f'"commas": "{way}" and another range in the schema.'
        )
    if column.delimiter != ",":
        return None
    return f"Is this a number? {read}. If not, use --ignore {column.name}."


def _is_nameless(column: ColumnStats) -> bool:
    """Whether nobody named it: such is the number of a row that a data frame was saved with."""
    return not column.name.strip() or column.name.startswith("Unnamed: ")


def _counts_rows(column: ColumnStats) -> bool:
    """Whether the values are consecutive integers, each once."""
    rows, span = column.rows, column.high - column.low
    return column.unique and column.whole and rows > FEW_VALUES and span == rows - 1


def _names_people(column: ColumnStats) -> bool:
    """Whether the name is one for people; yes and no under "patient" are not people, and nor
    are 1.5 workers."""
    if not column.distinct or column.fractional or not names_person(column.name):
        return False
    answer = len(column.distinct) <= 2 and not column.unique
    return not (answer and is_noun_for_person(column.name))


def _may_be_a_category_of_people(column: ColumnStats) -> bool:
    """Whether the name is a bare noun such as "subject", and the values are few."""
    few = len(column.distinct) <= FEW_VALUES < column.rows
    return few and is_noun_for_person(column.name)


def is_certain_group(column: ColumnStats) -> bool:
    """Whether the name says for certain that the column identifies people."""
    return _names_people(column) and not _may_be_a_category_of_people(column)


def _names_repeated_records(column: ColumnStats) -> bool:
    """Whether the name is one for cases or stays, or just "id", and values repeat."""
    return column.repeats and not column.fractional and names_record(column.name)


def _names_identifier(column: ColumnStats) -> bool:
    """Whether the name is one for what has a number, and no value is 1.5."""
    return names_identifier(column.name) and not column.fractional


def _names_contact(column: ColumnStats) -> bool:
    """Whether the name is one for names or contact details, and there are many values."""
    many = len(column.distinct) > FEW_VALUES or column.unique
    return many and names_contact(column.name)


def _is_quantity(column: ColumnStats) -> bool:
    """Whether the name is one for what is measured or counted, or all values are years."""
    years = column.low >= MIN_YEAR and column.high <= MAX_YEAR
    return names_quantity(column.name) or years


def _numbers_people(column: ColumnStats) -> bool:
    """Whether whole numbers stand for groups of rows, whatever their name: each in equally many
    rows that follow one another, as where somebody is asked every year."""
    if not (column.numeric and column.whole and column.repeats and column.rest is None):
        return False
    usual = Counter(column.counts.values()).most_common(1)[0]
    even = usual[0] > 1 and usual[1] >= MIN_EVEN_SHARE * len(column.distinct)
    return even and column.runs == len(column.distinct) and not _is_quantity(column)


def _numbers_records(column: ColumnStats) -> bool:
    """Whether whole numbers stand for rows, whatever their name: nearly each row has its own,
    and they are spread evenly, as measured quantities are not."""
    count = len(column.numbers)
    if not (column.numeric and column.whole and count >= MIN_NUMBERED_RECORDS) or _is_quantity(
        column
    ):
        return False
    ordered = np.sort(np.fromiter(column.numbers.values(), dtype=np.float64))
    even = (ordered - ordered[0]) / max(ordered[-1] - ordered[0], 1)
    distance = float(np.abs(even - np.linspace(0, 1, count)).max())
    return (
        count >= MIN_EVEN_SHARE * column.counted
        and distance * math.sqrt(count) <= MAX_UNIFORM_DISTANCE
    )


@dataclass(frozen=True)
class People:
    """The group that was specified or found, for the other columns."""

    name: str
    repeated: int
    """How many there are in the table, if in several rows; else 0."""

    @classmethod
    def of(cls, name: str, table: Sequence[ColumnStats]) -> People:
        """The group of this name."""
        named = (column for column in table if column.name == name and column.repeats)
        return cls(name, sum(len(column.distinct) for column in named))

    @property
    def as_many(self) -> str:
        """Say that another column has as many values."""
        return f"as many different values as there are of {self.name}: {self.repeated:,}"

    def suggest(self, name: str) -> str:
        """Say what to do if another column is the one that names people."""
        return (
            f"The group is {self.name}. If {name} names the person, use --group {name}; to learn "
            f"from it, --keep {name}."
        )


def find_group(columns: Sequence[ColumnStats]) -> ColumnStats | None:
    """Return the column that identifies people; if several do, the one with fewest people."""
    nouns = [column for column in columns if _names_people(column)]
    certain = list(filter(is_certain_group, nouns))
    records = [column for column in columns if _names_repeated_records(column)]
    found = certain or nouns or records or [c for c in columns if _numbers_people(c)]
    return min(found, key=lambda column: len(column.distinct), default=None)


def guess_label(column: ColumnStats, declared: Sequence[str] | None = None) -> RoleGuess:
    """Describe the label whose values are classes. Raises DataError for what names none."""
    classes = column.distinct
    if classes and all(value.endswith(".") for value in classes):  # as in UCI Adult's test part
        classes = [value[:-1] for value in classes]
    if (
        declared is None
        and column.numeric
        and (len(classes) > MAX_CLASSES or (len(classes) > FEW_VALUES and not column.whole))
    ):
        raise DataError(
            f"{column.path}: column {column.name} holds {column.different} different numbers, from "
            f"{column.low:,.12g} to {column.high:,.12g}: it is a quantity, and Terrine predicts "
            "classes. Have it cut into ranges, by edges that become public: --bins A,B,… If these "
            "numbers are names of classes, list them in a schema of your own."
        )
    if column.rest:
        raise DataError(
            f"{column.path}: column {column.name} has {column.different} different values: it "
            "names no classes."
        )
    if declared is not None:
        declared = list(map(normalize, declared))
        if unknown := [value for value in classes if value not in declared]:
            raise DataError(
                f"{column.path}: column {column.name} has {', '.join(map(repr, unknown[:5]))}, "
                f"which --classes does not declare: {', '.join(declared)}."
            )
        classes = declared
    doubts = list[str | None]()
    if len(classes) > MAX_CLASSES:
        doubts.append("Are these classes? Terrine predicts one of a few.")
    elif column.gaps:
        doubts.append(_ask_of_gaps(column))
    if len(classes) <= MAX_CATEGORIES:
        doubts.append(_ask_of_spelling(column))
    doubt = _together(*doubts)
    described = Column(name=column.name, role="label", values=tuple(classes))
    return RoleGuess(described, f"to be predicted, as specified: {len(classes):,} classes", doubt)


def _ask_of_gaps(label: ColumnStats) -> str:
    return (
        f"Without a label: {_rows(label.gaps)}. Training refuses such rows: leave them out of the "
        "file."
    )


def cut_label(column: ColumnStats, edges: Sequence[float]) -> RoleGuess:
    """Describe the label whose numbers are cut into classes."""
    if column.words or not column.given:
        odd = next(map(repr, column.word_texts), "nothing")
        raise DataError(
            f"{column.path}: column {column.name} holds {odd}, and --bins cuts numbers. If it has "
            "names of classes, leave --bins out."
        )
    described = Column(name=column.name, role="label", edges=tuple(edges))
    classes = described.values or ()
    rows = column.rows_between(edges)
    doubts = [_ask_of_stand_ins(column), _ask_of_gaps(column) if column.gaps else None]
    if none := [name for name, count in zip(classes, rows, strict=True) if not count]:
        doubts.append(f"No row is {' or '.join(none)}. Are these the edges, in its units?")
    counts = ", ".join(f"{name} ({count:,})" for name, count in zip(classes, rows, strict=True))
    why = f"to be predicted, as specified, cut into {len(classes):,} classes: {counts}"
    return RoleGuess(described, why, _together(*doubts))


def guess_group(column: ColumnStats) -> RoleGuess:
    """Describe the column that seems to identify people."""
    name = column.name
    if not _names_people(column):
        doubt = (
            f"Does it name people? If not, use --ignore {name}, or --keep {name} to learn from it."
        )
        if _names_repeated_records(column):
            return describe_group(column, "an identifier by its name, which repeats", doubt)
        return describe_group(column, EVEN_RUNS, doubt)
    doubt = f"So few people? If not, use --keep {name}."
    few = _may_be_a_category_of_people(column)
    return describe_group(column, "identifies people, by its name", doubt if few else None)


def describe_group(column: ColumnStats, why: str, doubt: str | None = None) -> RoleGuess:
    """Describe the column that identifies people."""
    if column.gaps and doubt is None:
        doubt = f"Without a value: {_rows(column.gaps)}, treated as rows of one person."
    count = f"{column.different} in {_rows(column.rows)}"
    return RoleGuess(Column(name=column.name, role="group"), f"{why}: {count}", doubt)


def leave_out(column: ColumnStats, why: str, doubt: str | None = None) -> RoleGuess:
    """Describe a column that is not used."""
    return RoleGuess(Column(name=column.name, role="ignored"), why, doubt)


def describe_feature(column: ColumnStats, doubt: str | None = None) -> RoleGuess:
    """Describe the column as a feature, whatever else it might be."""
    count = len(column.distinct)
    if order := column.date_order:
        return _dates(column, order, doubt)
    if column.numeric:
        low, high = column.low, column.high
        high = high if high > low else low + 1
        why, missing = f"numbers from {low:,.12g} to {high:,.12g}", None
        if gaps := column.gaps + column.words:
            missing = column.median
            why += f"; missing in {_rows(gaps)}: an indicator, and the median {missing:,.12g}"
        declared = column.commas
        if declared == "decimal" and column.delimiter != ",":  # as in any such file
            declared = None
        elif declared is not None:
            why += f"; commas are {_COMMAS[declared]}"
        described = Column(
            name=column.name,
            role="numeric",
            low=low,
            high=high,
            missing=missing,
            commas=declared,
        )
        strays = _tell_of_strays(column.word_texts, column.words, "numbers")
        doubt = _together(doubt, strays, _ask_of_commas(column), _ask_of_stand_ins(column))
        return RoleGuess(described, why, doubt)
    if column.boolean:
        return RoleGuess(Column(name=column.name, role="boolean"), "true or false", doubt)
    if count <= MAX_CATEGORIES:
        doubt = _together(doubt, _ask_of_spelling(column))
    if column.prose or (count > MAX_CATEGORIES and column.rare and column.has_phrases):
        return _text(column, doubt)
    if count > MAX_CATEGORIES and _common_values(column):
        return _describe_common(column, doubt)
    if not count or count > MAX_CATEGORIES:
        raise DataError(
            f"{column.path}: column {column.name} cannot be kept. It has {column.different} "
            f"different values; a categorical column has at least one, and more than "
            f"{MAX_CATEGORIES:,} only if some are in {MIN_KEPT_ROWS} rows."
        )
    described = Column(name=column.name, role="categorical", values=tuple(column.distinct))
    return RoleGuess(described, f"{count:,} categories" if count > 1 else "one category", doubt)


def _text(column: ColumnStats, doubt: str | None = None) -> RoleGuess:
    """Describe the column as free text."""
    return RoleGuess(
        Column(name=column.name, role="text"), "free text: its words are hashed", doubt
    )


def _dates(column: ColumnStats, order: DateOrder, doubt: str | None) -> RoleGuess:
    first, last = column.span(order)
    parts = (*DATE_PARTS, "hour") if column.hours(order) else DATE_PARTS
    high = max((last - first).days, 1)
    described = Column(
        name=column.name, role="date", order=order, since=first, low=0, high=high, parts=parts
    )
    taken = "month, weekday and hour" if "hour" in parts else "month and weekday"
    why = f"dates from {first} to {last}: days since the first, {taken}"
    if days := column.stand_in_days(order):
        named = " and ".join(map(str, days))
        ask = (
            f"Does {named} stand for no date? If so, leave the field empty in all files: the range "
            "reaches that far."
        )
        doubt = _together(doubt, ask)
    strays = _tell_of_strays(column.undated_texts, column.undated, "dates")
    return RoleGuess(described, why, _together(doubt, strays))


def _together(*doubts: str | None) -> str | None:
    """Several doubts as one."""
    return " ".join(each for each in doubts if each) or None


def _tell_of_strays(texts: Sequence[str], rows: int, kind: str) -> str | None:
    """Tell of values that are no numbers, or no dates, and count as missing."""
    if not rows:
        return None
    shown = ", ".join(quote_text(text[:MAX_STRAY_CHARACTERS]) for text in texts[:MAX_STRAYS_SHOWN])
    more = f" and {len(texts) - MAX_STRAYS_SHOWN:,} more" if len(texts) > MAX_STRAYS_SHOWN else ""
    named = f" ({shown}{more})" if shown else ""
    return f"In {_rows(rows)} there are no {kind}{named}: these values count as missing."


def _ask_of_stand_ins(column: ColumnStats) -> str | None:
    """Ask of numbers such as -999 among others."""
    found = column.stand_ins
    if not found:
        return None
    named = " and ".join(f"{value:.12g}" for value in found)
    return (
        f"Does {named} stand for a missing value? If so, leave the field empty in all files: the "
        "range reaches that far."
    )


def _ask_of_spelling(column: ColumnStats) -> str | None:
    """Ask of categories that are nearly equal, and of NA where it may be a name."""
    na = None
    if column.not_available and _may_name_places(column):
        na = (
            f"NA is read as a missing value, in {_rows(column.not_available)}. If it is a place, "
            "such as Namibia or North America, write it otherwise in all files."
        )
    return _together(ask_whether_one(column.distinct), na)


def _common_values(column: ColumnStats) -> list[str]:
    """The most common values of a column with many rare ones, each in several rows."""
    counts = column.counts
    common = (value for value in counts if counts[value] >= MIN_KEPT_ROWS)
    return sorted(common, key=lambda value: (-counts[value], value))[:KEPT_CATEGORIES]


def _share_of(values: Sequence[str], column: ColumnStats) -> float:
    """The share of a column's rows that have one of these values."""
    return sum(column.counts[value] for value in values) / max(column.given, 1)


def _describe_common(column: ColumnStats, doubt: str | None) -> RoleGuess:
    """Describe a categorical column by its common values; all others are one category."""
    values = _common_values(column)
    described = Column(name=column.name, role="categorical", values=tuple(values))
    why = (
        f"the {len(values)} most common of {column.different} categories, in "
        f"{_share_of(values, column):.0%} of the rows"
    )
    return RoleGuess(described, why, doubt)


def guess_role(column: ColumnStats, people: People | None) -> RoleGuess:
    """Guess the role of a column for which the owner specified none and that is not the
    group."""
    name, rows, count = column.name, column.rows, len(column.distinct)
    keep = f"If this is wrong, use --keep {name}"
    keep_or_group = f"{keep}, or --group {name} if it identifies people."
    if people is not None:
        keep_or_group = people.suggest(name)
    if not count:
        return leave_out(column, "empty in every row")
    if _names_people(column):
        if _may_be_a_category_of_people(column):
            return describe_feature(column, keep_or_group)
        why = "identifies people" if people is None else f"identifies people, as {people.name} does"
        return leave_out(column, why, keep_or_group)
    if _names_contact(column):
        return leave_out(column, "identifies people, by its name")
    if column.date_order:
        return describe_feature(column)
    if column.dates:
        doubt = "To learn from dates, write them as 2020-01-31." if column.days else None
        return leave_out(column, "dates or times", doubt)
    if _names_identifier(column) and column.unique and rows > 2:
        return leave_out(column, "an identifier by its name, and different in every row")
    if column.numeric:
        return _guess_number(column, people, keep_or_group)
    if text := column.unread_number:
        doubt = "To learn from it, write plain digits in all files, such as 1234.5."
        return leave_out(column, f"numbers written as {text!r}", doubt)
    if column.prose and count <= FEW_VALUES:
        return leave_out(column, "free text in few rows", f"{keep}.")
    if column.prose:
        return _text(column)
    if len(column.numbers) > FEW_VALUES and 5 * column.words <= column.given and not column.coded:
        doubt = "To learn from it, leave all values that are not numbers empty."
        return leave_out(column, f"numbers, except in {_rows(column.words)}", doubt)
    if column.unique and rows > FEW_VALUES:
        return leave_out(column, "different in every row", f"{keep}.")
    if people is not None and count == people.repeated:
        return leave_out(column, people.as_many, keep_or_group)
    if column.rare or count > MAX_CATEGORIES:
        numbered = column.uniform or _names_identifier(column)
        share = _share_of(_common_values(column), column)
        if share >= MIN_KEPT_SHARE and not (column.rare and numbered):
            doubt = f"Others count as one. If this is not a category, use --ignore {name}"
            more = f", or --group {name} if it identifies people" if people is None else ""
            return _describe_common(column, f"{doubt}{more}.")
        why = f"{column.different} different values in {_rows(rows)}: too rare to learn from"
        return leave_out(column, why, keep_or_group)
    doubt = f"Different in every row. If it identifies rows, use --ignore {name}."
    return describe_feature(column, doubt if column.unique and rows > 4 else None)


def _guess_number(column: ColumnStats, people: People | None, keep_or_group: str) -> RoleGuess:
    name, count = column.name, len(column.distinct)
    if _counts_rows(column) and not _is_quantity(column):
        return leave_out(column, "numbers the rows", keep_or_group)
    if _is_nameless(column) and column.unique:
        doubt = "If this is wrong, give it a name."
        return leave_out(column, "without a name, and different in every row", doubt)
    if _names_identifier(column) and count > FEW_VALUES:
        why = f"an identifier by its name: {column.different} in {_rows(column.rows)}"
        return leave_out(column, why, keep_or_group)
    if _numbers_records(column):
        why = f"{column.different} whole numbers in {_rows(column.rows)}, evenly spread"
        return leave_out(column, why, keep_or_group)
    odd = column.whole and count > FEW_VALUES and not _is_quantity(column)
    if odd and people is not None and count == people.repeated:
        return leave_out(column, people.as_many, keep_or_group)
    if _numbers_people(column):
        return leave_out(column, EVEN_RUNS, keep_or_group)
    doubt = f"If it is an identifier, use --ignore {name} or --group {name}."
    coded = column.uniform and column.low >= MIN_CODE
    return describe_feature(column, doubt if odd and (column.unique or coded) else None)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
