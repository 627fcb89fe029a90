"""The noisy maximum of votes to whose winner some were added."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from terrine_server.privacy.events import CostEvent, GaussianNoisyMax, LaplaceNoisyMax
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
from terrine_server.privacy.mechanisms.registration import (
    AuditCase,
    Grid,
    OutcomeLaw,
    plan_sigmas,
    single_query,
    two_class_path,
)
from terrine_server.privacy.noise import Entropy, discrete_gaussian, discrete_laplace, noisy_max
from terrine_server.privacy.numbers import Counts, full_tallies
from terrine_server.privacy.parameters import (
    ParameterError,
    check_ensemble,
    check_gamma,
    check_sigma,
    integer,
)

# Far fewer cost more than a project may have.
MAX_EXTRA_VOTES = 1_000_000_000
NEAR_ZERO_COST = (
    "each vote added to the winner is paid for, as other records move them all. With the near-zero-"
    "cost paper's own c = 1e100 and gamma = 1e-10, one answer has an ε of about 1e90, not near 0: "
    "docs/privacy/failed-claims.md, Near-zero cost. For exact winners use stable"
)


@dataclass(frozen=True)
class Immutable:
    """Adds c votes to the winner, then answers the noisy maximum, Laplace or Gaussian.

    NZC (section 3, Theorem 4) claims (2·gamma, 0)-DP. That is false: if a neighbour has another
    winner, the c votes move too, so a count moves by up to 1 + c. The price that holds: pure
    2·gamma·(1 + c)-DP, or the Gaussian price at a shift of 1 + c (three counts may then move, by
    1 + c, c and 1, and (1 + c)² + c² + 1 ≤ 2(1 + c)²).
    """

    teachers: int
    classes: int
    c: int
    gamma: float | None = None
    sigma: float | None = None

    name: ClassVar[str] = "immutable"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        AuditCase(
            "immutable, Laplace",
            {"name": "immutable", "c": 1, "gamma": 1.0},
            9,
            (single_query((3, 2, 2, 2), (2, 2, 2, 3)), single_query((2, 2, 2, 3), (2, 3, 2, 2))),
        ),
        AuditCase(
            "immutable, Gaussian",
            {"name": "immutable", "c": 2, "sigma": 6.0},
            19,
            two_class_path(19),
        ),
        AuditCase(
            "immutable, as published",
            {"name": "immutable", "c": 5, "gamma": 0.5},
            5,
            (single_query((3, 2), (2, 3)), single_query((4, 1), (3, 2))),
            claim=2 * 0.5,
        ),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        integer("c", self.c, 0, MAX_EXTRA_VOTES, NEAR_ZERO_COST)
        if (self.gamma is None) == (self.sigma is None):
            raise ParameterError(
                "immutable takes exactly one of gamma (Laplace noise) and sigma (Gaussian noise)."
            )
        if self.gamma is not None:
            check_gamma(self.gamma)
        else:
            check_sigma("sigma", self.sigma)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Every query is answered and pays for a noisy maximum whose counts move by 1 + c votes."""
        event: CostEvent
        if self.gamma is None:
            event = GaussianNoisyMax(cast("float", self.sigma), shift=1 + self.c)
        else:
            event = LaplaceNoisyMax(self.gamma, shift=1 + self.c)
        return {VoteOutcome.ANSWERED: event}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer each row of counts, int64[B, m], with the noisy maximum."""
        votes = full_tallies(counts, self.teachers, self.classes)
        votes[np.arange(len(votes)), votes.argmax(axis=1)] += self.c
        if self.gamma is None:
            table = discrete_gaussian(cast("float", self.sigma))
        else:
            table = discrete_laplace(self.gamma)
        labels = noisy_max(votes, table, entropy)
        return Released.all_answered(labels)

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], for forecasts."""
        return OutcomeLaw(sigma=self.sigma, gamma=self.gamma, boost=self.c)

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Return the values that plans try."""
        return {"sigma": plan_sigmas(teachers), "c": [0, 1, 2, 5]}
