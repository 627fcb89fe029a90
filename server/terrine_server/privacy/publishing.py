"""What data-dependent accounting would buy, refusals included, on public or synthetic votes.

A data-dependent project is refused on published figures alone: at a fixed Rényi order λ it goes on
while

    U_last + Σ worst-case costs since + Σ publications ≤ B_λ(ε, δ_conv),

where U_last ≥ the secret data-dependent spend (with failure η, which adds to δ) is released at
counts of charges that are fixed beforehand (`sanitize`). Here λ, the smoothness β, the release's
σ and the schedule are chosen for the votes that one expects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from terrine_server.privacy.accounting import SLACK, rdp, rdp_budget
from terrine_server.privacy.costs import CostEvent
from terrine_server.privacy.forecast import Forecast, Votes
from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.mechanisms.interactive_gnmax import InteractiveGNMax
from terrine_server.privacy.parameters import MAX_EPSILON, ParameterError
from terrine_server.privacy.rules import conversion_delta
from terrine_server.privacy.sanitize import GRID, Publication
from terrine_server.privacy.sensitivity import FLOOR, Charged, secret_spend
from terrine_server.privacy.terms import COST_UNITS

PUBLICATION_SHARE = 0.1
"""Of δ: the chance that any published figure is below the spend."""

ORDERS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0)
SMOOTHNESS = (0.02, 0.05, 0.1, 0.15, 0.2)
"""β·λ. Beyond 1/4 a release gets dear fast."""
SIGMAS = np.geomspace(0.5, 2000, 32)
"""Noise of a release, in smooth sensitivities."""

_TYPICAL = 400
"""Queries of the transcript from which the cost of one is estimated."""


@dataclass(frozen=True)
class Publishing:
    """A schedule: after so many charges each, a figure is published; then `queries` are reached.

    `bounds`: the figures to expect, in Rényi divergence at `publication.order`.
    """

    publication: Publication
    schedule: tuple[int, ...]
    bounds: tuple[float, ...]
    queries: int


@dataclass(frozen=True)
class _Worst:
    """What one query costs at one order, whatever its votes: on average, and at the dearest."""

    mean: float
    dearest: float

    def fitting(self, left: float) -> int:
        """Return how many queries fit."""
        return int((left - self.dearest) / self.mean) + 1 if left >= self.dearest else 0


@dataclass(frozen=True)
class _Choice:
    """A publication that may be chosen, and its price.

    `secret`, `sensitivity`: the data-dependent cost of one query on average, and its share of the
    smooth sensitivity; both grow with the number of queries.
    """

    publication: Publication
    price: float
    secret: float
    sensitivity: float


class DataDependent:
    """Data-dependent accounting of one mechanism on the votes that one expects.

    `most`: the number of queries that δ allows whatever they cost.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        votes: Votes,
        forecast: Forecast,
        *,
        delta: float,
        publications: int = 1,
        most: int,
    ) -> None:
        events = mechanism.events()
        self.publications, self.most = publications, most
        self.conversion = conversion_delta(events.values(), delta) - PUBLICATION_SHARE * delta
        self.z = -float(ndtri(PUBLICATION_SHARE * delta / publications / (1 + SLACK)))
        shares: dict[CostEvent, float] = {}
        for outcome, share in forecast.shares.items():  # outcomes may share an event
            shares[events[outcome]] = shares.get(events[outcome], 0.0) + share
        self.worst = {order: _worst(shares, order) for order in ORDERS}
        self.teachers = votes.teachers
        self.transcript = _transcript(mechanism, votes, forecast)
        self.queries = _TYPICAL * sum(shares.values())
        self.choices: dict[float, list[_Choice]] = {}

    def plan(self, epsilon: float) -> Publishing | None:
        """Return the schedule that reaches the most queries within (ε, δ).

        None where the best is to publish nothing.
        """
        budgets = self._budgets(epsilon)
        best: Publishing | None = None
        most = self._unpublished(budgets)
        for order, budget in budgets.items():
            # Each publication frees at most the whole budget once more.
            if (self.publications + 1) * self.worst[order].fitting(budget) <= most:
                continue
            for choice in self._choices(order):
                found = self._follow(choice, self.worst[order], budget)
                if found is not None and found.queries > most:
                    best, most = found, found.queries
        return best

    def reach(self, epsilon: float) -> int:
        """Return how many queries (ε, δ) reaches, published or not."""
        found = self.plan(epsilon)
        return self._unpublished(self._budgets(epsilon)) if found is None else found.queries

    def epsilon(self, queries: float) -> float:
        """Return the least ε (to 0.1 %) that reaches so many queries; infinite above 100."""
        if queries > self.most:
            return math.inf
        low, high = 0.0, 1.0
        while self.reach(high) < queries:
            low, high = high, 2 * high
            if low > MAX_EPSILON:
                return math.inf
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.reach(middle) >= queries else (middle, high)
        return high

    def _budgets(self, epsilon: float) -> dict[float, float]:
        return {order: float(rdp_budget(order, epsilon, self.conversion)) for order in ORDERS}

    def _unpublished(self, budgets: Mapping[float, float]) -> int:
        return min(self.most, max(self.worst[o].fitting(budget) for o, budget in budgets.items()))

    def _choices(self, order: float) -> list[_Choice]:
        """Return the publications at an order; none where its sensitivity is not known."""
        if order not in self.choices:
            self.choices[order] = []
            for product in SMOOTHNESS:
                beta = product / order
                try:
                    spend = secret_spend(
                        self.transcript, teachers=self.teachers, order=order, beta=beta
                    )
                except ParameterError:
                    break  # the cost is not monotone here, so there is nothing to publish
                secret = spend.cost / self.queries
                sensitivity = (spend.smooth_sensitivity - FLOOR) / self.queries
                for sigma in SIGMAS:
                    publication = Publication(order, beta, float(sigma), self.z)
                    choice = _Choice(publication, publication.cost, secret, sensitivity)
                    self.choices[order].append(choice)
        return self.choices[order]

    def _follow(self, choice: _Choice, worst: _Worst, budget: float) -> Publishing | None:
        """Publish whenever one more query at its worst would no longer fit, then go on."""
        publication = choice.publication
        charged, bound, paid = 0, 0.0, 0.0
        schedule: list[int] = []
        bounds: list[float] = []
        for _ in range(self.publications):
            more = worst.fitting(budget - bound - paid - choice.price)
            if more == 0:
                break
            charged += more
            paid += choice.price
            excess = choice.sensitivity * charged + FLOOR
            figure = choice.secret * charged + publication.sigma * publication.z * excess
            figure = math.ceil(figure * COST_UNITS / GRID) * GRID / COST_UNITS
            bound = min(figure, bound + worst.mean * more)
            schedule.append(charged)
            bounds.append(bound)
        if not schedule:
            return None
        charged += worst.fitting(budget - bound - paid)
        return Publishing(publication, tuple(schedule), tuple(bounds), min(charged, self.most))


def _worst(shares: Mapping[CostEvent, float], order: float) -> _Worst:
    costs = {event: float(rdp(event, order)) for event in shares}
    return _Worst(
        mean=sum(share * costs[event] for event, share in shares.items()),
        dearest=max(costs.values()),
    )


def _transcript(mechanism: Mechanism, votes: Votes, forecast: Forecast) -> list[Charged]:
    """Return `_TYPICAL` queries, each kind and outcome as often as it is expected."""
    events = mechanism.events()
    baselines = None
    if isinstance(mechanism, InteractiveGNMax) and votes.probabilities is not None:
        baselines = mechanism.canonical_baseline(votes.probabilities)
    transcript = []
    for outcome, probability in forecast.probability.items():
        rows = _systematic(probability * forecast.weights * _TYPICAL)
        if len(rows):
            theirs = None if baselines is None else baselines[rows]
            transcript.append(Charged(events[outcome], votes.counts[rows], theirs))
    return transcript


def _systematic(expected: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return indices, each about as often as expected, in all as often as their sum says."""
    cumulative = np.cumsum(expected)
    picks = np.arange(round(float(cumulative[-1]))) + 0.5
    return np.minimum(np.searchsorted(cumulative, picks), len(expected) - 1)
