"""A project's terms: its rule, its budget and its price list, fixed when it is opened.

Money is counted in integers: costs in 1e-12 of the rule's quantity (μ² or Rényi divergence), δ in
1e-18. Prices are rounded up and budgets down, so that rounding is never in our favour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from terrine_server.privacy.accounting import (
    SLACK,
    additive_delta,
    epsilon_from_gdp,
    epsilon_from_rdp,
    gdp_budget,
    gdp_squared,
    rdp,
    rdp_budget,
)
from terrine_server.privacy.costs import (
    CostEvent,
    LaplaceNoisyMax,
    PublishedClaim,
)
from terrine_server.privacy.mechanisms.base import Mechanism, Outcome
from terrine_server.privacy.parameters import ParameterError, check_delta, check_epsilon

COST_UNITS = 10**12
DELTA_UNITS = 10**18
SAMPLER_DELTA = 1
"""Units of δ that every query pays for the sampler's distance from the ideal noise (`noise`)."""

STABILITY_SHARE = Fraction(1, 20)
SAMPLER_SHARE = Fraction(1, 1000)
CAP_ADDITIVE_SHARE = Fraction(1, 10)


@dataclass(frozen=True)
class Rule:
    """How costs add up: Gaussian DP, or Rényi DP at one order."""

    name: Literal["gdp", "rdp"]
    order: float | None = None


@dataclass(frozen=True)
class DeltaSplit:
    """How δ is divided; the parts add up to at most δ."""

    conversion: float
    stability: float
    publication: float
    sampler: float


@dataclass(frozen=True)
class Price:
    """What one query debits: `cost` and `cap_cost` in 1e-12, `delta` in 1e-18."""

    cost: int
    delta: int
    cap_cost: int


