"""The noisy maximum with Gaussian noise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from terrine_server.privacy.events import CostEvent, GaussianArgmax
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
from terrine_server.privacy.mechanisms.registration import (
    AuditCase,
    Grid,
    OutcomeLaw,
    plan_sigmas,
    two_class_path,
)
from terrine_server.privacy.noise import Entropy, discrete_gaussian, noisy_max
from terrine_server.privacy.numbers import Counts, full_tallies
from terrine_server.privacy.parameters import check_ensemble, check_sigma


@dataclass(frozen=True)
class GNMax:
    """Answers argmax_j (n_j + Y_j), with Y_j ~ N_Z(0, sigma²) in votes (P18, section 4.1).

    In Rényi DP a query pays for its answer alone, which reveals less than the noisy counts do
    (docs/privacy/gnmax.md). In Gaussian DP it pays for the counts, of which two move by one vote
    each: μ² = 2·μ_Z(sigma)² (see `curves.shift_mu`).
    """

    teachers: int
    classes: int
    sigma: float

    name: ClassVar[str] = "gnmax"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        AuditCase("gnmax", {"name": "gnmax", "sigma": 2.0}, 19, two_class_path(19)),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_sigma("sigma", self.sigma)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Every query is answered and pays for one noisy maximum."""
        return {VoteOutcome.ANSWERED: GaussianArgmax(self.sigma)}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer each row of counts, int64[B, m], with the noisy maximum."""
        votes = full_tallies(counts, self.teachers, self.classes)
        labels = noisy_max(votes, discrete_gaussian(self.sigma), entropy)
        return Released.all_answered(labels)

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], for forecasts."""
        return OutcomeLaw(sigma=self.sigma)

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Return the values that plans try."""
        return {"sigma": plan_sigmas(teachers)}
