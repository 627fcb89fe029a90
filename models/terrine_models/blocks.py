"""Blocks of rows: what is large is read and checked a block at a time."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

BLOCK = 16_384
"""Rows of a block."""
T = TypeVar("T", bound=np.generic)


class Growing(Generic[T]):
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
