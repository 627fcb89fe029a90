"""ε by the papers' own accountant: known values, an independent accountant, and the exact curve."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant

from terrine_experiments.costs import ORDERS, papers_epsilon
from terrine_server.privacy import GaussianNoisyCounts, rdp

SIGMA = 40.0


@pytest.mark.parametrize("sigma", [2.0, 13.0, 40.0, 200.0])
def test_the_published_curve_is_never_below_the_exact_one(sigma: float) -> None:
    exact = rdp(GaussianNoisyCounts(sigma), ORDERS)
    assert np.all(ORDERS / sigma**2 >= exact * (1 - 1e-6))


@pytest.mark.parametrize(("epsilon", "queries"), [(1, 33), (2, 128), (4, 476)])
def test_counts_at_sigma_40_buy_the_known_number(epsilon: float, queries: int) -> None:
    delta = 1e-5 / 0.999  # all of 1e-5 is for the conversion then
    assert papers_epsilon(queries, SIGMA, delta) <= epsilon
    assert papers_epsilon(queries + 1, SIGMA, delta) > epsilon


@pytest.mark.parametrize("count", [10, 200, 1000])
def test_it_is_the_closed_form_and_never_below_a_better_conversion(count: int) -> None:
    # Curves count α/σ², Mironov's conversion: minimised over all real orders.
    linear, share = count / SIGMA**2, math.log(1 / 0.999e-5)
    ours = papers_epsilon(count, SIGMA, 1e-5)
    assert ours == pytest.approx(linear + 2 * math.sqrt(linear * share), rel=1e-3)
    theirs = RdpAccountant(orders=ORDERS.tolist())
    # All counts of a changed vote move two by one: a Gaussian mechanism with noise σ/√2.
    gaussian = dp_accounting.GaussianDpEvent(SIGMA / math.sqrt(2))
    theirs.compose(dp_accounting.SelfComposedDpEvent(gaussian, count))
    assert theirs.get_epsilon(1e-5) < ours
