"""Which rule a project is opened under: the sound one that is expected to buy the most."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.wording import refuses
from terrine_server.planning.answer_share import MAX_OUTCOME_COST
from terrine_server.planning.expected import expected_pass_rate
from terrine_server.planning.opening import Quote, choose, expected_answers
from terrine_server.privacy import (
    GDP,
    Account,
    Mechanism,
    ParameterError,
    Rule,
    Terms,
    VoteOutcome,
    build_mechanism,
    cap_order,
    joint,
    price,
    quote,
)

CAP = Rule("rdp", 17.7)
DELTA = 1e-5


def confident(teachers: int = 2000, **parameters: Any) -> Mechanism:
    spec: dict[str, Any] = {"name": "confident_gnmax", "threshold": int(0.8 * teachers)}
    spec |= {"sigma1": 0.2 * teachers, "sigma2": 0.15 * teachers} | parameters
    return build_mechanism(spec, teachers=teachers, classes=10)


def test_the_joint_price_buys_five_times_the_answers_of_a_large_ensemble() -> None:
    quoted = choose(confident(), 1.0, DELTA, cap_rule=CAP, pass_rate=0.7)
    assert quoted.terms.choice is not None
    best, apart = quoted.terms.choice.considered
    assert best.rule == quoted.terms.rule
    assert best.rule.order == pytest.approx(17.5, abs=1)
    assert (apart.rule, apart.answer_share) == (GDP, None)
    assert apart.answers == pytest.approx(2306, rel=0.01)
    assert best.answers > 5 * apart.answers
    assert best.queries > 3 * apart.queries


def test_a_small_budget_of_few_teachers_keeps_the_old_rule() -> None:
    quoted = choose(confident(250), 0.15, DELTA, cap_rule=CAP, pass_rate=0.7)
    assert quoted.terms.rule == GDP
    assert quoted.answer_share is None
    assert quoted.terms.prices == quote(confident(250), 0.15, DELTA, cap_rule=CAP).prices


def test_a_cap_in_gaussian_dp_has_no_joint_price() -> None:
    quoted = choose(confident(), 1.0, DELTA, cap_rule=GDP, pass_rate=0.7)
    assert replace(quoted.terms, choice=None) == quote(confident(), 1.0, DELTA)
    assert quoted.terms.choice is not None
    assert len(quoted.terms.choice.considered) == 1


def test_a_requested_share_is_kept() -> None:
    mechanism = confident(answer_share=0.3)
    for cap_rule in (CAP, GDP):
        quoted = choose(mechanism, 1.0, DELTA, cap_rule=cap_rule, pass_rate=0.7)
        assert quoted.mechanism == mechanism
        assert quoted.terms.rule.name == "rdp"


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, float("nan")])
def test_an_impossible_pass_rate_is_refused(rate: float) -> None:
    with refuses(ParameterError, "expected_pass_rate"):
        choose(confident(), 1.0, DELTA, cap_rule=CAP, pass_rate=rate)


@pytest.mark.parametrize("threshold", [1600, 1000, 700])
@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.5, 0.95, 1.0])
def test_any_expectation_leaves_a_third_of_the_queries_certain(
    rate: float, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that one price buys if an answer is charged for all noisy counts."""
    quoted = choose(confident(threshold=threshold), 1.0, DELTA, cap_rule=CAP, pass_rate=rate)
    certain = quoted.terms.affordable(Account())
    if quoted.terms.rule.order is None:
        assert quoted.terms.prices == quote(confident(threshold=threshold), 1.0, DELTA).prices
        return
    monkeypatch.setattr(joint, "gaussian_argmax_rdp", lambda sigma, order: math.inf)
    flat = confident(threshold=threshold, answer_share=1.0)
    one_price = quote(flat, 1.0, DELTA, cap_rule=CAP, rule=quoted.terms.rule)
    assert certain >= int(one_price.affordable(Account()) / MAX_OUTCOME_COST)


