"""Why a project has exactly one rule, and that the rule holds against adaptive students."""

from __future__ import annotations

import math

import numpy as np

from support.laws import gaussian_pmf, noisy_max_law, tail
from terrine_server.privacy import (
    Account,
    GaussianThreshold,
    build_mechanism,
    gdp_squared,
    quote,
    rdp_budget,
)
from terrine_server.privacy.curves import gdp_log_delta

Pair = tuple[float, float]  # probability of an outcome under D and under D'


def spike(p: float, loss: float) -> list[Pair]:
    """One outcome with this loss and probability p under D; the rest has the other mass."""
    q = p * math.exp(-loss)
    return [(p, q), (1 - p, 1 - q)]


def divergence(law: list[Pair], order: float) -> float:
    """The larger of the two directions' Rényi divergences."""
    both = (law, [(q, p) for p, q in law])
    return max(
        math.log(sum(p**order * q ** (1 - order) for p, q in direction)) / (order - 1)
        for direction in both
    )


def test_spending_while_some_order_still_fits_would_break_the_promise() -> None:
    epsilon, delta, high, low = 8.0, 1e-5, 16, 4
    first = spike(2.0346836901064417e-4, 1.5)
    after_rare = spike(0.786362362246425, 6.564538521137571)
    after_common = spike(3.928805056919575e-5, 8.287840160562919)

    def fits(order: float, *steps: list[Pair]) -> bool:
        spent = sum(divergence(step, order) for step in steps)
        return spent <= float(rdp_budget(order, epsilon, delta)) * (1 + 1e-9)

    # Each path fits at one of the two orders, and which one depends on the first outcome ...
    assert fits(high, first, after_rare)
    assert not fits(low, first, after_rare)
    assert fits(low, first, after_common)
    assert not fits(high, first, after_common)

    # ... and together they break (ε, δ), in exact arithmetic over all four outcomes.
    rare, common = first
    paths = [(rare[0] * p, rare[1] * q) for p, q in after_rare]
    paths += [(common[0] * p, common[1] * q) for p, q in after_common]
    hockey_stick = sum(max(0.0, p - math.exp(epsilon) * q) for p, q in paths)
    assert abs(hockey_stick / delta - 1.982) < 0.001

    # One order, fixed in advance, refuses one of the two paths.
    for order in (high, low):
        assert not (fits(order, first, after_rare) and fits(order, first, after_common))


def test_an_adaptive_analyst_cannot_beat_the_gaussian_filter() -> None:
    """Exact dynamic programme: the worst adaptive choice between coarse and fine bits.

    At every step the analyst sees the transcript so far and picks the best query for the attack
    among those that still fit. The largest hockey-stick divergence over all such strategies must
    stay below δ(ε) of the budget.
    """
    kinds = []
    for sigma in (2.0, 3.0):
        mu_squared = gdp_squared(GaussianThreshold(sigma, 0, 0, 1))
        for threshold in (0, 1):
            pmf = gaussian_pmf(sigma)
            here, there = tail(pmf, threshold - 1), tail(pmf, threshold)
            kinds.append((mu_squared, [(here, there), (1 - here, 1 - there)]))
    epsilon, budget = 0.7, 0.75

    def gain(p: float, q: float, left: float) -> float:
        """The largest sum of P − e^ε Q that can still be reached."""
        best = max(0.0, p - math.exp(epsilon) * q)
        for mu_squared, law in kinds:
            if mu_squared <= left:
                best = max(best, sum(gain(p * a, q * b, left - mu_squared) for a, b in law))
        return best

    reached = gain(1.0, 1.0, budget)
    allowed = math.exp(gdp_log_delta(epsilon, math.sqrt(budget)))
    assert 0.5 * allowed < reached <= allowed


def test_a_whole_project_of_noisy_maxima_stays_within_its_epsilon_and_delta() -> None:
    """The true privacy loss of all affordable GNMax queries on the worst vote, by convolution."""
    spec = {"name": "gnmax", "sigma": 20.0}
    terms = quote(build_mechanism(spec, teachers=20, classes=2), 4.0, 1e-4)
    queries = terms.affordable(Account())
    p, q = (noisy_max_law(votes, gaussian_pmf(20.0)) for votes in ([10, 10], [9, 11]))
    # The number of zeros is binomial under both; it is a sufficient statistic.
    k = np.arange(queries + 1)
    log_choose = np.array(
        [math.lgamma(queries + 1) - math.lgamma(i + 1) - math.lgamma(queries - i + 1) for i in k]
    )
    here = np.exp(log_choose + k * math.log(p[0]) + (queries - k) * math.log(p[1]))
    there = np.exp(log_choose + k * math.log(q[0]) + (queries - k) * math.log(q[1]))
    loss = float(np.sum(np.maximum(0, here - math.exp(4.0) * there)))
    assert 0 < loss <= terms.delta
