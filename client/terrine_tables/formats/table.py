"""What a table in a file can do, whatever the format: name its columns, and give rows in blocks."""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from terrine_protocol.base import column_name
from terrine_protocol.errors import DataError
from terrine_protocol.schema import Column, TableSchema
from terrine_tables.arrow_columns import code_array, read_typed
from terrine_tables.columns import (
    DECIMAL_COMMA,
    THOUSANDS,
    CodedValues,
    Note,
    Progress,
    RowBlock,
    Values,
    check_names,
    ignore_note,
    ignore_progress,
)

# Bytes that are read together.
BLOCK_BYTES = 2**20
# Whether a first record is as expected, which resolves most ambiguities.
Fits = Callable[[Sequence[str]], bool]


@dataclass(frozen=True)
class ReadOptions:
    """What whoever opens a table's file says."""

    fits: Fits = bool
    note: Note = ignore_note
    digest: bool = True
    """Whether `sha256` is wanted, which a text file has once it has been read."""


class TableFile(ABC):
    """A table in a file, read some rows at a time. Opened by `files.open_table`."""

    path: Path
    first: list[str]
    """The names of columns; of a CSV file its first record, empty if there is none."""
    types: Mapping[str, Any]
    """Of columns, as pyarrow names them; of a text file, none."""
    delimiter: str | None = None
    """What separates fields, of a CSV file."""
    sha256: str
    """Empty if it is not wanted, or until a text file has been read."""

    @abstractmethod
    def __init__(self, path: Path, file: io.BufferedReader, options: ReadOptions) -> None:
        """Read the beginning of a file."""

    @staticmethod
    @abstractmethod
    def recognises(path: Path, file: io.BufferedReader) -> bool:
        """Whether a file has this format, by its beginning. It is left where it was."""

    @abstractmethod
    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches with these columns. Raises DataError, and what pyarrow does.

        Of a CSV file, `names` are those of all columns, and `header` is whether the first record
        is one.
        """

    def where(self, record: int) -> str:
        """Name a record (from 0, without the header) in an error.

        Raises DataError if another before it in a text file is wrong.
        """
        return f"{self.path} row {record + 1}"

    def check_header(self) -> None:
        """Raise DataError if a column's name is in no known encoding."""
        return  # other files than CSV have one encoding

    def check(self, texts: Sequence[str], where: Callable[[int], str], name: str) -> None:
        """Raise DataError for the first text of a column that cannot be read.

        where: names the one of this place.
        """
        return  # other files than CSV have one encoding

    def has_header(self, schema: TableSchema) -> bool:
        """Whether columns are named."""
        return True

    def read_blocks(
        self, schema: TableSchema, needed: Sequence[str], note: Note, progress: Progress
    ) -> Iterator[RowBlock]:
        """Read the columns that are needed, some rows at a time. Raises DataError."""
        header = self.has_header(schema)
        if header:
            self.check_header()
            check_names(self.first, needed, str(self.path))
        names, wanted, start = self.names_to_read(schema, needed, header), frozenset(needed), 0
        described = [column for column in schema.columns if column.name in wanted]
        for batch in self.batches(names, header, progress):
            if not start and not header:
                note(
                    f"{self.path} has no header; its columns are taken to be {', '.join(names)}, "
                    "in this order."
                )
            commas = self.find_decimal_commas(batch, described, start)
            columns = {c.name: self.values(c, batch.column(c.name), start) for c in described}
            where = partial(lambda start, row: self.where(start + row), start)
            yield RowBlock(columns, batch.num_rows, where, header, commas, self.hint)
            start += batch.num_rows
        if not start:
            raise DataError(f"{self.path} holds no records.")

    def names_to_read(self, schema: TableSchema, needed: Sequence[str], header: bool) -> list[str]:
        """The columns of which `batches` makes rows."""
        return list(needed)

    def find_decimal_commas(
        self, batch: Any, described: Sequence[Column], start: int
    ) -> frozenset[str]:
        """The columns in which commas are decimal signs, by their texts. Raises DataError."""
        return frozenset()

    def values(self, column: Column, array: Any, start: int) -> Values:
        """The values of a column, of rows from `start` on. Raises DataError."""
        typed = read_typed(array, column)
        return self.coded(column.name, array, start) if typed is None else typed

    def coded(self, name: str, array: Any, start: int) -> CodedValues:
        """The values of a column, each once, of rows from `start` on. Raises DataError."""
        try:
            coded = code_array(array, f"{self.path}: column {name}")
        except DataError as error:
            raise DataError(f"{error} To leave it out: --ignore {name}.") from None

        def where(place: int) -> str:
            return self.where(start + int(np.flatnonzero(coded.places == place)[0]))

        self.check(coded.values, where, name)
        return coded

    def hint(self, name: str, text: str) -> str:
        """What else to say of a field that is not a number."""
        if "," in text and (DECIMAL_COMMA.fullmatch(text) or THOUSANDS.fullmatch(text)):
            return (
                'If its commas separate thousands, as in 1,234, write "commas": "thousands" at '
                f'column {name} of the schema; if they are decimal signs, "commas": "decimal".'
            )
        return ""


class TypedFile(TableFile):
    """A file that pyarrow reads, whose columns have types."""

    def __init__(self, path: Path, file: io.BufferedReader, options: ReadOptions) -> None:
        self.path = path
        self.sha256 = hashlib.file_digest(file, "sha256").hexdigest() if options.digest else ""
        file.seek(0)

    def _describe(self, schema: pa.Schema) -> None:
        """Take the columns from what the file says of itself."""
        self.first = list(map(column_name, schema.names))
        self._stored = dict(zip(self.first, schema.names, strict=True))
        self.types = dict(zip(self.first, schema.types, strict=True))

    def _stored_names(self, names: Sequence[str]) -> list[str]:
        """What the file calls these columns."""
        return [self._stored[name] for name in names]

    def _rename(self, batch: Any, names: Sequence[str]) -> Any:
        """These columns of a batch, by our names."""
        columns = batch.select(self._stored_names(names)).columns
        return pa.RecordBatch.from_arrays(columns, names=list(names))
