"""How many answers, how accurate, for which ε? A search over parameters, before anything is spent.

From parameters and expected levels of consensus, or from votes that are public or synthetic. A plan
tuned on private votes is itself a leak, which no budget accounts for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from terrine_server.privacy.costs import CostEvent
from terrine_server.privacy.forecast import Forecast, Votes, forecast
from terrine_server.privacy.mechanisms import MECHANISMS, build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.parameters import (
    MAX_EPSILON,
    MAX_GAMMA,
    MAX_SIGMA,
    MIN_GAMMA,
    MIN_SIGMA,
    ParameterError,
    check_delta,
    check_epsilon,
    integer,
)
from terrine_server.privacy.publishing import DataDependent, Publishing
from terrine_server.privacy.rules import (
    Accountant,
    Rule,
    accountants,
    conversion_delta,
    enforced,
)
from terrine_server.privacy.terms import quote

Grid = Mapping[str, Sequence[float]]
Spec = Mapping[str, object]

TOLERANCE = 0.01
"""Accuracy that a plan may give up, against the most accurate candidate, for more answers."""

LEAST_ANSWERED = 0.1
"""A candidate that answers a smaller share of queries is passed over, unless all do."""

SPREADS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3)
"""Noise in shares of the teachers: below, it is dear; above, it drowns the vote."""


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

    `name`: a `Rule`, or data-dependent accounting with its publications. `valid`: whether refusing
    by it keeps the promise towards a student who adapts.
    """

    name: str
    enforced: bool
    valid: bool
    queries: int
    answers: float
    epsilon: float


@dataclass(frozen=True)
class Plan:
    """The chosen candidate at (epsilon, delta), and every way of accounting for it.

    `epsilon` is what was asked for, or else what the wanted answers need. `labelled`: whether
    accuracy is against the truth, or against what most teachers said.
    """

    chosen: Candidate
    epsilon: float
    delta: float
    wanted: int
    labelled: bool
    lines: Sequence[Line]
    publishing: Publishing | None
    candidates: Sequence[Candidate]


