"""Compute terms: divide a budget, convert it to the rule's quantity, and price every outcome.

Budgets are rounded down, prices up (`price`). The result is then fixed (`Terms`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from scipy.special import ndtri

from terrine_server.privacy.allowance import find_allowance
from terrine_server.privacy.budget import BaselinePrices, DeltaSplit, PaidRelease, Schedule, Terms
from terrine_server.privacy.curves import additive_delta, gdp_budget, rdp_budget
from terrine_server.privacy.events import (
    CostEvent,
    GaussianNoisyCounts,
    NeighbourCounts,
)
from terrine_server.privacy.mechanisms.base import ComparesWithStudent, Mechanism, VoteOutcome
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.numbers import (
    COST_UNITS,
    DELTA_UNITS,
    SAMPLER_DELTA,
    SLACK,
    check_orders,
    floor_units,
)
from terrine_server.privacy.parameters import (
    ParameterError,
    check_delta,
    check_epsilon,
    integer,
)
from terrine_server.privacy.prices import Price, highest_price, price, publication_price
from terrine_server.privacy.published import BoundRelease
from terrine_server.privacy.releases import Sums, build_release
from terrine_server.privacy.rules import GDP, Rule, opening_rule, search_order

STABILITY_SHARE = Fraction(1, 20)
# Share of δ for the probability that any published figure is below the spend.
PUBLICATION_SHARE = Fraction(1, 10)
SAMPLER_SHARE = Fraction(1, 1000)
CAP_ADDITIVE_SHARE = Fraction(1, 10)
PUBLISHING_CAP_ADDITIVE_SHARE = Fraction(1, 5)
MAX_PUBLICATIONS = 64


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
    rule: Rule | None = None,
    publishing: tuple[BoundRelease, Sequence[int]] | None = None,
    release: Mapping[str, Any] | None = None,
) -> Terms:
    """Return the terms of a project with this mechanism and an (ε, δ) budget.

    `cap_rule` is the rule of the ensemble's cap; `rule` that of the project, by default
    `opening_rule`. `publishing`: how the project publishes a bound on its spend, and after how many
    paid queries each time; rule and cap then have the same order. `release`: what the project
    begins with (`releases.build_release`), which the same budget pays for.
    Raises `ParameterError` if the budget is malformed, or does not pay for a single query or, where
    none is ever paid for, for the release.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta("delta", delta)
    events = mechanism.events()
    split = split_delta(events.values(), delta, publishing=publishing is not None)
    shares = (split.stability, split.publication, split.sampler)
    delta_budget = sum(floor_units(share, DELTA_UNITS) for share in shares)
    begun = None if release is None else build_release(release)
    if events and isinstance(begun, Sums):
        raise ParameterError(
            f"{mechanism.name} asks votes, and this ensemble has sums alone. Use the mechanism "
            "sums."
        )
    if not events and not isinstance(begun, Sums):
        raise ParameterError(
            f"{mechanism.name} answers from sums that a project begins with, and this ensemble has "
            "none. Use another mechanism, or an ensemble of the kind sums."
        )
    if isinstance(mechanism, Neighbours) and publishing is None:
        if begun is not None:
            raise ParameterError("A project of neighbours begins with no release.")
        return _quote_neighbours(mechanism, epsilon, delta, cap_rule, split, delta_budget)

    schedule = None
    if publishing is not None:
        rule = Rule("rdp", publishing[0].order)
        schedule = _check_schedule(mechanism, rule, cap_rule, split, *publishing)
    elif rule is None:
        rule = opening_rule(events.values(), epsilon, split.conversion)
    budget = _budget_units(rule, epsilon, split.conversion)
    prices = {outcome: price(event, rule, cap_rule) for outcome, event in events.items()}
    by_baseline = _price_baselines(mechanism, prices, rule, cap_rule)
    lists = [prices, *(each.prices for each in by_baseline)]
    every = [one for each in lists for one in each.values()]
    paid = None
    if begun is not None:
        paid = PaidRelease(begun.spec, price(begun.event, rule, cap_rule))
        every.append(paid.price)
    most = budget if rule == cap_rule else _most_cap_cost(budget, every)
    if paid is not None and not prices:
        most = paid.price.cap_cost  # nothing else is ever charged
    terms = Terms(
        epsilon=epsilon,
        delta=delta,
        split=split,
        rule=rule,
        cap_rule=cap_rule,
        budget=budget,
        delta_budget=delta_budget,
        prices=prices,
        cap_budget=most,
        schedule=schedule,
        by_baseline=by_baseline,
        release=paid,
    )
    pays = terms.start.spent <= budget and terms.start.delta_spent <= delta_budget
    if not pays or (prices and terms.affordable(terms.start) < 1):
        raise ParameterError(_explain_expense(terms))
    return terms


