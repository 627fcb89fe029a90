"""What a ledger entry debits: a cost event under a rule, in whole units, rounded up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from terrine_server.privacy.curves import additive_delta, gdp_squared, rdp
from terrine_server.privacy.events import CostEvent, LedgerEvent, PublishedBound, ReleasedCounts
from terrine_server.privacy.numbers import (
    COST_UNITS,
    DELTA_UNITS,
    SAMPLER_DELTA,
    SLACK,
    ceil_units,
)
from terrine_server.privacy.published import BoundRelease
from terrine_server.privacy.rules import GDP, Rule


@dataclass(frozen=True)
class Price:
    """What one query debits: `cost` and `cap_cost` in 1e-12, `delta` in 1e-18."""

    cost: int
    delta: int
    cap_cost: int


def price(event: LedgerEvent, rule: Rule, cap_rule: Rule = GDP) -> Price:
    """Return what a ledger entry for `event` debits under `rule`, rounded up."""
    if isinstance(event, PublishedBound):
        return publication_price(BoundRelease.of(event))
    return Price(
        cost=_cost(event, rule),
        delta=_additive_units(event) + SAMPLER_DELTA,
        cap_cost=_cost(event, cap_rule),
    )


def _additive_units(event: CostEvent | ReleasedCounts) -> int:
    if isinstance(event, ReleasedCounts):
        return 0
    return ceil_units(additive_delta(event), DELTA_UNITS)


def publication_price(publication: BoundRelease) -> Price:
    """Return what one publication debits, rounded up. The cap counts the same cost as the rule."""
    cost = ceil_units(publication.cost * (1 + SLACK), COST_UNITS)
    delta = ceil_units(publication.failure, DELTA_UNITS) + SAMPLER_DELTA
    return Price(cost=cost, delta=delta, cap_cost=cost)


def _cost(event: CostEvent | ReleasedCounts, rule: Rule) -> int:
    cost = gdp_squared(event) if rule.order is None else float(rdp(event, rule.order))
    return ceil_units(cost * (1 + SLACK), COST_UNITS)


def highest_price(prices: Iterable[Price]) -> Price:
    """Return the most of each component."""
    return by_component(max, list(prices))


def by_component(choose: Callable[[Iterable[int]], int], prices: Sequence[Price]) -> Price:
    """Return the price that `choose` makes of each component; of no prices, nothing."""
    if not prices:
        return Price(0, 0, 0)
    return Price(
        cost=choose(price.cost for price in prices),
        delta=choose(price.delta for price in prices),
        cap_cost=choose(price.cap_cost for price in prices),
    )
