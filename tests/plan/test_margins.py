"""A budget pays for sums, or for histograms and votes, so that all together keep to it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import norm

from support.ledgers import PUBLISHING_CLASSES, PUBLISHING_TEACHERS, published_terms
from support.wording import refuses
from terrine_server.planning.first_project import (
    DESIGNED_ROWS,
    MARGIN_SHARE,
    MAX_SUM_NORM,
    MIN_SUM_NORM,
    Setting,
    default_delta,
    plan_histograms,
    plan_norm,
    plan_sums,
)
from terrine_server.privacy import (
    Account,
    Histograms,
    NoisyVotes,
    ParameterError,
    Rule,
    SumAnswers,
    Sums,
    VoteOutcome,
    quote,
)
from terrine_server.privacy.mechanisms.gnmax import GNMax
from terrine_server.privacy.numbers import COST_UNITS, SAMPLER_DELTA
from terrine_server.privacy.parameters import MAX_SIGMA
from terrine_server.privacy.quoting import check_publishable

SCHEMA = "5c" * 32
CELLS = (70, 5, 2)


def spent_delta(
    epsilon: float, *, margins: float, questions: int, votes: float, rows: int
) -> float:
    """δ(ε) of all that is released, by the Gaussian mechanism (Balle and Wang 2018).

    One person changes two counts of a histogram by 1, and two of a row.
    """
    mu = math.sqrt(2 * questions / margins**2 + 2 * rows / votes**2)
    above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(norm.cdf(above) - math.exp(epsilon) * norm.cdf(below))


@pytest.mark.parametrize(
    ("epsilon", "units", "questions"), [(0.1, 1_000_000, 200), (1.0, 32_561, 14), (4.0, 2_000, 3)]
)
def test_histograms_and_votes_together_cost_the_budget_that_was_asked(
    epsilon: float, units: int, questions: int
) -> None:
    setting = Setting.of(units=units, rows=DESIGNED_ROWS[0], classes=2, epsilon=epsilon)
    first = setting.of_designed(cells=[70] * questions, schema_sha256=SCHEMA)
    terms, release = first.terms, first.release
    assert (terms.epsilon, terms.delta) == (epsilon, first.delta) == (epsilon, setting.delta)
    assert terms.affordable(terms.start) >= first.rows
    share = terms.start.spent / terms.budget
    assert 0.9 * MARGIN_SHARE < share <= MARGIN_SHARE, "of μ²"

    of_cells = release.sigma

    def spent(at: float) -> float:
        return spent_delta(
            at, margins=of_cells, questions=questions, votes=first.sigma, rows=first.rows
        )

    assert spent(epsilon) <= setting.delta
    assert spent(0.97 * epsilon) > setting.delta, "and nearly all of it is used"
    # δ is divided once: what converts the whole μ² into ε, and what drawing noise adds.
    mu = math.sqrt(terms.budget / COST_UNITS)
    above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    converts = float(norm.cdf(above) - math.exp(epsilon) * norm.cdf(below))
    assert 0.9999 * setting.delta < converts + terms.split.sampler <= setting.delta


def test_what_a_project_spends_is_what_a_composition_of_both_costs() -> None:
    release = Histograms(60.0, CELLS, SCHEMA)
    terms = quote(NoisyVotes(1000, 2, 300.0), 1.0, 1e-6, release=release.spec)
    account = terms.start
    assert (account.charges, account.queries, account.delta_spent) == (1, 0, SAMPLER_DELTA)
    assert terms.start.cap_spent == terms.start.spent
    for _ in range(1000):
        account = account.plus(terms.price(VoteOutcome.ANSWERED))
    assert account.charges == 1001
    known = PLDAccountant(value_discretization_interval=1e-4)
    known.compose(GaussianDpEvent(60.0 / math.sqrt(2 * len(CELLS))))
    known.compose(SelfComposedDpEvent(GaussianDpEvent(300.0 / math.sqrt(2)), 1000))
    both = known.get_epsilon(terms.split.conversion)
    assert terms.epsilon_spent(account.spent) == pytest.approx(both, rel=0.002)
    alone = PLDAccountant(value_discretization_interval=1e-4)
    alone.compose(GaussianDpEvent(60.0 / math.sqrt(2 * len(CELLS))))
    of_release = alone.get_epsilon(terms.split.conversion)
    assert terms.epsilon_spent(terms.start.spent) == pytest.approx(of_release, rel=0.002)


@pytest.mark.parametrize("order", [None, 12.0])
def test_a_release_takes_its_part_of_the_cap_whatever_rules_there_are(order: float | None) -> None:
    spec = Histograms(60.0, CELLS, SCHEMA).spec
    rule = Rule("gdp") if order is None else Rule("rdp", order)
    for of_project in (Rule("gdp"), Rule("rdp", 20.0)):
        terms = quote(GNMax(1000, 2, 60.0), 2.0, 1e-6, cap_rule=rule, rule=of_project, release=spec)
        account = terms.start
        while terms.admits(account):
            account = account.plus(terms.price(VoteOutcome.ANSWERED))
        assert account.spent <= terms.budget
        assert account.cap_spent <= terms.cap_budget
        assert account.queries == terms.affordable(terms.start)
        assert terms.affordable(terms.start) < terms.affordable(Account())
        in_rdp = 2 * len(CELLS) / (2 * 60.0**2) * (order or 1) * COST_UNITS
        expected = 2 * len(CELLS) / 60.0**2 * COST_UNITS if order is None else in_rdp
        assert terms.start.cap_spent == pytest.approx(expected, rel=0.001)


def test_published_bounds_leave_what_a_release_cost() -> None:
    plain = published_terms()
    assert plain.schedule is not None
    publishing = plain.schedule.publication, plain.schedule.counts
    terms = quote(
        GNMax(PUBLISHING_TEACHERS, PUBLISHING_CLASSES, 50.0),
        plain.epsilon,
        plain.delta,
        cap_rule=plain.cap_rule,
        publishing=publishing,
        release=Histograms(60.0, CELLS, SCHEMA).spec,
    )
    account = terms.start
    while not terms.due(account):
        account = account.plus(terms.price(VoteOutcome.ANSWERED))
    assert terms.bound(account) == account.spent - terms.start.spent
    after = terms.after_publishing(account, 0)
    assert terms.schedule is not None
    assert after.spent == terms.start.spent + terms.schedule.price.cost, "it is never given back"
    assert after.charges == account.charges + 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"cells": ()}, "cells"),
        ({"cells": (5, 1)}, "cells"),
        ({"cells": (2_000,) * 501}, "cells"),
    ],
)
def test_a_release_that_cannot_be_priced_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        replace(Histograms(60.0, CELLS, SCHEMA), **changed)  # type: ignore[arg-type]


def test_next_to_nothing_pays_for_no_histograms() -> None:
    with pytest.raises(ParameterError, match="columns"):
        plan_histograms([70] * 14, SCHEMA, 1e-4, 1e-5)
    with pytest.raises(ParameterError, match="begin with"):
        quote(NoisyVotes(1000, 2, 300.0), 0.05, 1e-6, release=Histograms(20.0, CELLS, SCHEMA).spec)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(("epsilon", "units"), [(0.02, 1_000_000), (0.1, 32_561), (4.0, 2_000)])
def test_sums_cost_the_budget_that_was_asked(epsilon: float, units: int, classes: int) -> None:
    """By the Gaussian mechanism: one person moves them by twice the norm, of two classes √5 times
    as far."""
    delta = default_delta(units)
    given = plan_norm(epsilon, delta, classes), 107, classes, SCHEMA
    release = plan_sums(*given, epsilon, delta)
    mu = (math.sqrt(20) if classes == 2 else 2) * release.norm / release.sigma
    above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    assert 0.9 * delta < norm.cdf(above) - math.exp(epsilon) * norm.cdf(below) <= delta
    assert release.sigma <= MAX_SIGMA
    coarse = (release.norm + 2) / release.norm
    assert release.norm == MAX_SUM_NORM or release.sigma * coarse > 0.97 * MAX_SIGMA
    terms = quote(SumAnswers(1, classes), epsilon, delta, release=release.spec)
    assert (terms.affordable(terms.start), terms.prices) == (0, {})
    with refuses(ParameterError, "sums"):
        quieter = Sums(float(f"{0.99 * release.sigma:.3g}"), *given)
        quote(SumAnswers(1, classes), epsilon, delta, release=quieter.spec)


def test_sums_that_would_need_too_much_noise_are_refused_with_what_would_do() -> None:
    with pytest.raises(ParameterError) as refused:
        plan_norm(1e-4, 1e-6, 2)
    wanted = float(str(refused.value).split()[-3])
    assert plan_norm(wanted, 1e-6, 2) >= MIN_SUM_NORM
    assert wanted < 0.03
    plan_sums(plan_norm(wanted, 1e-6, 2), 20, 2, SCHEMA, wanted, 1e-6)


def test_sums_and_votes_are_not_mixed() -> None:
    sums = Sums(500.0, 100, 6, 2, SCHEMA).spec
    histograms = Histograms(80.0, (5, 2), SCHEMA).spec
    counts = NoisyVotes(250, 2, 40.0)
    for mechanism, release in ((counts, sums), (SumAnswers(1, 2), None)):
        with refuses(ParameterError, "sums"):
            quote(mechanism, 4.0, 1e-6, release=release)
    with refuses(ParameterError, "sums"):
        quote(SumAnswers(1, 2), 4.0, 1e-6, release=histograms)
    with refuses(ParameterError, "worst_case"):
        check_publishable(SumAnswers(1, 2))