@pytest.mark.parametrize(
    ("teachers", "threshold", "sigma1", "sigma2", "rate", "before", "now"),
    [
        (1000, 500, 248.0, 174.0, 0.2, 568, 718),
        (2000, 800, 400.0, 300.0, 0.5, 2068, 2733),
        (500, 225, 150.0, 85.0, 0.97, 3106, 3531),
        pytest.param(500, 240, 75.0, 50.0, 0.97, 928, 975, marks=pytest.mark.nightly),
        (2000, 1600, 400.0, 300.0, 0.7, 11_674, 11_674),
    ],
)
def test_what_a_lower_price_of_labels_buys(
    teachers: int, threshold: int, sigma1: float, sigma2: float, rate: float, before: int, now: int
) -> None:
    """Answers for ε = 1, and how many it was at the price of all noisy counts near a tie.

    The third and the fourth are answers so cheap that abstentions cost the most that they may.
    """
    low = confident(teachers, threshold=threshold, sigma1=sigma1, sigma2=sigma2)
    found = choose(low, 1.0, DELTA, cap_rule=CAP, pass_rate=rate).answers
    assert found == pytest.approx(now, rel=0.02)
    assert found > 0.98 * before


@pytest.mark.parametrize(
    ("threshold", "sigma1", "sigma2"),
    [
        (1600, 400.0, 300.0),
        pytest.param(1000, 400.0, 300.0, marks=pytest.mark.nightly),
        (1400, 100.0, 100.0),
    ],
)
def test_without_an_expectation_no_pass_rate_is_a_disaster(
    threshold: int, sigma1: float, sigma2: float
) -> None:
    """Neither outcome costs four times the other, and the worst regret is less than a guess's."""
    mechanism = confident(threshold=threshold, sigma1=sigma1, sigma2=sigma2)
    rates = (0.1, 0.3, 0.5, 0.7, 0.95)
    steady = choose(mechanism, 1.0, DELTA, cap_rule=CAP)
    guess = choose(mechanism, 1.0, DELTA, cap_rule=CAP, pass_rate=expected_pass_rate(mechanism))
    costs = [price.cost for price in steady.terms.prices.values()]
    assert max(costs) <= 4 * min(costs) * (1 + 1e-9)

    def regret(quoted: Quote) -> float:
        """How many times the answers, at the worst rate, were to be had by expecting that rate."""
        return max(
            choose(mechanism, 1.0, DELTA, cap_rule=CAP, pass_rate=rate).answers
            / expected_answers(quoted.terms, rate)
            for rate in rates
        )

    assert regret(steady) <= regret(guess) * 1.01
    assert regret(steady) < 6


def test_stable_is_opened_where_its_bit_is_cheapest() -> None:
    spec = {"name": "stable", "sigma": 60.0, "delta_per_query": 1e-10}
    stable = build_mechanism(spec, teachers=1000, classes=10)
    quoted = choose(stable, 2.0, DELTA, cap_rule=CAP, pass_rate=0.63)
    assert quoted.terms.rule.name == "rdp"
    assert quoted.answers > 1.3 * 0.63 * quote(stable, 2.0, DELTA).affordable(Account())


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "gnmax", "sigma": 40.0},
        {"name": "lnmax", "gamma": 0.05},
        {"name": "immutable", "c": 1, "sigma": 100.0},
        {"name": "stable", "sigma": 60.0, "delta_per_query": 1e-9},
        {
            "name": "interactive_gnmax",
            "threshold": 600,
            "sigma1": 200.0,
            "sigma2": 150.0,
            "confidence": 0.9,
        },
    ],
    ids=lambda spec: spec["name"],
)
def test_every_mechanism_is_opened_at_what_its_terms_say(spec: dict[str, Any]) -> None:
    mechanism = build_mechanism(spec, teachers=1000, classes=10)
    quoted = choose(mechanism, 2.0, DELTA, cap_rule=CAP)
    terms = quoted.terms
    assert terms.choice is not None
    assert 0 < terms.choice.pass_rate <= 1
    assert terms.choice.considered[0] == quoted.considered
    assert Terms.from_json(terms.to_json()) == terms
    for outcome, event in quoted.mechanism.events().items():
        assert terms.prices[outcome] == price(event, terms.rule, CAP)


@pytest.mark.parametrize(
    ("sigma", "epsilon", "before", "now"),
    [
        (20.0, 1.0, 14, 18),
        (40.0, 1.0, 57, 75),
        pytest.param(40.0, 2.0, 201, 269, marks=pytest.mark.nightly),
        pytest.param(100.0, 0.3, 39, 51, marks=pytest.mark.nightly),
    ],
)
def test_paying_for_a_gaussian_answer_buys_a_third_more(
    sigma: float, epsilon: float, before: int, now: int
) -> None:
    old, new = gaussian("noisy_votes", sigma), gaussian("gnmax", sigma)
    assert int(choose(old, epsilon, DELTA, cap_rule=CAP).answers) == before
    quoted = choose(new, epsilon, DELTA, cap_rule=CAP)
    assert (int(quoted.answers), quoted.terms.rule.name) == (now, "rdp")
    order = quoted.terms.rule.order or 0.0
    for nearby in (0.85, 0.95, 1.05, 1.15):
        terms = quote(new, epsilon, DELTA, cap_rule=CAP, rule=Rule("rdp", order * nearby))
        assert terms.affordable(Account()) <= now * 1.01 + 1, "no other order buys more"


