"""What answers cost: by the papers' own rules, as the ledger enforces it, and as one may publish.

A *data-dependent* ε is a function of private votes: showing it reveals something, and it promises
nothing for other data. *Sanitised*, it is published at the end, with noise scaled to its smooth
sensitivity. What is *enforced* follows from the public transcript, so a service may refuse by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from terrine_server.planning.opening import choose
from terrine_server.privacy import (
    BoundRelease,
    CostEvent,
    GaussianNoisyCounts,
    Mechanism,
    ParameterError,
    Rule,
    VoteOutcome,
    cap,
    cap_order,
    epsilon_from_rdp,
)
from terrine_server.privacy.parameters import MAX_EPSILON
from terrine_server.privacy.published import (
    Meter,
    gnmax_rdp,
    gnss_rdp,
    lnmax_terms,
    small_q_bound,
    union_bound,
)
from terrine_server.privacy.quoting import split_delta

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ORDERS = 1 + np.geomspace(0.02, 1e4, 400)
"""Rényi orders, spaced 3.3 % in α − 1: the best of them is within 1e-3 of the best of all."""
MOMENTS = np.arange(2, 10, dtype=np.float64)
"""The orders of P17, which tracks eight moments."""


@dataclass(frozen=True)
class Selective:
    """The test and the noise of Confident-GNMax or of a round of Interactive-GNMax, as in P18.

    Order, β and σ of what it would publish, and `printed`, both its ε, are of its Table 2.
    """

    threshold: int
    sigma1: float
    sigma2: float
    queries: int = 0
    order: float = 0
    beta: float = 0
    sigma_ss: float = 0
    printed: str = "–"
    own: tuple[float, float, float] | None = None
    """Order, β and σ of what we would publish, chosen on other queries."""

    @property
    def orders(self) -> Floats:
        """The order alone."""
        return np.array([float(self.order)])


@dataclass(frozen=True, eq=False)
class PaperCost:
    """What each query is expected to cost at each of `orders`, with continuous noise, [B, A].

    `passed` [B]: how likely each is answered.
    """

    orders: Floats
    test: Floats
    answer: Floats
    passed: Floats

    @property
    def total(self) -> Floats:
        """Of all queries, at each order [A]."""
        total: Floats = (self.test + self.answer).sum(axis=0)
        return total

    def epsilon(self, delta: float, *, of: Floats | None = None) -> float:
        """ε of all of them, by Mironov's conversion at the order that is best; or `of` a sum."""
        return float(converted(self.total if of is None else of, self.orders, delta))

    def running(self, delta: float) -> Floats:
        """ε [B] after each query."""
        return converted(np.cumsum(self.test + self.answer, axis=0), self.orders, delta)


def lnmax_cost(votes: Ints, gamma: float, orders: Floats = ORDERS) -> PaperCost:
    """P17's Lemma 4 and Theorems 2 and 3 for the noisy maximum with Laplace noise.

    Theorem 2, for any votes, is 2γ²α at order α, and 2γ at most. The product's own curve of pure
    2γ-DP is tighter, so its ε is less than what the paper would print.
    """
    x = gamma * (votes.max(axis=1, keepdims=True) - votes)
    terms = np.log((2 + x) / 4) - x
    terms[np.arange(len(votes)), votes.argmax(axis=1)] = -np.inf
    level = -np.minimum(np.logaddexp.reduce(terms, axis=1), math.log(0.9))
    worst = 2 * gamma * np.minimum(gamma * orders, 1)
    few = lnmax_terms(level[:, None], gamma)
    valid = level[:, None] > np.logaddexp(0, 2 * gamma)
    bound = np.where(valid, small_q_bound(level[:, None], few, orders - 1), np.inf)
    cost = np.minimum(bound, worst)
    return PaperCost(orders, np.zeros_like(cost), cost, np.ones(len(votes)))


def gnmax_cost(votes: Ints, sigma: float, orders: Floats = ORDERS) -> PaperCost:
    """P18's Proposition 7 and Theorem 6 for the noisy maximum with Gaussian noise."""
    gaps = np.arange(votes.max(initial=0) + 1)
    log_q = union_bound(votes, log_ndtr(-gaps / (math.sqrt(2) * sigma)))
    cost = gnmax_rdp(log_q, sigma, orders)
    return PaperCost(orders, np.zeros_like(cost), cost, np.ones(len(votes)))


def selective_cost(
    votes: Ints, row: Selective, baselines: Ints | None = None, orders: Floats = ORDERS
) -> PaperCost:
    """P18's bound for the test of all queries, and for the maximum of those that pass it."""
    tested = (votes if baselines is None else votes - baselines).max(axis=1)
    margin = (tested - row.threshold) / row.sigma1
    least = np.minimum(log_ndtr(margin), log_ndtr(-margin))
    passed = np.exp(log_ndtr(margin))
    answer = gnmax_cost(votes, row.sigma2, orders).answer
    test = gnmax_rdp(least, math.sqrt(2) * row.sigma1, orders)
    return PaperCost(orders, test, passed[:, None] * answer, passed)


