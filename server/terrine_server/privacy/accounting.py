"""What a cost event costs, and how costs become an (ε, δ) guarantee.

Two currencies. In Gaussian DP (Dong, Roth & Su 2022) an event costs μ², and "admit while
Σμ² ≤ μ_B²" is a valid filter for fully adaptive interaction (Smith & Thakurta 2022, arXiv
2210.17520; Koskela, Tobaben & Honkela 2022, arXiv 2209.15596). In Rényi DP an event costs
D_α, and the same holds at one order α fixed in advance (Feldman & Zrnic 2021, arXiv 2008.11193).
Every figure here is data-independent: it holds for all votes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, erfinv, log_ndtr, ndtri, ndtri_exp

from terrine_server.privacy.bits import bit_rdp, log_tails
from terrine_server.privacy.costs import (
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    PublishedClaim,
    SparseVectorEpoch,
    StabilityTest,
    WithinEpoch,
)
from terrine_server.privacy.noise import BITS, discrete_gaussian
from terrine_server.privacy.parameters import check_delta, check_epsilon

ORDERS = np.concatenate(
    [
        [1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5],
        [5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192],
        [256, 384, 512, 768, 1024],
    ]
)
"""Rényi orders for reporting. A budget is enforced at one order only (see `terms`)."""

SLACK = 1e-9
"""Relative margin, against ourselves, for the rounding of floating-point formulas."""

ULPS = 1e-14
"""The same for a single special function, which is good to a few units in the last place."""


# -------------------------------------------------------------------------- prices of events


def gdp_squared(event: CostEvent) -> float:
    """Return μ² such that the event is μ-GDP, whatever the votes (plus `additive_delta`)."""
    match event:
        case GaussianNoisyMax(sigma, shift):
            return 2 * (shift * shift_mu(sigma)) ** 2
        case GaussianThreshold(sigma) | StabilityTest(sigma):
            return shift_mu(sigma) ** 2
        case LaplaceNoisyMax(gamma, shift):
            return _pure_gdp(2 * gamma * shift) ** 2
        case SparseVectorEpoch(epsilon_threshold, epsilon_query):
            return _pure_gdp(epsilon_threshold + epsilon_query) ** 2
        case PublishedClaim(epsilon):
            return _pure_gdp(epsilon) ** 2
        case WithinEpoch():
            return 0.0
        case Composition(events):
            return sum(gdp_squared(part) for part in events)


def rdp(event: CostEvent, orders: ArrayLike) -> NDArray[np.float64]:
    """Return the Rényi divergence bound at each order α > 1, whatever the votes."""
    alpha = np.asarray(orders, dtype=np.float64)
    match event:
        case GaussianNoisyMax(sigma, shift):
            # P18 section 4.1; an integer shift of N_Z costs no more than one of N (CKS 2020).
            return np.asarray(alpha * (shift / sigma) ** 2)
        case GaussianThreshold(sigma, threshold, low, high):
            return _test_rdp(sigma, low - threshold, high - threshold, alpha)
        case StabilityTest(sigma, threshold, high):
            return _test_rdp(sigma, -threshold, high - threshold, alpha)
        case LaplaceNoisyMax(gamma, shift):
            return _pure_rdp(2 * gamma * shift, alpha)
        case SparseVectorEpoch(epsilon_threshold, epsilon_query):
            # Dwork & Roth 2014, Theorem 3.23; proved for integers in docs/privacy/stable_svt.md.
            return _pure_rdp(epsilon_threshold + epsilon_query, alpha)
        case PublishedClaim(epsilon):
            return _pure_rdp(epsilon, alpha)
        case WithinEpoch():
            return np.zeros_like(alpha)
        case Composition(events):
            return np.asarray(sum(rdp(part, alpha) for part in events))


def additive_delta(event: CostEvent) -> float:
    """Return the δ that the event adds on its own, beside what the conversion takes."""
    match event:
        case StabilityTest(delta=delta) | SparseVectorEpoch(delta=delta):
            return delta
        case Composition(events):
            return sum(additive_delta(part) for part in events)
        case _:
            return 0.0


@lru_cache(maxsize=64)
def shift_mu(sigma: float) -> float:
    """Return μ such that N_Z(0, sigma²) shifted by 1 is μ-GDP; a shift of s is then sμ-GDP.

    With z(k) = Q⁻¹(Pr[Y ≥ k]), the trade-off function is made of chords between the points where
    the threshold k rejects, and G_μ is convex: it lies below iff z(k+1) − z(k) ≤ μ for all k. The
    widest step is the central one, 2·Q⁻¹(Pr[Y ≥ 1]) = 2√2·erf⁻¹(Pr[Y = 0]). It is computed from
    the very table that is sampled, rounded up, and every other step is checked against it. Tails
    below 2⁻¹⁹² are beyond the check: with outcomes there merged into one the proof holds, and that
    they occur at all has a chance of 2⁻¹⁹¹, within the sampler's δ.
    """
    table = discrete_gaussian(sigma)
    mass_at_zero = ((1 << BITS) - 2 * table.tail(1)) / (1 << BITS)
    mu = float(2 * math.sqrt(2) * erfinv(mass_at_zero) * (1 + ULPS))
    tails = table.tails()
    steps = np.diff(-ndtri(tails[tails > 2.0**-192]))
    if np.any(steps > mu * (1 + SLACK)):
        raise ArithmeticError(f"The discrete Gaussian of sigma = {sigma} is not {mu}-GDP.")
    return mu


def _pure_gdp(epsilon: float) -> float:
    """Return μ of pure ε-DP: the corner of f_ε at 1/(1+e^ε) is the only point to be covered."""
    return float(-2 * ndtri_exp(-np.logaddexp(0.0, epsilon)))


def _pure_rdp(epsilon: float, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tight curve of pure ε-DP, attained by randomised response (Bun & Steinke 2016, Prop. 3.3).

    ln[(e^{αε} + e^{(1−α)ε}) / (1 + e^ε)]/(α−1), arranged so that nothing cancels for small ε.
    """
    log_rare = -np.logaddexp(0.0, epsilon)  # of randomised response's smaller probability
    rare, up = np.exp(log_rare), (alpha - 1) * epsilon
    gentle = np.minimum(up, 1.0)
    small = np.log1p((1 - rare) * np.expm1(gentle) + rare * np.expm1(-gentle))
    large = np.logaddexp(up + np.log1p(-rare), -up + log_rare)
    return np.asarray(np.where(up <= 1.0, small, large) / (alpha - 1))


