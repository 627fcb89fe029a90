"""Data on the command line: options that say what is in files, and their formats."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
import typer
from numpy.typing import NDArray
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from terrine_models.data.arrays import (
    DIGITS,
    DataError,
    Dataset,
    is_npz,
    load_idx,
    load_inputs,
    load_labelled,
    load_npz,
    remark_on_people,
)
from terrine_models.data.images import (
    class_folders,
    list_images,
    load_image_classes,
    load_images,
    with_bits_of,
)
from terrine_models.tables.loading import (
    check_table,
    is_table,
    load_groups,
    load_table,
    read_schema,
)
from terrine_models.tables.roles import RoleGuess, SchemaProposal, propose_schema
from terrine_protocol.base import first_problem, list_names, normalize, quantity
from terrine_protocol.errors import ClippedError
from terrine_protocol.files import read, write_atomically
from terrine_protocol.names import find_unshown
from terrine_protocol.projects import ImageFormat
from terrine_protocol.schema import Column, DateOrder, Embedding, TableSchema
from terrine_server.cli.console import command_text, console, errors, fail, say, writing
from terrine_server.progress import stages_bar
from terrine_tables.columns import Note, Progress, ignore_progress, parse_number
from terrine_tables.encoders import declare_embedding
from terrine_tables.encoding import encode_table

Inputs: TypeAlias = NDArray[np.generic]
MAX_SHOWN_COLUMNS = 200
"""Of a proposed schema, on a terminal; the file has all."""

AcceptClipped = Annotated[
    bool,
    typer.Option(
        "--accept-clipped",
        help="Go on although more than a tenth of a table's column is outside the range of the "
        "schema, or missing, or all of it is. Labels of such rows are charged as any other.",
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        metavar="N|A,B,…",
        help="Classes of IDX or .npz data: their number or their names. IDX default: 10. Of "
        "pictures, by default the folders of --public, if it has any. Of a table, a schema has "
        """them. A name with a comma stands in quotes: '"yes, mild",no'.""",
    ),
]
Images = Annotated[
    str | None,
    typer.Option(
        metavar="HxW[:grey][:Nbit]",
        help="For folders of PNG and JPEG files: the height and width that each is converted to, "
        "as 28x28 or, in grey, 28x28:grey. Of grey PNGs of 16 bits, N are used: as many as by "
        "those of --public, else 16.",
    ),
]
Schema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Public schema of a table: `terrine ensemble schema`, of a public table or with "
        "--declare. Its column of the role group says whose a row is.",
    ),
]
Embedded = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Of texts: a public encoder, beside their n-grams: a transformer (*.onnx) or a table "
        "of tokens x numbers (*.safetensors), and its tokenizer.json.",
    ),
]
Bins = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Of a table: cut the numbers of the column to predict into classes, at these edges, "
        "all of it public: 100,250 makes three.",
    ),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Of a table: the column that names whose a row is, if several."
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="Names of the columns of CSV files without a header."),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Of a table: a column to leave out. May be repeated."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Of a table: a column to use as a feature. May be repeated."
    ),
]


def note(sentence: str) -> None:
    """Print how a file was read."""
    say(sentence)


def note_aside(sentence: str) -> None:
    """Print how a file was read on stderr, where stdout has the data."""
    say(sentence, to=errors)


@dataclass(frozen=True)
class PublicRecords:
    """Public records as inputs, and with labels if they have any."""

    inputs: Inputs
    labelled: Dataset | None = None
    groups: NDArray[np.int64] | None = None
    """[N], whose each is, where the file says so."""


class Layout(Protocol):
    """What says how records are laid out: a manifest, a project's ensemble, a student's model."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""

    @property
    def encoding(self) -> TableSchema | None:
        """How the rows of a table are encoded."""

    @property
    def image(self) -> ImageFormat | None:
        """How pictures are converted."""


@dataclass(frozen=True)
class DataFormat:
    """A format of files, and how each part of it is read. All raise DataError."""

    check: Callable[[Path], object]
    """Refuses a file that is not there or not of this format, reading little of it."""
    public: Callable[[Path, Dataset, Note], PublicRecords]
    """Reads public records of the same format as private ones."""
    inputs: Callable[[Path, Layout, Note, bool, bool], Inputs]
    """Reads inputs [N, …] without labels; the last say whether rows may be clipped, and columns
    empty."""
    labelled: Callable[[Path, Layout, Note, bool], Dataset]
    """Reads labelled records; the last says whether they are public. Of private ones, which join
    others, a column may be empty."""


