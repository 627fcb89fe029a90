"""What a mechanism is expected to answer: assumed votes, and how likely each outcome is on them.

Probabilities are sums over the integer noise that is drawn, in double precision.

Never pass votes of teachers trained on private data, whatever inputs they voted on: a choice made
by looking at them reveals something about that data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine_server.privacy.mechanisms.base import Mechanism, VoteOutcome
from terrine_server.privacy.mechanisms.registration import Forecastable, OutcomeLaw
from terrine_server.privacy.numbers import Counts, Floats, check_votes
from terrine_server.privacy.parameters import ParameterError, check_ensemble, within

# Points at which noise is integrated, per standard deviation (per scale, for Laplace).
NODES_PER_DEVIATION = 16

_MAX_CELLS = 1 << 21


# The accuracy of the student that Interactive-GNMax is expected to serve, if nothing is said.
EXPECTED_STUDENT_ACCURACY = 0.9


@dataclass(frozen=True)
class Consensus:
    """A kind of query: `agreement` is the share of teachers that vote for the winner.

    `share` is the share of queries of this kind. Of the teachers that dissent, the share
    `runner_up` agrees on one other class; the rest are spread evenly.
    """

    agreement: float
    share: float = 1.0
    runner_up: float = 0.5

    @classmethod
    def parse(cls, text: str) -> list[Consensus]:
        """Return the kinds of query of a text C[:SHARE],… Raises `ParameterError`."""
        try:
            parts = [part.partition(":") for part in text.split(",")]
            return [cls(float(agreement), float(share or 1)) for agreement, _, share in parts]
        except ValueError:
            raise ParameterError(
                f"A consensus is given by numbers such as 0.9 or 0.95:6,0.8:3,0.5:1, not {text!r}."
            ) from None


# The default expectation: teachers that mostly agree.
DEFAULT_CONSENSUS = (Consensus(0.95, 0.7), Consensus(0.8, 0.2), Consensus(0.5, 0.1))


@dataclass(frozen=True, eq=False)
class Votes:
    """Kinds of query: `counts` int64[B, m], `weights` float[B] that add up to 1, `labels` int64[B].

    `labelled`: whether `labels` are the truth or only the plurality. `cast`: whether these votes
    were cast, so that they show which share of the queries a mechanism answers, or only assumed.
    `probabilities`, float[B, m], are the student's, with which Interactive-GNMax compares votes.
    """

    teachers: int
    counts: Counts
    weights: Floats
    labels: NDArray[np.int64]
    labelled: bool
    cast: bool = False
    probabilities: Floats | None = None

    @classmethod
    def synthetic(cls, levels: Sequence[Consensus], *, teachers: int, classes: int) -> Votes:
        """Return one histogram for each level of consensus.

        Raises `ParameterError` if a level is impossible; the text says what is possible.
        """
        check_ensemble(teachers, classes)
        if not levels or not sum(level.share for level in levels) > 0:
            raise ParameterError("At least one level of consensus needs a share above 0.")
        counts = np.array([_histogram(level, teachers, classes) for level in levels])
        weights = np.array([within("share", v.share, 0, 1e9, "it is a weight") for v in levels])
        return cls(
            teachers,
            counts,
            weights / weights.sum(),
            labels=np.zeros(len(counts), dtype=np.int64),
            labelled=False,
        )

    @classmethod
    def observed(
        cls, counts: ArrayLike, labels: ArrayLike | None = None, *, teachers: int
    ) -> Votes:
        """Return votes of teachers with public or synthetic data, all queries equally likely.

        `counts`: int[B, m]; `labels`: int[B], the truth, if known. Raises `ParameterError` on
        counts that do not sum to the number of teachers and on invalid labels.
        """
        votes = check_votes(np.asarray(counts), teachers)
        if len(votes) == 0:
            raise ParameterError("There are no votes: at least one query is needed.")
        check_ensemble(teachers, votes.shape[1])
        truth = votes.argmax(axis=1) if labels is None else np.asarray(labels)
        if truth.shape != (len(votes),) or not np.issubdtype(truth.dtype, np.integer):
            raise ParameterError(f"Labels must be {len(votes)} integers, one per query.")
        truth = truth.astype(np.int64)
        if np.any((truth < 0) | (truth >= votes.shape[1])):
            raise ParameterError(f"Labels must lie between 0 and {votes.shape[1] - 1}.")
        rows, weights = np.unique(np.column_stack([votes, truth]), axis=0, return_counts=True)
        return cls(
            teachers,
            rows[:, :-1],
            weights / len(votes),
            rows[:, -1],
            labelled=labels is not None,
            cast=True,
        )

    def with_expected_student(self) -> Votes:
        """Return the same votes with a student of `EXPECTED_STUDENT_ACCURACY`, if there is none."""
        return (
            self if self.probabilities is not None else self.with_student(EXPECTED_STUDENT_ACCURACY)
        )

    def with_student(self, accuracy: float) -> Votes:
        """Return the same votes with a student that is always certain of its label.

        On a share `accuracy` of the queries its label is right; on the rest it is the class with
        the most votes among the others. As the student is assumed, so is what is answered.
        """
        right = within("student accuracy", accuracy, 0, 1, "it is a share of the queries")
        rows = np.arange(len(self.counts))
        others = self.counts.copy()
        others[rows, self.labels] = -1
        certain = np.eye(self.counts.shape[1])
        return replace(
            self,
            counts=np.tile(self.counts, (2, 1)),
            weights=np.concatenate([self.weights * right, self.weights * (1 - right)]),
            labels=np.tile(self.labels, 2),
            cast=False,
            probabilities=np.concatenate([certain[self.labels], certain[others.argmax(axis=1)]]),
        )


def _histogram(level: Consensus, teachers: int, classes: int) -> NDArray[np.int64]:
    why = f"with {classes} classes the winner has at least one vote in {classes}"
    agreement = within("consensus", level.agreement, 1 / classes, 1, why)
    second = within("runner-up", level.runner_up, 0, 1, "it is a share of the dissenters")
    top = min(teachers, math.ceil(agreement * teachers - 1e-9))
    rest = teachers - top
    # The runner-up has at least as many votes as the others, and at most those of the winner.
    runner_up = min(top, rest, max(round(second * rest), math.ceil(rest / (classes - 1))))
    others = np.zeros(classes - 2, dtype=np.int64)
    if classes > 2:
        spread = np.arange(classes - 2) < (rest - runner_up) % (classes - 2)
        others = (rest - runner_up) // (classes - 2) + spread
    return np.concatenate([[top, runner_up], others]).astype(np.int64)


@dataclass(frozen=True)
class ExpectedOutcomes:
    """The probability of each outcome, and of each outcome being right, on each kind of query."""

    weights: Floats
    probability: Mapping[VoteOutcome, Floats]
    right: Mapping[VoteOutcome, Floats]

    @property
    def shares(self) -> dict[VoteOutcome, float]:
        """The expected share of queries with each outcome."""
        return {outcome: float(p @ self.weights) for outcome, p in self.probability.items()}

    @property
    def answered(self) -> float:
        """The share of queries that get a label: an answer, or the student's label confirmed."""
        return sum(
            share for name, share in self.shares.items() if name is not VoteOutcome.ABSTAINED
        )

    @property
    def accuracy(self) -> float:
        """The share of those labels that are right; 0 if there are none."""
        right = sum(float(p @ self.weights) for p in self.right.values())
        return right / self.answered if self.answered > 0 else 0.0


