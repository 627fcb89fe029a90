"""Cost events as those of Google's dp_accounting, to compare our prices with its accountants.

    from dp_accounting.pld import PLDAccountant
    accountant = PLDAccountant().compose(dp_event(mechanism.events()["answered"]), 500)

Each is an upper bound on what the release tells about one unit. dp_accounting knows continuous
noise, and does not know a test and a maximum as one release, so its totals may be above ours, which
follow from the discrete noise and from what a label tells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_never

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
from terrine_server.privacy.parameters import ParameterError

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def dp_events(tally: Mapping[CostEvent, int]) -> DpEvent:
    """Return a number of each event, as one of dp_accounting. Raises `ParameterError`."""
    import dp_accounting as dp

    return dp.ComposedDpEvent(
        [dp.SelfComposedDpEvent(dp_event(event), count) for event, count in tally.items()]
    )


def dp_event(event: CostEvent) -> DpEvent:
    """Return a cost event as one of dp_accounting, which must be installed.

    Raises `ParameterError` for what its events cannot say: a δ of its own, or pure ε without noise.
    """
    import dp_accounting as dp

    match event:
        case GaussianNoisyMax(sigma, shift):
            return dp.GaussianDpEvent(sigma / (math.sqrt(2) * shift))
        case GaussianArgmax(sigma) | GaussianNoisyCounts(sigma):
            return dp.GaussianDpEvent(sigma / math.sqrt(2))
        case NeighbourCounts(sigma, norm):
            return dp.GaussianDpEvent(sigma / (math.sqrt(2) * norm))
        case GaussianThreshold(sigma):
            return dp.GaussianDpEvent(sigma)
        case LaplaceNoisyMax(gamma, shift):
            return dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1 / (gamma * shift)), 2)
        case LaplaceArgmax(gamma):
            return dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1 / gamma), 2)
        case ConfidentMax():
            return dp_event(event.parts)
        case Composition(events):
            return dp.ComposedDpEvent([dp_event(part) for part in events])
        case StabilityTest():
            raise ParameterError(
                f"dp_accounting has no event for {type(event).__name__}, which has a δ of its own."
            )
        case _:
            assert_never(event)
