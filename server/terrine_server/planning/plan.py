"""How many answers, how accurate, for which ε? A search over parameters, before anything is spent.

It uses expected levels of consensus, or votes that are public or synthetic. A plan made from votes
of teachers with private training data is itself a leak, outside every budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from terrine_server.planning.accountants import FILTERS, Accountant, Method, accountants
from terrine_server.planning.forecast import Votes
from terrine_server.planning.grid import Grid, Spec, specifications
from terrine_server.planning.opening import (
    Division,
    Quote,
    divisions,
    needed_epsilon,
    quick_quote,
    quotes,
)
from terrine_server.planning.outlook import Outlook
from terrine_server.planning.publishing import PublishingPlan
from terrine_server.privacy.budget.quoting import cap_order
from terrine_server.privacy.budget.rules import Rule
from terrine_server.privacy.mechanisms.base import VoteOutcome
from terrine_server.privacy.parameters import (
    MAX_EPSILON,
    ParameterError,
    check_delta,
    check_epsilon,
    integer,
)

TOLERANCE = 0.01
"""How much less accurate than the best candidate a plan may be, to get more answers."""

LEAST_ANSWERED = 0.1
"""Candidates that answer a smaller share of queries are skipped, unless all do."""

DATA_DEPENDENT = "data-dependent"
"""The name of the only accounting method that uses (public or synthetic) votes."""

JOINT = "joint RDP"
"""The name of the method that prices a test and the noisy maximum as one release."""


@dataclass(frozen=True)
class Candidate:
    """One set of parameters: what it answers, and what that costs under the enforced rule.

    `queries`, `answers`: expected for the requested ε, None without one. In a plan for `certain`
    queries: those that fit whatever their outcomes, and the answers expected of those. `epsilon`:
    the ε of the wanted answers, infinite if δ does not allow them, None if none are wanted.
    """

    spec: Spec
    teachers: int
    answered: float
    accuracy: float
    queries: int | None
    answers: float | None
    epsilon: float | None


@dataclass(frozen=True)
class PlanLine:
    """The result of one accounting method for the chosen parameters.

    `name`: a `Method`, `JOINT`, or `DATA_DEPENDENT` with the plan's publications. `sound`: whether
    the guarantee holds if the method decides refusals and students adapt.
    """

    name: str
    enforced: bool
    sound: bool
    queries: int
    answers: float
    epsilon: float


@dataclass(frozen=True)
class Plan:
    """The chosen candidate at (epsilon, delta), with every accounting method.

    `epsilon` is the requested ε, or else the ε of the wanted answers. `labelled`: whether accuracy
    is measured against the truth or against the plurality. `by_teachers`: the best candidate
    of each ensemble, by the same measure as `chosen`. `quotes`: the rules that the project can be
    opened under, on an ensemble whose cap is in Rényi DP; the first buys most. `pass_rate`: the
    expectation that they rest on. `divisions`: other ways to divide the first one's price.
    `certain`: whether candidates were compared by the queries that fit whatever their outcomes.
    """

    chosen: Candidate
    by_teachers: Sequence[Candidate]
    epsilon: float
    delta: float
    wanted: int
    labelled: bool
    lines: Sequence[PlanLine]
    publishing: PublishingPlan | None
    candidates: Sequence[Candidate]
    pass_rate: float
    quotes: Sequence[Quote]
    divisions: Sequence[Division]
    certain: bool


def plan(
    name: str,
    ensembles: Iterable[Votes],
    *,
    delta: float,
    epsilon: float | None = None,
    answers: int | None = None,
    accuracy: float | None = None,
    grid: Callable[[int], Grid] | None = None,
    certain: bool = False,
    data_dependent: bool = True,
) -> Plan:
    """Return the best parameters of a mechanism for one of the ensembles.

    With wanted `answers`, these need the least ε. Otherwise they give the most answers for
    `epsilon`. Candidates must be at least as accurate as `accuracy`, by default within `TOLERANCE`
    of the most accurate. `grid` returns, for a number of teachers, values that replace the defaults
    of each parameter. `certain`: compare by the queries that `epsilon` pays for whatever their
    outcomes, and try one price for both outcomes, which makes most queries certain.
    `data_dependent`: whether to plan publications as well, which takes longest. Raises
    `ParameterError` if nothing fits.
    """
    delta = check_delta("delta", delta)
    if epsilon is None and answers is None:
        raise ParameterError("Give the epsilon that may be spent or the number of answers wanted.")
    if certain and (epsilon is None or answers is not None):
        raise ParameterError("How many queries are certain can be planned for an epsilon alone.")
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
                candidates.append(_candidate(spec, votes, delta, epsilon, answers, certain))
                if certain and "threshold" in spec:
                    flat = {**spec, "answer_share": 1.0}
                    candidates.append(_candidate(flat, votes, delta, epsilon, answers, certain))
            except ParameterError as error:
                problem = error
    if not candidates:
        raise problem
    pool = _accurate(candidates, accuracy)
    chosen = max(pool, key=_worth)
    if chosen.epsilon is not None and not chosen.epsilon <= MAX_EPSILON:
        raise ParameterError(
            f"No candidate affords this many answers with an epsilon up to {MAX_EPSILON:g}. "
            "Plan fewer answers, more teachers or a larger delta."
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
        data_dependent,
        certain,
    )


def frontier(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidates that no other beats in both accuracy and price, best accuracy last.

    The price is the ε of the wanted answers, or else the number of answers for the given ε.
    """
    found: list[Candidate] = []
    for each in sorted(candidates, key=_worth, reverse=True):
        usable = each.answered > 0 and math.isfinite(_worth(each)[0])
        if usable and (not found or each.accuracy > found[-1].accuracy):
            found.append(each)
    return found


