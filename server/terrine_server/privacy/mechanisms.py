"""Mechanisms: votes in, outcomes out, and a frozen cost event for each outcome."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.events import (
    Composition,
    ConfidentMax,
    CostEvent,
    GaussianArgmax,
    GaussianNoisyCounts,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceArgmax,
    LaplaceNoisyMax,
    NeighbourCounts,
    StabilityTest,
)
from terrine_server.privacy.noise import Entropy, NoiseTable, discrete_gaussian, discrete_laplace
from terrine_server.privacy.numbers import Counts, check_counts_shape, full_tallies
from terrine_server.privacy.parameters import (
    MAX_COUNTED_CLASSES,
    MAX_EXTRA_VOTES,
    ParameterError,
    check_answer_share,
    check_delta,
    check_ensemble,
    check_gamma,
    check_sigma,
    check_threshold,
    integer,
    within,
)

Probabilities = NDArray[np.float64]


class VoteOutcome(StrEnum):
    """The outcome of a query that was paid for."""

    ANSWERED = "answered"
    ABSTAINED = "abstained"
    REINFORCED = "reinforced"


@dataclass(frozen=True)
class Released:
    """`outcomes`: object[B] of `VoteOutcome`. `labels`: int64[B], −1 where there is none.

    `counts`: int64[B, m], noisy counts that are released with the labels; None for mechanisms that
    release labels alone.
    """

    outcomes: NDArray[np.object_]
    labels: NDArray[np.int64]
    counts: Counts | None = None

    @classmethod
    def all_answered(cls, labels: NDArray[np.int64]) -> Released:
        """Return an answer for every query."""
        return cls.where(np.full(len(labels), True), labels, VoteOutcome.ABSTAINED)

    @classmethod
    def all_counted(cls, noisy: Counts) -> Released:
        """Return all noisy counts, and the largest of each row; ties go to the lowest class."""
        return replace(cls.all_answered(noisy.argmax(axis=1)), counts=noisy)

    @classmethod
    def where(
        cls, answered: NDArray[np.bool_], labels: NDArray[np.int64], otherwise: VoteOutcome
    ) -> Released:
        """Return `labels` where `answered`; elsewhere no label and the outcome `otherwise`."""
        choices = np.array([otherwise, VoteOutcome.ANSWERED], dtype=object)
        return cls(choices[answered.astype(np.intp)], np.where(answered, labels, -1))

    def reinforced(self, confirmed: NDArray[np.bool_], labels: NDArray[np.int64]) -> Released:
        """Return a copy in which each `confirmed` abstention is reinforced with its label."""
        changed = confirmed & (self.labels < 0)
        outcomes = np.where(changed, np.array(VoteOutcome.REINFORCED, dtype=object), self.outcomes)
        return Released(outcomes, np.where(changed, labels, self.labels))


class Mechanism(Protocol):
    """A private vote. Between neighbouring data sets one vote of each query changes its class."""

    @property
    def teachers(self) -> int:
        """How many votes are cast."""

    @property
    def classes(self) -> int:
        """How many classes are voted on."""

    @property
    def name(self) -> str:
        """The mechanism's name in requests and responses."""

    @property
    def needs_probabilities(self) -> bool:
        """Whether `release` needs the student's class probabilities."""

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Return the cost event of each possible outcome."""

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Release an outcome for each row of the vote counts, int64[B, m].

        Draws the same amount of noise for every query, whatever its votes and outcome. Raises
        `ValueError` for another shape or type, and for no value: see `full_tallies`.
        """


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


