"""Where the published analysis of PATE or its reference code fails and ours does not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from support.laws import VoteGraph, full_walk, law, neighbours, renyi
from support.reference.costs import data_dependent_rdp, gnmax_log_q
from support.reference.local_sensitivity import (
    BitSensitivity,
    NoisyMaxSensitivity,
    gaussian_curve,
)
from support.reference.sensitivity import Charged, noisy_max_sensitivity, secret_spend
from terrine_server.privacy import GaussianNoisyMax, GaussianThreshold, LaplaceNoisyMax, rdp
from terrine_server.privacy.published import bit_table, gnss_rdp, lnmax_rdp

ROUNDING = 1e-9

# ------------------------------------------------- P18, Theorem 23: the price of sanitising


def published_gnss(order: float, beta: float, sigma: float) -> float:
    spread = order * beta - math.log(1 - 2 * order * beta) / 2
    return order * math.exp(2 * beta) / sigma**2 + spread / (order - 1)


def renyi_by_quadrature(
    order: float, here: tuple[float, float], there: tuple[float, float]
) -> float:
    """D_λ of two normal distributions (mean, deviation), by the trapezoid rule."""
    x = np.linspace(-60, 60, 600_001) * max(here[1], there[1])
    log_p, log_q = (
        -((x - mean) ** 2) / (2 * deviation**2) - math.log(deviation)
        for mean, deviation in (here, there)
    )
    log_terms = order * log_p + (1 - order) * log_q
    total = np.logaddexp.reduce(log_terms) + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))
    return float(total / (order - 1))


@pytest.mark.parametrize(
    ("row", "order", "beta", "sigma", "times"),
    [
        ("MNIST", 14, 0.0329, 6.23, 3.1),
        ("SVHN", 7.5, 0.0533, 4.88, 1.18),
        ("Adult", 15.5, 0.031, 7.92, 4.3),
        ("Glyph", 20.5, 0.0205, 11.9, 1.89),
    ],
)
def test_the_price_of_sanitising_in_the_papers_table_is_too_small(
    row: str, order: float, beta: float, sigma: float, times: float
) -> None:
    """A path x₀–x₁–x₂–x₃ with f = (1, 0, e^{−β}, e^{−β}), which meets the theorem's conditions."""
    f = np.array([1.0, 0.0, math.exp(-beta), math.exp(-beta)])
    local = [max(abs(f[i] - f[j]) for j in range(4) if abs(i - j) <= 1) for i in range(4)]
    smooth = [max(math.exp(-beta * abs(i - j)) * local[j] for j in range(4)) for i in range(4)]
    leak = renyi_by_quadrature(order, (f[1], sigma * smooth[1]), (f[2], sigma * smooth[2]))
    claimed = published_gnss(order, beta, sigma)
    assert leak > times * claimed, row
    assert leak == pytest.approx(gnss_rdp(order, beta, sigma), rel=1e-6)  # attained: tight


# ------------------------------------ the reference code's threshold sensitivity, and sums


def published_threshold_bounds(near: NDArray[np.float64], v: int) -> NDArray[np.float64]:
    """The bound of the code at distance d: the larger of the two changes at v ± d; 0 beyond."""
    padded = np.append(near, 0.0)
    distances = np.arange(len(near))
    below = np.where(v - distances >= 0, v - distances, len(near))
    above = np.where(v + distances < len(near), v + distances, len(near))
    return np.asarray(np.maximum(padded[below], padded[above]))


def test_the_sum_rule_needs_a_running_maximum_over_the_distance() -> None:
    """Two queries whose bounds peak at different distances: the sum of both is not smooth."""
    order, beta, teachers = 10.0, 0.01, 30
    event = GaussianThreshold(2.0, 16, low=0, high=teachers)
    cost = bit_table(event, [order])[0]
    near = BitSensitivity(cost).near
    decay = np.exp(-beta * np.arange(teachers + 1))
    worst_ratio = 0.0
    for v, w in itertools.product(range(teachers + 1), repeat=2):
        published = published_threshold_bounds(near, v) + published_threshold_bounds(near, w)
        v_near, w_near = (
            np.array([near[max(0, x - d) : x + d + 1].max() for d in range(teachers + 1)])
            for x in (v, w)
        )
        # Both statistics move together, each to where its own cost changes most.
        needed = max(decay * (v_near + w_near))
        worst_ratio = max(worst_ratio, needed / max(decay * published))
        votes = np.array([[v, teachers - v], [w, teachers - w]])
        votes = np.where(votes.max(axis=1, keepdims=True) == votes[:, :1], votes, [[0, 0]])
        if votes.sum() == 2 * teachers:
            spend = secret_spend([Charged(event, votes)], teachers=teachers, order=order, beta=beta)
            assert spend.smooth_sensitivity >= needed
    assert worst_ratio > 1.15


# --------------------------------------------------------- leaving the logarithmic domain


def test_consensus_of_thousands_is_priced_where_the_code_takes_the_logarithm_of_zero() -> None:
    votes = np.array([[5000, 0]])
    log_q = gnmax_log_q(votes, 40.0)
    with pytest.raises(ValueError, match=r"domain error|positive"):
        math.log(math.exp(log_q[0]))
    spend = secret_spend(
        [Charged(GaussianNoisyMax(40.0), votes)], teachers=5000, order=14, beta=0.02
    )
    assert 0 < spend.cost < 1e-100
    assert 0 < spend.smooth_sensitivity < math.inf


