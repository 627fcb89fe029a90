"""A budget is divided between margins and votes so that both together keep to it."""

from __future__ import annotations

import math

import pytest
from scipy.stats import norm

from terrine_server.planning.first_project import default_delta, plan_release, sigma_for_rows
from terrine_server.privacy import NoisyVotes, ParameterError, quote

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


def test_next_to_nothing_pays_for_no_margins() -> None:
    with pytest.raises(ParameterError):
        plan_release(questions=14, cells=70, units=1_000, epsilon=1e-4, delta=1e-5)
