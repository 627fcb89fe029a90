"""What every mechanism does: votes in, outcomes out, and a frozen cost event per outcome."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.accounting.events import (
    Composition,
    ConfidentMax,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
)
from terrine_server.privacy.noise import Entropy, NoiseTable

Counts = NDArray[np.int64]
Probabilities = NDArray[np.float64]


class VoteOutcome(StrEnum):
    """The outcome of a query that was paid for."""

    ANSWERED = "answered"
    ABSTAINED = "abstained"
    REINFORCED = "reinforced"


@dataclass(frozen=True)
class Released:
    """`outcomes`: object[B] of `VoteOutcome`. `labels`: int64[B], −1 where there is none.

    `counts`: int64[B, m], noisy counts that are released with the labels; None for mechanisms that
    release labels alone.
    """

    outcomes: NDArray[np.object_]
    labels: NDArray[np.int64]
    counts: Counts | None = None

    @classmethod
    def where(
        cls, answered: NDArray[np.bool_], labels: NDArray[np.int64], otherwise: VoteOutcome
    ) -> Released:
        """Return `labels` where `answered`; elsewhere no label and the outcome `otherwise`."""
        choices = np.array([otherwise, VoteOutcome.ANSWERED], dtype=object)
        return cls(choices[answered.astype(np.intp)], np.where(answered, labels, -1))

    def reinforced(self, confirmed: NDArray[np.bool_], labels: NDArray[np.int64]) -> Released:
        """Return a copy in which each `confirmed` abstention is reinforced with its label."""
        changed = confirmed & (self.labels < 0)
        outcomes = np.where(changed, np.array(VoteOutcome.REINFORCED, dtype=object), self.outcomes)
        return Released(outcomes, np.where(changed, labels, self.labels))


class Mechanism(Protocol):
    """A private vote. Between neighbouring data sets one vote of each query changes its class."""

    @property
    def teachers(self) -> int:
        """How many votes are cast."""

    @property
    def classes(self) -> int:
        """How many classes are voted on."""

    @property
    def name(self) -> str:
        """The mechanism's name in requests and responses."""

    @property
    def needs_probabilities(self) -> bool:
        """Whether `release` needs the student's class probabilities."""

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Return the cost event of each possible outcome."""

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Release an outcome for each row of the vote counts, int64[B, m].

        Draws the same amount of noise for every query, whatever its votes and outcome. Raises
        `ValueError` on counts that this ensemble cannot have cast, without quoting them.
        """


def threshold_events(
    teachers: int,
    classes: int,
    threshold: int,
    sigma1: float,
    sigma2: float,
    *,
    low: int,
    answer_share: float | None,
    baseline: int = 0,
) -> tuple[CostEvent, CostEvent]:
    """Return the events of a failed test, and of an answer, of a statistic that is ≥ `low`.

    `baseline`: at least so many votes are subtracted from every count before the test.
    """
    if answer_share is None:
        test = GaussianThreshold(sigma1, threshold, low=low, high=teachers)
        return test, Composition((test, GaussianNoisyMax(sigma2)))
    whole = ConfidentMax(
        teachers, classes, threshold, sigma1, sigma2, low, baseline, answer_share, answered=True
    )
    return replace(whole, answered=False), whole


def checked_counts(
    counts: NDArray[Any], teachers: int, classes: int, *, all_vote: bool = False
) -> Counts:
    """Return vote counts as int64[B, m]; raise `ValueError` if the ensemble cannot cast them.

    `all_vote`: whether the price holds only if every teacher votes.
    """
    if not isinstance(counts, np.ndarray) or not np.issubdtype(counts.dtype, np.integer):
        raise ValueError("Vote counts must be an integer array.")
    if counts.ndim != 2 or counts.shape[1] != classes:
        raise ValueError(f"Vote counts must have shape [B, {classes}], not {counts.shape}.")
    if np.any(counts < 0) or np.any(counts.sum(axis=1, dtype=np.int64) > teachers):
        raise ValueError(f"Each row of vote counts must be ≥ 0 and sum to at most {teachers}.")
    if all_vote and np.any(counts.sum(axis=1, dtype=np.int64) != teachers):
        raise ValueError(f"Each row of vote counts must sum to {teachers}: every teacher votes.")
    return counts.astype(np.int64)


def distance_to_instability(counts: Counts) -> NDArray[np.int64]:
    """Return d = max(0, floor((G − 1)/2)) of each row; G is the gap of the two largest counts.

    More than d votes must move before another class can win (Thakurta & Smith 2013). One moved vote
    changes d by at most 1, and neighbours with different winners both have d = 0.
    """
    second, first = np.partition(counts, -2, axis=1)[:, -2:].T
    distance: NDArray[np.int64] = np.maximum(0, (first - second - 1) // 2)
    return distance


def noisy_max(counts: Counts, noise: NoiseTable, entropy: Entropy) -> NDArray[np.int64]:
    """Return argmax_j (counts_j + fresh noise) of each row; ties go to the lowest class."""
    winners: NDArray[np.int64] = (counts + noise.sample(counts.shape, entropy)).argmax(axis=1)
    return winners
