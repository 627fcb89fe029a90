"""Rules: how the costs of a project, or of an ensemble's cap, add up. Fixed when it is opened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np

from terrine_server.privacy.accounting.conversions import rdp_budget
from terrine_server.privacy.accounting.curves import rdp
from terrine_server.privacy.accounting.events import (
    ClaimedRelease,
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    SparseVectorEpoch,
    StabilityTest,
    WithinEpoch,
)


@dataclass(frozen=True)
class Rule:
    """How costs add up: Gaussian DP, or Rényi DP at one order."""

    name: Literal["gdp", "rdp"]
    order: float | None = None

    def __str__(self) -> str:
        return "Gaussian DP" if self.order is None else f"Rényi DP at order {self.order:g}"


GDP = Rule("gdp")


def opening_rule(events: Iterable[CostEvent], epsilon: float, delta: float) -> Rule:
    """Return the rule under which a project that charges these events is opened.

    `delta` is the share of δ that converts the rule's quantity into ε. The rule is Gaussian DP,
    unless an event is priced as pure DP, which adds up better in Rényi DP.
    """
    kinds = list(events)
    if any(map(_has_pure_part, kinds)):
        return Rule("rdp", best_order(kinds, epsilon, delta))
    return GDP


def best_order(events: Iterable[CostEvent], epsilon: float, delta: float) -> float:
    """Return the Rényi order at which the budget buys the most queries of the most expensive kind.

    It is chosen from public parameters before the first query and then fixed: "as long as some
    order still fits" is not a valid filter (tests/privacy shows a counterexample). Orders beyond
    1/δ make the rule at least as generous as adding up pure ε.
    """
    orders = np.round(1 + np.geomspace(0.01, 100 / max(delta, 1e-15), 4000), 2)
    highest = np.max([rdp(event, orders) for event in events], axis=0)
    return float(orders[np.argmax(rdp_budget(orders, epsilon, delta) / highest)])


def _has_pure_part(event: CostEvent) -> bool:
    match event:
        case LaplaceNoisyMax() | SparseVectorEpoch() | ClaimedRelease():
            return True
        case GaussianNoisyMax() | GaussianThreshold() | StabilityTest() | WithinEpoch():
            return False
        case Composition(events):
            return any(map(_has_pure_part, events))
        case _:
            assert_never(event)