# --------------------------------------------------------------- P18's condition C6 fails


def as_published(sensitivity: NoisyMaxSensitivity, l0: float | None = None) -> NoisyMaxSensitivity:
    """Algorithm 3 taken literally: the largest change is at q1 and falls off from there."""
    if l0 is not None:
        sensitivity.l0 = l0
        sensitivity.l1 = float(sensitivity.curve.rarer(np.array([l0]))[0])
    sensitivity.monotone = True
    at_q1 = sensitivity.cost(np.array([sensitivity.l1]))[0]
    sensitivity.ceiling = float(sensitivity.curve.worst - at_q1)
    return sensitivity


@pytest.mark.parametrize(("sigma", "order"), [(1.7, 10.0), (3.0, 10.0), (5.0, 10.0)])
def test_where_c6_fails_the_published_algorithm_reports_too_little(
    sigma: float, order: float
) -> None:
    """25 unanimous teachers: one vote changes the cost by several times the published bound."""
    graph = VoteGraph(25, 2)
    cost = data_dependent_rdp(GaussianNoisyMax(sigma), graph.votes, order)[:, 0]
    change = graph.largest_change(cost)
    published = as_published(NoisyMaxSensitivity(gaussian_curve(sigma, 2, order)))
    bounds = full_walk(published.walk(graph.votes), 25)[:, 0]
    assert np.max(change / np.maximum(bounds, 1e-12)) > 3
    ours = noisy_max_sensitivity(GaussianNoisyMax(sigma), 2, order)
    assert not ours.monotone
    assert np.all(change <= full_walk(ours.walk(graph.votes), 25)[:, 0] * (1 + ROUNDING))


# ------------------------------------------------ two validity tests for one cost function


@pytest.mark.parametrize(("sigma", "order"), [(0.5, 1.5), (0.5, 2.0), (0.7, 1.5)])
def test_price_and_sensitivity_must_be_of_the_same_function(sigma: float, order: float) -> None:
    """The code's sensitivity starts at √L = 1 + 1/σ, its price already at √L = μ*/σ.

    At votes 3 : 2 it finds no sensitivity at all, yet the price changes with one vote.
    """
    graph = VoteGraph(5, 2)
    cost = data_dependent_rdp(GaussianNoisyMax(sigma), graph.votes, order)[:, 0]
    tied = np.flatnonzero(graph.votes[:, 0] == 3)[0]
    published = as_published(
        NoisyMaxSensitivity(gaussian_curve(sigma, 2, order)), l0=(1 + 1 / sigma) ** 2
    )
    assert full_walk(published.walk(graph.votes), 5)[tied, 0] == 0
    assert graph.largest_change(cost)[tied] > 0.1
    ours = noisy_max_sensitivity(GaussianNoisyMax(sigma), 2, order)
    bounds = full_walk(ours.walk(graph.votes), 5)[:, 0]
    assert np.all(graph.largest_change(cost) <= bounds * (1 + ROUNDING))


# ------------------------------------------------------------ P17's Theorem 3 out of range


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_theorem_3_of_the_first_paper_needs_q_below_one_over_one_plus_e_to_the_2_gamma(
    gamma: float,
) -> None:
    """The 2017 code applies it for all q < 1/2: there 1 − e^{2γ}q can be negative."""
    limit = 1 / (1 + math.exp(2 * gamma))
    orders = np.array([2.0, 3.0, 4.5, 9.0])
    worst = rdp(LaplaceNoisyMax(gamma), orders)
    for q in np.linspace(limit * 1.0001, 0.4999, 50):
        np.testing.assert_array_equal(lnmax_rdp([math.log(q)], gamma, orders)[0], worst)
    q = 0.45
    base = (1 - q) / (1 - math.exp(2 * gamma) * q)
    assert base < 0 or base > math.exp(2 * gamma)


# ------------------------------------------------------------ continuous formulas, integer noise


def test_the_papers_q_is_too_small_for_integer_noise() -> None:
    """σ = 1, votes 3 : 0: with ties to the lowest class the winner loses more often than Q says."""
    votes = (0, 3)
    missed = 1 - law({"name": "gnmax", "sigma": 1.0}, votes)[("answered", 1)]
    continuous = gnmax_log_q(np.array([votes]), 1.0, lattice=0)[0]
    assert continuous < math.log(missed) <= gnmax_log_q(np.array([votes]), 1.0)[0]


# ------------------------------------------------- near-zero cost by an immutable argmax


def test_an_immutable_argmax_is_anything_but_free() -> None:
    """Adding c votes to the winner adds c to what a neighbour can change (NZC, Theorem 4)."""
    spec = {"name": "immutable", "gamma": 0.5, "c": 5}
    here, there = law(spec, (3, 2)), law(spec, (2, 3))
    loss = math.log(here["answered", 0] / there["answered", 0])
    claimed = 2 * 0.5
    assert loss > 2.5 * claimed
    event = LaplaceNoisyMax(0.5, shift=6)
    for order in (2.0, 10.0):
        cost = data_dependent_rdp(event, np.array([[3, 2]]), order)[0, 0]
        for other in neighbours((3, 2)):
            assert renyi(here, law(spec, other), order) <= cost
