"""Tables in files, opened by the format that they have."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from terrine_protocol.base import normalize
from terrine_protocol.errors import DataError
from terrine_protocol.files import open_regular_file
from terrine_protocol.schema import TableSchema
from terrine_tables.columns import Note, ignore_note

if TYPE_CHECKING:
    from terrine_tables.formats.table import Fits, TableFile


@contextmanager
def open_table(
    path: Path, fits: Fits = bool, note: Note = ignore_note, digest: bool = True
) -> Iterator[TableFile]:
    """Open a table's file, whatever its name; it must not change meanwhile. Needs pyarrow.

    Raises DataError for what is not a table, and if two delimiters fit.

    digest: whether `sha256` is wanted, which a text file has once it has been read.
    """
    path = Path(path)
    try:
        import pyarrow as pa

        from terrine_tables.formats.arrow import ArrowFile, ArrowStream
        from terrine_tables.formats.csv import CsvFile
        from terrine_tables.formats.json import JsonLinesFile
        from terrine_tables.formats.parquet import ParquetFile
        from terrine_tables.formats.table import ReadOptions
    except ImportError:
        raise DataError(
            f"{path}: reading tables from files needs pyarrow. In a checkout: pip install "
            "'.[arrow]'. Data frames are encoded without it."
        ) from None
    formats: tuple[type[TableFile], ...]
    formats = ParquetFile, ArrowFile, ArrowStream, JsonLinesFile, CsvFile  # the last takes the rest
    with _check_unchanged(path):
        try:
            with open_regular_file(path) as file:
                its_format = next(each for each in formats if each.recognises(path, file))
                yield its_format(path, file, ReadOptions(fits, note, digest))
        except (pa.ArrowException, OSError) as error:
            reason = getattr(error, "strerror", None) or (str(error) or "it is broken")
            first_line = reason.splitlines()[0].rstrip(".")
            raise DataError(f"{path} cannot be read: {first_line}.") from None


@contextmanager
def open_by_schema(
    path: Path, schema: TableSchema, needed: Sequence[str], note: Note, digest: bool
) -> Iterator[TableFile]:
    """Open a file whose rows are read by a schema."""
    widths = {len(needed), len(schema.columns)}

    def fits(first: Sequence[str]) -> bool:
        return len(first) in widths or set(needed) <= set(first)

    with open_table(path, fits, note, digest) as file:
        yield file


def check_table(path: Path) -> None:
    """Refuse a file whose beginning is that of no table. Raises DataError."""
    with open_table(path, digest=False):
        pass


def has_column(path: Path, name: str, columns: Sequence[str] | None = None) -> bool:
    """Whether a table has a column. `columns`: of a file without a header. Raises DataError."""
    name = normalize(name)
    if columns is not None:
        return name in columns
    with open_table(path, fits=lambda first: name in first, digest=False) as file:
        return name in file.first


@contextmanager
def _check_unchanged(path: Path) -> Iterator[None]:
    """Raise DataError if a file changes meanwhile: large files are read more than once."""
    before, failed = _state(path), None
    try:
        yield
    except DataError as error:
        failed = error
    if _state(path) != before:  # then the error may be the change's
        raise DataError(
            f"{path} changed while it was read. Wait until it is complete, or read a copy of it."
        )
    if failed is not None:
        raise failed


def _state(path: Path) -> tuple[int, int, int]:
    """Identity, size and time of a file."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    return found.st_ino, found.st_size, found.st_mtime_ns
