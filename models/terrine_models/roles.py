"""Propose a role for each column of a public table, and say why.

Names, forms and counts of values are clues, not proof, so doubts are reported. A column that
identifies people becomes the group; columns that identify rows or cannot be learned from are
ignored.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from terrine_protocol.tables import Column, DateOrder, DatePart, PublicSource, TableSchema

from . import arrow_files
from .clues import FEW, Clues
from .columns import read_date
from .csv_files import Encoding, Note, read_sheet, silent
from .data import DataError

MOST_CATEGORIES = 1000
COMMON = 100
"""Categories that are kept where there are more than that."""
WORTH = 0.5
"""Share of the rows that these have at least."""
PARTS: tuple[DatePart, ...] = ("days", "month", "weekday")
MOST_CLASSES = 100


@dataclass(frozen=True)
class Guess:
    """The role proposed for a column."""

    column: Column
    why: str
    doubt: str | None = None
    """What the owner should check."""


@dataclass(frozen=True)
class Proposal:
    """A schema, and the reason for the role of each column."""

    schema: TableSchema
    guesses: tuple[Guess, ...]

    def to_json(self) -> str:
        """The schema as a file to be edited, with what was guessed and why beside each column."""
        written = self.schema.model_dump(mode="json", exclude_none=True)
        for column, guess in zip(written["columns"], self.guesses, strict=True):
            column["why"] = guess.why
            if guess.doubt is not None:
                column["check"] = guess.doubt
        return json.dumps(written, indent=2, ensure_ascii=False) + "\n"


def propose_schema(
    path: Path,
    *,
    label: str,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    keep: Sequence[str] = (),
    note: Note = silent,
    encoding: Encoding = "utf-8",
) -> Proposal:
    """Propose a schema with the categories, classes and ranges of a public table.

    Every distinct value of a categorical column becomes public. `columns` names the columns of a
    file without a header; `encoding` is that of text that is not UTF-8. `group`, `ignore` and
    `keep` (as a feature) overrule the guesses. Raises DataError.
    """
    table = _table(Path(path), label, columns, note, encoding)
    sheet, records = table[0].sheet, len(table[0].all)
    _check_names([column.name for column in table], path, [label, *ignore, *keep, group])
    decide: dict[str, Callable[[Clues], Guess]] = {label: _label}
    decide |= dict.fromkeys(ignore, _ignored) | dict.fromkeys(keep, _feature)
    if group is not None:
        decide[group] = _named_group
    elif found := _group([column for column in table if column.name not in decide]):
        group = found.name
        decide[group] = _guessed_group
    guesses = tuple(
        decide[column.name](column) if column.name in decide else _guess(column, group)
        for column in table
    )
    source = PublicSource(name=sheet.path.name, sha256=sheet.sha256, records=records)
    try:
        schema = TableSchema(columns=tuple(guess.column for guess in guesses), fitted_on=source)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{sheet.path}: {reason}.") from None
    return Proposal(schema, guesses)


def _table(
    path: Path, label: str, columns: Sequence[str] | None, note: Note, encoding: Encoding
) -> list[Clues]:
    def fits(first: Sequence[str]) -> bool:
        return label in first if columns is None else len(first) == len(columns)

    if not arrow_files.is_arrow(path):
        sheet = read_sheet(path, fits, note, encoding)
    elif columns is not None:
        raise DataError(f"{path} names its columns itself: leave out --columns.")
    else:
        sheet = arrow_files.read_sheet(path)
    if not sheet.rows:
        raise DataError(f"{path} is empty.")
    names, rows = (sheet.rows[0][1], sheet.rows[1:]) if columns is None else (columns, sheet.rows)
    if twice := sorted({name for name in names if list(names).count(name) > 1}):
        raise DataError(
            f"{path} has two columns named {twice[0]!r}; every column needs a different name."
        )
    if not rows:
        raise DataError(f"{path} has no rows below its header.")
    for line, fields in rows:
        if len(fields) != len(names):
            raise DataError(
                f"{path} line {line}: found {len(fields)} fields, expected {len(names)}."
            )
    return [Clues(name, sheet, [fields[i] for _, fields in rows]) for i, name in enumerate(names)]


def _check_names(columns: Sequence[str], path: Path, wanted: Sequence[str | None]) -> None:
    for name in wanted:
        if name is None:
            continue
        if name not in columns:
            raise DataError(f"{path} has no column {name}; it has {', '.join(columns)}.")
        if wanted.count(name) > 1:
            raise DataError(f"Column {name} is named twice; it can have only one role.")


def _group(columns: Sequence[Clues]) -> Clues | None:
    """Return the column that identifies people; if several do, the one with fewest people."""
    people = [column for column in columns if column.names_people]
    stays = [column for column in columns if column.names_repeated_stays]
    return min(people or stays, key=lambda column: len(column.distinct), default=None)


def _label(column: Clues) -> Guess:
    classes = column.distinct
    if classes and all(value.endswith(".") for value in classes):  # as in UCI Adult's test part
        classes = [value[:-1] for value in classes]
    unlabelled = len(column.all) - len(column.known)
    doubt = None
    if len(classes) > MOST_CLASSES:
        doubt = "Is this a quantity? Terrine predicts classes."
    elif unlabelled:
        doubt = f"Without a label: {_rows(unlabelled)}. Training refuses these rows."
    described = Column(name=column.name, role="label", values=tuple(classes))
    return Guess(described, f"to be predicted, as specified: {len(classes):,} classes", doubt)


def _named_group(column: Clues) -> Guess:
    return _as_group(column, "as specified")


def _guessed_group(column: Clues) -> Guess:
    if not column.names_people:
        doubt = "The name does not suggest people. Does another column identify them?"
        return _as_group(column, "an identifier that repeats", doubt)
    doubt = f"So few people? If not, use --keep {column.name}."
    few = column.may_be_a_category_of_people
    return _as_group(column, "identifies people, by its name", doubt if few else None)


def _as_group(column: Clues, why: str, doubt: str | None = None) -> Guess:
    missing = len(column.all) - len(column.known)
    if missing and doubt is None:
        doubt = f"Without a value: {_rows(missing)}, treated as rows of one person."
    count = f"{len(column.distinct):,} in {_rows(len(column.all))}"
    return Guess(Column(name=column.name, role="group"), f"{why}: {count}", doubt)


def _ignored(column: Clues) -> Guess:
    return _ignore(column, "as specified")


def _ignore(column: Clues, why: str, doubt: str | None = None) -> Guess:
    return Guess(Column(name=column.name, role="ignored"), why, doubt)


def _feature(column: Clues, doubt: str | None = None) -> Guess:
    """Describe the column as a feature, whatever else it might be."""
    count = len(column.distinct)
    if order := column.date_order:
        return _dates(column, order, doubt)
    if column.numeric:
        low, high = min(column.numbers), max(column.numbers)
        high = high if high > low else low + 1
        why, missing = f"numbers from {low:,.12g} to {high:,.12g}", None
        if gaps := len(column.all) - len(column.known):
            missing = statistics.median(column.numbers)
            why += f"; missing in {_rows(gaps)}: an indicator, and the median {missing:,.12g}"
        described = Column(name=column.name, role="numeric", low=low, high=high, missing=missing)
        return Guess(described, why, doubt)
    if column.boolean:
        return Guess(Column(name=column.name, role="boolean"), "true or false", doubt)
    if (levels := column.levels) and count <= MOST_CATEGORIES:
        why = f"levels, from least to most: {levels[0]} … {levels[-1]}"
        doubt = doubt or "Is this their order? If they have none, make the role categorical."
        return Guess(Column(name=column.name, role="ordinal", values=levels), why, doubt)
    if not count or (count > MOST_CATEGORIES and column.rare):
        raise DataError(
            f"{column.sheet.path}: column {column.name} cannot be kept. It has {count:,} different "
            f"values; a categorical column has at least one, and more than {MOST_CATEGORIES:,} "
            "only if they repeat."
        )
    if count > MOST_CATEGORIES:
        return _common(column, doubt)
    described = Column(name=column.name, role="categorical", values=tuple(column.distinct))
    return Guess(described, f"{count:,} categories" if count > 1 else "one category", doubt)


def _dates(column: Clues, order: DateOrder, doubt: str | None) -> Guess:
    days = [read_date(text, order) or date.min for text in column.known]
    first, last = min(days), max(days)
    described = Column(
        name=column.name,
        role="date",
        order=order,
        since=first,
        low=0,
        high=max((last - first).days, 1),
        parts=PARTS,
    )
    why = f"dates from {first} to {last}: days since the first, month and weekday"
    return Guess(described, why, doubt)


def _most_common(column: Clues) -> tuple[list[str], float]:
    """The most common values, and the share of the rows that have one of them."""
    counted = Counter(column.known)
    most = sorted(counted, key=lambda value: (-counted[value], value))[:COMMON]
    return most, sum(counted[value] for value in most) / len(column.known)


def _common(column: Clues, doubt: str | None = None) -> Guess:
    most, share = _most_common(column)
    described = Column(name=column.name, role="categorical", values=tuple(most))
    count = f"{len(column.distinct):,} categories"
    why = f"the {COMMON} most common of {count}, in {share:.0%} of the rows"
    return Guess(described, why, doubt)


def _guess(column: Clues, group: str | None) -> Guess:
    """Guess the role of a column for which the owner specified none and that is not the group."""
    name, rows, count = column.name, len(column.all), len(column.distinct)
    keep = f"If this is wrong, use --keep {name}"
    keep_or_group = f"{keep}, or --group {name} if it identifies people."
    if not column.known:
        return _ignore(column, "empty in every row")
    if column.names_people:
        return _ignore(column, f"identifies people, as {group} does", f"{keep} or --group {name}.")
    if column.names_contact:
        return _ignore(column, "identifies people, by its name")
    if column.date_order:
        return _feature(column)
    if column.dates:
        doubt = "To learn from dates, write them as 2020-01-31." if column.days else None
        return _ignore(column, "dates or times", doubt)
    if column.names_identifier and column.unique and rows > 2:
        return _ignore(column, "an identifier by its name, and different in every row")
    if column.numeric:
        return _guess_number(column, keep_or_group)
    if column.decimal_commas:
        why = "numbers with decimal commas, in a file whose fields are separated by commas"
        return _ignore(
            column, why, "To learn from it, write 3.5, or separate fields with semicolons."
        )
    if column.prose:
        return _ignore(column, "free text")
    words = sum(number != number for number in column.numbers)
    if count > FEW and 0 < words * 5 <= len(column.known):
        doubt = "To learn from it, leave all values that are not numbers empty."
        return _ignore(column, f"numbers, except in {_rows(words)}", doubt)
    if column.unique and rows > FEW:
        return _ignore(column, "different in every row", f"{keep}.")
    if column.rare:
        why = f"{count:,} different values in {_rows(rows)}: too rare to learn from"
        return _ignore(column, why, keep_or_group)
    if count > MOST_CATEGORIES:
        share = _most_common(column)[1]
        if share >= WORTH:
            return _common(column, f"If this is no category, use --ignore {name}.")
        why = f"{count:,} different values, the {COMMON} most common in {share:.0%} of the rows"
        return _ignore(column, why, keep_or_group)
    doubt = f"Different in every row. If it identifies rows, use --ignore {name}."
    return _feature(column, doubt if column.unique and rows > 4 else None)


def _guess_number(column: Clues, keep_or_group: str) -> Guess:
    name, count = column.name, len(column.distinct)
    if column.counts_rows:
        return _ignore(column, "numbers the rows", keep_or_group)
    if column.names_identifier and column.rare:
        why = f"an identifier by its name: {count:,} in {_rows(len(column.all))}"
        return _ignore(column, why, keep_or_group)
    if column.thousands:
        return _feature(column, "Are the commas thousands separators? 1,234 is read as 1.234.")
    odd = column.whole and count > FEW and (column.unique or column.uniform)
    doubt = f"If it is an identifier, use --ignore {name} or --group {name}."
    return _feature(column, doubt if odd else None)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
