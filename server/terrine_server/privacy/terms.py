"""A project's terms: its rule, its budget and its price list, fixed when it is opened.

Money is counted in integers (`units`). Prices are rounded up and budgets down, so that rounding is
never in our favour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

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
from terrine_server.privacy.checks import check_orders
from terrine_server.privacy.costs import (
    CostEvent,
    LaplaceNoisyMax,
    PublishedClaim,
    PublishedFigure,
    SparseVectorEpoch,
)
from terrine_server.privacy.mechanisms.base import Mechanism, Outcome
from terrine_server.privacy.parameters import (
    ParameterError,
    check_delta,
    check_epsilon,
    integer,
)
from terrine_server.privacy.sanitize import Publication
from terrine_server.privacy.units import (
    COST_UNITS,
    DELTA_UNITS,
    SAMPLER_DELTA,
    ceil_units,
    floor_units,
)

STABILITY_SHARE = Fraction(1, 20)
PUBLICATION_SHARE = Fraction(1, 10)
"""Of δ: the chance that any published figure is below the spend."""
SAMPLER_SHARE = Fraction(1, 1000)
CAP_ADDITIVE_SHARE = Fraction(1, 10)
PUBLISHING_CAP_ADDITIVE_SHARE = Fraction(1, 5)
MAX_PUBLICATIONS = 64


@dataclass(frozen=True)
class Rule:
    """How costs add up: Gaussian DP, or Rényi DP at one order."""

    name: Literal["gdp", "rdp"]
    order: float | None = None

    def __str__(self) -> str:
        return "Gaussian DP" if self.order is None else f"Rényi DP at order {self.order:g}"


GDP = Rule("gdp")


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

    def __add__(self, other: Price) -> Price:
        return Price(
            self.cost + other.cost, self.delta + other.delta, self.cap_cost + other.cap_cost
        )


@dataclass(frozen=True)
class Schedule:
    """When a project publishes a bound on its secret spend: after so many paid queries each.

    One publication debits `price`. If the next query might leave no room for that, it comes early.
    """

    publication: Publication
    counts: tuple[int, ...]
    price: Price


@dataclass(frozen=True)
class Account:
    """What decides on the next query, all of it public.

    `queries` were paid, and `published` bounds on what they cost released; `fresh` is whether a
    query was paid since the last one.
    """

    spent: int = 0
    delta_spent: int = 0
    cap_spent: int = 0
    queries: int = 0
    published: int = 0
    fresh: bool = False

    @property
    def charges(self) -> int:
        """Number of the last entry."""
        return self.queries + self.published

    def plus(self, price: Price) -> Account:
        """Return the account after one more query at this price."""
        return replace(
            self,
            spent=self.spent + price.cost,
            delta_spent=self.delta_spent + price.delta,
            cap_spent=self.cap_spent + price.cap_cost,
            queries=self.queries + 1,
            fresh=True,
        )


@dataclass(frozen=True)
class Terms:
    """Everything that decides whether a query is admitted and what it pays.

    `cap_budget` is what the project reserves of its ensemble's cap, in the units of `cap_rule`.
    `schedule`: None where every query counts at its worst case for ever. `opening`: what the first
    query of an epoch pays on top of its own price; None where there are no epochs.
    """

    epsilon: float
    delta: float
    guarantee: Literal["proven", "claimed"]
    split: DeltaSplit
    rule: Rule
    cap_rule: Rule
    budget: int
    delta_budget: int
    prices: Mapping[Outcome, Price]
    cap_budget: int
    schedule: Schedule | None = None
    opening: Price | None = None

    @property
    def worst(self) -> Price:
        """The most that a query can cost, component by component. Any may open an epoch."""
        return self._worst(opens=True)

    def price(self, outcome: Outcome, opens: bool) -> Price:
        """Return what a query of this outcome debits; `opens`: as the first of its epoch."""
        own = self.prices[outcome]
        return own + self.opening if opens and self.opening is not None else own

    def admits(self, account: Account, opens: bool = True) -> bool:
        """Whether one more query at the worst price fits.

        `opens`: whether it would be the first of its epoch. That follows from earlier outcomes.
        """
        worst = self._worst(opens)
        return (
            account.spent + worst.cost <= self.budget
            and account.delta_spent + worst.delta <= self.delta_budget - self._kept(account)
        )

    def affordable(self, account: Account) -> int:
        """Return how many further queries are certain to fit, each at the worst price.

        Publications that are to come may turn out to free nothing.
        """
        worst, to_come = self.worst, self._to_come(account)
        left = self.budget - account.spent
        delta_left = self.delta_budget - self._kept(account) - account.delta_spent
        if to_come and self.schedule:
            certain = (left - to_come * self.schedule.price.cost) // worst.cost
            by_cost = max(certain, min(1, left // worst.cost))
        else:
            by_cost = left // worst.cost
        return max(0, min(by_cost, delta_left // worst.delta))

    def due(self, account: Account) -> bool:
        """Whether a bound on the spend is published before the next query. Public, like all here.

        It is when the scheduled number of queries is paid, or when one more might leave no room.
        """
        schedule = self.schedule
        if schedule is None or not account.fresh or account.published >= len(schedule.counts):
            return False
        fits = account.spent + schedule.price.cost
        scheduled = account.queries >= schedule.counts[account.published]
        return fits <= self.budget and (scheduled or fits + self.worst.cost > self.budget)

    def bound(self, account: Account) -> int:
        """Return what all queries cost at most: what is spent, less the price of publications."""
        prices = account.published * self.schedule.price.cost if self.schedule else 0
        return account.spent - prices

    def after_publishing(self, account: Account, figure: int) -> Account:
        """Return the account once `figure` is published in place of the bound."""
        if self.schedule is None or not 0 <= figure <= self.bound(account):
            raise ValueError("a published figure lies between 0 and what was known before")
        spent = account.spent - self.bound(account) + figure + self.schedule.price.cost
        return replace(
            account,
            spent=spent,
            delta_spent=account.delta_spent + self.schedule.price.delta,
            cap_spent=spent,  # the cap has the same rule
            published=account.published + 1,
            fresh=False,
        )

    def epsilon_spent(self, spent: int) -> float:
        """Return ε of what is spent so far, at the same δ. Informational: the budget binds."""
        if spent <= 0:
            return 0.0
        delta = self.split.conversion
        if self.rule.order is None:
            epsilon = epsilon_from_gdp(spent / COST_UNITS, delta)
        else:
            epsilon = epsilon_from_rdp([spent / COST_UNITS], [self.rule.order], delta)
            if self.schedule is None and self.cap_rule == GDP:
                # After few queries the fixed order is a poor converter; their μ² is a better one.
                queries = -(-spent // self.worst.cost)
                squared = queries * self.worst.cap_cost / COST_UNITS
                epsilon = min(epsilon, epsilon_from_gdp(squared, delta))
        return min(epsilon, self.epsilon) if spent <= self.budget else epsilon

    def _worst(self, opens: bool) -> Price:
        prices = [self.price(outcome, opens) for outcome in self.prices]
        return Price(
            cost=max(price.cost for price in prices),
            delta=max(price.delta for price in prices),
            cap_cost=max(price.cap_cost for price in prices),
        )

    def _to_come(self, account: Account) -> int:
        return len(self.schedule.counts) - account.published if self.schedule else 0

    def _kept(self, account: Account) -> int:
        """δ that is kept for publications to come."""
        return self._to_come(account) * self.schedule.price.delta if self.schedule else 0

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
                "cap_rule": Rule(**data["cap_rule"]),
                "prices": {Outcome(key): Price(**price) for key, price in data["prices"].items()},
                "schedule": data["schedule"] and _schedule(data["schedule"]),
                "opening": data["opening"] and Price(**data["opening"]),
            }
        )


@dataclass(frozen=True)
class Cap:
    """What all projects of one ensemble may spend together, in units of the rule's quantity."""

    epsilon: float
    delta: float
    rule: Rule
    budget: int
    delta_budget: int