@dataclass(frozen=True)
class Curve:
    """ε against answers for one accounting method."""

    name: str
    enforced: bool
    answers: Sequence[float]
    epsilons: Sequence[float]


def curves(found: Plan, votes: Votes) -> list[Curve]:
    """Return a curve for each line of a plan; `votes` are the votes of the chosen ensemble."""
    outlook = Outlook.of(found.chosen.spec, votes, found.delta)
    answered = outlook.expected.answered
    ways = _ways(outlook, found.quotes, votes, found.chosen.spec, found.delta, found.epsilon)
    reach = 1.25 * max(line.answers for line in found.lines)
    answers = np.unique(np.ceil(np.linspace(1, max(2, reach), 48)))
    drawn = []
    for name, look, each, binds in ways:
        epsilons = [look.epsilon(each, count) for count in answers]
        drawn.append(Curve(name, binds, answers.tolist(), epsilons))
    model = outlook.data_dependent(votes, found.delta)
    if found.publishing is not None:
        epsilons = np.geomspace(found.epsilon / 8, found.epsilon * 2, 24).tolist()
        counts = [model.reach(epsilon) * answered for epsilon in epsilons]
        drawn.append(Curve(DATA_DEPENDENT, False, counts, epsilons))
    return drawn


def _candidate(
    spec: Spec,
    votes: Votes,
    delta: float,
    epsilon: float | None,
    answers: int | None,
    certain: bool,
) -> Candidate:
    outlook = Outlook.of(spec, votes, delta)
    queries = need = None
    rate, answered = _pass_rate(outlook), outlook.expected.answered
    if epsilon is not None:
        best = quick_quote(outlook.mechanism, epsilon, delta, rate)
        fit = best.considered.queries if certain else int(best.answers / rate)
        queries = min(outlook.most, fit)
    if answers is not None:
        # The expected number that passes the test, of as many queries as give the answers.
        passing = answers * rate / answered if answered > 0 else math.inf
        need = needed_epsilon(outlook.mechanism, delta, rate, passing)
    return Candidate(
        spec=spec,
        teachers=votes.teachers,
        answered=answered,
        accuracy=outlook.expected.accuracy,
        queries=queries,
        answers=None if queries is None else queries * answered,
        epsilon=need,
    )


def _pass_rate(outlook: Outlook) -> float:
    """Return the share of queries that pay for an answer, with the digits that a command shows."""
    return float(f"{max(outlook.expected.shares[VoteOutcome.ANSWERED], 1e-6):.3g}")


def _worth(candidate: Candidate) -> tuple[float, float]:
    """Sort key: the ε of the wanted answers, or the answers for the ε; then the accuracy."""
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
            f"No candidate is right on {floor:.1%} of its answers; the best one is on {top:.1%}. "
            "Plan less accuracy or more teachers, or try a finer grid."
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
    data_dependent: bool,
    certain: bool,
) -> Plan:
    outlook = Outlook.of(chosen.spec, votes, delta)
    answered = outlook.expected.answered
    planned = epsilon if epsilon is not None else _ceiling(chosen.epsilon or MAX_EPSILON)
    rate = _pass_rate(outlook)
    cap_rule = Rule("rdp", cap_order(planned, delta))
    found = quotes(outlook.mechanism, planned, delta, cap_rule=cap_rule, pass_rate=rate)
    ways = _ways(outlook, found, votes, chosen.spec, delta, planned)
    best, accountant = next((look, each) for _, look, each, binds in ways if binds)
    wanted = answers or max(1, math.floor(best.queries(accountant, planned) * answered))
    lines = [
        PlanLine(
            name=name,
            enforced=binds,
            sound=each.method in FILTERS,
            queries=(queries := look.queries(each, planned)),
            answers=queries * answered,
            epsilon=look.epsilon(each, wanted),
        )
        for name, look, each, binds in ways
    ]
    model = outlook.data_dependent(votes, delta) if data_dependent else None
    publishing = None if model is None else model.plan(planned)
    if model is not None and publishing is not None:
        lines.append(
            PlanLine(
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
        epsilon=planned,
        delta=delta,
        wanted=wanted,
        labelled=votes.labelled,
        lines=tuple(lines),
        publishing=publishing,
        candidates=tuple(candidates),
        pass_rate=rate,
        quotes=tuple(found),
        divisions=divisions(found[0], rate),
        certain=certain,
    )


def _ways(
    outlook: Outlook,
    found: Sequence[Quote],
    votes: Votes,
    spec: Spec,
    delta: float,
    epsilon: float,
) -> list[tuple[str, Outlook, Accountant, bool]]:
    """Return every accounting method by name, with the outlook that it prices, and if it binds."""
    best = found[0]
    apart = [quoted for quoted in found if quoted.answer_share is None]
    fixed = next((quoted.terms.rule.order for quoted in apart if quoted.terms.rule.order), None)
    binding = Method.GDP if best.terms.rule.order is None else Method.FIXED_ORDER
    ways = [
        (each.method.value, outlook, each, best.answer_share is None and each.method is binding)
        for each in accountants(outlook.shares, delta, epsilon, fixed)
    ]
    for quoted in found:
        if quoted.answer_share is not None:
            look = Outlook.of(quoted.specification(spec), votes, delta)
            each = Accountant(
                Method.FIXED_ORDER, quoted.terms.split.conversion, quoted.terms.rule.order
            )
            ways.append((JOINT, look, each, quoted is best))
    return ways


def _ceiling(epsilon: float) -> float:
    """Round ε up to two decimal places, or to two significant digits if it is small."""
    scale = 10.0 ** max(2, 1 - math.floor(math.log10(epsilon)))
    return math.ceil(epsilon * scale) / scale
