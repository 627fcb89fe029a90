"""Propose how a data-dependent project publishes, from expected votes, before the first query.

The votes are synthetic or public. A choice made by looking at private votes would reveal something
about them.
"""

from __future__ import annotations

from collections.abc import Sequence

from terrine_server.planning.forecast import Forecast, Votes, forecast
from terrine_server.planning.grid import Spec
from terrine_server.planning.opening import quotes
from terrine_server.planning.publishing import DataDependent
from terrine_server.privacy.budget.rules import Rule
from terrine_server.privacy.budget.terms import Terms
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.parameters import ParameterError
from terrine_server.privacy.published.release import BoundRelease


def propose(
    spec: Spec,
    votes: Votes,
    *,
    epsilon: float,
    delta: float,
    order: float,
) -> tuple[BoundRelease, Sequence[int]]:
    """Return the release and the schedule that are expected to reach the most queries.

    Raises `ParameterError` if publishing is not expected to reach more queries than the worst case.
    """
    mechanism = build_mechanism(spec, teachers=votes.teachers, classes=votes.counts.shape[1])
    expected = forecast(mechanism, votes)
    found = quotes(mechanism, epsilon, delta, cap_rule=Rule("rdp", order), pass_rate=1.0)
    worst_case = max(
        _queries(quoted.terms, expected) for quoted in found if quoted.answer_share is None
    )
    model = DataDependent(mechanism, votes, expected, delta=delta, orders=(order,))
    best = model.plan(epsilon)
    if best is None or best.queries <= worst_case:
        reach = "gains nothing" if best is None else f"reaches about {best.queries} queries"
        raise ParameterError(
            f"Publishing cannot pay for itself here: on the expected consensus it {reach}, and "
            f'worst-case accounting reaches {worst_case}. Use accounting "worst_case", or try more '
            "teachers, less noise, a larger epsilon or another order of the cap."
        )
    return best.publication, best.schedule


def _queries(terms: Terms, expected: Forecast) -> int:
    """Return how many queries are expected to fit if each costs its worst case."""
    mean = sum(share * terms.prices[outcome].cost for outcome, share in expected.shares.items())
    fit = int((terms.budget - terms.worst.cost) / mean * (1 + 1e-12)) + 1
    return min(fit, terms.delta_budget // terms.worst.delta)
