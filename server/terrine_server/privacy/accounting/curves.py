"""The cost of an event for any votes: μ² in Gaussian DP, a curve D_α in Rényi DP."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfinv, ndtri, ndtri_exp

from terrine_server.privacy.accounting.bits import bit_rdp, log_tails
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
from terrine_server.privacy.accounting.gaussian import gaussian_argmax_rdp
from terrine_server.privacy.accounting.joint import outcome_costs
from terrine_server.privacy.accounting.laplace import argmax_gdp, argmax_rdp
from terrine_server.privacy.accounting.units import SLACK
from terrine_server.privacy.noise import BITS, discrete_gaussian

ULPS = 1e-14
"""Relative margin for one special function, which is accurate to a few units in the last place."""


def gdp_squared(event: CostEvent) -> float:
    """Return μ² such that the event is μ-GDP for any votes (plus `additive_delta`)."""
    match event:
        case GaussianNoisyMax(sigma, shift):
            return 2 * (shift * shift_mu(sigma)) ** 2
        case GaussianArgmax(sigma) | GaussianNoisyCounts(sigma):
            return 2 * shift_mu(sigma) ** 2
        case NeighbourCounts(sigma, norm):
            return 2 * (norm * shift_mu(sigma)) ** 2
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


def rdp(event: CostEvent, orders: ArrayLike) -> NDArray[np.float64]:
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


@lru_cache(maxsize=64)
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
