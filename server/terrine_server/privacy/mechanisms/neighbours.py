"""Noisy counts of all people near a query, each with an account."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.events import CostEvent, NeighbourCounts
from terrine_server.privacy.mechanisms.base import Probabilities, Released, VoteOutcome
from terrine_server.privacy.mechanisms.registration import AuditCase, Grid
from terrine_server.privacy.noise import Entropy, add_noise, discrete_gaussian
from terrine_server.privacy.numbers import Counts, check_counts_shape
from terrine_server.privacy.parameters import (
    MAX_COUNTED_CLASSES,
    ParameterError,
    check_ensemble,
    check_sigma,
    integer,
)

# What each unit has spent, uint32[U], in units of ‖v‖². Secret.
Accounts = NDArray[np.uint32]

MAX_QUERIES = 10_000_000
MAX_NORM = 255
# The most that records of one unit add up to for one class. With it, no product exceeds 2⁶³.
MAX_CLASS_WEIGHT = 1 << 16
# Share of the public rows near a query from which on, if they could not vote any more, nobody is
# asked: an answer of a twentieth of the votes says a four-hundredth of what it said at first
# (docs/privacy/neighbours.md).
EXHAUSTED_SHARE = 0.95


@dataclass(frozen=True)
class Units:
    """Whose records are whose, in the order of the records. Nothing in it depends on a query.

    `count`: the number of units, with records or without. `records`: N. `starts`: int64[P],
    the first record of each pair of a unit and a class that has any. `classes`, `places`: int64[P],
    the pair's class and the place of its unit in `present`. `present`: int64[R], the units that
    have records. `firsts`: int64[R], the first pair of each of them.
    """

    count: int
    records: int
    starts: NDArray[np.int64]
    classes: NDArray[np.int64]
    places: NDArray[np.int64]
    present: NDArray[np.int64]
    firsts: NDArray[np.int64]

    @classmethod
    def of(cls, units: NDArray[np.int32], labels: NDArray[np.int16], count: int) -> Units:
        """Return the layout of records with these units and labels, [N] each, N ≥ 1.

        They are sorted by unit and label. Raises ValueError if they are not, or a unit is not one
        of `count`.
        """
        if len(units) < 1 or len(units) != len(labels) or units.min() < 0 or units.max() >= count:
            raise ValueError("records have a unit each, from 0 to count - 1")
        key = units.astype(np.int64) * (int(labels.max()) + 1) + labels
        if labels.min() < 0 or np.any(np.diff(key) < 0):
            raise ValueError("records are sorted by unit and label")
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        present, firsts, places = np.unique(
            units[starts].astype(np.int64), return_index=True, return_inverse=True
        )
        return cls(
            count, len(units), starts, labels[starts].astype(np.int64), places, present, firsts
        )


@dataclass(frozen=True)
class Neighbours:
    """Answers c + Y for every class: c the votes of the units that still take part, Y ~ N_Z(σ²).

    `teachers`: the number of units (persons) when the project was opened. People come and go, and
    nothing but forecasts depends on how many there are. A unit's vote v is the sum of its records'
    weights for each class, scaled down and floored where ‖v‖ > `norm`. It takes part in a query iff
    its account and ‖v‖² stay within the project's allowance A, and then pays ‖v‖². For any
    number of queries the whole transcript is A/σ²-zCDP and √(2A)·μ_Z(σ)-GDP between data sets
    that differ in all of one unit's records.

    `queries`: how many the project answers; public, and the only thing that refusals depend on.
    """

    teachers: int
    classes: int
    sigma: float
    queries: int
    norm: int = 1

    name: ClassVar[str] = "neighbours"
    needs_probabilities: ClassVar[bool] = False
    audit_cases: ClassVar[Sequence[AuditCase]] = (
        AuditCase(
            "neighbours", {"name": "neighbours", "sigma": 2.0, "queries": 9}, 2, (), allowance=3
        ),
    )

    def __post_init__(self) -> None:
        check_ensemble(self.teachers, self.classes)
        check_sigma("sigma", self.sigma)
        why = "every answer of neighbours holds a count for each class"
        integer("classes", self.classes, 2, MAX_COUNTED_CLASSES, why)
        why = "it is how many new queries the project answers, and no others end it"
        integer("queries", self.queries, 1, MAX_QUERIES, why)
        why = "it bounds what one unit casts in one query"
        integer("norm", self.norm, 1, MAX_NORM, why)

    def events(self) -> Mapping[VoteOutcome, CostEvent]:
        """Every query is answered, and reveals the votes of each unit that takes part."""
        return {VoteOutcome.ANSWERED: NeighbourCounts(self.sigma, self.norm)}

    def cast(
        self, weights: NDArray[np.uint8], units: Units, accounts: Accounts, allowance: int
    ) -> tuple[Counts, Accounts]:
        """Return the counts int64[B, m] of the units that take part, and their accounts after.

        `weights`: uint8[B, N], what each record adds to its class. `allowance`: A. Queries are
        judged one after the other. The same work is done whatever votes and accounts are: no
        branch, and no address, depends on either.
        """
        if accounts.shape != (units.count,):
            raise ValueError("there is an account for each unit")
        if weights.dtype != np.uint8 or weights.shape[1:] != (units.records,):
            raise ValueError("there is a weight for each record")
        counts = np.empty((len(weights), self.classes), dtype=np.int64)
        spent = accounts[units.present].astype(np.int64)
        for row, own in enumerate(weights):
            votes, squared = self._votes(own, units)
            takes_part = spent + squared <= allowance
            spent += takes_part * squared
            votes *= takes_part[units.places]
            # Sums of whole numbers below 2⁵³ are exact.
            counts[row] = np.bincount(units.classes, votes, minlength=self.classes)
        after = accounts.copy()
        after[units.present] = spent
        return counts, after

    def split_exhausted(
        self,
        weights: NDArray[np.uint8],
        near_wider: NDArray[np.uint8],
        shadows: Accounts,
        allowance: int,
        most: float,
    ) -> tuple[NDArray[np.bool_], Accounts]:
        """Return which queries are answered, until `most` are, and the shadows' accounts after.

        Where too few of the shadows near a query could vote, it is exhausted: nobody is charged.
        `weights`, `near_wider`: uint8[B, S], records of the shadows near each query, and within a
        wider reach. All of them are public, so none of this reveals anything.
        """
        spent, answered = shadows.astype(np.int64), list[bool]()
        for squared, near in zip(self._shadow_costs(weights), near_wider, strict=True):
            if most <= 0:
                break
            answered.append(
                bool(self.exhausted_shares(near[None], spent, allowance)[0] < EXHAUSTED_SHARE)
            )
            if answered[-1]:
                most -= 1
                spent += (spent + squared <= allowance) * squared
        return np.array(answered, dtype=bool), spent.astype(np.uint32)

    def exhausted_shares(
        self, near_wider: NDArray[np.uint8], shadows: NDArray[np.integer], allowance: int
    ) -> NDArray[np.float64]:
        """Return the share of the public rows around each query that could not vote on it: [B]."""
        gone = near_wider * (shadows + self._shadow_costs(near_wider) > allowance)
        share: NDArray[np.float64] = gone.sum(1) / np.maximum(near_wider.sum(1, dtype=np.int64), 1)
        return share

    def _shadow_costs(self, weights: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return ‖v‖² of shadows, int64[B, S]. Their records have no classes, and count as one."""
        return np.minimum(weights.astype(np.int64), self.norm) ** 2

    def _votes(
        self, weights: NDArray[np.uint8], units: Units
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the votes int64[P] of each unit for each of its classes, and ‖v‖² int64[R].

        ‖v‖² ≤ norm². Each unit's vote is a function of its own records' weights alone.
        """
        sums = np.minimum(np.add.reduceat(weights, units.starts, dtype=np.int64), MAX_CLASS_WEIGHT)
        whole = np.add.reduceat(sums * sums, units.firsts)[units.places]
        # The largest integers with votes² · whole ≤ (norm · sums)²: at most one off before.
        scaled = (self.norm * sums / np.sqrt(np.maximum(whole, 1))).astype(np.int64)
        most = (self.norm * sums) ** 2
        scaled += (scaled + 1) ** 2 * whole <= most
        scaled -= scaled**2 * whole > most
        votes = np.where(whole > self.norm**2, scaled, sums)
        return votes, np.add.reduceat(votes * votes, units.firsts)

    def release(
        self,
        counts: Counts,
        probabilities: Probabilities | None = None,
        entropy: Entropy = os.urandom,
    ) -> Released:
        """Answer each row of cast counts, int64[B, m], with noise and the largest of them.

        Ties go to the lowest class. The accounts that belong to the counts must be durable before
        what is returned is sent.
        """
        check_counts_shape(counts, self.classes)
        noise = discrete_gaussian(self.sigma)
        return Released.all_counted(add_noise(counts.astype(np.int64), noise, entropy))

    @staticmethod
    def plan_grid(teachers: int, delta: float) -> Grid:
        """Raise `ParameterError`: it is planned from public rows (`planning.forecast`)."""
        raise ParameterError(
            "neighbours cannot be planned from a number of teachers: what it answers depends on "
            "how many people are near a query. See docs/privacy/neighbours.md."
        )
