"""A budget is divided between margins and votes so that both together keep to it."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from terrine_server.planning.first_project import (
    MARGIN_EPSILONS,
    default_delta,
    plan_release,
    sigma_for_rows,
)
from terrine_server.privacy import NoisyVotes, ParameterError, quote
from terrine_server.privacy.parameters import MAX_SIGMA

ROWS = 8_000


def spent_delta(
    epsilon: float, *, margins: float, questions: int, votes: float, rows: int
) -> float:
    """δ(ε) of all that is released, by the Gaussian mechanism (Balle and Wang 2018).

    One person changes two counts of a question by 1, and two of a row.
    """
    mu = math.sqrt(2 * questions / margins**2 + 2 * rows / votes**2)
    above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(norm.cdf(above) - math.exp(epsilon) * norm.cdf(below))


@pytest.mark.parametrize(
    ("epsilon", "units", "questions"), [(0.1, 1_000_000, 200), (1.0, 32_561, 14), (4.0, 2_000, 3)]
)
def test_margins_and_votes_together_keep_to_the_budget(
    epsilon: float, units: int, questions: int
) -> None:
    delta = default_delta(units)
    found = plan_release(questions=questions, cells=70, units=units, epsilon=epsilon, delta=delta)
    assert 0 < found.epsilon < found.votes_epsilon < epsilon
    sigma = sigma_for_rows(ROWS, 500, 2, found.votes_epsilon, delta)
    paid = quote(NoisyVotes(500, 2, sigma), found.votes_epsilon, delta)

    def spent(at: float) -> float:
        return spent_delta(at, margins=found.sigma, questions=questions, votes=sigma, rows=ROWS)

    assert spent(epsilon) <= delta
    # And most of it is used.
    assert spent(0.95 * epsilon) > delta
    assert paid.epsilon == found.votes_epsilon


@pytest.mark.parametrize("epsilon", [0.37, 0.7, 0.77, 0.81, 0.95, 1.82])
def test_each_project_adds_the_delta_of_its_sampler_once(epsilon: float) -> None:
    """At budgets so close to a step of the grid that a thousandth of δ decides which is taken."""
    delta, mechanism = 1e-6, NoisyVotes(1_000, 8, MAX_SIGMA)
    found = plan_release(questions=14, cells=8, units=1_000, epsilon=epsilon, delta=delta)

    def total(votes_epsilon: float) -> float:
        """δ of both: of their μ together, and of drawing noise for each."""
        terms = [quote(mechanism, each, delta) for each in (found.epsilon, votes_epsilon)]
        mu = math.sqrt(sum(each.budget for each in terms) * 1e-12)
        above, below = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        conversion = float(norm.cdf(above) - math.exp(epsilon) * norm.cdf(below))
        return conversion + sum(each.split.sampler for each in terms)

    assert total(found.votes_epsilon) <= delta
    next_step = MARGIN_EPSILONS[MARGIN_EPSILONS.index(found.votes_epsilon) + 1]
    assert total(next_step) > 0.999 * delta


def test_next_to_nothing_pays_for_no_margins() -> None:
    with pytest.raises(ParameterError):
        plan_release(questions=14, cells=70, units=1_000, epsilon=1e-4, delta=1e-5)