def test_a_gaussian_answer_pays_for_all_counts_where_that_buys_more() -> None:
    for sigma, epsilon, cap_rule in ((40.0, 1.0, GDP), (20.0, 0.3, CAP)):
        terms, before = (
            choose(gaussian(name, sigma), epsilon, DELTA, cap_rule=cap_rule).terms
            for name in ("gnmax", "noisy_votes")
        )
        assert terms.rule == before.rule == GDP
        assert terms.affordable(Account()) == before.affordable(Account()) > 0
        (new_price,), (old_price,) = terms.prices.values(), before.prices.values()
        assert new_price.cost == old_price.cost
        assert new_price.cap_cost <= old_price.cap_cost


def gaussian(name: str, sigma: float) -> Mechanism:
    spec = {"name": name, "sigma": sigma}
    return build_mechanism(spec, teachers=1000, classes=10)


def test_older_terms_are_written_as_before() -> None:
    assert "choice" not in quote(confident(), 1.0, DELTA).to_json()


@pytest.mark.slow
@settings(max_examples=3)
@given(st.floats(0.05, 1.0), st.sampled_from([0.2, 0.5, 1.0, 3.0]), st.integers(100, 1500))
def test_what_is_chosen_buys_the_most_of_what_was_considered(
    rate: float, epsilon: float, teachers: int
) -> None:
    mechanism = confident(teachers)
    try:
        quoted = choose(mechanism, epsilon, DELTA, cap_rule=CAP, pass_rate=rate)
    except ParameterError:
        with refuses(ParameterError, "query"):
            quote(mechanism, epsilon, DELTA)
        return
    assert quoted.terms.choice is not None
    answers = [each.answers for each in quoted.terms.choice.considered]
    assert answers == sorted(answers, reverse=True)
    worst = quoted.terms.worst.cost
    assert worst <= quoted.terms.budget


def test_expected_answers_are_what_students_get() -> None:
    quoted = choose(confident(), 1.0, DELTA, cap_rule=CAP, pass_rate=0.7)
    terms, source = quoted.terms, np.random.default_rng(1)
    answers = []
    for _ in range(20):
        passed = source.random(40_000) < 0.7
        prices = (terms.prices[VoteOutcome.ANSWERED], terms.prices[VoteOutcome.ABSTAINED])
        costs = np.where(passed, prices[0].cost, prices[1].cost)
        admitted = np.concatenate([[0], np.cumsum(costs)[:-1]]) + terms.worst.cost <= terms.budget
        answers.append(int((passed & admitted).sum()))
    assert np.mean(answers) == pytest.approx(quoted.answers, rel=0.01)


def test_the_default_expectation_is_that_teachers_mostly_agree() -> None:
    assert 0.6 < expected_pass_rate(confident()) < 0.8
    gnmax = build_mechanism({"name": "gnmax", "sigma": 4.0}, teachers=9, classes=3)
    assert expected_pass_rate(gnmax) == 1


def test_the_order_of_a_cap_suits_its_budget() -> None:
    assert cap_order(1.0, DELTA) == pytest.approx(17.5, abs=1.5)
    assert cap_order(4.0, DELTA) < cap_order(1.0, DELTA) < cap_order(0.1, DELTA)


@pytest.mark.parametrize("delta", [5e-324, 1e-310])
@pytest.mark.parametrize("cap_rule", [GDP, Rule("rdp", 8.0)])
def test_a_delta_that_is_too_small_to_share_out_is_refused(delta: float, cap_rule: Rule) -> None:
    for spec in ({"name": "gnmax", "sigma": 40.0}, {"name": "lnmax", "gamma": 1}):
        mechanism = build_mechanism(spec, teachers=250, classes=10)
        with pytest.raises(ParameterError):
            choose(mechanism, 1.0, delta, cap_rule=cap_rule)
