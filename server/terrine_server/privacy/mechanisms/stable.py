"""The exact winner, after a private test of its margin."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.events import CostEvent, StabilityTest
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
from terrine_server.privacy.mechanisms.registration import (
    AuditCase,
    Grid,
    NoisyTest,
    OutcomeLaw,
    plan_sigmas,
    three_digits,
    two_class_path,
)
from terrine_server.privacy.noise import Entropy, add_noise, discrete_gaussian
from terrine_server.privacy.numbers import Counts, full_tallies
from terrine_server.privacy.parameters import (
    ParameterError,
    check_delta,
    check_ensemble,
    check_sigma,
)


def distance_to_instability(counts: Counts) -> NDArray[np.int64]:
    """Return d = max(0, floor((G − 1)/2)) of each row; G is the gap of the two largest counts.

    More than d votes must move before another class can win (Thakurta & Smith 2013). One moved vote
    changes d by at most 1, and neighbours with different winners both have d = 0. Nothing is
    sorted: how long that takes would depend on the votes.
    """
    others = counts.copy()
    others[np.arange(len(counts)), counts.argmax(axis=1)] = 0
    gap = counts.max(axis=1) - others.max(axis=1)
    distance: NDArray[np.int64] = np.maximum(0, (gap - 1) // 2)
    return distance


@dataclass(frozen=True)
class StableArgmax:
    """Releases argmax n if d + N_Z(0, sigma²) ≥ w, where d = max(0, floor((G − 1)/2)).

    G is the gap between the two largest counts. d is the distance to instability (Thakurta & Smith
    2013; propose-test-release, Dwork & Lei 2009): it moves by at most 1, and neighbours with
    different winners both have d = 0. w is the least integer with Pr[N_Z ≥ w] ≤ delta_per_query.

    Price: every test, answered or not, is one Gaussian release of sensitivity 1, plus
    delta_per_query for the probability that an unstable winner passes. With those events excluded,
    answers are post-processing of the tests, so the tests' costs and the deltas add up separately.
    """

    teachers: int
    classes: int
    sigma: float
    delta_per_query: float

    name: ClassVar[str] = "stable"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        AuditCase(
            "stable",
            {"name": "stable", "sigma": 1.0, "delta_per_query": 0.02},
            19,
            two_class_path(19),
        ),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_sigma("sigma", self.sigma)
        check_delta("delta_per_query", self.delta_per_query)
        if self.threshold > self.largest_distance:
            raise ParameterError(
                f"sigma = {self.sigma:g} and delta_per_query = {self.delta_per_query:g} require a "
                f"distance of {self.threshold} votes, but even {self.teachers} unanimous teachers "
                f"are only {self.largest_distance} votes from another winner: no query could be "
                "answered. Use a smaller sigma, a larger delta_per_query or more teachers."
            )

    @property
    def threshold(self) -> int:
        """The test's threshold w, in votes."""
        return discrete_gaussian(self.sigma).smallest_with_tail(self.delta_per_query)

    @property
    def largest_distance(self) -> int:
        """The distance to instability of a unanimous vote."""
        return (self.teachers - 1) // 2

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """A query pays for its test, answered or not."""
        test = StabilityTest(
            self.sigma, self.threshold, self.largest_distance, self.delta_per_query
        )
        return {VoteOutcome.ABSTAINED: test, VoteOutcome.ANSWERED: test}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer with the exact winner or abstain, for each row of counts, int64[B, m]."""
        votes = full_tallies(counts, self.teachers, self.classes)
        noise = discrete_gaussian(self.sigma)
        passed = add_noise(distance_to_instability(votes), noise, entropy) >= self.threshold
        return Released.where(passed, votes.argmax(axis=1), VoteOutcome.ABSTAINED)

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], for forecasts."""
        test = NoisyTest(distance_to_instability(counts), self.threshold, self.sigma)
        return OutcomeLaw(test=test)

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Return the values that plans try."""
        # What is left of a twentieth of δ, `quoting.STABILITY_SHARE`, for so many queries.
        shares = (0.999 * delta / 20 / queries for queries in (50, 500, 5000))
        return {"sigma": plan_sigmas(teachers), "delta_per_query": three_digits(shares)}
