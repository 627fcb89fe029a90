"""The cost of one bit of a threshold test: exactly what leaks, for the noise that is drawn."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from terrine_server.privacy.accounting.checks import MARGIN, SMALLEST, Floats, check_orders

_ROUNDING = 2.0**-50  # the error of a few roundings


def log_tails(sigma: float, k: NDArray[np.int64]) -> Floats:
    """Return ln Pr[Y ≥ k] for Y ~ N_Z(0, sigma²) and integers k."""
    reach = int(max(np.abs(k).max(initial=1), 1) + math.ceil(12 * sigma) + 12)
    result: Floats = _log_tails(sigma, reach)[k + reach]
    return result


@lru_cache(maxsize=8)  # the orders at which a test is priced have the same
def _log_tails(sigma: float, reach: int) -> Floats:
    """Return ln Pr[Y ≥ k] for k = −reach, …, reach."""
    support = np.arange(-reach, reach + 1)
    log_mass = -(support.astype(np.float64) ** 2) / (2 * sigma**2)
    log_mass -= logsumexp(log_mass)
    result: Floats = np.logaddexp.accumulate(log_mass[::-1])[::-1]
    return result


def bit_rdp(log_passed: Floats, log_failed: Floats, orders: ArrayLike) -> Floats:
    """Return the exact cost of a bit whose statistic moves by at most one.

    `log_passed`, `log_failed`: float[V], ln Pr[bit = 1] and ln Pr[bit = 0] at each value of the
    statistic in its range. The cost at v is the larger of D_α(Bern(p_v)‖Bern(p_{v±1})); P18 bounds
    it by the whole Gaussian's α/2σ². Returns float[A, V].
    """
    alpha = check_orders(orders)
    log_p, log_s = complements(log_passed, log_failed)
    cost = np.zeros((len(alpha), len(log_p)))
    here, there = slice(1, None), slice(None, -1)
    for a, order in enumerate(alpha):
        for x, y in ((here, there), (there, here)):
            np.maximum(
                cost[a, x],
                bernoulli_rdp(log_p[x], log_s[x], log_p[y], log_s[y], float(order)),
                out=cost[a, x],
            )
    return cost


def complements(log_passed: Floats, log_failed: Floats) -> tuple[Floats, Floats]:
    """Return both to full precision: of the two, only the smaller is given with it."""
    return (
        np.where(log_passed < log_failed, log_passed, log1mexp(-log_failed)),
        np.where(log_passed < log_failed, log1mexp(-log_passed), log_failed),
    )


def bernoulli_rdp(
    log_p: Floats, log_s: Floats, log_p2: Floats, log_s2: Floats, order: float
) -> Floats:
    """D_α(Bern(p)‖Bern(p′)), rounded up; s = 1 − p. float[V].

    ln(1 + x)/(α−1) with x = p^α p′^{1−α} + s^α s′^{1−α} − 1. Written with the smaller probability u
    and the step b = ln(u′/u), both terms of x contain the same u′ − u, so their first orders cancel
    exactly and x keeps its relative precision from 1 down to 1e-300.
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
    """e^start (e^step − 1), computed so that no factor overflows."""
    large = np.exp(start + step) - np.exp(start)
    return np.where(step > 1, large, np.exp(start) * np.expm1(np.minimum(step, 1)))


def log1mexp(x: Floats) -> Floats:
    """Return ln(1 − e^{−x}) for x ≥ 0; −∞ at and below 0."""
    x = np.maximum(x, 0)
    with np.errstate(divide="ignore"):
        return np.where(x > math.log(2), np.log1p(-np.exp(-x)), np.log(-np.expm1(-x)))


def log_psi(y: Floats, order: float) -> Floats:
    """Return ln ψ(e^y) with ψ(x) = x^α − αx + α − 1 ≥ 0; −∞ at y = 0."""
    small = np.abs(order * y) < 0.03
    near, far = np.where(small, y, 0.0), np.where(small, 1.0, order * y)
    series = np.zeros_like(near)
    for i in range(9, 1, -1):  # Σ_i (α^i − α) y^i / i!
        series = (series * near) + (order**i - order) / math.factorial(i)
    with np.errstate(divide="ignore", over="ignore"):
        direct = np.where(
            far > 600, far, np.log(np.expm1(np.minimum(far, 600)) - order * np.expm1(far / order))
        )
        return np.where(small, np.log(series * near**2), direct)
