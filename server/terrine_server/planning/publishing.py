"""When a project whose queries cost what they reveal publishes a bound on its secret spend.

Refusals of a data-dependent project depend on published figures alone: at a fixed Rényi order λ it
answers while

    U_last + Σ worst-case costs since + Σ publications ≤ B_λ(ε, δ_conv),

where U_last ≥ the secret data-dependent spend (except with probability η, which adds to δ) is
released at counts of charges that are fixed beforehand (`BoundRelease.release`). This module
chooses λ, the smoothness β, the σ of the release and the schedule for the expected votes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from terrine_server.planning.expected import ExpectedOutcomes, Votes, expected_outcomes
from terrine_server.planning.opening import Spec, quotes
from terrine_server.privacy.budget import Terms
from terrine_server.privacy.curves import rdp, rdp_budget
from terrine_server.privacy.events import CostEvent
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import ComparesWithStudent, Mechanism
from terrine_server.privacy.numbers import COST_UNITS, Floats
from terrine_server.privacy.parameters import MAX_EPSILON, ParameterError
from terrine_server.privacy.published import FLOOR, GRID, BoundRelease, Meter
from terrine_server.privacy.quoting import publication_z, quote, split_delta
from terrine_server.privacy.rules import GDP, Rule

ORDERS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0)
# β·λ. Beyond 1/4 a release quickly becomes expensive.
SMOOTHNESS = (0.02, 0.05, 0.1, 0.15, 0.2)
# Noise of a release, in units of the smooth sensitivity.
SIGMAS = np.geomspace(0.5, 2000, 32)
# How many figures are published.
NUMBERS_OF_PUBLICATIONS = (1, 2, 3, 4, 6)


@dataclass(frozen=True)
class PublishingPlan:
    """When to publish a figure (`schedule`, in charges), and how many queries that reaches."""

    publication: BoundRelease
    schedule: tuple[int, ...]
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
        for index in range(max(self.publications)):
            more = worst.count_fitting(budget - bound - paid - price)
            going &= (more > 0) & (index < times)
            charged = charged + np.where(going, more, 0)
            paid = paid + np.where(going, price, 0)
            figure = secret * charged + noise * (sensitivity * charged + FLOOR)
            figure = np.ceil(figure * COST_UNITS / GRID) * GRID / COST_UNITS
            bound = np.where(going, np.minimum(figure, bound + worst.mean * more), bound)
            schedule.append(np.where(going, charged, 0))
        reached = np.minimum(charged + worst.count_fitting(budget - bound - paid), self.most)
        reached[schedule[0] == 0] = -1
        best = int(np.argmax(reached))
        if reached[best] < 0:
            return None
        done = [index for index, count in enumerate(schedule) if count[best]]
        return PublishingPlan(
            releases[best],
            tuple(int(schedule[index][best]) for index in done),
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
