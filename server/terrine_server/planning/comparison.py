"""One plan for each mechanism, side by side: which one to open?"""

from __future__ import annotations

from collections.abc import Sequence

from terrine_server.planning.counts import sigma_for_rows
from terrine_server.planning.forecast import Votes
from terrine_server.planning.plan import Plan, plan
from terrine_server.privacy.parameters import ParameterError

LABELS = ("confident_gnmax", "gnmax", "lnmax", "stable")
"""The mechanisms that answer with labels alone and need nothing of the student."""


def compare(ensembles: Sequence[Votes], *, epsilon: float, delta: float, rows: int) -> list[Plan]:
    """Return the best plan of each mechanism that affords anything, most right answers first.

    `noisy_votes`, of so many public `rows`, comes last: its counts are no answers by themselves,
    and tell more once they are fitted together. Raises `ParameterError` if no mechanism affords
    anything.
    """
    found, problem = [], ParameterError("There is nothing to compare.")
    for name in LABELS:
        try:
            best = plan(name, ensembles, epsilon=epsilon, delta=delta, data_dependent=False)
            found.append(best)
        except ParameterError as error:
            problem = error
    found.sort(key=lambda each: -each.right)
    for votes in ensembles:
        try:
            found.append(plan_counts([votes], epsilon=epsilon, delta=delta, rows=rows))
        except ParameterError as error:
            problem = error
    if not found:
        raise problem
    return found


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
