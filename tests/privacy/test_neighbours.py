"""`neighbours`: what it tells of one person, by brute force over all small worlds."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event, pld
from scipy.optimize import brentq
from scipy.stats import chi2, norm

from support.laws import (
    NORM,
    ORDER,
    OTHERS,
    SIGMA,
    Shifts,
    Student,
    Weigh,
    mutated,
    nearest,
    one_at_a_time,
    scaled,
    shifts,
    some_pairs,
)
from support.wording import refuses
from terrine_server.privacy import (
    GDP,
    Account,
    Neighbours,
    ParameterError,
    Rule,
    Terms,
    Units,
    VoteOutcome,
    build_mechanism,
    event_from_json,
    gdp_squared,
    quote,
    rdp,
)
from terrine_server.privacy.allowance import Allowance, best_order_of_allowance, largest_allowance
from terrine_server.privacy.curves import shift_mu

FALSE_ALARM = 1e-9


def ratios(found: Shifts, allowance: int) -> tuple[float, float]:
    """The largest loss as a share of the bound: if somebody leaves, and if they are replaced."""
    losses = found.losses(together=16)
    bound = ORDER * allowance / (2 * SIGMA**2)
    return float(losses[0].max() / bound), float(losses.max() / (2 * bound))


@pytest.mark.parametrize(
    "allowance",
    [
        *(1, 3, 4, 12),
        *(pytest.param(each, marks=pytest.mark.nightly) for each in (2, 5, 8)),
    ],
)
def test_the_bound_is_attained_and_never_exceeded(allowance: int) -> None:
    seen = [ratios(shifts(Neighbours, others, allowance), allowance) for others in OTHERS]
    most_removed, most_replaced = (max(each) for each in zip(*seen, strict=True))
    assert most_removed <= 1 + 1e-12
    assert most_replaced <= 1 + 1e-12
    assert (most_removed, most_replaced) == (pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize("allowance", [1, pytest.param(3, marks=pytest.mark.nightly), 4])
def test_no_student_who_adapts_to_the_answers_learns_more(allowance: int) -> None:
    student = Student(Neighbours, allowance)
    bound = ORDER * allowance / (2 * SIGMA**2)
    for others in OTHERS:
        for one, other in some_pairs(60, seed=allowance):
            loss = student.loss((one, *others), (other, *others))
            assert loss <= (bound if not one else 2 * bound) + 1e-6
    assert student.paths > 500


DEFECTS: dict[str, tuple[float, tuple[str, str] | Weigh]] = {
    "overspends in the last step": (
        4.0,
        (
            "takes_part = spent + squared <= allowance",
            "takes_part = spent < allowance",
        ),
    ),
    "judged once a batch": (
        3.0,
        (
            "takes_part = spent + squared <= allowance",
            "takes_part = accounts[units.present] + squared <= allowance",
        ),
    ),
    "rolled back by a crash": (3.0, ("spent += takes_part * squared", "pass")),
    "divided by how many voted": (
        6.0,
        (
            "votes, squared = self._votes(own, units)",
            "votes, squared = self._votes(own, units)\n"
            "            votes = 6 * votes // max(1, (squared > 0).sum())\n"
            "            squared = np.add.reduceat(votes * votes, units.firsts)",
        ),
    ),
    "cast whole, and charged as scaled down": (
        5.0,
        (
            "votes = np.where(whole > self.norm**2, scaled, sums)",
            "votes, sums = sums, np.where(whole > self.norm**2, scaled, sums); "
            "return votes, np.add.reduceat(sums * sums, units.firsts)",
        ),
    ),
    "the k nearest private records": (4.0, nearest(1)),
    "a foreign map scales all records by the largest": (11.0, scaled),
}
"""The ratio to the bound that each at least shows at its worst allowance, and what it is: another
text in the source, or what all records together are made."""


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defects_show(defect: str) -> None:
    least, what = DEFECTS[defect]
    kind, weigh = (Neighbours, what) if callable(what) else (mutated(*what), None)
    allowance = 20 if defect == "divided by how many voted" else 1  # where it shows most
    seen = max(ratios(shifts(kind, others, allowance, weigh), allowance)[0] for others in OTHERS)
    assert seen >= least * (1 - 1e-9)


@pytest.mark.parametrize("allowance", [2, 4])
@pytest.mark.parametrize("together", [nearest(1), scaled])
def test_a_foreign_map_that_is_given_one_record_at_a_time_tells_no_more(
    together: Weigh, allowance: int
) -> None:
    """Whatever it makes of several."""
    weigh = one_at_a_time(together)
    for others in OTHERS:
        left, replaced = ratios(shifts(Neighbours, others, allowance, weigh), allowance)
        assert max(left, replaced) <= 1 + 1e-12


def test_refunded_abstentions_show() -> None:
    """To abstain where counts are low is free as post-processing, but it is charged for."""

    def passed(counts: np.ndarray[Any, Any]) -> Any:
        return counts.max(axis=1) >= 3

    refunding, charging = Student(Neighbours, 1, passed), Student(Neighbours, 1)
    somebody = ((0, (1, 1, 1)),)
    bound = ORDER * 1 / (2 * SIGMA**2)
    worlds = ((), *OTHERS[0]), (somebody, *OTHERS[0])
    assert charging.loss(*worlds) == pytest.approx(bound, rel=1e-6)
    ratio = max(refunding.loss(*worlds), refunding.loss(*worlds[::-1])) / bound
    assert ratio > 2.4


def test_a_vote_is_scaled_down_to_the_bound_and_no_further() -> None:
    draw = np.random.default_rng(1)
    units = Units.of(np.zeros(6, np.int32), np.arange(6, dtype=np.int16), 1)
    for norm_ in (1, 2, 3, 7, 255):
        mechanism = Neighbours(1, 6, 2.0, 10**6, norm_)
        weights = draw.integers(0, 256, (300, 6), dtype=np.uint8)
        weights[:100] = draw.integers(0, 3, (100, 6))
        for row in weights:
            counts, after = mechanism.cast(row[None], units, np.zeros(1, np.uint32), 2**32 - 1)
            votes, wanted = counts[0].tolist(), row.tolist()
            squared = sum(w * w for w in wanted)
            assert after[0] == sum(v * v for v in votes) <= norm_**2
            if squared <= norm_**2:
                assert votes == wanted
            else:
                assert votes == [math.isqrt(w * w * norm_**2 // squared) for w in wanted]


def test_many_records_of_one_person_are_one_vote_and_never_overflow() -> None:
    count = 300_000
    units = Units.of(np.zeros(count, np.int32), np.repeat([0, 1], count // 2).astype(np.int16), 2)
    mechanism = Neighbours(2, 2, 2.0, 10, 255)
    weights = np.full((1, count), 255, np.uint8)
    counts, after = mechanism.cast(weights, units, np.zeros(2, np.uint32), 10**6)
    assert counts.tolist() == [[180, 180]]  # ⌊255/√2⌋
    assert after.tolist() == [2 * 180**2, 0]


def test_a_batch_is_cast_as_its_queries_one_after_the_other() -> None:
    draw = np.random.default_rng(2)
    owners = np.sort(draw.integers(0, 40, 200)).astype(np.int32)
    labels = draw.integers(0, 5, 200).astype(np.int16)
    order = np.lexsort((labels, owners))
    units = Units.of(owners[order], labels[order], 50)
    mechanism = Neighbours(50, 5, 2.0, 1000, 3)
    weights = draw.integers(0, 4, (30, 200), dtype=np.uint8)
    whole, after = mechanism.cast(weights, units, np.zeros(50, np.uint32), 40)
    accounts = np.zeros(50, np.uint32)
    for row, counts in zip(weights, whole, strict=True):
        one, accounts = mechanism.cast(row[None], units, accounts, 40)
        assert one.tolist() == [counts.tolist()]
    assert after.tolist() == accounts.tolist()
    assert after.max() <= 40
    assert (after > 30).sum() > 10, "accounts bind"


def test_what_cannot_be_cast_is_refused() -> None:
    units = Units.of(np.array([0, 1], np.int32), np.array([0, 1], np.int16), 3)
    mechanism = Neighbours(3, 2, 2.0, 10)
    right = np.ones((1, 2), np.uint8), units, np.zeros(3, np.uint32), 4
    mechanism.cast(*right)
    for what, wrong in (
        ("weight", (right[0].astype(np.int64), *right[1:])),
        ("weight", (np.ones((1, 3), np.uint8), *right[1:])),
        ("account", (right[0], units, np.zeros(2, np.uint32), 4)),
    ):
        with refuses(ValueError, what):
            mechanism.cast(*wrong)
    for owners, labels in (([1, 0], [0, 0]), ([0, 0], [1, 0]), ([0, 3], [0, 0]), ([], [])):
        with refuses(ValueError, "records"):
            Units.of(np.array(owners, np.int32), np.array(labels, np.int16), 3)
    assert Units.of(np.zeros(1, np.int32), np.zeros(1, np.int16), 3).records == 1
    with refuses(ValueError, "counts"):
        mechanism.release(np.array([[1, 0, 0]]))


def test_more_people_than_when_the_project_was_opened_are_counted_and_answered() -> None:
    """Nothing depends on how many there are, and no count is an error."""
    count = 700
    units = Units.of(np.arange(count, dtype=np.int32), np.zeros(count, np.int16), count)
    mechanism = Neighbours(300, 2, 2.0, 10)
    cast, _ = mechanism.cast(
        np.ones((1, count), np.uint8), units, np.zeros(count, np.uint32), allowance=4
    )
    assert cast.tolist() == [[count, 0]]
    released = mechanism.release(cast, None, lambda size: b"\x80".ljust(32, b"\0") * (size // 32))
    assert np.array(released.counts).tolist() == [[count, 0]]


@pytest.mark.statistical
@pytest.mark.parametrize("sigma", [0.5, 2.0, 809.0])
def test_the_noise_has_its_width(sigma: float) -> None:
    """A false alarm has a probability of 1e-9. Half the noise would be found with certainty."""
    mechanism = Neighbours(50, 10, sigma, 10**6)
    counts = np.tile(np.arange(10), (4000, 1))
    released = mechanism.release(counts)
    assert released.counts is not None
    assert released.labels.tolist() == released.counts.argmax(axis=1).tolist()
    noise = released.counts - counts
    values = np.arange(-2000, 2001) if sigma < 5 else np.arange(-20_000, 20_001)
    weights = np.exp(-(values**2) / (2 * sigma**2))
    variance = float((values**2 * weights).sum() / weights.sum())
    spread = float((noise.astype(float) ** 2).sum()) / variance
    kurtosis = float((values**4 * weights).sum() / weights.sum()) / variance**2
    # By the central limit theorem, with the exact variance of a square: within 7 of its deviations
    # with a probability of less than 1e-9 of being further away, also for so many draws.
    deviation = math.sqrt(noise.size * (kurtosis - 1))
    assert abs(spread - noise.size) < 7 * deviation
    if sigma > 5:
        assert chi2.sf(spread, noise.size) > FALSE_ALARM / 3
        assert chi2.cdf(spread, noise.size) > FALSE_ALARM / 3


def numeric_delta(epsilon: float, mu: float) -> float:
    """δ(ε) of two unit Gaussians μ apart, by adding up, without the formula in use."""
    x = np.linspace(-40, 40, 200_001)
    p, q = norm.pdf(x, mu), norm.pdf(x)
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x))


@pytest.mark.parametrize("sigma", [1.0, 15.0, 272.0, 809.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_allowance_in_gaussian_dp_is_the_largest_by_integration(
    sigma: float, epsilon: float
) -> None:
    delta = 1e-5
    found = largest_allowance(GDP, sigma, epsilon, delta)
    if found:
        assert numeric_delta(epsilon, math.sqrt(2 * found) * shift_mu(sigma)) <= delta * (1 + 1e-6)
    more = math.sqrt(2 * (found + 1)) * shift_mu(sigma)
    assert numeric_delta(epsilon, more) > delta * (1 - 1e-6)


@pytest.mark.parametrize("sigma", [40.0, 272.0])
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_the_allowance_agrees_with_another_library(sigma: float, epsilon: float) -> None:
    """A person who cast all of A, against one who did: one Gaussian release of √(2A)."""
    found = largest_allowance(GDP, sigma, epsilon, 1e-5)

    def epsilon_of(allowance: int) -> float:
        accountant = pld.PLDAccountant()
        accountant.compose(dp_event.GaussianDpEvent(sigma / math.sqrt(2 * allowance)))
        return float(accountant.get_epsilon(1e-5))

    assert epsilon_of(found) <= epsilon * 1.01
    assert epsilon_of(math.ceil(found * 1.05) + 1) > epsilon


@pytest.mark.parametrize("sigma", [15.0, 272.0, 809.0])
@pytest.mark.parametrize("epsilon", [0.03, 0.1, 1.0, 8.0])
def test_the_allowance_in_zcdp_is_that_of_the_best_order(sigma: float, epsilon: float) -> None:
    delta = 1e-5
    found = largest_allowance(
        Rule("rdp", best_order_of_allowance(epsilon, delta)), sigma, epsilon, delta
    )
    orders = 1 + np.geomspace(1e-3, 1e5, 2_000_001)
    # Canonne, Kamath & Steinke 2020, Prop. 12, solved for ρ at each order.
    rho = (epsilon + np.log1p(-1 / orders) * -1 + np.log(delta * orders) / (orders - 1)) / orders
    best = float(rho.max()) * sigma**2
    assert found == pytest.approx(math.floor(best), abs=1)
    assert found <= best


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 4.0, 40.0, 800.0])
def test_the_better_of_the_two_is_taken_and_named(sigma: float) -> None:
    mechanism = Neighbours(100, 10, sigma, 10**6)
    epsilon = 50.0 if sigma < 10 else 1.0
    terms = quote(mechanism, epsilon, 1e-5)
    conversion = terms.split.conversion
    each = [
        largest_allowance(rule, sigma, epsilon, conversion)
        for rule in (GDP, Rule("rdp", best_order_of_allowance(epsilon, conversion)))
    ]
    assert terms.allowance is not None
    assert terms.allowance.most == max(each)
    assert terms.allowance.most == largest_allowance(terms.rule, sigma, epsilon, conversion)


@pytest.mark.parametrize("cap_rule", [GDP, Rule("rdp", 12.0)])
@pytest.mark.parametrize(("queries", "norm_"), [(1, 1), (7, 2), (10_000, 1), (999_983, 3)])
def test_so_many_queries_fit_exactly_and_the_cap_is_never_exceeded(
    cap_rule: Rule, queries: int, norm_: int
) -> None:
    mechanism = Neighbours(100, 10, 272.0, queries, norm_)
    terms = quote(mechanism, 0.5, 1e-5, cap_rule=cap_rule)
    allowance = terms.allowance
    assert allowance is not None
    price = terms.worst
    assert terms.prices == {VoteOutcome.ANSWERED: price}
    assert terms.affordable(Account()) == queries
    assert terms.budget == queries * price.cost
    for asked in {0, 1, queries // 2, queries - 1, queries}:
        whole = Account(asked * price.cost, asked, asked * price.cap_cost, asked)
        account = terms.capped(whole)
        assert terms.admits(account) == (asked < queries)
        assert account.cap_spent <= terms.cap_budget
        used = min(allowance.most, asked * norm_**2)
        worth = used * (
            2 * shift_mu(272.0) ** 2 if cap_rule.order is None else cap_rule.order / 272.0**2
        )
        assert worth * 1e12 <= account.cap_spent + 1e-3
        assert account.cap_spent <= worth * 1e12 * (1 + 1e-8) + asked
    assert terms.epsilon_spent(terms.budget) <= 0.5
    # One query may be all that somebody is protected from, so its ε is not a share of the budget.
    one = terms.epsilon_spent(price.cost)
    assert one >= min(0.5, quote_of_one(allowance)) * (1 - 1e-9)


def quote_of_one(allowance: Allowance) -> float:
    """ε of a single whole vote of each of two people, by another way."""
    mu = math.sqrt(2 * allowance.most_spent(1)) / allowance.sigma
    if numeric_delta(0.0, mu) <= 1e-5:
        return 0.0
    return float(brentq(lambda e: numeric_delta(e, mu) - 1e-5, 0.0, 50.0))


def test_terms_and_events_are_written_and_read() -> None:
    terms = quote(Neighbours(100, 10, 40.0, 500, 2), 1.0, 1e-5)
    assert Terms.from_json(json.loads(json.dumps(terms.to_json()))) == terms
    event = Neighbours(100, 10, 40.0, 500, 2).events()[VoteOutcome.ANSWERED]
    assert event_from_json(event.to_json()) == event
    assert gdp_squared(event) == pytest.approx(2 * 4 * shift_mu(40.0) ** 2)
    assert rdp(event, 3.0) == pytest.approx(3 * 4 / 40.0**2)
    others = quote(
        build_mechanism({"name": "gnmax", "sigma": 40.0}, teachers=9, classes=2), 1, 1e-5
    )
    assert "allowance" not in others.to_json()


def test_budgets_that_buy_no_vote_or_cannot_be_counted_out_are_refused() -> None:
    with refuses(ParameterError, "nobody"):
        quote(Neighbours(100, 10, 2.0, 100), 0.1, 1e-5)
    with refuses(ParameterError, "counted"):
        quote(Neighbours(100, 10, 272.0, 10_000_000), 0.5, 1e-12)
    assert NORM == 2


@pytest.mark.parametrize("norm", [1, 2])
def test_a_query_is_exhausted_where_a_twentieth_of_the_public_rows_could_vote(norm: int) -> None:
    """Shadows of up to three rows, by hand: each query is judged after those before it."""
    random, allowance = np.random.default_rng(norm), 4
    mechanism = Neighbours(teachers=5, classes=2, sigma=9.0, queries=500, norm=norm)
    weights = random.integers(0, 4, (300, 30)).astype(np.uint8)
    weights *= random.random((300, 30)) < 0.3
    around = np.maximum(weights, random.integers(0, 2, (300, 30)).astype(np.uint8))
    spent, told, shares = [0] * 30, [], []
    for near, judged in zip(weights.tolist(), around.tolist(), strict=True):
        costs = [min(rows, norm) ** 2 for rows in judged]
        gone = [rows for rows, cost, b in zip(judged, costs, spent, strict=True) if b + cost > 4]
        shares.append(sum(gone) / sum(judged))
        told.append(20 * sum(gone) < 19 * sum(judged))
        for shadow, rows in enumerate(near):
            cost = min(rows, norm) ** 2
            spent[shadow] += cost if told[-1] and spent[shadow] + cost <= allowance else 0
    start = np.zeros(30, np.uint32)
    found, after = mechanism.split_exhausted(weights, around, start, allowance, 500)
    assert found.tolist() == told
    assert after.tolist() == spent
    assert 0 < sum(told) < 300
    last = mechanism.exhausted_shares(around[-1:], after, allowance)
    assert last[0] == pytest.approx(shares[-1]) or told[-1]
    first, _ = mechanism.split_exhausted(weights, around, start, allowance, 5)
    assert first.tolist() == told[: len(first)]
    assert first.sum() == 5
    assert first[-1], "and nothing is judged after the last that is paid"
