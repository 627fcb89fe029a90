"""A project's terms: its rule, its budget and its price list, fixed when it is opened.

Whether one more query is admitted follows from the terms and the account alone. `quoting` computes
terms from a mechanism and an (ε, δ) budget.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from terrine_server.privacy.allowance import Allowance
from terrine_server.privacy.curves import epsilon_from_gdp, epsilon_from_rdp
from terrine_server.privacy.events import ReleasedCounts
from terrine_server.privacy.mechanisms.base import VoteOutcome
from terrine_server.privacy.numbers import COST_UNITS
from terrine_server.privacy.prices import Price, by_component, highest_price
from terrine_server.privacy.published import BoundRelease
from terrine_server.privacy.releases import build_release
from terrine_server.privacy.rules import GDP, Rule


@dataclass(frozen=True)
class DeltaSplit:
    """How δ is divided. The parts add up to at most δ."""

    conversion: float
    stability: float
    publication: float
    sampler: float


@dataclass(frozen=True)
class Schedule:
    """When a project publishes a bound on its secret spend: after each of these counts of queries.

    One publication debits `price`. It happens early if the next query might leave no room for it.
    """

    publication: BoundRelease
    counts: tuple[int, ...]
    price: Price


@dataclass(frozen=True)
class PaidRelease:
    """What a project begins with, and the price of that: its first entry.

    `spec`: see `releases.build_release`.
    """

    spec: Mapping[str, Any]
    price: Price

    @property
    def event(self) -> ReleasedCounts:
        """What it is charged for."""
        return build_release(self.spec).event


@dataclass(frozen=True)
class Account:
    """The state that decides whether the next query is admitted. All of it is public.

    `queries`: how many were paid. `published`: how many bounds on their cost were published.
    `fresh`: whether a query was paid since the last publication. `released`: 1 if the project began
    with a release, otherwise 0.
    """

    spent: int = 0
    delta_spent: int = 0
    cap_spent: int = 0
    queries: int = 0
    published: int = 0
    fresh: bool = False
    released: int = 0

    @property
    def charges(self) -> int:
        """The number of the last ledger entry."""
        return self.released + self.queries + self.published

    def plus(self, price: Price) -> Account:
        """Return the account after one more query at this price."""
        return replace(self._debited(price), queries=self.queries + 1, fresh=True)

    def plus_release(self, price: Price) -> Account:
        """Return the account after a release at this price."""
        return replace(self._debited(price), released=self.released + 1)

    def _debited(self, price: Price) -> Account:
        return replace(
            self,
            spent=self.spent + price.cost,
            delta_spent=self.delta_spent + price.delta,
            cap_spent=self.cap_spent + price.cap_cost,
        )


@dataclass(frozen=True)
class ConsideredRule:
    """A rule that the project could have been opened under, and what it would have bought.

    `answer_share`: see `ConfidentMax`; None if each release is charged by itself. `answers`: how
    many are expected at the planned pass rate. `queries`: how many are certain, whatever happens.
    """

    rule: Rule
    answer_share: float | None
    answers: int
    queries: int


@dataclass(frozen=True)
class RuleChoice:
    """Why the project has this rule: it buys the most of those considered, which come first.

    `pass_rate`: the public expectation of the share of queries that are answered.
    """

    pass_rate: float
    considered: tuple[ConsideredRule, ...]


@dataclass(frozen=True)
class BaselinePrices:
    """The prices of queries whose baseline is at least `baseline` votes for every class.

    A baseline follows from the student's own probabilities, so it is public.
    """

    baseline: int
    prices: Mapping[VoteOutcome, Price]


@dataclass(frozen=True)
class Terms:
    """Everything that decides whether a query is admitted and what it pays.

    `cap_budget` is what the project reserves of its ensemble's cap, in the units of `cap_rule`.
    `schedule` is None if every query always counts at its worst case. `by_baseline`:
    prices of queries with a baseline, ascending; none of them has a schedule.
    `allowance`: of every unit, for `neighbours` alone. Then the budget is that of `queries`, each
    at one price, and what is taken of the cap never exceeds `cap_budget`, the price of it all.
    `release`: what the project begins with; its price comes first out of the budget. `prices`:
    empty where that is all that is ever paid for.
    """

    epsilon: float
    delta: float
    split: DeltaSplit
    rule: Rule
    cap_rule: Rule
    budget: int
    delta_budget: int
    prices: Mapping[VoteOutcome, Price]
    cap_budget: int
    schedule: Schedule | None = None
    choice: RuleChoice | None = None
    by_baseline: tuple[BaselinePrices, ...] = ()
    allowance: Allowance | None = None
    release: PaidRelease | None = None

    @cached_property
    def start(self) -> Account:
        """The account with which the project is opened: its release is paid, if it has one."""
        return Account() if self.release is None else Account().plus_release(self.release.price)

    @cached_property
    def worst(self) -> Price:
        """The most that any query can cost, component by component."""
        return self._worst_prices[0]

    @cached_property
    def least(self) -> Price:
        """The least that any query can cost, component by component."""
        every = [price for prices in self._price_lists.values() for price in prices.values()]
        return by_component(min, every)

    @cached_property
    def room(self) -> Price:
        """What must be left for any query: what one with the highest baseline may cost."""
        return self._worst_prices[self.baselines[-1]]

    @cached_property
    def baselines(self) -> tuple[int, ...]:
        """The baselines that have prices of their own, ascending; the first is 0.

        The higher the baseline, the cheaper its most expensive outcome.
        """
        return tuple(self._price_lists)

    def priced_baseline(self, baseline: int) -> int:
        """Return the largest of the `baselines` that a query with this one has."""
        return max(each for each in self.baselines if each <= baseline)

    def price(self, outcome: VoteOutcome, baseline: int = 0) -> Price:
        """Return what a query with this outcome debits.

        `baseline`: one of the `baselines`; raises KeyError if it is not.
        """
        return self._price_lists[baseline][outcome]

    def admits(self, account: Account, baseline: int = 0) -> bool:
        """Whether one more query fits at the worst price that its outcome can have.

        `baseline`: one of the `baselines`.
        """
        worst = self._worst_prices[baseline]
        return (
            bool(self.prices)
            and account.spent + worst.cost <= self.budget
            and account.delta_spent + worst.delta <= self.delta_budget - self._reserved(account)
        )

    def affordable(self, account: Account) -> int:
        """Return how many further queries are certain to fit, each at the worst price.

        Publications still to come may free nothing.
        """
        if not self.prices:
            return 0
        worst, publications = self.worst, self._publications_left(account)
        left = self.budget - account.spent
        delta_left = self.delta_budget - self._reserved(account) - account.delta_spent
        if publications and self.schedule:
            certain = (left - publications * self.schedule.price.cost) // worst.cost
            by_cost = max(certain, min(1, left // worst.cost))
        else:
            by_cost = left // worst.cost
        return max(0, min(by_cost, delta_left // worst.delta))

    def most_admitted(self, account: Account) -> float:
        """Return how many further queries fit if each has its cheapest outcome.

        A query is admitted only if there is room for the most expensive outcome. So the last query
        needs that much, and the others may need as little as the cheapest. A figure still to be
        published may give back all that was spent; then δ alone limits them. Infinite if the
        cheapest outcome takes nothing.
        """
        if not self.admits(account, baseline=self.baselines[-1]):
            return 0

        def count(left: int, worst: int, least: int) -> float:
            return 1 + (left - worst) // least if least else math.inf

        delta_left = self.delta_budget - self._reserved(account) - account.delta_spent
        by_delta = count(delta_left, self.room.delta, self.least.delta)
        if self._publications_left(account) > 0:
            return by_delta
        return min(by_delta, count(self.budget - account.spent, self.room.cost, self.least.cost))

    def capped(self, account: Account) -> Account:
        """Return an account to which prices were added, with no more of the cap than allowed.

        No unit's accounts exceed their allowance, so no number of queries costs the cap more.
        """
        if self.allowance is None:
            return account
        return replace(account, cap_spent=min(account.cap_spent, self.cap_budget))

    def due(self, account: Account) -> bool:
        """Whether a bound on the spend is published before the next query. Public, like all terms.

        True once the scheduled number of queries is paid, or if one more might leave no room.
        """
        schedule = self.schedule
        if schedule is None or not account.fresh or account.published >= len(schedule.counts):
            return False
        fits = account.spent + schedule.price.cost
        scheduled = account.queries >= schedule.counts[account.published]
        return fits <= self.budget and (scheduled or fits + self.worst.cost > self.budget)

    def bound(self, account: Account) -> int:
        """Return the most that all queries cost: the spend, less what else was paid for."""
        prices = account.published * self.schedule.price.cost if self.schedule else 0
        return account.spent - prices - self.start.spent

    def after_publishing(self, account: Account, figure: int) -> Account:
        """Return the account after `figure` is published and replaces the bound."""
        if self.schedule is None or not 0 <= figure <= self.bound(account):
            raise ValueError("a published figure must lie between 0 and the bound known before")
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
        """Return ε of a spend, at the same δ. Informational: refusals depend on the budget."""
        if spent <= 0:
            return 0.0
        delta, cost = self.split.conversion, spent / COST_UNITS
        if self.allowance is not None:
            # The balance counts queries. Whoever voted in all of them has spent more than it says.
            queries = -(-spent // self.worst.cost)
            cost = self.allowance.cost(self.allowance.most_spent(queries), self.rule)
        if self.rule.order is None:
            epsilon = epsilon_from_gdp(cost, delta)
        else:
            epsilon = epsilon_from_rdp([cost], [self.rule.order], delta)
            costs = {price.cost for price in self.prices.values()}
            steady = self.schedule is None and self.allowance is None and len(costs) == 1
            if steady and self.cap_rule == GDP:
                # After few queries the fixed order converts badly; their μ² converts better.
                queries = -(-max(0, spent - self.start.spent) // self.worst.cost)
                squared = (self.start.cap_spent + queries * self.worst.cap_cost) / COST_UNITS
                epsilon = min(epsilon, epsilon_from_gdp(squared, delta))
        return min(epsilon, self.epsilon) if spent <= self.budget else epsilon

    @cached_property
    def _price_lists(self) -> Mapping[int, Mapping[VoteOutcome, Price]]:
        """The price list of each baseline."""
        return {0: self.prices} | {each.baseline: each.prices for each in self.by_baseline}

    @cached_property
    def _worst_prices(self) -> Mapping[int, Price]:
        return {
            baseline: highest_price(prices.values())
            for baseline, prices in self._price_lists.items()
        }

    def _publications_left(self, account: Account) -> int:
        return len(self.schedule.counts) - account.published if self.schedule else 0

    def _reserved(self, account: Account) -> int:
        """Return the δ reserved for publications still to come."""
        return self._publications_left(account) * self.schedule.price.delta if self.schedule else 0

    def to_json(self) -> dict[str, Any]:
        """Return the terms as JSON."""
        written = json.loads(json.dumps(msgspec.to_builtins(self, enc_hook=np.generic.item)))
        # Older terms, whose hash must not change, have none of these.
        added = ("choice", "by_baseline", "allowance", "release")
        return {name: value for name, value in written.items() if value or name not in added}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Terms:
        """Return the terms that `to_json` wrote. Raises ValueError for anything else."""
        # Older terms have a price of opening. It is null for every mechanism that there is.
        given = {name: value for name, value in data.items() if (name, value) != ("opening", None)}
        try:
            terms = msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"the terms cannot be read: {error}") from None
        unknown = [name for name, value in given.items() if terms.to_json().get(name) != value]
        if unknown:
            raise ValueError(f"the terms hold what this version does not know: {unknown}")
        return terms


# What msgspec knows of these classes is found out here, once: it crashes the process when several
# threads find it out together.
msgspec.json.Decoder(Terms)
