"""Tables on the command line: which schema they are read by, and what one was guessed from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from terrine_server.cli.console import console, fail

if TYPE_CHECKING:
    from terrine_models.data import Dataset
    from terrine_models.features import PublicData
    from terrine_models.roles import Guess, Proposal
    from terrine_models.store import TableSchema


@dataclass(frozen=True)
class Choice:
    """What the owner said about the schema of a private table."""

    public: Path | None
    schema: Path | None
    label: str | None
    group: str | None
    columns: list[str] | None


def load(data: Path, choice: Choice) -> tuple[Dataset, PublicData | None]:
    """The private records of a table, and the public ones where they are named."""
    from terrine_models.csv_files import read_text
    from terrine_models.features import PublicData
    from terrine_models.tables import encode_csv, load_csv

    read_text(data)  # a file that is no text at all is refused before a schema is asked for
    schema = _schema(data, choice)
    private = load_csv(data, schema, note)
    if choice.public is None:
        return private, None
    public = encode_csv(choice.public, schema)
    return private, PublicData.declare(choice.public.name, public)


def show(proposal: Proposal, public: Path, out: Path) -> None:
    """Print what each column was taken for and why, and what the schema gives away."""
    _print(proposal.guesses)
    schema = proposal.schema
    ranges = sum(column.role == "numeric" for column in schema.columns)
    lists = sum(column.role in ("categorical", "label") for column in schema.columns)
    say = [
        f"{out}: {len(schema.columns)} columns. Look through it: all of it is public.",
        f"Read off {public}: the names of its columns, the lowest and highest value of {ranges} of "
        f"them, all values of {lists}, the number of its rows and its SHA-256. If {public.name} is "
        "not public, replace all that by what you know without it, or make the schema from an "
        "invented table.",
    ]
    if not any(column.role == "group" for column in schema.columns):
        say.append(
            "No column tells people apart, so the guarantee will be about a row. If a person can "
            "have several rows, name the column with --group."
        )
    say.append(f"Then: terrine ensemble train PRIVATE.csv --name NAME --teachers N --schema {out}")
    for sentence in say:
        console.print(escape(sentence), soft_wrap=True, highlight=False)


def note(sentence: str) -> None:
    """Print how a file was read."""
    console.print(escape(sentence), soft_wrap=True, highlight=False)


def split(text: str | None) -> list[str] | None:
    """The parts of A,B,…"""
    return None if text is None else [part.strip() for part in text.split(",")]


def _schema(data: Path, choice: Choice) -> TableSchema:
    from terrine_models.roles import propose_schema
    from terrine_models.tables import read_schema

    if choice.schema is not None:
        if choice.label or choice.group or choice.columns:
            fail("--schema already says which columns there are; drop --label, --group, --columns.")
        return read_schema(choice.schema)
    if choice.public is None or choice.label is None:
        fail(
            f"{data} is a table. Its categories and ranges become public, so they cannot be taken "
            "from it: give --schema FILE, or --label COLUMN and --public with a table that is "
            "public. `terrine ensemble schema --help` says how to make a schema."
        )
    proposal = propose_schema(
        choice.public, label=choice.label, group=choice.group, columns=choice.columns, note=note
    )
    surprises = [g for g in proposal.guesses if g.doubt or g.column.role in ("group", "ignored")]
    if surprises:
        note(f"Guessed from {choice.public}; `terrine ensemble schema` makes a file to change it:")
        _print(surprises)
    return proposal.schema


def _print(guesses: Iterable[Guess]) -> None:
    table = Table("column", "role", "why", "check")
    for guess in guesses:
        texts = (guess.column.name, guess.column.role, guess.why, guess.doubt or "")
        table.add_row(*map(escape, texts))
    console.print(table)
