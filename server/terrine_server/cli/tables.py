"""Tables on the command line: choosing a schema, and showing how it was guessed."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from terrine_protocol.names import normalize
from terrine_server.cli.console import console, errors, fail
from terrine_server.progress import stages_bar

if TYPE_CHECKING:
    from rich.console import Console

    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.tables.roles import RoleGuess, SchemaProposal
    from terrine_protocol.tables import TableSchema
    from terrine_protocol.tables.columns import Note
    from terrine_protocol.tables.reading import Progress


MOST_SHOWN = 200
"""Columns of a proposed schema that are printed; the file has all."""
AcceptClipped = Annotated[
    bool,
    typer.Option(
        "--accept-clipped",
        help="Go on although more than a tenth of a table's column is outside the range of the "
        "schema, or missing. Labels of such rows are charged as any other.",
    ),
]


def note(sentence: str) -> None:
    """Print how a file was read."""
    console.print(escape(sentence), soft_wrap=True, highlight=False)


def load(
    data: Path,
    schema_file: Path | None,
    public: Path | None,
    note: Callable[[str], None] = note,
) -> tuple[Dataset, PublicData | None, Dataset | None]:
    """Return the private records of a table, and if --public is given the public ones.

    The latter twice: as inputs, and with their labels if every row has one. `note` is called with
    how the files were read.
    """
    from terrine_models.data.arrays import DataError
    from terrine_models.features.maps import PublicData
    from terrine_models.tables.loading import load_groups, load_table
    from terrine_protocol.tables.encoding import encode_table

    schema = required_schema(data, schema_file)
    with stages_bar(console, f"Reading {data.name}") as (progress,):
        private = load_table(data, schema, note, progress)
    if public is None:
        return private, None, None
    with stages_bar(console, f"Reading {public.name}") as (progress,):
        said = list[str]()
        try:
            labelled = labelled_rows(public, schema, said.append, progress)
        except DataError as error:  # of the labels, or of the features, too
            reason = error
        else:
            for sentence in said:
                note(sentence)
            groups = load_groups(public, schema)
            return private, PublicData.declare(public.name, labelled.inputs, groups), labelled
        inputs = encode_table(public, schema, note, progress, accept_clipped=True)
    groups = load_groups(public, schema)
    note(f"How far teachers will agree is not estimated, without public labels: {reason}")
    return private, PublicData.declare(public.name, inputs, groups), None


def labelled_rows(
    public: Path, schema: TableSchema, note: Note, progress: Progress | None = None
) -> Dataset:
    """Return public rows with their labels. Raises DataError.

    If private rows name their people, and these do not, each is one of a different person.
    """
    import numpy as np

    from terrine_models.tables.loading import load_table
    from terrine_protocol.tables.reading import unseen

    found = load_table(public, schema, note, progress or unseen, public=True)
    group = next((column.name for column in schema.columns if column.role == "group"), None)
    if group is None or found.groups is not None:
        return found
    note(f"{public} has no column {group}: each of its rows is taken for a different person's.")
    return replace(found, groups=np.arange(len(found), dtype=np.int64), group_column=group)


def show(
    proposal: SchemaProposal, public: Path, out: Path | str, terminal: Console = console
) -> None:
    """Print each column's role and why, and what the schema makes public.

    `out`: where it was written, or what is said of that.
    """
    _print(proposal.guesses, terminal)
    for sentence in summary(proposal, public, out):
        terminal.print(escape(sentence), soft_wrap=True, highlight=False)


def summary(proposal: SchemaProposal, public: Path, out: Path | str) -> list[str]:
    """Say what a proposed schema makes public, and whom it protects."""
    schema = proposal.schema
    ranges = sum(column.role in ("numeric", "date") for column in schema.columns)
    lists = sum(
        column.values is not None
        for column in schema.columns
        if column.role != "label" or not proposal.declared
    )
    sentences = [
        f"{out}: {len(schema.columns)} columns. Review it: everything in it will be public.",
        f"Taken from {public}: the column names, the lowest and highest value of {ranges} columns, "
        f"all values of {lists} columns, the number of rows and the SHA-256. If {public.name} is "
        "not public, replace all of this with what you know without it, or make the schema from "
        "an invented table.",
    ]
    if not any(column.role == "group" for column in schema.columns):
        sentences.append(
            "No column identifies people, so the guarantee will protect single rows. If a person "
            "can have several rows, name the column that identifies people with --group."
        )
    return sentences


def note_aside(sentence: str) -> None:
    """Print it on stderr, as stdout is for JSON."""
    errors.print(escape(sentence), soft_wrap=True)


def split(text: str | None) -> list[str] | None:
    """Split A,B,… into its parts, in Unicode NFC. As in CSV, quotes surround one with a comma."""
    if text is None:
        return None
    try:
        (parts,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):
        parts = []
    if not parts:
        fail(
            f"{text!r} is not a list of names: a name with a comma stands in double quotes, as in "
            """--classes '"yes, mild",no', and a double quote inside it is written twice."""
        )
    return [normalize(part.strip()) for part in parts]


def edges(text: str | None) -> list[float] | None:
    """Parse --bins A,B,…: increasing numbers."""
    from terrine_protocol.tables.columns import number

    if text is None:
        return None
    found = [number(part.strip()) for part in text.split(",")]
    if not all(map(math.isfinite, found)) or any(a >= b for a, b in pairwise(found)):
        fail(
            "--bins takes the edges between classes, different numbers from the least to the "
            f"greatest, such as 100,250; not {text}."
        )
    return found


def join(names: Iterable[str]) -> str:
    """Write names as A,B,…, such that `split` reads them."""
    doubled = (name.replace('"', '""') for name in names)
    quoted = (f'"{name}"' if set(name) & set(',"\r\n') else name for name in doubled)
    return ",".join(quoted)


def required_schema(data: Path, schema: Path | None) -> TableSchema:
    """Return the schema of a private table; without one, say how to make it."""
    from terrine_models.tables.loading import check_table, read_schema

    if schema is not None:
        return read_schema(schema)
    check_table(data)  # before asking for a schema
    fail(
        f"{data} is a private table. Categories and ranges become public, so they cannot be taken "
        "from it: give a --schema. `terrine ensemble schema --help` explains how to make one from "
        "a public table."
    )


def _print(guesses: Sequence[RoleGuess], terminal: Console) -> None:
    """Print a row for each guess, of very many for those with a question first."""
    shown = sorted(guesses, key=lambda guess: guess.doubt is None)[:MOST_SHOWN]
    table = Table("column", "role", "why", "check")
    for guess in shown if len(guesses) > MOST_SHOWN else guesses:
        texts = (guess.column.name, guess.column.role, guess.why, guess.doubt or "")
        table.add_row(*map(escape, texts))
    terminal.print(table)
    if more := len(guesses) - len(shown):
        terminal.print(f"… and {more:,} more columns: the schema says the same of each.")
