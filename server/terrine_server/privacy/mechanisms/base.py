"""What every mechanism is: votes in, outcomes out, and a frozen cost event for each outcome."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.events import CostEvent
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.numbers import Counts
from terrine_server.privacy.parameters import ParameterError

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
    def all_answered(cls, labels: NDArray[np.int64]) -> Released:
        """Return an answer for every query."""
        return cls.where(np.full(len(labels), True), labels, VoteOutcome.ABSTAINED)

    @classmethod
    def all_counted(cls, noisy: Counts) -> Released:
        """Return all noisy counts, and the largest of each row; ties go to the lowest class."""
        return replace(cls.all_answered(noisy.argmax(axis=1)), counts=noisy)

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
        `ValueError` for another shape or type, and for no value: see `full_tallies`.
        """


@runtime_checkable
class ComparesWithStudent(Mechanism, Protocol):
    """A mechanism that compares votes with a baseline that follows from the student's own guess."""

    def canonical_baseline(self, probabilities: Probabilities) -> Counts:
        """Return the only part of float[B, m] that is compared with the votes, int64[B, m]."""

    @property
    def even_baselines(self) -> tuple[int, ...]:
        """The baselines for which prices of their own are worth having, ascending."""

    def events(self, baseline: int = 0) -> Mapping[VoteOutcome, CostEvent]:
        """Return the cost event of each possible outcome, if every class has this baseline."""


# How far from 1 a row of probabilities may sum; float16 softmax outputs pass.
ROW_SUM_TOLERANCE = 1e-3


def canonical_probabilities(probabilities: Probabilities, classes: int) -> Probabilities:
    """Return a student's probabilities as float64[B, m], or raise `ParameterError`.

    Values that rounding put above 1, as float32 softmax does, become 1; nothing else is changed.
    """
    student = np.ascontiguousarray(probabilities, dtype=np.float64)
    if student.ndim != 2 or student.shape[1] != classes:
        raise ParameterError(
            f"Probabilities must have shape [B, {classes}], not {list(student.shape)}."
        )
    if not ((student >= 0) & (student <= 1 + ROW_SUM_TOLERANCE)).all():  # also refuses NaN
        raise ParameterError("Probabilities must be finite numbers between 0 and 1.")
    if (np.abs(student.sum(axis=1) - 1) > ROW_SUM_TOLERANCE).any():
        raise ParameterError(
            f"Each row of probabilities must sum to 1, within {ROW_SUM_TOLERANCE:g}."
        )
    return np.minimum(student, 1)
