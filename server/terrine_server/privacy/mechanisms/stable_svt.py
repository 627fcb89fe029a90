"""StableSVT: exact winners with the sparse vector technique; only abstentions cost."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np

from terrine_server.privacy.accounting.events import CostEvent, SparseVectorEpoch, WithinEpoch
from terrine_server.privacy.accounting.units import SLACK
from terrine_server.privacy.mechanisms.base import (
    Counts,
    Probabilities,
    Released,
    VoteOutcome,
    checked_counts,
    distance_to_instability,
)
from terrine_server.privacy.noise import Entropy, discrete_laplace
from terrine_server.privacy.parameters import (
    MAX_EPSILON,
    MAX_TEACHERS,
    MIN_GAMMA,
    ParameterError,
    check_delta,
    check_ensemble,
    integer,
    within,
)

MAX_ANSWERS = 1_000_000


@dataclass(frozen=True)
class StableSVT:
    """Releases argmax n while d + ν > w + ρ; the first failure abstains and ends the epoch.

    d is the `distance_to_instability`. ρ is drawn when an epoch opens, ν for every query. An epoch
    also ends after `answers_per_epoch` answers, and with the call of `release` that opened it. w is
    the least integer with Pr[ν − ρ > w] ≤ delta_per_query.

    Price: an epoch is pure epsilon_per_epoch-DP, however long it is (Dwork & Roth 2014, section
    3.6), plus answers_per_epoch · delta_per_query for the probability that an unstable winner
    passes. Proof in docs/privacy/stable_svt.md. ρ has scale 1/ε₁, ν has scale 2/ε₂, and ε₁ + ε₂ is
    given. The wider of the two noises decides w, so ε₁ : ε₂ = 1 : 2 makes them equally wide.
    """

    teachers: int
    classes: int
    epsilon_per_epoch: float
    delta_per_query: float
    answers_per_epoch: int

    name: ClassVar[str] = "stable_svt"
    needs_probabilities: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        why = f"the noise has scale 3/ε, and its table is limited to scales of {1 / MIN_GAMMA:g}"
        within("epsilon_per_epoch", self.epsilon_per_epoch, 3 * MIN_GAMMA, MAX_EPSILON, why)
        check_delta("delta_per_query", self.delta_per_query)
        why = "an epoch must end, and δ is reserved for all of its answers"
        integer("answers_per_epoch", self.answers_per_epoch, 1, MAX_ANSWERS, why)
        if self.threshold > self.largest_distance:
            raise ParameterError(
                f"epsilon_per_epoch = {self.epsilon_per_epoch:g} and delta_per_query = "
                f"{self.delta_per_query:g} require a distance of {self.threshold} votes, but even "
                f"{self.teachers} unanimous teachers are only {self.largest_distance} votes from "
                "another winner: no query could be answered. Use a larger epsilon_per_epoch, a "
                "larger delta_per_query or more teachers."
            )

    @property
    def gamma(self) -> float:
        """The inverse scale of both noises, in 1/votes."""
        return self.epsilon_per_epoch / 3

    @property
    def threshold(self) -> int:
        """The threshold w, in votes."""
        return _threshold(self.gamma, self.delta_per_query)

    @property
    def largest_distance(self) -> int:
        """The distance to instability of a unanimous vote."""
        return (self.teachers - 1) // 2

    @property
    def opening(self) -> CostEvent:
        """An epoch is paid in full when it opens."""
        delta = Fraction(self.delta_per_query) * self.answers_per_epoch
        nearest = float(delta)
        return SparseVectorEpoch(
            epsilon_threshold=self.gamma,
            epsilon_query=2 * self.gamma,
            threshold=self.threshold,
            most=self.answers_per_epoch,
            delta=nearest if Fraction(nearest) >= delta else math.nextafter(nearest, math.inf),
        )

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """A query, answered or not, adds no cost to what its epoch has paid."""
        return {VoteOutcome.ABSTAINED: WithinEpoch(), VoteOutcome.ANSWERED: WithinEpoch()}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer with the exact winner or abstain, for each row of counts, int64[B, m], in order.

        One ρ is drawn per row, whether or not the row opens an epoch.
        """
        votes = checked_counts(counts, self.teachers, self.classes)
        noise = discrete_laplace(self.gamma).sample((2, len(votes)), entropy)
        margins = (distance_to_instability(votes) + noise[0] - self.threshold).tolist()
        rho = noise[1].tolist()
        passed, epochs = np.zeros(len(votes), dtype=np.bool_), np.zeros(len(votes), dtype=np.int64)
        epoch = answers = 0
        for row, margin in enumerate(margins):
            answered = margin > rho[epoch]
            passed[row], epochs[row] = answered, epoch
            answers += answered
            if not answered or answers == self.answers_per_epoch:
                epoch, answers = epoch + 1, 0
        return replace(
            Released.where(passed, votes.argmax(axis=1), VoteOutcome.ABSTAINED), epochs=epochs
        )


@lru_cache(maxsize=64)
def _threshold(gamma: float, delta: float) -> int:
    """Return the least w ≥ 1 with Pr[ν − ρ > w] ≤ delta."""
    log_delta = math.log(delta)
    return 1 + bisect_left(
        range(1, MAX_TEACHERS), True, key=lambda w: log_tail(gamma, w + 1) <= log_delta
    )


def log_tail(gamma: float, k: int) -> float:
    """Return ln Pr[ν − ρ ≥ k], k ≥ 0, of two discrete Laplace draws of scale 1/gamma, rounded up.

    With a = e^−gamma, Pr[ν − ρ = s] = ((1−a)/(1+a))² a^s (s + (1+a²)/(1−a²)) for s ≥ 0; all terms
    of the sum are positive.
    """
    a, rest = math.exp(-gamma), -math.expm1(-gamma)
    bracket = k + (1 + a + 2 * a * a) / (rest * (1 + a))
    return -gamma * k + math.log(rest / (1 + a) ** 2 * bracket) + SLACK
