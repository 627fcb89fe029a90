"""How many answers, how accurate, for which ε? A search over parameters, before anything is spent.

It uses expected levels of consensus, or votes that are public or synthetic. A plan made from votes
of teachers with private training data is itself a leak, outside every budget.

Refusals of a data-dependent project depend on published figures alone: at a fixed Rényi order λ it
answers while

    U_last + Σ worst-case costs since + Σ publications ≤ B_λ(ε, δ_conv),

where U_last ≥ the secret data-dependent spend (except with probability η, which adds to δ) is
released at counts of charges that are fixed beforehand (`published.release`). This module chooses
λ, the smoothness β, the σ of the release and the schedule for the expected votes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import Parameter, signature
from itertools import product

import numpy as np

from terrine_server.planning.expected import (
    ExpectedOutcomes,
    Votes,
    expected_outcomes,
    expected_pass_rate,
)
from terrine_server.planning.first_project import sigma_for_rows
from terrine_server.planning.opening import Quote, Spec, expected_answers, quick_quote, quotes
from terrine_server.privacy.budget import Terms
from terrine_server.privacy.curves import rdp, rdp_budget
from terrine_server.privacy.events import CostEvent
from terrine_server.privacy.mechanisms import COMPARED, MECHANISMS, build_mechanism
from terrine_server.privacy.mechanisms.base import ComparesWithStudent, Mechanism, VoteOutcome
from terrine_server.privacy.mechanisms.registration import Grid, MechanismKind
from terrine_server.privacy.numbers import COST_UNITS, Floats
from terrine_server.privacy.parameters import (
    MAX_EPSILON,
    ParameterError,
    check_delta,
    check_epsilon,
)
from terrine_server.privacy.published import FLOOR, GRID, BoundRelease, Meter
from terrine_server.privacy.quoting import cap_order, publication_z, quote, split_delta
from terrine_server.privacy.rules import GDP, Rule

ORDERS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0)
SMOOTHNESS = (0.02, 0.05, 0.1, 0.15, 0.2)
"""β·λ. Beyond 1/4 a release quickly becomes expensive."""
SIGMAS = np.geomspace(0.5, 2000, 32)
"""Noise of a release, in units of the smooth sensitivity."""
NUMBERS_OF_PUBLICATIONS = (1, 2, 3, 4, 6)
"""How many figures are published."""


@dataclass(frozen=True)
class PublishingPlan:
    """When to publish a figure (`schedule`, in charges), and how many queries that reaches.

    `bounds`: the expected figures, in Rényi divergence at `publication.order`.
    """

    publication: BoundRelease
    schedule: tuple[int, ...]
    bounds: tuple[float, ...]
    queries: int


@dataclass(frozen=True)
class _WorstCost:
    """Of one query at one order, for any votes: on average and at most."""

    mean: float
    most: float

    @classmethod
    def of(cls, shares: Mapping[CostEvent, float], order: float) -> _WorstCost:
        """From the expected share of each event."""
        costs = {event: float(rdp(event, order)) for event in shares}
        mean = sum(share * costs[event] for event, share in shares.items())
        return cls(mean, max(costs.values()))

    def count_fitting(self, left: Floats | float) -> Floats:
        """Return how many queries fit."""
        left = np.asarray(left)
        return np.where(left >= self.most, np.floor((left - self.most) / self.mean) + 1, 0.0)


class DataDependent:
    """Data-dependent accounting of one mechanism on the expected votes.

    `orders`, `publications`: the orders and numbers of publications to choose from.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        votes: Votes,
        *,
        delta: float,
        publications: Sequence[int] = NUMBERS_OF_PUBLICATIONS,
        orders: Sequence[float] = ORDERS,
    ) -> None:
        events, self.expected = mechanism.events(), expected_outcomes(mechanism, votes)
        terms = quote(mechanism, MAX_EPSILON, delta, rule=GDP)  # for its δ, which has no rule
        self.delta, self.most = delta, terms.delta_budget // terms.worst.delta
        self.publications, self.orders = publications, orders
        self.conversion = split_delta(events.values(), delta, publishing=True).conversion
        self.shares: dict[CostEvent, float] = {}
        for outcome, share in self.expected.shares.items():  # outcomes may share an event
            event = events[outcome]
            self.shares[event] = self.shares.get(event, 0.0) + share
        self.worst = {order: _WorstCost.of(self.shares, order) for order in orders}
        self.mechanism, self.votes = mechanism, votes

    def plan(self, epsilon: float) -> PublishingPlan | None:
        """Return the schedule that reaches the most queries within (ε, δ).

        None if it is best to publish nothing, as of a mechanism that costs the same at any votes.
        """
        budgets = {
            order: float(rdp_budget(order, epsilon, self.conversion)) for order in self.orders
        }
        unpublished = [self.worst[o].count_fitting(budget) for o, budget in budgets.items()]
        best, most = None, min(self.most, int(max(unpublished)))
        for (order, budget), fitting in zip(budgets.items(), unpublished, strict=True):
            # Each publication frees at most the whole budget again.
            if (max(self.publications) + 1) * fitting > most:
                found = self._simulate(order, budget)
                if found is not None and found.queries > most:
                    best, most = found, found.queries
        return best

    def _tally(self, order: float) -> tuple[Meter, Floats]:
        """Return the meter at an order, and what one query is expected to add to its tally."""
        mechanism, votes = self.mechanism, self.votes
        classes = votes.counts.shape[1]
        meter = Meter(mechanism.events(), teachers=votes.teachers, classes=classes, order=order)
        baselines = None
        if isinstance(mechanism, ComparesWithStudent) and votes.probabilities is not None:
            baselines = mechanism.canonical_baseline(votes.probabilities)
        tally = np.zeros(meter.size)
        for outcome, probability in self.expected.probability.items():
            places = np.array(meter.places(outcome, votes.counts, baselines))
            np.add.at(tally, places, (probability * self.expected.weights)[:, None])
        return meter, tally

    def _simulate(self, order: float, budget: float) -> PublishingPlan | None:
        """Publish when a query might leave no room, by each candidate: how much noise, how often.

        Returns the result of the one that reaches the most queries, None if none can publish.
        """
        worst, (meter, tally) = self.worst[order], self._tally(order)
        betas = [smoothness / order for smoothness in SMOOTHNESS]
        releases, columns = [], []
        for beta, spend in zip(betas, meter.spends(tally, betas, known=True), strict=True):
            # Both grow with the number of queries.
            of_a_query = spend.cost, spend.smooth_sensitivity - FLOOR
            for sigma in SIGMAS.tolist():
                for number in self.publications:
                    z = publication_z(self.delta, number)
                    release, cost = _release_with_cost(order, beta, sigma, z)
                    releases.append(release)
                    columns.append((number, cost, release.sigma * release.z, *of_a_query))
        times, price, noise, secret, sensitivity = np.array(columns, dtype=np.float64).T
        charged, bound, paid = np.zeros((3, len(releases)))
        going = np.full(len(releases), True)
        schedule: list[Floats] = []
        bounds: list[Floats] = []
        for index in range(max(self.publications)):
            more = worst.count_fitting(budget - bound - paid - price)
            going &= (more > 0) & (index < times)
            charged = charged + np.where(going, more, 0)
            paid = paid + np.where(going, price, 0)
            figure = secret * charged + noise * (sensitivity * charged + FLOOR)
            figure = np.ceil(figure * COST_UNITS / GRID) * GRID / COST_UNITS
            bound = np.where(going, np.minimum(figure, bound + worst.mean * more), bound)
            schedule.append(np.where(going, charged, 0))
            bounds.append(bound)
        reached = np.minimum(charged + worst.count_fitting(budget - bound - paid), self.most)
        reached[schedule[0] == 0] = -1
        best = int(np.argmax(reached))
        if reached[best] < 0:
            return None
        done = [index for index, count in enumerate(schedule) if count[best]]
        return PublishingPlan(
            releases[best],
            tuple(int(schedule[index][best]) for index in done),
            tuple(float(bounds[index][best]) for index in done),
            int(reached[best]),
        )


