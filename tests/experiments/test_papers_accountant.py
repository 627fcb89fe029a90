"""ε by the papers' own accountant: known values, an independent accountant, and exact curves."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from terrine_experiments.costs import ORDERS, papers_epsilon, published_rdp
from terrine_server.privacy import (
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    StabilityTest,
    rdp,
)

NOISY_MAX = GaussianNoisyMax(40.0)
TEST = GaussianThreshold(150.0, 200, 0, 250)
EVENTS = st.one_of(
    st.builds(GaussianNoisyMax, st.floats(2, 200)),
    st.builds(LaplaceNoisyMax, st.floats(0.005, 0.5)),
    st.builds(
        lambda sigma, share: GaussianThreshold(sigma, round(100 * share), 0, 100),
        st.floats(2, 100),
        st.floats(0, 1),
    ),
    st.builds(lambda sigma: StabilityTest(sigma, 40, 124, 1e-9), st.floats(2, 60)),
)


@settings(max_examples=15)
@given(EVENTS)
def test_published_curves_are_never_below_the_exact_ones(event: CostEvent) -> None:
    assert np.all(published_rdp(event, ORDERS) >= rdp(event, ORDERS) * (1 - 1e-6))


def test_p18s_own_transcript_has_the_known_worst_case() -> None:
    tally: dict[CostEvent, int] = {
        TEST: 354,
        Composition((TEST, NOISY_MAX)): 286,
    }  # 640 queries, 286 answered
    assert papers_epsilon(tally, 1e-5) == pytest.approx(3.17, abs=0.005)


@pytest.mark.parametrize(("epsilon", "queries"), [(1, 33), (2, 128), (4, 476)])
def test_gnmax_at_sigma_40_buys_the_known_number(epsilon: float, queries: int) -> None:
    delta = 1e-5 / 0.999  # all of 1e-5 is for the conversion then
    assert papers_epsilon({NOISY_MAX: queries}, delta) <= epsilon
    assert papers_epsilon({NOISY_MAX: queries + 1}, delta) > epsilon


@pytest.mark.parametrize("count", [10, 200, 1000])
def test_it_is_the_closed_form_and_never_below_a_better_conversion(count: int) -> None:
    # Curves count α/σ², Mironov's conversion: minimised over all real orders.
    linear, share = count / 40.0**2, math.log(1 / 0.999e-5)
    ours = papers_epsilon({NOISY_MAX: count}, 1e-5)
    assert ours == pytest.approx(linear + 2 * math.sqrt(linear * share), rel=1e-3)
    theirs = RdpAccountant(orders=ORDERS.tolist())
    # A noisy maximum moves two counts by one: like a Gaussian mechanism with noise σ/√2.
    gaussian = dp_accounting.GaussianDpEvent(40.0 / math.sqrt(2))
    theirs.compose(dp_accounting.SelfComposedDpEvent(gaussian, count))
    assert theirs.get_epsilon(1e-5) < ours