def claimed_gnss_rdp(order: float, beta: float, sigma: float) -> float:
    """P18's price of sanitising (Theorem 23): too low for its own parameters; see `gnss_rdp`."""
    spread = order * beta - math.log(1 - 2 * order * beta) / 2
    return order * math.exp(2 * beta) / sigma**2 + spread / (order - 1)


def sanitised_as_stated(
    rounds: Sequence[tuple[Selective, PaperCost]], delta: float
) -> tuple[float, float]:
    """ε of P18's Table 2 for the votes of all rounds, with its price of sanitising and with the one
    that holds.

    Each comes with its cost at its order alone, which is the same for all.
    """
    order = rounds[0][0].order
    at = sum(float(cost.total[0]) for _, cost in rounds) + math.log(1 / delta) / (order - 1)
    terms = [(row.order, row.beta, row.sigma_ss) for row, _ in rounds]
    claimed = sum(claimed_gnss_rdp(*each) for each in terms)
    return at + claimed, at + sum(gnss_rdp(*each) for each in terms)


Sold = tuple[Mechanism, Mapping[VoteOutcome, int]]
"""A mechanism, and how many queries had each outcome."""


def enforced(*sold: Sold, delta: float) -> float | None:
    """The least ε of a project that sells these outcomes, refusals included; None above 100.

    Of several projects, that of the cap of their common ensemble. Price lists are the best that the
    product offers if the share of answers was foreseen.
    """

    def pays(epsilon: float) -> bool:
        rule = Rule("rdp", cap_order(epsilon, delta))
        together = 0
        for mechanism, outcomes in sold:
            total = sum(outcomes.values())
            rate = max(0.05, round(outcomes.get(VoteOutcome.ANSWERED, 0) / total, 1))
            try:
                terms = choose(mechanism, epsilon, delta, cap_rule=rule, pass_rate=rate).terms
            except ParameterError:
                return False
            prices = [(terms.price(outcome), count) for outcome, count in outcomes.items()]
            spent = sum(price.cost * count for price, count in prices)
            spent += terms.worst.cost - min(price.cost for price, _ in prices)
            if spent > terms.budget or terms.worst.delta * total > terms.delta_budget:
                return False
            together += sum(price.cap_cost * count for price, count in prices)
        return len(sold) == 1 or together <= cap(epsilon, delta, rule.order).budget

    low, high = 1e-3, MAX_EPSILON
    if not pays(high):
        return None
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def publishable(
    events: Mapping[VoteOutcome, CostEvent],
    charged: Mapping[VoteOutcome, Ints],
    published: tuple[float, float, float],
    delta: float,
) -> float:
    """ε of a run that publishes its spend once, at the end: the median figure and its own price.

    `charged`: the votes of the queries with each outcome. `published`: order, β and σ. A figure
    below the spend takes a tenth of δ.
    """
    order, beta, sigma = published
    release = BoundRelease(order, beta, sigma, z=float(-ndtri(delta / 10)))
    answered = charged[VoteOutcome.ANSWERED]
    teachers, classes = int(answered[0].sum()), answered.shape[1]
    meter = Meter(events, teachers=teachers, classes=classes, order=order)
    tally = np.zeros(meter.size, np.int64)
    for outcome, votes in charged.items():
        np.add.at(tally, np.array(meter.places(outcome, votes), np.int64).ravel(), 1)
    spend = meter.spend(tally, beta)
    figure = spend.cost + spend.smooth_sensitivity * sigma * release.z
    return epsilon_from_rdp([figure + release.cost], [order], delta - release.failure)


def papers_epsilon(answers: int, sigma: float, delta: float) -> float:
    """ε of so many answers with all noisy counts, in the worst case, as the papers state it.

    By their curve, α/σ² (P18, Proposition 8, whose proof goes through all counts), at the share of
    δ for conversion. Terrine enforces a tighter rule; this one is no filter: if students adapt, the
    order must be fixed beforehand.
    """
    conversion = split_delta({GaussianNoisyCounts(sigma): answers}, delta).conversion
    return float(converted(answers * ORDERS / sigma**2, ORDERS, conversion))


def converted(total: Floats, orders: Floats, delta: float) -> Floats:
    """ε of a divergence [..., A] at the order that is best, by Proposition 3 of Mironov (2017)."""
    return np.asarray(np.min(total + math.log(1 / delta) / (orders - 1), axis=-1))
