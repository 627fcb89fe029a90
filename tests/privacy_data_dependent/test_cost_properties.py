"""Properties of every data-dependent cost, and errors for malformed input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.reference.costs import ORDERS, data_dependent_rdp
from support.reference.sensitivity import Charged, secret_spend
from support.wording import refuses
from terrine_server.privacy import (
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    ParameterError,
    StabilityTest,
    rdp,
)
from terrine_server.privacy.published import FLOOR, gnmax_rdp, lnmax_rdp


@given(
    st.floats(0, 1e6),
    st.floats(0, 5),
    st.floats(0.5, 500),
    st.floats(0.002, 20),
    st.floats(1.01, 1000),
)
@settings(max_examples=150)
def test_costs_grow_with_the_chance_of_a_wrong_winner_up_to_the_worst_case(
    level: float, step: float, sigma: float, gamma: float, order: float
) -> None:
    for price, noise, event in (
        (gnmax_rdp, sigma, GaussianNoisyMax(sigma)),
        (lnmax_rdp, gamma, LaplaceNoisyMax(gamma)),
    ):
        likelier, rarer = price([-level, -level - step], noise, order)[:, 0]
        assert 0 <= rarer <= likelier * (1 + 1e-9)
        assert likelier <= rdp(event, [order])[0] * (1 + 1e-9) + 1e-299


@pytest.mark.parametrize("order", [1.0, 0.5, -3.0, float("nan"), float("inf")])
def test_orders_must_exceed_one(order: float) -> None:
    votes = np.array([[3, 2]])
    for event in (GaussianNoisyMax(2.0), LaplaceNoisyMax(0.5)):
        with refuses(ParameterError, 1):
            data_dependent_rdp(event, votes, [2.0, order])


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        ([[3, -1]], "negative"),
        ([[3.5, 1.5]], "integers"),
        ([[5]], "shape"),
        ([5, 0], "shape"),
        ([[]], "shape"),
    ],
)
def test_votes_must_be_counts(votes: list[object], message: str) -> None:
    with refuses(ParameterError, message) as refusal:
        data_dependent_rdp(GaussianNoisyMax(2.0), np.array(votes), 2.0)
    assert "3.5" not in str(refusal.value)


def test_baselines_are_those_of_the_votes() -> None:
    test = GaussianThreshold(2.0, 3, low=0, high=5)
    with refuses(ParameterError, "Baselines"):
        data_dependent_rdp(test, np.array([[3, 2]]), 2.0, np.array([[1, 2, 2]]))


@pytest.mark.parametrize("votes", [[5, 5], [0, 0], [0, 0, 0], [1, 0], [7, 7, 7], [0, 9, 9, 0]])
def test_tied_empty_and_lonely_votes_cost_the_worst_case(votes: list[int]) -> None:
    for event in (GaussianNoisyMax(3.0), LaplaceNoisyMax(0.2)):
        cost = data_dependent_rdp(event, np.array([votes]), ORDERS)[0]
        np.testing.assert_array_equal(cost, rdp(event, ORDERS))


def test_no_queries_cost_nothing() -> None:
    empty = np.zeros((0, 3), dtype=np.int64)
    for event in (
        GaussianNoisyMax(3.0),
        LaplaceNoisyMax(0.2),
        GaussianThreshold(2.0, 3, low=0, high=5),
        StabilityTest(2.0, 3, high=2, delta=1e-9),
    ):
        assert data_dependent_rdp(event, empty, ORDERS).shape == (0, len(ORDERS))
        spend = secret_spend([Charged(event, empty)], teachers=5, order=2.0, beta=0.1)
        assert (spend.cost, spend.smooth_sensitivity) == (0.0, FLOOR)
