"""GNMax: the noisy maximum with Gaussian noise (P18: Papernot et al. 2018, arXiv 1802.08908)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from terrine_server.privacy.accounting.events import (
    CostEvent,
    GaussianArgmax,
    GaussianNoisyMax,
)
from terrine_server.privacy.mechanisms.base import (
    Counts,
    Probabilities,
    Released,
    VoteOutcome,
    checked_counts,
    noisy_max,
)
from terrine_server.privacy.noise import Entropy, discrete_gaussian
from terrine_server.privacy.parameters import ParameterError, check_ensemble, check_sigma


@dataclass(frozen=True)
class GNMax:
    """Answers argmax_j (n_j + Y_j), with Y_j ~ N_Z(0, sigma²) in votes (P18, section 4.1).

    Of the noisy counts two move by one vote each, which costs α/sigma² in Rényi DP and
    μ² = 2·μ_Z(sigma)² in Gaussian DP (see `accounting.curves.shift_mu`). With `pricing="tight"` a
    query in Rényi DP pays for its answer alone, which reveals less (docs/privacy/gnmax.md);
    without, as in older projects, for the noisy counts.
    """

    teachers: int
    classes: int
    sigma: float
    pricing: Literal["tight"] | None = None

    name: ClassVar[str] = "gnmax"
    guarantee: ClassVar[Literal["proven", "claimed"]] = "proven"
    needs_probabilities: ClassVar[bool] = False
    opening: ClassVar[CostEvent | None] = None

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_sigma("sigma", self.sigma)
        if self.pricing not in (None, "tight"):
            raise ParameterError(f"pricing must be tight, or not be given: not {self.pricing!r}.")

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Every query is answered and pays for one noisy maximum."""
        event = GaussianNoisyMax if self.pricing is None else GaussianArgmax
        return {VoteOutcome.ANSWERED: event(self.sigma)}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer each row of counts, int64[B, m], with the noisy maximum."""
        votes = checked_counts(counts, self.teachers, self.classes)
        labels = noisy_max(votes, discrete_gaussian(self.sigma), entropy)
        return Released.where(np.full(len(labels), True), labels, VoteOutcome.ABSTAINED)
