"""What a query costs at the votes that were cast: at most the worst case, often far less.

A data-dependent cost c(D) bounds D_α(M(D)‖M(D′)) for every neighbour D′ of the actual data D. It is
a function of private votes and therefore secret: nothing that a student can see may depend on it.
`sensitivity` and `sanitize` turn a sum of such costs into a figure that can be published.

All costs are vectorised over queries × orders, in the log domain, and rounded up: never NaN, never
negative, never above the data-independent `accounting.rdp` of the same event.

Sources: P17 = Papernot et al. 2017 (arXiv 1610.05755), P18 = Papernot et al. 2018 (1802.08908).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from terrine_server.privacy.accounting import log_tails, rdp
from terrine_server.privacy.costs import (
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    StabilityTest,
)
from terrine_server.privacy.parameters import ParameterError, check_gamma, check_sigma

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MARGIN = 1e-10
"""Relative rounding up, far above the error of the formulas in double precision."""

SMALLEST = 1e-300
"""What a cost that underflows is rounded up to."""

_ROUNDING = 2.0**-50  # a few roundings
_CHUNK = 1 << 17  # cells: temporary arrays stay in the cache


def data_dependent_rdp(
    event: CostEvent, counts: NDArray[np.int64], orders: ArrayLike, baselines: Counts | None = None
) -> Floats:
    """Return the cost of an event at each row of votes and each order, float[B, A].

    `counts`: int[B, m]. `baselines`: int[B, m], what Interactive-GNMax subtracts before its test.
    An event without a data-dependent analysis (a boosted or a claimed one) costs its worst case.
    Raises `ParameterError` on malformed votes or orders; the text does not quote votes.
    """
    alpha, votes = check_orders(orders), check_votes(counts)
    match event:
        case Composition(events):
            parts = [data_dependent_rdp(part, votes, alpha, baselines) for part in events]
            return np.asarray(sum(parts))
        case GaussianNoisyMax(sigma, shift=1):
            return gnmax_rdp(gnmax_log_q(votes, sigma), sigma, alpha)
        case LaplaceNoisyMax(gamma, shift=1):
            return lnmax_rdp(lnmax_log_q(votes, gamma), gamma, alpha)
        case GaussianThreshold() | StabilityTest():
            statistic = statistic_of(event, votes, baselines)
            low, _ = statistic_range(event)
            return bit_table(event, alpha)[:, statistic - low].T
        case _:
            return np.tile(rdp(event, alpha), (len(votes), 1))


# ------------------------------------------------------------------------------ noisy maxima


def gnmax_log_q(counts: NDArray[np.int64], sigma: float, lattice: int = 1) -> Floats:
    """Return ln of a bound on Pr[argmax(n + noise) ≠ argmax n] per row of votes (P18, Prop. 7).

    A union bound over the other classes j of Pr[Y₁ − Y₂ ≥ Δ_j] ≤ Q((Δ_j − 1)/(√2 σ)) for
    Y ~ N_Z(0, σ²). By Poisson summation Pr[Y₁ − Y₂ = k] is at most the density of N(0, 2σ²) at k
    times 1 + 2.1·exp(−π²σ²), and for σ ≥ 1/2 the integral of that decreasing density over
    [k − 1, k] is larger by at least 1 + (k − 1/3)/4σ². `lattice` = 0 is the paper's continuous
    noise, too optimistic for the integer noise that is drawn. At most ln(1 − 1/m): no class is
    likelier to win than the largest.
    """
    check_sigma("sigma", sigma)
    votes = check_votes(counts)
    gaps = np.arange(votes.max(initial=0) + 1)
    return _union_bound(votes, log_ndtr((lattice - gaps) / (math.sqrt(2) * sigma)))


def lnmax_log_q(counts: NDArray[np.int64], gamma: float) -> Floats:
    """Return ln of a bound on Pr[argmax(n + noise) ≠ argmax n] for discrete Laplace noise.

    A union bound of the exact tails. P17's Lemma 4 is the continuous noise's, and smaller.
    """
    check_gamma("gamma", gamma)
    votes = check_votes(counts)
    return _union_bound(votes, laplace_log_tails(gamma, int(votes.max(initial=0))))


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


Terms = tuple[Floats, Floats, Floats]
"""ln(1 − q), ln A and ln B of the bound ln[(1−q)A^{α−1} + qB^{α−1}]/(α−1), for each L = −ln q."""


def gnmax_terms(level: Floats, sigma: float) -> Terms:
    """Return the terms of P18's Theorem 6 with μ₂ = σ√L and μ₁ = μ₂ + 1 (Prop. 10)."""
    root = np.sqrt(level)
    with np.errstate(invalid="ignore"):  # −∞ − (−∞) where q = 1, far from valid
        missed = log1mexp(level)
        return missed, missed - log1mexp((root - 1 / sigma) ** 2), 2 * root / sigma + 1 / sigma**2


