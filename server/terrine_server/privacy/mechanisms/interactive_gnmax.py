"""The noisy maximum where teachers disagree with the student."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from terrine_server.privacy.events import CostEvent
from terrine_server.privacy.mechanisms.base import (
    Probabilities,
    Released,
    VoteOutcome,
    canonical_probabilities,
)
from terrine_server.privacy.mechanisms.confident_gnmax import threshold_events
from terrine_server.privacy.mechanisms.registration import (
    AuditCase,
    Grid,
    NoisyTest,
    OutcomeLaw,
    plan_sigmas,
    plan_test_sigmas,
    plan_thresholds,
    two_class_path,
)
from terrine_server.privacy.noise import Entropy, add_noise, discrete_gaussian, noisy_max
from terrine_server.privacy.numbers import Counts, full_tallies
from terrine_server.privacy.parameters import (
    ParameterError,
    check_answer_share,
    check_ensemble,
    check_sigma,
    check_threshold,
    within,
)


@dataclass(frozen=True)
class InteractiveGNMax:
    """Answers with GNMax(sigma2) if max_j (n_j − b_j) + N_Z(0, sigma1²) ≥ threshold.

    The baseline b_j = floor(n·p_j + 1/2) comes from the student's own class probabilities p. If the
    test fails, the student's label is confirmed if max p > confidence; else the query abstains.

    Price: for any fixed integer baseline the tested maximum moves by at most one vote, so the cost
    is that of Confident-GNMax; what follows a failed test depends on p alone. P18 subtracts n·p
    without rounding; an integer baseline keeps the discrete noise exact. With an `answer_share`,
    test and maximum are priced as one release, for any baseline ≥ 0. Queries with an even baseline
    cost less: to pass, their top class needs more votes, so it is further from a tie.
    """

    teachers: int
    classes: int
    threshold: int
    sigma1: float
    sigma2: float
    confidence: float
    answer_share: float | None = None

    name: ClassVar[str] = "interactive_gnmax"
    needs_probabilities: ClassVar[bool] = True
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        AuditCase(
            "interactive_gnmax",
            {
                "name": "interactive_gnmax",
                "threshold": 8,
                "sigma1": 1.5,
                "sigma2": 4.0,
                "confidence": 0.4,
            },
            19,
            two_class_path(19),
            student=(0.5, 0.5),
        ),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_threshold(self.threshold, self.teachers)
        check_sigma("sigma1", self.sigma1)
        check_sigma("sigma2", self.sigma2)
        within("confidence", self.confidence, 0, 1, "it is compared with a probability")
        check_answer_share(self.answer_share)

    @property
    def even_baselines(self) -> tuple[int, ...]:
        """The baselines for which prices of their own are worth having, ascending.

        That of even probabilities, with which a student begins, and half of it.
        """
        even = int(self.teachers / self.classes + 0.5)
        return tuple(sorted({even // 2, even} - {0})) if self.answer_share is not None else ()

    def events(self, baseline: int = 0) -> Mapping[VoteOutcome, CostEvent]:
        """A failed test pays for the test, an answer for the test and the noisy maximum.

        `baseline`: b_j is at least this for every class.
        """
        test, answer = threshold_events(
            self.teachers,
            self.classes,
            self.threshold,
            self.sigma1,
            self.sigma2,
            low=-self.teachers,
            answer_share=self.answer_share,
            baseline=baseline,
        )
        return {
            VoteOutcome.ABSTAINED: test,
            VoteOutcome.REINFORCED: test,
            VoteOutcome.ANSWERED: answer,
        }

    def canonical_baseline(self, probabilities: Probabilities) -> Counts:
        """Return floor(n·p + 1/2), int64[B, m], the only part of p that is compared with the votes.

        Raises `ParameterError` unless p is [B, m], finite, in [0, 1], with rows that sum to 1.
        """
        return np.floor(
            self.teachers * canonical_probabilities(probabilities, self.classes) + 0.5
        ).astype(np.int64)

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer, confirm or abstain for each row of counts and probabilities, both [B, m]."""
        votes = full_tallies(counts, self.teachers, self.classes)
        if probabilities is None:
            raise ParameterError("`interactive_gnmax` needs the student's class probabilities.")
        student = canonical_probabilities(probabilities, self.classes)
        if len(student) != len(votes):
            raise ParameterError(
                f"{len(votes)} queries came with {len(student)} rows of probabilities."
            )
        difference = (votes - self.canonical_baseline(student)).max(axis=1)
        tested = add_noise(difference, discrete_gaussian(self.sigma1), entropy)
        labels = noisy_max(votes, discrete_gaussian(self.sigma2), entropy)
        released = Released.where(tested >= self.threshold, labels, VoteOutcome.ABSTAINED)
        return released.reinforced(student.max(axis=1) > self.confidence, student.argmax(axis=1))

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], for forecasts."""
        if probabilities is None:
            raise ParameterError("`interactive_gnmax` needs a student: say how accurate it is.")
        difference = (counts - self.canonical_baseline(probabilities)).max(axis=1)
        test = NoisyTest(difference, self.threshold, self.sigma1)
        confirmed = probabilities.max(axis=1) > self.confidence
        return OutcomeLaw(sigma=self.sigma2, test=test, confirmed=confirmed)

    def with_answer_share(self, answer_share: float) -> InteractiveGNMax:
        """Return the mechanism, with test and maximum priced as one release."""
        return replace(self, answer_share=answer_share)

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Return the values that plans try."""
        return {
            "threshold": plan_thresholds(teachers, (0.3, 0.5, 0.7)),
            "sigma1": plan_test_sigmas(teachers),
            "sigma2": plan_sigmas(teachers, skip=2),
            "confidence": [0.9],
        }
