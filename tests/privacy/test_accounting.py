"""Prices and conversions agree with published values, other libraries and high precision."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri_exp

from support.laws import laplace_pmf, noisy_max_law
from support.reference.costs import ORDERS
from support.wording import refuses
from terrine_server.privacy import (
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    ParameterError,
    ReleasedCounts,
    StabilityTest,
    additive_delta,
    build_mechanism,
    epsilon_from_gdp,
    epsilon_from_rdp,
    event_from_json,
    gdp_budget,
    gdp_squared,
    rdp,
)
from terrine_server.privacy.curves import gdp_log_delta, shift_mu
from terrine_server.privacy.numbers import log_tails

Golden = dict[str, Any]


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> Golden:
    reference: Golden = json.loads((shared_data / "pate_reference.json").read_text())
    return reference


def exact_gdp_delta(epsilon: float, mu: mpmath.mpf) -> mpmath.mpf:
    """δ(ε) of μ-GDP with 60 digits (Dong, Roth & Su 2022, Corollary 1)."""
    e, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)

    def phi(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

    return phi(-e / mu + mu / 2) - mpmath.exp(e) * phi(-e / mu - mu / 2)


class TestPublishedFigures:
    def test_gaussian_noisy_max(self, golden: Golden) -> None:
        for case in golden["gnmax"]:
            price = rdp(GaussianNoisyMax(case["sigma"]), case["orders"])
            assert price == pytest.approx(case["rdp_data_independent"], rel=1e-9)

    def test_laplace_noisy_max(self, golden: Golden) -> None:
        for case in golden["lnmax"]:
            orders = np.array(case["moments_l"]) + 1
            price = rdp(LaplaceNoisyMax(case["gamma"]), orders)
            assert price == pytest.approx(case["own_pure_rdp_tight"], rel=1e-9)
            moments = price * case["moments_l"]
            assert np.all(moments <= np.array(case["logmgf_data_independent"]) * (1 + 1e-9))

    def test_threshold_is_cheaper_than_published_and_covers_every_exact_bit(
        self, golden: Golden
    ) -> None:
        for case in golden["threshold"]:
            v, threshold = case["max_count"], case["threshold"]
            if threshold % 1 or v % 1:
                continue  # our thresholds are whole votes
            published = np.array(case["rdp_data_independent"])
            event = GaussianThreshold(case["sigma1"], threshold, low=0, high=max(250, int(v) + 1))
            price = rdp(event, case["orders"])
            assert np.all(price <= published * (1 + 1e-9))
            # The reference bits have continuous noise: the same up to the lattice, 1/(12σ²).
            lattice = 1 + 1 / (2 * case["sigma1"] ** 2)
            exact = np.array(case["own_rdp_exact_bernoulli"])
            assert np.all(price * lattice >= exact * (1 - 1e-9))
            near = GaussianThreshold(case["sigma1"], threshold, low=int(v) - 1, high=int(v) + 1)
            if case["sigma1"] > 10:
                assert rdp(near, case["orders"]) == pytest.approx(exact, rel=0.06)

    def test_conversion_to_epsilon(self, golden: Golden) -> None:
        for case in golden["rdp_to_dp"]:
            orders = np.array(case["orders"])
            divergences = case["queries"] * rdp(GaussianNoisyMax(case["sigma"]), orders)
            epsilon = epsilon_from_rdp(divergences, orders, case["delta"])
            assert epsilon == pytest.approx(case["own_eps_improved"], rel=3e-9)
            assert epsilon >= case["eps_dp_accounting"]

    def test_immutable_costs_more_than_claimed_and_less_than_charged(self, golden: Golden) -> None:
        for case in golden["immutable_laplace"]:
            gamma, c = case["gamma"], case["c"]

            def worse(gap: int, gamma: float = gamma) -> float:
                """Pr[L2 − L1 ≥ gap] for continuous Laplace noise (P17, Lemma 4)."""
                return (2 + gamma * gap) / 4 * math.exp(-gamma * gap)

            odd = math.log((1 - worse(c + 1)) / worse(c + 1))
            even = math.log((1 - worse(c)) / worse(c + 2))
            assert odd == pytest.approx(case["own_eps_true_m2_odd_n"], rel=1e-9)
            assert even == pytest.approx(case["own_eps_true_m2_even_n"], rel=1e-9)

            # The same two votes with the noise that is really drawn.
            here = noisy_max_law([3 + c, 2], laplace_pmf(gamma))
            there = noisy_max_law([2, 3 + c], laplace_pmf(gamma))
            discrete = math.log(here[0] / there[0])
            spec = {"name": "immutable", "c": c, "gamma": gamma}
            honest = build_mechanism(spec, teachers=5, classes=2)
            (event,) = honest.events().values()
            assert event == LaplaceNoisyMax(gamma, shift=1 + c)
            charged = float(rdp(event, 1e9))
            assert charged == pytest.approx(case["own_safe_upper_bound"], rel=1e-6)
            assert discrete <= charged
            assert (case["claimed_eps"] < discrete) == (c > 0), "with c = 0 it is plain LNMax"

    @pytest.mark.parametrize(("epsilon", "queries"), [(1, 57), (2, 201), (4, 684)])
    def test_gaussian_budget_buys_the_queries_the_design_promises(
        self, epsilon: float, queries: int
    ) -> None:
        assert int(gdp_budget(epsilon, 1e-5) / gdp_squared(GaussianNoisyMax(40.0))) == queries


class TestGaussianDP:
    @pytest.mark.parametrize("epsilon", [1e-3, 0.03, 0.5, 1, 4, 20, 100])
    @pytest.mark.parametrize("delta", [0.5, 1e-2, 1e-5, 1e-9, 1e-18, 1e-60])
    def test_budget_is_just_below_the_exact_root(self, epsilon: float, delta: float) -> None:
        with mpmath.workdps(120):
            mu_squared = mpmath.mpf(gdp_budget(epsilon, delta))
            assert exact_gdp_delta(epsilon, mpmath.sqrt(mu_squared)) <= delta
            assert exact_gdp_delta(epsilon, mpmath.sqrt(mu_squared * (1 + 3e-9))) > delta

    @pytest.mark.parametrize("mu_squared", [1e-9, 1e-6, 1e-3, 0.1, 1, 10, 100])
    @pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9, 1e-18])
    def test_epsilon_is_never_understated(self, mu_squared: float, delta: float) -> None:
        epsilon = epsilon_from_gdp(mu_squared, delta)
        with mpmath.workdps(120):
            mu = mpmath.sqrt(mpmath.mpf(mu_squared))
            assert exact_gdp_delta(epsilon, mu) <= delta
            if epsilon > 0:
                assert exact_gdp_delta(epsilon * (1 - 3e-9) - 1e-14, mu) > delta

    @pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1, 1e-5), (4, 1e-5), (8, 1e-9)])
    def test_budget_agrees_with_dp_accounting(self, epsilon: float, delta: float) -> None:
        mu = math.sqrt(gdp_budget(epsilon, delta))
        assert dp_accounting.get_epsilon_gaussian(1 / mu, delta) == pytest.approx(epsilon, rel=1e-6)
        queries = 16
        one = {"standard_deviation": math.sqrt(queries) / mu, "value_discretization_interval": 1e-3}
        low, high = (
            pld.from_gaussian_mechanism(**one, pessimistic_estimate=pessimistic)
            .self_compose(queries)
            .get_delta_for_epsilon(epsilon)
            for pessimistic in (False, True)
        )
        assert low <= delta * (1 + 1e-6)
        assert high == pytest.approx(delta, rel=0.02)

    def test_composed_discrete_gaussians_stay_below_the_budget(self) -> None:
        """dp-accounting's privacy loss of the discrete noise itself, compared with our μ²."""
        sigma, queries, epsilon = 3.0, 12, 4.0
        loss = pld.from_discrete_gaussian_mechanism(
            sigma=sigma, sensitivity=1, value_discretization_interval=1e-3
        ).self_compose(queries)
        ours = math.exp(gdp_log_delta(epsilon, math.sqrt(queries) * shift_mu(sigma)))
        theirs = loss.get_delta_for_epsilon(epsilon)
        assert theirs <= ours * 1.02
        assert theirs >= ours * 0.8, "the price is not needlessly large"

    @pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 80.0])
    def test_pure_dp_lies_above_its_gaussian_curve_and_touches_it(self, epsilon: float) -> None:
        mu_squared = gdp_squared(LaplaceNoisyMax(epsilon / 2))
        with mpmath.workdps(80):
            mu = mpmath.sqrt(mpmath.mpf(mu_squared))
            corner = 1 / (1 + mpmath.exp(mpmath.mpf(epsilon)))
            z = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * corner)
            assert abs(mu / (2 * z) - 1) < 1e-12

    def test_nothing_spent_is_nothing_and_a_delta_that_is_no_probability_is_refused(self) -> None:
        assert epsilon_from_gdp(0.0, 1e-5) == 0.0
        for delta in (0.0, 1.0, -0.1, float("nan")):
            for convert in (gdp_budget, epsilon_from_gdp):
                with refuses(ParameterError, "delta"):
                    convert(1.0, delta)