def lnmax_terms(level: Floats, gamma: float) -> Terms:
    """Return the terms of P17's Theorem 3."""
    with np.errstate(invalid="ignore"):
        missed = log1mexp(level)
        return missed, missed - log1mexp(level - 2 * gamma), np.full_like(level, 2 * gamma)


def small_q_bound(level: Floats, terms: Terms, more: float | Floats) -> Floats:
    """Return ln[(1−q)A^{α−1} + qB^{α−1}]/(α−1) at `more` = α − 1; only where it is valid."""
    missed, kept, growth = terms
    with np.errstate(invalid="ignore"):
        return np.asarray(np.logaddexp(missed + more * kept, more * growth - level) / more)


@lru_cache(maxsize=64)
def noisy_max_order(sigma: float) -> float:
    """Return μ*(σ), the smallest order μ₂ = σ√L at which Theorem 6 applies.

    The root > 1 of (2μ − 1)/σ² = ln((μ + 1)/(μ − 1)), rounded up.
    """
    excess = brentq(
        lambda x: (2 * x + 1) / sigma**2 - math.log1p(2 / x), 1e-300, sigma + 1, xtol=1e-300
    )
    return float((1 + excess) * (1 + MARGIN))


def log1mexp(x: Floats) -> Floats:
    """Return ln(1 − e^{−x}) for x ≥ 0; −∞ at 0, and below it too."""
    x = np.maximum(x, 0)
    with np.errstate(divide="ignore"):
        return np.where(x > math.log(2), np.log1p(-np.exp(-x)), np.log(-np.expm1(-x)))


def _cheapest(
    level: Floats, terms: Terms, alpha: Floats, valid: NDArray[np.bool_], worst: Floats
) -> Floats:
    """Return min(small_q_bound rounded up, worst) where valid [A, B], else worst; float[B, A]."""
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
    """Return the distinct L = −ln q, and which of them each query has."""
    value = np.atleast_1d(np.asarray(log_q, dtype=np.float64))
    if value.ndim != 1 or not np.all(value <= 0):
        raise ParameterError("ln q must be a vector of numbers ≤ 0.")
    return np.unique(-value, return_inverse=True)


def _union_bound(votes: Counts, log_tail: Floats) -> Floats:
    """Return min(ln Σ_{j ≠ top} tail(n_top − n_j), ln(1 − 1/m)) of each row of votes."""
    classes = votes.shape[1]
    top = votes.max(axis=1, initial=0)
    tails = log_tail[top[:, None] - votes]
    tails[np.arange(len(votes)), votes.argmax(axis=1)] = -np.inf
    largest = tails.max(axis=1, initial=-np.inf)
    log_q = largest + np.log(np.exp(tails - largest[:, None]).sum(axis=1))
    return np.asarray(np.minimum(log_q, math.log1p(-1 / classes)))


# --------------------------------------------------------------------------- threshold bits


