"""Tables of records: labelled rows of CSV, Parquet and Arrow files, encoded by a public schema.

Categories and ranges are stored in the manifest, and students need them to encode their own rows.
So they come from a schema that the owner wrote, or from a table that the owner declared public, and
never from private rows. A private value that is not in the schema is encoded as "other", a number
outside the range is clipped to it, and how many there are is said.

Rows without labels are encoded by `terrine_tables.encoding`, which this module uses.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from terrine_models.data.arrays import (
    DataError,
    Dataset,
    GroupNumbering,
    InputSpec,
    Records,
    RecordSource,
    check_classes,
    remark_on_people,
)
from terrine_protocol.base import first_problem, list_names
from terrine_protocol.files import read
from terrine_protocol.names import find_unshown
from terrine_protocol.projects import TextNumbers
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import (
    Encoder,
    GrowingArray,
    Note,
    Progress,
    class_indices,
    column_texts,
    encoded_width,
    ignore_note,
    ignore_progress,
)
from terrine_tables.files import open_by_schema

if TYPE_CHECKING:
    from terrine_tables.formats.table import TableFile


def warn(sentence: str) -> None:
    """Say it as a warning of Python."""
    warnings.warn(sentence, stacklevel=2)


class Table(RecordSource):
    """The labelled records of a file, encoded by a schema, a block at a time.

    The file has either a header that names
    the columns of the schema (those that are ignored may be absent), or no header and exactly those
    columns in order.
    """

    def __init__(
        self,
        path: Path,
        schema: TableSchema,
        note: Note = warn,
        progress: Progress = ignore_progress,
        *,
        public: bool = False,
        accept_clipped: bool = False,
        accept_empty: bool = False,
    ) -> None:
        """Raises DataError for classes that cannot be told apart.

        accept_clipped: whether more than a tenth of a column may be outside the schema's range, or
        missing where it knows no gaps.
        accept_empty: whether a column may be empty in all rows.
        Rows that are public may be without the column of the role group: `group_column` is None
        once they are read.
        """
        self._path, self._note, self._progress = Path(path), note, progress
        self._public = public
        self._accept_clipped, self._accept_empty = accept_clipped, accept_empty
        by_role = {column.role: column for column in schema.columns}
        self._label, self._group = by_role["label"], by_role.get("group")
        self.name, self.classes = str(path), self._label.values or ()
        self._schema = self.encoding = schema
        self.spec = encoded_input(schema)
        self.sha256: str | None = None
        self.group_column = None if self._group is None else self._group.name
        self.people: tuple[str, ...] | None = None
        check_classes(self.classes, self.name)

    def blocks(self) -> Iterator[Records]:
        """Read all records. Raises DataError, which names line and column."""
        schema, people = self._schema, GroupNumbering()
        encoder = Encoder(schema, self.name)
        needed = [*schema.features, self._label.name]
        always = needed if self._group is None or self._public else [*needed, self._group.name]
        with open_by_schema(self._path, schema, always, self._note, True) as file:
            if self._group is not None and self._public and _lacks(file, schema, self._group.name):
                self._group = self.group_column = None
            if self._group is not None:
                needed.append(self._group.name)
            first = True
            for block in file.read_blocks(schema, needed, self._note, self._progress):
                if first and block.named:
                    self._tell_unused(file.first)
                first = False
                inputs, labels = encoder.encode(block), class_indices(self._label, block)
                if self._group is None:
                    yield Records(inputs, labels, None)
                else:
                    names, places = column_texts(self._group, block)
                    yield Records(inputs, labels, people.of(names)[places])
            self.sha256 = file.sha256 or None
        if self._group is not None:
            self.people, name = people.names, self._group.name
            if told := remark_on_people(self.people, f"{self.name}: column {name}"):
                self._note(told)
        encoder.finish(self._note, self._accept_clipped, self._accept_empty)

    def _tell_unused(self, names: Sequence[str]) -> None:
        """Say which columns the schema lacks."""
        known = {column.name for column in self._schema.columns}
        if unused := [name for name in names if name not in known]:
            self._note(
                f"{self.name}: column {list_names(unused)} is not in the schema, and not used: the "
                "public table from which the schema came would need it, too."
            )


def load_table(
    path: Path,
    schema: TableSchema,
    note: Note = warn,
    progress: Progress = ignore_progress,
    *,
    public: bool = False,
    accept_clipped: bool = False,
    accept_empty: bool = False,
) -> Dataset:
    """Load the records of a file: see `Table`. Raises DataError.

    What is held is the encoded rows, and never the text of all. Rows that are public may be without
    the column of the role group; they have no groups then.
    """
    table = Table(
        path,
        schema,
        note,
        progress,
        public=public,
        accept_clipped=accept_clipped,
        accept_empty=accept_empty,
    )
    return Dataset.of(table)


def load_people(path: Path, schema: TableSchema, note: Note = warn) -> list[str]:
    """Read what people are called from a table with the schema's column of the role group.

    Each is named once; the table may have all columns, or this one alone. Raises DataError.
    """
    group = next((column for column in schema.columns if column.role == "group"), None)
    if group is None:
        raise DataError(f"{path}: the schema has no column of the role group, which names people.")
    names: dict[str, None] = {}
    with open_by_schema(Path(path), schema, [group.name], note, digest=False) as file:
        for block in file.read_blocks(schema, [group.name], note, ignore_progress):
            names |= dict.fromkeys(column_texts(group, block)[0])
    return list(names)


def load_groups(path: Path, schema: TableSchema) -> NDArray[np.int64] | None:
    """Read whose each row of a table is: the number of its person, [N].

    None if the schema has no column of the role group, or the table lacks it.
    """
    group = next((column for column in schema.columns if column.role == "group"), None)
    if group is None:
        return None
    people, groups, needed = GroupNumbering(), GrowingArray((), np.int64), [group.name]
    try:
        with open_by_schema(Path(path), schema, needed, ignore_note, digest=False) as file:
            for block in file.read_blocks(schema, needed, ignore_note, ignore_progress):
                names, places = column_texts(group, block)
                groups.add(people.of(names)[places])
    except DataError:
        return None
    return groups.array()


def encoded_input(schema: TableSchema) -> InputSpec:
    """What an encoded row looks like: the numbers of each column, see `columns.encoded_width`."""
    numbers, texts = 0, list[TextNumbers]()
    for column in schema.columns:
        if column.role == "text":
            texts.append(TextNumbers(start=numbers, hashed=column.width or 0))
        numbers += encoded_width(column)
    return InputSpec(shape=(numbers,), dtype="float32", low=0, high=1, texts=tuple(texts) or None)


def read_schema(path: Path) -> TableSchema:
    """Read a schema from a JSON file. Raises DataError."""
    try:
        schema = TableSchema.model_validate_json(read(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise DataError(f"{path} is not a table schema: {first_problem(error)}.") from None
    if wrong := find_unshown(schema.names):
        raise DataError(f"{path}: {wrong}.")
    return schema


def _lacks(file: TableFile, schema: TableSchema, name: str) -> bool:
    """Whether a file with all features and the label lacks this column of the schema."""
    if file.has_header(schema):
        return name not in file.first
    return len(file.first) == len(schema.features) + 1 < len(schema.columns)