class TestDiscreteGaussianShift:
    @pytest.mark.parametrize("sigma", [0.5, 0.77, 1, 2, 5, 10, 40, 1500.5, 1e4])
    def test_mu_is_the_exact_central_step_rounded_up(self, sigma: float) -> None:
        with mpmath.workdps(60):
            # 1/Pr[Y = 0] by Poisson summation, independent of the table.
            wave = mpmath.exp(-2 * (mpmath.pi * sigma) ** 2)
            weight = 1 + 2 * mpmath.fsum(wave ** (k * k) for k in range(1, 12))
            weight *= sigma * mpmath.sqrt(2 * mpmath.pi)
            exact = 2 * mpmath.sqrt(2) * mpmath.erfinv(1 / weight)
            assert 0 <= shift_mu(sigma) / exact - 1 < 2e-14

    @pytest.mark.slow
    @settings(max_examples=10)
    @given(st.floats(0.5, 60))
    def test_the_central_step_is_the_widest_for_any_sigma(self, sigma: float) -> None:
        # shift_mu raises ArithmeticError otherwise; this is the same check with independent tails.
        mu = shift_mu(sigma)
        with mpmath.workdps(30):
            tails = np.exp(log_tails(sigma, np.arange(1, int(6 * sigma) + 2)))
            z = [mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(float(t))) for t in tails]
            widest = max(b - a for a, b in zip([-z[0], *z], z, strict=False))
        assert widest <= mu * (1 + 1e-9)

    @pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 3.0, 40.0, 1000.0])
    def test_no_step_is_wider_where_the_table_ends(self, sigma: float) -> None:
        """Down to tails of e⁻⁵⁰⁰, which matter where a number moves by many σ."""
        k = np.arange(1.0, 34 * sigma + 2)
        weights = -(k**2) / (2 * sigma**2)
        far = np.logaddexp.accumulate(weights[::-1])[::-1]
        tails = far - np.logaddexp(0.0, far[0] + math.log(2))
        z = -ndtri_exp(tails[tails > -500])
        assert np.diff(z, prepend=-z[0]).max() <= shift_mu(sigma) * (1 + 1e-9)

    @pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
    @pytest.mark.parametrize("moved", [(5, 0), (0, -5), (3, 4), (-2, 1)])
    def test_numbers_that_are_released_reveal_no_more_than_they_cost(
        self, sigma: float, moved: tuple[int, int]
    ) -> None:
        """By all pairs of numbers, of which those that a person moves are 5 apart at most."""
        event = ReleasedCounts(sigma, squared=25)
        values = np.arange(-int(20 * sigma) - 20, int(20 * sigma) + 21.0)
        log = -(values**2) / (2 * sigma**2)
        log -= np.logaddexp.reduce(log)
        shifted = [-((values - by) ** 2) / (2 * sigma**2) for by in moved]
        p = log[:, None] + log
        q = np.add.outer(*(each - np.logaddexp.reduce(each) for each in shifted))
        mu = math.sqrt(gdp_squared(event))
        for epsilon in (0.0, 0.5, 2.0, 8.0):
            told = float(np.clip(np.exp(p) - np.exp(epsilon + q), 0, None).sum())
            assert told <= math.exp(gdp_log_delta(epsilon, mu)) * (1 + 1e-9)
        for order in (1.5, 2.0, 8.0):
            divergence = np.logaddexp.reduce((order * p + (1 - order) * q).ravel()) / (order - 1)
            assert divergence <= float(rdp(event, order)) * (1 + 1e-9)


