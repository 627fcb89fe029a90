"""The cost of a noisy maximum at its votes: P18's Theorem 6 (Gaussian), P17's Theorem 3 (Laplace).

Both bound the cost by a function of q, the probability that the winner is not the class with the
most votes, and grow with q. All in the log domain: q itself underflows at strong consensus.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from terrine_server.privacy.accounting.bits import log1mexp
from terrine_server.privacy.accounting.checks import (
    MARGIN,
    SMALLEST,
    Counts,
    Floats,
    check_orders,
)
from terrine_server.privacy.accounting.curves import rdp
from terrine_server.privacy.accounting.events import GaussianNoisyMax, LaplaceNoisyMax
from terrine_server.privacy.parameters import ParameterError

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


Terms = tuple[Floats, Floats, Floats]
"""ln(1 − q), ln A and ln B of the bound ln[(1−q)A^{α−1} + qB^{α−1}]/(α−1), for each L = −ln q."""


def gnmax_terms(level: Floats, sigma: float) -> Terms:
    """Return the terms of P18's Theorem 6 with μ₂ = σ√L and μ₁ = μ₂ + 1 (Prop. 10)."""
    root = np.sqrt(level)
    with np.errstate(invalid="ignore"):  # −∞ − (−∞) where q = 1, far outside the valid range
        missed = log1mexp(level)
        return missed, missed - log1mexp((root - 1 / sigma) ** 2), 2 * root / sigma + 1 / sigma**2


def lnmax_terms(level: Floats, gamma: float) -> Terms:
    """Return the terms of P17's Theorem 3."""
    with np.errstate(invalid="ignore"):
        missed = log1mexp(level)
        return missed, missed - log1mexp(level - 2 * gamma), np.full_like(level, 2 * gamma)


def small_q_bound(level: Floats, terms: Terms, more: float | Floats) -> Floats:
    """Return ln[(1−q)A^{α−1} + qB^{α−1}]/(α−1) at `more` = α − 1, where it is valid."""
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
    """Return the distinct values of L = −ln q, and the index of each query's value."""
    value = np.atleast_1d(np.asarray(log_q, dtype=np.float64))
    if value.ndim != 1 or not np.all(value <= 0):
        raise ParameterError("ln q must be a vector of numbers ≤ 0.")
    return np.unique(-value, return_inverse=True)