def noisy_max(counts: Counts, noise: NoiseTable, entropy: Entropy) -> NDArray[np.int64]:
    """Return argmax_j (counts_j + fresh noise) of each row; ties go to the lowest class."""
    winners: NDArray[np.int64] = (counts + noise.sample(counts.shape, entropy)).argmax(axis=1)
    return winners


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

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_gamma("gamma", self.gamma)

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

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        why = "each of the votes added to the winner is paid for; see docs/privacy/immutable.md"
        integer("c", self.c, 0, MAX_EXTRA_VOTES, why)
        if (self.gamma is None) == (self.sigma is None):
            raise ParameterError(
                "immutable takes exactly one of gamma (Laplace noise) and sigma (Gaussian noise)."
            )
        if self.gamma is not None:
            check_gamma("gamma", self.gamma)
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

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_sigma("sigma", self.sigma)
        why = "every answer of noisy_votes holds a count for each class; use gnmax for more"
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
        noise = discrete_gaussian(self.sigma).sample(votes.shape, entropy)
        return Released.all_counted(votes + noise)

    def release_shared(self, sums: NDArray[np.uint32], entropy: Entropy = os.urandom) -> Released:
        """Answer each row of sums, uint32[B, m]: counts modulo 2³² to which others added what they
        liked, as long as it does not depend on the vote that moves.

        The noise comes before any decoding, so what is released is a function of the counts with
        noise, whatever was added: docs/addons/federation-two-servers.md, theorem 2.
        """
        if sums.dtype != np.uint32 or sums.ndim != 2 or sums.shape[1] != self.classes:
            raise ValueError(f"Sums must be of type uint32 and shape [B, {self.classes}].")
        noise = discrete_gaussian(self.sigma).sample(sums.shape, entropy).astype(np.uint32)
        return Released.all_counted((sums + noise).view(np.int32).astype(np.int64))


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
        noise = discrete_gaussian(self.sigma1).sample((len(votes),), entropy)
        labels = noisy_max(votes, discrete_gaussian(self.sigma2), entropy)
        return Released.where(
            votes.max(axis=1) + noise >= self.threshold, labels, VoteOutcome.ABSTAINED
        )


