"""Local and smooth sensitivities agree with the published reference code where it is right."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_ndtr

from reference.local_sensitivity import (
    BitSensitivity,
    NoisyMaxSensitivity,
    gaussian_curve,
)
from reference.sensitivity import smooth_sensitivity
from support.laws import full_walk
from terrine_server.privacy.published import BoundRelease, gnmax_rdp, gnss_rdp


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((shared_data / "pate_reference.json").read_text())
    return data


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


def test_where_the_worst_case_ends(golden: dict[str, Any]) -> None:
    for case in golden["own_gnmax_ss_params"]:
        sensitivity = NoisyMaxSensitivity(gaussian_curve(case["sigma"], case["m"], case["order"]))
        assert sensitivity.l0 == pytest.approx(case["L0"], rel=1e-9)
        assert sensitivity.l1 == pytest.approx(case["L1"], rel=1e-9)
        assert sensitivity.monotone == case["c6"]
        if case["c6"]:
            assert sensitivity.ceiling == pytest.approx(case["plateau"], rel=1e-9)
        else:
            assert case["plateau"] < sensitivity.ceiling < 1.03 * case["plateau"]


def test_threshold_sensitivities_are_the_running_maximum(golden: dict[str, Any]) -> None:
    for case in golden["smooth_sensitivity_threshold"]:
        top, n = max(case["votes"]), case["n"]
        sensitivity = BitSensitivity(published_threshold_cost(0, n, case))
        bounds = full_walk(sensitivity.walk(np.array([top])), n)[0]
        expected = np.array(case["own_ls_running_max"])
        np.testing.assert_allclose(bounds[: len(expected)], expected[: len(bounds)], rtol=1e-6)
        assert np.all(bounds >= np.array(case["ls_tfp_as_is"])[: len(bounds)] * (1 - 1e-6))


def published_threshold_cost(low: int, high: int, case: dict[str, Any]) -> NDArray[np.float64]:
    """P18's bound of the threshold's cost: Theorem 6 with σ = √2 σ₁ and q the rarer answer."""
    margins = (np.arange(low, high + 1) - case["threshold"]) / case["sigma1"]
    rarer = np.minimum(log_ndtr(margins), log_ndtr(-margins))
    return gnmax_rdp(rarer, math.sqrt(2) * case["sigma1"], case["order"])[:, 0]


def test_prices_of_publications(golden: dict[str, Any]) -> None:
    for case in golden["gnss"]:
        price = gnss_rdp(case["order"], case["beta"], case["sigma_ss"])
        assert price == pytest.approx(case["own_rdp_corrected"], rel=1e-9)
    for case in golden["own_gnss_ucb"]:
        publication = BoundRelease(case["order"], case["beta"], case["sigma_ss"], case["z"])
        assert publication.cost == pytest.approx(case["rdp"], rel=1e-9)


def test_a_few_values_without_the_shared_data() -> None:
    sensitivity = continuous(10.0, 2, 5.0)
    bounds = full_walk(sensitivity.walk(np.array([[90, 10]])), 3)[0]
    expected = [7.936623460243297e-08, 1.6058148072372797e-07, 3.1848194539972315e-07]
    np.testing.assert_allclose(bounds, expected, rtol=1e-7)
    assert sensitivity.ceiling == pytest.approx(0.009624956977781166, rel=1e-9)
    assert gnss_rdp(14, 0.0329, 6.23) == pytest.approx(1.6070558409164086, rel=1e-9)
    assert BoundRelease(6, 0.025, 31.2, 4.753424).cost == pytest.approx(0.09829753243649031, 1e-9)
