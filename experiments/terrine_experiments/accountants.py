"""Accounting methods side by side: the total that each one gives for the same queries.

Terrine enforces one of them (`budget.rules`). The others are what the literature would have given,
so that the gain of one over another is a number. All are worst-case: functions of cost events
alone. Data-dependent accounting, which needs votes, is in `publishing`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.accounting.conversions import epsilon_from_gdp, gdp_budget, rdp_budget
from terrine_server.privacy.accounting.curves import gdp_squared, rdp
from terrine_server.privacy.accounting.events import (
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
    SparseVectorEpoch,
    StabilityTest,
    WithinEpoch,
)
from terrine_server.privacy.budget.quoting import split_delta
from terrine_server.privacy.budget.rules import opening_rule
from terrine_server.privacy.parameters import ParameterError, check_delta

Floats = NDArray[np.float64]

FINE_ORDERS = 1 + np.geomspace(0.02, 1e4, 400)
"""Rényi orders, spaced 3.3 % in α − 1: the best of them is within 1e-3 of the best of all."""


class Method(StrEnum):
    """An accounting method: how costs add up and how the sum converts to (ε, δ)."""

    BASIC = "basic"
    """The sum of pure ε (Dwork et al. 2006); only if every event is pure."""
    CLASSIC = "classic RDP"
    """The curves of P17 and P18, Mironov 2017's conversion, and the order that is best afterwards.
    Not a filter: if students adapt, the order must be fixed beforehand."""
    IMPROVED = "improved RDP"
    """Exact curves, the conversion of Canonne, Kamath & Steinke 2020, and the order that is best
    afterwards. Not a filter either."""
    FIXED_ORDER = "fixed-order RDP"
    """The same at one order fixed beforehand: a filter for adaptive students (Feldman & Zrnic)."""
    GDP = "GDP"
    """Σμ² (Smith & Thakurta 2022): a filter, and exact for Gaussian noise."""


FILTERS = (Method.BASIC, Method.FIXED_ORDER, Method.GDP)
"""The methods that may decide refusals: their guarantee holds even if students adapt."""


@dataclass(frozen=True)
class Accountant:
    """One method at one δ, all of it for the conversion. `order`: only for `FIXED_ORDER`."""

    method: Method
    delta: float
    order: float | None = None

    @property
    def orders(self) -> Floats:
        """The orders at which costs are computed; GDP and basic composition have a single cost."""
        if self.method in (Method.CLASSIC, Method.IMPROVED):
            return FINE_ORDERS
        return np.array([math.nan if self.order is None else self.order])

    def cost(self, event: CostEvent) -> Floats:
        """Return the cost of one event, float[A]; infinite if the method does not apply."""
        return _cost(self.method, event, self.order)

    def total(self, tally: Mapping[CostEvent, float]) -> Floats:
        """Return the total cost of a number of each event, float[A]."""
        return np.asarray(sum(count * self.cost(event) for event, count in tally.items()))

    def budget(self, epsilon: float) -> Floats:
        """Return the largest total that implies (ε, δ)-DP, float[A]; not positive if none does."""
        match self.method:
            case Method.BASIC:
                return np.array([epsilon])
            case Method.GDP:
                return np.array([gdp_budget(epsilon, self.delta)])
            case Method.CLASSIC:
                return np.asarray(epsilon + math.log(self.delta) / (self.orders - 1))
            case Method.IMPROVED | Method.FIXED_ORDER:
                return rdp_budget(self.orders, epsilon, self.delta)
            case _:
                assert_never(self.method)

    def epsilon(self, total: Floats) -> float:
        """Return ε of a total at δ, the smallest over the orders; infinite if it does not apply."""
        if not np.any(total > 0):
            return 0.0
        if not np.any(np.isfinite(total)):
            return math.inf
        if self.method is Method.GDP:
            return epsilon_from_gdp(float(total[0]), self.delta)
        offset = 0.0 if self.method is Method.BASIC else self.budget(0.0)
        return max(0.0, float(np.min(total - offset)))

    def queries(self, shares: Mapping[CostEvent, float], epsilon: float) -> int:
        """Return how many queries ε pays for if events are charged in these shares.

        A query is admitted while the most expensive event fits, so a remainder may be left.
        """
        mean, budget = self.total(shares), self.budget(epsilon)
        highest = np.max([self.cost(event) for event in shares], axis=0)
        fits = np.isfinite(mean) & (budget >= highest)
        if not np.any(fits):
            return 0
        ratio = (budget[fits] - highest[fits]) / mean[fits]
        return int(np.max(np.floor(ratio * (1 + 1e-12)))) + 1


def accountants(
    events: Iterable[CostEvent], delta: float, epsilon: float, order: float | None = None
) -> list[Accountant]:
    """Return the methods that apply to these events, at the share of δ for the conversion.

    The fixed order is `order`, else the order of the rule that a project would be opened under,
    else the order at which ε buys the most of the most expensive event.
    """
    kinds = list(events)
    share = conversion_delta(kinds, delta)
    fixed = order or opening_rule(kinds, epsilon, share).order
    if fixed is None:
        highest = np.max([rdp(_apart(event), FINE_ORDERS) for event in kinds], axis=0)
        fixed = float(FINE_ORDERS[np.argmax(rdp_budget(FINE_ORDERS, epsilon, share) / highest)])
    every = [
        Accountant(method, share, fixed if method is Method.FIXED_ORDER else None)
        for method in Method
    ]
    return [each for each in every if all(np.isfinite(each.cost(event)[0]) for event in kinds)]


def enforced(events: Iterable[CostEvent], delta: float, epsilon: float) -> Accountant:
    """Return the accountant of the rule under which a project with these events is opened."""
    kinds = list(events)
    share = conversion_delta(kinds, delta)
    rule = opening_rule(kinds, epsilon, share)
    method = Method.GDP if rule.order is None else Method.FIXED_ORDER
    return Accountant(method, share, rule.order)


def conversion_delta(events: Iterable[CostEvent], delta: float) -> float:
    """Return the share of δ for the conversion to ε: all but the sampler's and the tests' share."""
    return split_delta(events, delta).conversion


def check_charged(events: Iterable[CostEvent]) -> None:
    """Raise `ParameterError` if no event costs anything."""
    if all(isinstance(event, WithinEpoch) for event in events):
        raise ParameterError("Nothing was charged, so there is nothing to re-price.")


def pure_epsilon(event: CostEvent) -> float:
    """Return ε of a pure ε-DP event, infinity for any other event."""
    match event:
        case LaplaceNoisyMax(gamma, shift):
            return 2 * gamma * shift
        case LaplaceArgmax(gamma):
            return 2 * gamma
        case SparseVectorEpoch(epsilon_threshold, epsilon_query):
            return epsilon_threshold + epsilon_query
        case WithinEpoch():
            return 0.0
        case GaussianNoisyMax() | GaussianNoisyCounts() | GaussianThreshold():
            return math.inf
        case GaussianArgmax() | StabilityTest() | ConfidentMax() | NeighbourCounts():
            return math.inf
        case Composition(events):
            return sum(pure_epsilon(part) for part in events)
        case _:
            assert_never(event)


@dataclass(frozen=True)
class Repriced:
    """The result of one method for queries that were charged.

    `queries`: how many queries `epsilon_budget` would pay for, with the same shares of each event.
    """

    method: Method
    sound: bool
    epsilon: float
    queries: int


def reprice(
    tally: Mapping[CostEvent, int], delta: float, epsilon_budget: float, order: float | None = None
) -> list[Repriced]:
    """Return the cost of a number of each event, at δ, by every method that applies.

    `order`: the order that was fixed beforehand; by default the best one for the budget. Raises
    `ParameterError` if nothing was charged.
    """
    check_charged(event for event, number in tally.items() if number > 0)
    count = sum(tally.values())
    shares = {event: number / count for event, number in tally.items() if number > 0}
    return [
        Repriced(
            each.method,
            each.method in FILTERS,
            each.epsilon(each.total(tally)),
            each.queries(shares, epsilon_budget),
        )
        for each in accountants(shares, check_delta("delta", delta), epsilon_budget, order)
    ]


def published_rdp(event: CostEvent, orders: Floats) -> Floats:
    """Return the data-independent curve given in the event's paper.

    P18, Propositions 8 and 10: α/σ² for the noisy maximum, and for all noisy counts, through which
    its proof goes; α/2σ² for a test. P17, Theorem 2: 2γ²α for Laplace noise, and never more than
    pure 2γ-DP.
    """
    match event:
        case GaussianNoisyMax(sigma, shift):
            return np.asarray(orders * (shift / sigma) ** 2)
        case GaussianNoisyCounts(sigma) | GaussianArgmax(sigma):
            return np.asarray(orders * (1 / sigma) ** 2)
        case NeighbourCounts(sigma, norm):
            return np.asarray(orders * (norm / sigma) ** 2)
        case GaussianThreshold(sigma) | StabilityTest(sigma):
            return np.asarray(orders / (2 * sigma**2))
        case ConfidentMax():
            return published_rdp(event.parts, orders)
        case Composition(events):
            return np.asarray(sum(published_rdp(part, orders) for part in events))
        case LaplaceNoisyMax() | LaplaceArgmax() | SparseVectorEpoch() | WithinEpoch():
            epsilon = pure_epsilon(event)
            return np.minimum(epsilon, epsilon**2 * orders / 2)
        case _:
            assert_never(event)


def _apart(event: CostEvent) -> CostEvent:
    """Return the same release with a price at every order.

    A joint price is divided between its outcomes for one order, and the price of an answer takes
    too long to compute at hundreds: test and maximum apart, and the noisy counts.
    """
    match event:
        case ConfidentMax():
            return event.parts
        case GaussianArgmax():
            return event.counts
        case _:
            return event


@lru_cache(maxsize=256)
def _cost(method: Method, event: CostEvent, order: float | None) -> Floats:
    match method:
        case Method.BASIC:
            cost = np.array([pure_epsilon(event)])
        case Method.GDP:
            cost = np.array([gdp_squared(event)])
        case Method.CLASSIC:
            cost = published_rdp(event, FINE_ORDERS)
        case Method.IMPROVED:
            cost = rdp(_apart(event), FINE_ORDERS)
        case Method.FIXED_ORDER:
            cost = rdp(event, [math.nan if order is None else order])
        case _:
            assert_never(method)
    cost.flags.writeable = False
    return cost
