"""Propose a role for each column of a public table, and say why.

Names, forms and counts of values are clues, not proof, so doubts are reported. A column that
identifies people becomes the group, and one that may do so in doubt; columns that identify rows or
cannot be learned from are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from terrine_models.data.arrays import DataError
from terrine_models.tables import column_names
from terrine_models.tables.column_stats import FEW, ColumnStats, most
from terrine_models.tables.loading import warn
from terrine_protocol.names import ask_whether_one, fold, listed, normalize
from terrine_protocol.tables import FEATURES, Column, DateOrder, DatePart, PublicSource, TableSchema
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
LEAST_CODE = 10_000
"""Numbers of equally many digits that repeat are asked about from here on: smaller ones are more
often quantities."""

EVEN_RUNS = "whole numbers, each in equally many rows that follow one another"
_COMMAS = {"thousands": "thousands separators", "decimal": "decimal signs"}


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
    doubtful_group: str | None = None
    """The column that was guessed to be the group, if its name does not say so for certain."""

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
    bins: Sequence[float] | None = None,
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
    header. `classes` declares what the label can be, or `bins` the edges that cut its numbers into
    classes: the table need not have that column then. `group`, `ignore` and `keep` (as a feature)
    overrule the guesses; a `group` may be in the private table alone, unless it is spelled nearly
    as a column of this one. Raises DataError.
    """
    path, label = Path(path), normalize(label)
    group = None if group is None else normalize(group)
    columns = None if columns is None else list(map(normalize, columns))
    ignore, keep = list(map(normalize, ignore)), list(map(normalize, keep))
    table, unread, digest = _counted(path, label, columns, ignore, note, progress)
    records = max(column.rows for column in table)
    wanted = [label, *ignore, *keep, *([group] if group else [])]
    names = [column.name for column in table]
    if classes is not None and bins is not None:
        raise DataError("Classes are declared either by --classes or by --bins.")
    if label not in names and classes is None and bins is None:
        raise DataError(
            f"{path} has no column {label}; it has {', '.join(names)}. If its rows have no labels, "
            "declare the classes, which become public: --classes A,B,…, or of numbers --bins."
        )
    if not records:
        raise DataError(f"{path} has no rows below its header.")
    absent = {label} - set(names)
    if group is not None and columns is None and fold(group) not in map(fold, names):
        absent.add(group)
    check_names(names, [name for name in wanted if name not in absent], str(path))
    if name := next((name for name in (label, *keep, group) if name in unread), None):
        raise DataError(
            f"{path}: column {name} holds {unread[name]}; expected numbers, text or dates."
        )
    if twice := [name for name in wanted if wanted.count(name) > 1]:
        raise DataError(f"Column {twice[0]} is named twice; it can have only one role.")
    decide: dict[str, Callable[[ColumnStats], RoleGuess]] = {
        label: partial(_label, declared=classes) if bins is None else partial(_cut, edges=bins)
    }
    for name, kind in unread.items():
        decide[name] = partial(_ignore, why=f"holds {kind}, which is not read")
    decide |= dict.fromkeys(ignore, partial(_ignore, why="as specified"))
    decide |= dict.fromkeys(keep, _feature)
    if group is not None and group not in absent:
        decide[group] = partial(_as_group, why="as specified")
    found = None
    if group is None:
        found = _group([column for column in table if column.name not in decide])
    if found is not None:
        group, decide[found.name] = found.name, _guessed_group
    certain = found is None or (found.names_people and not found.may_be_a_category_of_people)
    people = None if group is None else _People.of(group, table)
    guesses = list[RoleGuess]()
    while table:  # what was counted of a column is not kept once its role is known
        column = table.pop(0)
        decided = decide.get(column.name)
        guesses.append(decided(column) if decided else _guess(column, people))
    if label in absent:
        described = Column(name=label, role="label", values=tuple(classes or ()))
        if bins is not None:
            described = Column(name=label, role="label", edges=tuple(bins))
        guesses.append(RoleGuess(described, "to be predicted; its classes were declared"))
    if group is not None and group in absent:
        why = f"as specified; {path.name} has not got it, so the private table must"
        guesses.append(RoleGuess(Column(name=group, role="group"), why))
    if not any(guess.column.role in FEATURES for guess in guesses):
        left = [f"{g.column.name} ({g.why})" for g in guesses if g.column.role == "ignored"]
        raise DataError(
            f"{path}: no column is left to learn from. Left out: {listed(left) or 'none'}. "
            "Use --keep COLUMN for one that counts, or write it otherwise in all files."
        )
    source = PublicSource(name=path.name, sha256=digest, records=records)
    try:
        schema = TableSchema(columns=tuple(guess.column for guess in guesses), fitted_on=source)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{path}: {reason}.") from None
    return SchemaProposal(
        schema,
        tuple(guesses),
        declared=classes is not None or bins is not None,
        doubtful_group=None if certain else group,
    )


