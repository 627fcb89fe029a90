"""Costs and sensitivities agree with the published reference code and with high precision."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_ndtr

from support.laws import full_walk
from support.reference.costs import gnmax_log_q, lnmax_log_q
from support.reference.local_sensitivity import NoisyMaxSensitivity, gaussian_curve
from support.reference.sensitivity import smooth_sensitivity
from terrine_server.privacy.numbers import MARGIN, bit_rdp
from terrine_server.privacy.published import (
    BoundRelease,
    gnmax_rdp,
    gnss_rdp,
    laplace_log_tails,
    lnmax_rdp,
    noisy_max_order,
)

RTOL = 1e-9


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((shared_data / "pate_reference.json").read_text())
    return data


def test_gnmax_costs_of_the_reference_code(golden: dict[str, Any]) -> None:
    for case in golden["gnmax"]:
        log_q = gnmax_log_q(np.array([case["votes"]]), case["sigma"], lattice=0)
        assert log_q[0] == pytest.approx(case["logq"], rel=RTOL)
        cost = gnmax_rdp(log_q, case["sigma"], case["orders"])[0]
        np.testing.assert_allclose(cost, case["rdp_data_dependent"], rtol=RTOL, atol=1e-290)
        assert noisy_max_order(case["sigma"]) == pytest.approx(case["own_mu_star"], rel=RTOL)


def test_gnmax_costs_of_very_strong_consensus(golden: dict[str, Any]) -> None:
    for case in golden["gnmax_from_logq"]:
        cost = gnmax_rdp([case["logq"]], case["sigma"], [case["order"]])[0, 0]
        assert cost == pytest.approx(case["rdp"], rel=RTOL, abs=1e-299)
    for case in golden["high_precision_gnmax"]:
        log_q = gnmax_log_q(np.array([case["votes"]]), case["sigma"], lattice=0)
        cost = gnmax_rdp(log_q, case["sigma"], [case["order"]])[0, 0]
        assert cost == pytest.approx(float(case["rdp_thm3_50digits"]), rel=RTOL)


def test_exact_costs_of_threshold_bits(golden: dict[str, Any]) -> None:
    for case in golden["threshold"]:
        middle = int(case["max_count"])
        values = np.arange(middle - 1, middle + 2)
        margin = (values - case["threshold"]) / case["sigma1"]
        cost = bit_rdp(log_ndtr(margin), log_ndtr(-margin), case["orders"])[:, 1]
        np.testing.assert_allclose(cost, case["own_rdp_exact_bernoulli"], rtol=RTOL)
        assert np.all(cost <= np.array(case["rdp_data_dependent_thm3"]) * (1 + RTOL))


def test_exact_costs_of_stability_tests(golden: dict[str, Any]) -> None:
    for case in golden["own_stable_ptr"]:
        values = np.arange(case["d"] - 1 if case["d"] else 0, case["d"] + 2)
        margin = (values - case["w"]) / case["sigma_d"]
        cost = bit_rdp(log_ndtr(margin), log_ndtr(-margin), [case["order"]])[0]
        at = np.flatnonzero(values == case["d"])[0]
        assert cost[at] == pytest.approx(case["rdp_exact_bernoulli"], rel=RTOL)


def lemma4_log_q(votes: np.ndarray[Any, Any], gamma: float) -> float:
    """P17's Lemma 4, for continuous Laplace noise."""
    ranked = np.sort(votes)[::-1]
    x = gamma * (ranked[0] - ranked[1:])
    log_terms = np.log((2 + x) / 4) - x
    return float(min(np.logaddexp.reduce(log_terms), np.log1p(-1 / len(votes))))


def test_lnmax_costs_of_the_reference_code(golden: dict[str, Any]) -> None:
    for case in golden["lnmax"]:
        log_q = lemma4_log_q(np.array(case["votes"]), case["gamma"])
        assert log_q == pytest.approx(case["logq_2018"], rel=RTOL)
        orders = np.array(case["moments_l"]) + 1
        cost = lnmax_rdp([log_q], case["gamma"], orders)[0]
        np.testing.assert_allclose(cost, case["own_rdp_tight"], rtol=RTOL)
        published = np.array(case["rdp_pure_eps_2018"])
        assert np.all(cost <= published * (1 + RTOL))


def test_the_discrete_laplace_tail_is_heavier_than_lemma_4() -> None:
    for gamma, at_least in ((0.05, 1.016), (0.3, 1.11)):
        discrete = np.exp(laplace_log_tails(gamma, 20)[20])
        continuous = (2 + 20 * gamma) / 4 * np.exp(-20 * gamma)
        assert discrete / continuous > at_least
    votes = np.array([[30, 10]])
    assert lnmax_log_q(votes, 0.3)[0] > lemma4_log_q(votes[0], 0.3)


