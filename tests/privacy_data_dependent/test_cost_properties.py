"""Properties of every data-dependent cost, and errors for malformed input."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.costs import ORDERS, data_dependent_rdp
from reference.local_sensitivity import (
    gaussian_curve,
)
from reference.sensitivity import Charged, noisy_max_sensitivity, secret_spend
from support.wording import refuses
from terrine_server.privacy import (
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    ParameterError,
    StabilityTest,
    rdp,
)
from terrine_server.privacy.published import FLOOR, gnmax_rdp, lnmax_rdp

MAX_VOTES = 400

sigmas = st.floats(0.5, 500)
gammas = st.floats(0.002, 20)
orders = st.floats(1.01, 1000)
histogram = st.lists(st.integers(0, MAX_VOTES // 5), min_size=2, max_size=5)
levels = st.floats(0, 1e6)


def events(teachers: int) -> st.SearchStrategy[CostEvent]:
    return st.one_of(
        sigmas.map(GaussianNoisyMax),
        gammas.map(LaplaceNoisyMax),
        st.builds(
            GaussianThreshold,
            sigmas,
            st.integers(0, teachers),
            low=st.just(0),
            high=st.just(teachers),
        ),
        st.builds(
            StabilityTest, sigmas, st.integers(1, teachers), st.just(teachers), st.just(1e-9)
        ),
    )


@given(events(MAX_VOTES), histogram, orders, st.randoms())
@settings(max_examples=100)
def test_costs_lie_between_nothing_and_the_worst_case(
    event: CostEvent, votes: list[int], order: float, shuffler: random.Random
) -> None:
    cost = data_dependent_rdp(event, np.array([votes]), order)
    assert cost.shape == (1, 1)
    assert 0 <= cost[0, 0] <= rdp(event, [order])[0] * (1 + 1e-9) + 1e-299
    shuffled = shuffler.sample(votes, len(votes))
    permuted = data_dependent_rdp(event, np.array([shuffled]), order)
    assert permuted[0, 0] == pytest.approx(cost[0, 0], rel=1e-9, abs=1e-300)


@given(levels, st.floats(0, 5), sigmas, gammas, orders)
@settings(max_examples=150)
def test_costs_grow_with_the_chance_of_a_wrong_winner(
    level: float, step: float, sigma: float, gamma: float, order: float
) -> None:
    for price, noise in ((gnmax_rdp, sigma), (lnmax_rdp, gamma)):
        likelier, rarer = price([-level, -level - step], noise, order)[:, 0]
        assert rarer <= likelier * (1 + 1e-9)


@given(histogram, histogram, st.sampled_from([1.5, 3.0, 20.0]), st.floats(0.5, 60))
@settings(max_examples=50)
def test_sensitivities_bound_and_grow(
    votes: list[int], other: list[int], order: float, sigma: float
) -> None:
    """They lie in [0, ceiling], grow with distance and do not depend on the order of classes."""
    size = min(len(votes), len(other))
    rows = np.array([votes[:size], votes[:size][::-1], other[:size]])
    for event in (GaussianNoisyMax(sigma), LaplaceNoisyMax(1 / sigma)):
        sensitivity = noisy_max_sensitivity(event, size, order)
        blocks = list(sensitivity.walk(rows))
        assert len(blocks) >= 1
        bounds = np.concatenate(blocks, axis=1)
        assert np.all(np.isfinite(bounds))
        assert np.all((bounds >= 0) & (bounds <= sensitivity.ceiling))
        assert np.all(np.diff(bounds, axis=1) >= -1e-12 * sensitivity.ceiling)
        np.testing.assert_array_equal(bounds[0], bounds[1])
        assert sensitivity.ceiling <= rdp(event, [order])[0] * (1 + 1e-9)


@pytest.mark.parametrize("order", [1.0, 0.5, -3.0, float("nan"), float("inf")])
def test_orders_must_exceed_one(order: float) -> None:
    votes = np.array([[3, 2]])
    for event in (GaussianNoisyMax(2.0), LaplaceNoisyMax(0.5)):
        with refuses(ParameterError, 1):
            data_dependent_rdp(event, votes, [2.0, order])
        with refuses(ParameterError, 1):
            secret_spend([Charged(event, votes)], teachers=5, order=order, beta=0.1)


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


def test_votes_must_be_those_of_the_teachers() -> None:
    event = GaussianNoisyMax(2.0)
    for votes in ([[3, 1]], [[0, 0]], [[6, 0]]):
        with refuses(ParameterError, 5):
            secret_spend([Charged(event, np.array(votes))], teachers=5, order=2.0, beta=0.1)
    test = GaussianThreshold(2.0, 3, low=0, high=5)
    with refuses(ParameterError, "cast"):
        data_dependent_rdp(test, np.array([[6, 0]]), 2.0)
    with refuses(ParameterError, "Baselines"):
        data_dependent_rdp(test, np.array([[3, 2]]), 2.0, np.array([[1, 2, 2]]))


@pytest.mark.parametrize("votes", [[5, 5], [0, 0], [0, 0, 0], [1, 0], [7, 7, 7], [0, 9, 9, 0]])
def test_tied_empty_and_lonely_votes_cost_the_worst_case(votes: list[int]) -> None:
    for event in (GaussianNoisyMax(3.0), LaplaceNoisyMax(0.2)):
        cost = data_dependent_rdp(event, np.array([votes]), ORDERS)[0]
        np.testing.assert_array_equal(cost, rdp(event, ORDERS))


def test_one_teacher() -> None:
    event = GaussianNoisyMax(3.0)
    votes = np.array([[0, 1], [1, 0]])
    spend = secret_spend([Charged(event, votes)], teachers=1, order=2.0, beta=0.1)
    assert spend.cost == pytest.approx(2 * 2 / 9)
    # With one teacher all votes cost the worst case, but the bound need not reflect that.
    assert FLOOR <= spend.smooth_sensitivity <= 2 * noisy_max_sensitivity(event, 2, 2.0).ceiling + 1


def test_unanimity_of_thousands_underflows_upwards() -> None:
    """q is far below the smallest double at [5000, 0], σ = 40; published code leaves the domain."""
    votes = np.array([[5000, 0], [0, 5000]])
    for event in (GaussianNoisyMax(40.0), GaussianNoisyMax(0.5), LaplaceNoisyMax(20.0)):
        cost = data_dependent_rdp(event, votes, [1.5, 14.0, 64.0])
        assert np.all((cost > 0) & (cost < 1e-100))
        spend = secret_spend([Charged(event, votes)], teachers=5000, order=14.0, beta=0.02)
        assert 0 < spend.cost < 1e-100
        assert np.isfinite(spend.smooth_sensitivity)


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
    assert secret_spend([], teachers=5, order=2.0, beta=0.1).cost == 0.0


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan")])
def test_beta_must_be_positive(beta: float) -> None:
    with refuses(ParameterError, "beta"):
        secret_spend([], teachers=5, order=2.0, beta=beta)


@pytest.mark.parametrize("sigma", [0.0, -1.0, 0.1, 1e9, float("nan")])
def test_noise_outside_the_proven_range_is_refused(sigma: float) -> None:
    with refuses(ParameterError, "sigma"):
        data_dependent_rdp(GaussianNoisyMax(sigma), np.array([[3, 2]]), 2.0)
    with refuses(ParameterError, "sigma"):
        gaussian_curve(sigma, 3, 2.0)
    with refuses(ParameterError, "sigma"):
        data_dependent_rdp(GaussianThreshold(sigma, 3, low=0, high=5), np.array([[3, 2]]), 2.0)
