"""Speed of data-dependent pricing, beside a scalar implementation of the same formulas.

The peer works like the papers' published code: one query at a time, one distance at a time, numpy
over the orders only. Both run in the same process on the same votes (synthetic: 250 teachers, 10
classes; and 12,000 queries x 5,000 teachers x 150 classes, the size of P18's Glyph).

    python benchmarks/pricing.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc, erfcinv, log_ndtr

from reference.costs import gnmax_log_q
from reference.local_sensitivity import (
    NoisyMaxSensitivity,
    gaussian_curve,
)
from reference.sensitivity import Charged, secret_spend, smooth_sensitivity
from terrine_server.privacy import GaussianNoisyMax, GaussianThreshold
from terrine_server.privacy.published.noisy_max import gnmax_rdp

SIGMA, ORDER, BETA = 40.0, 14.0, 0.0179
ORDERS = np.linspace(1.5, 50.5, 50)
REPEATS = 5

Counts = NDArray[np.int64]
T = TypeVar("T")


# ---------------------------------------------------------------- the peer: one at a time


def scalar_log_q(votes: Counts, sigma: float) -> float:
    winner = np.argmax(votes)
    gaps = votes[winner] - np.delete(votes, winner)
    log_terms = log_ndtr((1 - gaps) / (math.sqrt(2) * sigma))
    largest = np.max(log_terms)
    log_q = largest + math.log(np.sum(np.exp(log_terms - largest)))
    return float(min(log_q, math.log(1 - 1 / len(votes))))


def scalar_mu_star(sigma: float) -> float:
    low, high = 1 + 1e-9, sigma + 2
    for _ in range(80):
        middle = (low + high) / 2
        if (2 * middle - 1) / sigma**2 < math.log((middle + 1) / (middle - 1)):
            low = middle
        else:
            high = middle
    return high


def scalar_log1mexp(x: float) -> float:
    return math.log1p(-math.exp(x)) if x < -math.log(2) else math.log(-math.expm1(x))


def scalar_rdp(
    log_q: float, sigma: float, orders: NDArray[np.float64], mu_star: float
) -> NDArray[np.float64]:
    cost = orders / sigma**2
    mu2 = sigma * math.sqrt(-log_q)
    mu1 = mu2 + 1
    usable = (orders < mu1) & (mu2 > mu_star)
    if not usable.any():
        return cost
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    log_miss = scalar_log1mexp(log_q)
    log_a = (orders - 1) * (log_miss - scalar_log1mexp((log_q + eps2) * (1 - 1 / mu2)))
    log_b = (orders - 1) * (eps1 - log_q / (mu1 - 1))
    dependent = np.logaddexp(log_miss + log_a, log_q + log_b) / (orders - 1)
    cost[usable] = np.minimum(cost, dependent)[usable]
    return cost


class ScalarSensitivity:
    """Algorithms 3 to 5 of P18, one query and one distance at a time."""

    def __init__(self, sigma: float, classes: int, order: float, q0: float) -> None:
        self.sigma, self.classes, self.orders = sigma, classes, np.array([order])
        self.mu_star, self.worst, self.q0 = scalar_mu_star(sigma), order / sigma**2, q0
        self.q1 = self.rarer(q0)
        self.plateau = self.worst - self.cost(self.q1)

    def cost(self, q: float) -> float:
        if q >= self.q0:
            return self.worst
        return float(scalar_rdp(math.log(q), self.sigma, self.orders, self.mu_star)[0])

    def likelier(self, q: float) -> float:
        others = self.classes - 1
        return min(1.0, others / 2 * float(erfc(erfcinv(2 * q / others) - 1 / self.sigma)))

    def rarer(self, q: float) -> float:
        others = self.classes - 1
        return others / 2 * float(erfc(erfcinv(2 * q / others) + 1 / self.sigma))

    def local(self, q: float) -> float:
        if self.q1 <= q <= self.q0:
            return self.plateau
        if q < self.q1:
            return self.cost(self.likelier(q)) - self.cost(q)
        return self.worst - self.cost(self.rarer(q))

    def by_distance(self, votes: Counts) -> NDArray[np.float64]:
        teachers = int(votes.sum())
        bounds = np.full(teachers, self.plateau)
        ranked = np.sort(votes)[::-1]
        q = math.exp(scalar_log_q(ranked, self.sigma))
        if q < self.q1:
            for d in range((ranked[0] - ranked[1]) // 2 + 1):
                moved = ranked.copy()
                moved[0] -= d
                moved[1] += d
                q = math.exp(scalar_log_q(moved, self.sigma))
                if q >= self.q1:
                    break
                bounds[d] = self.local(q)
        elif q > self.q0:
            moved = ranked.copy()
            for d in range(teachers):
                q = math.exp(scalar_log_q(moved, self.sigma))
                if q <= self.q0 or moved[1:].max() == 0:
                    break
                bounds[d] = self.local(q)
                moved[0] += 1
                moved[1 + np.argmax(moved[1:])] -= 1
        return bounds

    def smooth(self, votes: Counts, beta: float) -> float:
        bounds = self.by_distance(votes)
        return float(max(math.exp(-beta * d) * bound for d, bound in enumerate(bounds)))


# ------------------------------------------------------------------------------------ votes


def synthetic_votes(queries: int, teachers: int, classes: int, seed: int) -> Counts:
    """Consensus spread over [0.3, 1); the other votes go to few other classes."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(classes, 0.1), queries)
    agreement = rng.beta(4, 1.2, queries)[:, None]
    shares *= 1 - agreement
    shares[np.arange(queries), rng.integers(classes, size=queries)] += agreement[:, 0]
    return np.stack([rng.multinomial(teachers, share) for share in shares])


