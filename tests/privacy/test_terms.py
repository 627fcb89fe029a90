"""A project's terms: prices round up, budgets round down, and shares add up to at most δ."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.wording import refuses
from terrine_server.privacy import (
    Account,
    Mechanism,
    ParameterError,
    Rule,
    Terms,
    VoteOutcome,
    additive_delta,
    build_mechanism,
    cap,
    epsilon_from_gdp,
    epsilon_from_rdp,
    gdp_budget,
    gdp_squared,
    quote,
    rdp,
    rdp_budget,
)
from terrine_server.privacy.rules import search_order

Spec = Mapping[str, Any]
COST, DELTA = 10**12, 10**18

SPECS: list[Spec] = [
    {"name": "lnmax", "gamma": 0.05},
    {"name": "gnmax", "sigma": 40.0},
    {"name": "confident_gnmax", "threshold": 200, "sigma1": 150.0, "sigma2": 40.0},
    {
        "name": "interactive_gnmax",
        "threshold": 100,
        "sigma1": 60.0,
        "sigma2": 40.0,
        "confidence": 0.9,
    },
    {"name": "immutable", "c": 2, "gamma": 0.05},
    {"name": "immutable", "c": 2, "sigma": 40.0},
    {"name": "stable", "sigma": 8.0, "delta_per_query": 1e-10},
]
every_mechanism = pytest.mark.parametrize("spec", SPECS, ids=str)


def build(spec: Spec, teachers: int = 250) -> Mechanism:
    return build_mechanism(spec, teachers=teachers, classes=10)


@every_mechanism
def test_terms_survive_a_round_trip_through_json(spec: Spec) -> None:
    terms = quote(build(spec), 4.0, 1e-5)
    assert Terms.from_json(json.loads(json.dumps(terms.to_json()))) == terms


@every_mechanism
def test_a_project_has_one_rule(spec: Spec) -> None:
    terms = quote(build(spec), 4.0, 1e-5)
    laplace = "gamma" in spec
    assert terms.rule.name == ("rdp" if laplace else "gdp")
    assert (terms.rule.order is not None) == laplace


@every_mechanism
@given(epsilon=st.floats(2.5, 20), log_delta=st.floats(-25, -5))
@settings(max_examples=10)
def test_rounding_is_never_in_our_favour(spec: Spec, epsilon: float, log_delta: float) -> None:
    mechanism, delta = build(spec), 10 ** (log_delta / 2.5)
    try:
        terms = quote(mechanism, epsilon, delta)
    except ParameterError:
        assume(False)
        raise
    conversion = terms.split.conversion
    if terms.rule.order is None:
        available = Fraction(gdp_budget(epsilon, conversion))
    else:
        available = Fraction(float(rdp_budget(terms.rule.order, epsilon, conversion)))
    assert terms.budget <= available * COST
    assert terms.budget >= available * COST * (1 - Fraction(3, 10**9)) - 1
    priced = [(terms.prices[outcome], event) for outcome, event in mechanism.events().items()]
    for price, event in priced:
        exact = (
            gdp_squared(event) if terms.rule.order is None else float(rdp(event, terms.rule.order))
        )
        assert price.cost >= Fraction(exact) * COST
        assert price.cost <= Fraction(exact) * COST * (1 + Fraction(2, 10**9)) + 1
        assert price.cap_cost >= Fraction(gdp_squared(event)) * COST
        assert price.delta >= Fraction(additive_delta(event)) * DELTA + 1
    split = terms.split
    parts = (split.conversion, split.stability, split.publication, split.sampler)
    assert sum(map(Fraction, parts)) <= Fraction(delta)
    assert terms.delta_budget <= (Fraction(split.stability) + Fraction(split.sampler)) * DELTA


@every_mechanism
def test_the_affordable_queries_are_paid_in_full_and_not_one_more(spec: Spec) -> None:
    terms = quote(build(spec), 4.0, 1e-5)
    queries = terms.affordable(Account())
    worst = terms.worst
    assert queries >= 1
    assert queries * worst.cost <= terms.budget
    assert queries * worst.delta <= terms.delta_budget
    beyond = (queries + 1) * worst.cost > terms.budget
    assert beyond or (queries + 1) * worst.delta > terms.delta_budget
    for spent, delta_spent in [
        (queries * worst.cost, queries * worst.delta),
        (terms.budget, 0),
        (0, terms.delta_budget),
        (terms.budget + 5, terms.delta_budget + 5),
    ]:
        account = Account(spent, delta_spent)
        assert terms.affordable(account) == 0, "never negative"
        assert not terms.admits(account)


@every_mechanism
def test_spent_epsilon_grows_from_zero_to_the_budget(spec: Spec) -> None:
    terms = quote(build(spec), 4.0, 1e-5)
    steps = [terms.epsilon_spent(terms.budget * i // 20) for i in range(21)]
    assert steps[0] == 0
    assert steps == sorted(steps)
    assert 0 < steps[1] < 1.5
    assert steps[-1] <= terms.epsilon
    assert steps[-1] == pytest.approx(terms.epsilon, rel=0.05)


def test_epsilon_of_few_queries_is_that_of_as_many_whole_ones() -> None:
    """Their μ² converts better than the fixed order, but only a cap in Gaussian DP has it."""
    terms = quote(build(SPECS[0]), 4.0, 1e-5)
    price = terms.worst
    one, two = (epsilon_from_gdp(n * price.cap_cost / COST, terms.split.conversion) for n in (1, 2))
    assert terms.epsilon_spent(price.cost) == one
    assert terms.epsilon_spent(price.cost + 1) == terms.epsilon_spent(2 * price.cost) == two
    ordered = quote(build(SPECS[0]), 4.0, 1e-5, cap_rule=Rule("rdp", 8.0))
    assert ordered.rule.order is not None
    assert ordered.epsilon_spent(price.cost) == epsilon_from_rdp(
        [price.cost / COST], [ordered.rule.order], ordered.split.conversion
    )


@every_mechanism
def test_a_project_reserves_enough_of_the_cap_for_all_it_may_answer(spec: Spec) -> None:
    terms = quote(build(spec), 4.0, 1e-5)
    assert terms.cap_budget >= terms.affordable(Account()) * terms.worst.cap_cost
    if terms.rule.name == "gdp":
        assert terms.cap_budget == terms.budget
        assert all(price.cap_cost == price.cost for price in terms.prices.values())


@given(st.floats(0.1, 90), st.floats(1.0, 1.1), st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3]))
def test_more_epsilon_never_buys_less(epsilon: float, factor: float, delta: float) -> None:
    for spec in (SPECS[0], SPECS[2], SPECS[6]):
        try:
            less = quote(build(spec), epsilon, delta).affordable(Account())
        except ParameterError:
            less = 0
        if less:
            assert quote(build(spec), epsilon * factor, delta).affordable(Account()) >= less


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_an_order_that_takes_long_to_price_is_found_in_a_few_tries(
    epsilon: float, power: float
) -> None:
    delta, tried = 1e-5, list[float]()

    def cost(order: float) -> float:
        tried.append(order)
        return float(order**power)

    found = search_order(epsilon, delta, cost)
    assert len(tried) <= 40
    orders = np.geomspace(1.005, 1e7, 100_000)
    bought = rdp_budget(orders, epsilon, delta) / orders**power
    assert float(rdp_budget(found, epsilon, delta)) / found**power >= 0.995 * bought.max()


def test_terms_are_read_as_older_versions_wrote_them_and_never_without_a_price() -> None:
    terms = quote(build(SPECS[1]), 4.0, 1e-5)
    written = terms.to_json()
    assert Terms.from_json({**written, "opening": None}) == terms
    unknown = {"cost": 1, "delta": 1, "cap_cost": 1}
    with refuses(ValueError, "opening"):
        Terms.from_json({**written, "opening": unknown})
    with refuses(ValueError, "closing"):
        Terms.from_json({**written, "closing": unknown})
    with refuses(ValueError, "prices"):
        Terms.from_json({**written, "prices": {"answered": {**unknown, "more": 1}}})


def test_an_abstention_is_cheaper_than_an_answer() -> None:
    for spec in SPECS[2:4]:
        prices = quote(build(spec), 4.0, 1e-5).prices
        assert prices[VoteOutcome.ABSTAINED].cost < prices[VoteOutcome.ANSWERED].cost
        assert VoteOutcome.REINFORCED not in prices or (
            prices[VoteOutcome.REINFORCED] == prices[VoteOutcome.ABSTAINED]
        )


def test_only_stability_takes_a_twentieth_of_delta() -> None:
    stable = quote(build(SPECS[6]), 8.0, 1e-5).split
    assert stable.stability == pytest.approx(5e-7)
    assert quote(build(SPECS[1]), 8.0, 1e-5).split.stability == 0
    assert stable.sampler == pytest.approx(1e-8)
    assert stable.publication == 0


def test_a_cap_covers_one_project_of_its_own_size_only_with_room_for_its_deltas() -> None:
    ensemble = cap(4.0, 1e-5)
    assert ensemble.budget <= gdp_budget(4.0, 0.9e-5) * COST
    assert ensemble.delta_budget <= 1e-6 * DELTA
    project = quote(build(SPECS[1]), 3.9, 1e-5)
    assert project.cap_budget <= ensemble.budget
    assert project.delta_budget <= ensemble.delta_budget
    assert epsilon_from_gdp(ensemble.budget / COST, 0.9e-5) <= 4.0 * (1 + 1e-9)


def test_a_cap_of_a_single_unit_can_be_kept() -> None:
    assert cap(1.0, 1.5e-17).delta_budget == 1
    assert cap(1e-6, 1e-7).budget == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "stable", "sigma": 8.0, "delta_per_query": 1e-6}, "delta_per_query"),
        ({"name": "immutable", "c": 10**9, "gamma": 0.05}, "query"),
        ({"name": "immutable", "c": 10**9, "sigma": 40.0}, "query"),
    ],
    ids=lambda made: made["name"] if isinstance(made, dict) else made,
)
def test_a_mechanism_that_no_budget_pays_is_refused(spec: Spec, words: str) -> None:
    with refuses(ParameterError, words):
        quote(build(spec), 8.0, 1e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "text"),
    [
        (0.0, 1e-5, "epsilon"),
        (-1.0, 1e-5, "epsilon"),
        (math.inf, 1e-5, "epsilon finite"),
        (math.nan, 1e-5, "epsilon finite"),
        (101.0, 1e-5, "epsilon 1e-06 100"),
        (1.0, 0.0, "delta 0"),
        (1.0, 1.0, "delta 1"),
        (1.0, 1.5, "delta 1.5"),
        (1.0, -1e-5, "delta"),
        (1.0, math.nan, "delta finite"),
        (1.0, 1e-16, "query adds"),
        (1.0, 1e-300, "query adds"),
        (0.01, 1e-5, "single query"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused(epsilon: float, delta: float, text: str) -> None:
    for spec in ({"name": "gnmax", "sigma": 20.0}, {"name": "lnmax", "gamma": 0.1}):
        with refuses(ParameterError, *text.split()):
            quote(build(spec), epsilon, delta)
    if "query" not in text:
        with refuses(ParameterError, *text.split()):
            cap(epsilon, delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-18), (1e-6, 7e-8)])
def test_a_cap_too_small_to_share_is_refused(epsilon: float, delta: float) -> None:
    with refuses(ParameterError, "small"):
        cap(epsilon, delta)


def test_even_baselines_have_lower_prices_where_test_and_maximum_are_priced_together() -> None:
    spec = {**SPECS[3], "answer_share": 0.5}
    rule = Rule("rdp", 6.0)
    mechanism = build_mechanism(spec, teachers=250, classes=10)
    terms = quote(mechanism, 3.0, 1e-5, rule=rule, cap_rule=rule)
    assert terms.baselines == (0, 12, 25)
    assert [terms.priced_baseline(b) for b in (0, 11, 12, 24, 25, 125)] == [0, 0, 12, 12, 25, 25]
    worst = [max(terms.price(outcome, b).cost for outcome in terms.prices) for b in terms.baselines]
    assert terms.worst.cost == worst[0] > worst[1] > worst[2] == terms.room.cost
    assert Terms.from_json(json.loads(json.dumps(terms.to_json()))) == terms

    # What a budget reserves of a cap with another rule covers the worst ratio of any list.
    capped = quote(mechanism, 3.0, 1e-5, rule=rule, cap_rule=Rule("rdp", 4.0))
    for baseline in capped.baselines:
        for outcome in capped.prices:
            price = capped.price(outcome, baseline)
            assert capped.cap_budget * price.cost >= capped.budget * price.cap_cost

    apart = quote(build_mechanism(SPECS[3], teachers=250, classes=10), 3.0, 1e-5, rule=rule)
    assert apart.by_baseline == ()
    assert "by_baseline" not in apart.to_json()


def test_what_is_known_of_terms_is_found_out_before_any_thread_reads_some() -> None:
    """When several threads find it out together, msgspec crashes the process."""
    code = "from terrine_server.privacy import Terms; assert '__msgspec_cache__' in vars(Terms)"
    subprocess.run([sys.executable, "-c", code], check=True)
