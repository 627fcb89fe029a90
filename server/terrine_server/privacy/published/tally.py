"""The cost of queries at their votes, stored as counts of small integers.

The data-dependent cost of a query depends on its votes only through one integer statistic for each
part of its cost event: the margin of a test, or how clear the winner is. A project's secret spend
is then a *tally*: how many queries had each value. It is exact, its size grows with the ensemble
and not with the number of queries, and neither counting nor evaluating it branches on votes.

Changing one teacher changes one vote of every query, and thus every statistic by at most `step`.
So with c the cost of each value, LS(k, d) = max{|c(i) − c(j)| : |i − j| ≤ step, |j − k| ≤ step·d}
bounds how much a query's cost can change at distance d; it is non-decreasing in d and
LS(k, d) ≤ LS(k′, d + 1) for neighbours. Hence max_d e^{−βd} Σ LS is a β-smooth upper bound on the
local sensitivity of the sum (Nissim, Raskhodnikova & Smith 2007; P18, arXiv 1802.08908, Theorem 7).
This holds for every cost function, with no condition on its shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d
from scipy.special import log_ndtr

from terrine_server.privacy.accounting.checks import (
    MARGIN,
    Counts,
    Floats,
    check_orders,
    check_votes,
)
from terrine_server.privacy.accounting.curves import rdp
from terrine_server.privacy.accounting.events import (
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
from terrine_server.privacy.mechanisms.base import VoteOutcome
from terrine_server.privacy.published.noisy_max import (
    gnmax_rdp,
    laplace_log_tails,
    lnmax_rdp,
    union_bound,
)
from terrine_server.privacy.published.release import ActualCost, check_beta
from terrine_server.privacy.published.statistics import bit_table, statistic_of, statistic_range

FURTHEST = 40.0
"""Distances are followed up to e^(−40): to 40/β votes, which is public."""

FINEST, VALUES = 16, 16_000
"""The statistic of a noisy maximum has up to 16 values per vote of the gap and about 16,000 in all.
Finer values add less sensitivity by rounding; more values make a tally larger."""

FLOOR = 1e-9
"""Added to every smooth sensitivity to cover the rounding of floating-point sums. Adding a constant
keeps a bound smooth."""

Tally = NDArray[np.int64]


class Meter:
    """Computes the secret spend of one mechanism at one Rényi order.

    `events`: the cost event of each outcome. An event without a data-dependent analysis (a boosted
    one, or noisy counts) costs its worst case. A tally is int64[size]. Raises
    `ParameterError` on an invalid order.
    """

    def __init__(
        self, events: Mapping[VoteOutcome, CostEvent], *, teachers: int, classes: int, order: float
    ) -> None:
        self.teachers = teachers
        self.order = float(check_orders(order)[0])
        parts: dict[CostEvent, _EventStatistic] = {}
        first: dict[CostEvent, int] = {}
        for part in (part for event in events.values() for part in _parts(event)):
            if part not in parts:
                first[part] = sum(len(known.costs) for known in parts.values())
                parts[part] = _part(part, teachers, classes, self.order)
        self.size = sum(len(part.costs) for part in parts.values())
        self._parts = [(first[event], part) for event, part in parts.items()]
        self._of = {
            outcome: [(first[part], parts[part]) for part in _parts(event)]
            for outcome, event in events.items()
        }

    def places(
        self, outcome: VoteOutcome, counts: Counts, baselines: Counts | None = None
    ) -> list[tuple[int, ...]]:
        """Return the positions of a tally that count each row of votes, int64[B, m]. Secret.

        `baselines`, int64[B, m]: what Interactive-GNMax subtracts before its test.
        """
        votes = check_votes(counts, self.teachers)
        columns = [first + part.values(votes, baselines) for first, part in self._of[outcome]]
        return [tuple(row) for row in np.column_stack(columns).tolist()]

    def queries(self, tally: Tally) -> list[int]:
        """Return how many queries each part of the tally counts. It follows from the outcomes."""
        return [int(tally[first : first + len(part.costs)].sum()) for first, part in self._parts]

    def expected_queries(self, outcomes: Mapping[VoteOutcome, int]) -> list[int]:
        """Return what `queries` must be, given the number of queries of each outcome."""
        starts = [first for first, _ in self._parts]
        return [
            sum(
                count
                for outcome, count in outcomes.items()
                for first, _ in self._of[outcome]
                if first == start
            )
            for start in starts
        ]

    def worst(self, outcome: VoteOutcome) -> float:
        """Return the highest cost at which a query with this outcome is counted."""
        return sum(float(part.costs.max()) for _, part in self._of[outcome])

    def spend(self, tally: NDArray[np.int64] | Floats, beta: float) -> ActualCost:
        """Return the cost of a tally's queries and its β-smooth sensitivity. Secret."""
        return self.spends(tally, [beta])[0]

    def spends(self, tally: NDArray[np.int64] | Floats, betas: Sequence[float]) -> list[ActualCost]:
        """Return the spend of a tally for each β. Secret."""
        rates = np.array([check_beta(beta) for beta in betas])
        # From here on, the largest change that any votes allow stands for all larger distances. It
        # is smooth too, since it is the same for neighbours, and far too small to matter.
        reach = min(self.teachers, math.ceil(FURTHEST / rates.min()))
        decay = np.exp(-np.outer(rates, np.arange(reach)))
        cost = float(np.sum(np.concatenate([part.costs for _, part in self._parts]) * tally))
        smooth = (self.local_sensitivities(tally, reach) * decay).max(axis=1)
        if reach < self.teachers:
            smooth = np.maximum(smooth, np.exp(-rates * reach) * self._largest_change(tally))
        smooth *= 1 + MARGIN
        return [ActualCost(cost * (1 + MARGIN), float(each) + FLOOR) for each in smooth]

    def local_sensitivities(self, tally: NDArray[np.int64] | Floats, reach: int) -> Floats:
        """Return Σ LS(k, d) over the queries of a tally, float[reach], for d = 0, 1, …"""
        total = np.zeros(reach)
        for first, part in self._parts:
            if part.step:
                total += part.local_sensitivities(tally[first : first + len(part.costs)], reach)
        return total

    def _largest_change(self, tally: NDArray[np.int64] | Floats) -> float:
        """Return the most that Σ LS(k, d) can be at any distance; it depends on counts alone."""
        return sum(
            float(tally[first : first + len(part.costs)].sum() * np.ptp(part.costs))
            for first, part in self._parts
        )