def fastest(work: Callable[[], T], repeats: int = REPEATS) -> tuple[float, T]:
    seconds = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds, result


def compare_prices() -> float:
    votes = synthetic_votes(10_000, 250, 10, seed=1)
    mu_star = scalar_mu_star(SIGMA)

    def peer() -> NDArray[np.float64]:
        rows = [scalar_rdp(scalar_log_q(row, SIGMA), SIGMA, ORDERS, mu_star) for row in votes]
        return np.array(rows)

    ours, fast = fastest(lambda: gnmax_rdp(gnmax_log_q(votes, SIGMA), SIGMA, ORDERS))
    theirs, slow = fastest(peer, repeats=2)
    np.testing.assert_allclose(fast, slow, rtol=1e-9)
    print(f"price of 10,000 queries x 50 orders: ours {ours * 1e3:.1f} ms, ", end="")
    print(f"scalar {theirs * 1e3:.0f} ms: {theirs / ours:.0f}x (target 25x)")
    return theirs / ours


def compare_sensitivities() -> float:
    votes = synthetic_votes(1_000, 250, 10, seed=2)

    def smooth() -> NDArray[np.float64]:
        sensitivity = NoisyMaxSensitivity(gaussian_curve(SIGMA, 10, ORDER))
        return smooth_sensitivity(sensitivity.walk(votes), sensitivity.ceiling, BETA)

    q0 = math.exp(-NoisyMaxSensitivity(gaussian_curve(SIGMA, 10, ORDER)).l0)
    scalar = ScalarSensitivity(SIGMA, 10, ORDER, q0)
    ours, fast = fastest(smooth)
    theirs, slow = fastest(lambda: [scalar.smooth(row, BETA) for row in votes], repeats=2)
    np.testing.assert_allclose(fast, slow, rtol=1e-7)
    print(f"1,000 smooth sensitivities: ours {ours * 1e3:.1f} ms, ", end="")
    print(f"scalar {theirs * 1e3:.0f} ms: {theirs / ours:.0f}x (target 20x)")
    return theirs / ours


def price_glyph_size() -> float:
    votes = synthetic_votes(12_000, 5_000, 150, seed=3)
    rng = np.random.default_rng(4)
    passed = votes.max(axis=1) + 500 * rng.normal(size=len(votes)) >= 1_000
    test = GaussianThreshold(500.0, 1_000, low=0, high=5_000)
    transcript = [Charged(test, votes), Charged(GaussianNoisyMax(100.0), votes[passed])]
    seconds, spend = fastest(
        lambda: secret_spend(transcript, teachers=5_000, order=20.5, beta=0.0205), repeats=1
    )
    print(
        f"12,000 queries x 5,000 teachers x 150 classes, {passed.sum():,} answered: "
        f"cost and smooth sensitivity in {seconds:.1f} s (target 10 s); "
        f"spent {spend.cost:.3f}, SS {spend.smooth_sensitivity:.4g}"
    )
    return seconds


if __name__ == "__main__":
    met = (compare_prices() >= 25, compare_sensitivities() >= 20, price_glyph_size() <= 10)
    raise SystemExit(0 if all(met) else 1)
