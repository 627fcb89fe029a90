"""Radius, noise and allowance of a project of `neighbours`, from public figures alone.

    found = plan_neighbours(spent, units=60_000, near=120, queries=10_000, epsilon=1, delta=1e-6)
    found.sigma, found.allowance, found.retired

Rows of the public pool stand for private ones: how often those are near a query foretells how often
units are. The noise is the least with which half of the stand-ins last to the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.accounting.conversions import gdp_budget
from terrine_server.privacy.accounting.events import NeighbourCounts
from terrine_server.privacy.budget.allowances import allowance
from terrine_server.privacy.budget.quoting import split_delta
from terrine_server.privacy.parameters import MAX_SIGMA, MIN_SIGMA, ParameterError

LASTING = 0.5
"""Share of the stand-ins that take part until the last query. That the others retire costs nothing:
those that are near most queries do so first (docs/privacy/neighbours.md)."""
TOLERATED = 0.4
"""Noise of one answer in votes, if nobody retired, for which no more units are asked. On Adult at
ε = 1, any number of units from 60 to 200 near a query led to students within half a point."""
FEWEST_NEAR, MOST_NEAR, LEAST_LOCAL = 100, 960, 30
"""Units near a query: at least, at most, and at most one of so many."""
DIGITS = 3


@dataclass(frozen=True)
class NeighbourPlan:
    """What a project of `neighbours` is opened with, and what public rows foretell of it."""

    near: int
    """Units within a query's radius."""
    sigma: float
    queries: int
    norm: int
    allowance: int
    """A, in units of ‖v‖²."""
    retired: float
    """The share of the units that cannot pay for another vote after all queries."""
    votes: float
    """Units that vote on a query, on average over all of them."""

    @property
    def noise(self) -> float:
        """σ, in votes that are cast on a query."""
        return self.sigma / max(self.votes, 1e-9)


def near_for(units: int, queries: int, epsilon: float, delta: float) -> int:
    """Return how many units to have near a query: more, the more the noise is.

    With k units near each of Q queries, an account spends about Qk/N, and the noise is about
    √(2Q/(N·k))/μ of the votes.
    """
    wanted = 2 * queries / (units * gdp_budget(epsilon, delta) * TOLERATED**2)
    most = max(1, min(MOST_NEAR, units // LEAST_LOCAL))
    return min(most, max(FEWEST_NEAR, math.ceil(wanted)))


def quieter(units: int, near: int, teachers: int) -> bool:
    """Whether the votes of units have less noise than those of so many trained teachers.

    About √(2Q/(N·k))/μ of the votes against √(2Q)/(n·μ), for whatever Q and μ.
    """
    return math.sqrt(units * near) > teachers


def plan_neighbours(
    spent: NDArray[np.float64],
    *,
    units: int,
    near: int,
    queries: int,
    epsilon: float,
    delta: float,
    norm: int = 1,
) -> NeighbourPlan:
    """Choose noise and allowance for `queries`. `spent`: float[S], ‖v‖² of a stand-in in a query.

    On average over queries such as will be asked. Raises `ParameterError` if no noise that can be
    drawn allows each unit a single vote.
    """
    in_all = spent * queries
    wanted = max(norm**2, int(np.quantile(in_all, LASTING)))
    sigma = _least_sigma(wanted, norm, queries, epsilon, delta)
    return forecast_neighbours(
        spent,
        units=units,
        near=near,
        sigma=sigma,
        queries=queries,
        allowed=_most(sigma, norm, queries, epsilon, delta),
        norm=norm,
    )


def forecast_neighbours(
    spent: NDArray[np.float64],
    *,
    units: int,
    near: int,
    sigma: float,
    queries: int,
    allowed: int,
    norm: int = 1,
) -> NeighbourPlan:
    """Return what `spent` foretells of a project whose terms are known. Arguments as above."""
    in_all = spent * queries
    return NeighbourPlan(
        near=near,
        sigma=sigma,
        queries=queries,
        norm=norm,
        allowance=allowed,
        retired=float((in_all > allowed - 1).mean()),
        votes=float(np.minimum(in_all, allowed).mean() / queries * units),
    )


def _least_sigma(wanted: int, norm: int, queries: int, epsilon: float, delta: float) -> float:
    """Return the least σ with three digits whose allowance is at least `wanted`."""
    if _most(MAX_SIGMA, norm, queries, epsilon, delta) < wanted:
        raise ParameterError(
            f"{queries:,} queries need more noise than can be drawn, σ = {MAX_SIGMA:,.0f}, for "
            f"ε = {epsilon:g}. Ask fewer, or use a larger epsilon or a smaller radius."
        )
    low, high = MIN_SIGMA, MAX_SIGMA
    while high > low * (1 + 10 ** -(DIGITS + 1)):
        middle = math.sqrt(low * high)
        if _most(middle, norm, queries, epsilon, delta) < wanted:
            low = middle
        else:
            high = middle
    step = 10.0 ** (math.floor(math.log10(high)) - DIGITS + 1)
    return float(f"{math.ceil(high / step) * step:.10g}")


def _most(sigma: float, norm: int, queries: int, epsilon: float, delta: float) -> int:
    conversion = split_delta([NeighbourCounts(sigma, norm)], delta).conversion
    try:
        return allowance(sigma, norm, queries, epsilon, conversion)[1].most
    except ParameterError:
        return 0  # not a single vote