def quote(
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    *,
    cap_rule: Rule = GDP,
    publishing: tuple[Publication, Sequence[int]] | None = None,
) -> Terms:
    """Return the terms of a project with this mechanism and an (ε, δ) budget.

    `cap_rule` is that of the ensemble's cap. `publishing`: how, and after how many paid queries
    each, the project publishes a bound on its spend; the cap must then have the same order. Raises
    `ParameterError` where the budget is malformed or does not pay for a single query.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta("delta", delta)
    events, opening = mechanism.events(), mechanism.opening
    kinds = [*events.values(), *([] if opening is None else [opening])]
    stable = any(additive_delta(event) > 0 for event in kinds)
    split = _split(
        delta,
        STABILITY_SHARE if stable else Fraction(0),
        PUBLICATION_SHARE if publishing else Fraction(0),
    )
    shares = (split.stability, split.publication, split.sampler)
    delta_budget = sum(floor_units(share, DELTA_UNITS) for share in shares)

    schedule = None
    if publishing is not None:
        rule = Rule("rdp", publishing[0].order)
        schedule = _check_schedule(mechanism, rule, cap_rule, split, *publishing)
    elif any(map(_is_pure, kinds)):
        rule = Rule("rdp", _best_order(kinds, epsilon, split.conversion))
    else:
        rule = GDP
    budget = _budget(rule, epsilon, split.conversion)
    prices = {outcome: price(event, rule, cap_rule) for outcome, event in events.items()}
    terms = Terms(
        epsilon=epsilon,
        delta=delta,
        guarantee=mechanism.guarantee,
        split=split,
        rule=rule,
        cap_rule=cap_rule,
        budget=budget,
        delta_budget=delta_budget,
        prices=prices,
        cap_budget=(
            budget
            if rule == cap_rule
            else _at_most(budget, (price(event, rule, cap_rule) for event in kinds))
        ),
        schedule=schedule,
        opening=None if opening is None else price(opening, rule, cap_rule),
    )
    if terms.affordable(Account()) < 1:
        raise ParameterError(_too_dear(terms))
    return terms


def price(event: CostEvent | PublishedFigure, rule: Rule, cap_rule: Rule = GDP) -> Price:
    """Return what an entry that was charged for `event` debits under `rule`, rounded up."""
    if isinstance(event, PublishedFigure):
        return _publication_price(Publication.of(event))
    return Price(
        cost=_cost(event, rule),
        delta=ceil_units(additive_delta(event), DELTA_UNITS) + SAMPLER_DELTA,
        cap_cost=_cost(event, cap_rule),
    )


def check_publishable(mechanism: Mechanism) -> None:
    """Raise `ParameterError` where no data-dependent analysis of the mechanism is known."""
    if mechanism.guarantee != "proven":
        raise ParameterError("A claimed price has no data-dependent analysis. Use worst_case.")
    if mechanism.opening is not None:
        raise ParameterError(
            f"{mechanism.name} has no data-dependent analysis: an epoch is paid when it opens, and "
            "costs the same whatever is asked. Use worst_case."
        )


def publication_z(delta: float, publications: int) -> float:
    """Return z such that so many figures are all above the spend, but for their share of δ."""
    each = float(PUBLICATION_SHARE) * delta / publications
    return -float(ndtri(each / (1 + SLACK) ** 2))


def check_counts(counts: Sequence[int]) -> None:
    """Raise `ParameterError` unless a project could publish after so many queries each."""
    integer("the number of publications", len(counts), 1, MAX_PUBLICATIONS, "each has its price")
    for count in counts:
        integer("a count of the schedule", count, 1, 10**15, "figures follow paid queries")
    if any(later <= earlier for earlier, later in pairwise(counts)):
        raise ParameterError("The counts of a schedule must grow from one to the next.")


def cap(epsilon: float, delta: float, order: float | None = None) -> Cap:
    """Return the cap of an ensemble: a filter over all its projects.

    Without an order in Gaussian DP, the better rule for Gaussian noise. With one in Rényi DP at
    that order, in which published figures count: data-dependent projects need it. A tenth of δ (a
    fifth, with an order) is for what projects add up on their own, the rest for the conversion.
    Raises `ParameterError` where the budget is malformed.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta("delta", delta)
    rule = GDP if order is None else Rule("rdp", float(check_orders(order)[0]))
    share = CAP_ADDITIVE_SHARE if order is None else PUBLISHING_CAP_ADDITIVE_SHARE
    additive = Fraction(delta) * share
    budget = _budget(rule, epsilon, _down(Fraction(delta) - additive))
    delta_budget = math.floor(additive * DELTA_UNITS)
    if budget < 1 or delta_budget < 1:
        raise ParameterError(
            f"epsilon = {epsilon:g}, delta = {delta:g} is too small to share out in {rule}."
        )
    return Cap(epsilon, delta, rule, budget, delta_budget)


