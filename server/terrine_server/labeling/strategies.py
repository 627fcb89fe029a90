"""How the votes of a project are taken and released: its mechanism and its ensemble decide that.

Votes exist only in memory, from `VoteStrategy.vote` to `Mechanism.release`, and nowhere else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from terrine_server.errors import EnsembleUnavailable, InvalidQuery
from terrine_server.labeling.voters import Neighbourhood, Voters, get_full_tallies
from terrine_server.ledger import Ledger, ProjectRecord, SpentAccounts
from terrine_server.privacy import (
    Accounts,
    ComparesWithStudent,
    Mechanism,
    Neighbours,
    ParameterError,
    build_mechanism,
)
from terrine_server.privacy.mechanisms.base import canonical_probabilities


@dataclass(frozen=True, eq=False)
class Vote:
    """What was cast on queries. Secret.

    `voted`: the v queries that were voted on, ascending. `counts`: int64[v, m].
    `exhausted`: the queries on which no vote is taken. `accounts`: what units have spent
    afterwards, where they have accounts.
    """

    voted: Sequence[int]
    counts: np.ndarray
    exhausted: Sequence[int] = ()
    accounts: SpentAccounts | None = None


def check_probabilities(
    probabilities: np.ndarray | None, needed: bool, batch: int, classes: int
) -> np.ndarray | None:
    """Check a student's probabilities; return them as float64 `[B, m]`, or None if not needed.

    See `canonical_probabilities`. Raises `InvalidQuery`.
    """
    if not needed:
        if probabilities is not None:
            raise InvalidQuery(
                "This project's mechanism takes no probabilities of students. Omit them."
            )
        return None
    if probabilities is None:
        raise InvalidQuery(
            f"This project's mechanism needs `probabilities` of shape [{batch}, {classes}], too."
        )
    if probabilities.shape != (batch, classes):
        raise InvalidQuery(
            f"Expected probabilities of shape [{batch}, {classes}]; "
            f"these have shape {list(probabilities.shape)}."
        )
    try:
        return canonical_probabilities(probabilities, classes)
    except ParameterError as error:
        raise InvalidQuery(str(error)) from error


def canonical_baselines(
    mechanism: Mechanism, probabilities: np.ndarray | None
) -> np.ndarray | None:
    """Return what votes are compared with, int64 `[B, m]`; None if with nothing.

    `probabilities`: the student's, `[B, m]`, for mechanisms that need them.
    """
    if probabilities is None or not isinstance(mechanism, ComparesWithStudent):
        return None
    return mechanism.canonical_baseline(probabilities)


@dataclass(frozen=True)
class VoteStrategy:
    """Takes the votes of a project of teachers, each of whom casts one vote on every query."""

    project: ProjectRecord
    mechanism: Mechanism
    ledger: Ledger
    voters: Voters

    exclusive: ClassVar[bool] = False
    """Whether one group at a time of a project is voted on, in all processes."""

    @property
    def most_queries(self) -> float:
        """How many new queries are worth a vote: as many as the lowest prices may allow."""
        return self.project.terms.most_admitted(self.project.account)

    def vote(self, queries: np.ndarray) -> Vote:
        """Take the votes on canonical inputs `[B, …]`. Nothing is paid, so nothing may be sent.

        Raises `EnsembleUnavailable`, and ConcurrentUpdate if the project has moved on.
        """
        counts = get_full_tallies(self.voters, self.project.ensemble, queries)
        return Vote(range(len(queries)), counts)

    def exhausted_shares(self, queries: np.ndarray, shadows: Accounts | None) -> list[float]:
        """Return for each query which share of the public rows near it could not vote any more.

        `shadows`: what these have spent. Raises `InvalidQuery` for a project without accounts.
        """
        raise InvalidQuery(
            "Only people have accounts that can be exhausted, in projects of neighbours. Here the "
            "budget says how much is left: GET /budget."
        )


@dataclass(frozen=True)
class AccountVotes(VoteStrategy):
    """Takes the votes of people near each query, as far as their accounts allow.

    What they cast next follows from what they have spent, so one group at a time is voted on.
    """

    mechanism: Neighbours

    exclusive = True

    @property
    def allowance(self) -> int:
        """What Σ‖v‖² of any unit never exceeds."""
        if self.project.terms.allowance is None:
            raise ValueError("units have accounts only where they are allowed something")
        return self.project.terms.allowance.most

    @property
    def most_queries(self) -> float:
        """All while any can be paid for: some may turn out to be exhausted, which is free."""
        return math.inf if super().most_queries else 0

    def vote(self, queries: np.ndarray) -> Vote:
        """Take the votes on canonical inputs `[B, …]`, judged one after the other.

        The accounts that result are not written yet. Raises as for teachers.
        """
        found = self.voters.neighbourhood(self.project.ensemble)
        points = found.ensemble.to_points(queries)
        answered, shadows = self._split_exhausted(found, points)
        judged = np.arange(len(answered))  # not beyond the last that is paid for
        voted, exhausted = judged[answered].tolist(), judged[~answered].tolist()
        if not voted:
            return Vote(voted, np.empty((0, self.mechanism.classes), np.int64), exhausted)
        accounts, counts = self.ledger.charging.unit_accounts(self.project), []
        # All units are gone through, whatever their accounts are, in blocks of a public size.
        for weights in found.record_weights(points[voted]):
            cast, accounts = self.mechanism.cast(weights, found.units, accounts, self.allowance)
            counts.append(cast)
        after = SpentAccounts(
            self.project.charges, self.project.head, len(voted), accounts, shadows
        )
        return Vote(voted, np.concatenate(counts), exhausted, after)

    def _split_exhausted(
        self, found: Neighbourhood, points: np.ndarray
    ) -> tuple[NDArray[np.bool_], Accounts]:
        """Return for the first queries whether they are answered or else exhausted, and what the
        shadows have spent after them.

        No private record or account is looked at: it follows from the queries and public rows.
        """
        most = super().most_queries
        shadows = self.ledger.charging.shadow_accounts(self.project, found.ensemble.shadows)
        judged = []
        for near in found.public_neighbours(points):
            if most <= 0:
                break
            answered, shadows = self.mechanism.split_exhausted(
                near.weights, near.near_wider, shadows, self.allowance, most
            )
            most -= answered.sum()
            judged.append(answered)
        return np.concatenate(judged), shadows

    def exhausted_shares(self, queries: np.ndarray, shadows: Accounts | None) -> list[float]:
        """Return for each query which share of the public rows near it could not vote any more."""
        found = self.voters.neighbourhood(self.project.ensemble)
        if shadows is None or not len(shadows):
            shadows = np.zeros(found.ensemble.shadows, np.uint32)
        shares = [
            self.mechanism.exhausted_shares(near.near_wider, shadows, self.allowance)
            for near in found.public_neighbours(found.ensemble.to_points(queries))
        ]
        return [float(share) for share in np.concatenate(shares)]


def strategy_of(project: ProjectRecord, ledger: Ledger, voters: Voters) -> VoteStrategy:
    """Return how the votes of a project are taken.

    Raises EnsembleUnavailable without the package that a mechanism from outside is of.
    """
    mechanism = mechanism_of(project)
    if isinstance(mechanism, Neighbours):
        return AccountVotes(project, mechanism, ledger, voters)
    return VoteStrategy(project, mechanism, ledger, voters)


def mechanism_of(project: ProjectRecord) -> Mechanism:
    """Return the project's mechanism, with its noise tables built once.

    Raises EnsembleUnavailable without the package that a mechanism from outside is of.
    """
    facts = project.ensemble.facts
    try:
        return _mechanism(json.dumps(dict(project.mechanism)), facts.teachers, len(facts.classes))
    except ParameterError as error:
        raise EnsembleUnavailable(f"Project {project.name}: {error}") from error


@lru_cache(maxsize=64)
def _mechanism(spec: str, teachers: int, classes: int) -> Mechanism:
    return build_mechanism(json.loads(spec), teachers=teachers, classes=classes)
