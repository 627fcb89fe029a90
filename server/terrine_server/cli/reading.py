"""Arrays and folders of pictures on the command line: what `terrine ensemble train` reads."""

from __future__ import annotations

import csv
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from terrine_protocol.base import normalize
from terrine_server.cli.console import console, errors, fail, writing
from terrine_server.progress import stages_bar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.console import Console

    from terrine_client import Client, Labels
    from terrine_client.distill import Examples
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.maps import PublicData
    from terrine_models.students.settings import Training
    from terrine_models.tables.roles import RoleGuess, SchemaProposal
    from terrine_models.teachers.manifests import Manifest
    from terrine_protocol.projects import ImageFormat
    from terrine_protocol.tables import TableSchema
    from terrine_protocol.tables.columns import Note, Progress
    from terrine_server.ledger import EnsembleRecord, Ledger
    from terrine_server.owner.editions import EditionChange
    from terrine_server.settings import Settings


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


def load_table_data(
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
    note(f"What a student will be cannot be forecast without public labels: {reason}")
    return private, PublicData.declare(public.name, inputs, groups), None


def labelled_rows(
    public: Path, schema: TableSchema, note: Note, progress: Progress | None = None
) -> Dataset:
    """Return public rows with their labels. Raises DataError.

    If private rows name their people, and these do not, each is one of a different person.
    """
    import numpy as np

    from terrine_models.tables.loading import load_table
    from terrine_protocol.tables.columns import ignore_progress

    found = load_table(public, schema, note, progress or ignore_progress, public=True)
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
    from terrine_protocol.tables.columns import parse_number

    if text is None:
        return None
    found = [parse_number(part.strip()) for part in text.split(",")]
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


Bins = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Of a table: cut the numbers of the column to predict into classes, at these edges, "
        "all of it public: 100,250 makes three.",
    ),
]


@dataclass(frozen=True)
class Arrays:
    """The options that say how arrays and pictures are read."""

    public: Path | None
    classes: str | None
    images: str | None


def class_names(classes: str | None) -> list[str] | None:
    """Return the classes that --classes names, or numbers."""
    names = split(classes)
    if names and len(names) == 1 and names[0].isdecimal():
        return [str(i) for i in range(int(names[0]))]
    return names


def load_array_data(
    data: Path, options: Arrays
) -> tuple[Dataset, PublicData | None, Dataset | None]:
    """Return the private records, and if --public is given the public ones.

    The latter twice: as inputs, and with their labels if they have any.
    """
    from terrine_models.data.arrays import DIGITS, load_idx, load_npz, remark_on_people
    from terrine_models.data.images import load_image_classes, with_bits_of
    from terrine_models.features.maps import PublicData

    names, image = class_names(options.classes), image_format(options.images)
    if image is not None:
        if not data.is_dir():
            fail("--images is for a folder of pictures, with one folder for each class.")
        if image.bits is None and options.public is not None and options.public.is_dir():
            image = with_bits_of(options.public, image)
        private = load_image_classes(data, image, classes=names or _folders(data, options.public))
    elif data.suffix.lower() == ".npz":
        private = load_npz(data, classes=names)
    else:
        private = load_idx(data, classes=names or DIGITS)
    if private.people and (told := remark_on_people(private.people, f"{data}: array group")):
        note(told)
    if options.public is None:
        return private, None, None
    inputs, labelled = _public(options.public, private, image)
    groups = None if labelled is None else labelled.groups
    labels = None if labelled is None else labelled.labels
    return private, PublicData.declare(options.public.name, inputs, groups, labels), labelled


def _folders(data: Path, public: Path | None) -> list[str]:
    """Return the classes that the folders of public pictures name."""
    from terrine_models.data.images import class_folders

    if public is not None and public.is_dir() and (names := class_folders(public)):
        note(f"The classes are the folders of {public}: {', '.join(names)}.")
        return names
    return fail(
        "Classes are public, and the folders of private pictures are not: a single person may have "
        f"made one. Declare the classes. {data} has folders for these, and if all of them may be "
        f"known: --classes {shlex.quote(join(class_folders(data)))}"
    )


