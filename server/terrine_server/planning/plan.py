"""How many answers, how accurate, for which ε? A search over parameters, before anything is spent.

It uses expected levels of consensus, or votes that are public or synthetic. A plan made from votes
of teachers with private training data is itself a leak, outside every budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from itertools import product

from terrine_server.planning.expected import (
    ExpectedOutcomes,
    Votes,
    expected_outcomes,
    expected_pass_rate,
)
from terrine_server.planning.first_project import sigma_for_rows
from terrine_server.planning.opening import Quote, Spec, expected_answers, quick_quote, quotes
from terrine_server.planning.publishing import (
    NUMBERS_OF_PUBLICATIONS,
    DataDependent,
    PublishingPlan,
)
from terrine_server.privacy.mechanisms import COMPARED, MECHANISMS, build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism, VoteOutcome
from terrine_server.privacy.mechanisms.registration import Grid, MechanismKind
from terrine_server.privacy.parameters import (
    ParameterError,
    check_delta,
    check_epsilon,
)
from terrine_server.privacy.quoting import cap_order
from terrine_server.privacy.rules import Rule


def _find_kind(name: str) -> MechanismKind:
    if name not in MECHANISMS:
        raise ParameterError(
            f"No mechanism is called {name!r}. Use one of {', '.join(MECHANISMS)}."
        )
    return MECHANISMS[name]


def specifications(name: str, teachers: int, delta: float, given: Grid) -> list[Spec]:
    """Return every combination of a grid's values; `given` values replace the defaults.

    An optional parameter that is given takes the place of those that the mechanism's own grid has.
    Raises `ParameterError` on a parameter that the mechanism does not have.
    """
    kind = _find_kind(name)
    ensemble = ("teachers", "classes")
    known = {k: each for k, each in signature(kind).parameters.items() if k not in ensemble}
    if unknown := given.keys() - known.keys():
        raise ParameterError(
            f"{name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(known)}."
        )
    grid = dict(kind.plan_grid(teachers, delta))
    optional = {each.name for each in known.values() if each.default is not Parameter.empty}
    if given.keys() & optional:
        grid = {parameter: tried for parameter, tried in grid.items() if parameter not in optional}
    grid |= given
    whole = {each.name for each in known.values() if each.annotation in (int, "int")}
    return [
        {"name": name}
        | {k: round(v) if k in whole else float(v) for k, v in zip(grid, values, strict=True)}
        for values in product(*grid.values())
    ]


# How much less accurate than the best candidate a plan may be, to get more answers.
ACCURACY_TOLERANCE = 0.01

# Candidates that answer a smaller share of queries are skipped, unless all do.
MIN_ANSWERED_SHARE = 0.1


@dataclass(frozen=True)
class Candidate:
    """One set of parameters: what it answers, and how many queries and answers that buys.

    Expected, for the ε and δ of the plan, under the rule that buys the most answers; of votes that
    were cast, no more than are counted on (`Quote.cautious`).
    """

    spec: Spec
    teachers: int
    answered: float
    accuracy: float
    queries: int
    answers: float


@dataclass(frozen=True)
class Plan:
    """The best candidate at (epsilon, delta), and what a project with it can be opened under.

    `labelled`: whether accuracy is measured against the truth or against the plurality.
    `by_teachers`: the best candidate of each ensemble. `quotes`: for each rule that the project can
    be opened under, on an ensemble whose cap is in Rényi DP; it takes the first. `pass_rate`: the
    share of queries by which answers are counted. `rate_is_shown`: whether votes that were cast
    show it; then prices are divided by it, and by one that is assumed none is. `published`: the
    best candidate of a data-dependent project, on the same ensemble as `chosen`; `publishing`: how
    it would publish, None if that buys nothing or was not asked for.
    """

    chosen: Candidate
    by_teachers: Sequence[Candidate]
    epsilon: float
    delta: float
    labelled: bool
    candidates: Sequence[Candidate]
    pass_rate: float
    rate_is_shown: bool
    quotes: Sequence[Quote]
    published: Candidate
    publishing: PublishingPlan | None

    @property
    def right(self) -> float:
        """How many right answers are expected."""
        return self.chosen.answers * self.chosen.accuracy


def plan(
    name: str,
    ensembles: Iterable[Votes],
    *,
    epsilon: float,
    delta: float,
    grid: Callable[[int], Grid] | None = None,
    data_dependent: bool = True,
) -> Plan:
    """Return the parameters of a mechanism that buy the most answers from one of the ensembles.

    Candidates must be within `ACCURACY_TOLERANCE` of the most accurate. `grid` returns, for a
    number of teachers, values that replace the defaults of each parameter. `data_dependent`:
    whether to plan publications as well, which takes longest.
    Raises `ParameterError` if nothing fits.
    """
    delta = check_delta("delta", delta)
    check_epsilon(epsilon)
    if _find_kind(name).needs_probabilities:
        ensembles = [each.with_expected_student() for each in ensembles]
    known = {votes.teachers: votes for votes in ensembles}
    candidates: list[Candidate] = []
    problem = ParameterError(f"There are no parameters of {name} to choose from.")
    for votes in known.values():
        given = grid(votes.teachers) if grid else {}
        for spec in specifications(name, votes.teachers, delta, given):
            try:
                candidates.append(_candidate(spec, votes, epsilon, delta))
            except ParameterError as error:
                problem = error
    if not candidates:
        raise problem
    pool = _keep_accurate(candidates)
    by_teachers = {each.teachers: each for each in sorted(pool, key=_worth)}
    chosen = max(pool, key=_worth)
    votes = known[chosen.teachers]
    mechanism, _, rate = _forecast_spec(chosen.spec, votes)
    published, publishing = chosen, None
    if data_dependent:
        alike = [each for each in pool if each.teachers == chosen.teachers]
        published, publishing = _choose_published(alike, chosen, votes, epsilon, delta)
    return Plan(
        chosen=chosen,
        by_teachers=tuple(by_teachers[teachers] for teachers in sorted(by_teachers)),
        epsilon=epsilon,
        delta=delta,
        labelled=votes.labelled,
        candidates=tuple(candidates),
        pass_rate=rate,
        rate_is_shown=votes.cast,
        quotes=_quotes(mechanism, epsilon, delta, rate, shown=votes.cast),
        published=published,
        publishing=publishing,
    )


def _choose_published(
    candidates: Sequence[Candidate], chosen: Candidate, votes: Votes, epsilon: float, delta: float
) -> tuple[Candidate, PublishingPlan | None]:
    """Return the candidate that data-dependent accounting buys the most answers of, and how.

    It needs less noise than the one that is best in the worst case: where the vote is clear, less
    noise costs next to nothing. Each publication frees at most the whole budget again, so that a
    candidate is left out whose worst case is too far behind.
    """
    best, how, most = chosen, None, 0.0
    for each in sorted(candidates, key=_worth, reverse=True):
        if (max(NUMBERS_OF_PUBLICATIONS) + 1) * each.answers <= most:
            break
        mechanism, _, _ = _forecast_spec(each.spec, votes)
        found = DataDependent(mechanism, votes, delta=delta).plan(epsilon)
        if found is not None and found.queries * each.answered > most:
            best, how, most = each, found, found.queries * each.answered
    return best, how


def _candidate(spec: Spec, votes: Votes, epsilon: float, delta: float) -> Candidate:
    mechanism, expected, rate = _forecast_spec(spec, votes)
    quoted = quick_quote(mechanism, epsilon, delta, rate, guessed=not votes.cast)
    queries, answered = int(quoted.answers / rate), expected.answered
    answers = quoted.cautious(rate).answers if votes.cast else queries * answered
    return Candidate(spec, votes.teachers, answered, expected.accuracy, queries, answers)


def _quotes(
    mechanism: Mechanism, epsilon: float, delta: float, pass_rate: float, *, shown: bool
) -> tuple[Quote, ...]:
    """Return what a project would choose from, with the answers of this pass rate.

    If votes show the rate, with those that are counted on.
    """
    found = quotes(
        mechanism,
        epsilon,
        delta,
        cap_rule=Rule("rdp", cap_order(epsilon, delta)),
        pass_rate=pass_rate if shown else expected_pass_rate(mechanism),
        guessed=not shown,
    )
    if shown:
        return tuple(each.cautious(pass_rate) for each in found)
    return tuple(replace(each, answers=expected_answers(each.terms, pass_rate)) for each in found)


def _forecast_spec(spec: Spec, votes: Votes) -> tuple[Mechanism, ExpectedOutcomes, float]:
    """Return a mechanism with its forecast, and the share of queries that pay for an answer.

    The share has the digits that a command shows.
    """
    mechanism = build_mechanism(spec, teachers=votes.teachers, classes=votes.counts.shape[1])
    expected = expected_outcomes(mechanism, votes)
    rate = float(f"{max(expected.shares[VoteOutcome.ANSWERED], 1e-6):.3g}")
    return mechanism, expected, rate


def _worth(candidate: Candidate) -> tuple[float, float]:
    """Sort key: the answers, then the accuracy."""
    return candidate.answers, candidate.accuracy


def _keep_accurate(candidates: Sequence[Candidate]) -> list[Candidate]:
    answering = [c for c in candidates if c.answered >= MIN_ANSWERED_SHARE]
    pool = answering or [c for c in candidates if c.answered > 0]
    top = max((c.accuracy for c in pool), default=0.0)
    good = [c for c in pool if c.accuracy >= top - ACCURACY_TOLERANCE]
    if not good:
        raise ParameterError("No candidate answers any query. Plan more teachers.")
    return good


def compare(ensembles: Sequence[Votes], *, epsilon: float, delta: float) -> list[Plan]:
    """Return the best plan of each mechanism that affords anything, most right answers first.

    Raises `ParameterError` if no mechanism affords anything.
    """
    found, problem = [], ParameterError("There is nothing to compare.")
    for name in COMPARED:
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