def expected_outcomes(mechanism: Mechanism, votes: Votes) -> ExpectedOutcomes:
    """Return the expected outcomes of a mechanism on these votes. Raises `ParameterError`."""
    if not isinstance(mechanism, Forecastable):
        raise ParameterError(f"There is no forecast for {mechanism.name}.")
    law = mechanism.outcome_law(votes.counts, votes.probabilities)
    passed = np.ones(len(votes.counts))
    if law.test is not None:
        needed = law.test.threshold - law.test.statistic
        passed = gaussian_noise(law.test.sigma).at_least(needed)
    probability = {VoteOutcome.ANSWERED: passed}
    right = {VoteOutcome.ANSWERED: passed * _chance_of_label(law, votes)}
    if law.confirmed is not None and votes.probabilities is not None:
        confirmed = (1 - passed) * law.confirmed
        probability[VoteOutcome.REINFORCED] = confirmed
        agrees = votes.probabilities.argmax(axis=1) == votes.labels
        right[VoteOutcome.REINFORCED] = confirmed * agrees
    if VoteOutcome.ABSTAINED in mechanism.events():
        probability[VoteOutcome.ABSTAINED] = np.maximum(0, 1 - sum(probability.values()))
    return ExpectedOutcomes(votes.weights, probability, right)


