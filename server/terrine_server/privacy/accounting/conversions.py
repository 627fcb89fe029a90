"""Convert costs to (ε, δ) guarantees, and (ε, δ) budgets to the largest cost they allow.

There are two kinds of cost. In Gaussian DP (Dong, Roth & Su 2022) an event costs μ², and "admit
while Σμ² ≤ μ_B²" is a valid filter for fully adaptive interaction (Smith & Thakurta 2022, arXiv
2210.17520; Koskela, Tobaben & Honkela 2022, arXiv 2209.15596). In Rényi DP an event costs
D_α, and the same holds at one order α fixed in advance (Feldman & Zrnic 2021, arXiv 2008.11193).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from terrine_server.privacy.accounting.units import SLACK
from terrine_server.privacy.parameters import check_delta, check_epsilon


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