@dataclass(frozen=True)
class Terms:
    """Everything that decides whether a query is admitted and what it pays.

    `cap_budget` is what the project reserves of its ensemble's cap, in 1e-12 of μ².
    """

    epsilon: float
    delta: float
    guarantee: Literal["proven", "claimed"]
    split: DeltaSplit
    rule: Rule
    budget: int
    delta_budget: int
    prices: Mapping[Outcome, Price]
    cap_budget: int

    @property
    def worst(self) -> Price:
        """The most that a query can cost, component by component."""
        prices = self.prices.values()
        return Price(
            cost=max(price.cost for price in prices),
            delta=max(price.delta for price in prices),
            cap_cost=max(price.cap_cost for price in prices),
        )

    def affordable(self, spent: int, delta_spent: int) -> int:
        """Return how many further queries are certain to fit, each at the worst price."""
        worst = self.worst
        by_cost = (self.budget - spent) // worst.cost
        return max(0, min(by_cost, (self.delta_budget - delta_spent) // worst.delta))

    def epsilon_spent(self, spent: int) -> float:
        """Return ε of what is spent so far, at the same δ. Informational: the budget binds."""
        if spent <= 0:
            return 0.0
        delta = self.split.conversion
        if self.rule.order is None:
            epsilon = epsilon_from_gdp(spent / COST_UNITS, delta)
        else:
            # After few queries the fixed order is a poor converter; their μ² is a better one.
            queries = -(-spent // self.worst.cost)
            epsilon = min(
                epsilon_from_rdp([spent / COST_UNITS], [self.rule.order], delta),
                epsilon_from_gdp(queries * self.worst.cap_cost / COST_UNITS, delta),
            )
        return min(epsilon, self.epsilon) if spent <= self.budget else epsilon

    def to_json(self) -> dict[str, Any]:
        """Return the terms as JSON."""
        return asdict(self) | {
            "prices": {outcome.value: asdict(price) for outcome, price in self.prices.items()}
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Terms:
        """Return the terms that `to_json` wrote."""
        return cls(
            **dict(data)
            | {
                "split": DeltaSplit(**data["split"]),
                "rule": Rule(**data["rule"]),
                "prices": {Outcome(key): Price(**price) for key, price in data["prices"].items()},
            }
        )


@dataclass(frozen=True)
class Cap:
    """What all projects of one ensemble may spend together: μ² in 1e-12, additive δ in 1e-18."""

    epsilon: float
    delta: float
    budget: int
    delta_budget: int


def quote(mechanism: Mechanism, epsilon: float, delta: float) -> Terms:
    """Return the terms of a project with this mechanism and an (ε, δ) budget.

    Raises `ParameterError` where the budget is malformed or does not pay for a single query.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta("delta", delta)
    events = mechanism.events()
    stable = any(additive_delta(event) > 0 for event in events.values())
    split = _split(delta, STABILITY_SHARE if stable else Fraction(0))
    delta_budget = _floor(split.stability, DELTA_UNITS) + _floor(split.sampler, DELTA_UNITS)

    if any(map(_is_pure, events.values())):
        order = _best_order(events.values(), epsilon, split.conversion)
        rule = Rule("rdp", order)
        available = float(rdp_budget(order, epsilon, split.conversion)) * (1 - SLACK)
    else:
        rule, available = Rule("gdp"), gdp_budget(epsilon, split.conversion)

    budget = _floor(available, COST_UNITS)
    terms = Terms(
        epsilon=epsilon,
        delta=delta,
        guarantee=mechanism.guarantee,
        split=split,
        rule=rule,
        budget=budget,
        delta_budget=delta_budget,
        prices={outcome: price(event, rule) for outcome, event in events.items()},
        cap_budget=budget,
    )
    queries = terms.affordable(0, 0)
    if queries < 1:
        raise ParameterError(_too_dear(terms))
    if rule.name == "gdp":
        return terms
    return replace(terms, cap_budget=queries * terms.worst.cap_cost)


def price(event: CostEvent, rule: Rule) -> Price:
    """Return what a query that was charged for `event` debits under `rule`, rounded up."""
    squared = gdp_squared(event)
    cost = squared if rule.order is None else float(rdp(event, rule.order))
    return Price(
        cost=_ceil(cost * (1 + SLACK), COST_UNITS),
        delta=_ceil(additive_delta(event), DELTA_UNITS) + SAMPLER_DELTA,
        cap_cost=_ceil(squared * (1 + SLACK), COST_UNITS),
    )


def cap(epsilon: float, delta: float) -> Cap:
    """Return the cap of an ensemble: a Gaussian-DP filter over all its projects.

    A tenth of δ is for what projects add up (stability tests, the sampler), the rest for the
    conversion of μ². Raises `ParameterError` where the budget is malformed.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta("delta", delta)
    additive = Fraction(delta) * CAP_ADDITIVE_SHARE
    budget = _floor(gdp_budget(epsilon, _down(Fraction(delta) - additive)), COST_UNITS)
    delta_budget = math.floor(additive * DELTA_UNITS)
    if budget < 1 or delta_budget < 1:
        raise ParameterError(f"epsilon = {epsilon:g}, delta = {delta:g} is too small to share out.")
    return Cap(epsilon, delta, budget, delta_budget)


def _split(delta: float, stability: Fraction) -> DeltaSplit:
    whole = Fraction(delta)
    return DeltaSplit(
        conversion=_down(whole * (1 - stability - SAMPLER_SHARE)),
        stability=_down(whole * stability),
        publication=0.0,
        sampler=_down(whole * SAMPLER_SHARE),
    )


def _is_pure(event: CostEvent) -> bool:
    """Whether the event is priced as pure DP, which Rényi DP adds up better than Gaussian DP."""
    return isinstance(event, LaplaceNoisyMax | PublishedClaim)


def _best_order(events: Iterable[CostEvent], epsilon: float, delta: float) -> float:
    """Return the order at which the budget buys the most queries of the dearest kind.

    Chosen from public parameters before the first query, and then fixed: "as long as some order
    still fits" is not a valid filter (tests/privacy shows a counterexample). Orders beyond 1/δ
    make the rule at least as generous as adding up pure ε.
    """
    orders = np.round(1 + np.geomspace(0.01, 100 / max(delta, 1e-15), 4000), 2)
    dearest = np.max([rdp(event, orders) for event in events], axis=0)
    return float(orders[np.argmax(rdp_budget(orders, epsilon, delta) / dearest)])


def _too_dear(terms: Terms) -> str:
    worst = terms.worst
    if worst.delta > terms.delta_budget:
        return (
            f"delta = {terms.delta:g} leaves {terms.delta_budget / DELTA_UNITS:.3g} for what every "
            f"query adds to δ, but one query adds {worst.delta / DELTA_UNITS:.3g}. "
            "Lower delta_per_query or raise delta."
        )
    return (
        f"epsilon = {terms.epsilon:g}, delta = {terms.delta:g} does not pay for a single query: "
        f"one costs {worst.cost / COST_UNITS:.6g} of {terms.budget / COST_UNITS:.6g}. "
        "Use more noise or a larger epsilon."
    )


def _floor(value: float, units: int) -> int:
    return max(0, math.floor(Fraction(value) * units))


def _ceil(value: float, units: int) -> int:
    return math.ceil(Fraction(value) * units)


def _down(value: Fraction) -> float:
    """Return the largest float that is not above a fraction."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
