"""Propose a role for each column of a public table, and say why.

Names, forms and counts of values are clues, not proof, so doubts are reported. A column that
identifies people becomes the group; columns that identify rows or cannot be learned from are
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from terrine_models.data.arrays import DataError
from terrine_models.tables.column_stats import FEW, ColumnStats, most
from terrine_models.tables.loading import warn
from terrine_protocol.names import ask_whether_one, normalize
from terrine_protocol.tables import Column, DateOrder, DatePart, PublicSource, TableSchema
from terrine_protocol.tables.columns import Note, check_names
from terrine_protocol.tables.encoding import opened_table
from terrine_protocol.tables.reading import Progress, unseen

MOST_CATEGORIES = 1000
COMMON = 100
"""Categories that are kept where there are more than that."""
WORTH = 0.5
"""Share of the rows that these have at least."""
PARTS: tuple[DatePart, ...] = ("days", "month", "weekday")
"""Of dates; and the hour, if there is a time of day."""
MOST_CLASSES = 100


@dataclass(frozen=True)
class RoleGuess:
    """The role proposed for a column."""

    column: Column
    why: str
    doubt: str | None = None
    """What the owner should check."""


@dataclass(frozen=True)
class SchemaProposal:
    """A schema, and the reason for the role of each column."""

    schema: TableSchema
    guesses: tuple[RoleGuess, ...]
    declared: bool = False
    """Whether the classes were declared, and not taken from the table."""

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
    classes: Sequence[str] | None = None,
    group: str | None = None,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    keep: Sequence[str] = (),
    note: Note = warn,
    progress: Progress = unseen,
) -> SchemaProposal:
    """Propose a schema with the categories, classes and ranges of a public table.

    Its values are counted in one pass and in bounded memory (`column_stats.py`). Every distinct
    value of a categorical column becomes public. `columns` names the columns of a file without a
    header. `classes` declares what the label can be: the table need not have that column then.
    `group`, `ignore` and `keep` (as a feature) overrule the guesses. Raises DataError.
    """
    path, label = Path(path), normalize(label)
    group = None if group is None else normalize(group)
    columns = None if columns is None else list(map(normalize, columns))
    ignore, keep = list(map(normalize, ignore)), list(map(normalize, keep))
    table, digest = _counted(path, label, columns, note, progress)
    records = table[0].rows
    wanted = [label, *ignore, *keep, *([group] if group else [])]
    names = [column.name for column in table]
    if label not in names and classes is None:
        raise DataError(
            f"{path} has no column {label}; it has {', '.join(names)}. If its rows have no labels, "
            "declare the classes, which become public: --classes A,B,…"
        )
    unlabelled = label not in names
    check_names(names, wanted[1:] if unlabelled else wanted, str(path))
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise DataError(f"Column {twice[0]} is named twice; it can have only one role.")
    decide: dict[str, Callable[[ColumnStats], RoleGuess]] = {
        label: partial(_label, declared=classes)
    }
    decide |= dict.fromkeys(ignore, partial(_ignore, why="as specified"))
    decide |= dict.fromkeys(keep, _feature)
    if group is not None:
        decide[group] = partial(_as_group, why="as specified")
    elif found := _group([column for column in table if column.name not in decide]):
        group = found.name
        decide[group] = _guessed_group
    guesses = list[RoleGuess]()
    while table:  # what was counted of a column is not kept once its role is known
        column = table.pop(0)
        decided = decide.get(column.name)
        guesses.append(decided(column) if decided else _guess(column, group))
    if unlabelled:
        described = Column(name=label, role="label", values=tuple(classes or ()))
        guesses.append(RoleGuess(described, "to be predicted; its classes were declared"))
    source = PublicSource(name=path.name, sha256=digest, records=records)
    try:
        schema = TableSchema(columns=tuple(guess.column for guess in guesses), fitted_on=source)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{path}: {reason}.") from None
    return SchemaProposal(schema, tuple(guesses), declared=classes is not None)


def _counted(
    path: Path, label: str, columns: Sequence[str] | None, note: Note, progress: Progress
) -> tuple[list[ColumnStats], str]:
    """Count the values of all columns; and the SHA-256 of the file."""

    def fits(first: Sequence[str]) -> bool:
        return label in first if columns is None else len(first) == len(columns)

    with opened_table(path, fits=fits, note=note) as file:
        from terrine_protocol.tables.rows import coded

        if file.delimiter is None and columns is not None:
            raise DataError(f"{path} names its columns itself: leave out --columns.")
        if not file.first:
            raise DataError(f"{path} is empty.")
        names = file.first if columns is None else columns
        check_names(names, [], str(path))
        table = [ColumnStats(path, name, file.delimiter or ",", most(len(names))) for name in names]
        rows = 0
        for batch in file.batches(names, columns is None, progress):
            for column, array in zip(table, batch.columns, strict=True):
                column.add(coded(file, column.name, array, rows))
            rows += batch.num_rows
        if not rows:
            raise DataError(f"{path} has no rows below its header.")
        return table, file.sha256


def _group(columns: Sequence[ColumnStats]) -> ColumnStats | None:
    """Return the column that identifies people; if several do, the one with fewest people."""
    people = [column for column in columns if column.names_people]
    stays = [column for column in columns if column.names_repeated_stays]
    return min(people or stays, key=lambda column: len(column.distinct), default=None)


def _label(column: ColumnStats, declared: Sequence[str] | None = None) -> RoleGuess:
    classes = column.distinct
    if classes and all(value.endswith(".") for value in classes):  # as in UCI Adult's test part
        classes = [value[:-1] for value in classes]
    if (
        declared is None
        and column.numeric
        and (len(classes) > MOST_CLASSES or (len(classes) > FEW and not column.whole))
    ):
        raise DataError(
            f"{column.path}: column {column.name} holds {column.different} different numbers, from "
            f"{column.low:,.12g} to {column.high:,.12g}: it is a quantity, and Terrine predicts "
            "classes. Cut it into ranges, such as low, middle and high, in all files. If these "
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
    if len(classes) > MOST_CLASSES:
        doubts.append("Are these classes? Terrine predicts one of a few.")
    elif column.gaps:
        rows = _rows(column.gaps)
        doubts.append(
            f"Without a label: {rows}. Training refuses such rows: leave them out of the file."
        )
    if len(classes) <= MOST_CATEGORIES:
        doubts.append(_ask_of_spelling(column))
    doubt = _together(*doubts)
    described = Column(name=column.name, role="label", values=tuple(classes))
    return RoleGuess(described, f"to be predicted, as specified: {len(classes):,} classes", doubt)


def _guessed_group(column: ColumnStats) -> RoleGuess:
    if not column.names_people:
        doubt = "The name does not suggest people. Does another column identify them?"
        return _as_group(column, "an identifier that repeats", doubt)
    doubt = f"So few people? If not, use --keep {column.name}."
    few = column.may_be_a_category_of_people
    return _as_group(column, "identifies people, by its name", doubt if few else None)


def _as_group(column: ColumnStats, why: str, doubt: str | None = None) -> RoleGuess:
    if column.gaps and doubt is None:
        doubt = f"Without a value: {_rows(column.gaps)}, treated as rows of one person."
    count = f"{column.different} in {_rows(column.rows)}"
    return RoleGuess(Column(name=column.name, role="group"), f"{why}: {count}", doubt)


def _ignore(column: ColumnStats, why: str, doubt: str | None = None) -> RoleGuess:
    return RoleGuess(Column(name=column.name, role="ignored"), why, doubt)


def _feature(column: ColumnStats, doubt: str | None = None) -> RoleGuess:
    """Describe the column as a feature, whatever else it might be."""
    count = len(column.distinct)
    if order := column.date_order:
        return _dates(column, order, doubt)
    if column.numeric:
        low, high = column.low, column.high
        high = high if high > low else low + 1
        why, missing = f"numbers from {low:,.12g} to {high:,.12g}", None
        if column.gaps:
            missing = column.median
            why += (
                f"; missing in {_rows(column.gaps)}: an indicator, and the median {missing:,.12g}"
            )
        described = Column(name=column.name, role="numeric", low=low, high=high, missing=missing)
        return RoleGuess(described, why, _together(doubt, _ask_of_stand_ins(column)))
    if column.boolean:
        return RoleGuess(Column(name=column.name, role="boolean"), "true or false", doubt)
    if count <= MOST_CATEGORIES:
        doubt = _together(doubt, _ask_of_spelling(column))
    if (levels := column.levels) and count <= MOST_CATEGORIES:
        why = f"levels, from least to most: {levels[0]} … {levels[-1]}"
        doubt = doubt or "Is this their order? If they have none, make the role categorical."
        return RoleGuess(Column(name=column.name, role="ordinal", values=levels), why, doubt)
    if not count or (count > MOST_CATEGORIES and column.rare):
        raise DataError(
            f"{column.path}: column {column.name} cannot be kept. It has {column.different} "
            f"different values; a categorical column has at least one, and more than "
            f"{MOST_CATEGORIES:,} only if they repeat."
        )
    if count > MOST_CATEGORIES:
        return _common(column, doubt)
    described = Column(name=column.name, role="categorical", values=tuple(column.distinct))
    return RoleGuess(described, f"{count:,} categories" if count > 1 else "one category", doubt)


def _dates(column: ColumnStats, order: DateOrder, doubt: str | None) -> RoleGuess:
    first, last = column.span(order)
    parts = (*PARTS, "hour") if column.hours(order) else PARTS
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
    return RoleGuess(described, why, doubt)


def _together(*doubts: str | None) -> str | None:
    """Several doubts as one."""
    return " ".join(each for each in doubts if each) or None


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
    if column.not_available and column.names_places:
        na = (
            f"NA is read as a missing value, in {_rows(column.not_available)}. If it is a place, "
            "such as Namibia or North America, write it otherwise in all files."
        )
    return _together(ask_whether_one(column.distinct), na)


def _most_common(column: ColumnStats) -> tuple[list[str], float]:
    """The most common values, and the share of the rows that have one of them."""
    counts = column.counts
    most = sorted(counts, key=lambda value: (-counts[value], value))[:COMMON]
    return most, sum(counts[value] for value in most) / column.given


def _common(column: ColumnStats, doubt: str | None = None) -> RoleGuess:
    most, share = _most_common(column)
    described = Column(name=column.name, role="categorical", values=tuple(most))
    count = f"{column.different} categories"
    why = f"the {COMMON} most common of {count}, in {share:.0%} of the rows"
    return RoleGuess(described, why, doubt)


def _guess(column: ColumnStats, group: str | None) -> RoleGuess:
    """Guess the role of a column for which the owner specified none and that is not the
    group."""
    name, rows, count = column.name, column.rows, len(column.distinct)
    keep = f"If this is wrong, use --keep {name}"
    keep_or_group = f"{keep}, or --group {name} if it identifies people."
    if not count:
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
    if column.unread_decimals:
        why = "numbers with decimal commas, in a file whose fields are separated by commas"
        return _ignore(
            column, why, "To learn from it, write 3.5, or separate fields with semicolons."
        )
    if column.prose:
        return _ignore(column, "free text")
    if count > FEW and 0 < column.words * 5 <= column.given:
        doubt = "To learn from it, leave all values that are not numbers empty."
        return _ignore(column, f"numbers, except in {_rows(column.words)}", doubt)
    if column.unique and rows > FEW:
        return _ignore(column, "different in every row", f"{keep}.")
    if column.rare:
        why = f"{column.different} different values in {_rows(rows)}: too rare to learn from"
        return _ignore(column, why, keep_or_group)
    if count > MOST_CATEGORIES:
        share = _most_common(column)[1]
        if share >= WORTH:
            return _common(column, f"If this is no category, use --ignore {name}.")
        most = f"the {COMMON} most common in {share:.0%} of the rows"
        why = f"{column.different} different values, {most}"
        return _ignore(column, why, keep_or_group)
    doubt = f"Different in every row. If it identifies rows, use --ignore {name}."
    return _feature(column, doubt if column.unique and rows > 4 else None)


def _guess_number(column: ColumnStats, keep_or_group: str) -> RoleGuess:
    name, count = column.name, len(column.distinct)
    if column.counts_rows:
        return _ignore(column, "numbers the rows", keep_or_group)
    if column.nameless and column.unique:
        doubt = "If this is wrong, give it a name."
        return _ignore(column, "without a name, and different in every row", doubt)
    if column.names_identifier and column.rare:
        why = f"an identifier by its name: {column.different} in {_rows(column.rows)}"
        return _ignore(column, why, keep_or_group)
    if column.thousands:
        return _feature(column, "Are the commas thousands separators? 1,234 is read as 1.234.")
    odd = column.whole and count > FEW and (column.unique or column.uniform)
    doubt = f"If it is an identifier, use --ignore {name} or --group {name}."
    return _feature(column, doubt if odd else None)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