def find_repeated_people(path: Path, schema: TableSchema) -> tuple[str, float] | None:
    """Find the column by which people have several rows, though the schema has no group.

    Of a private table: so what is returned, its name and the mean number of rows of one person, is
    for the owner alone, and is stored nowhere. None if there is no such column. Raises DataError.
    """
    features, columns = set(schema.features), [column.name for column in schema.columns]
    unused = {column.name for column in schema.columns if column.role == "ignored"}

    def may_name_people(name: str) -> bool:
        if name in features:
            return column_names.names_person(name) or column_names.names_record(name)
        return name in unused or name not in columns

    def fits(first: Sequence[str]) -> bool:
        return features <= set(first) or len(first) == len(columns)

    with opened_table(path, fits=fits, digest=False) as file:
        from terrine_protocol.tables.rows import coded, is_header

        header = file.delimiter is None or is_header(file.first, schema)
        names = file.first if header else columns
        named = list(filter(may_name_people, names))
        if not named or len(names) != len(file.first):
            return None
        delimiter = file.delimiter or ","
        found = [ColumnStats(path, name, delimiter, most(len(named))) for name in named]
        rows = 0
        for batch in file.batches(names if file.delimiter else named, header):
            for column in list(found):
                try:
                    column.add(coded(file, column.name, batch.column(column.name), rows))
                except DataError:  # it is no column of the schema, and need not be readable
                    found.remove(column)
            rows += batch.num_rows
    people = _group([column for column in found if column.rows_per_value > 1])
    return None if people is None else (people.name, people.rows_per_value)


def _counted(
    path: Path,
    label: str,
    columns: Sequence[str] | None,
    ignore: Sequence[str],
    note: Note,
    progress: Progress,
) -> tuple[list[ColumnStats], dict[str, str], str]:
    """Count the values of all columns but those to ignore; what those hold whose types cannot be
    read; and the SHA-256 of the file."""

    def fits(first: Sequence[str]) -> bool:
        return label in first if columns is None else len(first) == len(columns)

    with opened_table(path, fits=fits, note=note) as file:
        from terrine_protocol.tables.files import CsvFile
        from terrine_protocol.tables.rows import coded, unread_type

        if file.delimiter is None and columns is not None:
            raise DataError(f"{path} names its columns itself: leave out --columns.")
        if not file.first:
            raise DataError(f"{path} is empty.")
        if isinstance(file, CsvFile) and columns is None:
            file.check_header()
        names = file.first if columns is None else columns
        check_names(names, [], str(path))
        table = [ColumnStats(path, name, file.delimiter or ",", most(len(names))) for name in names]
        unread = {name: kind for name, each in file.types.items() if (kind := unread_type(each))}
        left = {*ignore, *unread}
        counted = [column for column in table if column.name not in left]
        if not counted:
            raise DataError(f"{path}: no column is left to learn from, of {listed(names)}.")
        read = [column.name for column in counted] if file.delimiter is None else names
        rows = 0
        for batch in file.batches(read, columns is None, progress):
            for column in counted:
                column.add(coded(file, column.name, batch.column(column.name), rows))
            rows += batch.num_rows
        return table, unread, file.sha256


@dataclass(frozen=True)
class _People:
    """The group that was specified or found, for the other columns."""

    name: str
    repeated: int
    """How many there are in the table, if in several rows; else 0."""

    @classmethod
    def of(cls, name: str, table: Sequence[ColumnStats]) -> _People:
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


