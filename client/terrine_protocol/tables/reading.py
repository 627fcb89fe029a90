"""What tables in files share: they are read a block at a time, and must not change meanwhile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.files import opened
from terrine_protocol.tables import DataError

FIELDS = 2**17
"""Fields that are held as text at a time, or those of some rows if a table is wide."""
ROWS, MOST_FIELDS = 64, 2**21
"""Rows of a wide table that are held at a time, for each costs some steps per column; and their
fields at most, but for one row."""
Progress = Callable[[int, int], object]
"""Receives how much of a file has been read, and how much there is."""
T = TypeVar("T", bound=np.generic)


def unseen(done: int, total: int) -> None:
    """Show no progress."""


def rows_at_a_time(columns: int) -> int:
    """How many rows of a table are held as text."""
    return max(rows_at_least(columns), FIELDS // max(1, columns))


def rows_at_least(columns: int) -> int:
    """How many rows of a wide table are held as text."""
    return max(1, min(ROWS, MOST_FIELDS // max(1, columns)))


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


def files_within(folder: Path) -> Iterator[Path]:
    """The files in a folder and those in it, by their paths; none that starts with . or _.

    Such are what Spark and others write beside data: _SUCCESS, .part-0.crc.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] not in "._")
        yield from (Path(place) / name for name in sorted(names) if name[0] not in "._")


def _state(path: Path) -> list[tuple[Path, int, int, int]]:
    """Of a file, or of each in a folder: name, identity, size and time."""
    try:
        every = files_within(path) if path.is_dir() else [path]
        found = [(each, os.stat(each)) for each in every]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    return [(each, of.st_ino, of.st_size, of.st_mtime_ns) for each, of in found]


class GrowingArray(Generic[T]):
    """An array [N, *shape] that grows by blocks of rows, and is never held twice."""

    def __init__(self, shape: tuple[int, ...], dtype: type[T]) -> None:
        self._array = np.empty((0, *shape), dtype)
        self._rows = 0

    def add(self, block: NDArray[T]) -> None:
        """Append rows [b, *shape]. There is room for an eighth more, so that few move the rest."""
        needed = self._rows + len(block)
        if needed > len(self._array):
            # In place, as nobody else knows the array: what is large is not copied, its pages are
            # moved.
            shape = (needed + needed // 8, *self._array.shape[1:])
            self._array.resize(shape, refcheck=False)
        self._array[self._rows : needed] = block
        self._rows = needed

    def array(self) -> NDArray[T]:
        """All rows. Nothing can be added afterwards."""
        self._array.resize((self._rows, *self._array.shape[1:]), refcheck=False)
        return self._array
