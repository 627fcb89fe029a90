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
from collections.abc import Mapping, Sequence
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
class _Typical:
    """Costs of one query at one order, on average: at its votes, at its worst, at the dearest."""

    order: float
    secret: float
    worst: float
    dearest: float
    sensitivity: Mapping[float, float]
    """Smooth sensitivity by β, which grows with the number of queries like the cost does."""


@dataclass(frozen=True)
class _Choice:
    """A publication that may be chosen, its price, and the smooth sensitivity of one query."""

    publication: Publication
    price: float
    sensitivity: float
    typical: _Typical


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
        transcript = _transcript(mechanism, votes, forecast)
        self.choices = [
            _Choice(publication, publication.cost, sensitivity, typical)
            for order in ORDERS
            if (typical := _typical(transcript, shares, votes.teachers, order)) is not None
            for beta, sensitivity in typical.sensitivity.items()
            for publication in (Publication(order, beta, float(sigma), self.z) for sigma in SIGMAS)
        ]

    def plan(self, epsilon: float) -> Publishing | None:
        """Return the schedule that reaches the most queries within (ε, δ).

        None where the best is to publish nothing.
        """
        budgets = self._budgets(epsilon)
        best: Publishing | None = None
        for choice in self.choices:
            found = self._follow(choice, budgets[choice.typical.order])
            if found is not None and (best is None or found.queries > best.queries):
                best = found
        return best if best is not None and best.queries > self._unpublished(budgets) else None

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
        typical = {choice.typical.order: choice.typical for choice in self.choices}
        reached = (_fitting(budgets[order], each) for order, each in typical.items())
        return min(self.most, max(reached, default=0))

    def _follow(self, choice: _Choice, budget: float) -> Publishing | None:
        """Publish whenever one more query at its worst would no longer fit, then go on."""
        publication, typical, price = choice.publication, choice.typical, choice.price
        charged, bound, paid = 0, 0.0, 0.0
        schedule: list[int] = []
        bounds: list[float] = []
        for _ in range(self.publications):
            left = budget - bound - paid - price
            if left < typical.dearest:
                break
            charged += _fitting(left, typical)
            paid += price
            excess = choice.sensitivity * charged + FLOOR
            figure = typical.secret * charged + publication.sigma * publication.z * excess
            figure = math.ceil(figure * COST_UNITS / GRID) * GRID / COST_UNITS
            bound = min(figure, bound + typical.worst * (charged - (schedule or [0])[-1]))
            schedule.append(charged)
            bounds.append(bound)
        if not schedule:
            return None
        charged += _fitting(budget - bound - paid, typical)
        return Publishing(publication, tuple(schedule), tuple(bounds), min(charged, self.most))


def _fitting(left: float, typical: _Typical) -> int:
    """Return how many queries fit at worst-case prices."""
    return int((left - typical.dearest) / typical.worst) + 1 if left >= typical.dearest else 0


def _typical(
    transcript: Sequence[Charged], shares: Mapping[CostEvent, float], teachers: int, order: float
) -> _Typical | None:
    queries = sum(shares.values()) * _TYPICAL
    sensitivity = {}
    try:
        for product in SMOOTHNESS:
            beta = product / order
            spend = secret_spend(transcript, teachers=teachers, order=order, beta=beta)
            sensitivity[beta] = (spend.smooth_sensitivity - FLOOR) / queries
    except ParameterError:
        return None  # at this order the cost is not monotone, so there is nothing to publish
    worst = {event: float(rdp(event, order)) for event in shares}
    return _Typical(
        order,
        secret=spend.cost / queries,
        worst=sum(share * worst[event] for event, share in shares.items()),
        dearest=max(worst.values()),
        sensitivity=sensitivity,
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