def _chance_of_label(law: OutcomeLaw, votes: Votes) -> Floats:
    """Return Pr[the label of an answer is right], float[B]."""
    if law.sigma is not None:
        return win_probability(votes, gaussian_noise(law.sigma), law.boost)
    if law.gamma is not None:
        return win_probability(votes, laplace_noise(law.gamma), law.boost)
    right: Floats = (votes.counts.argmax(axis=1) == votes.labels).astype(np.float64)
    return right


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """Discrete noise in double precision: its cdf over [−reach, reach] and integration nodes."""

    reach: int
    cdf: Floats
    nodes: NDArray[np.int64]
    node_weights: Floats

    def below(self, k: NDArray[np.int64]) -> Floats:
        """Return Pr[Y ≤ k]."""
        probability: Floats = self.cdf[np.clip(k + self.reach + 1, 0, 2 * self.reach + 2)]
        return probability

    def at_least(self, k: NDArray[np.int64]) -> Floats:
        """Return Pr[Y ≥ k]."""
        return self.below(-k)  # the noise is symmetric


@lru_cache(maxsize=64)
def gaussian_noise(sigma: float) -> NoiseModel:
    """Return N_Z(0, sigma²)."""
    support = np.arange(-math.ceil(9 * sigma), math.ceil(9 * sigma) + 1)
    return _noise(support, -(support.astype(np.float64) ** 2) / (2 * sigma**2), sigma)


@lru_cache(maxsize=64)
def laplace_noise(gamma: float) -> NoiseModel:
    """Return the discrete Laplace noise of scale 1/gamma."""
    support = np.arange(-math.ceil(37 / gamma), math.ceil(37 / gamma) + 1)
    return _noise(support, -gamma * np.abs(support), 1 / gamma)


def _noise(support: NDArray[np.int64], log_mass: Floats, scale: float) -> NoiseModel:
    mass = np.exp(log_mass)
    cdf = np.concatenate([[0.0], np.cumsum(mass) / mass.sum(), [1.0]])
    reach = len(support) // 2
    stride = max(1, int(scale / NODES_PER_DEVIATION))
    picked = (support % stride == 0) & (mass > 1e-12)
    return NoiseModel(reach, cdf, support[picked], mass[picked] / mass[picked].sum())


@lru_cache(maxsize=64)
def win_probability(votes: Votes, noise: NoiseModel, boost: int = 0) -> Floats:
    """Return Pr[the labelled class is the noisy maximum], float[B]; ties go to the lowest class.

    `boost`: votes added to the winner before the noise.
    """
    counts, classes = votes.counts.copy(), votes.counts.shape[1]
    counts[np.arange(len(counts)), counts.argmax(axis=1)] += boost
    rows = max(1, _MAX_CELLS // (len(noise.nodes) * classes))
    result = np.empty(len(counts))
    for start in range(0, len(counts), rows):
        here = slice(start, start + rows)
        label = votes.labels[here, None]
        lead = np.take_along_axis(counts[here], label, axis=1) - counts[here]
        lead = lead - (np.arange(classes) < label)  # a tie with a lower class is lost
        chance = noise.below(lead[:, :, None] + noise.nodes)
        np.put_along_axis(chance, label[:, :, None], 1.0, axis=1)
        result[here] = chance.prod(axis=1) @ noise.node_weights
    return result


def expected_pass_rate(mechanism: Mechanism) -> float:
    """Return the share of queries that are answered if teachers agree as they mostly do.

    1 where there is no forecast, or nothing but answers.
    """
    if VoteOutcome.ABSTAINED not in mechanism.events():
        return 1.0
    votes = Votes.synthetic(
        DEFAULT_CONSENSUS, teachers=mechanism.teachers, classes=mechanism.classes
    )
    if mechanism.needs_probabilities:
        votes = votes.with_expected_student()
    rate = expected_outcomes(mechanism, votes).shares[VoteOutcome.ANSWERED]
    return float(f"{min(max(rate, 0.001), 1.0):.3g}")
