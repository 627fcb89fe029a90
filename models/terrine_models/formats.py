"""Records in files of whatever format: what reads tables, arrays and folders of pictures.

    format_of(path).public(path, private, note, progress)

A table is told by its name (`tables.loading`), pictures by lying in a folder (`data.images`), and
all else is arrays: IDX, .npy or .npz (`data.arrays`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
from terrine_models.tables.loading import load_groups, load_table, read_schema
from terrine_protocol.errors import ClippedError
from terrine_protocol.names import find_unshown
from terrine_protocol.projects import ImageFormat
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import Note, Progress, ignore_note, ignore_progress
from terrine_tables.encoding import encode_table
from terrine_tables.files import check_table
from terrine_tables.formats import explain_unread, is_table

Inputs: TypeAlias = NDArray[np.generic]


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
    public: Callable[[Path, Dataset, Note, Progress], PublicRecords]
    """Reads public records of the same format as private ones."""
    inputs: Callable[[Path, Layout, Note, bool, bool], Inputs]
    """Reads inputs [N, …] without labels; the last say whether rows may be clipped, and columns
    empty."""
    labelled: Callable[[Path, Layout, Note, bool], Dataset]
    """Reads labelled records; the last says whether they are public. Of private ones, which join
    others, a column may be empty."""


def _public_table(path: Path, private: Dataset, note: Note, progress: Progress) -> PublicRecords:
    schema = _encoding(path, private)
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
        raise DataError(
            f"{path} is a table, and nothing says how its rows are encoded. Give arrays of the "
            "inputs' shape: .npy, or .npz with x."
        )
    return like.encoding


def _public_arrays(path: Path, private: Dataset, note: Note, progress: Progress) -> PublicRecords:
    if not path.is_dir():
        return PublicRecords(load_inputs(path))
    labelled = load_idx(path, classes=private.classes)
    return PublicRecords(labelled.inputs, labelled, labelled.groups)


def _public_archive(path: Path, private: Dataset, note: Note, progress: Progress) -> PublicRecords:
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


def _public_pictures(path: Path, private: Dataset, note: Note, progress: Progress) -> PublicRecords:
    image = _image(path, private)
    if not any(each.is_dir() for each in path.iterdir()):
        return PublicRecords(load_images(path, image))
    labelled = load_image_classes(path, image, classes=private.classes)
    return PublicRecords(labelled.inputs, labelled, labelled.groups)


def _image(path: Path, like: Layout) -> ImageFormat:
    if like.image is None:
        raise DataError(
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
    data: Path,
    schema: Path | None,
    classes: Sequence[str] | None,
    image: ImageFormat | None,
) -> TableSchema | None:
    """Return the schema of private records that are a table; refuse options of other formats."""
    if not is_table(data):
        if schema:
            raise DataError(f"--schema is for tables. {explain_unread(data)}")
        return None
    if classes or image:
        raise DataError("--classes and --images are for images and arrays; a table has a schema.")
    if schema is not None:
        return read_schema(schema)
    check_table(data)  # before asking for a schema
    raise DataError(
        f"{data} is a private table. Categories and ranges become public, so they cannot be taken "
        "from it: give a --schema. `terrine ensemble schema --help` explains how to make one from "
        "a public table."
    )


def load_private(
    data: Path,
    schema: Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    image: ImageFormat | None = None,
    public: Path | None = None,
    note: Note = ignore_note,
    progress: Progress = ignore_progress,
) -> Dataset:
    """Return private records. `public`: pictures whose folders may name the classes.

    Raises DataError.
    """
    known = private_schema(data, schema, classes, image)
    if known is not None:
        return load_table(data, known, note, progress)
    if image is not None:
        if not data.is_dir():
            raise DataError("--images is for a folder of pictures, with one folder for each class.")
        if image.bits is None and public is not None and public.is_dir():
            image = with_bits_of(public, image)
        known_classes = classes or _class_folders(data, public, note)
        return load_image_classes(data, image, classes=known_classes)
    if not is_npz(data):
        return load_idx(data, classes=classes or DIGITS)
    private = load_npz(data, classes=classes)
    _note_people(private, data, note)
    return private


def load_public(
    public: Path, private: Dataset, note: Note = ignore_note, progress: Progress = ignore_progress
) -> PublicRecords:
    """Return public records, of the format of private ones. Raises DataError."""
    form = TABLE if private.encoding is not None else format_of(public, private)
    return form.public(public, private, note, progress)


def _note_people(data: Dataset, path: Path, note: Note) -> None:
    if data.people and (remark := remark_on_people(data.people, f"{path}: array group")):
        note(remark)


def _class_folders(data: Path, public: Path | None, note: Note) -> list[str]:
    """Return the classes that the folders of public pictures name."""
    if public is not None and public.is_dir() and (names := class_folders(public)):
        if wrong := find_unshown(names):
            raise DataError(f"{public}: {wrong}.")
        note(f"The classes are the folders of {public}: {', '.join(names)}.")
        return names
    raise DataError(
        "Classes are public, and the folders of private pictures are not: a single person may have "
        f"made one. Declare the classes. {data} has folders for these, and if all of them may be "
        f"known: --classes {shlex.quote(join_names(class_folders(data)))}"
    )


def load_labelled_rows(
    public: Path, schema: TableSchema, note: Note, progress: Progress = ignore_progress
) -> Dataset:
    """Return public rows with their labels. Raises DataError.

    If private rows name their people, and these do not, each is one of a different person.
    """
    found = load_table(public, schema, note, progress, public=True)
    group = next((column.name for column in schema.columns if column.role == "group"), None)
    if group is None or found.groups is not None:
        return found
    note(f"{public} has no column {group}: each of its rows is taken for a different person's.")
    return replace(found, groups=np.arange(len(found), dtype=np.int64), group_column=group)


def join_names(names: Iterable[str]) -> str:
    """Write names as A,B,…, as --classes takes them."""
    doubled = (name.replace('"', '""') for name in names)
    quoted = (f'"{name}"' if set(name) & set(',"\r\n') else name for name in doubled)
    return ",".join(quoted)


def number_classes(names: Sequence[str]) -> Sequence[str]:
    """Return classes that are named; of one whole number, so many that are numbered from 0."""
    if len(names) == 1 and names[0].isdecimal():
        return [str(i) for i in range(int(names[0]))]
    return names