class TestRenyi:
    @pytest.mark.parametrize("sigma", [150.0, 10_000.0])
    def test_the_price_of_a_bit_is_not_understated_where_rounding_is_coarse(
        self, sigma: float
    ) -> None:
        orders = [1.05, 2.0, 32.0]
        price = rdp(GaussianThreshold(sigma, 500, 0, 1000), orders)
        with mpmath.workdps(50):
            half = 1 / (2 * sigma * mpmath.sqrt(2 * mpmath.pi))  # (1 − Pr[Y = 0])/2 is 1/2 − half
            p, q = mpmath.mpf(1) / 2 + half, mpmath.mpf(1) / 2 - half
            for order, ours in zip(orders, price, strict=True):
                a = mpmath.mpf(order)
                exact = mpmath.log(p**a * q ** (1 - a) + q**a * p ** (1 - a)) / (a - 1)
                assert exact <= ours <= order / (2 * sigma**2)

    def test_conversion_agrees_with_dp_accounting(self) -> None:
        accountant = dp_accounting.rdp.RdpAccountant(orders=list(ORDERS))
        accountant.compose(dp_accounting.GaussianDpEvent(7.0), 30)
        divergences = 30 * rdp(GaussianNoisyMax(7.0), ORDERS) / 2
        ours = epsilon_from_rdp(divergences, ORDERS, 1e-6)
        assert ours == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-9)
        assert ours >= accountant.get_epsilon(1e-6)

    @given(st.floats(1e-4, 200), st.floats(1.01, 1e6))
    def test_pure_dp_curve_is_randomised_response(self, epsilon: float, order: float) -> None:
        ours = float(rdp(LaplaceNoisyMax(epsilon / 2), order))
        with mpmath.workdps(60):
            e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
            p = 1 / (1 + mpmath.exp(-e))
            q = 1 / (1 + mpmath.exp(e))
            exact = mpmath.log(p**a * q ** (1 - a) + q**a * p ** (1 - a)) / (a - 1)
            assert abs(ours / exact - 1) < 1e-9
        assert ours <= min(epsilon, epsilon**2 * order / 2) * (1 + 1e-9)

    @given(
        st.floats(1, 40),
        st.integers(0, 60),
        st.integers(1, 60),
        st.lists(st.sampled_from(list(ORDERS)), min_size=1, max_size=4),
    )
    def test_a_bit_never_costs_more_than_the_whole_gaussian(
        self, sigma: float, threshold: int, high: int, orders: list[float]
    ) -> None:
        price = rdp(GaussianThreshold(sigma, threshold, 0, high), orders)
        assert np.all(price >= 0)
        assert np.all(price <= np.array(orders) / (2 * sigma**2) * (1 + 1e-9))


