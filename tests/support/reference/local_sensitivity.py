"""How much one query's data-dependent cost can change at every distance from the votes cast.

Bounds LS(d) on the change between neighbours, both within d changed votes: non-decreasing in d.
P18 (arXiv 1802.08908), Algorithms 3–5, with these repairs: one cost function for price and
sensitivity (the published two disagree for small σ), log domain throughout (q underflows at strong
consensus), an envelope where P18's condition C6 fails, and a running maximum over d for the bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from support.reference.vote_paths import levels_away, levels_towards
from terrine_server.privacy.curves import rdp
from terrine_server.privacy.events import GaussianNoisyMax, LaplaceNoisyMax
from terrine_server.privacy.numbers import Counts, Floats
from terrine_server.privacy.parameters import ParameterError, check_gamma, check_sigma
from terrine_server.privacy.published import (
    gnmax_terms,
    laplace_log_tails,
    lnmax_terms,
    noisy_max_order,
    small_q_bound,
)

BLOCK = 32
"""Number of distances computed at once."""

_GRID = 4000
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class CostCurve:
    """The cost β(L) of one noisy maximum at one order, as a function of L = −ln q.

    `bound`: P18's Theorem 6 or P17's Theorem 3, valid for L > `valid`; elsewhere β = `worst`.
    `likelier`, `rarer`: the least and the largest L that one changed vote can lead to.
    `log_tails`: ln Pr[difference of two noises ≥ g] for gaps g = 0, …, the given largest.
    """

    worst: float
    valid: float
    bound: Callable[[Floats], Floats]
    likelier: Callable[[Floats], Floats]
    rarer: Callable[[Floats], Floats]
    log_tails: Callable[[int], Floats]


def gaussian_curve(sigma: float, classes: int, order: float) -> CostCurve:
    """Return GNMax's curve.

    One vote moves each Δ_j by at most 2, and u ↦ Q(Q⁻¹(u) ∓ √2/σ) is concave/convex, so by
    Jensen's inequality Σ_j is extreme when all terms are equal (P18, B.4.1). An offset of the gaps
    by the lattice step changes nothing here.
    """
    check_sigma("sigma", sigma)
    spread, step = math.log(classes - 1), math.sqrt(2) / sigma

    def moved(level: Floats, by: float) -> Floats:
        return np.asarray(-spread - log_ndtr(ndtri_exp(-level - spread) + by))

    return CostCurve(
        worst=float(rdp(GaussianNoisyMax(sigma), [order])[0]),
        valid=(max(noisy_max_order(sigma), order - 1) / sigma) ** 2,
        bound=lambda level: small_q_bound(level, gnmax_terms(level, sigma), order - 1),
        likelier=lambda level: np.maximum(0, moved(level, step)),
        rarer=lambda level: moved(level, -step),
        log_tails=lambda largest: log_ndtr((1 - np.arange(largest + 1)) / (math.sqrt(2) * sigma)),
    )


def laplace_curve(gamma: float, order: float) -> CostCurve:
    """Return LNMax's curve. Moving both noises by 1 shows that q moves by at most e^{±2γ}."""
    check_gamma(gamma)
    return CostCurve(
        worst=float(rdp(LaplaceNoisyMax(gamma), [order])[0]),
        valid=float(np.logaddexp(0, 2 * gamma)),
        bound=lambda level: small_q_bound(level, lnmax_terms(level, gamma), order - 1),
        likelier=lambda level: np.maximum(0, level - 2 * gamma),
        rarer=lambda level: level + 2 * gamma,
        log_tails=lambda largest: laplace_log_tails(gamma, largest),
    )


