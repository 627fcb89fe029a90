"""Accounting methods side by side: published values, other accountants, and their order."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from terrine_experiments.accountants import (
    FINE_ORDERS,
    Accountant,
    Method,
    accountants,
    conversion_delta,
    enforced,
    published_rdp,
    reprice,
)
from terrine_server.privacy import (
    Account,
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    ParameterError,
    StabilityTest,
    WithinEpoch,
    build_mechanism,
    quote,
)

NOISY_MAX = GaussianNoisyMax(40.0)
TEST = GaussianThreshold(150.0, 200, 0, 250)
ANSWER = Composition((TEST, NOISY_MAX))


def queries(event: CostEvent, epsilon: float, delta: float) -> dict[Method, int]:
    """How many queries each method buys if all of δ is for the conversion."""
    fixed = accountants([event], delta / conversion_delta([event], 1.0), epsilon)
    return {each.method: each.queries({event: 1.0}, epsilon) for each in fixed}


@pytest.mark.parametrize(
    ("epsilon", "gdp", "improved", "classic"),
    [(1, 57, 48, 33), (2, 201, 173, 128), (4, 684, 597, 476)],
)
def test_gnmax_at_sigma_40_gives_the_known_values(
    epsilon: float, gdp: int, improved: int, classic: int
) -> None:
    bought = queries(NOISY_MAX, epsilon, 1e-5)
    assert bought[Method.GDP] == gdp
    assert bought[Method.CLASSIC] == classic
    # 400 orders come within a query of the continuous optimum.
    assert improved - 1 <= bought[Method.IMPROVED] <= improved


def test_a_project_converts_with_999_permille_of_delta() -> None:
    assert conversion_delta([NOISY_MAX], 1e-5) == pytest.approx(0.999e-5, rel=1e-12)
    stable = StabilityTest(8.0, 51, 124, 1e-10)
    assert conversion_delta([stable], 1e-5) == pytest.approx(0.949e-5, rel=1e-12)
    mechanism = build_mechanism({"name": "gnmax", "sigma": 40.0}, teachers=250, classes=10)
    terms = quote(mechanism, 2.0, 1e-5)
    assert terms.split.conversion == pytest.approx(conversion_delta([NOISY_MAX], 1e-5), rel=1e-12)
    assert terms.affordable(Account()) == 201  # the same number at 99.9 % of δ


def test_improved_rdp_agrees_with_an_independent_accountant() -> None:
    for count in (10, 200, 1000):
        # A noisy maximum moves two counts by one: like a Gaussian mechanism with noise σ/√2.
        gaussian = dp_accounting.GaussianDpEvent(40.0 / math.sqrt(2))
        theirs = RdpAccountant(orders=FINE_ORDERS.tolist())
        theirs.compose(dp_accounting.SelfComposedDpEvent(gaussian, count))
        ours = Accountant(Method.IMPROVED, 1e-5)
        epsilon = ours.epsilon(ours.total({NOISY_MAX: count}))
        assert epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-6)


def test_gdp_agrees_with_an_independent_accountant() -> None:
    event = GaussianNoisyMax(100.0)
    theirs = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
    gaussian = dp_accounting.GaussianDpEvent(100.0 / math.sqrt(2))
    theirs.compose(dp_accounting.SelfComposedDpEvent(gaussian, 500))
    ours = Accountant(Method.GDP, 1e-5)
    assert ours.epsilon(ours.total({event: 500})) == pytest.approx(
        theirs.get_epsilon(1e-5), rel=1e-2
    )


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
@given(EVENTS, st.integers(1, 300), st.floats(0.2, 8), st.sampled_from([1e-5, 1e-8]))
def test_every_method_charges_more_for_more_queries_and_buys_more_with_more(
    event: CostEvent, count: int, epsilon: float, delta: float
) -> None:
    for each in accountants([event], delta, epsilon):
        one, two = each.epsilon(each.total({event: count})), each.total({event: 2 * count})
        assert 0 <= one <= each.epsilon(two)
        assert each.queries({event: 1.0}, epsilon) <= each.queries({event: 1.0}, 2 * epsilon)
        # The queries that ε buys cost no more than ε, and one query more costs at least ε.
        bought = each.queries({event: 1.0}, epsilon)
        if bought:
            assert each.epsilon(each.total({event: bought})) <= epsilon * (1 + 1e-6)
        assert each.epsilon(each.total({event: bought + 1})) >= epsilon * (1 - 1e-6)


@settings(max_examples=15)
@given(EVENTS)
def test_published_curves_are_never_below_the_exact_ones(event: CostEvent) -> None:
    exact = Accountant(Method.IMPROVED, 1e-5).cost(event)
    assert np.all(published_rdp(event, FINE_ORDERS) >= exact * (1 - 1e-6))


@settings(max_examples=10)
@given(EVENTS, st.integers(1, 200))
def test_the_classic_conversion_is_never_the_cheaper_one(event: CostEvent, count: int) -> None:
    by_method = {each.method: each for each in accountants([event], 1e-5, 2.0)}
    classic, improved = by_method[Method.CLASSIC], by_method[Method.IMPROVED]
    assert classic.epsilon(classic.total({event: count})) >= (
        improved.epsilon(improved.total({event: count})) * (1 - 1e-9)
    )


def test_the_fixed_order_never_buys_more_than_the_best_one_afterwards() -> None:
    shares: dict[CostEvent, float] = {TEST: 0.6, ANSWER: 0.4}
    by_method = {e.method: e.queries(shares, 2.0) for e in accountants(shares, 1e-5, 2.0)}
    assert 0 < by_method[Method.FIXED_ORDER] <= by_method[Method.IMPROVED]
    assert by_method[Method.CLASSIC] < by_method[Method.IMPROVED]


def test_pure_composition_is_offered_for_pure_events_only() -> None:
    laplace = LaplaceNoisyMax(0.05)
    by_method = {each.method: each for each in accountants([laplace], 1e-5, 1.0)}
    assert by_method[Method.BASIC].queries({laplace: 1.0}, 1.0) == 10
    assert Method.BASIC not in {each.method for each in accountants([TEST, ANSWER], 1e-5, 1.0)}


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "gnmax", "sigma": 40.0},
        {"name": "noisy_votes", "sigma": 40.0},
        {"name": "confident_gnmax", "threshold": 200, "sigma1": 150.0, "sigma2": 40.0},
        {"name": "lnmax", "gamma": 0.05},
        {"name": "stable", "sigma": 8.0, "delta_per_query": 1e-10},
        {"name": "immutable", "c": 1, "gamma": 0.02},
    ],
    ids=lambda spec: "-".join(map(str, spec.values())),
)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_enforced_rule_gives_what_a_project_really_affords(
    spec: dict[str, object], epsilon: float
) -> None:
    mechanism = build_mechanism(spec, teachers=250, classes=10)
    terms = quote(mechanism, epsilon, 1e-5)
    events = list(mechanism.events().values())
    binding = enforced(events, 1e-5, epsilon)
    assert (binding.method is Method.GDP) == (terms.rule.name == "gdp")
    assert binding.order == terms.rule.order
    most_expensive = max(events, key=lambda event: float(binding.cost(event)[0]))
    by_cost = terms.budget // terms.worst.cost
    # Prices are rounded up and budgets down by a billionth: at most one query of difference.
    assert 0 <= binding.queries({most_expensive: 1.0}, epsilon) - by_cost <= 1


@pytest.mark.parametrize("epsilon", [0.2, 0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-5, 1e-6, 1e-8])
def test_planning_and_opening_choose_the_same_rule_for_laplace_noise(
    epsilon: float, delta: float
) -> None:
    for gamma in (0.005, 0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.25, 0.4, 0.5, 1.0):
        lnmax = build_mechanism({"name": "lnmax", "gamma": gamma}, teachers=1000, classes=10)
        (event,) = lnmax.events().values()
        planned = enforced([event], delta, epsilon)
        try:
            terms = quote(lnmax, epsilon, delta)
        except ParameterError:
            assert planned.queries({event: 1.0}, epsilon) == 0
            continue
        assert planned.order == terms.rule.order
        assert planned.queries({event: 1.0}, epsilon) == terms.budget // terms.worst.cost


def test_repricing_needs_charges_and_a_valid_delta() -> None:
    with refuses(ParameterError, "charged"):
        reprice({}, 1e-5, 2.0)
    with refuses(ParameterError, "delta", 2):
        reprice({NOISY_MAX: 3}, 2.0, 2.0)
    with refuses(ParameterError, "charged"):
        reprice({WithinEpoch(): 3}, 1e-5, 2.0)


def test_repricing_p18s_own_transcript_gives_the_known_worst_case() -> None:
    # 640 queries, 286 answered, σ1 = 150, σ2 = 40: ε ≈ 2.54 at δ = 1e-5 under GDP.
    lines = {line.method: line for line in reprice({TEST: 354, ANSWER: 286}, 1e-5, 2.54)}
    assert lines[Method.GDP].epsilon == pytest.approx(2.54, abs=0.01)
    assert (
        lines[Method.GDP].epsilon < lines[Method.IMPROVED].epsilon < lines[Method.CLASSIC].epsilon
    )
    assert lines[Method.GDP].sound
    assert not lines[Method.IMPROVED].sound
