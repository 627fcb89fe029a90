"""Choose the rule and the prices under which a project is opened, before its first query.

Every rule that is considered is sound, and the choice follows from public parameters and a public
expectation of what a mechanism answers, so nothing depends on its being right: a wrong expectation
costs answers, not privacy. Probabilities are sums over the integer noise that is drawn.

Never pass votes of teachers trained on private data, whatever inputs they voted on: a choice made
by looking at them reveals something about that data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine_server.privacy.budget import (
    GDP,
    Account,
    ConsideredRule,
    Rule,
    RuleChoice,
    Terms,
    search_order,
)
from terrine_server.privacy.curves import rdp
from terrine_server.privacy.events import ConfidentMax, CostEvent, GaussianArgmax
from terrine_server.privacy.joint import (
    OutcomeCosts,
    costs_by_share,
    costs_up_to,
    counts_excess,
    release_cells,
    too_high,
)
from terrine_server.privacy.mechanisms.base import Mechanism, Probabilities, VoteOutcome
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax
from terrine_server.privacy.mechanisms.gnmax import GNMax
from terrine_server.privacy.mechanisms.immutable import Immutable
from terrine_server.privacy.mechanisms.interactive_gnmax import InteractiveGNMax
from terrine_server.privacy.mechanisms.lnmax import LNMax
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.mechanisms.stable import StableArgmax, distance_to_instability
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.numbers import Counts, Floats, check_votes
from terrine_server.privacy.parameters import (
    MIN_ANSWER_SHARE,
    ParameterError,
    check_ensemble,
    within,
)
from terrine_server.privacy.quoting import cap_order, quote, split_delta

NODES_PER_DEVIATION = 16
"""Points at which noise is integrated, per standard deviation (per scale, for Laplace)."""

_MAX_CELLS = 1 << 21


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


DEFAULT_CONSENSUS = (Consensus(0.95, 0.7), Consensus(0.8, 0.2), Consensus(0.5, 0.1))
"""The default expectation: teachers that mostly agree."""


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
    counts, labels = votes.counts, votes.labels
    always = np.ones(len(counts))
    reinforced: tuple[Floats, Floats] | None = None
    match mechanism:
        case GNMax(sigma=sigma) | NoisyVotes(sigma=sigma):
            passed, right = always, win_probability(votes, gaussian_noise(sigma))
        case LNMax(gamma=gamma):
            passed, right = always, win_probability(votes, laplace_noise(gamma))
        case Immutable(gamma=None, sigma=float(sigma), c=c):
            passed, right = always, win_probability(votes, gaussian_noise(sigma), c)
        case Immutable(gamma=float(gamma), c=c):
            passed, right = always, win_probability(votes, laplace_noise(gamma), c)
        case ConfidentGNMax(threshold=threshold, sigma1=sigma1, sigma2=sigma2):
            passed = gaussian_noise(sigma1).at_least(threshold - counts.max(axis=1))
            right = win_probability(votes, gaussian_noise(sigma2))
        case StableArgmax(sigma=sigma):
            distance = distance_to_instability(counts)
            passed = gaussian_noise(sigma).at_least(mechanism.threshold - distance)
            right = (counts.argmax(axis=1) == labels).astype(np.float64)
        case InteractiveGNMax(threshold=threshold, sigma1=sigma1, sigma2=sigma2):
            student = votes.probabilities
            if student is None:
                raise ParameterError("interactive_gnmax needs a student: say how accurate it is.")
            difference = (counts - mechanism.canonical_baseline(student)).max(axis=1)
            passed = gaussian_noise(sigma1).at_least(threshold - difference)
            right = win_probability(votes, gaussian_noise(sigma2))
            sure = (1 - passed) * (student.max(axis=1) > mechanism.confidence)
            reinforced = sure, sure * (student.argmax(axis=1) == labels)
        case _:
            raise ParameterError(f"There is no forecast for {mechanism.name}.")
    probability = {VoteOutcome.ANSWERED: passed}
    correct = {VoteOutcome.ANSWERED: passed * right}
    if reinforced is not None:
        probability[VoteOutcome.REINFORCED], correct[VoteOutcome.REINFORCED] = reinforced
    if VoteOutcome.ABSTAINED in mechanism.events():
        probability[VoteOutcome.ABSTAINED] = np.maximum(0, 1 - sum(probability.values()))
    return ExpectedOutcomes(votes.weights, probability, correct)


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


MAX_OUTCOME_COST = 3.0
"""The most that any outcome costs, in prices for all outcomes if an answer told all noisy counts.

