"""The noisy maximum where enough teachers agree."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from terrine_server.privacy.events import (
    Composition,
    ConfidentMax,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
)
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
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
    check_answer_share,
    check_ensemble,
    check_sigma,
    check_threshold,
)


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


@dataclass(frozen=True)
class ConfidentGNMax:
    """Answers with GNMax(sigma2) if max_j n_j + N_Z(0, sigma1²) ≥ threshold; else abstains.

    Price: the largest count moves by at most one vote, so the test is one Gaussian release of
    sensitivity 1 and is always paid. The noisy maximum is paid only if the test passes. Whether it
    passed is public, so the charge is a function of the transcript. With an `answer_share` both are
    priced as one release (`joint`), which costs less in Rényi DP.
    """

    teachers: int
    classes: int
    threshold: int
    sigma1: float
    sigma2: float
    answer_share: float | None = None

    name: ClassVar[str] = "confident_gnmax"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        AuditCase(
            "confident_gnmax",
            {"name": "confident_gnmax", "threshold": 17, "sigma1": 1.5, "sigma2": 4.0},
            19,
            two_class_path(19),
        ),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_threshold(self.threshold, self.teachers)
        check_sigma("sigma1", self.sigma1)
        check_sigma("sigma2", self.sigma2)
        check_answer_share(self.answer_share)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """An abstention pays for the test, an answer for the test and the noisy maximum."""
        # The votes add up to the number of teachers, so some class has at least their mean.
        mean = -(-self.teachers // self.classes)
        test, answer = threshold_events(
            self.teachers,
            self.classes,
            self.threshold,
            self.sigma1,
            self.sigma2,
            low=0 if self.answer_share is None else mean,
            answer_share=self.answer_share,
        )
        return {VoteOutcome.ABSTAINED: test, VoteOutcome.ANSWERED: answer}

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer or abstain for each row of counts, int64[B, m]; both draw the same noise."""
        votes = full_tallies(counts, self.teachers, self.classes)
        tested = add_noise(votes.max(axis=1), discrete_gaussian(self.sigma1), entropy)
        labels = noisy_max(votes, discrete_gaussian(self.sigma2), entropy)
        return Released.where(tested >= self.threshold, labels, VoteOutcome.ABSTAINED)

    def outcome_law(self, counts: Counts, probabilities: Probabilities | None = None) -> OutcomeLaw:
        """Return the law of the outcomes on votes, int64[B, m], for forecasts."""
        test = NoisyTest(counts.max(axis=1), self.threshold, self.sigma1)
        return OutcomeLaw(sigma=self.sigma2, test=test)

    def with_answer_share(self, answer_share: float) -> ConfidentGNMax:
        """Return the mechanism, with test and maximum priced as one release."""
        return replace(self, answer_share=answer_share)

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Return the values that plans try."""
        return {
            "threshold": plan_thresholds(teachers, (0.5, 0.6, 0.7, 0.8, 0.9)),
            "sigma1": plan_test_sigmas(teachers),
            "sigma2": plan_sigmas(teachers, skip=2),
        }
