"""Propose a schema for a public table: a role for each column, and why.

Its values are counted (`statistics`), roles are guessed from them and from names (`roles`), and
what whoever asks says of columns overrules the guesses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from terrine_models.tables.loading import warn
from terrine_models.tables.names import names_person, names_record
from terrine_models.tables.roles import (
    People,
    RoleGuess,
    cut_label,
    describe_feature,
    describe_group,
    find_group,
    guess_group,
    guess_label,
    guess_role,
    is_certain_group,
    leave_out,
)
from terrine_models.tables.statistics import ColumnStats, max_counted_values
from terrine_protocol.base import fold, list_names, normalize
from terrine_protocol.errors import DataError
from terrine_protocol.names import find_unshown
from terrine_protocol.schema import FEATURE_ROLES, Column, PublicSource, TableSchema
from terrine_tables.columns import Note, Progress, check_names, ignore_progress
from terrine_tables.files import open_table


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
        document = self.schema.model_dump(mode="json", exclude_none=True)
        for column, guess in zip(document["columns"], self.guesses, strict=True):
            column["why"] = guess.why
            if guess.doubt is not None:
                column["check"] = guess.doubt
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class _Wishes:
    """What whoever asks for a schema says of the columns."""

    path: Path
    label: str
    classes: Sequence[str] | None
    bins: Sequence[float] | None
    group: str | None
    ignore: Sequence[str]
    keep: Sequence[str]

    def check(self, table: _CountedTable, *, headless: bool) -> set[str]:
        """Return the columns that the table need not have, and lacks: label, group.

        Raises DataError for wishes that contradict one another or the table.
        """
        path, label, group, names = self.path, self.label, self.group, table.names
        if self.classes is not None and self.bins is not None:
            raise DataError("Classes are declared either by --classes or by --bins.")
        if label not in names and self.classes is None and self.bins is None:
            raise DataError(
                f"{path} has no column {label}; it has {', '.join(names)}. If its rows have no "
                "labels, declare the classes, which become public: --classes A,B,…, or of numbers "
                "--bins."
            )
        if not table.rows:
            raise DataError(f"{path} has no rows below its header.")
        absent = {label} - set(names)
        if group is not None and not headless and fold(group) not in map(fold, names):
            absent.add(group)
        wanted = [label, *self.ignore, *self.keep, *([group] if group else [])]
        check_names(names, [name for name in wanted if name not in absent], str(path))
        for name in (label, *self.keep, group):
            if name in table.unread:
                raise DataError(
                    f"{path}: column {name} holds {table.unread[name]}; expected numbers, text or "
                    "dates."
                )
        if twice := [name for name in wanted if wanted.count(name) > 1]:
            raise DataError(f"Column {twice[0]} is named twice; it can have only one role.")
        return absent

    def decided(self, unread: dict[str, str]) -> dict[str, Callable[[ColumnStats], RoleGuess]]:
        """How the columns are described whose roles need no guess."""
        as_specified = partial(leave_out, why="as specified")
        label = partial(guess_label, declared=self.classes)
        found: dict[str, Callable[[ColumnStats], RoleGuess]] = {
            self.label: label if self.bins is None else partial(cut_label, edges=self.bins),
            **{
                name: partial(leave_out, why=f"holds {kind}, which is not read")
                for name, kind in unread.items()
            },
            **dict.fromkeys(self.ignore, as_specified),
            **dict.fromkeys(self.keep, describe_feature),
        }
        if self.group is not None:
            found[self.group] = partial(describe_group, why="as specified")
        return found

    def of_absent(self, absent: set[str]) -> list[RoleGuess]:
        """The roles of columns that the table lacks."""
        found = list[RoleGuess]()
        if self.label in absent:
            values = tuple(self.classes or ()) if self.bins is None else None
            edges = None if self.bins is None else tuple(self.bins)
            described = Column(name=self.label, role="label", values=values, edges=edges)
            found.append(RoleGuess(described, "to be predicted; its classes were declared"))
        if self.group is not None and self.group in absent:
            why = f"as specified; {self.path.name} does not have it, so the private table must"
            found.append(RoleGuess(Column(name=self.group, role="group"), why))
        return found


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
    progress: Progress = ignore_progress,
) -> SchemaProposal:
    """Propose a schema with the categories, classes and ranges of a public table.

    Its values are counted in one pass and in bounded memory (`ColumnStats`). Every distinct
    value of a categorical column becomes public. `columns` names the columns of a file without a
    header. `classes` declares what the label can be, or `bins` the edges that cut its numbers into
    classes: the table need not have that column then. `group`, `ignore` and `keep` (as a feature)
    overrule the guesses; a `group` may be in the private table alone, unless it is spelled nearly
    as a column of this one. Raises DataError.
    """
    wishes = _Wishes(
        path=Path(path),
        label=normalize(label),
        classes=classes,
        bins=bins,
        group=None if group is None else normalize(group),
        ignore=list(map(normalize, ignore)),
        keep=list(map(normalize, keep)),
    )
    columns = None if columns is None else list(map(normalize, columns))
    table = _count_values(wishes, columns, note, progress)
    absent = wishes.check(table, headless=columns is not None)
    decided = wishes.decided(table.unread)
    found = None
    if wishes.group is None:
        found = find_group([each for each in table.columns if each.name not in decided])
    if found is not None:
        decided[found.name] = guess_group
    group = wishes.group if found is None else found.name
    doubtful = found is not None and not is_certain_group(found)
    people = None if group is None else People.of(group, table.columns)
    guesses = list[RoleGuess]()
    while table.columns:  # what was counted of a column is not kept once its role is known
        column = table.columns.pop(0)
        describe = decided.get(column.name) or partial(guess_role, people=people)
        guesses.append(describe(column))
    guesses += wishes.of_absent(absent)
    source = PublicSource(name=wishes.path.name, sha256=table.sha256, records=table.rows)
    return SchemaProposal(
        _assemble(wishes.path, guesses, source),
        tuple(guesses),
        declared=classes is not None or bins is not None,
        doubtful_group=group if doubtful else None,
    )


def _assemble(path: Path, guesses: Sequence[RoleGuess], source: PublicSource) -> TableSchema:
    """The schema of these columns. Raises DataError if it is none to learn from."""
    if not any(guess.column.role in FEATURE_ROLES for guess in guesses):
        left = [f"{g.column.name} ({g.why})" for g in guesses if g.column.role == "ignored"]
        raise DataError(
            f"{path}: no column is left to learn from. Left out: {list_names(left) or 'none'}. "
            "Use --keep COLUMN for one that counts, or write it otherwise in all files."
        )
    try:
        schema = TableSchema(columns=tuple(guess.column for guess in guesses), fitted_on=source)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise DataError(f"{path}: {reason}.") from None
    if wrong := find_unshown(schema.names):
        raise DataError(f"{path}: {wrong}.")
    return schema


def find_repeated_people(path: Path, schema: TableSchema) -> tuple[str, float] | None:
    """Find the column by which people have several rows, though the schema has no group.

    Of a private table: so what is returned, its name and the mean number of rows of one person, is
    for the owner alone, and is stored nowhere. None if there is no such column. Raises DataError.
    """
    features, columns = set(schema.features), [column.name for column in schema.columns]
    unused = {column.name for column in schema.columns if column.role == "ignored"}

    def may_name_people(name: str) -> bool:
        if name in features:
            return names_person(name) or names_record(name)
        return name in unused or name not in columns

    def fits(first: Sequence[str]) -> bool:
        return features <= set(first) or len(first) == len(columns)

    with open_table(path, fits=fits, digest=False) as file:
        header = file.has_header(schema)
        names = file.first if header else columns
        named = list(filter(may_name_people, names))
        if not named or len(names) != len(file.first):
            return None
        delimiter = file.delimiter or ","
        found = [
            ColumnStats(path, name, delimiter, max_counted_values(len(named))) for name in named
        ]
        rows = 0
        for batch in file.batches(names if file.delimiter else named, header):
            for column in list(found):
                try:
                    column.add(file.coded(column.name, batch.column(column.name), rows))
                except DataError:  # it is not a column of the schema, and need not be readable
                    found.remove(column)
            rows += batch.num_rows
    people = find_group([column for column in found if column.rows_per_value > 1])
    return None if people is None else (people.name, people.rows_per_value)


@dataclass(frozen=True)
class _CountedTable:
    """What was counted of a table, and what was not."""

    columns: list[ColumnStats]
    names: list[str]
    rows: int
    unread: dict[str, str]
    """What columns hold whose types cannot be read."""
    sha256: str


def _count_values(
    wishes: _Wishes, columns: Sequence[str] | None, note: Note, progress: Progress
) -> _CountedTable:
    """Count the values of all columns but those to ignore.

    columns: of a file without a header.
    """
    path = wishes.path

    def fits(first: Sequence[str]) -> bool:
        return wishes.label in first if columns is None else len(first) == len(columns)

    with open_table(path, fits=fits, note=note) as file:
        from terrine_tables.arrow_columns import unread_type

        if file.delimiter is None and columns is not None:
            raise DataError(f"{path} names its columns itself: leave out --columns.")
        if not file.first:
            raise DataError(f"{path} is empty.")
        if columns is None:
            file.check_header()
        names = list(file.first if columns is None else columns)
        check_names(names, names, str(path))
        table = [
            ColumnStats(path, name, file.delimiter or ",", max_counted_values(len(names)))
            for name in names
        ]
        unread = {name: kind for name, each in file.types.items() if (kind := unread_type(each))}
        left = {*wishes.ignore, *unread}
        counted = [column for column in table if column.name not in left]
        if not counted:
            raise DataError(f"{path}: no column is left to learn from, of {list_names(names)}.")
        read = [column.name for column in counted] if file.delimiter is None else names
        rows = 0
        for batch in file.batches(read, columns is None, progress):
            for column in counted:
                column.add(file.coded(column.name, batch.column(column.name), rows))
            rows += batch.num_rows
        return _CountedTable(table, names, rows, unread, file.sha256)
