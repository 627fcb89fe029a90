"""Publish a secret spend: f + noise scaled to its smooth sensitivity (P18's GNSS, corrected).

P18 (arXiv 1802.08908, Theorem 23) prices the release f + SS_β·N(0, σ²) at order λ by
λe^{2β}/σ² + (βλ − ½ ln(1 − 2βλ))/(λ − 1). That is an upper bound for βλ ≤ 1/4 only; the paper's own
tables use 0.30 to 0.495, where it can be several times too small. This module uses the exact worst
case over all functions with that smooth sensitivity.

With f(D) = f, f(D′) = f′ and ρ = SS(D′)/SS(D) ∈ [e^{−β}, e^{β}], |f − f′| ≤ SS(D)·min(1, ρ), and

    D_λ = λ(f − f′)²/(2σ²SS²v) + (λ ln ρ − ½ ln v)/(λ − 1),    v = 1 − λ + λρ²,

if v > 0, else infinite. Up to ρ = 1 both terms fall in ρ. Above it the first falls and the second
rises. So D_λ is at most the value at ρ = e^{−β}, which is attained, or the first term at ρ = 1 plus
the second at e^{β}.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import maximum_filter1d
from scipy.special import log_ndtr, ndtr

from terrine_server.privacy.curves import rdp
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
    PublishedBound,
    StabilityTest,
)
from terrine_server.privacy.mechanisms.base import VoteOutcome
from terrine_server.privacy.mechanisms.stable import distance_to_instability
from terrine_server.privacy.noise import BITS, Entropy, draw_normal
from terrine_server.privacy.numbers import (
    COST_UNITS,
    MARGIN,
    SLACK,
    SMALLEST,
    Counts,
    Floats,
    bit_rdp,
    check_orders,
    full_tallies,
    log1mexp,
    log_tails,
)
from terrine_server.privacy.parameters import ParameterError, check_sigma, real, within

# Published figures are multiples of this: 1e-3 of Rényi divergence, in units of 1e-12.
GRID = COST_UNITS // 1000

PRECISION = BITS + 64


@dataclass(frozen=True)
class ActualCost:
    """The data-dependent cost of a transcript and its β-smooth sensitivity. Both are secret."""

    cost: float
    smooth_sensitivity: float


@dataclass(frozen=True)
class BoundRelease:
    """A release of U ≥ f at one order: U = f + SS_β·sigma·(Z + z), Z ~ N(0, 1), clamped.

    SS_β itself is secret, so an error bar ± SS·σ could not be published with the figure. Instead,
    the figure is already an upper bound. All parameters are public and fixed before any query.
    Raises `ParameterError` if order × beta is outside the range in which the release has a price.
    """

    order: float
    beta: float
    sigma: float
    z: float

    def __post_init__(self) -> None:
        check_orders(self.order)
        check_beta(self.beta)
        within("sigma", self.sigma, 1e-3, 1e9, "it multiplies the smooth sensitivity")
        within("z", self.z, 0, 30, "it is how many standard deviations U lies above f on average")
        if _shrunk_variance(self.order, self.beta) <= 0:
            raise ParameterError(
                f"order·(1 − exp(−2·beta)) must be below 1, but it is "
                f"{1 - _shrunk_variance(self.order, self.beta):g}: the release would have no "
                f"finite price. Use a beta below {-math.log1p(-1 / self.order) / 2:.4g}."
            )

    @classmethod
    def of(cls, event: PublishedBound) -> BoundRelease:
        """Return the release that an event records."""
        return cls(event.order, event.beta, event.sigma, event.z)

    @property
    def event(self) -> PublishedBound:
        """The event that the ledger records for one release."""
        return PublishedBound(self.order, self.beta, self.sigma, self.z)

    @property
    def cost(self) -> float:
        """The Rényi divergence of one release at the order, rounded up.

        z·σ·SS moves by at most z·σ·(e^β − 1)·min(SS, SS′), in addition to the move of f.
        """
        shift = 1 + self.z * self.sigma * math.expm1(self.beta)
        return gnss_rdp(self.order, self.beta, self.sigma, shift)

    @property
    def failure(self) -> float:
        """The probability η that U < f, rounded up. It adds to δ."""
        return float(ndtr(-self.z)) * (1 + SLACK)

    def release(self, spend: ActualCost, worst: int, entropy: Entropy = os.urandom) -> int:
        """Draw U, in units of 1e-12, as a multiple of the public grid or `worst` itself.

        `worst`: the public worst-case cost of the same transcript, in units of 1e-12. One 256-bit
        uniform goes through the inverse normal distribution in 320-bit arithmetic. The result is
        rounded up to the grid, so no low-order bit of a secret is released.
        """
        if not (0 <= spend.cost < math.inf and 0 < spend.smooth_sensitivity < math.inf):
            raise ParameterError("A spend has a finite cost ≥ 0 and smooth sensitivity > 0.")
        exact = mpmath.MPContext()  # our own: any thread may change the global one's precision
        exact.prec = PRECISION
        normal = draw_normal(exact, entropy)
        scale = exact.mpf(spend.smooth_sensitivity) * self.sigma
        bound = exact.mpf(spend.cost) + scale * (normal + self.z)
        steps = int(exact.ceil(bound * COST_UNITS / GRID))
        return max(0, min(steps * GRID, worst))


def check_beta(beta: object) -> float:
    """Return a smoothness parameter; raise `ParameterError` unless it is positive."""
    value = real("beta", beta)
    if value <= 0:
        raise ParameterError(f"beta = {value:g} must be positive: it is the rate of smoothing.")
    return value


def gnss_rdp(order: float, beta: float, sigma: float, shift: float = 1.0) -> float:
    """Return the worst-case divergence of f + SS_β·N(0, sigma²) at `order`, rounded up.

    `shift`: the mean moves by at most `shift`·min(SS, SS′). Infinite if the noise of a neighbour
    can be too narrow, order·(1 − e^{−2β}) ≥ 1.
    """
    variance = _shrunk_variance(order, beta)
    if variance <= 0:
        return math.inf
    mean = order * (shift / sigma) ** 2 / 2
    grown = math.log1p(order * math.expm1(2 * beta))
    down = mean * math.exp(-2 * beta) / variance
    down += (-order * beta - math.log(variance) / 2) / (order - 1)
    up = mean + (order * beta - grown / 2) / (order - 1)
    return max(down, up) * (1 + MARGIN)


def _shrunk_variance(order: float, beta: float) -> float:
    """1 − λ + λe^{−2β}."""
    return 1 + order * math.expm1(-2 * beta)


_CHUNK = 1 << 17  # cells, so that temporary arrays stay in the cache


def union_bound(votes: Counts, log_tail: Floats) -> Floats:
    """Return min(ln Σ_{j ≠ top} tail(n_top − n_j), ln(1 − 1/m)) of each row of votes, float[B].

    `log_tail[g]`: ln of a bound on Pr[difference of two noises ≥ g], for gaps g = 0, 1, …
    """
    classes = votes.shape[1]
    top = votes.max(axis=1, initial=0)
    tails = log_tail[top[:, None] - votes]
    tails[np.arange(len(votes)), votes.argmax(axis=1)] = -np.inf
    largest = tails.max(axis=1, initial=-np.inf)
    log_q = largest + np.log(np.exp(tails - largest[:, None]).sum(axis=1))
    return np.asarray(np.minimum(log_q, math.log1p(-1 / classes)))


def laplace_log_tails(gamma: float, largest: int) -> Floats:
    """Return ln Pr[L₁ − L₂ ≥ g] for g = 0, …, largest; L discrete Laplace of scale 1/gamma."""
    a, rest = math.exp(-gamma), -math.expm1(-gamma)
    gaps = np.arange(largest + 1)
    series = (gaps + 1) / rest + a / rest**2 + 2 * a * a / ((1 - a * a) * rest)
    return np.asarray(2 * math.log(rest / (1 + a)) - gamma * gaps + np.log(series))


def gnmax_rdp(log_q: ArrayLike, sigma: float, orders: ArrayLike) -> Floats:
    """Return P18's Theorem 6 for GNMax at the orders of Prop. 10, float[B, A].

    With L = −ln q the bound holds where √L > max(μ*, α − 1)/σ; elsewhere the cost is α/σ².
    """
    alpha = check_orders(orders)
    level, back = _distinct(log_q)
    valid = np.sqrt(level) * sigma > np.maximum(noisy_max_order(sigma), alpha - 1)[:, None]
    worst = rdp(GaussianNoisyMax(sigma), alpha)
    return _cheapest(level, gnmax_terms(level, sigma), alpha, valid, worst)[back]


def lnmax_rdp(log_q: ArrayLike, gamma: float, orders: ArrayLike) -> Floats:
    """Return P17's Theorem 3 as Rényi divergence, float[B, A], where q < 1/(1 + e^{2γ}).

    Elsewhere, and wherever it is smaller, the tight curve of pure 2γ-DP.
    """
    alpha = check_orders(orders)
    level, back = _distinct(log_q)
    valid = np.tile(level > np.logaddexp(0, 2 * gamma), (len(alpha), 1))
    worst = rdp(LaplaceNoisyMax(gamma), alpha)
    return _cheapest(level, lnmax_terms(level, gamma), alpha, valid, worst)[back]


# ln(1 − q), ln A and ln B of the bound ln[(1−q)A^{α−1} + qB^{α−1}]/(α−1), for each L = −ln q.
BoundTerms = tuple[Floats, Floats, Floats]


def gnmax_terms(level: Floats, sigma: float) -> BoundTerms:
    """Return the terms of P18's Theorem 6 with μ₂ = σ√L and μ₁ = μ₂ + 1 (Prop. 10)."""
    root = np.sqrt(level)
    with np.errstate(invalid="ignore"):  # −∞ − (−∞) where q = 1, far outside the valid range
        missed = log1mexp(level)
        return missed, missed - log1mexp((root - 1 / sigma) ** 2), 2 * root / sigma + 1 / sigma**2