def plan(
    name: str,
    ensembles: Iterable[Votes],
    *,
    delta: float,
    epsilon: float | None = None,
    answers: int | None = None,
    accuracy: float | None = None,
    grid: Grid | None = None,
    publications: int = 1,
) -> Plan:
    """Return the best parameters of a mechanism for one of the ensembles.

    With wanted `answers`: those that need the least ε. Otherwise: those with the most answers for
    `epsilon`. Both among the candidates that are at least as accurate as `accuracy`, or else within
    `TOLERANCE` of the most accurate. `grid`: values in place of the default ones, by parameter.
    Raises `ParameterError` where nothing fits.
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
        for spec in _specs(name, votes.teachers, delta, grid or {}):
            try:
                candidates.append(_candidate(spec, votes, delta, epsilon, answers))
            except ParameterError as error:
                problem = error
    if not candidates:
        raise problem
    chosen = _best(candidates, accuracy)
    return _account(
        chosen, known[chosen.teachers], delta, epsilon, answers, publications, candidates
    )


def default_grid(name: str, teachers: int, delta: float) -> dict[str, Sequence[float]]:
    """Return the values of each parameter that a plan tries unless told otherwise."""
    sigmas = _rounded(teachers, SPREADS)
    match name:
        case "gnmax":
            return {"sigma": sigmas}
        case "lnmax":
            scales = [1 / (teachers * spread) for spread in SPREADS]
            return {"gamma": _distinct(_clip(g, MIN_GAMMA, MAX_GAMMA) for g in scales)}
        case "confident_gnmax" | "interactive_gnmax":
            shares = (0.5, 0.6, 0.7, 0.8, 0.9) if name == "confident_gnmax" else (0.3, 0.5, 0.7)
            grid: dict[str, Sequence[float]] = {
                "threshold": sorted({round(share * teachers) for share in shares}),
                "sigma1": _rounded(teachers, (0.1, 0.2, 0.3, 0.6)),
                "sigma2": _rounded(teachers, SPREADS[2:]),
            }
            return grid if name == "confident_gnmax" else grid | {"confidence": [0.9]}
        case "stable":
            each = [conversion_delta([], delta) / 20 / queries for queries in (50, 500, 5000)]
            return {"sigma": sigmas, "delta_per_query": _distinct(each)}
        case "immutable":
            return {"sigma": sigmas, "c": [0, 1, 2, 5]}
    raise ParameterError(f"No mechanism is called {name!r}; there are {', '.join(MECHANISMS)}.")


def _specs(name: str, teachers: int, delta: float, given: Grid) -> list[Spec]:
    grid = default_grid(name, teachers, delta)
    if name == "immutable" and "gamma" in given:
        del grid["sigma"]
        grid["gamma"] = []
    if unknown := given.keys() - grid.keys():
        raise ParameterError(
            f"{name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(grid)}."
        )
    grid |= given
    names = list(grid)
    return [
        {"name": name} | {k: _typed(k, v) for k, v in zip(names, values, strict=True)}
        for values in product(*grid.values())
    ]


def _typed(parameter: str, value: float) -> float:
    return round(value) if parameter in ("threshold", "c") else float(value)


def _candidate(
    spec: Spec, votes: Votes, delta: float, epsilon: float | None, answers: int | None
) -> Candidate:
    mechanism = _built(spec, votes)
    expected = forecast(mechanism, votes)
    shares, most = _shares(mechanism, expected), _most(mechanism, delta)
    queries = need = None
    if epsilon is not None:
        quote(mechanism, epsilon, delta)  # raises where not a single query is paid for
        queries = min(most, enforced(shares, delta, epsilon).queries(shares, epsilon))
    if answers is not None:
        # An order that is fixed beforehand is fixed for this very plan: the best one for it.
        binding = enforced(shares, delta, epsilon or 1.0)
        if binding.rule is Rule.FIXED_ORDER:
            binding = Accountant(Rule.IMPROVED, binding.delta)
        need = _need(binding, shares, expected.answered, answers, most)
    return Candidate(
        spec,
        votes.teachers,
        expected.answered,
        expected.accuracy,
        queries,
        None if queries is None else queries * expected.answered,
        need,
    )


def _best(candidates: Sequence[Candidate], accuracy: float | None) -> Candidate:
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
    if good[0].epsilon is not None:
        best = min(good, key=lambda c: (c.epsilon or 0.0, -c.accuracy))
        if not (best.epsilon or 0.0) <= MAX_EPSILON:
            raise ParameterError(
                f"No candidate affords so many answers with an epsilon up to {MAX_EPSILON:g}. "
                "Ask for fewer, for more teachers, or allow a larger delta."
            )
        return best
    return max(good, key=lambda c: (c.answers or 0.0, c.accuracy))


def _account(
    chosen: Candidate,
    votes: Votes,
    delta: float,
    epsilon: float | None,
    answers: int | None,
    publications: int,
    candidates: Sequence[Candidate],
) -> Plan:
    mechanism = _built(chosen.spec, votes)
    expected = forecast(mechanism, votes)
    shares, most = _shares(mechanism, expected), _most(mechanism, delta)
    asked = epsilon if epsilon is not None else _ceiling(chosen.epsilon or MAX_EPSILON)
    rules, binding = accountants(shares, delta, asked), enforced(shares, delta, asked)
    wanted = answers
    if wanted is None:
        fits = min(most, binding.queries(shares, asked))
        wanted = max(1, math.floor(fits * expected.answered))
    lines = [_line(each, binding, shares, expected.answered, asked, wanted, most) for each in rules]
    model = DataDependent(
        mechanism, votes, expected, delta=delta, publications=publications, most=most
    )
    publishing = model.plan(asked)
    if publishing is not None:
        times = len(publishing.schedule)
        lines.append(
            Line(
                name=f"data-dependent, {times} publication{'s' * (times > 1)}",
                enforced=False,
                valid=True,
                queries=publishing.queries,
                answers=publishing.queries * expected.answered,
                epsilon=model.epsilon(_queries(wanted, expected.answered)),
            )
        )
    return Plan(
        chosen, asked, delta, wanted, votes.labelled, tuple(lines), publishing, tuple(candidates)
    )


def _line(
    accountant: Accountant,
    binding: Accountant,
    shares: Mapping[CostEvent, float],
    answered: float,
    epsilon: float,
    wanted: int,
    most: int,
) -> Line:
    queries = min(most, accountant.queries(shares, epsilon))
    return Line(
        name=accountant.rule.value,
        enforced=accountant.rule is binding.rule,
        valid=accountant.rule in (Rule.BASIC, Rule.FIXED_ORDER, Rule.GDP),
        queries=queries,
        answers=queries * answered,
        epsilon=_need(accountant, shares, answered, wanted, most),
    )


def _need(
    accountant: Accountant,
    shares: Mapping[CostEvent, float],
    answered: float,
    answers: int,
    most: int,
) -> float:
    """Return ε such that so many answers are expected: the last query at the dearest price."""
    queries = _queries(answers, answered)
    if queries > most:
        return math.inf
    dearest = np.max([accountant.cost(event) for event in shares], axis=0)
    return accountant.epsilon((queries - 1) * accountant.total(shares) + dearest)


def _queries(answers: int, answered: float) -> float:
    """Return how many queries so many answers take."""
    return math.ceil(answers / answered - 1e-9) if answered > 0 else math.inf


def _built(spec: Spec, votes: Votes) -> Mechanism:
    return build_mechanism(spec, teachers=votes.teachers, classes=votes.counts.shape[1])


def _shares(mechanism: Mechanism, expected: Forecast) -> dict[CostEvent, float]:
    """Return the expected share of queries that each event is charged for; all events occur."""
    shares: dict[CostEvent, float] = {}
    for outcome, event in mechanism.events().items():
        shares[event] = shares.get(event, 0.0) + expected.shares[outcome]
    return shares


def _most(mechanism: Mechanism, delta: float) -> int:
    """Return how many queries δ allows, whatever ε."""
    terms = quote(mechanism, MAX_EPSILON, delta)
    return terms.delta_budget // terms.worst.delta


def _rounded(teachers: int, shares: Iterable[float]) -> list[float]:
    return _distinct(_clip(teachers * share, MIN_SIGMA, MAX_SIGMA) for share in shares)


def _distinct(values: Iterable[float]) -> list[float]:
    """Three digits are enough to choose by, and to type."""
    return sorted({float(f"{value:.3g}") for value in values})


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _ceiling(epsilon: float) -> float:
    """Round ε up to two digits after the point, or to two digits."""
    scale = 10.0 ** max(2, 1 - math.floor(math.log10(epsilon)))
    return math.ceil(epsilon * scale) / scale