def _test_rdp(sigma: float, low: int, high: int, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """Worst case, over integers v and v ± 1 in [low, high], of the bit [v + Y ≥ 0]."""
    margins = np.arange(low, high + 1)
    costs = bit_rdp(log_tails(sigma, -margins), log_tails(sigma, margins + 1), alpha.ravel())
    return np.asarray(costs.max(axis=1).reshape(alpha.shape))


# ------------------------------------------------------------------- conversions to (ε, δ)


def rdp_budget(order: ArrayLike, epsilon: float, delta: float) -> NDArray[np.float64]:
    """Return the largest Rényi divergence at `order` that implies (ε, δ)-DP; ≤ 0: none does.

    Canonne, Kamath & Steinke 2020, Prop. 12, solved for the divergence.
    """
    alpha = np.asarray(order, dtype=np.float64)
    return np.asarray(
        epsilon - np.log1p(-1 / alpha) + (math.log(delta) + np.log(alpha)) / (alpha - 1)
    )


def epsilon_from_rdp(divergences: ArrayLike, orders: ArrayLike, delta: float) -> float:
    """Return ε of the divergences at the given orders: the least over the orders, rounded up."""
    alpha = np.asarray(orders, dtype=np.float64)
    epsilon = np.asarray(divergences) - rdp_budget(alpha, 0.0, delta)
    return _up(max(0.0, float(np.min(epsilon))))


def gdp_budget(epsilon: float, delta: float) -> float:
    """Return the largest μ² that implies (ε, δ)-DP, rounded down (Dong, Roth & Su 2022, Cor. 1)."""
    epsilon, target = check_epsilon(epsilon), math.log(check_delta("delta", delta))

    # δ ≤ exp(−u²/2), so u ≤ t at the root: that bounds μ from below.
    t = math.sqrt(-2 * target)
    low = high = 2 * epsilon / (t + math.sqrt(t * t + 2 * epsilon))
    while gdp_log_delta(epsilon, high) <= target:
        high *= 2
    root = brentq(lambda mu: gdp_log_delta(epsilon, mu) - target, low, high, xtol=low * 1e-12)
    return float(root**2 * (1 - SLACK))


@lru_cache(maxsize=1024)  # all receipts of a group, and all looks at a budget, ask for the same
def epsilon_from_gdp(mu_squared: float, delta: float) -> float:
    """Return ε of a μ-GDP interaction at `delta`, rounded up; 0 where nothing was spent."""
    if mu_squared <= 0:
        return 0.0
    mu, target = math.sqrt(mu_squared), math.log(check_delta("delta", delta))
    if gdp_log_delta(0.0, mu) <= target:
        return 0.0
    high = 1.0
    while gdp_log_delta(high, mu) > target:
        high *= 2
    root = brentq(lambda epsilon: gdp_log_delta(epsilon, mu) - target, 0.0, high, xtol=1e-15)
    return _up(root + 1e-15)


def gdp_log_delta(epsilon: float, mu: float) -> float:
    """Return ln δ(ε) of μ-GDP: δ = Φ(−u) − e^ε Φ(−u−μ) with u = ε/μ − μ/2."""
    u = epsilon / mu - mu / 2
    if u > -5:
        # Both terms are φ(u) times a Mills ratio; their difference never leaves the log domain.
        mills = erfcx(u / math.sqrt(2)) - erfcx((u + mu) / math.sqrt(2))
        return float(-u * u / 2 - math.log(2) + np.log(mills))
    first = log_ndtr(-u)
    return float(first + np.log1p(-np.exp(epsilon + log_ndtr(-u - mu) - first)))


def _up(value: float) -> float:
    return value * (1 + SLACK)