@lru_cache(maxsize=16384)  # all candidates of one δ
def _release_with_cost(
    order: float, beta: float, sigma: float, z: float
) -> tuple[BoundRelease, float]:
    release = BoundRelease(order, beta, sigma, z)
    return release, release.cost


def choose_schedule(
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
    model = DataDependent(mechanism, votes, delta=delta, orders=(order,))
    found = quotes(mechanism, epsilon, delta, cap_rule=Rule("rdp", order), pass_rate=1.0)
    worst_case = max(
        _count_worst_case(quoted.terms, model.expected)
        for quoted in found
        if quoted.answer_share is None
    )
    best = model.plan(epsilon)
    if best is None or best.queries <= worst_case:
        reach = "gains nothing" if best is None else f"reaches about {best.queries} queries"
        raise ParameterError(
            f"Publishing cannot pay for itself here: on the expected consensus it {reach}, and "
            f'worst-case accounting reaches {worst_case}. Use accounting "worst_case", or try more '
            "teachers, less noise, a larger epsilon or another order of the cap."
        )
    return best.publication, best.schedule


def _count_worst_case(terms: Terms, expected: ExpectedOutcomes) -> int:
    """Return how many queries are expected to fit if each costs its worst case."""
    mean = sum(share * terms.prices[outcome].cost for outcome, share in expected.shares.items())
    fit = int((terms.budget - terms.worst.cost) / mean * (1 + 1e-12)) + 1
    return min(fit, terms.delta_budget // terms.worst.delta)


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


ACCURACY_TOLERANCE = 0.01
"""How much less accurate than the best candidate a plan may be, to get more answers."""

MIN_ANSWERED_SHARE = 0.1
"""Candidates that answer a smaller share of queries are skipped, unless all do."""


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
    pool = _keep_accurate(candidates, accuracy)
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
