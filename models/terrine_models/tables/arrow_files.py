"""Read Parquet and Arrow files, in batches, as the text that a CSV file of them would hold.

Needs the arrow extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrine_models.data.arrays import DataError
from terrine_models.data.reading import Progress, rows_at_a_time, unseen
from terrine_protocol.files import opened

SUFFIXES = {".parquet", ".pq", ".arrow", ".feather", ".ipc"}
MAGIC = (b"PAR1", b"ARROW1")
BUFFER = 2**20
"""Bytes of a column that are read ahead."""


def is_arrow(path: Path) -> bool:
    """Whether a file is one of Parquet or Arrow by its content, whatever its name."""
    try:
        with opened(path) as file:
            return file.read(8).startswith(MAGIC)
    except OSError:
        return False


def check(path: Path) -> list[str]:
    """Return the names of a file's columns. Raises DataError if it cannot be read."""
    with _opened(path) as file:
        return file.names


def blocks(
    path: Path, columns: Sequence[str], progress: Progress = unseen
) -> Iterator[dict[str, list[str]]]:
    """Read these columns of a file, some rows at a time. Raises DataError."""
    with _opened(path) as file:
        for batch in file.batches(list(columns), progress):
            yield {name: _texts(path, name, batch.column(name)) for name in columns}


@dataclass(frozen=True)
class _File:
    names: list[str]
    batches: Callable[[list[str], Progress], Iterator[Any]]
    """Some of the columns, in batches of at most `rows_at_a_time`."""


@contextmanager
def _opened(path: Path) -> Iterator[_File]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path} is a Parquet or Arrow file; reading it needs pyarrow. In a "
            "checkout: pip install '.[arrow]'. Or save it as CSV."
        ) from None
    try:
        with opened(path) as file:
            if file.read(4) == b"PAR1":
                # A buffer: otherwise all of a row group's columns would be read at once.
                yield _parquet(path, parquet.ParquetFile(file, buffer_size=BUFFER))
            else:
                file.seek(0)
                yield _arrow(path, pa.ipc.open_file(file))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read as a Parquet or Arrow file: {reason}") from None


def _parquet(path: Path, file: Any) -> _File:
    def batches(columns: list[str], progress: Progress) -> Iterator[Any]:
        done = 0
        rows = rows_at_a_time(len(columns))
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            done += batch.num_rows
            progress(done, file.metadata.num_rows)
            yield batch

    return _File(_distinct(path, file.schema_arrow.names), batches)


def _arrow(path: Path, file: Any) -> _File:
    def batches(columns: list[str], progress: Progress) -> Iterator[Any]:
        rows = rows_at_a_time(len(columns))
        for done in range(file.num_record_batches):
            batch = file.get_batch(done).select(columns)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
            progress(done + 1, file.num_record_batches)

    return _File(_distinct(path, file.schema.names), batches)


def _distinct(path: Path, names: list[str]) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} has two columns named {twice!r}.")
    return names


def _texts(path: Path, name: str, array: Any) -> list[str]:
    """Values as a CSV file would hold them: true, 2020-01-31, and nothing for null and NaN."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise DataError(f"{path}: column {name} holds {kind}; expected numbers, text or dates.")
    if not pa.types.is_floating(kind):
        return [(value or "").strip() for value in array.cast(pa.string()).to_pylist()]
    return [_number(value) for value in array.to_pylist()]


def _number(value: float | None) -> str:
    """A whole number is written without a point: where some are missing, all become floats."""
    if value is None or value != value:
        return ""
    return str(int(value)) if value.is_integer() else repr(value)
