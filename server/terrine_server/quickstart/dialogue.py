"""What the owner is asked: of a schema that is proposed by public rows, or declared without any.

A front end answers by an `Owner`. Nothing here is taken from private records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from pydantic import ValidationError
from rich.console import Console

from terrine_models.formats import number_classes
from terrine_models.tables.loading import read_schema
from terrine_models.tables.proposal import SchemaProposal, propose_schema
from terrine_protocol.base import first_problem, list_names, normalize
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import read, write_atomically
from terrine_protocol.names import find_unshown
from terrine_protocol.projects import ImageFormat
from terrine_protocol.schema import Column, DateOrder, TableSchema
from terrine_server.progress import stages_bar
from terrine_tables.columns import Note, ignore_note
from terrine_tables.files import has_column
from terrine_tables.formats import explain_unread, is_table

T = TypeVar("T")


class QuickstartError(TerrineError):
    """Nothing further is done; the message says why."""


@dataclass(frozen=True)
class Question:
    """What the owner is asked."""

    text: str
    options: tuple[str, ...] = ()
    """What can be answered, the first by default; none: anything."""
    optional: bool = False
    """Whether a text may be empty."""


class Owner(Protocol):
    """Who is asked and told: somebody at a terminal, or what another front end has instead."""

    @property
    def console(self) -> Console:
        """Where progress is shown."""

    def agrees(self, question: Question) -> bool | None:
        """Return yes or no; None where nobody is there to answer."""

    def answer(self, question: Question) -> str | None:
        """Return a text; None where nobody is there to answer."""

    def list_names(self, question: Question) -> Sequence[str] | None:
        """Return several names, in Unicode NFC; None where nobody is there to answer."""

    def say(self, sentence: str) -> None:
        """Tell it at once."""

    def note(self, sentence: str) -> None:
        """Tell it with the forecast."""

    def read_proposal(self, proposal: SchemaProposal, public: Path, out: Path) -> None:
        """Show a schema that was proposed by public rows, and is in `out` now."""


@dataclass(frozen=True)
class SchemaAlone:
    """A public schema, of which the rows are designed that students ask about."""

    schema: Path


@dataclass(frozen=True)
class Stated:
    """Public rows, and the schema of their table."""

    schema: Path
    public: Path


@dataclass(frozen=True)
class Described:
    """Public rows, and what is said of them where no schema is stated."""

    public: Path
    label: str | None = None
    """Of a table: the column to predict."""
    group: str | None = None
    columns: Sequence[str] | None = None
    """Of a CSV file without a header."""
    classes: Sequence[str] | None = None
    image: ImageFormat | None = None
    bins: Sequence[float] | None = None
    ignore: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    @property
    def is_of_table(self) -> bool:
        """Whether anything is said that is said of tables alone."""
        said = self.label, self.group, self.columns, self.bins, self.ignore, self.keep
        return any(said)

    @property
    def is_unlabelled(self) -> bool:
        """Whether the public table lacks the column to predict."""
        return self.label is not None and not has_column(self.public, self.label, self.columns)

    def propose_schema(self, owner: Owner, note: Note) -> SchemaProposal:
        """Propose a schema for a table."""
        if self.image:
            raise QuickstartError("--images is for folders of pictures; a table has a schema.")
        if self.label is None:
            raise QuickstartError("Which column is to be predicted? Name it with --label.")
        with stages_bar(owner.console, f"Reading {self.public.name}") as (progress,):
            return propose_schema(
                self.public,
                label=self.label,
                classes=self.classes,
                bins=self.bins,
                group=self.group,
                columns=self.columns,
                ignore=self.ignore,
                keep=self.keep,
                note=note,
                progress=progress,
            )


# What is said of the data.
Given: TypeAlias = SchemaAlone | Stated | Described


def find_schema(data: Path, given: Given, out: Path, owner: Owner) -> tuple[Path | None, Given]:
    """Return the schema of a table, which is proposed, and written to `out`, if there is none yet.

    And what is said of the data, with what was answered. None for what is no table.
    """
    if not isinstance(given, Described):
        return given.schema, given
    if not is_table(data):
        if given.is_of_table:
            raise QuickstartError(
                "--label, --bins, --group, --columns, --ignore and --keep are for tables. "
                f"{explain_unread(data)}"
            )
        return None, given
    if out.exists():
        owner.note(f"The schema is {out}. To have another proposed, remove it.")
        return out, _check_against_schema(given, out)
    given = _with_classes(given, owner)
    if data != given.public:
        _check_group(data, given)
    proposal, given = _propose(given, owner)
    write_atomically(out, proposal.to_json().encode(), public=True)
    for guess in proposal.guesses:
        if guess.doubt is not None:
            owner.note(f"Column {guess.column.name} is {guess.column.role}: {guess.doubt}")
    owner.read_proposal(proposal, given.public, out)
    return out, given


def _propose(given: Described, owner: Owner) -> tuple[SchemaProposal, Described]:
    """Propose a schema; and what is said, with the answer on a column that may name people.

    Whom the project protects is not guessed: without an answer, it is a row.
    """
    proposal = given.propose_schema(owner, owner.note)
    while (name := proposal.doubtful_group) is not None:
        why = next(each.why for each in proposal.guesses if each.column.name == name)
        agreed = owner.agrees(
            Question(
                f"Does the column {name} name the person whom a row is about? ({why}.) If so, each "
                "person is protected with all rows; if not, each row alone, and nothing is learned "
                "from it."
            )
        )
        if agreed is None:
            owner.note(f"Column {name} may name people ({why}). Nobody was asked: it is left out.")
        if agreed:
            given = replace(given, group=name)
        else:
            given = replace(given, ignore=(*given.ignore, name))
        proposal = given.propose_schema(owner, ignore_note)  # it was said
    return proposal, given


def _check_group(data: Path, given: Described) -> None:
    """Refuse a --group that neither table has, before there is a schema with it."""
    if given.group is not None and not any(
        has_column(path, given.group, given.columns) for path in (given.public, data)
    ):
        raise QuickstartError(
            f"Neither {data} nor {given.public} has a column {given.group}: see --group."
        )


def _check_against_schema(given: Described, path: Path) -> Described:
    """Return what is said with the classes of a schema, if nothing else tells them.

    What it says of columns must be in the schema.
    """
    schema = read_schema(path)
    ignored = {column.name for column in schema.columns if column.role == "ignored"}
    if not ignored.issuperset(given.ignore) or not ignored.isdisjoint(given.keep):
        raise QuickstartError(
            f"{path} says otherwise than --ignore or --keep. Change or remove the schema."
        )
    by_role = {str(column.role): column.name for column in schema.columns}
    for option, role, told in (
        ("--label", "label", given.label),
        ("--group", "group", given.group),
    ):
        if told is not None and normalize(told) != by_role.get(role):
            raise QuickstartError(
                f"{path} does not agree with {option} {told}: its {role} is "
                f"{by_role.get(role, 'no column')}. Change or remove the schema."
            )
    label = next(column for column in schema.columns if column.role == "label")
    values = label.values or ()
    if given.classes is not None and sorted(given.classes) != sorted(values):
        raise QuickstartError(
            f"{path} has other classes than --classes: {', '.join(values)}. Leave --classes out, "
            "or change or remove the schema."
        )
    if given.bins is not None and tuple(given.bins) != label.edges:
        raise QuickstartError(
            f"{path} says otherwise than --bins {join_numbers(given.bins)}. Change or remove the "
            "schema."
        )
    if given.classes is None and given.bins is None and given.is_unlabelled:
        if label.edges is not None:
            return replace(given, bins=label.edges)
        return replace(given, classes=values)
    return given


def _with_classes(given: Described, owner: Owner) -> Described:
    """Return what is said with the classes of public rows without labels, asking for them."""
    if given.classes or given.bins or not given.is_unlabelled:
        return given
    names = owner.list_names(
        Question(
            f"{given.public} has no column {given.label}. Which classes can it have? They become "
            "public, and are never taken from private records"
        )
    )
    return given if names is None else replace(given, classes=number_classes(names))


def join_numbers(edges: Sequence[float]) -> str:
    """Write the edges between classes as --bins takes them."""
    return ",".join(np.format_float_positional(edge, trim="-") for edge in edges)


# What a column may be declared as.
ROLES = ("number", "category", "ordered", "yes-no", "date", "label", "person", "ignored")
DATE_ORDERS: tuple[str, ...] = get_args(DateOrder)


def declare_schema(out: Path, owner: Owner) -> TableSchema:
    """Ask column by column what a table may hold, and write it to `out` after each.

    Nothing is looked up in any table: a schema becomes public, and private rows must not be in it.
    Raises QuickstartError until the columns are a schema; what was begun is gone on with.
    """
    columns = _load_begun_columns(out)
    if columns:
        owner.say(f"{out} has {list_names([each.name for each in columns])} so far; more follow.")
    owner.say(
        "Everything that you say becomes public. Take it from the forms and codebooks by which the "
        "data were collected, never from the records."
    )
    next_name = Question(
        "Name of the next column, as in the header (Enter: that was all)", optional=True
    )
    while name := owner.answer(next_name):
        if wrong := find_unshown([name]):
            owner.say(f"{wrong}.")
            continue
        if normalize(name) in {each.name for each in columns}:
            owner.say(f"{name} is there already.")
            continue
        columns.append(_declare_column(name, owner))
        saved = {"columns": [each.model_dump(mode="json", exclude_none=True) for each in columns]}
        write_atomically(out, json.dumps(saved, indent=2).encode() + b"\n", public=True)
    try:
        return TableSchema(columns=tuple(columns))
    except ValidationError as error:
        raise QuickstartError(
            f"{out} is not a complete schema yet: {first_problem(error)}. Go on with the same "
            "command."
        ) from None


def _load_begun_columns(out: Path) -> list[Column]:
    """Return the columns of a schema that was begun; none if there is no such file."""
    if not out.exists():
        return []
    try:
        given = json.loads(read(out))["columns"]
        return [Column.model_validate(each) for each in given]
    except (ValueError, KeyError, TypeError):
        raise QuickstartError(
            f"{out} is not a schema. Remove it, or choose another file: --out."
        ) from None


def _declare_column(name: str, owner: Owner) -> Column:
    """Ask what a column may hold until that makes sense."""
    while True:
        role = owner.answer(Question("  What is it?", ROLES))
        try:
            return Column.model_validate({"name": name, **_declare_values(role, owner)})
        except ValidationError as error:
            owner.say(f"  That does not go together: {first_problem(error)}. Once more.")
        except ValueError as error:
            owner.say(f"  {error} Once more.")


def _declare_values(role: str | None, owner: Owner) -> dict[str, object]:
    """Ask for the range or the values of a column. Raises ValueError for what cannot be."""
    match role:
        case "number":
            low, high = _declare_ends("value", float, owner)
            if not low < high:
                raise ValueError("The least value must be below the largest.")
            found = {"role": "numeric", "low": low, "high": high}
            if owner.agrees(Question("  Is it missing in some rows?")):
                found["missing"] = (low + high) / 2
            return found
        case "category":
            values = _declare_list("Its values; others count as other", owner)
            return {"role": "categorical", "values": values}
        case "ordered":
            values = _declare_list("Its values, from least to most", owner)
            return {"role": "ordinal", "values": values}
        case "yes-no":
            return {"role": "boolean"}
        case "date":
            order = owner.answer(Question("  How is it written?", DATE_ORDERS))
            first, last = _declare_ends("day, as 2020-12-31", date.fromisoformat, owner)
            if not first < last:
                raise ValueError("The first day must be before the last.")
            return {
                "role": "date",
                "order": order,
                "since": first,
                "low": 0,
                "high": (last - first).days,
                "parts": ("days", "month", "weekday"),
            }
        case "label":
            return {"role": "label", "values": _declare_list("Its classes", owner)}
        case "person":
            return {"role": "group"}
        case _:
            return {"role": "ignored"}


def _declare_ends(what: str, read_end: Callable[[str], T], owner: Owner) -> tuple[T, T]:
    low, high = (
        read_end(owner.answer(Question(f"  {end} {what}")) or "") for end in ("Least", "Largest")
    )
    return low, high


def _declare_list(what: str, owner: Owner) -> Sequence[str]:
    found = owner.list_names(Question(f"  {what}")) or ()
    if len(found) < 2:
        raise ValueError("At least two are needed, with a comma between them.")
    return found
