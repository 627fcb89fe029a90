"""What CSV, Parquet and Arrow files share: they are read a block at a time, and must not change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from terrine_models.data.arrays import DataError
from terrine_protocol.files import opened

FIELDS = 2**17
"""Fields that are held as text at a time, at least one row of them."""
Progress = Callable[[int, int], object]
"""Receives how much of a file has been read, and how much there is."""


def unseen(done: int, total: int) -> None:
    """Show no progress."""


def rows_at_a_time(columns: int) -> int:
    """How many rows of a table are held as text."""
    return max(1, FIELDS // max(1, columns))


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises DataError."""
    try:
        with opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Raise DataError if a file changes meanwhile: large files are read more than once."""
    before = _state(path)
    try:
        yield
    except DataError:
        _check_state(path, before)  # otherwise the error may be the change's
        raise
    _check_state(path, before)


def _state(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _check_state(path: Path, before: tuple[int, int, int]) -> None:
    if _state(path) != before:
        raise DataError(
            f"{path} changed while it was read. Wait until it is complete, or read a copy of it."
        ) from None