def _public(
    path: Path, private: Dataset, image: ImageFormat | None
) -> tuple[npt.NDArray[np.generic], Dataset | None]:
    from terrine_models.data.arrays import DataError, load_idx, load_inputs, load_labelled
    from terrine_models.data.images import load_image_classes, load_images

    if path.is_dir():
        if image is not None and not any(each.is_dir() for each in path.iterdir()):
            return load_images(path, image), None
        whole = (
            load_idx(path, classes=private.classes)
            if image is None
            else load_image_classes(path, image, classes=private.classes)
        )
        return whole.inputs, whole
    inputs = load_inputs(path)
    if path.suffix.lower() != ".npz":
        return inputs, None
    try:
        return inputs, load_labelled(path, private)
    except DataError as error:
        note(f"What a student will be cannot be forecast without public labels: {error}")
        return inputs, None


def image_format(text: str | None) -> ImageFormat | None:
    """Return the format of `--images HxW[:grey][:Nbit]`; None if there is none."""
    from pydantic import ValidationError

    from terrine_protocol.projects import ImageFormat

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


def newest(ledger: Ledger, settings: Settings, ensemble: str) -> Manifest:
    """Return the manifest of the newest edition of an ensemble that people can leave or join."""
    from terrine_models.teachers.kinds import load_manifest
    from terrine_server.owner.editions import with_newest_edition

    record, _ = with_newest_edition(ledger, ensemble)
    return load_manifest(settings.data_dir / record.current.path)


def by_ensemble(option: str, given: Iterable[str]) -> dict[str, Path]:
    """Return the files that are given as ENSEMBLE=FILE."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            fail(f"{option} is ENSEMBLE=FILE, such as {option} wards=patients.csv; not {text}.")
        if not Path(path).exists():
            fail(f"There is no {path}.")
        found[name] = Path(path)
    return found


def names(records: Iterable[EnsembleRecord], settings: Settings, who: Path) -> list[str]:
    """Return what the people in a file are called, by the column that one of the ensembles has."""
    from terrine_models.data.arrays import DataError, load_groups
    from terrine_models.tables.loading import is_table, load_people

    if not is_table(who):
        return load_groups(who)
    schemas = [each.facts.encoding for each in records if each.facts.encoding is not None]
    for schema in schemas:
        try:
            return load_people(who, schema, note)
        except DataError as error:
            if schema is schemas[-1]:
                raise
            note(str(error))
    fail(f"{who} is a table, and no ensemble is of tables: give an .npz with an array `group`.")


def show_who_left(
    done: Mapping[str, EditionChange], nameless: list[str], settings: Settings
) -> None:
    """Print which editions serve, and that they are without those who left."""
    for ensemble, made in done.items():
        say = f"Edition {made.edition} of {ensemble} serves. People who left: {made.people:,}."
        if not made.new:
            say = f"They were forgotten in {ensemble} before; edition {made.edition} serves."
        console.print(say, soft_wrap=True)
    where = settings.ensembles_dir
    console.print(f"What was made of their records is gone from {where}.", soft_wrap=True)
    for ensemble in nameless:
        console.print(
            f"{ensemble} does not know whose its records are: nobody was looked for in it. If they "
            "may be in it, close its projects, or have its teachers trained anew.",
            soft_wrap=True,
        )


def records(manifest: Manifest, path: Path) -> Dataset:
    """Return records in the format of an ensemble's."""
    from terrine_models.data.arrays import DataError, load_idx, load_npz, remark_on_people
    from terrine_models.data.images import load_image_classes
    from terrine_models.tables.loading import load_table

    if manifest.encoding is not None:
        return load_table(path, manifest.encoding, note)
    if manifest.image is not None:
        return load_image_classes(path, manifest.image, classes=manifest.classes)
    if path.suffix.lower() != ".npz":
        return load_idx(path, classes=manifest.classes)
    try:
        data = load_npz(path)
    except DataError:  # it does not name its classes
        data = load_npz(path, classes=manifest.classes)
    if data.people and (told := remark_on_people(data.people, f"{path}: array group")):
        note(told)
    return data