def _public_table(path: Path, private: Dataset, note: Note) -> PublicRecords:
    schema = _encoding(path, private)
    with stages_bar(console, f"Reading {path.name}") as (progress,):
        said = list[str]()
        try:
            labelled = load_labelled_rows(path, schema, said.append, progress)
        except ClippedError:
            raise
        except DataError as error:  # of the labels, or of the features, too
            reason = error
        else:
            for sentence in said:
                note(sentence)
            return PublicRecords(labelled.inputs, labelled, load_groups(path, schema))
        inputs = encode_table(path, schema, note, progress, go_on=None)
    groups = load_groups(path, schema)
    note(f"What a student will be cannot be forecast without public labels: {reason}")
    return PublicRecords(inputs, groups=groups)


def _encoding(path: Path, like: Layout) -> TableSchema:
    if like.encoding is None:
        fail(
            f"{path} is a table, and nothing says how its rows are encoded. Give arrays of the "
            "inputs' shape: .npy, or .npz with x."
        )
    return like.encoding


def _public_arrays(path: Path, private: Dataset, note: Note) -> PublicRecords:
    if not path.is_dir():
        return PublicRecords(load_inputs(path))
    labelled = load_idx(path, classes=private.classes)
    return PublicRecords(labelled.inputs, labelled, labelled.groups)


def _public_archive(path: Path, private: Dataset, note: Note) -> PublicRecords:
    inputs = load_inputs(path)
    try:
        labelled = load_labelled(path, private)
    except DataError as error:
        note(f"What a student will be cannot be forecast without public labels: {error}")
        return PublicRecords(inputs)
    return PublicRecords(inputs, labelled, labelled.groups)


def _load_labelled_archive(path: Path, like: Layout, note: Note, public: bool) -> Dataset:
    if public:
        return load_npz(path, classes=like.classes)
    try:
        data = load_npz(path)
    except DataError:  # it does not name its classes
        data = load_npz(path, classes=like.classes)
    _note_people(data, path, note)
    return data


def _public_pictures(path: Path, private: Dataset, note: Note) -> PublicRecords:
    image = _image(path, private)
    if not any(each.is_dir() for each in path.iterdir()):
        return PublicRecords(load_images(path, image))
    labelled = load_image_classes(path, image, classes=private.classes)
    return PublicRecords(labelled.inputs, labelled, labelled.groups)


def _image(path: Path, like: Layout) -> ImageFormat:
    if like.image is None:
        fail(
            f"{path} is a folder, and nothing was learned from folders of pictures. Convert it to "
            "an .npy array of the inputs' shape yourself."
        )
    return like.image


TABLE = DataFormat(
    check=check_table,
    public=_public_table,
    inputs=lambda path, like, note, clipped, empty: encode_table(
        path, _encoding(path, like), note, accept_clipped=clipped, accept_empty=empty
    ),
    labelled=lambda path, like, note, public: load_table(
        path,
        _encoding(path, like),
        note,
        public=public,
        accept_clipped=True,  # the schema is as it was registered, and nothing is charged
        accept_empty=not public,
    ),
)
ARRAYS = DataFormat(
    check=Path.stat,
    public=_public_arrays,
    inputs=lambda path, like, note, clipped, empty: load_inputs(path),
    labelled=lambda path, like, note, public: load_idx(path, classes=like.classes),
)
ARCHIVE = replace(ARRAYS, public=_public_archive, labelled=_load_labelled_archive)
PICTURES = DataFormat(
    check=list_images,
    public=_public_pictures,
    inputs=lambda path, like, note, clipped, empty: load_images(path, _image(path, like)),
    labelled=lambda path, like, note, public: load_image_classes(
        path, _image(path, like), classes=like.classes
    ),
)


def format_of(path: Path, like: Layout | None = None) -> DataFormat:
    """Return the format of a file or folder. A folder has pictures, unless `like` has none."""
    if is_table(path):
        return TABLE
    if path.is_dir() and (like is None or like.image is not None):
        return PICTURES
    return ARCHIVE if is_npz(path) else ARRAYS


def private_schema(
    data: Path, schema: Path | None, classes: str | None, images: str | None
) -> TableSchema | None:
    """Return the schema of private records that are a table; refuse options of other formats."""
    if not is_table(data):
        if schema:
            fail("--schema is for tables only.")
        return None
    if classes or images:
        fail("--classes and --images are for images and arrays; a table has a schema.")
    if schema is not None:
        return read_schema(schema)
    check_table(data)  # before asking for a schema
    fail(
        f"{data} is a private table. Categories and ranges become public, so they cannot be taken "
        "from it: give a --schema. `terrine ensemble schema --help` explains how to make one from "
        "a public table."
    )