@dataclass(frozen=True, eq=False)
class _EventStatistic:
    """One event's statistic: the cost of each value, and the most that one vote moves it (`step`).

    For a test it is the margin, which one vote moves by at most 1. For a noisy maximum with
    q = Σ_j tail(n₁ − n_j) it is how far the mean term of q has fallen: the largest k with
    ln(q/(m − 1)) ≤ levels[k]. `costs[k]` is the cost at that level, so never less than at q itself;
    `log_tails[g]` is ln tail(g).

    One vote moves every gap of the ranked counts by at most 2. Gaussian noise: u ↦ Q(Q⁻¹(u) ∓ √2/σ)
    is concave or convex, so by Jensen's inequality the mean term moves by no more than if all terms
    were equal, that is by 2 gaps; `levels` are the tails of fractions of a gap. Laplace noise:
    moving both noises by 1 changes every tail by a factor of at most e^{±2γ}; `levels` are spaced
    by fractions of γ. Either way k moves by at most the levels of 2 gaps, plus one level where
    rounding decides which k is the largest.
    """

    event: CostEvent
    costs: Floats
    step: int
    log_tails: Floats | None = None
    levels: Floats | None = None

    def values(self, votes: Counts, baselines: Counts | None) -> Counts:
        """Return the statistic of each row of votes, int64[B]."""
        if isinstance(self.event, GaussianThreshold | StabilityTest):
            low, _ = statistic_range(self.event)
            return statistic_of(self.event, votes, baselines) - low
        if self.log_tails is None or self.levels is None:
            return np.zeros(len(votes), dtype=np.int64)
        mean_tail = union_bound(votes, self.log_tails) - math.log(votes.shape[1] - 1)
        largest = np.searchsorted(-self.levels, -mean_tail, side="right") - 1
        return np.maximum(largest, 0)

    def local_sensitivities(self, tally: NDArray[np.int64] | Floats, reach: int) -> Floats:
        """Return Σ LS(k, d) over this part of a tally, float[reach]."""
        width = 2 * self.step + 1
        highest = maximum_filter1d(self.costs, width, mode="nearest")
        lowest = -maximum_filter1d(-self.costs, width, mode="nearest")
        change = np.maximum(highest - self.costs, self.costs - lowest)
        total = np.empty(reach)
        for distance in range(reach):
            total[distance:] = tally @ change
            further = maximum_filter1d(change, width, mode="nearest")
            if np.array_equal(further, change):
                break  # and so it stays, at every larger distance
            change = further
        return total


def _part(event: CostEvent, teachers: int, classes: int, order: float) -> _EventStatistic:
    match event:
        case GaussianThreshold() | StabilityTest():
            return _EventStatistic(event, bit_table(event, [order])[0], step=1)
        case GaussianNoisyMax(sigma, shift=1) | GaussianArgmax(sigma):
            fine = _resolution(teachers)
            gaps = np.arange(teachers * fine + 1) / fine
            levels = log_ndtr((1 - gaps) / (math.sqrt(2) * sigma))
            costs = gnmax_rdp(_log_q(levels, classes), sigma, order)[:, 0]
            costs = np.minimum(costs, rdp(event, order))
            return _EventStatistic(event, costs, 2 * fine + 1, levels[::fine], levels)
        case LaplaceNoisyMax(gamma, shift=1) | LaplaceArgmax(gamma):
            tails = laplace_log_tails(gamma, teachers)
            fine = _resolution(teachers)
            levels = tails[0] - gamma / fine * np.arange(teachers * fine + 1)
            costs = lnmax_rdp(_log_q(levels, classes), gamma, order)[:, 0]
            costs = np.minimum(costs, rdp(event, order))
            return _EventStatistic(event, costs, 2 * fine + 1, tails, levels)
        case GaussianNoisyMax() | LaplaceNoisyMax() | Composition():
            return _EventStatistic(event, rdp(event, [order]), step=0)  # boosted: no known analysis
        case GaussianNoisyCounts() | NeighbourCounts():
            return _EventStatistic(event, rdp(event, [order]), step=0)  # the same at any votes
        case ConfidentMax():
            return _EventStatistic(event, rdp(event, [order]), step=0)
        case _:
            assert_never(event)


def _resolution(teachers: int) -> int:
    return max(1, min(FINEST, VALUES // teachers))


def _log_q(levels: Floats, classes: int) -> Floats:
    """ln q from its mean terms; no class is likelier to win than the one with the most votes."""
    return np.minimum(levels + math.log(classes - 1), math.log1p(-1 / classes))


def _parts(event: CostEvent) -> Sequence[CostEvent]:
    return event.events if isinstance(event, Composition) else (event,)