def _budget(rule: Rule, epsilon: float, delta: float) -> int:
    if rule.order is None:
        return floor_units(gdp_budget(epsilon, delta), COST_UNITS)
    return floor_units(float(rdp_budget(rule.order, epsilon, delta)) * (1 - SLACK), COST_UNITS)


def _cost(event: CostEvent, rule: Rule) -> int:
    cost = gdp_squared(event) if rule.order is None else float(rdp(event, rule.order))
    return ceil_units(cost * (1 + SLACK), COST_UNITS)


def _at_most(budget: int, prices: Iterable[Price]) -> int:
    """Return what a whole budget can cost in the cap's units: no price has a worse ratio."""
    return max(-(-budget * price.cap_cost // price.cost) for price in prices if price.cost)


def _publication_price(publication: Publication) -> Price:
    cost = ceil_units(publication.cost * (1 + SLACK), COST_UNITS)
    delta = ceil_units(publication.failure, DELTA_UNITS) + SAMPLER_DELTA
    return Price(cost=cost, delta=delta, cap_cost=cost)


def _check_schedule(
    mechanism: Mechanism,
    rule: Rule,
    cap_rule: Rule,
    split: DeltaSplit,
    publication: Publication,
    counts: Sequence[int],
) -> Schedule:
    check_publishable(mechanism)
    if cap_rule != rule:
        raise ParameterError(
            f"What is published counts in {rule}, but the ensemble's cap adds up in {cap_rule}. "
            "Both must be the same; an ensemble's order is given when it is registered."
        )
    check_counts(counts)
    each = _publication_price(publication)
    if (each.delta - SAMPLER_DELTA) * len(counts) > split.publication * DELTA_UNITS:
        raise ParameterError(
            f"z = {publication.z:g} lets {len(counts)} figures fail more often than δ allows: use "
            f"at least {publication_z(split.publication / float(PUBLICATION_SHARE), len(counts))}."
        )
    return Schedule(publication, tuple(counts), each)


def _schedule(data: Mapping[str, Any]) -> Schedule:
    return Schedule(
        Publication(**data["publication"]), tuple(data["counts"]), Price(**data["price"])
    )


def _split(delta: float, stability: Fraction, publication: Fraction) -> DeltaSplit:
    whole = Fraction(delta)
    return DeltaSplit(
        conversion=_down(whole * (1 - stability - publication - SAMPLER_SHARE)),
        stability=_down(whole * stability),
        publication=_down(whole * publication),
        sampler=_down(whole * SAMPLER_SHARE),
    )


def _is_pure(event: CostEvent) -> bool:
    """Whether the event is priced as pure DP, which Rényi DP adds up better than Gaussian DP."""
    return isinstance(event, LaplaceNoisyMax | PublishedClaim | SparseVectorEpoch)


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


def _down(value: Fraction) -> float:
    """Return the largest float that is not above a fraction."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
