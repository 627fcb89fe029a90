"""The interface for casting votes, and the check of every vote count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from terrine_server.errors import EnsembleUnavailable
from terrine_server.ledger import SHARED, EnsembleRecord
from terrine_server.privacy import Units

BLOCK = 64 * 2**20
"""Bytes of weights that are held at once."""


class Nearby(Protocol):
    """Public points near B queries, as if they were records of S people with accounts."""

    @property
    def weights(self) -> np.ndarray:
        """How many records of each are so near that they vote, uint8 `[B, S]`."""

    @property
    def near_wider(self) -> np.ndarray:
        """Likewise of those by which is judged how far people there are used up, uint8 `[B, S]`."""


class Weighing(Protocol):
    """Records of a private data set, and how near they are to queries."""

    @property
    def since(self) -> np.ndarray:
        """The edition in which each record came, int32[N]: 1 for those that were registered."""

    @property
    def shadows(self) -> int:
        """How many people the public points stand for, S."""

    def to_points(self, x: np.ndarray) -> np.ndarray:
        """Return where inputs `[B, …]` are, as points `[B, d]`: a public map."""

    def near(self, points: np.ndarray) -> np.ndarray:
        """Return what each record adds to its class for queries at these points: uint8 `[B, N]`.

        A record's weight is a function of the query, of the record and of what is public alone.
        """

    def public_neighbours(self, points: np.ndarray) -> Nearby:
        """Return which public points are near, and look at no record."""


@dataclass(frozen=True)
class Neighbourhood:
    """The records of an ensemble whose units vote, and whose they are."""

    ensemble: Weighing
    units: Units

    def weighed(self, points: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the weights uint8 `[b, N]` of all records for queries at `[B, d]`, in order."""
        records = max(1, self.units.records)
        for asked in _blocks(points, records):
            block = self.ensemble.near(asked)
            _check(block, (len(asked), records))
            yield block

    def public(self, points: np.ndarray) -> Iterator[Nearby]:
        """Yield which public points are near queries at `[B, d]`, in order."""
        shadows = self.ensemble.shadows
        for asked in _blocks(points, shadows):
            found = self.ensemble.public_neighbours(asked)
            _check(found.weights, (len(asked), shadows))
            _check(found.near_wider, (len(asked), shadows))
            yield found


def _blocks(points: np.ndarray, width: int) -> Iterator[np.ndarray]:
    size = max(1, BLOCK // max(1, width))
    return (points[start : start + size] for start in range(0, len(points), size))


def _check(weights: np.ndarray, shape: tuple[int, int]) -> None:
    if weights.dtype != np.uint8 or weights.shape != shape:
        raise EnsembleUnavailable("The records did not weigh in as they were registered.")


class Voters(Protocol):
    """Turns batches of inputs into the vote counts of registered ensembles. Thread-safe.

    To add one, derive a class and let `any_voters.AnyVoters` choose it.
    """

    def check(self, record: EnsembleRecord) -> None:
        """Raise `EnsembleUnavailable` unless the registered ensemble can vote now."""

    def available(self, record: EnsembleRecord) -> bool:
        """Whether `check` passes."""
        try:
            self.check(record)
        except EnsembleUnavailable:
            return False
        return True

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the teachers' vote counts for canonical inputs `[B, …]` as int64 `[B, m]`.

        Of an ensemble of the kind `SHARED`, sums as uint32 `[B, m]`: counts modulo 2³², with the
        aggregator's noise. Raises `EnsembleUnavailable`.
        """

    def neighbourhood(self, record: EnsembleRecord) -> Neighbourhood:
        """Return the records of an ensemble whose units vote. Raises `EnsembleUnavailable`.

        Only voters in this process have any: weights of single records go nowhere else.
        """
        raise EnsembleUnavailable(
            f"The people of {record.name} vote where this server has their records: on its own "
            "machine, not on a cluster and not at other owners. Nothing was charged."
        )

    def close(self) -> None:
        """Give back what outlives a vote, such as processes. Nothing is voted on after it."""
        return  # most have nothing


def checked_votes(voters: Voters, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
    """Return the vote counts for canonical inputs `[B, …]`: int64 `[B, m]`, checked.

    Raises `EnsembleUnavailable`, also if a row is not one vote per teacher: every price depends
    on that, but for that of sums (`SHARED`), which nobody can check.
    """
    counts = voters.votes(record, inputs)
    teachers, classes = record.facts.teachers, len(record.facts.classes)
    if record.facts.kind == SHARED:
        return counts
    if (
        counts.shape != (len(inputs), classes)
        or counts.dtype.kind != "i"
        or (counts < 0).any()
        or (counts.sum(axis=1) != teachers).any()
    ):
        raise EnsembleUnavailable(
            f"The ensemble {record.name} returned counts that do not add up to its teachers."
        )
    return counts
