"""What one mechanism is expected to do and to cost, on votes that are public or synthetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from terrine_server.planning.accountants import Accountant
from terrine_server.planning.forecast import Forecast, Votes, forecast
from terrine_server.planning.grid import Spec
from terrine_server.planning.publishing import ORDERS, DataDependent
from terrine_server.privacy.accounting.events import CostEvent
from terrine_server.privacy.budget.quoting import quote
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.parameters import MAX_EPSILON


@dataclass(frozen=True)
class Outlook:
    """What a specification is expected to do, and the shares of queries its events are charged."""

    mechanism: Mechanism
    expected: Forecast
    shares: Mapping[CostEvent, float]
    most: int
    """The number of queries that δ allows, whatever ε."""

    @classmethod
    def of(cls, spec: Spec, votes: Votes, delta: float) -> Outlook:
        """Raises `ParameterError` where the specification cannot be used."""
        mechanism = build_mechanism(spec, teachers=votes.teachers, classes=votes.counts.shape[1])
        expected = forecast(mechanism, votes)
        shares: dict[CostEvent, float] = {}
        for outcome, event in mechanism.events().items():
            shares[event] = shares.get(event, 0.0) + expected.shares[outcome]
        terms = quote(mechanism, MAX_EPSILON, delta)
        return cls(mechanism, expected, shares, terms.delta_budget // terms.worst.delta)

    def queries(self, accountant: Accountant, epsilon: float) -> int:
        """Return how many queries an ε pays for."""
        return min(self.most, accountant.queries(self.shares, epsilon))

    def queries_for(self, answers: float) -> float:
        """Return how many queries so many answers take; infinite where none is answered."""
        answered = self.expected.answered
        return math.ceil(answers / answered - 1e-9) if answered > 0 else math.inf

    def epsilon(self, accountant: Accountant, answers: float) -> float:
        """Return ε such that so many answers are expected; the last query at the dearest price."""
        queries = self.queries_for(answers)
        if queries > self.most:
            return math.inf
        dearest = np.max([accountant.cost(event) for event in self.shares], axis=0)
        return accountant.epsilon((queries - 1) * accountant.total(self.shares) + dearest)

    def data_dependent(
        self, votes: Votes, delta: float, orders: Sequence[float] = ORDERS
    ) -> DataDependent:
        """Return data-dependent accounting of the same, at one of the orders."""
        return DataDependent(
            self.mechanism, votes, self.expected, delta=delta, most=self.most, orders=orders
        )
