"""No mechanism's output law diverges from a neighbour's by more than its cost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.special import log_ndtr

from support.laws import (
    Law,
    gaussian_pmf,
    histograms,
    laplace_pmf,
    law,
    neighbours,
    renyi,
    tail,
)
from support.reference.costs import data_dependent_rdp, gnmax_log_q, lnmax_log_q
from terrine_server.privacy import (
    GaussianThreshold,
    StabilityTest,
    VoteOutcome,
    build_mechanism,
    rdp,
)
from terrine_server.privacy.published import laplace_log_tails

ORDERS = np.array([1.5, 2.0, 4.0, 10.0, 25.0])
SPECS: list[dict[str, Any]] = [
    *({"name": "gnmax", "sigma": s} for s in (1.0, 1.6, 3.0)),
    *({"name": "lnmax", "gamma": g} for g in (0.3, 1.0, 2.0)),
]


def divergence(here: Law, there: Law) -> list[float]:
    return [renyi(here, there, float(order)) for order in ORDERS]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(
    ("teachers", "classes"), [(1, 2), (4, 2), (12, 2), (5, 3), (12, 3), (6, 4)]
)
def test_noisy_maxima(spec: dict[str, Any], teachers: int, classes: int) -> None:
    event = build_mechanism(spec, teachers=teachers, classes=classes).events()[VoteOutcome.ANSWERED]
    votes = list(histograms(teachers, classes))
    laws = {row: law(spec, row) for row in votes}
    costs = data_dependent_rdp(event, np.array(votes), ORDERS)
    worst = rdp(event, ORDERS)
    assert np.all(costs <= worst)
    below = 0
    for row, cost in zip(votes, costs, strict=True):
        below += int(np.any(cost < 0.9 * worst))
        for other in neighbours(row):
            assert np.all(divergence(laws[row], laws[other]) <= cost * (1 + 1e-9) + 1e-13), row
    if teachers == 12 and spec.get("sigma", 0) < 3 and spec.get("gamma", 1) > 0.5:
        assert below > 0  # otherwise only the worst case was tested


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_q_covers_every_way_to_miss_the_winner(spec: dict[str, Any]) -> None:
    """Ties included: noise that merely makes a tie may give the win to a lower class."""
    gaussian = spec["name"] == "gnmax"
    for row in histograms(10, 3):
        votes = np.array([row])
        log_q = gnmax_log_q(votes, spec["sigma"]) if gaussian else lnmax_log_q(votes, spec["gamma"])
        missed = 1 - law(spec, row)[("answered", row.index(max(row)))]
        assert math.log(max(missed, 1e-300)) <= log_q[0] + 1e-12


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.75, 1.0, 2.0, 10.0, 40.0])
def test_the_lattice_step_makes_the_gaussian_tail_an_upper_bound(sigma: float) -> None:
    pmf = gaussian_pmf(sigma)
    difference = np.convolve(pmf, pmf)
    centre = len(difference) // 2
    tails = np.cumsum(difference[::-1])[::-1][centre:]
    gaps = np.arange(math.ceil(12 * sigma))
    exact = np.log(tails[gaps])
    assert np.all(exact <= log_ndtr((1 - gaps) / (math.sqrt(2) * sigma)) + 1e-12)
    continuous = log_ndtr(-gaps / (math.sqrt(2) * sigma))
    assert np.any(exact > continuous)  # the paper's q is too small for integer noise


@pytest.mark.parametrize("gamma", [0.05, 0.3, 1.0, 3.0])
def test_the_laplace_tail_is_exact(gamma: float) -> None:
    pmf = laplace_pmf(gamma)
    difference = np.convolve(pmf, pmf)
    centre = len(difference) // 2
    tails = np.cumsum(difference[::-1])[::-1][centre:]
    expected = np.log(tails[: math.ceil(25 / gamma)])
    np.testing.assert_allclose(
        laplace_log_tails(gamma, len(expected) - 1), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("sigma", [1.5, 3.0, 20.0])
@pytest.mark.parametrize("threshold", [0, 7, 12])
def test_threshold_and_stability_bits_cost_exactly_what_they_leak(
    sigma: float, threshold: int
) -> None:
    pmf, teachers = gaussian_pmf(sigma), 12
    test = GaussianThreshold(sigma, threshold, low=0, high=teachers)
    stable = StabilityTest(sigma, threshold, high=teachers, delta=1e-6)
    passed = np.array([tail(pmf, threshold - v) for v in range(teachers + 1)])
    failed = np.array([tail(pmf, v - threshold + 1) for v in range(teachers + 1)])
    for v in range(teachers + 1):
        leak = np.zeros(len(ORDERS))
        for w in (v - 1, v + 1):
            if 0 <= w <= teachers:
                here = {("1", 0): passed[v], ("0", 0): failed[v]}
                there = {("1", 0): passed[w], ("0", 0): failed[w]}
                leak = np.maximum(leak, divergence(here, there))
        threshold_cost = data_dependent_rdp(test, np.array([[v, 0]]), ORDERS)[0]
        stable_cost = data_dependent_rdp(stable, np.array([[2 * v + 1, 0]]), ORDERS)[0]
        np.testing.assert_allclose(threshold_cost, leak, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(stable_cost, threshold_cost, rtol=1e-12)
        assert np.all(threshold_cost <= rdp(test, ORDERS) * (1 + 1e-9))


@pytest.mark.parametrize("votes", [(12, 0, 0), (9, 3, 0), (7, 4, 1), (4, 4, 4)])
@pytest.mark.parametrize("probabilities", [None, (0.6, 0.3, 0.1)])
def test_confident_and_interactive_queries_as_a_whole(
    votes: tuple[int, ...], probabilities: tuple[float, ...] | None
) -> None:
    """Adaptive composition: averaged over the bit, a query leaks at most its two steps."""
    spec: dict[str, Any] = {"threshold": 6, "sigma1": 4.0, "sigma2": 1.5}
    spec |= {"name": "confident_gnmax"} if probabilities is None else {"name": "interactive_gnmax"}
    if probabilities is not None:
        spec["confidence"] = 0.5
    events = build_mechanism(spec, teachers=12, classes=3).events()
    baselines = None
    if probabilities is not None:
        baselines = np.floor(12 * np.array([probabilities]) + 0.5).astype(np.int64)
    cost = data_dependent_rdp(events[VoteOutcome.ANSWERED], np.array([votes]), ORDERS, baselines)[0]
    test_only = data_dependent_rdp(
        events[VoteOutcome.ABSTAINED], np.array([votes]), ORDERS, baselines
    )
    assert np.all(test_only[0] < cost)
    here = law(spec, votes, probabilities)
    for other in neighbours(votes):
        leak = divergence(here, law(spec, other, probabilities))
        assert np.all(leak <= cost * (1 + 1e-9) + 1e-13)