def lnmax_terms(level: Floats, gamma: float) -> BoundTerms:
    """Return the terms of P17's Theorem 3."""
    with np.errstate(invalid="ignore"):
        missed = log1mexp(level)
        return missed, missed - log1mexp(level - 2 * gamma), np.full_like(level, 2 * gamma)


def small_q_bound(level: Floats, terms: BoundTerms, more: float | Floats) -> Floats:
    """Return ln[(1−q)A^{α−1} + qB^{α−1}]/(α−1) at `more` = α − 1, where it is valid."""
    missed, kept, growth = terms
    with np.errstate(invalid="ignore"):
        return np.asarray(np.logaddexp(missed + more * kept, more * growth - level) / more)


@lru_cache(maxsize=64)
def noisy_max_order(sigma: float) -> float:
    """Return μ*(σ), the smallest order μ₂ = σ√L at which Theorem 6 applies.

    The root > 1 of (2μ − 1)/σ² = ln((μ + 1)/(μ − 1)), rounded up.
    """
    from scipy.optimize import brentq  # late: most commands compute no such cost

    excess = brentq(
        lambda x: (2 * x + 1) / sigma**2 - math.log1p(2 / x), 1e-300, sigma + 1, xtol=1e-300
    )
    return float((1 + excess) * (1 + MARGIN))