def _quote_neighbours(
    mechanism: Neighbours,
    epsilon: float,
    delta: float,
    cap_rule: Rule,
    split: DeltaSplit,
    delta_budget: int,
) -> Terms:
    """Return the terms of a project whose units have accounts: see `find_allowance`."""
    queries = mechanism.queries
    rule, each = find_allowance(mechanism.sigma, mechanism.norm, queries, epsilon, split.conversion)
    whole = each.cost_units(each.most, rule)
    events = mechanism.events().items()
    prices = {
        o: replace(price(event, rule, cap_rule), cost=whole // queries) for o, event in events
    }
    terms = Terms(
        epsilon=epsilon,
        delta=delta,
        split=split,
        rule=rule,
        cap_rule=cap_rule,
        budget=whole // queries * queries,
        delta_budget=delta_budget,
        prices=prices,
        cap_budget=each.cost_units(each.most, cap_rule),
        allowance=each,
    )
    if whole < queries or terms.affordable(terms.start) < queries:
        raise ParameterError(
            f"epsilon = {epsilon:g}, delta = {delta:g} cannot be counted out in {queries} queries. "
            "Ask for fewer, or for a larger epsilon or delta."
        )
    return terms


def _price_baselines(
    mechanism: Mechanism, prices: Mapping[VoteOutcome, Price], rule: Rule, cap_rule: Rule
) -> tuple[BaselinePrices, ...]:
    """Return the prices of queries with a baseline; left out where their most expensive is no
    cheaper."""
    if not isinstance(mechanism, ComparesWithStudent) or rule.order is None:
        return ()
    found = []
    for baseline in mechanism.even_baselines:
        events = mechanism.events(baseline)
        own = {outcome: price(event, rule, cap_rule) for outcome, event in events.items()}
        worst, before = highest_price(own.values()), highest_price(prices.values())
        if worst.cost < before.cost and worst.cap_cost <= before.cap_cost:
            found.append(BaselinePrices(baseline, own))
            prices = own
    return tuple(found)


def split_delta(
    events: Iterable[CostEvent], delta: float, *, publishing: bool = False
) -> DeltaSplit:
    """Return how a project with these events divides its δ; each part is rounded down."""
    stable = any(additive_delta(event) > 0 for event in events)
    stability = STABILITY_SHARE if stable else Fraction(0)
    publication = PUBLICATION_SHARE if publishing else Fraction(0)
    whole = Fraction(delta)
    return DeltaSplit(
        conversion=_round_down(whole * (1 - stability - publication - SAMPLER_SHARE)),
        stability=_round_down(whole * stability),
        publication=_round_down(whole * publication),
        sampler=_round_down(whole * SAMPLER_SHARE),
    )


def check_publishable(mechanism: Mechanism) -> None:
    """Raise `ParameterError` if the mechanism has no known data-dependent analysis."""
    if not mechanism.events():
        raise ParameterError(
            f"{mechanism.name} costs the same whatever records hold, once. Use `worst_case`."
        )
    counted = (GaussianNoisyCounts, NeighbourCounts)
    if any(isinstance(event, counted) for event in mechanism.events().values()):
        raise ParameterError(
            f"{mechanism.name} has no data-dependent analysis: noisy counts cost the same at any "
            "votes, and only the noisy maximum alone may cost less. Use `worst_case`, or `gnmax`."
        )


def publication_z(delta: float, publications: int) -> float:
    """Return z with which all figures are above the spend, except with that share of δ."""
    each = float(PUBLICATION_SHARE) * delta / publications
    return -float(ndtri(each / (1 + SLACK) ** 2))


def check_counts(counts: Sequence[int]) -> None:
    """Raise `ParameterError` unless these counts of paid queries are a valid schedule."""
    integer("the number of publications", len(counts), 1, MAX_PUBLICATIONS, "each one has a price")
    for count in counts:
        integer("a count of the schedule", count, 1, 10**15, "it counts paid queries")
    if any(later <= earlier for earlier, later in pairwise(counts)):
        raise ParameterError("The counts of a schedule must grow: each must exceed the one before.")


def cap(epsilon: float, delta: float, order: float | None = None) -> Cap:
    """Return the cap of an ensemble: a filter over all its projects.

    Without an order the rule is Gaussian DP, which is better for Gaussian noise. With one it is
    Rényi DP at that order, which data-dependent projects need for their published figures. A tenth
    of δ (a fifth, with an order) is for the δ that queries and publications add, the rest for the
    conversion. Raises `ParameterError` if the budget is malformed.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta("delta", delta)
    rule = GDP if order is None else Rule("rdp", float(check_orders(order)[0]))
    share = CAP_ADDITIVE_SHARE if order is None else PUBLISHING_CAP_ADDITIVE_SHARE
    additive = Fraction(delta) * share
    budget = _budget_units(rule, epsilon, _round_down(Fraction(delta) - additive))
    delta_budget = math.floor(additive * DELTA_UNITS)
    if budget < 1 or delta_budget < 1:
        raise ParameterError(
            f"epsilon = {epsilon:g}, delta = {delta:g} is too small to share out in {rule}."
        )
    return Cap(epsilon, delta, rule, budget, delta_budget)


def cap_share(whole: Cap, epsilon: float, delta: float) -> tuple[int, int]:
    """Return what (ε, δ)-DP releases take of a cap, as cost and additive δ in units.

    Of what is left, anything may be made: by basic composition, it and these releases are within
    the cap. That is all of it, if too little is left for a cap.
    """
    if epsilon == delta == 0:
        return 0, 0
    try:
        rest = cap(whole.epsilon - epsilon, whole.delta - delta, whole.rule.order)
    except ParameterError:
        return whole.budget, whole.delta_budget
    return whole.budget - rest.budget, whole.delta_budget - rest.delta_budget


def cap_order(epsilon: float, delta: float) -> float:
    """Return the order at which a cap allows the most of costs in proportion to the order.

    Such are the costs of Gaussian noise, whatever its scale.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta("delta", delta)
    conversion = delta * float(1 - PUBLISHING_CAP_ADDITIVE_SHARE)
    return search_order(epsilon, conversion, lambda order: order)


def _budget_units(rule: Rule, epsilon: float, delta: float) -> int:
    if rule.order is None:
        return floor_units(gdp_budget(epsilon, delta), COST_UNITS)
    return floor_units(float(rdp_budget(rule.order, epsilon, delta)) * (1 - SLACK), COST_UNITS)


def _most_cap_cost(budget: int, prices: Iterable[Price]) -> int:
    """Return the most that a whole budget costs in the cap's units: no price has a worse ratio."""
    return max(-(-budget * each.cap_cost // each.cost) for each in prices if each.cost)


def _check_schedule(
    mechanism: Mechanism,
    rule: Rule,
    cap_rule: Rule,
    split: DeltaSplit,
    publication: BoundRelease,
    counts: Sequence[int],
) -> Schedule:
    check_publishable(mechanism)
    if cap_rule != rule:
        raise ParameterError(
            f"Published figures are in {rule}, but the ensemble's cap is in {cap_rule}. "
            "Both must be the same. An ensemble's order is set when it is registered."
        )
    check_counts(counts)
    each = publication_price(publication)
    if (each.delta - SAMPLER_DELTA) * len(counts) > split.publication * DELTA_UNITS:
        raise ParameterError(
            f"With z = {publication.z:g}, {len(counts)} figures fail more often than δ allows. Use "
            f"at least {publication_z(split.publication / float(PUBLICATION_SHARE), len(counts))}."
        )
    return Schedule(publication, tuple(counts), each)


def _explain_expense(terms: Terms) -> str:
    worst, release = terms.worst, terms.release
    if release is not None and release.price.cost > terms.budget - worst.cost:
        return (
            f"epsilon = {terms.epsilon:g}, delta = {terms.delta:g} does not pay for what this "
            f"ensemble's projects begin with: its {release.spec['kind']} cost "
            f"{release.price.cost / COST_UNITS:.6g}, but the budget is "
            f"{terms.budget / COST_UNITS:.6g}. Use a larger epsilon, or another ensemble."
        )
    if worst.delta > terms.delta_budget:
        return (
            f"delta = {terms.delta:g} leaves {terms.delta_budget / DELTA_UNITS:.3g} for the δ that "
            f"queries add, but one query adds {worst.delta / DELTA_UNITS:.3g}. "
            "Lower delta_per_query or raise delta."
        )
    return (
        f"epsilon = {terms.epsilon:g}, delta = {terms.delta:g} does not pay for a single query: "
        f"one costs up to {worst.cost / COST_UNITS:.6g}, but the budget is "
        f"{terms.budget / COST_UNITS:.6g}. "
        "Use more noise or a larger epsilon."
    )


def _round_down(value: Fraction) -> float:
    """Return the largest float ≤ a fraction."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)
