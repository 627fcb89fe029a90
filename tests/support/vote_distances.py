"""All effects of changing a few votes, by enumeration, without using the product."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from exact_laws import neighbours
from numpy.typing import NDArray

Histogram = tuple[int, ...]
Floats = NDArray[np.float64]


def ranked_histograms(teachers: int, classes: int, largest: int | None = None) -> list[Histogram]:
    """Every way in which the teachers can vote, up to the order of the classes."""
    if classes == 1:
        return [(teachers,)] if largest is None or teachers <= largest else []
    return [
        (first, *rest)
        for first in range(min(teachers, teachers if largest is None else largest), -1, -1)
        for rest in ranked_histograms(teachers - first, classes - 1, first)
    ]


class VoteGraph:
    """All ranked histograms of an ensemble, and their distances in changed votes."""

    def __init__(self, teachers: int, classes: int) -> None:
        self.teachers = teachers
        self.votes = np.array(ranked_histograms(teachers, classes))
        index = {tuple(row): i for i, row in enumerate(self.votes.tolist())}
        size = len(self.votes)
        self.adjacent = np.eye(size, dtype=bool)
        for i, row in enumerate(self.votes.tolist()):
            for other in neighbours(row):
                self.adjacent[i, index[tuple(sorted(other, reverse=True))]] = True

    def largest_change(self, value: Floats) -> Floats:
        """max |value(D) − value(D′)| over neighbours D′ of each D."""
        change = np.abs(value[:, None] - value[None, :])
        return np.asarray(np.where(self.adjacent, change, 0.0).max(axis=1))

    def within(self, value: Floats, distances: int) -> Floats:
        """max of `value` over everything at distance ≤ d, for d = 0, …, distances − 1."""
        columns = [value]
        for _ in range(distances - 1):
            columns.append(np.where(self.adjacent, columns[-1][None, :], -np.inf).max(axis=1))
        return np.stack(columns, axis=1)

    def pairs(self) -> Iterator[tuple[int, int]]:
        yield from zip(*np.nonzero(self.adjacent), strict=True)


def full_walk(walk: Iterator[Floats], distances: int) -> Floats:
    """The bounds of a walk at distances 0, …, distances − 1."""
    return np.concatenate(list(walk), axis=1)[:, :distances]