class NoisyMaxSensitivity:
    """Local sensitivities of one noisy maximum's cost at every distance (P18, Algorithms 3–5).

    q0 = e^{−L0} is where the cost leaves its worst case, q1 = e^{−L1} the least q from which one
    vote leads to q0. The local sensitivity is the `ceiling` between them and falls off on both
    sides. Raises `ParameterError` where the cost is not monotone in q (P18's C5).
    """

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve
        self.l0 = self._end_of_worst_case()
        self.l1 = float(curve.rarer(np.array([self.l0]))[0])
        self.grid = self.l1 + np.concatenate([[0], np.geomspace(1e-6, 1000 + self.l1, _GRID)])
        cost, after = self.cost(self.grid), self.cost(curve.likelier(self.grid))
        after[0] = curve.worst  # by definition of q1; rounding could make it differ
        self._check_monotone()
        rise = after - cost
        self.monotone = bool(np.all(np.diff(rise) <= _TOLERANCE * rise[:-1] + 1e-300))
        # Where C6 fails: in a cell of the grid the rise is at most the cost after, at its near
        # end, minus the cost before, at its far end; beyond the grid at most the cost after.
        cells = np.append(after[:-1] - cost[1:], after[-1])
        self.envelope = np.maximum.accumulate(cells[::-1])[::-1]
        self.ceiling = float(rise[0] if self.monotone else self.envelope[0])

    def cost(self, level: Floats) -> Floats:
        """Return β(L), not rounded up."""
        small = np.minimum(self.curve.bound(level), self.curve.worst)
        return np.where(level > self.l0, small, self.curve.worst)

    def local(self, level: Floats) -> Floats:
        """Return a bound on |β(L′) − β(L)| over votes one vote away; non-increasing from L1 on."""
        result = np.full(level.shape, self.ceiling)
        consensus, doubt = level > self.l1, level < self.l0
        strong = level[consensus]
        if self.monotone:
            rise = self.cost(self.curve.likelier(strong)) - self.cost(strong)
        else:
            rise = self.envelope[np.searchsorted(self.grid, strong, side="right") - 1]
        result[consensus] = rise
        result[doubt] = self.curve.worst - self.cost(self.curve.rarer(level[doubt]))
        return np.asarray(np.clip(result, 0, self.ceiling))

    def walk(self, votes: Counts) -> Iterator[Floats]:
        """Yield bounds at successive distances, float[B, BLOCK], for votes int64[B, m].

        From consensus, the worst case at distance d is to move d votes from the first to the second
        class; from doubt, to move d votes to the first from whichever is second. A row that reaches
        the ceiling stays there. Ends at distance n.
        """
        ranked = -np.sort(-votes, axis=1)
        log_tail = self.curve.log_tails(int(votes.sum(axis=1).max(initial=1)))
        level = levels_towards(ranked, log_tail, np.zeros(1, dtype=np.int64))[:, 0]
        consensus = np.flatnonzero(level > self.l1)
        doubt = np.flatnonzero(level < self.l0)
        for start in range(0, int(votes.sum(axis=1).max(initial=1)), BLOCK):
            distances = np.arange(start, start + BLOCK)
            block = np.full((len(votes), BLOCK), self.ceiling)
            if len(consensus):
                levels = levels_towards(ranked[consensus], log_tail, distances)
                inside = levels > self.l1
                block[consensus] = self._where(levels, inside)
                consensus = consensus[inside[:, -1]]
            if len(doubt):
                levels = levels_away(ranked[doubt], log_tail, distances)
                inside = levels < self.l0
                block[doubt] = self._where(levels, inside)
                doubt = doubt[inside[:, -1]]
            yield block

    def _where(self, levels: Floats, inside: NDArray[np.bool_]) -> Floats:
        values = np.full(levels.shape, self.ceiling)
        values[inside] = self.local(levels[inside])
        return values

    def _end_of_worst_case(self) -> float:
        def excess(level: float) -> float:
            return float(self.curve.bound(np.array([level]))[0]) - self.curve.worst

        low = self.curve.valid * (1 + 1e-12)
        if excess(low) < 0:
            return low
        high = 2 * low + 1
        while excess(high) > 0:
            high *= 2
        return float(brentq(excess, low, high, xtol=1e-14 * low))

    def _check_monotone(self) -> None:
        inside = np.linspace(self.curve.valid * (1 + _TOLERANCE), self.l0, _GRID)[:-1]
        inside = inside[inside < self.l0]  # none where the bound is below the worst case at once
        cost = self.cost(np.append(self.l0 * (1 + 1e-12), self.grid))
        falls = np.all(np.diff(cost) <= _TOLERANCE * cost[:-1])
        if not falls or np.any(self.curve.bound(inside) < self.curve.worst * (1 - _TOLERANCE)):
            raise ParameterError(
                "At this order the cost does not rise with the chance of a wrong winner, so its "
                "sensitivity is not known. Use another order or more noise."
            )


class BitSensitivity:
    """Local sensitivities of a test's cost: a running maximum over the statistics within d.

    `costs`: float[V], the cost at each value of the statistic, which one vote moves by at most one.
    """

    def __init__(self, costs: Floats) -> None:
        step = np.abs(np.diff(costs))
        self.near = np.maximum(np.append(step, 0), np.append(0, step))
        self.ceiling = float(self.near.max(initial=0))

    def walk(self, position: NDArray[np.int64]) -> Iterator[Floats]:
        """Yield bounds at successive distances, float[B, BLOCK], from positions in `costs`."""
        last = len(self.near) - 1
        so_far = np.zeros((len(position), 1))
        for start in range(0, len(self.near), BLOCK):
            distances = np.arange(start, start + BLOCK)
            below = self.near[np.maximum(position[:, None] - distances, 0)]
            above = self.near[np.minimum(position[:, None] + distances, last)]
            block = np.maximum(np.maximum(below, above), so_far)
            np.maximum.accumulate(block, axis=1, out=block)
            so_far = block[:, -1:]
            yield block
