"""The noisy maximum with Laplace noise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from terrine_server.privacy.events import CostEvent, LaplaceArgmax
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
from terrine_server.privacy.mechanisms.registration import (
    AuditCase,
    Grid,
    OutcomeLaw,
    plan_gammas,
    two_class_path,
)
from terrine_server.privacy.noise import Entropy, discrete_laplace, noisy_max
from terrine_server.privacy.numbers import Counts, full_tallies
from terrine_server.privacy.parameters import check_ensemble, check_gamma


@dataclass(frozen=True)
class LNMax:
    """Answers argmax_j (n_j + L_j), with L_j discrete Laplace of scale 1/gamma votes.

    The noisy counts are pure 2·gamma-DP (P17, Theorem 2): two of them move by one vote each. The
    integer lattice does not change this: Pr[L = k] / Pr[L = k + 1] ≤ e^gamma for every integer k.
    A query pays for its answer alone, which reveals less (docs/privacy/lnmax.md).
    """

    teachers: int
    classes: int
    gamma: float

    name: ClassVar[str] = "lnmax"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        AuditCase("lnmax", {"name": "lnmax", "gamma": 0.5}, 19, two_class_path(19)),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_gamma(self.gamma)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Every query is answered and pays for one noisy maximum."""
        return {VoteOutcome.ANSWERED: LaplaceArgmax(self.gamma)}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer each row of counts, int64[B, m], with the noisy maximum."""
        votes = full_tallies(counts, self.teachers, self.classes)
        labels = noisy_max(votes, discrete_laplace(self.gamma), entropy)
        return Released.all_answered(labels)

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], for forecasts."""
        return OutcomeLaw(gamma=self.gamma)

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Return the values that plans try."""
        return {"gamma": plan_gammas(teachers)}
