"""The cost of an event for any votes: μ² in Gaussian DP, a curve D_α in Rényi DP."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, erfinv, log_ndtr, ndtri, ndtri_exp

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
    ReleasedCounts,
    StabilityTest,
)
from terrine_server.privacy.gaussian import gaussian_argmax_rdp
from terrine_server.privacy.joint import outcome_costs
from terrine_server.privacy.laplace import argmax_gdp, argmax_rdp
from terrine_server.privacy.noise import BITS, discrete_gaussian
from terrine_server.privacy.numbers import SLACK, bit_rdp, log_tails
from terrine_server.privacy.parameters import check_delta, check_epsilon

# Relative margin for one special function, which is accurate to a few units in the last place.
ULPS = 1e-14


def gdp_squared(event: CostEvent | ReleasedCounts) -> float:
    """Return μ² such that the event is μ-GDP for any votes (plus `additive_delta`)."""
    match event:
        case GaussianNoisyMax(sigma, shift):
            return 2 * (shift * shift_mu(sigma)) ** 2
        case GaussianArgmax(sigma) | GaussianNoisyCounts(sigma):
            return 2 * shift_mu(sigma) ** 2
        case NeighbourCounts(sigma, norm):
            return 2 * (norm * shift_mu(sigma)) ** 2
        case ReleasedCounts(sigma, squared):
            return squared * shift_mu(sigma) ** 2
        case GaussianThreshold(sigma) | StabilityTest(sigma):
            return shift_mu(sigma) ** 2
        case LaplaceNoisyMax(gamma, shift):
            return _pure_gdp(2 * gamma * shift) ** 2
        case LaplaceArgmax(gamma):
            return min(max(argmax_gdp(gamma), _pure_gdp(gamma)), _pure_gdp(2 * gamma)) ** 2
        case ConfidentMax():
            return gdp_squared(event.parts)
        case Composition(events):
            return sum(gdp_squared(part) for part in events)
        case _:
            assert_never(event)


def rdp(event: CostEvent | ReleasedCounts, orders: ArrayLike) -> NDArray[np.float64]:
    """Return the bound on the Rényi divergence at each order α > 1, for any votes."""
    alpha = np.asarray(orders, dtype=np.float64)
    match event:
        case GaussianNoisyMax(sigma, shift):
            # P18 section 4.1; an integer shift of N_Z costs no more than one of N (CKS 2020).
            return np.asarray(alpha * (shift / sigma) ** 2)
        case GaussianArgmax(sigma):
            answer = np.vectorize(gaussian_argmax_rdp, otypes=[np.float64])(sigma, alpha)
            return np.minimum(answer, rdp(event.counts, alpha))
        case GaussianNoisyCounts(sigma):
            return np.asarray(alpha * (1 / sigma) ** 2)
        case NeighbourCounts(sigma, norm):
            # ‖v − v'‖² ≤ 2·norm², and α‖v − v'‖²/(2σ²) for an integer shift (CKS 2020).
            return np.asarray(alpha * (norm / sigma) ** 2)
        case ReleasedCounts(sigma, squared):
            return np.asarray(alpha * squared / (2 * sigma**2))  # likewise
        case GaussianThreshold(sigma, threshold, low, high):
            return _test_rdp(sigma, low - threshold, high - threshold, alpha)
        case StabilityTest(sigma, threshold, high):
            return _test_rdp(sigma, -threshold, high - threshold, alpha)
        case LaplaceNoisyMax(gamma, shift):
            return _pure_rdp(2 * gamma * shift, alpha)
        case LaplaceArgmax(gamma):
            answer = np.vectorize(argmax_rdp, otypes=[np.float64])(gamma, alpha)
            least, most = _pure_rdp(gamma, alpha), _pure_rdp(2 * gamma, alpha)
            return np.minimum(np.maximum(answer, least), most)
        case ConfidentMax():
            return np.array([_joint_rdp(event, float(a)) for a in alpha.flat]).reshape(alpha.shape)
        case Composition(events):
            return np.asarray(sum(rdp(part, alpha) for part in events))
        case _:
            assert_never(event)


def additive_delta(event: CostEvent) -> float:
    """Return the δ that the event itself adds, besides the δ of the conversion."""
    match event:
        case StabilityTest(delta=delta):
            return delta
        case GaussianNoisyMax() | GaussianNoisyCounts() | GaussianThreshold():
            return 0.0
        case NeighbourCounts():
            return 0.0
        case LaplaceNoisyMax() | LaplaceArgmax() | GaussianArgmax():
            return 0.0
        case ConfidentMax():
            return 0.0
        case Composition(events):
            return sum(additive_delta(part) for part in events)
        case _:
            assert_never(event)


@lru_cache(maxsize=1024)
def shift_mu(sigma: float) -> float:
    """Return μ such that N_Z(0, sigma²) shifted by 1 is μ-GDP; a shift of s is then sμ-GDP.

    With z(k) = Q⁻¹(Pr[Y ≥ k]), the trade-off function consists of chords between the points where
    the threshold k rejects, and G_μ is convex: it lies below iff z(k+1) − z(k) ≤ μ for all k. The
    widest step is the central one, 2·Q⁻¹(Pr[Y ≥ 1]) = 2√2·erf⁻¹(Pr[Y = 0]). It is computed from
    the same table that is sampled, rounded up, and every other step is checked against it. Tails
    below 2⁻¹⁹² are not checked: the proof holds if all outcomes there are merged into one, and the
    probability that any occurs is 2⁻¹⁹¹, within the sampler's δ.
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
    """Return μ of pure ε-DP: only the corner of f_ε at 1/(1+e^ε) needs to be covered."""
    return float(-2 * ndtri_exp(-np.logaddexp(0.0, epsilon)))