def load_private(
    data: Path,
    schema: Path | None = None,
    classes: str | None = None,
    images: str | None = None,
    public: Path | None = None,
    note: Note = note,
) -> Dataset:
    """Return private records. `public`: pictures whose folders may name the classes."""
    known = private_schema(data, schema, classes, images)
    if known is not None:
        with stages_bar(console, f"Reading {data.name}") as (progress,):
            return load_table(data, known, note, progress)
    names, image = parse_classes(classes), parse_images(images)
    if image is not None:
        if not data.is_dir():
            fail("--images is for a folder of pictures, with one folder for each class.")
        if image.bits is None and public is not None and public.is_dir():
            image = with_bits_of(public, image)
        known_classes = names or _class_folders(data, public, note)
        return load_image_classes(data, image, classes=known_classes)
    if not is_npz(data):
        return load_idx(data, classes=names or DIGITS)
    private = load_npz(data, classes=names)
    _note_people(private, data, note)
    return private


def load_public(public: Path, private: Dataset, note: Note = note) -> PublicRecords:
    """Return public records of the same format as private ones."""
    form = TABLE if private.encoding is not None else format_of(public, private)
    return form.public(public, private, note)


def _note_people(data: Dataset, path: Path, note: Note) -> None:
    if data.people and (remark := remark_on_people(data.people, f"{path}: array group")):
        note(remark)


def _class_folders(data: Path, public: Path | None, note: Note) -> list[str]:
    """Return the classes that the folders of public pictures name."""
    if public is not None and public.is_dir() and (names := class_folders(public)):
        if wrong := find_unshown(names):
            fail(f"{public}: {wrong}.")
        note(f"The classes are the folders of {public}: {', '.join(names)}.")
        return names
    return fail(
        "Classes are public, and the folders of private pictures are not: a single person may have "
        f"made one. Declare the classes. {data} has folders for these, and if all of them may be "
        f"known: --classes {shlex.quote(join_names(class_folders(data)))}"
    )


def load_labelled_rows(
    public: Path, schema: TableSchema, note: Note, progress: Progress | None = None
) -> Dataset:
    """Return public rows with their labels. Raises DataError.

    If private rows name their people, and these do not, each is one of a different person.
    """
    found = load_table(public, schema, note, progress or ignore_progress, public=True)
    group = next((column.name for column in schema.columns if column.role == "group"), None)
    if group is None or found.groups is not None:
        return found
    note(f"{public} has no column {group}: each of its rows is taken for a different person's.")
    return replace(found, groups=np.arange(len(found), dtype=np.int64), group_column=group)


def split_names(text: str | None) -> list[str] | None:
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
    if wrong := find_unshown(parts):
        fail(f"Of the names that are listed, {wrong}.")
    return [normalize(part.strip()) for part in parts]


def parse_bins(text: str | None) -> list[float] | None:
    """Parse --bins A,B,…: increasing numbers."""
    if text is None:
        return None
    found = [parse_number(part.strip()) for part in text.split(",")]
    if not all(map(math.isfinite, found)) or any(a >= b for a, b in pairwise(found)):
        fail(
            "--bins takes the edges between classes, different numbers from the least to the "
            f"greatest, such as 100,250; not {text}."
        )
    return found


def join_names(names: Iterable[str]) -> str:
    """Write names as A,B,…, such that `split` reads them."""
    doubled = (name.replace('"', '""') for name in names)
    quoted = (f'"{name}"' if set(name) & set(',"\r\n') else name for name in doubled)
    return ",".join(quoted)


def parse_classes(classes: str | None) -> list[str] | None:
    """Return the classes that --classes names, or numbers."""
    names = split_names(classes)
    if names and len(names) == 1 and names[0].isdecimal():
        return [str(i) for i in range(int(names[0]))]
    return names