ROW_SUM_TOLERANCE = 1e-3
"""How far from 1 a row of probabilities may sum; float16 softmax outputs pass."""


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
        return np.floor(self.teachers * self._check_probabilities(probabilities) + 0.5).astype(
            np.int64
        )

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer, confirm or abstain for each row of counts and probabilities, both [B, m]."""
        votes = full_tallies(counts, self.teachers, self.classes)
        if probabilities is None:
            raise ParameterError("interactive_gnmax needs the student's class probabilities.")
        student = self._check_probabilities(probabilities)
        if len(student) != len(votes):
            raise ParameterError(
                f"{len(votes)} queries came with {len(student)} rows of probabilities."
            )
        difference = (votes - self.canonical_baseline(student)).max(axis=1)
        noise = discrete_gaussian(self.sigma1).sample((len(votes),), entropy)
        labels = noisy_max(votes, discrete_gaussian(self.sigma2), entropy)
        passed = difference + noise >= self.threshold
        released = Released.where(passed, labels, VoteOutcome.ABSTAINED)
        return released.reinforced(student.max(axis=1) > self.confidence, student.argmax(axis=1))

    def _check_probabilities(self, probabilities: Probabilities) -> Probabilities:
        student = np.asarray(probabilities, dtype=np.float64)
        if student.ndim != 2 or student.shape[1] != self.classes:
            raise ParameterError(
                f"Probabilities must have shape [B, {self.classes}], not {student.shape}."
            )
        if not np.all((student >= 0) & (student <= 1)):  # also refuses NaN
            raise ParameterError("Probabilities must be finite numbers between 0 and 1.")
        if np.any(np.abs(student.sum(axis=1) - 1) > ROW_SUM_TOLERANCE):
            raise ParameterError(f"Each row of probabilities must sum to 1 ± {ROW_SUM_TOLERANCE}.")
        return student


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
        noise = discrete_gaussian(self.sigma).sample((len(votes),), entropy)
        passed = distance_to_instability(votes) + noise >= self.threshold
        return Released.where(passed, votes.argmax(axis=1), VoteOutcome.ABSTAINED)


Accounts = NDArray[np.uint32]
"""What each unit has spent, uint32[U], in units of ‖v‖². Secret."""

MAX_QUERIES = 10_000_000
MAX_NORM = 255
MAX_CLASS_WEIGHT = 1 << 16
"""The most that records of one unit add up to for one class. With it, no product exceeds 2⁶³."""
EXHAUSTED_SHARE = 0.95
"""Share of the public rows near a query from which on, if they could not vote any more, nobody is
asked: an answer of a twentieth of the votes says a four-hundredth of what it said at first
(docs/privacy/neighbours.md)."""


@dataclass(frozen=True)
class Units:
    """Whose records are whose, in the order of the records. Nothing in it depends on a query.

    `count`: the number of units, with records or without. `records`: N. `starts`: int64[P],
    the first record of each pair of a unit and a class that has any. `classes`, `places`: int64[P],
    the pair's class and the place of its unit in `present`. `present`: int64[R], the units that
    have records. `firsts`: int64[R], the first pair of each of them.
    """

    count: int
    records: int
    starts: NDArray[np.int64]
    classes: NDArray[np.int64]
    places: NDArray[np.int64]
    present: NDArray[np.int64]
    firsts: NDArray[np.int64]

    @classmethod
    def of(cls, units: NDArray[np.int32], labels: NDArray[np.int16], count: int) -> Units:
        """Return the layout of records with these units and labels, [N] each, N ≥ 1.

        They are sorted by unit and label. Raises ValueError if they are not, or a unit is not one
        of `count`.
        """
        if len(units) < 1 or len(units) != len(labels) or units.min() < 0 or units.max() >= count:
            raise ValueError("records have a unit each, from 0 to count - 1")
        key = units.astype(np.int64) * (int(labels.max()) + 1) + labels
        if labels.min() < 0 or np.any(np.diff(key) < 0):
            raise ValueError("records are sorted by unit and label")
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        present, firsts, places = np.unique(
            units[starts].astype(np.int64), return_index=True, return_inverse=True
        )
        return cls(
            count, len(units), starts, labels[starts].astype(np.int64), places, present, firsts
        )


@dataclass(frozen=True)
class Neighbours:
    """Answers c + Y for every class: c the votes of the units that still take part, Y ~ N_Z(σ²).

    `teachers`: the number of units (persons) when the project was opened. People come and go, and
    nothing but forecasts depends on how many there are. A unit's vote v is the sum of its records'
    weights for each class, scaled down and floored where ‖v‖ > `norm`. It takes part in a query iff
    its account and ‖v‖² stay within the project's allowance A, and then pays ‖v‖². For any
    number of queries the whole transcript is A/σ²-zCDP and √(2A)·μ_Z(σ)-GDP between data sets
    that differ in all of one unit's records.

    `queries`: how many the project answers; public, and the only thing that refusals depend on.
    """

    teachers: int
    classes: int
    sigma: float
    queries: int
    norm: int = 1

    name: ClassVar[str] = "neighbours"
    needs_probabilities: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_sigma("sigma", self.sigma)
        why = "every answer of neighbours holds a count for each class"
        integer("classes", self.classes, 2, MAX_COUNTED_CLASSES, why)
        why = "it is how many new queries the project answers, and no others end it"
        integer("queries", self.queries, 1, MAX_QUERIES, why)
        why = "it bounds what one unit casts in one query"
        integer("norm", self.norm, 1, MAX_NORM, why)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Every query is answered, and reveals the votes of each unit that takes part."""
        return {VoteOutcome.ANSWERED: NeighbourCounts(self.sigma, self.norm)}

    def cast(
        self, weights: NDArray[np.uint8], units: Units, accounts: Accounts, allowance: int
    ) -> tuple[Counts, Accounts]:
        """Return the counts int64[B, m] of the units that take part, and their accounts after.

        `weights`: uint8[B, N], what each record adds to its class. `allowance`: A. Queries are
        judged one after the other. The same work is done whatever votes and accounts are: no
        branch, and no address, depends on either.
        """
        if accounts.shape != (units.count,):
            raise ValueError("there is an account for each unit")
        if weights.dtype != np.uint8 or weights.shape[1:] != (units.records,):
            raise ValueError("there is a weight for each record")
        counts = np.empty((len(weights), self.classes), dtype=np.int64)
        spent = accounts[units.present].astype(np.int64)
        for row, own in enumerate(weights):
            votes, squared = self._votes(own, units)
            takes_part = spent + squared <= allowance
            spent += takes_part * squared
            votes *= takes_part[units.places]
            # Sums of whole numbers below 2⁵³ are exact.
            counts[row] = np.bincount(units.classes, votes, minlength=self.classes)
        after = accounts.copy()
        after[units.present] = spent
        return counts, after

    def split_exhausted(
        self,
        weights: NDArray[np.uint8],
        near_wider: NDArray[np.uint8],
        shadows: Accounts,
        allowance: int,
        most: float,
    ) -> tuple[NDArray[np.bool_], Accounts]:
        """Return which queries are answered, until `most` are, and the shadows' accounts after.

        Where too few of the shadows near a query could vote, it is exhausted: nobody is charged.
        `weights`, `near_wider`: uint8[B, S], records of the shadows near each query, and within a
        wider reach. All of them are public, so none of this reveals anything.
        """
        spent, answered = shadows.astype(np.int64), list[bool]()
        for squared, near in zip(self._shadow_costs(weights), near_wider, strict=True):
            if most <= 0:
                break
            answered.append(
                bool(self.exhausted_shares(near[None], spent, allowance)[0] < EXHAUSTED_SHARE)
            )
            if answered[-1]:
                most -= 1
                spent += (spent + squared <= allowance) * squared
        return np.array(answered, dtype=bool), spent.astype(np.uint32)

    def exhausted_shares(
        self, near_wider: NDArray[np.uint8], shadows: NDArray[np.integer], allowance: int
    ) -> NDArray[np.float64]:
        """Return the share of the public rows around each query that could not vote on it: [B]."""
        gone = near_wider * (shadows + self._shadow_costs(near_wider) > allowance)
        share: NDArray[np.float64] = gone.sum(1) / np.maximum(near_wider.sum(1, dtype=np.int64), 1)
        return share

    def _shadow_costs(self, weights: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return ‖v‖² of shadows, int64[B, S]. Their records have no classes, and count as one."""
        return np.minimum(weights.astype(np.int64), self.norm) ** 2

    def _votes(
        self, weights: NDArray[np.uint8], units: Units
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the votes int64[P] of each unit for each of its classes, and ‖v‖² int64[R].

        ‖v‖² ≤ norm². Each unit's vote is a function of its own records' weights alone.
        """
        sums = np.minimum(np.add.reduceat(weights, units.starts, dtype=np.int64), MAX_CLASS_WEIGHT)
        whole = np.add.reduceat(sums * sums, units.firsts)[units.places]
        # The largest integers with votes² · whole ≤ (norm · sums)²: at most one off before.
        scaled = (self.norm * sums / np.sqrt(np.maximum(whole, 1))).astype(np.int64)
        most = (self.norm * sums) ** 2
        scaled += (scaled + 1) ** 2 * whole <= most
        scaled -= scaled**2 * whole > most
        votes = np.where(whole > self.norm**2, scaled, sums)
        return votes, np.add.reduceat(votes * votes, units.firsts)

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer each row of cast counts, int64[B, m], with noise and the largest of them.

        Ties go to the lowest class. The accounts that belong to the counts must be durable before
        what is returned is sent.
        """
        check_counts_shape(counts, self.classes)
        noise = discrete_gaussian(self.sigma).sample(counts.shape, entropy)
        return Released.all_counted(counts.astype(np.int64) + noise)


ENTRY_POINT_GROUP = "terrine.mechanisms"
"""Entry points of other packages: mechanisms that no line of this one knows."""

MECHANISMS: Mapping[str, Callable[..., Mechanism]] = {
    kind.name: kind
    for kind in (
        LNMax,
        GNMax,
        NoisyVotes,
        Neighbours,
        ConfidentGNMax,
        InteractiveGNMax,
        Immutable,
        StableArgmax,
    )
}


def build_mechanism(spec: Mapping[str, object], *, teachers: int, classes: int) -> Mechanism:
    """Return the mechanism that `spec` describes by its "name" and parameters.

    Raises `ParameterError`, naming the parameter, if the specification does not work with an
    ensemble of this size.
    """
    parameters = dict(spec)
    name = parameters.pop("name", None)
    kind = MECHANISMS[str(name)] if name in MECHANISMS else _load_foreign(name)
    try:
        made = kind(teachers=teachers, classes=classes, **parameters)
    except TypeError as error:
        raise ParameterError(f"The parameters of {name} are not {sorted(parameters)}.") from error
    priced = all(isinstance(event, CostEvent) for event in made.events().values())
    if made.name != name or not priced:
        raise ParameterError(f"{name} is another's name, or has events that are not cost events.")
    return made


def _load_foreign(name: object) -> Callable[..., Mechanism]:
    """Return a mechanism of another package: an entry point called OWNER.NAME."""
    foreign = isinstance(name, str) and "." in name
    found = list(entry_points(group=ENTRY_POINT_GROUP, name=str(name))) if foreign else []
    if len(found) != 1:
        why = "belongs to no installed package" if not found else "belongs to several packages"
        known = ", ".join(MECHANISMS)
        raise ParameterError(
            f"No mechanism is called {name!r}. Use one of {known}."
            if not foreign
            else f"The mechanism {name} {why} here: it is an entry point of {ENTRY_POINT_GROUP}."
        )
    try:
        kind: Callable[..., Mechanism] = found[0].load()
    except Exception as error:
        raise ParameterError(f"The mechanism {name} cannot be loaded: {error!r}.") from error
    return kind
