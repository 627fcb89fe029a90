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
"""Fields that are held as text at a time, at least one row of them."""
Progress = Callable[[int, int], object]
"""Receives how much of a file has been read, and how much there is."""
T = TypeVar("T", bound=np.generic)


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
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


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
