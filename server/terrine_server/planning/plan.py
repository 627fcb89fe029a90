"""How many answers, how accurate, for which ε? A search over parameters, before anything is spent.

It uses expected levels of consensus, or votes that are public or synthetic. A plan made from votes
of teachers with private training data is itself a leak, outside every budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from terrine_server.planning.consensus import ExpectedOutcomes, Votes, expected_outcomes
from terrine_server.planning.first_project import sigma_for_rows
from terrine_server.planning.opening import (
    Quote,
    Spec,
    expected_answers,
    expected_pass_rate,
    quick_quote,
    quotes,
)
from terrine_server.planning.publishing import DataDependent, PublishingPlan
from terrine_server.privacy.budget import Rule
from terrine_server.privacy.mechanisms import (
    MECHANISMS,
    Mechanism,
    VoteOutcome,
    build_mechanism,
)
from terrine_server.privacy.parameters import (
    MAX_GAMMA,
    MAX_SIGMA,
    MIN_GAMMA,
    MIN_SIGMA,
    ParameterError,
    check_delta,
    check_epsilon,
)
from terrine_server.privacy.quoting import cap_order, split_delta

Grid = Mapping[str, Sequence[float]]
"""Values of each parameter."""
NOISE_SHARES = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3)
"""Noise as shares of the teachers. Less is expensive, more drowns the vote."""


def default_grid(name: str, teachers: int, delta: float) -> dict[str, Sequence[float]]:
    """Return the values of each parameter that a plan tries by default."""
    sigmas = _rounded(teachers, NOISE_SHARES)
    match name:
        case "gnmax" | "noisy_votes":
            return {"sigma": sigmas}
        case "lnmax":
            scales = [1 / (teachers * spread) for spread in NOISE_SHARES]
            return {"gamma": _distinct(_clip(g, MIN_GAMMA, MAX_GAMMA) for g in scales)}
        case "confident_gnmax" | "interactive_gnmax":
            shares = (0.5, 0.6, 0.7, 0.8, 0.9) if name == "confident_gnmax" else (0.3, 0.5, 0.7)
            grid: dict[str, Sequence[float]] = {
                "threshold": sorted({round(share * teachers) for share in shares}),
                "sigma1": _rounded(teachers, (0.1, 0.2, 0.3, 0.6)),
                "sigma2": _rounded(teachers, NOISE_SHARES[2:]),
            }
            return grid if name == "confident_gnmax" else grid | {"confidence": [0.9]}
        case "stable":
            each = [split_delta([], delta).conversion / 20 / queries for queries in (50, 500, 5000)]
            return {"sigma": sigmas, "delta_per_query": _distinct(each)}
        case "immutable":
            return {"sigma": sigmas, "c": [0, 1, 2, 5]}
        case "neighbours":
            raise ParameterError(
                "neighbours cannot be planned from a number of teachers: what it answers depends "
                "on how many people are near a query. See docs/privacy/neighbours.md."
            )
    raise ParameterError(f"No mechanism is called {name!r}. Use one of {', '.join(MECHANISMS)}.")


def specifications(name: str, teachers: int, delta: float, given: Grid) -> list[Spec]:
    """Return every combination of a grid's values; `given` values replace the defaults.

    Raises `ParameterError` on a parameter that the mechanism does not have.
    """
    grid = default_grid(name, teachers, delta)
    if name == "immutable" and "gamma" in given:
        del grid["sigma"]
        grid["gamma"] = []
    if "threshold" in grid and "answer_share" in given:
        grid["answer_share"] = []
    if unknown := given.keys() - grid.keys():
        raise ParameterError(
            f"{name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(grid)}."
        )
    grid |= given
    names = list(grid)
    return [
        {"name": name} | {k: _as_parameter(k, v) for k, v in zip(names, values, strict=True)}
        for values in product(*grid.values())
    ]


def _as_parameter(parameter: str, value: float) -> float:
    return round(value) if parameter in ("threshold", "c") else float(value)


def _rounded(teachers: int, shares: Iterable[float]) -> list[float]:
    return _distinct(_clip(teachers * share, MIN_SIGMA, MAX_SIGMA) for share in shares)


def _distinct(values: Iterable[float]) -> list[float]:
    """Round to three digits, which are enough to choose from and easy to type."""
    return sorted({float(f"{value:.3g}") for value in values})


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


ACCURACY_TOLERANCE = 0.01
"""How much less accurate than the best candidate a plan may be, to get more answers."""

MIN_ANSWERED_SHARE = 0.1
"""Candidates that answer a smaller share of queries are skipped, unless all do."""


@dataclass(frozen=True)
class Candidate:
    """One set of parameters: what it answers, and how many queries and answers that buys.

    Expected, for the ε and δ of the plan, under the rule that buys the most answers.
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
    guess by which answers are counted; no price is divided by it. `publishing`: how a
    data-dependent project would publish, None if that buys nothing or was not asked for.
    """

    chosen: Candidate
    by_teachers: Sequence[Candidate]
    epsilon: float
    delta: float
    labelled: bool
    candidates: Sequence[Candidate]
    pass_rate: float
    quotes: Sequence[Quote]
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
    accuracy: float | None = None,
    grid: Callable[[int], Grid] | None = None,
    data_dependent: bool = True,
) -> Plan:
    """Return the parameters of a mechanism that buy the most answers from one of the ensembles.

    Candidates must be at least as accurate as `accuracy`, by default within `ACCURACY_TOLERANCE` of
    the most accurate. `grid` returns, for a number of teachers, values that replace the defaults of
    each parameter. `data_dependent`: whether to plan publications as well, which takes longest.
    Raises `ParameterError` if nothing fits.
    """
    delta = check_delta("delta", delta)
    check_epsilon(epsilon)
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
    pool = _keep_accurate(candidates, accuracy)
    by_teachers = {each.teachers: each for each in sorted(pool, key=_worth)}
    chosen = max(pool, key=_worth)
    votes = known[chosen.teachers]
    mechanism, _, rate = _expected(chosen.spec, votes)
    publishing = None
    if data_dependent:
        publishing = DataDependent(mechanism, votes, delta=delta).plan(epsilon)
    return Plan(
        chosen=chosen,
        by_teachers=tuple(by_teachers[teachers] for teachers in sorted(by_teachers)),
        epsilon=epsilon,
        delta=delta,
        labelled=votes.labelled,
        candidates=tuple(candidates),
        pass_rate=rate,
        quotes=_quotes(mechanism, epsilon, delta, rate),
        publishing=publishing,
    )


def _candidate(spec: Spec, votes: Votes, epsilon: float, delta: float) -> Candidate:
    mechanism, expected, rate = _expected(spec, votes)
    queries = int(quick_quote(mechanism, epsilon, delta, rate).answers / rate)
    answered = expected.answered
    return Candidate(spec, votes.teachers, answered, expected.accuracy, queries, queries * answered)


def _quotes(
    mechanism: Mechanism, epsilon: float, delta: float, pass_rate: float
) -> tuple[Quote, ...]:
    """Return what a project would choose from, with the answers of this pass rate."""
    found = quotes(
        mechanism,
        epsilon,
        delta,
        cap_rule=Rule("rdp", cap_order(epsilon, delta)),
        pass_rate=expected_pass_rate(mechanism),
        guessed=True,
    )
    return tuple(replace(each, answers=expected_answers(each.terms, pass_rate)) for each in found)


def _expected(spec: Spec, votes: Votes) -> tuple[Mechanism, ExpectedOutcomes, float]:
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


def _keep_accurate(candidates: Sequence[Candidate], accuracy: float | None) -> list[Candidate]:
    answering = [c for c in candidates if c.answered >= MIN_ANSWERED_SHARE]
    pool = answering or [c for c in candidates if c.answered > 0]
    top = max((c.accuracy for c in pool), default=0.0)
    floor = top - ACCURACY_TOLERANCE if accuracy is None else accuracy
    good = [c for c in pool if c.accuracy >= floor]
    if not good:
        raise ParameterError(
            f"No candidate is right on {floor:.1%} of its answers; the best one is on {top:.1%}. "
            "Plan less accuracy or more teachers, or try a finer grid."
        )
    return good


LABEL_MECHANISMS = ("confident_gnmax", "gnmax", "lnmax", "stable")
"""The mechanisms that answer with labels alone and need nothing of the student."""


def compare(ensembles: Sequence[Votes], *, epsilon: float, delta: float) -> list[Plan]:
    """Return the best plan of each mechanism that affords anything, most right answers first.

    Raises `ParameterError` if no mechanism affords anything.
    """
    found, problem = [], ParameterError("There is nothing to compare.")
    for name in LABEL_MECHANISMS:
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
