"""What prices are computed with: tails of noise, exact costs of one bit, units and rounding."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from terrine_server.privacy.parameters import ParameterError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Relative margin for rounding up, far above the error of the formulas in double precision.
MARGIN = 1e-10

# A cost that underflows is rounded up to this.
SMALLEST = 1e-300


def check_orders(orders: ArrayLike) -> Floats:
    """Return Rényi orders as float[A]; raise `ParameterError` unless all are finite and > 1."""
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if alpha.ndim != 1 or not np.all(np.isfinite(alpha) & (alpha > 1)):
        raise ParameterError(f"Rényi orders must be finite and above 1, not {orders!r}.")
    return alpha


def check_votes(counts: NDArray[np.int64], teachers: int | None = None) -> Counts:
    """Return vote counts as int64[B, m], or raise `ParameterError` without quoting any count.

    `teachers`: the sum required of every row; None allows any sum.
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
        raise ParameterError(f"Each row of vote counts must sum to {teachers}, one per teacher.")
    return votes


def full_tallies(counts: NDArray[Any], teachers: int, classes: int) -> Counts:
    """Return vote counts as int64[B, m] ≥ 0 whose rows sum to `teachers`, whatever is given.

    Raises `ValueError` for another shape or type, which is public, and never for a value: votes are
    secret, and so is whether a check of them fails. A row with one vote of each teacher stays as it
    is. Of any other, votes count from the first class on until all teachers have voted, and the
    last class gets those that are missing. So where a vote of a row moves, comes or goes, one vote
    of the tally moves, or none: prices hold for any rows (docs/privacy/README.md).
    """
    check_counts_shape(counts, classes)
    cumulative = np.clip(counts, 0, teachers).cumsum(axis=1, dtype=np.int64)
    cumulative[:, -1] = teachers
    tallies: Counts = np.diff(np.minimum(cumulative, teachers), axis=1, prepend=0)
    return tallies


def check_counts_shape(counts: NDArray[Any], classes: int) -> None:
    """Raise `ValueError` unless counts are integers of shape [B, m]. It looks at no value."""
    if not isinstance(counts, np.ndarray) or not np.issubdtype(counts.dtype, np.integer):
        raise ValueError("Vote counts must be an integer array.")
    if counts.ndim != 2 or counts.shape[1] != classes:
        raise ValueError(f"Vote counts must have shape [B, {classes}], not {counts.shape}.")


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


# Costs are counted in 1e-12 of a rule's quantity (μ² or Rényi divergence).
COST_UNITS = 10**12

# Additive δ is counted in 1e-18.
DELTA_UNITS = 10**18

# Units of δ in every price, for the sampler's distance from the ideal noise (see `noise`).
SAMPLER_DELTA = 1

# Relative margin, never in our favour, for the rounding of floating-point formulas.
SLACK = 1e-9


def floor_units(value: float, units: int) -> int:
    """Return a budget in whole units, rounded down; never negative."""
    return max(0, math.floor(Fraction(value) * units))


def ceil_units(value: float, units: int) -> int:
    """Return a price in whole units, rounded up."""
    return math.ceil(Fraction(value) * units)
