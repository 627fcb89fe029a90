"""One plan for each mechanism, side by side: which one to open?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from terrine_server.planning.counts import fitted_noise, sigma_for_rows
from terrine_server.planning.forecast import Votes
from terrine_server.planning.plan import Plan, plan
from terrine_server.privacy.parameters import ParameterError

LABELS = ("confident_gnmax", "gnmax", "lnmax", "stable")
"""The mechanisms that answer with labels alone and need nothing of the student."""


@dataclass(frozen=True)
class Contender:
    """A mechanism's best plan. `fitted_noise`: for noisy counts of public rows, the standard
    deviation of a share that is fitted to their features, as a share of the teachers; else None."""

    plan: Plan
    fitted_noise: float | None = None

    @property
    def right(self) -> float:
        """How many right answers are expected."""
        return (self.plan.chosen.answers or 0.0) * self.plan.chosen.accuracy


@dataclass(frozen=True)
class Rows:
    """Public rows whose noisy counts are all asked once, and fitted to so many features."""

    count: int
    features: int


def compare(
    ensembles: Sequence[Votes],
    *,
    delta: float,
    epsilon: float,
    accuracy: float | None = None,
    certain: bool = False,
    student_accuracy: float | None = None,
    rows: Rows | None = None,
) -> list[Contender]:
    """Return the best plan of each mechanism that affords anything, most right answers first.

    Without `accuracy` each mechanism is as accurate as it can be, within `plan.TOLERANCE`.
    `interactive_gnmax` takes part if it is known how often the student is right; `noisy_votes`, if
    there are `rows`. They come last: their counts are no answers by themselves, and tell more once
    they are fitted together. Raises `ParameterError` if no mechanism affords anything.
    """
    entrants = [(name, list(ensembles)) for name in LABELS]
    if student_accuracy is not None:
        asking = [votes.with_student(student_accuracy) for votes in ensembles]
        entrants.append(("interactive_gnmax", asking))
    found, problem = [], ParameterError("There is nothing to compare.")
    for name, votes in entrants:
        try:
            best = plan(
                name,
                votes,
                delta=delta,
                epsilon=epsilon,
                accuracy=accuracy,
                certain=certain,
                data_dependent=False,
            )
            found.append(Contender(best))
        except ParameterError as error:
            problem = error
    found.sort(key=lambda each: -each.right)
    if rows is not None:
        for each in ensembles:
            try:
                found.append(_counted(each, rows, delta, epsilon))
            except ParameterError as error:
                problem = error
    if not found:
        raise problem
    return found


def _counted(votes: Votes, rows: Rows, delta: float, epsilon: float) -> Contender:
    n, classes = votes.teachers, votes.counts.shape[1]
    sigma = sigma_for_rows(rows.count, n, classes, epsilon, delta)
    values = {"sigma": [sigma]}
    found = plan(
        "noisy_votes",
        [votes],
        delta=delta,
        epsilon=epsilon,
        grid=lambda _: values,
        data_dependent=False,
    )
    return Contender(found, fitted_noise(rows.count, n, sigma, rows.features))
