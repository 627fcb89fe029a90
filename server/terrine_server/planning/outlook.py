"""What one mechanism is expected to answer and to cost, on public or synthetic votes."""

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
from terrine_server.privacy.budget.rules import GDP
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.parameters import MAX_EPSILON


@dataclass(frozen=True)
class Outlook:
    """The expected outcomes of a specification, and the share of queries charged each event."""

    mechanism: Mechanism
    expected: Forecast
    shares: Mapping[CostEvent, float]
    most: int
    """The number of queries that δ allows, for any ε."""

    @classmethod
    def of(cls, spec: Spec, votes: Votes, delta: float) -> Outlook:
        """Return the outlook of a new project.

        Raises `ParameterError` if the specification cannot be used.
        """
        mechanism = build_mechanism(spec, teachers=votes.teachers, classes=votes.counts.shape[1])
        expected = forecast(mechanism, votes)
        shares: dict[CostEvent, float] = {}
        for outcome, event in mechanism.events().items():
            shares[event] = shares.get(event, 0.0) + expected.shares[outcome]
        terms = quote(mechanism, MAX_EPSILON, delta, rule=GDP)  # for its δ, which has no rule
        return cls(mechanism, expected, shares, terms.delta_budget // terms.worst.delta)

    def queries(self, accountant: Accountant, epsilon: float) -> int:
        """Return how many queries ε pays for."""
        return min(self.most, accountant.queries(self.shares, epsilon))

    def queries_for(self, answers: float) -> float:
        """Return how many queries these answers take; infinite if no query is answered."""
        answered = self.expected.answered
        return math.ceil(answers / answered - 1e-9) if answered > 0 else math.inf

    def epsilon(self, accountant: Accountant, answers: float) -> float:
        """Return the ε of these expected answers, with the last query at the highest price."""
        queries = self.queries_for(answers)
        if queries > self.most:
            return math.inf
        highest = np.max([accountant.cost(event) for event in self.shares], axis=0)
        return accountant.epsilon((queries - 1) * accountant.total(self.shares) + highest)

    def data_dependent(
        self, votes: Votes, delta: float, orders: Sequence[float] = ORDERS
    ) -> DataDependent:
        """Return data-dependent accounting of the same mechanism, at one of the orders."""
        return DataDependent(
            self.mechanism, votes, self.expected, delta=delta, most=self.most, orders=orders
        )
