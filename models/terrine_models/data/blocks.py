"""Blocks of rows: what is large is read and checked a block at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine_protocol.names import fold, normalize

BLOCK = 16_384
"""Rows of a block."""


@dataclass(frozen=True)
class Records:
    """Some records of a source, one after another."""

    inputs: NDArray[np.generic]
    """[B, *shape]."""
    labels: NDArray[np.int64]
    """[B]."""
    groups: NDArray[np.int64] | None
    """[B], as in `Dataset`."""


class GroupNumbering:
    """Numbers people 0, 1, … in the order in which they first appear. Text is compared in NFC."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What people are called, in the order of their numbers."""
        return tuple(map(str, self._numbers))

    def of(self, names: Sequence[object]) -> NDArray[np.int64]:
        """The numbers of these rows' people [B]."""
        known = self._numbers
        same = (normalize(name) if isinstance(name, str) else name for name in names)
        return np.array([known.setdefault(name, len(known)) for name in same], dtype=np.int64)


def remark_on_people(names: Sequence[str], what: str) -> str | None:
    """Say how many people may be others by another spelling; None if none are.

    It is computed from private names: for the terminal of their owner alone.
    """
    # Of each a number, and not its text: there may be millions.
    folded = np.fromiter((hash(fold(name)) for name in names), np.int64, len(names))
    folded.sort()
    same = np.flatnonzero(folded[1:] == folded[:-1])
    if not len(same):
        return None
    ones = len(np.unique(folded[same]))
    return (
        f"{what}: {len(same) + ones:,} people would coincide, as {ones:,}, if capitals, spaces, "
        "invisible characters and zeros (7, 7.0, 007) did not count. Each is protected by itself: "
        "if some are one person, write the name in one way first."
    )