def parse_images(text: str | None) -> ImageFormat | None:
    """Return the format that `--images` states, if it is given."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,4})x(\d{1,4})(:grey)?(?::(\d{1,2})bit)?", text)
    if found is not None:
        try:
            return ImageFormat(
                height=int(found[1]),
                width=int(found[2]),
                grey=bool(found[3]),
                bits=None if found[4] is None else int(found[4]),
            )
        except ValidationError:
            pass
    return fail(
        "--images is height x width, from 1x1 to 1024x1024, as in 28x28, 28x28:grey or "
        f"28x28:grey:12bit (8 to 16); not {text}."
    )


def parse_embedding(folder: Path | None) -> Embedding | None:
    """Return the encoder of texts in a folder, which is found there from now on."""
    return None if folder is None else declare_embedding(folder)


def show_schema(
    proposal: SchemaProposal, public: Path, out: Path | str, terminal: Console = console
) -> None:
    """Print each column's role and why, what a schema makes public, and whom it protects.

    `out`: where it was written, or what is said of that.
    """
    _show_guesses(proposal.guesses, terminal)
    columns = proposal.schema.columns
    ranges = sum(column.role in ("numeric", "date") for column in columns)
    lists = sum(
        column.values is not None
        for column in columns
        if column.role != "label" or not proposal.declared
    )
    say(
        f"{out}: {quantity(len(columns), 'column')}. Review it: everything in it will be public.",
        to=terminal,
    )
    say(
        f"Taken from {public}: the column names, the lowest and highest value of "
        f"{quantity(ranges, 'column')}, all values of {quantity(lists, 'column')}, the number of "
        f"rows and the SHA-256. If {public.name} is not public, replace all of this with what you "
        "know without it, or make the schema from an invented table.",
        to=terminal,
    )
    if not any(column.role == "group" for column in columns):
        say(
            "No column identifies people, so the guarantee will protect single rows. If a person "
            "can have several rows, name the column that identifies people with --group.",
            to=terminal,
        )


def _show_guesses(guesses: Sequence[RoleGuess], terminal: Console) -> None:
    """Print a row for each guess, of very many for those with a question first."""
    shown = sorted(guesses, key=lambda guess: guess.doubt is None)[:MAX_SHOWN_COLUMNS]
    table = Table("column", "role", "why", "check")
    for guess in shown if len(guesses) > MAX_SHOWN_COLUMNS else guesses:
        texts = (guess.column.name, guess.column.role, guess.why, guess.doubt or "")
        table.add_row(*map(escape, texts))
    terminal.print(table)
    if more := len(guesses) - len(shown):
        terminal.print(f"… and {more:,} more columns: the schema says the same of each.")


def schema(
    public: Annotated[
        Path | None,
        typer.Argument(metavar="PUBLIC", help="A public table: CSV, Parquet or Arrow."),
    ] = None,
    *,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Column to predict.")] = None,
    declare: Annotated[
        bool,
        typer.Option(
            "--declare",
            help="In place of PUBLIC: ask for each column, what it may hold. No file is read, but "
            "a schema that was begun is gone on with.",
        ),
    ] = False,
    classes: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B,…",
            help="What the column to predict can be, all of it public: PUBLIC need not have that "
            "column then.",
        ),
    ] = None,
    bins: Bins = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Where to write the schema (JSON); - is standard output. What explains it is then "
            "on standard error.",
        ),
    ] = Path("schema.json"),
    group: Group = None,
    ignore: Ignore = None,
    keep: Keep = None,
    embedding: Embedded = None,
    columns: Columns = None,
) -> None:
    """Propose a schema for a public table, explain it, and write it to a file you can edit.

    Students will see every value in the schema. None may come from private rows.

    [bold]Examples[/bold]

      terrine ensemble schema census-sample.csv --label income --out schema.json

      terrine ensemble schema --declare
    """
    if declare:
        if any((public, label, classes, bins, group, ignore, keep, columns)):
            fail("--declare asks for everything: leave the other options but --out away.")
        _declare_schema(out)
        return
    if public is None or label is None:
        fail("Name a public table and its column to predict (--label); or give --declare.")
    printed = str(out) == "-"
    note_on = note_aside if printed else note
    if not printed and out.is_file():
        fail(f"{out} already exists; remove it or choose another file.")
    with stages_bar(errors if printed else console, f"Reading {public.name}") as (progress,):
        proposal = propose_schema(
            public,
            label=label,
            classes=parse_classes(classes),
            bins=parse_bins(bins),
            group=group,
            columns=split_names(columns),
            ignore=ignore or (),
            keep=keep or (),
            embedding=parse_embedding(embedding),
            note=note_on,
            progress=progress,
        )
    if printed:
        with writing(None) as standard_output:
            standard_output.write(proposal.to_json())
        show_schema(proposal, public, "The schema", errors)
        return
    write_atomically(out, proposal.to_json().encode(), public=True)
    show_schema(proposal, public, out)
    note(f"Then: terrine ensemble train PRIVATE.csv --name NAME --teachers N --schema {out}")


T = TypeVar("T")
ROLES = ("number", "category", "ordered", "yes-no", "date", "label", "person", "ignored")
"""What a column may be declared as."""
DATE_ORDERS = get_args(DateOrder)


def _declare_schema(out: Path) -> None:
    """Ask column by column what a table may hold, and write it to `out` after each.

    Nothing is looked up in any table: a schema becomes public, and private rows must not be in it.
    """
    if str(out) == "-" or not sys.stdin.isatty():
        fail("--declare asks questions at a terminal, and writes a file: --out FILE.")
    columns = _load_begun_columns(out)
    if columns:
        say(f"{out} has {list_names([each.name for each in columns])} so far; more follow.")
    say(
        "Everything that you say becomes public. Take it from the forms and codebooks by which the "
        "data were collected, never from the records."
    )
    while name := typer.prompt(
        "Name of the next column, as in the header (Enter: that was all)", "", show_default=False
    ).strip():
        if wrong := find_unshown([name]):
            say(f"{wrong}.")
            continue
        if normalize(name) in {each.name for each in columns}:
            say(f"{name} is there already.")
            continue
        columns.append(_declare_column(name))
        saved = {"columns": [each.model_dump(mode="json", exclude_none=True) for each in columns]}
        write_atomically(out, json.dumps(saved, indent=2).encode() + b"\n", public=True)
    try:
        found = TableSchema(columns=tuple(columns))
    except ValidationError as error:
        fail(
            f"{out} is not a complete schema yet: {first_problem(error)}. Go on with the same "
            "command."
        )
    features = quantity(len(found.features), "column")
    say(f"{out}: {features} to learn from. Then, without any public data:")
    say(f"  {command_text('quickstart', 'PRIVATE.csv', '--schema', out)}")


def _load_begun_columns(out: Path) -> list[Column]:
    """Return the columns of a schema that was begun; none if there is no such file."""
    if not out.exists():
        return []
    try:
        given = json.loads(read(out))["columns"]
        return [Column.model_validate(each) for each in given]
    except (ValueError, KeyError, TypeError):
        fail(f"{out} is not a schema. Remove it, or choose another file: --out.")


def _declare_column(name: str) -> Column:
    """Ask what a column may hold until that makes sense."""
    while True:
        role = _choose("What is it?", ROLES)
        try:
            return Column.model_validate({"name": name, **_declare_values(role)})
        except ValidationError as error:
            say(f"  That does not go together: {first_problem(error)}. Once more.")
        except ValueError as error:
            say(f"  {error} Once more.")


def _declare_values(role: str) -> dict[str, object]:
    """Ask for the range or the values of a column. Raises ValueError for what cannot be."""
    match role:
        case "number":
            low, high = _declare_ends("value", float)
            if not low < high:
                raise ValueError("The least value must be below the largest.")
            found = {"role": "numeric", "low": low, "high": high}
            if typer.confirm("  Is it missing in some rows?"):
                found["missing"] = (low + high) / 2
            return found
        case "category":
            values = _declare_list("Its values; others count as other")
            return {"role": "categorical", "values": values}
        case "ordered":
            return {"role": "ordinal", "values": _declare_list("Its values, from least to most")}
        case "yes-no":
            return {"role": "boolean"}
        case "date":
            order = _choose("How is it written?", DATE_ORDERS)
            first, last = _declare_ends("day, as 2020-12-31", date.fromisoformat)
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
            return {"role": "label", "values": _declare_list("Its classes")}
        case "person":
            return {"role": "group"}
        case _:
            return {"role": "ignored"}


def _choose(question: str, options: Sequence[str]) -> str:
    """Ask until the answer is one of the options; the first is the default."""
    while True:
        found: str = typer.prompt(f"  {question} ({', '.join(options)})", options[0]).strip()
        if found in options:
            return found
        say(f"  {found} is not one of these.")


def _ask(question: str) -> str:
    """Ask until there is an answer."""
    while not (answer := str(typer.prompt(question, "", show_default=False)).strip()):
        say("  Nothing was given: this question needs an answer.")
    return answer


def _declare_ends(what: str, read_end: Callable[[str], T]) -> tuple[T, T]:
    return (
        read_end(_ask(f"  Least {what}")),
        read_end(_ask(f"  Largest {what}")),
    )


def _declare_list(what: str) -> list[str]:
    found = split_names(_ask(f"  {what} (A,B,…)")) or []
    if len(found) < 2:
        raise ValueError("At least two are needed, with a comma between them.")
    return found
