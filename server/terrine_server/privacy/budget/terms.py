"""A project's terms: its rule, its budget and its price list, fixed when it is opened.

Who may ask one more query follows from them and from the account alone. How they come about from a
mechanism and an (ε, δ) budget is in `quoting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from terrine_server.privacy.accounting.conversions import epsilon_from_gdp, epsilon_from_rdp
from terrine_server.privacy.accounting.units import COST_UNITS
from terrine_server.privacy.budget.prices import Price
from terrine_server.privacy.budget.rules import GDP, Rule
from terrine_server.privacy.mechanisms.base import VoteOutcome
from terrine_server.privacy.published.release import BoundRelease


@dataclass(frozen=True)
class DeltaSplit:
    """How δ is divided; the parts add up to at most δ."""

    conversion: float
    stability: float
    publication: float
    sampler: float


@dataclass(frozen=True)
class Schedule:
    """When a project publishes a bound on its secret spend: after so many paid queries each.

    One publication debits `price`. If the next query might leave no room for that, it comes early.
    """

    publication: BoundRelease
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
        return Account(
            spent=self.spent + price.cost,
            delta_spent=self.delta_spent + price.delta,
            cap_spent=self.cap_spent + price.cap_cost,
            queries=self.queries + 1,
            published=self.published,
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
    prices: Mapping[VoteOutcome, Price]
    cap_budget: int
    schedule: Schedule | None = None
    opening: Price | None = None

    @cached_property
    def worst(self) -> Price:
        """The most that a query can cost, component by component. Any may open an epoch."""
        return _worst(self._opening_prices)

    def price(self, outcome: VoteOutcome, opens: bool) -> Price:
        """Return what a query of this outcome debits; `opens`: as the first of its epoch."""
        return (self._opening_prices if opens else self.prices)[outcome]

    def admits(self, account: Account, opens: bool = True) -> bool:
        """Whether one more query at the worst price fits.

        `opens`: whether it would be the first of its epoch. That follows from earlier outcomes.
        """
        worst = self.worst if opens else self._worst_within_epoch
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

    @cached_property
    def _opening_prices(self) -> Mapping[VoteOutcome, Price]:
        if self.opening is None:
            return self.prices
        return {outcome: own + self.opening for outcome, own in self.prices.items()}

    @cached_property
    def _worst_within_epoch(self) -> Price:
        return _worst(self.prices)

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
                "prices": {
                    VoteOutcome(key): Price(**price) for key, price in data["prices"].items()
                },
                "schedule": data["schedule"] and _schedule(data["schedule"]),
                "opening": data["opening"] and Price(**data["opening"]),
            }
        )


def _schedule(data: Mapping[str, Any]) -> Schedule:
    return Schedule(
        BoundRelease(**data["publication"]), tuple(data["counts"]), Price(**data["price"])
    )


def _worst(prices: Mapping[VoteOutcome, Price]) -> Price:
    return Price(
        cost=max(price.cost for price in prices.values()),
        delta=max(price.delta for price in prices.values()),
        cap_cost=max(price.cap_cost for price in prices.values()),
    )