The cheaper answers are, the more expensive abstentions, and the fewer queries are certain if all of
them abstain: at least a third of those that one price for all, at that of all noisy counts, would
buy. It is not a multiple of what is charged: then a better bound on what a label tells, by which
every pair of prices that was sound remains so, would forbid some of them, and buy fewer answers.
"""

ANSWER_SHARES = tuple(
    float(f"{share:.3g}") for share in np.geomspace(MAX_OUTCOME_COST, MIN_ANSWER_SHARE, 36)
)

PASS_RATES = tuple(float(f"{rate:.3g}") for rate in np.linspace(0.1, 0.95, 18))
"""What may come, if nobody says what is expected: a project is then opened at the prices whose mean
cost is, at the worst of these rates, the least multiple of the best for that rate."""

MAX_PRICE_RATIO = 4.0
"""What an outcome then costs at most, in those of the other. Prices that suit a guess could make an
abstention four hundred times as expensive as an answer, and a wrong guess cost ten times as many
queries."""

PASS_RATE_MARGIN = 0.1
"""How far the share of queries that are answered may lie below an expected one (0.1: ten points).
Of answers, so many are counted on as the expected share lets expect, but at most twice as many as
are left at the lower share; prices for an expected share are such that this is the most."""

EXPECTED_STUDENT_ACCURACY = 0.9
"""The accuracy of the student that Interactive-GNMax is expected to serve, if nothing is said."""

TYPICAL_SIGMA = 5.0
"""Noise at which the price of an answer is quick to compute, and like that of more noise."""

Spec = Mapping[str, object]
"""The specification of a mechanism: its name and parameters."""
ReleaseSpec = Mapping[str, Any]
"""The same of what a project begins with: `privacy.releases.build_release`."""
Thresholded = ConfidentGNMax | InteractiveGNMax
CostsByShare = Callable[[ConfidentMax, Sequence[float], float], list[OutcomeCosts | None]]


@dataclass(frozen=True)
class Quote:
    """A mechanism with the terms that it can be opened under.

    `answers`: how many are expected. `fewer`: how many are left at a lower pass rate (`cautious`).
    """

    mechanism: Mechanism
    terms: Terms
    answers: float
    fewer: float | None = None

    def cautious(self, pass_rate: float) -> Quote:
        """Return it with the answers that are counted on at this rate, as PASS_RATE_MARGIN says.

        Of a mechanism that never abstains, that is what is certain.
        """
        answers = fewer = expected_answers(self.terms, pass_rate)
        if VoteOutcome.ABSTAINED in self.terms.prices:
            fewer = expected_answers(self.terms, max(0.0, pass_rate - PASS_RATE_MARGIN))
        return replace(self, answers=min(answers, 2 * fewer), fewer=fewer)

    @property
    def answer_share(self) -> float | None:
        """See `ConfidentMax`; None if each release is charged by itself."""
        mechanism = self.mechanism
        return mechanism.answer_share if isinstance(mechanism, Thresholded) else None

    @property
    def considered(self) -> ConsideredRule:
        """What is kept of the quote."""
        certain = self.terms.affordable(self.terms.start)
        return ConsideredRule(self.terms.rule, self.answer_share, int(self.answers), certain)

    def specification(self, spec: Spec) -> dict[str, object]:
        """Return the specification of the mechanism that is opened: as given, with its share."""
        share = self.answer_share
        return dict(spec) if share is None else {**spec, "answer_share": share}


def choose(
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    *,
    cap_rule: Rule,
    pass_rate: float | None = None,
    release: ReleaseSpec | None = None,
) -> Quote:
    """Return the best of the `quotes`, with all of them in its terms.

    `pass_rate`: without one, prices suit any of `PASS_RATES`, and what they are expected to buy is
    by what `DEFAULT_CONSENSUS` makes of the mechanism. `release`: what the project begins with.
    """
    if pass_rate is not None:
        why = "it is the share of queries that are expected to be answered"
        pass_rate = within("expected_pass_rate", pass_rate, 1e-6, 1, why)
    rate = expected_pass_rate(mechanism) if pass_rate is None else pass_rate
    found = quotes(
        mechanism,
        epsilon,
        delta,
        cap_rule=cap_rule,
        pass_rate=rate,
        guessed=pass_rate is None,
        release=release,
    )
    choice = RuleChoice(rate, tuple(quoted.considered for quoted in found))
    return replace(found[0], terms=replace(found[0].terms, choice=choice))


def quotes(
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    *,
    cap_rule: Rule,
    pass_rate: float,
    order: float | None = None,
    guessed: bool = False,
    release: ReleaseSpec | None = None,
) -> list[Quote]:
    """Return the sound ways to open a project, the most expected answers first.

    `pass_rate`: the share of queries that are expected to be answered, a public guess. `order`: the
    order of rules in Rényi DP; by default the best is searched for. `guessed`: whether the rate is
    nobody's expectation, so that joint prices suit any of `PASS_RATES`. Raises `ParameterError` if
    the budget does not pay for a single query.
    """
    found, problem = [], ParameterError("There is no rule to open this project under.")
    for variant, rule in _list_variants(
        mechanism, epsilon, delta, cap_rule, pass_rate, order, guessed
    ):
        try:
            terms = quote(variant, epsilon, delta, cap_rule=cap_rule, rule=rule, release=release)
        except ParameterError as error:
            problem = error
        else:
            found.append(Quote(variant, terms, expected_answers(terms, pass_rate)))
    if not found:
        raise problem
    # With as many answers, the one that is certain of more queries; then the first.
    return sorted(
        found, key=lambda each: (-int(each.answers), -each.terms.affordable(each.terms.start))
    )


def expected_answers(terms: Terms, pass_rate: float) -> float:
    """Return how many answers are expected if this share of queries is answered.

    A query is admitted while the most expensive outcome fits, so a remainder may be left.
    """
    others = [p.cost for outcome, p in terms.prices.items() if outcome != VoteOutcome.ANSWERED]
    if not others:
        return terms.affordable(terms.start)
    mean = pass_rate * terms.prices[VoteOutcome.ANSWERED].cost + (1 - pass_rate) * max(others)
    left = terms.budget - terms.start.spent
    delta_left = terms.delta_budget - terms.start.delta_spent
    queries = (left - terms.worst.cost) / mean + 1
    return pass_rate * min(queries, delta_left // terms.worst.delta)


def quick_quote(
    mechanism: Mechanism, epsilon: float, delta: float, pass_rate: float, *, guessed: bool = True
) -> Quote:
    """Return the best quote at one order alone, which suits any Gaussian noise, for comparisons.

    By a rate that is `guessed`, no price is divided.
    """
    order = _quick_order(epsilon, delta)
    return quotes(
        mechanism,
        epsilon,
        delta,
        cap_rule=Rule("rdp", order),
        pass_rate=pass_rate,
        order=order,
        guessed=guessed,
    )[0]


@lru_cache(maxsize=1024)
def _quick_order(epsilon: float, delta: float) -> float:
    return cap_order(epsilon, delta)


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
        votes = votes.with_student(EXPECTED_STUDENT_ACCURACY)
    rate = expected_outcomes(mechanism, votes).shares[VoteOutcome.ANSWERED]
    return float(f"{min(max(rate, 0.001), 1.0):.3g}")


def _list_variants(
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    cap_rule: Rule,
    pass_rate: float,
    order: float | None,
    guessed: bool,
) -> list[tuple[Mechanism, Rule | None]]:
    """Return each way to price the mechanism, with its rule; None: what `quote` chooses.

    Under a cap in Gaussian DP it is that alone: what one project gained in Rényi DP, the cap would
    charge in full.
    """
    given = mechanism.answer_share if isinstance(mechanism, Thresholded) else None
    variants: list[tuple[Mechanism, Rule | None]] = [(mechanism, None)] if given is None else []
    if isinstance(mechanism, Neighbours) or (cap_rule.order is None and given is None):
        return variants  # `quote` takes the better rule for accounts
    events = mechanism.events()
    conversion = split_delta(events.values(), delta).conversion
    if isinstance(mechanism, Thresholded):
        shares = ANSWER_SHARES if given is None else (given,)
        found = order or search_order(
            epsilon,
            conversion,
            lambda a: _find_best_share(mechanism, a, pass_rate, shares, _rough_costs, guessed)[0],
        )
        if guessed and given is None:
            share = _robust_share(mechanism, found)
        else:
            _, share = _find_best_share(
                mechanism, found, pass_rate, shares, costs_by_share, guessed
            )
        return [*variants, (replace(mechanism, answer_share=share), Rule("rdp", found))]
    rates = dict.fromkeys(events, 1 - pass_rate) | {VoteOutcome.ANSWERED: pass_rate}

    def mean(order: float) -> float:
        return sum(rates[outcome] * _rough_cost(events[outcome], order) for outcome in events)

    return [*variants, (mechanism, Rule("rdp", order or search_order(epsilon, conversion, mean)))]


@lru_cache(maxsize=1024)  # each share of an answer asks for the same
def _rough_cost(event: CostEvent, order: float) -> float:
    """Return about what an event costs, to search for an order.

    Of the price of the noisy counts, an answer costs a share that follows from α(α−1)/sigma² but
    for about a hundredth. It takes less time to compute for little noise.
    """
    if not isinstance(event, GaussianArgmax) or event.sigma <= TYPICAL_SIGMA:
        return float(rdp(event, order))
    exponent = order * (order - 1) / event.sigma**2
    alike = 0.5 + math.sqrt(0.25 + exponent * TYPICAL_SIGMA**2)
    below = math.floor(2 * alike) / 2
    least, most = _label_share_of_counts(below), _label_share_of_counts(below + 0.5)
    share = least + 2 * (alike - below) * (most - least)
    return float(share * rdp(event.counts, order))


@lru_cache
def _label_share_of_counts(order: float) -> float:
    """Return the share at a multiple of one half, which changes slowly: between, a line will do."""
    typical, order = GaussianArgmax(TYPICAL_SIGMA), max(order, 1.01)
    return float(rdp(typical, order) / rdp(typical.counts, order))


def _rough_costs(
    event: ConfidentMax, shares: Sequence[float], order: float
) -> list[OutcomeCosts | None]:
    """Return about what both outcomes cost at each share of an answer, to search for an order."""
    if too_high(event, order):
        return [None] * len(shares)
    told = (order - 1) * _rough_cost(GaussianArgmax(event.sigma2), order)
    return costs_up_to(event, shares, order, math.expm1(told))


@lru_cache(maxsize=1024)
def _find_best_share(
    mechanism: Thresholded,
    order: float,
    pass_rate: float,
    shares: Sequence[float],
    costs_of: CostsByShare,
    guessed: bool,
) -> tuple[float, float]:
    """Return the least that an answer costs at an order, and the share of an answer that does it.

    That is the mean cost of the queries for it. Of a rate that is not `guessed`, only so many
    answers are counted on as PASS_RATE_MARGIN says.
    """
    found = _allowed_costs(mechanism, order, shares, costs_of)
    lower = 0.0 if guessed else max(0.0, pass_rate - PASS_RATE_MARGIN)

    def cost_of_answer(costs: OutcomeCosts) -> float:
        expected = _mean_cost(costs, pass_rate) / pass_rate
        return max(expected, _mean_cost(costs, lower) / (2 * lower)) if lower else expected

    ranked = ((cost_of_answer(costs), share) for share, costs in found.items())
    return min(ranked, default=(math.inf, 1.0))


@lru_cache(maxsize=1024)
def _robust_share(mechanism: Thresholded, order: float) -> float:
    """Return the share of an answer by which the wrong pass rate costs least: `PASS_RATES`."""
    found = _allowed_costs(mechanism, order, ANSWER_SHARES, costs_by_share)
    if not found:
        return 1.0
    best = {rate: min(_mean_cost(each, rate) for each in found.values()) for rate in PASS_RATES}

    def regret(share: float) -> tuple[bool, float]:
        costs = found[share]
        higher, lower = sorted((costs.abstention, costs.answer), reverse=True)
        worst = max(_mean_cost(costs, rate) / best[rate] for rate in PASS_RATES)
        return higher > MAX_PRICE_RATIO * lower, worst

    return min(found, key=regret)


def _allowed_costs(
    mechanism: Thresholded,
    order: float,
    shares: Sequence[float],
    costs_of: CostsByShare,
) -> dict[float, OutcomeCosts]:
    """Return what both outcomes cost, by share of an answer, where neither costs too much."""
    event = _choose_priced_release(mechanism)
    costs = zip(shares, costs_of(event, shares, order), strict=True)
    found = {share: both for share, both in costs if both is not None}
    if len(shares) == 1 or not found:
        return found
    most = _max_outcome_cost(event, order)
    return {s: both for s, both in found.items() if max(both.abstention, both.answer) <= most}


def _mean_cost(costs: OutcomeCosts, pass_rate: float) -> float:
    return pass_rate * costs.answer + (1 - pass_rate) * costs.abstention


@lru_cache(maxsize=1024)
def _max_outcome_cost(event: ConfidentMax, order: float) -> float:
    """Return the most that an outcome may cost at an order: see `MAX_OUTCOME_COST`."""
    return MAX_OUTCOME_COST * release_cells(event, order, counts_excess(event.sigma2, order)).flat()


def _choose_priced_release(mechanism: Thresholded) -> ConfidentMax:
    """Return what an answer is charged for at one price for both outcomes."""
    event = replace(mechanism, answer_share=1.0).events()[VoteOutcome.ANSWERED]
    if not isinstance(event, ConfidentMax):
        raise TypeError(f"{mechanism.name} has no joint price.")
    return event


MIN_ANSWERS_PER_CLASS = 10
"""Answers per class below which a budget teaches a student little."""


def small_budget_warning(terms: Terms, classes: int) -> str | None:
    """Return what is wrong with a budget that buys too few answers to learn from, or None."""
    choice = terms.choice
    answers = choice.considered[0].answers if choice else terms.affordable(terms.start)
    if answers >= MIN_ANSWERS_PER_CLASS * classes:
        return None
    return (
        f"About {answers:,} answers for {classes:,} classes teach a student little. At equal "
        "agreement an answer costs a quarter with twice the teachers, and less with more noise; "
        "`terrine plan` says what this budget can buy."
    )


def max_queries(terms: Terms, account: Account) -> int | None:
    """Return how many further queries fit if each has its cheapest outcome.

    None if nothing limits them beforehand: a published figure may give back all that was spent.
    """
    limits = []
    left = terms.budget - account.spent
    if terms.schedule is None:
        limits.append(_count_fitting(left, terms.room.cost, terms.least.cost))
    delta_left = terms.delta_budget - account.delta_spent
    limits.append(_count_fitting(delta_left, terms.room.delta, terms.least.delta))
    return min((limit for limit in limits if limit is not None), default=None)


def _count_fitting(left: int, room: int, each: int) -> int | None:
    """Return how many fit while `room` must be left for each; None if they take nothing."""
    if left < room:
        return 0
    return (left - room) // each + 1 if each else None


REFUSED = "refused"


@dataclass(frozen=True, eq=False)
class Simulation:
    """What B queries were answered, in order.

    `labels`: int64[B], −1 where there is none. `outcomes`: str[B], of which "refused" ones cost
    nothing. `counts`: int64[B, m], noisy ones, 0 where refused; None of mechanisms that release
    labels alone. `epsilon`: what was spent, at the δ of the terms.
    """

    labels: NDArray[np.int64]
    outcomes: NDArray[np.str_]
    counts: NDArray[np.int64] | None
    epsilon: float
    terms: Terms


def simulate(
    votes: ArrayLike,
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    *,
    probabilities: Probabilities | None = None,
    cap_rule: Rule = GDP,
    pass_rate: float | None = None,
    entropy: Entropy = os.urandom,
) -> Simulation:
    """Ask each row of `votes`, int[B, m], once and in order, until the budget (ε, δ) refuses.

    `probabilities`, float[B, m], are the student's, for mechanisms that need them. `cap_rule` is
    that of the ensemble that the project would be opened on, and `pass_rate` the share of queries
    that are expected to be answered: both decide what an outcome costs, as in `opening.choose`.
    `entropy` draws the noise; a seeded one repeats a simulation. Raises `ParameterError` if the
    budget pays for no query, and on votes that are not one of each teacher.
    """
    votes = np.asarray(votes)
    if not isinstance(mechanism, Neighbours):  # these cast what their accounts allow
        votes = check_votes(votes, mechanism.teachers)
    quoted = choose(mechanism, epsilon, delta, cap_rule=cap_rule, pass_rate=pass_rate)
    terms, drawn = quoted.terms, quoted.mechanism.release(votes, probabilities, entropy)
    queries = len(drawn.labels)
    baselines = [0] * queries
    if isinstance(mechanism, InteractiveGNMax) and probabilities is not None:
        least = mechanism.canonical_baseline(probabilities).min(axis=1).tolist()
        baselines = [terms.priced_baseline(baseline) for baseline in least]
    account = terms.start
    for outcome, baseline in zip(drawn.outcomes, baselines, strict=True):
        if not terms.admits(account, baseline):
            break
        account = account.plus(terms.price(outcome, baseline))
    paid = np.arange(queries) < account.queries
    return Simulation(
        labels=np.where(paid, drawn.labels, -1),
        outcomes=np.where(paid, drawn.outcomes.astype(np.str_), REFUSED),
        counts=None if drawn.counts is None else np.where(paid[:, None], drawn.counts, 0),
        epsilon=terms.epsilon_spent(account.spent),
        terms=terms,
    )
