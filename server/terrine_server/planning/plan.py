"""How many answers, how accurate, for which ε? A search over parameters, before anything is spent.

From parameters and expected levels of consensus, or from votes that are public or synthetic. A plan
made from votes of teachers with private training data is itself a leak, outside every budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from terrine_server.planning.accountants import (
    FILTERS,
    Accountant,
    Method,
    accountants,
    enforced,
)
from terrine_server.planning.forecast import Votes
from terrine_server.planning.grid import Grid, Spec, specifications
from terrine_server.planning.outlook import Outlook
from terrine_server.planning.publishing import PublishingPlan
from terrine_server.privacy.budget.quoting import quote
from terrine_server.privacy.parameters import (
    MAX_EPSILON,
    ParameterError,
    check_delta,
    check_epsilon,
    integer,
)

TOLERANCE = 0.01
"""Accuracy that a plan may give up, against the most accurate candidate, for more answers."""

LEAST_ANSWERED = 0.1
"""A candidate that answers a smaller share of queries is passed over, unless all do."""

DATA_DEPENDENT = "data-dependent"
"""The name of the one way of accounting that looks at (public or synthetic) votes."""


@dataclass(frozen=True)
class Candidate:
    """One set of parameters: what it answers, and what that costs under the rule that binds.

    `queries`, `answers`: expected for the ε that was asked for; None without one. `epsilon`: what
    the wanted answers need, infinite where δ does not allow them; None without such a wish.
    """

    spec: Spec
    teachers: int
    answered: float
    accuracy: float
    queries: int | None
    answers: float | None
    epsilon: float | None


@dataclass(frozen=True)
class Line:
    """What one way of accounting says of the chosen parameters.

    `name`: a `Rule`, or `DATA_DEPENDENT` with the plan's publications. `sound`: whether refusing
    by it keeps the promise towards a student who adapts.
    """

    name: str
    enforced: bool
    sound: bool
    queries: int
    answers: float
    epsilon: float


@dataclass(frozen=True)
class Plan:
    """The chosen candidate at (epsilon, delta), and every way of accounting for it.

    `epsilon` is what was asked for, or else what the wanted answers need. `labelled`: whether
    accuracy is against the truth, or against what most teachers said. `by_teachers`: the best
    candidate of each ensemble, by the same measure as `chosen`.
    """

    chosen: Candidate
    by_teachers: Sequence[Candidate]
    epsilon: float
    delta: float
    wanted: int
    labelled: bool
    lines: Sequence[Line]
    publishing: PublishingPlan | None
    candidates: Sequence[Candidate]


def plan(
    name: str,
    ensembles: Iterable[Votes],
    *,
    delta: float,
    epsilon: float | None = None,
    answers: int | None = None,
    accuracy: float | None = None,
    grid: Callable[[int], Grid] | None = None,
) -> Plan:
    """Return the best parameters of a mechanism for one of the ensembles.

    With wanted `answers`: those that need the least ε. Otherwise: those with the most answers for
    `epsilon`. Both among the candidates that are at least as accurate as `accuracy`, or else within
    `TOLERANCE` of the most accurate. `grid`: values in place of the default ones, by parameter, for
    so many teachers. Raises `ParameterError` where nothing fits.
    """
    delta = check_delta("delta", delta)
    if epsilon is None and answers is None:
        raise ParameterError("Say which epsilon may be spent, or how many answers are wanted.")
    if epsilon is not None:
        check_epsilon(epsilon)
    if answers is not None:
        integer("answers", answers, 1, 10**9, "a plan is for at least one answer")
    known = {votes.teachers: votes for votes in ensembles}
    candidates: list[Candidate] = []
    problem = ParameterError(f"There are no parameters of {name} to choose from.")
    for votes in known.values():
        given = grid(votes.teachers) if grid else {}
        for spec in specifications(name, votes.teachers, delta, given):
            try:
                candidates.append(_candidate(spec, votes, delta, epsilon, answers))
            except ParameterError as error:
                problem = error
    if not candidates:
        raise problem
    pool = _accurate(candidates, accuracy)
    chosen = max(pool, key=_worth)
    if chosen.epsilon is not None and not chosen.epsilon <= MAX_EPSILON:
        raise ParameterError(
            f"No candidate affords so many answers with an epsilon up to {MAX_EPSILON:g}. "
            "Ask for fewer, for more teachers, or allow a larger delta."
        )
    by_teachers = {each.teachers: each for each in sorted(pool, key=_worth)}
    return _account(
        chosen,
        [by_teachers[teachers] for teachers in sorted(by_teachers)],
        known[chosen.teachers],
        delta,
        epsilon,
        answers,
        candidates,
    )


def frontier(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that no other beats in both accuracy and price, best accuracy last.

    The price is the ε of the wanted answers where there is one, else the answers for the ε.
    """
    found: list[Candidate] = []
    for each in sorted(candidates, key=_worth, reverse=True):
        usable = each.answered > 0 and math.isfinite(_worth(each)[0])
        if usable and (not found or each.accuracy > found[-1].accuracy):
            found.append(each)
    return found


