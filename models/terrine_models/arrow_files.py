"""Read Parquet and Arrow files, in batches, as the text that a CSV file of them would hold.

Needs the arrow extra: pip install 'terrine[arrow]'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .csv_files import Sheet
from .data import DataError

SUFFIXES = {".parquet", ".pq", ".arrow", ".feather", ".ipc"}
MAGIC = (b"PAR1", b"ARROW1")
BATCH = 16_384
"""Rows that are held as text at a time."""


def is_arrow(path: Path) -> bool:
    """Whether a file is one of Parquet or Arrow by its content, whatever its name."""
    try:
        with Path(path).open("rb") as file:
            return file.read(8).startswith(MAGIC)
    except OSError:
        return False


def check(path: Path) -> list[str]:
    """Return the names of a file's columns. Raises DataError if it cannot be read."""
    with _opened(path) as (names, _):
        return names


def read_batches(path: Path, columns: Sequence[str]) -> Iterator[dict[str, list[str]]]:
    """Yield these columns of a file, a batch of rows at a time. Raises DataError."""
    with _opened(path) as (_, batches):
        for batch in batches(list(columns)):
            yield {name: _texts(path, name, batch.column(name)) for name in columns}


def read_sheet(path: Path) -> Sheet:
    """Read all rows of a file, below a header. Raises DataError."""
    names = check(path)
    rows = [(0, names)]
    for batch in read_batches(path, names):
        for fields in zip(*batch.values(), strict=True):
            rows.append((len(rows), list(fields)))
    return Sheet(Path(path), sha256(path), ",", rows)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Any]]:
    """Names of the columns, and a function from some of them to batches."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path} is a Parquet or Arrow file; reading it needs pyarrow: "
            "pip install 'terrine[arrow]'. Or save it as CSV."
        ) from None
    try:
        with Path(path).open("rb") as file:
            if file.read(4) == b"PAR1":
                found = parquet.ParquetFile(file)
                yield _distinct(path, found.schema_arrow.names), _parquet(found)
            else:
                file.seek(0)
                opened = pa.ipc.open_file(file)
                yield _distinct(path, opened.schema.names), _arrow(opened)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path} cannot be read as a Parquet or Arrow file: {reason}") from None


def _parquet(file: Any) -> Any:
    return lambda columns: file.iter_batches(batch_size=BATCH, columns=columns)


def _arrow(file: Any) -> Any:
    def batches(columns: list[str]) -> Iterator[Any]:
        for number in range(file.num_record_batches):
            batch = file.get_batch(number).select(columns)
            for start in range(0, batch.num_rows, BATCH):
                yield batch.slice(start, BATCH)

    return batches


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
