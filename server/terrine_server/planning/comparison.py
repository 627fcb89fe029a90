"""One plan for each mechanism, side by side, for labels that are used one by one."""

from __future__ import annotations

from collections.abc import Sequence

from terrine_server.planning.counts import sigma_for_rows
from terrine_server.planning.forecast import Votes
from terrine_server.planning.plan import Plan, plan
from terrine_server.privacy.parameters import ParameterError

LABELS = ("confident_gnmax", "gnmax", "lnmax", "stable")
"""The mechanisms that answer with labels alone and need nothing of the student."""


def compare(ensembles: Sequence[Votes], *, epsilon: float, delta: float) -> list[Plan]:
    """Return the best plan of each mechanism that affords anything, most right answers first.

    Raises `ParameterError` if no mechanism affords anything.
    """
    found, problem = [], ParameterError("There is nothing to compare.")
    for name in LABELS:
        try:
            best = plan(name, ensembles, epsilon=epsilon, delta=delta, data_dependent=False)
            found.append(best)
        except ParameterError as error:
            problem = error
    if not found:
        raise problem
    return sorted(found, key=lambda each: -each.right)


def plan_counts(ensembles: Sequence[Votes], *, epsilon: float, delta: float, rows: int) -> Plan:
    """Return a plan of `noisy_votes` whose budget pays for each of the rows once.

    Raises `ParameterError` if that takes more noise than can be drawn.
    """
    classes = {votes.teachers: votes.counts.shape[1] for votes in ensembles}
    return plan(
        "noisy_votes",
        ensembles,
        epsilon=epsilon,
        delta=delta,
        grid=lambda n: {"sigma": [sigma_for_rows(rows, n, classes[n], epsilon, delta)]},
        data_dependent=False,
    )
