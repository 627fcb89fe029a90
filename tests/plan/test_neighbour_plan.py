"""Radius, noise and allowance of neighbours, by public figures alone."""

from __future__ import annotations

import numpy as np
import pytest

from support.wording import refuses
from terrine_server.planning.first_project import default_near, has_less_noise, plan_neighbours
from terrine_server.privacy import ParameterError, build_mechanism, quote


def spent(mean: float) -> np.ndarray:
    """‖v‖² in a query of 2,000 stand-ins, a tenth of them ten times as often near as others."""
    random = np.random.default_rng(0)
    uneven = np.where(random.random(2_000) < 0.1, 10.0, 1.0)
    return random.gamma(4.0, mean / 4, 2_000) * uneven


@pytest.mark.parametrize("epsilon", [0.03, 0.3, 3.0])
def test_the_terms_that_open_are_those_of_the_plan(epsilon: float) -> None:
    found = plan_neighbours(
        spent(0.002), units=60_000, near=120, queries=10_000, epsilon=epsilon, delta=1e-6
    )
    spec = {"name": "neighbours", "sigma": found.sigma, "queries": found.queries}
    terms = quote(build_mechanism(spec, teachers=60_000, classes=10), epsilon, 1e-6)
    assert terms.allowance is not None
    assert terms.allowance.most == found.allowance
    less = {**spec, "sigma": found.sigma * 0.9}
    fewer = quote(build_mechanism(less, teachers=60_000, classes=10), epsilon, 1e-6).allowance
    assert fewer is not None
    assert fewer.most < int(np.quantile(spent(0.002) * 10_000, 0.5)) <= found.allowance


def test_about_half_last_and_the_others_vote_until_then() -> None:
    each = spent(0.002)
    found = plan_neighbours(each, units=60_000, near=120, queries=10_000, epsilon=1, delta=1e-6)
    assert 0.4 <= found.retired <= 0.6
    kept = np.minimum(each * 10_000, found.allowance).mean() / 10_000 * 60_000
    assert found.votes == pytest.approx(kept)
    assert found.votes < each.mean() * 60_000


def test_smaller_budgets_ask_more_units_and_never_more_than_are_local() -> None:
    asked = [default_near(60_000, 10_000, epsilon, 1e-6) for epsilon in (3, 1, 0.3, 0.1, 0.03)]
    assert asked == sorted(asked)
    assert asked[0] == 100
    assert asked[-1] == 960
    assert default_near(3_000, 20_000, 0.1, 1e-5) == 100
    assert default_near(5, 20_000, 0.1, 1e-5) == 1


def test_many_units_have_quieter_votes_than_teachers_and_few_do_not() -> None:
    assert has_less_noise(60_000, 120, 2_000), "MNIST"
    assert not has_less_noise(3_300, 110, 825), "aircraft"


def test_what_no_noise_allows_is_refused() -> None:
    with refuses(ParameterError, "noise"):
        plan_neighbours(
            np.ones(10), units=60_000, near=120, queries=10_000_000, epsilon=1e-4, delta=1e-9
        )
