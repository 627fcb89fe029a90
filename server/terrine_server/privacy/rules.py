"""How costs add up: the rule under which a project is opened, and the order of Rényi DP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.curves import rdp, rdp_budget
from terrine_server.privacy.events import (
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
    StabilityTest,
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
    unless an event adds up better in Rényi DP: one with Laplace noise, or one priced jointly.
    """
    kinds = list(events)
    if any(map(_is_cheaper_in_rdp, kinds)):
        return Rule("rdp", best_order(kinds, epsilon, delta))
    return GDP


def best_order(events: Iterable[CostEvent], epsilon: float, delta: float) -> float:
    """Return the Rényi order at which the budget buys the most queries of the most expensive kind.

    It is chosen from public parameters before the first query and then fixed: "as long as some
    order still fits" is not a valid filter (tests/privacy shows a counterexample). Orders beyond
    1/δ make the rule at least as generous as adding up pure ε.
    """
    orders, kinds = _orders(delta), list(events)
    if any(
        isinstance(event, ConfidentMax | LaplaceArgmax | GaussianArgmax) for event in kinds
    ):  # priced order by order
        return search_order(
            epsilon, delta, lambda order: max(float(rdp(event, order)) for event in kinds)
        )
    highest = np.max([rdp(event, orders) for event in kinds], axis=0)
    return float(orders[np.argmax(rdp_budget(orders, epsilon, delta) / highest)])


def search_order(epsilon: float, delta: float, cost: Callable[[float], float]) -> float:
    """Return the order at which the budget buys the most queries of this mean cost.

    For costs that take long: it tries about thirty orders, and ends within 4 % of a local best.
    """
    orders = _orders(delta)

    def bought(at: int) -> float:
        return float(rdp_budget(orders[at], epsilon, delta)) / cost(float(orders[at]))

    best, near = 0, range(0, len(orders), 256)
    for step in (64, 16, 8):
        best = max(near, key=bought)
        near = range(max(0, best - 3 * step), min(len(orders), best + 3 * step + 1), step)
    return float(orders[max(near, key=bought)])


def _orders(delta: float) -> NDArray[np.float64]:
    return np.round(1 + np.geomspace(0.01, 100 / max(delta, 1e-15), 4000), 2)


def _is_cheaper_in_rdp(event: CostEvent) -> bool:
    match event:
        case LaplaceNoisyMax() | LaplaceArgmax() | ConfidentMax():
            return True
        case GaussianNoisyMax() | GaussianNoisyCounts() | GaussianThreshold():
            return False
        case GaussianArgmax() | StabilityTest() | NeighbourCounts():
            return False
        case Composition(events):
            return any(map(_is_cheaper_in_rdp, events))
        case _:
            assert_never(event)
