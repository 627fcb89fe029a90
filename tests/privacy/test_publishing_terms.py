"""Terms of a project that publishes bounds on its spend: price, due time, account after it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import mpmath
import pytest

from support.wording import refuses
from terrine_server.privacy import (
    GDP,
    Account,
    BoundRelease,
    ParameterError,
    Rule,
    Terms,
    build_mechanism,
    epsilon_from_rdp,
    quote,
    rdp_budget,
)
from terrine_server.privacy.budget import ConsideredRule, RuleChoice, Schedule
from terrine_server.privacy.prices import price, publication_price
from terrine_server.privacy.published import gnss_rdp
from terrine_server.privacy.quoting import (
    MAX_PUBLICATIONS,
    PUBLICATION_SHARE,
    check_counts,
    publication_z,
    split_delta,
)

COST, DELTA_UNITS = 10**12, 10**18
EPSILON, DELTA, ORDER = 2.0, 1e-6, 10.0
COUNTS = (20, 50, 90)
RULE = Rule("rdp", ORDER)


def release(z: float, order: float = ORDER) -> BoundRelease:
    return BoundRelease(order=order, beta=0.01, sigma=60.0, z=z)


def published(
    z: float | None = None,
    counts: Sequence[int] = COUNTS,
    *,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    cap_rule: Rule = RULE,
) -> Terms:
    """Terms of GNMax on a thousand teachers; by default with the smallest z that δ allows."""
    return quote(
        build_mechanism({"name": "gnmax", "sigma": 50.0}, teachers=1000, classes=10),
        epsilon,
        delta,
        cap_rule=cap_rule,
        publishing=(release(publication_z(delta, len(counts)) if z is None else z), counts),
    )


def tail(z: float) -> mpmath.mpf:
    """P(Z < −z) for a standard normal Z, to fifty digits."""
    with mpmath.workdps(50):
        return mpmath.erfc(mpmath.mpf(z) / mpmath.sqrt(2)) / 2


TERMS = published()


def schedule(terms: Terms) -> Schedule:
    assert terms.schedule is not None
    return terms.schedule


EACH = schedule(TERMS).price


@pytest.mark.parametrize("z", [1.0, 3.0, 5.5, 7.0])
def test_a_publication_costs_its_release_and_its_chance_to_fail_rounded_up(z: float) -> None:
    with mpmath.workdps(50):
        shift = 1 + mpmath.mpf(z) * 60 * mpmath.expm1(mpmath.mpf(0.01))
    exact = Fraction(gnss_rdp(ORDER, 0.01, 60.0, float(shift))) * COST
    paid = publication_price(release(z))
    assert exact * (1 + Fraction(1, 2 * 10**9)) <= paid.cost <= exact * (1 + Fraction(2, 10**9)) + 1
    fails = Fraction(str(tail(z))) * DELTA_UNITS
    assert fails + 1 <= paid.delta <= fails * (1 + Fraction(2, 10**9)) + 2
    assert paid.cap_cost == paid.cost, "the cap has the same rule"
    assert price(release(z).event, RULE) == paid, "as verification prices an entry"


@pytest.mark.parametrize("publications", [1, 3, 64])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_all_figures_together_fail_as_often_as_their_share_of_delta_allows(
    delta: float, publications: int
) -> None:
    z = publication_z(delta, publications)
    share = Fraction(delta) * PUBLICATION_SHARE
    assert Fraction(release(z).failure) * publications <= share
    assert Fraction(str(tail(z))) * publications <= share
    assert Fraction(str(tail(z))) * publications >= share * (1 - Fraction(1, 10**8))


def test_a_schedule_and_a_choice_survive_a_round_trip_through_json() -> None:
    considered = (
        ConsideredRule(RULE, 0.5, answers=100, queries=90),
        ConsideredRule(GDP, None, 80, 70),
    )
    for choice in (None, RuleChoice(0.7, considered)):
        terms = replace(TERMS, choice=choice)
        assert Terms.from_json(json.loads(json.dumps(terms.to_json()))) == terms


def test_a_z_with_which_figures_fail_too_often_is_refused_with_one_that_will_do() -> None:
    z = publication_z(DELTA, len(COUNTS))
    with refuses(ParameterError, 3, "δ") as refused:
        published(z - 1e-6)
    (named,) = re.findall(r"at least ([0-9.]+)\.$", str(refused.value))
    assert float(named) == pytest.approx(z, abs=1e-9)
    assert published(float(named)).schedule is not None


def test_figures_may_use_all_of_their_share_of_delta_and_not_a_rounding_error_more() -> None:
    each = publication_price(release(7.0)).delta - 1  # without the sampler's
    delta = float(Fraction(2 * each, DELTA_UNITS) / PUBLICATION_SHARE)
    while split_delta([], delta, publishing=True).publication * DELTA_UNITS < 2 * each:
        delta = nextafter(delta, inf)
    assert split_delta([], delta, publishing=True).publication * DELTA_UNITS == 2 * each
    assert published(7.0, [20, 50], epsilon=50.0, delta=delta).schedule is not None
    with refuses(ParameterError, 2):
        published(7.0, [20, 50], epsilon=50.0, delta=nextafter(delta, 0))


def test_published_figures_need_a_cap_of_the_same_order() -> None:
    for cap_rule in (GDP, Rule("rdp", 8.0)):
        with refuses(ParameterError, 10, *str(cap_rule).split()):
            published(cap_rule=cap_rule)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        pytest.param([], "publications 0 1 64", id="none"),
        pytest.param(range(1, MAX_PUBLICATIONS + 2), "publications 65 1 64", id="too many"),
        pytest.param([0], "schedule 0 1 1000000000000000", id="of no query"),
        pytest.param([5, 10**15 + 1], "schedule 1000000000000001 1", id="beyond all queries"),
        pytest.param([5, 5], "schedule grow", id="a repeated one"),
        pytest.param([5, 9, 8], "schedule grow", id="one too late"),
    ],
)
def test_a_schedule_that_cannot_be_kept_is_refused(counts: Sequence[int], words: str) -> None:
    for check in (check_counts, lambda counts: published(7.0, counts=counts)):
        with refuses(ParameterError, *words.split()):
            check(counts)
    for kept in ([1], [10**15], [1, 2], range(1, MAX_PUBLICATIONS + 1)):
        check_counts(kept)


def paid(queries: int, **changes: Any) -> Account:
    """The account after so many queries, each at the worst price, and no publication."""
    worst = TERMS.worst
    account = Account(
        spent=queries * worst.cost,
        delta_spent=queries * worst.delta,
        cap_spent=queries * worst.cost,
        queries=queries,
        fresh=queries > 0,
    )
    return replace(account, **changes)


def test_a_bound_is_due_after_each_scheduled_count_of_queries() -> None:
    roomy = replace(TERMS, budget=100 * TERMS.budget)
    first, second, last = COUNTS
    for count, published_before in [(first, 0), (second, 1), (last, 2)]:
        assert not roomy.due(paid(count - 1, published=published_before))
        assert roomy.due(paid(count, published=published_before))
        assert roomy.due(paid(count + 1, published=published_before)), "late is not never"
        assert not roomy.due(paid(count, published=published_before, fresh=False))
    assert not roomy.due(paid(10 * last, published=3)), "all of the schedule is published"
    assert not replace(roomy, schedule=None).due(paid(first))


def test_a_bound_is_published_early_where_one_more_query_might_leave_no_room_for_it() -> None:
    account = paid(COUNTS[0] - 5)
    room_for_both = account.spent + TERMS.worst.cost + EACH.cost
    assert not replace(TERMS, budget=room_for_both).due(account)
    assert replace(TERMS, budget=room_for_both - 1).due(account)
    assert replace(TERMS, budget=account.spent + EACH.cost).due(account)
    assert not replace(TERMS, budget=account.spent + EACH.cost - 1).due(account)


def test_the_delta_of_publications_to_come_is_kept_free() -> None:
    for published_before in range(4):
        reserved = (3 - published_before) * EACH.delta
        fits = TERMS.delta_budget - reserved - TERMS.worst.delta
        assert TERMS.admits(Account(delta_spent=fits, published=published_before))
        assert not TERMS.admits(Account(delta_spent=fits + 1, published=published_before))


def test_queries_are_certain_to_fit_beside_all_publications_to_come() -> None:
    worst = TERMS.worst.cost
    for published_before in range(4):
        account = Account(spent=123, published=published_before)
        kept_free = account.spent + (3 - published_before) * EACH.cost
        for queries in (1, 2, 40):
            terms = replace(TERMS, budget=kept_free + queries * worst)
            assert terms.affordable(account) == queries
            assert replace(terms, budget=terms.budget + worst - 1).affordable(account) == queries
            fewer = replace(terms, budget=terms.budget - 1)
            assert fewer.affordable(account) == max(queries - 1, published_before < 3)


def test_one_query_is_certain_where_only_publications_would_not_fit() -> None:
    """Those are left out then. A second query may be refused, as nothing may become free."""
    worst = TERMS.worst.cost
    assert 3 * worst < EACH.cost
    for budget, queries in [(worst - 1, 0), (worst, 1), (3 * worst, 1)]:
        affordable = replace(TERMS, budget=budget).affordable(Account())
        assert (affordable, type(affordable)) == (queries, int)


def test_as_many_queries_fit_as_the_delta_not_reserved_pays_for() -> None:
    for published_before in range(4):
        reserved = (3 - published_before) * EACH.delta
        terms = replace(TERMS, budget=10**6 * TERMS.budget, delta_budget=reserved + 5 + 7)
        account = Account(delta_spent=7, published=published_before)
        assert terms.affordable(account) == 5 // TERMS.worst.delta == 5


def test_the_bound_on_all_queries_is_the_spend_without_the_price_of_publications() -> None:
    assert TERMS.bound(paid(7)) == 7 * TERMS.worst.cost
    account = paid(7, spent=7 * TERMS.worst.cost + 2 * EACH.cost, published=2)
    assert TERMS.bound(account) == 7 * TERMS.worst.cost
    assert replace(TERMS, schedule=None).bound(paid(7)) == 7 * TERMS.worst.cost


@pytest.mark.parametrize("share", [0, 1, 2], ids=["zero", "half", "all that was known"])
def test_a_figure_takes_the_place_of_the_bound_and_its_price_is_added(share: int) -> None:
    account = paid(20, spent=20 * TERMS.worst.cost + EACH.cost, published=1)
    figure = TERMS.bound(account) * share // 2
    after = TERMS.after_publishing(account, figure)
    assert after == Account(
        spent=figure + 2 * EACH.cost,
        delta_spent=account.delta_spent + EACH.delta,
        cap_spent=figure + 2 * EACH.cost,
        queries=20,
        published=2,
        fresh=False,
    )
    assert TERMS.bound(after) == figure
    assert not TERMS.due(replace(after, queries=COUNTS[-1])), "nothing new was paid since"


def test_a_figure_above_the_bound_or_below_zero_is_refused() -> None:
    account = paid(20)
    for figure in (-1, TERMS.bound(account) + 1):
        with refuses(ValueError, 0):
            TERMS.after_publishing(account, figure)
    with refuses(ValueError, 0):
        replace(TERMS, schedule=None).after_publishing(account, 0)


def test_epsilon_spent_follows_the_rules_own_conversion() -> None:
    """From the first unit on, and beyond the budget."""
    assert TERMS.epsilon_spent(0) == 0
    for spent in (1, TERMS.worst.cost, TERMS.budget // 2, 2 * TERMS.budget):
        exact = epsilon_from_rdp([spent / COST], [ORDER], TERMS.split.conversion)
        assert TERMS.epsilon_spent(spent) == exact
    assert TERMS.epsilon_spent(2 * TERMS.budget) > TERMS.epsilon


def test_the_shares_of_delta_add_up_to_no_more_than_delta() -> None:
    terms = published()
    split = terms.split
    parts = (split.conversion, split.stability, split.publication, split.sampler)
    assert sum(map(Fraction, parts)) <= Fraction(DELTA)
    assert sum(parts) == pytest.approx(DELTA, rel=1e-12)
    assert terms.budget <= Fraction(float(rdp_budget(ORDER, EPSILON, split.conversion))) * COST
    assert terms.cap_budget == terms.budget, "the cap has the same rule"
    assert split_delta([], DELTA).publication == 0, "without figures none is for them"


def test_a_budget_too_small_for_one_query_is_told_by_what_it_lacks() -> None:
    """Here δ is exactly that of one query, so it is ε that is too small."""
    mechanism = build_mechanism({"name": "gnmax", "sigma": 20.0}, teachers=250, classes=10)
    with refuses(ParameterError, "query"):
        quote(mechanism, 0.01, 1.5e-15)
    assert quote(mechanism, 100.0, 1.5e-15).delta_budget == 1
    with refuses(ParameterError, "delta_per_query", "delta"):
        quote(mechanism, 0.01, 0.5e-15)


def test_a_rule_is_shown_with_its_order() -> None:
    assert str(GDP) == "Gaussian DP"
    assert str(Rule("rdp", 12.5)) == "Rényi DP at order 12.5"