@dataclass(frozen=True)
class Curve:
    """ε against answers under one way of accounting."""

    name: str
    enforced: bool
    answers: Sequence[float]
    epsilons: Sequence[float]


def curves(found: Plan, votes: Votes) -> list[Curve]:
    """Return a curve for each line of a plan; `votes` are those of the chosen ensemble."""
    outlook = Outlook.of(found.chosen.spec, votes, found.delta)
    answered = outlook.expected.answered
    reach = 1.25 * max(line.answers for line in found.lines)
    answers = np.unique(np.ceil(np.linspace(1, max(2, reach), 48)))
    drawn = []
    for each in accountants(outlook.shares, found.delta, found.epsilon):
        epsilons = [outlook.epsilon(each, count) for count in answers]
        binds = any(line.enforced and line.name == each.method.value for line in found.lines)
        drawn.append(Curve(each.method.value, binds, answers.tolist(), epsilons))
    model = outlook.data_dependent(votes, found.delta)
    if found.publishing is not None:
        epsilons = np.geomspace(found.epsilon / 8, found.epsilon * 2, 24).tolist()
        counts = [model.reach(epsilon) * answered for epsilon in epsilons]
        drawn.append(Curve(DATA_DEPENDENT, False, counts, epsilons))
    return drawn


def _candidate(
    spec: Spec, votes: Votes, delta: float, epsilon: float | None, answers: int | None
) -> Candidate:
    outlook = Outlook.of(spec, votes, delta)
    queries = need = None
    if epsilon is not None:
        quote(outlook.mechanism, epsilon, delta)  # raises where not a single query is paid for
        queries = outlook.queries(enforced(outlook.shares, delta, epsilon), epsilon)
    if answers is not None:
        # An order that is fixed beforehand is fixed for this very plan: the best one for it.
        binding = enforced(outlook.shares, delta, epsilon or 1.0)
        if binding.method is Method.FIXED_ORDER:
            binding = Accountant(Method.IMPROVED, binding.delta)
        need = outlook.epsilon(binding, answers)
    answered = outlook.expected.answered
    return Candidate(
        spec=spec,
        teachers=votes.teachers,
        answered=answered,
        accuracy=outlook.expected.accuracy,
        queries=queries,
        answers=None if queries is None else queries * answered,
        epsilon=need,
    )


def _worth(candidate: Candidate) -> tuple[float, float]:
    """Order by price: the ε of the wanted answers, or the answers for the ε; then by accuracy."""
    answers, epsilon = candidate.answers, candidate.epsilon
    return (-epsilon if epsilon is not None else answers or 0.0), candidate.accuracy


def _accurate(candidates: Sequence[Candidate], accuracy: float | None) -> list[Candidate]:
    answering = [c for c in candidates if c.answered >= LEAST_ANSWERED]
    pool = answering or [c for c in candidates if c.answered > 0]
    top = max((c.accuracy for c in pool), default=0.0)
    floor = top - TOLERANCE if accuracy is None else accuracy
    good = [c for c in pool if c.accuracy >= floor]
    if not good:
        raise ParameterError(
            f"No candidate is right on {floor:.1%} of its answers; the best is on {top:.1%}. "
            "Ask for less, for more teachers, or try a finer grid."
        )
    return good


def _account(
    chosen: Candidate,
    by_teachers: Sequence[Candidate],
    votes: Votes,
    delta: float,
    epsilon: float | None,
    answers: int | None,
    candidates: Sequence[Candidate],
) -> Plan:
    outlook = Outlook.of(chosen.spec, votes, delta)
    answered = outlook.expected.answered
    asked = epsilon if epsilon is not None else _ceiling(chosen.epsilon or MAX_EPSILON)
    rules = accountants(outlook.shares, delta, asked)
    binding = enforced(outlook.shares, delta, asked)
    wanted = answers or max(1, math.floor(outlook.queries(binding, asked) * answered))
    lines = [
        Line(
            name=each.method.value,
            enforced=each.method is binding.method,
            sound=each.method in FILTERS,
            queries=(queries := outlook.queries(each, asked)),
            answers=queries * answered,
            epsilon=outlook.epsilon(each, wanted),
        )
        for each in rules
    ]
    model = outlook.data_dependent(votes, delta)
    publishing = model.plan(asked)
    if publishing is not None:
        lines.append(
            Line(
                name=DATA_DEPENDENT,
                enforced=False,
                sound=True,
                queries=publishing.queries,
                answers=publishing.queries * answered,
                epsilon=model.epsilon(outlook.queries_for(wanted)),
            )
        )
    return Plan(
        chosen=chosen,
        by_teachers=tuple(by_teachers),
        epsilon=asked,
        delta=delta,
        wanted=wanted,
        labelled=votes.labelled,
        lines=tuple(lines),
        publishing=publishing,
        candidates=tuple(candidates),
    )


def _ceiling(epsilon: float) -> float:
    """Round ε up to two digits after the point, or to two digits."""
    scale = 10.0 ** max(2, 1 - math.floor(math.log10(epsilon)))
    return math.ceil(epsilon * scale) / scale