def _group(columns: Sequence[ColumnStats]) -> ColumnStats | None:
    """Return the column that identifies people; if several do, the one with fewest people."""
    certain = [c for c in columns if c.names_people and not c.may_be_a_category_of_people]
    nouns = [column for column in columns if column.names_people]
    records = [column for column in columns if column.names_repeated_records]
    found = certain or nouns or records or [c for c in columns if c.numbers_people]
    return min(found, key=lambda column: len(column.distinct), default=None)


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
    if len(classes) > MOST_CLASSES:
        doubts.append("Are these classes? Terrine predicts one of a few.")
    elif column.gaps:
        doubts.append(_ask_of_gaps(column))
    if len(classes) <= MOST_CATEGORIES:
        doubts.append(_ask_of_spelling(column))
    doubt = _together(*doubts)
    described = Column(name=column.name, role="label", values=tuple(classes))
    return RoleGuess(described, f"to be predicted, as specified: {len(classes):,} classes", doubt)


def _ask_of_gaps(label: ColumnStats) -> str:
    return (
        f"Without a label: {_rows(label.gaps)}. Training refuses such rows: leave them out of the "
        "file."
    )


def _cut(column: ColumnStats, edges: Sequence[float]) -> RoleGuess:
    """Describe the label whose numbers are cut into classes."""
    if column.words or not column.given:
        odd = next((repr(value) for value in column.distinct if column.is_word(value)), "nothing")
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


def _guessed_group(column: ColumnStats) -> RoleGuess:
    name = column.name
    if not column.names_people:
        doubt = (
            f"Does it name people? If not, use --ignore {name}, or --keep {name} to learn from it."
        )
        if column.names_repeated_records:
            return _as_group(column, "an identifier by its name, which repeats", doubt)
        return _as_group(column, EVEN_RUNS, doubt)
    doubt = f"So few people? If not, use --keep {name}."
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
        doubt = _together(doubt, column.ask_of_commas, _ask_of_stand_ins(column))
        return RoleGuess(described, why, doubt)
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


def _guess(column: ColumnStats, people: _People | None) -> RoleGuess:
    """Guess the role of a column for which the owner specified none and that is not the
    group."""
    name, rows, count = column.name, column.rows, len(column.distinct)
    keep = f"If this is wrong, use --keep {name}"
    keep_or_group = f"{keep}, or --group {name} if it identifies people."
    if people is not None:
        keep_or_group = people.suggest(name)
    if not count:
        return _ignore(column, "empty in every row")
    if column.names_people:
        if column.may_be_a_category_of_people:
            return _feature(column, keep_or_group)
        why = "identifies people" if people is None else f"identifies people, as {people.name} does"
        return _ignore(column, why, keep_or_group)
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
        return _guess_number(column, people, keep_or_group)
    if text := column.unread_number:
        doubt = "To learn from it, write plain digits in all files, such as 1234.5."
        return _ignore(column, f"numbers written as {text!r}", doubt)
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
    if people is not None and count == people.repeated:
        return _ignore(column, people.as_many, keep_or_group)
    if count > MOST_CATEGORIES:
        share = _most_common(column)[1]
        if share >= WORTH:
            return _common(column, f"If this is no category, use --ignore {name}.")
        most = f"the {COMMON} most common in {share:.0%} of the rows"
        why = f"{column.different} different values, {most}"
        return _ignore(column, why, keep_or_group)
    doubt = f"Different in every row. If it identifies rows, use --ignore {name}."
    return _feature(column, doubt if column.unique and rows > 4 else None)


def _guess_number(column: ColumnStats, people: _People | None, keep_or_group: str) -> RoleGuess:
    name, count = column.name, len(column.distinct)
    if column.counts_rows and not column.quantity:
        return _ignore(column, "numbers the rows", keep_or_group)
    if column.nameless and column.unique:
        doubt = "If this is wrong, give it a name."
        return _ignore(column, "without a name, and different in every row", doubt)
    if column.names_identifier and count > FEW:
        why = f"an identifier by its name: {column.different} in {_rows(column.rows)}"
        return _ignore(column, why, keep_or_group)
    if column.numbers_records:
        why = f"{column.different} whole numbers in {_rows(column.rows)}, evenly spread"
        return _ignore(column, why, keep_or_group)
    odd = column.whole and count > FEW and not column.quantity
    if odd and people is not None and count == people.repeated:
        return _ignore(column, people.as_many, keep_or_group)
    if column.numbers_people:
        return _ignore(column, EVEN_RUNS, keep_or_group)
    doubt = f"If it is an identifier, use --ignore {name} or --group {name}."
    coded = column.uniform and column.low >= LEAST_CODE
    return _feature(column, doubt if odd and (column.unique or coded) else None)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