@pytest.mark.parametrize("sigma", [0.5, 2.0, 40.0, 1000.0])
@pytest.mark.parametrize("order", [1.05, 2.0, 14.0, 200.0])
def test_gnmax_costs_are_rounded_up_but_hardly(sigma: float, order: float) -> None:
    start = max(noisy_max_order(sigma), order - 1) ** 2 / sigma**2
    levels = start + np.geomspace(1e-3, 600, 40)
    costs = gnmax_rdp(-levels, sigma, order)[:, 0]
    with mpmath.workdps(400):
        for level, cost in zip(levels, costs, strict=True):
            exact = _theorem6(mpmath.mpf(float(level)), mpmath.mpf(sigma), mpmath.mpf(order))
            exact = min(exact, mpmath.mpf(order) / mpmath.mpf(sigma) ** 2)
            assert exact * (1 - 1e-15) <= cost <= exact * (1 + 2 * MARGIN) + 2e-300


def _theorem6(level: mpmath.mpf, sigma: mpmath.mpf, order: mpmath.mpf) -> mpmath.mpf:
    """P18's Theorem 6 as stated, with the orders of its Prop. 10."""
    q, mu2 = mpmath.exp(-level), sigma * mpmath.sqrt(level)
    mu1 = mu2 + 1
    eps1, eps2 = mu1 / sigma**2, mu2 / sigma**2
    a = (1 - q) / (1 - (q * mpmath.exp(eps2)) ** ((mu2 - 1) / mu2))
    b = mpmath.exp(eps1) / q ** (1 / (mu1 - 1))
    return mpmath.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)


@pytest.mark.parametrize("sigma", [1.0, 40.0, 1500.0])
@pytest.mark.parametrize("order", [1.05, 14.0, 200.0])
def test_bit_costs_are_rounded_up_but_hardly(sigma: float, order: float) -> None:
    """Two values of the statistic, each with one neighbour, from certain to impossible."""
    with mpmath.workdps(400):
        for deviations in (-30.0, -8.0, -1.0, 0.0, 0.3, 2.0, 9.0, 30.0):
            x = np.array([deviations, deviations + 1 / sigma])
            cost = bit_rdp(log_ndtr(x), log_ndtr(-x), order)[0]
            p = [mpmath.ncdf(mpmath.mpf(float(v))) for v in x]
            for here, there in ((0, 1), (1, 0)):
                terms = p[here] ** order * p[there] ** (1 - order)
                terms += (1 - p[here]) ** order * (1 - p[there]) ** (1 - order)
                exact = mpmath.log(terms) / (mpmath.mpf(order) - 1)
                assert exact <= cost[here] <= exact * (1 + 1e-8) + 2e-300


# ------------------------------------------------------------------- sensitivities


def continuous(sigma: float, classes: int, order: float) -> NoisyMaxSensitivity:
    """The paper's GNMax, with continuous noise."""

    def log_tails(largest: int) -> NDArray[np.float64]:
        return np.asarray(log_ndtr(-np.arange(largest + 1) / (math.sqrt(2) * sigma)))

    return NoisyMaxSensitivity(replace(gaussian_curve(sigma, classes, order), log_tails=log_tails))


def test_gnmax_sensitivities_of_the_reference_code(golden: dict[str, Any]) -> None:
    usable = [case for case in golden["smooth_sensitivity_gnmax"] if case["usable_as_golden"]]
    assert len(usable) >= 11
    for case in usable:
        votes = np.array([case["votes"]])
        sensitivity = continuous(case["sigma"], votes.shape[1], case["order"])
        assert sensitivity.l0 == pytest.approx(-case["logq0"], rel=1e-9)
        assert sensitivity.l1 == pytest.approx(-case["logq1"], rel=1e-9)
        bounds = full_walk(sensitivity.walk(votes), case["n"])[0]
        expected = case["ls"]
        if isinstance(expected, dict):
            assert bounds[-1] == pytest.approx(expected["last"], rel=1e-7)
            expected = expected["first_60"]
        np.testing.assert_allclose(bounds[: len(expected)], expected, rtol=1e-7, atol=1e-18)
        for beta, value in case["smooth_sensitivity"].items():
            smooth = smooth_sensitivity(sensitivity.walk(votes), sensitivity.ceiling, float(beta))
            assert smooth[0] == pytest.approx(value, rel=1e-7)


def test_prices_of_publications(golden: dict[str, Any]) -> None:
    for case in golden["gnss"]:
        price = gnss_rdp(case["order"], case["beta"], case["sigma_ss"])
        assert price == pytest.approx(case["own_rdp_corrected"], rel=1e-9)
    for case in golden["own_gnss_ucb"]:
        publication = BoundRelease(case["order"], case["beta"], case["sigma_ss"], case["z"])
        assert publication.cost == pytest.approx(case["rdp"], rel=1e-9)
