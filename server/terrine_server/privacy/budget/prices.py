"""The price of one query or one publication: a cost event priced under a rule.

Prices are integers (`units`). They are rounded up and budgets are rounded down, so that rounding is
never in our favour.
"""

from __future__ import annotations

from dataclasses import dataclass

from terrine_server.privacy.accounting.curves import additive_delta, gdp_squared, rdp
from terrine_server.privacy.accounting.events import CostEvent, PublishedBound
from terrine_server.privacy.accounting.units import (
    COST_UNITS,
    DELTA_UNITS,
    SAMPLER_DELTA,
    SLACK,
    ceil_units,
)
from terrine_server.privacy.budget.rules import GDP, Rule
from terrine_server.privacy.published.release import BoundRelease


@dataclass(frozen=True)
class Price:
    """What one query debits: `cost` and `cap_cost` in 1e-12, `delta` in 1e-18."""

    cost: int
    delta: int
    cap_cost: int


def price(event: CostEvent | PublishedBound, rule: Rule, cap_rule: Rule = GDP) -> Price:
    """Return what a ledger entry for `event` debits under `rule`, rounded up."""
    if isinstance(event, PublishedBound):
        return publication_price(BoundRelease.of(event))
    return Price(
        cost=_cost(event, rule),
        delta=ceil_units(additive_delta(event), DELTA_UNITS) + SAMPLER_DELTA,
        cap_cost=_cost(event, cap_rule),
    )


def publication_price(publication: BoundRelease) -> Price:
    """Return what one publication debits, rounded up. The cap counts the same cost as the rule."""
    cost = ceil_units(publication.cost * (1 + SLACK), COST_UNITS)
    delta = ceil_units(publication.failure, DELTA_UNITS) + SAMPLER_DELTA
    return Price(cost=cost, delta=delta, cap_cost=cost)


def _cost(event: CostEvent, rule: Rule) -> int:
    cost = gdp_squared(event) if rule.order is None else float(rdp(event, rule.order))
    return ceil_units(cost * (1 + SLACK), COST_UNITS)