@dataclass(frozen=True)
class StudentFiles:
    """How a student's files are read: what the command line says of it."""

    accept_clipped: bool

    def check(self, path: Path) -> None:
        """Refuse what cannot be read, before anything else is asked for."""
        from terrine_models.data.images import list_images
        from terrine_models.tables.loading import check_table, is_table

        if is_table(path):
            check_table(path)
        elif path.is_dir():
            list_images(path)

    def public(
        self, path: Path, client: Client
    ) -> tuple[npt.NDArray[np.generic], TableSchema | None]:
        """Inputs without labels, and the schema of a table."""
        from terrine_models.data.arrays import load_inputs
        from terrine_models.data.images import load_images
        from terrine_models.tables.loading import is_table
        from terrine_protocol.tables.encoding import encode_table

        if not is_table(path):
            if path.is_dir():
                return load_images(path, self._image(path, client)), None
            return load_inputs(path), None
        schema = self._schema(path, client)
        return encode_table(path, schema, note, accept_clipped=self.accept_clipped), schema

    def held_out(self, path: Path, client: Client) -> Examples:
        """Labelled data, with the class names of the project."""
        from terrine_models.data.arrays import load_idx, load_npz
        from terrine_models.data.images import load_image_classes
        from terrine_models.tables.loading import is_table, load_table

        ensemble = client.project().ensemble
        classes = ensemble.classes
        if is_table(path):
            data = load_table(path, self._schema(path, client), note, public=True)
        elif path.suffix.lower() == ".npz":
            data = load_npz(path, classes=classes)
        elif path.is_dir() and ensemble.image is not None:
            data = load_image_classes(path, ensemble.image, classes=classes)
        else:
            data = load_idx(path, classes=classes)
        return data.inputs, data.labels

    def _schema(self, path: Path, client: Client) -> TableSchema:
        schema = client.project().ensemble.encoding
        if schema is None:
            fail(
                f"{path} is a table, and the server does not say how its rows are encoded. Send "
                "arrays of the ensemble's shape (GET /project): .npy, or .npz with x."
            )
        return schema

    def _image(self, path: Path, client: Client) -> ImageFormat:
        image = client.project().ensemble.image
        if image is None:
            fail(
                f"{path} is a folder, and the project's ensemble was not trained on folders of "
                "pictures. Convert them to an .npy array of its shape (GET /project) yourself."
            )
        return image


def rehearse(
    client: Client,
    inputs: npt.NDArray[np.generic],
    examples: Examples | None,
    queries: int | None,
    training: Training,
) -> Table:
    """Check data and options as the training would, and say what it could cost, for nothing."""
    from terrine_client.distill import check_data, check_training, make_task
    from terrine_server.cli.console import spent_by_whom

    project = client.project()
    check_data(inputs, project, examples)
    check_training(training, make_task(inputs, project))
    wanted = min(len(inputs), queries or len(inputs))
    left = client.budget()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("project", f"{project.name} ({project.status}), {project.mechanism.name}")
    table.add_row("inputs", f"{len(inputs):,}, as the ensemble takes them; {wanted:,} to be asked")
    if examples is not None:
        table.add_row("held out", f"{len(examples[0]):,} labelled inputs, none of them to be asked")
    table.add_row(
        "ε spent",
        f"{left.epsilon_spent:.4g} of {left.epsilon:g}, δ {left.delta:g}"
        f"{spent_by_whom(str(project.mechanism.name))}",
    )
    fits = f"all {wanted:,}" if wanted <= left.affordable else f"at least {left.affordable:,}"
    table.add_row("queries", f"{fits} fit the budget, whatever the answers")
    table.add_row("", "Nothing was sent and nothing was charged.")
    return table


def save_labels(labels: Labels, out: Path) -> None:
    """Write answers as arrays to an .npz file, or as rows to a .csv file."""
    import numpy as np

    from terrine_client import NO_COUNT
    from terrine_protocol.files import replacing
    from terrine_server.sheets import CsvWriter

    names = np.array([name or "" for name in labels.names], dtype=np.str_)
    if out.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {
            name: getattr(labels, name)
            for name in ("outcomes", "labels", "charges", "noisy_counts", "noise_sigma")
        }
        given = {name: value for name, value in arrays.items() if value is not None}
        with replacing(out) as archive:
            np.savez_compressed(archive, **given, names=names)
        return
    columns: dict[str, list[Any]] = {
        "outcome": labels.outcomes.tolist(),
        "label": ["" if label < 0 else label for label in labels.labels.tolist()],
        "label_name": names.tolist(),
        "charge": ["" if charge < 0 else charge for charge in labels.charges.tolist()],
    }
    if labels.noisy_counts is not None:
        for label, counts in enumerate(labels.noisy_counts.T.tolist()):
            columns[f"count_{label}"] = ["" if count == NO_COUNT else count for count in counts]
    with writing(out) as file:
        sheet = CsvWriter(file)
        sheet.write_row(columns)
        for row in zip(*columns.values(), strict=True):
            sheet.write_row(row)
