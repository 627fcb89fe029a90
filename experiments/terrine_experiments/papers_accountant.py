"""ε as the papers' own accountant states it: their curves, and the order that is best afterwards.

Terrine enforces a tighter rule (`privacy/budget.py`). This one is not a filter: if students
adapt, the order must be fixed beforehand. Google's accountants are asked through
`tests/support/dp_events.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

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
from terrine_server.privacy.quoting import split_delta

Floats = NDArray[np.float64]

ORDERS = 1 + np.geomspace(0.02, 1e4, 400)
"""Rényi orders, spaced 3.3 % in α − 1: the best of them is within 1e-3 of the best of all."""


def papers_epsilon(tally: Mapping[CostEvent, int], delta: float) -> float:
    """Return ε of a number of each event, in the worst case, at the share of δ for conversion."""
    total = np.asarray(sum(count * published_rdp(each, ORDERS) for each, count in tally.items()))
    return converted(total, split_delta(tally, delta).conversion)


def converted(total: Floats, delta: float) -> float:
    """Return ε of a divergence at each of `ORDERS`, by Proposition 3 of Mironov (2017)."""
    return max(0.0, float(np.min(total - math.log(delta) / (ORDERS - 1))))


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
        case LaplaceNoisyMax(gamma, shift):
            return _pure(2 * gamma * shift, orders)
        case LaplaceArgmax(gamma):
            return _pure(2 * gamma, orders)
        case _:
            assert_never(event)


def _pure(epsilon: float, orders: Floats) -> Floats:
    return np.minimum(epsilon, epsilon**2 * orders / 2)