class TestEvents:
    EVENTS: tuple[CostEvent, ...] = (
        GaussianNoisyMax(40.0, shift=3),
        GaussianThreshold(150.0, 200, low=-250, high=250),
        StabilityTest(8.0, 51, 124, 1e-10),
        LaplaceNoisyMax(0.05, shift=2),
    )

    @pytest.mark.parametrize(
        "event", [*EVENTS, Composition(EVENTS)], ids=lambda e: type(e).__name__
    )
    def test_an_event_survives_a_round_trip_through_json(self, event: Any) -> None:
        assert event_from_json(json.loads(json.dumps(event.to_json()))) == event

    def test_a_composition_costs_the_sum_of_its_parts(self) -> None:
        whole = Composition(self.EVENTS)
        assert gdp_squared(whole) == pytest.approx(sum(map(gdp_squared, self.EVENTS)))
        assert rdp(whole, [2, 8]) == pytest.approx(sum(rdp(e, [2, 8]) for e in self.EVENTS))
        assert additive_delta(whole) == 1e-10

    @pytest.mark.parametrize(
        "data", [{}, {"event": "unknown"}, {"event": "published_claim"}, {"event": "composition"}]
    )
    def test_json_that_is_not_an_event_is_refused(self, data: dict[str, Any]) -> None:
        with refuses(ParameterError, "event"):
            event_from_json(data)