def statistic_of(
    event: GaussianThreshold | StabilityTest, counts: Counts, baselines: Counts | None = None
) -> Counts:
    """Return the integer that the event compares with its threshold, int[B].

    max_j (n_j − b_j) for a threshold, the distance to instability for a stability test. Raises
    `ParameterError` where it lies outside the event's range.
    """
    votes = check_votes(counts)
    if isinstance(event, StabilityTest):
        ranked = np.partition(votes, -2, axis=1)
        statistic = np.maximum(0, (ranked[:, -1] - ranked[:, -2] - 1) // 2)
    elif baselines is None:
        statistic = votes.max(axis=1, initial=0)
    elif baselines.shape == votes.shape and np.issubdtype(baselines.dtype, np.integer):
        statistic = (votes - baselines).max(axis=1, initial=-(2**62))
    else:
        raise ParameterError(f"Baselines must be integers of shape {votes.shape}.")
    low, high = statistic_range(event)
    if len(statistic) and (statistic.min() < low or statistic.max() > high):
        raise ParameterError(f"The votes were not cast by the ensemble of this event: {event}.")
    return np.asarray(statistic)


def statistic_range(event: GaussianThreshold | StabilityTest) -> tuple[int, int]:
    """Return the least and the largest value of `statistic_of`."""
    return (0 if isinstance(event, StabilityTest) else event.low), event.high


def bit_table(event: GaussianThreshold | StabilityTest, orders: ArrayLike) -> Floats:
    """Return the cost of the test's bit at each order and each value of its statistic.

    float[A, high − low + 1], for the discrete Gaussian noise that is drawn.
    """
    check_sigma("sigma", event.sigma)
    low, high = statistic_range(event)
    margins = np.arange(low, high + 1) - event.threshold
    return bit_rdp(log_tails(event.sigma, -margins), log_tails(event.sigma, margins + 1), orders)


def bit_rdp(log_passed: Floats, log_failed: Floats, orders: ArrayLike) -> Floats:
    """Return the exact cost of a bit whose statistic moves by at most one.

    `log_passed`, `log_failed`: float[V], ln Pr[bit = 1] and ln Pr[bit = 0] at each value of the
    statistic in its range. The cost at v is the larger of D_α(Bern(p_v)‖Bern(p_{v±1})); P18 bounds
    it by the whole Gaussian's α/2σ². Returns float[A, V].
    """
    alpha = check_orders(orders)
    # Of two complementary probabilities only the smaller is known to full precision.
    log_p = np.where(log_passed < log_failed, log_passed, log1mexp(-log_failed))
    log_s = np.where(log_passed < log_failed, log1mexp(-log_passed), log_failed)
    cost = np.zeros((len(alpha), len(log_p)))
    here, there = slice(1, None), slice(None, -1)
    for a, order in enumerate(alpha):
        for x, y in ((here, there), (there, here)):
            np.maximum(
                cost[a, x],
                _bernoulli(log_p[x], log_s[x], log_p[y], log_s[y], float(order)),
                out=cost[a, x],
            )
    return cost


def _bernoulli(
    log_p: Floats, log_s: Floats, log_p2: Floats, log_s2: Floats, order: float
) -> Floats:
    """D_α(Bern(p)‖Bern(p′)), rounded up; s = 1 − p. float[V].

    ln(1 + x)/(α−1) with x = p^α p′^{1−α} + s^α s′^{1−α} − 1. Written with the smaller probability u
    and the step b = ln(u′/u), both terms of x contain the same u′ − u, so that their first orders
    cancel exactly and x keeps its relative precision from 1 down to 1e-300.
    """
    swap = log_p > log_s
    small, small2 = np.where(swap, log_s, log_p), np.where(swap, log_s2, log_p2)
    large, large2 = np.where(swap, log_p, log_s), np.where(swap, log_p2, log_s2)
    step, more = small2 - small, order - 1
    first, second = order * large - more * large2, order * small - more * small2
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        back = np.log1p(-_growth(small - large, step))
        terms = _growth(large, -more * back), _growth(small, -more * step)
        x = terms[0] + terms[1] + _ROUNDING * (np.abs(terms[0]) + np.abs(terms[1]))
        steep = np.logaddexp(first, second)
        total = np.where(np.maximum(first, second) < 1, np.log1p(np.maximum(x, 0)), steep)
        # u is known up to relative error 2⁻⁵² |ln u|, and x is of second order in the step.
        margin = MARGIN + _ROUNDING * (1 - small) / np.abs(step)
        cost: Floats = np.maximum(total, 0) / more * (1 + margin) + SMALLEST
    return cost


def _growth(start: Floats, step: Floats) -> Floats:
    """e^start (e^step − 1), without overflow of a factor."""
    large = np.exp(start + step) - np.exp(start)
    return np.where(step > 1, large, np.exp(start) * np.expm1(np.minimum(step, 1)))


# ------------------------------------------------------------------------------------ checks


def check_orders(orders: ArrayLike) -> Floats:
    """Return Rényi orders as float[A]; raise `ParameterError` unless all are finite and > 1."""
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if alpha.ndim != 1 or not np.all(np.isfinite(alpha) & (alpha > 1)):
        raise ParameterError(f"Rényi orders must be finite and above 1, not {orders!r}.")
    return alpha


def check_votes(counts: NDArray[np.int64], teachers: int | None = None) -> Counts:
    """Return vote counts as int64[B, m]; raise `ParameterError`, without quoting any, otherwise.

    `teachers`: what every row must sum to; None: any sum.
    """
    votes = np.asarray(counts)
    if votes.ndim != 2 or votes.shape[1] < 2 or not np.issubdtype(votes.dtype, np.integer):
        raise ParameterError(
            f"Vote counts must be integers of shape [B, m ≥ 2], not {votes.dtype} {votes.shape}."
        )
    votes = votes.astype(np.int64, copy=False)
    if np.any(votes < 0):
        raise ParameterError("Vote counts must not be negative.")
    if teachers is not None and np.any(votes.sum(axis=1) != teachers):
        raise ParameterError(f"Every row of vote counts must sum to {teachers}, the teachers.")
    return votes