def _pure_rdp(epsilon: float, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tight curve of pure ε-DP, attained by randomised response (Bun & Steinke 2016, Prop. 3.3).

    ln[(e^{αε} + e^{(1−α)ε}) / (1 + e^ε)]/(α−1), written so that nothing cancels for small ε.
    """
    log_rare = -np.logaddexp(0.0, epsilon)  # the smaller probability of randomised response
    rare, up = np.exp(log_rare), (alpha - 1) * epsilon
    gentle = np.minimum(up, 1.0)
    small = np.log1p((1 - rare) * np.expm1(gentle) + rare * np.expm1(-gentle))
    large = np.logaddexp(up + np.log1p(-rare), -up + log_rare)
    return np.asarray(np.where(up <= 1.0, small, large) / (alpha - 1))


def _joint_rdp(event: ConfidentMax, order: float) -> float:
    """Return the cost of the event's outcome; apart from the other where together gains nothing.

    Which it is depends on the event's public parameters and the order, never on the outcome.
    """
    costs = outcome_costs(event, order)
    if costs is None:
        return float(rdp(event.parts, order))
    return costs.answer if event.answered else costs.abstention


def _test_rdp(sigma: float, low: int, high: int, alpha: NDArray[np.float64]) -> NDArray[np.float64]:
    """Worst case of the bit [v + Y ≥ 0] over integers v and v ± 1 in [low, high]."""
    margins = np.arange(low, high + 1)
    costs = bit_rdp(log_tails(sigma, -margins), log_tails(sigma, margins + 1), alpha.ravel())
    return np.asarray(costs.max(axis=1).reshape(alpha.shape))


def rdp_budget(order: ArrayLike, epsilon: float, delta: float) -> NDArray[np.float64]:
    """Return the largest Rényi divergence at `order` that implies (ε, δ)-DP; ≤ 0 if none does.

    Canonne, Kamath & Steinke 2020, Prop. 12, solved for the divergence.
    """
    alpha, target = np.asarray(order, dtype=np.float64), math.log(check_delta("delta", delta))
    return np.asarray(epsilon - np.log1p(-1 / alpha) + (target + np.log(alpha)) / (alpha - 1))


def epsilon_from_rdp(divergences: ArrayLike, orders: ArrayLike, delta: float) -> float:
    """Return ε of the divergences at the given orders: the least over the orders, rounded up."""
    alpha = np.asarray(orders, dtype=np.float64)
    epsilon = np.asarray(divergences) - rdp_budget(alpha, 0.0, delta)
    return _up(max(0.0, float(np.min(epsilon))))


def gdp_budget(epsilon: float, delta: float) -> float:
    """Return the largest μ² that implies (ε, δ)-DP, rounded down (Dong, Roth & Su 2022, Cor. 1)."""
    from scipy.optimize import brentq  # late: most commands compute no budget

    epsilon, target = check_epsilon(epsilon), math.log(check_delta("delta", delta))

    # δ ≤ exp(−u²/2), so u ≤ t at the root, which bounds μ from below.
    t = math.sqrt(-2 * target)
    low = high = 2 * epsilon / (t + math.sqrt(t * t + 2 * epsilon))
    while gdp_log_delta(epsilon, high) <= target:
        high *= 2
    root = brentq(lambda mu: gdp_log_delta(epsilon, mu) - target, low, high, xtol=low * 1e-12)
    return float(root**2 * (1 - SLACK))


@lru_cache(maxsize=1024)  # all receipts of a group, and all views of a budget, need the same value
def epsilon_from_gdp(mu_squared: float, delta: float) -> float:
    """Return ε of a μ-GDP interaction at `delta`, rounded up; 0 if nothing was spent."""
    from scipy.optimize import brentq  # late, as above

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
        # Both terms are φ(u) times a Mills ratio; their difference stays in the log domain.
        mills = erfcx(u / math.sqrt(2)) - erfcx((u + mu) / math.sqrt(2))
        return float(-u * u / 2 - math.log(2) + np.log(mills))
    first = log_ndtr(-u)
    return float(first + np.log1p(-np.exp(epsilon + log_ndtr(-u - mu) - first)))


def _up(value: float) -> float:
    return value * (1 + SLACK)