def _cheapest(
    level: Floats, terms: BoundTerms, alpha: Floats, valid: NDArray[np.bool_], worst: Floats
) -> Floats:
    """Return min(`small_q_bound` rounded up, worst) where valid [A, B], else worst; float[B, A]."""
    result = np.repeat(worst[:, None], len(level), axis=1)
    rows = max(1, _CHUNK // max(1, len(alpha)))
    for start in range(0, len(level), rows):
        part = slice(start, start + rows)
        if valid[:, part].any():
            here = (terms[0][part], terms[1][part], terms[2][part])
            cost = small_q_bound(level[part], here, (alpha - 1)[:, None])
            cost = np.maximum(cost, 0) * (1 + MARGIN) + SMALLEST
            np.minimum(result[:, part], cost, out=result[:, part], where=valid[:, part])
    return result.T


def _distinct(log_q: ArrayLike) -> tuple[Floats, NDArray[np.intp]]:
    """Return the distinct values of L = −ln q, and the index of each query's value."""
    value = np.atleast_1d(np.asarray(log_q, dtype=np.float64))
    if value.ndim != 1 or not np.all(value <= 0):
        raise ParameterError("ln q must be a vector of numbers ≤ 0.")
    return np.unique(-value, return_inverse=True)


def statistic_of(
    event: GaussianThreshold | StabilityTest, votes: Counts, baselines: Counts | None
) -> Counts:
    """Return the integer that the event compares with its threshold, int[B].

    max_j (n_j − b_j) for a threshold, the distance to instability for a stability test.
    """
    if isinstance(event, StabilityTest):
        return distance_to_instability(votes)
    if baselines is None:
        return np.asarray(votes.max(axis=1))
    if baselines.shape != votes.shape or not np.issubdtype(baselines.dtype, np.integer):
        raise ParameterError(f"Baselines must be integers of shape {votes.shape}.")
    return np.asarray((votes - baselines).max(axis=1))


def statistic_range(event: GaussianThreshold | StabilityTest) -> tuple[int, int]:
    """Return the smallest and the largest value of `statistic_of`."""
    return (0 if isinstance(event, StabilityTest) else event.low), event.high


def bit_table(event: GaussianThreshold | StabilityTest, orders: ArrayLike) -> Floats:
    """Return the cost of the test's bit at each order and each value of its statistic.

    float[A, high − low + 1], for the discrete Gaussian noise that is drawn.
    """
    check_sigma("sigma", event.sigma)
    low, high = statistic_range(event)
    margins = np.arange(low, high + 1) - event.threshold
    return bit_rdp(log_tails(event.sigma, -margins), log_tails(event.sigma, margins + 1), orders)


# Distances are followed up to e^(−40): to 40/β votes, which is public.
FURTHEST = 40.0

# The statistic of a noisy maximum has up to 16 values per vote of the gap and about 16,000 in all.
# Finer values add less sensitivity by rounding; more values make a tally larger.
FINEST, VALUES = 16, 16_000

# Added to every smooth sensitivity to cover the rounding of floating-point sums. Adding a constant
# keeps a bound smooth.
FLOOR = 1e-9

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
        self.teachers, self.classes = teachers, classes
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

        Nothing is raised for a value: see `full_tallies`.

        `baselines`, int64[B, m]: what Interactive-GNMax subtracts before its test.
        """
        votes = full_tallies(counts, self.teachers, self.classes)
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

    def spends(
        self,
        tally: NDArray[np.int64] | Floats,
        betas: Sequence[float],
        *,
        known: bool = False,
    ) -> list[ActualCost]:
        """Return the spend of a tally for each β. Secret.

        `known`: the tally is of votes that are public, as in a forecast, so that how long it takes
        may depend on them: of few different votes it takes much less, and is the same.
        """
        rates = np.array([check_beta(beta) for beta in betas])
        # From here on, the largest change that any votes allow stands for all larger distances. It
        # is smooth too, since it is the same for neighbours, and far too small to matter.
        reach = min(self.teachers, math.ceil(FURTHEST / rates.min()))
        decay = np.exp(-np.outer(rates, np.arange(reach)))
        cost = float(np.sum(np.concatenate([part.costs for _, part in self._parts]) * tally))
        smooth = (self.local_sensitivities(tally, reach, known=known) * decay).max(axis=1)
        if reach < self.teachers:
            smooth = np.maximum(smooth, np.exp(-rates * reach) * self._largest_change(tally))
        smooth *= 1 + MARGIN
        return [ActualCost(cost * (1 + MARGIN), float(each) + FLOOR) for each in smooth]

    def local_sensitivities(
        self, tally: NDArray[np.int64] | Floats, reach: int, *, known: bool = False
    ) -> Floats:
        """Return Σ LS(k, d) over the queries of a tally, float[reach], for d = 0, 1, …"""
        total = np.zeros(reach)
        for first, part in self._parts:
            here = tally[first : first + len(part.costs)]
            if not part.step:
                continue
            if known and np.count_nonzero(here) < reach:
                total += part.sensitivities_of_few(here, reach)
            else:
                total += part.local_sensitivities(here, reach)
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
            low, high = statistic_range(self.event)
            return np.clip(statistic_of(self.event, votes, baselines), low, high) - low
        if self.log_tails is None or self.levels is None:
            return np.zeros(len(votes), dtype=np.int64)
        mean_tail = union_bound(votes, self.log_tails) - math.log(votes.shape[1] - 1)
        largest = np.searchsorted(-self.levels, -mean_tail, side="right") - 1
        return np.maximum(largest, 0)

    @property
    def _change(self) -> Floats:
        """The most that one vote changes the cost of each value."""
        width = 2 * self.step + 1
        highest = maximum_filter1d(self.costs, width, mode="nearest")
        lowest = -maximum_filter1d(-self.costs, width, mode="nearest")
        change: Floats = np.maximum(highest - self.costs, self.costs - lowest)
        return change

    def sensitivities_of_few(self, tally: NDArray[np.int64] | Floats, reach: int) -> Floats:
        """Return the same as `local_sensitivities`, following each value that is counted."""
        change, last = self._change, len(self.costs) - 1
        moved = self.step * np.arange(reach)
        total = np.zeros(reach)
        for value in np.flatnonzero(tally):
            below = np.maximum.accumulate(change[value::-1])[np.minimum(moved, value)]
            above = np.maximum.accumulate(change[value:])[np.minimum(moved, last - value)]
            total += tally[value] * np.maximum(below, above)
        return total

    def local_sensitivities(self, tally: NDArray[np.int64] | Floats, reach: int) -> Floats:
        """Return Σ LS(k, d) over this part of a tally, float[reach]."""
        width, change = 2 * self.step + 1, self._change
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
