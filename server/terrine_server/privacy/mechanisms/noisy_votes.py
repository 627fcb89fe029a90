"""All noisy vote counts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from terrine_server.privacy.events import CostEvent, GaussianNoisyCounts
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
from terrine_server.privacy.mechanisms.registration import (
    AuditCase,
    Grid,
    OutcomeLaw,
    plan_sigmas,
    two_class_path,
)
from terrine_server.privacy.noise import Entropy, add_noise, discrete_gaussian
from terrine_server.privacy.numbers import Counts, full_tallies
from terrine_server.privacy.parameters import (
    MAX_COUNTED_CLASSES,
    check_ensemble,
    check_sigma,
    integer,
)


@dataclass(frozen=True)
class NoisyVotes:
    """Answers n_j + Y_j for every class j, with Y_j ~ N_Z(0, sigma²) in votes, and their argmax.

    This is the Gaussian mechanism on the histogram (Dwork & Roth 2014, appendix A; discrete noise:
    Canonne, Kamath & Steinke 2020, arXiv 2004.00010). Price: that of `GNMax` with the same sigma,
    whose proof goes through this release: two counts move by one vote each, which costs α/sigma² in
    Rényi DP and μ² = 2·μ_Z(sigma)² in Gaussian DP. It is the same at any votes: there is no
    data-dependent price, and no analysis of the winner alone applies.
    """

    teachers: int
    classes: int
    sigma: float

    name: ClassVar[str] = "noisy_votes"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        # Of noisy counts all neighbours are alike: two of them, not to take that for granted.
        AuditCase(
            "noisy_votes", {"name": "noisy_votes", "sigma": 2.0}, 19, two_class_path(19)[6:16:9]
        ),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_sigma("sigma", self.sigma)
        why = "every answer of `noisy_votes` holds a count for each class; use gnmax for more"
        integer("classes", self.classes, 2, MAX_COUNTED_CLASSES, why)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Every query is answered and pays for all its noisy counts."""
        return {VoteOutcome.ANSWERED: GaussianNoisyCounts(self.sigma)}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer each row of counts, int64[B, m], with its noisy counts and the largest of them.

        Ties go to the lowest class. A noisy count may be negative, or exceed the teachers.
        """
        votes = full_tallies(counts, self.teachers, self.classes)
        return Released.all_counted(add_noise(votes, discrete_gaussian(self.sigma), entropy))

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], for forecasts."""
        return OutcomeLaw(sigma=self.sigma)

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Return the values that plans try."""
        return {"sigma": plan_sigmas(teachers)}
