"""How test and maximum share the price of one release (`joint`): what an answer pays of it.

The dearer an abstention, the cheaper an answer. Any share is sound; which is chosen decides how
many answers a budget is expected to buy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

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
from terrine_server.privacy.mechanisms.base import VoteOutcome
from terrine_server.privacy.mechanisms.registration import JointlyPriced
from terrine_server.privacy.parameters import MIN_ANSWER_SHARE
from terrine_server.privacy.rules import search_order

# The most that any outcome costs, in prices for all outcomes if an answer told all noisy counts.
#
# The cheaper answers are, the more expensive abstentions, and the fewer queries are certain if all
# of them abstain: at least a third of those that one price for all, at that of all noisy counts,
# would buy. It is not a multiple of what is charged: then a better bound on what a label tells, by
# which every pair of prices that was sound remains so, would forbid some of them, and buy fewer
# answers.
MAX_OUTCOME_COST = 3.0

ANSWER_SHARES = tuple(
    float(f"{share:.3g}") for share in np.geomspace(MAX_OUTCOME_COST, MIN_ANSWER_SHARE, 36)
)

# What may come, if nobody says what is expected: a project is then opened at the prices whose mean
# cost is, at the worst of these rates, the least multiple of the best for that rate.
PASS_RATES = tuple(float(f"{rate:.3g}") for rate in np.linspace(0.1, 0.95, 18))

# What an outcome then costs at most, in those of the other. Prices that suit a guess could make an
# abstention four hundred times as expensive as an answer, and a wrong guess cost ten times as many
# queries.
MAX_PRICE_RATIO = 4.0

# How far the share of queries that are answered may lie below an expected one (0.1: ten points). Of
# answers, so many are counted on as the expected share lets expect, but at most twice as many as
# are left at the lower share; prices for an expected share are such that this is the most.
PASS_RATE_MARGIN = 0.1

# Noise at which the price of an answer is quick to compute, and like that of more noise.
TYPICAL_SIGMA = 5.0

CostsByShare = Callable[[ConfidentMax, Sequence[float], float], list[OutcomeCosts | None]]


def choose_answer_share(
    mechanism: JointlyPriced,
    epsilon: float,
    delta: float,
    pass_rate: float,
    *,
    order: float | None = None,
    guessed: bool = False,
) -> tuple[float, float]:
    """Return the order of Rényi DP and the share by which an answer is expected to cost least.

    `delta`: what converts. `order`: by default it is searched for. `guessed`: whether the pass rate
    is nobody's expectation, so that prices suit any of `PASS_RATES`. A mechanism that has a share
    keeps it.
    """
    given = mechanism.answer_share
    shares = ANSWER_SHARES if given is None else (given,)
    found = order or search_order(
        epsilon,
        delta,
        lambda a: _find_best_share(mechanism, a, pass_rate, shares, _rough_costs, guessed)[0],
    )
    if guessed and given is None:
        return found, _robust_share(mechanism, found)
    return found, _find_best_share(mechanism, found, pass_rate, shares, costs_by_share, guessed)[1]


@lru_cache(maxsize=1024)  # each share of an answer asks for the same
def rough_cost(event: CostEvent, order: float) -> float:
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
    told = (order - 1) * rough_cost(GaussianArgmax(event.sigma2), order)
    return costs_up_to(event, shares, order, math.expm1(told))


@lru_cache(maxsize=1024)
def _find_best_share(
    mechanism: JointlyPriced,
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
def _robust_share(mechanism: JointlyPriced, order: float) -> float:
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
    mechanism: JointlyPriced,
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


def _choose_priced_release(mechanism: JointlyPriced) -> ConfidentMax:
    """Return what an answer is charged for at one price for both outcomes."""
    event = mechanism.with_answer_share(1.0).events()[VoteOutcome.ANSWERED]
    if not isinstance(event, ConfidentMax):
        raise TypeError(f"{mechanism.name} has no joint price.")
    return event
