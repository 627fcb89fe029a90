"""The audited mechanisms, their parameters, and the neighbouring votes they are tried on.

The cases have few teachers and little noise, so that one vote shows: prices are formulas in the
parameters, and tests/privacy proves them for all parameters. Neighbours differ in one vote of each
query. The worst lie on a path from a defeat to a unanimous win. With more than two classes, a few
more are drawn at random.

What noisy counts reveal of two neighbours lies in the two counts that differ, and in these, since
the likelihood ratio of Gaussian noise is monotone in it, in their difference alone. So such a case
has two classes. Of people with accounts, the most that all queries of a project together may reveal
is tried: they are asked more often than they may answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from terrine_server.privacy import Mechanism, Neighbours, Units, build_mechanism

Votes = tuple[int, ...]
Request = tuple[Votes, ...]
"""The votes on the queries of one request, in order."""
RANDOM_PAIRS = 4
MORE = 1
"""How many queries people are asked beyond what they may answer. More would hide what they do."""


@dataclass(frozen=True)
class Case:
    """One mechanism. `student`: the student's class probabilities, if the mechanism needs them."""

    title: str
    spec: Mapping[str, Any]
    teachers: int
    worst: tuple[tuple[Request, Request], ...]
    student: tuple[float, ...] | None = None
    claim: float | None = None
    """A pure ε that a paper claims and that is known to be false: the audit must refute it."""
    allowance: int | None = None
    """Of `neighbours`: then the votes are cast by people, one of whom is replaced by another."""

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.worst[0][0][0]) if self.worst else 2

    def build(self) -> Mechanism:
        """Return the mechanism, built as for a project."""
        return build_mechanism(self.spec, teachers=self.teachers, classes=self.classes)

    def neighbours(self, choice: np.random.Generator) -> list[tuple[Request, Request]]:
        """Return the pairs to try: the worst known pairs, and some drawn by `choice`."""
        pairs = list(self.worst)
        if self.allowance is not None:
            return [*pairs, *_replaced(self.build(), self.allowance)]
        for _ in range(RANDOM_PAIRS if self.classes > 2 else 0):
            votes = choice.multinomial(self.teachers - 1, [1 / self.classes] * self.classes)
            one, other = choice.choice(self.classes, size=2, replace=False)
            pairs.append(_single(_plus_one(votes, one), _plus_one(votes, other)))
        return pairs


def _plus_one(votes: np.ndarray, winner: int) -> Votes:
    return tuple(int(count) + (j == winner) for j, count in enumerate(votes))


def _single(one: Votes, other: Votes) -> tuple[Request, Request]:
    """Return neighbouring requests of a single query."""
    return (one,), (other,)


def _path(teachers: int) -> tuple[tuple[Request, Request], ...]:
    """Return votes of two classes, from a clear defeat to a unanimous win of the first."""
    votes = [(won, teachers - won) for won in range(teachers // 2 - 6, teachers + 1)]
    return tuple(_single(*pair) for pair in pairwise(votes))


def _replaced(
    mechanism: Mechanism, allowance: int
) -> tuple[tuple[Request, Request], tuple[Request, Request]]:
    """Return what two people cast on more queries than are allowed, if one is replaced.

    By somebody of the other class, and by nobody. The mechanism itself decides who takes part.
    """
    if not isinstance(mechanism, Neighbours):
        raise TypeError(f"nobody has an account in {mechanism.name}")

    def cast(labels: Sequence[int]) -> Request:
        units = np.arange(len(labels), dtype=np.int32)
        layout = Units.of(units, np.array(labels, np.int16), mechanism.teachers)
        near = np.ones((allowance + MORE, len(labels)), np.uint8)
        accounts = np.zeros(mechanism.teachers, np.uint32)
        counts, _ = mechanism.cast(near, layout, accounts, allowance)
        return tuple((int(one), int(other)) for one, other in counts)

    return (cast([0, 0]), cast([0, 1])), (cast([0, 0]), cast([0]))


CASES = (
    Case("lnmax", {"name": "lnmax", "gamma": 0.5}, 19, _path(19)),
    Case("gnmax", {"name": "gnmax", "sigma": 2.0}, 19, _path(19)),
    # Of noisy counts all neighbours are alike: two of them, not to take that for granted.
    Case("noisy_votes", {"name": "noisy_votes", "sigma": 2.0}, 19, (_path(19)[6], _path(19)[-1])),
    Case("neighbours", {"name": "neighbours", "sigma": 2.0, "queries": 9}, 2, (), allowance=3),
    Case(
        "confident_gnmax",
        {"name": "confident_gnmax", "threshold": 17, "sigma1": 1.5, "sigma2": 4.0},
        19,
        _path(19),
    ),
    Case(
        "interactive_gnmax",
        {
            "name": "interactive_gnmax",
            "threshold": 8,
            "sigma1": 1.5,
            "sigma2": 4.0,
            "confidence": 0.4,
        },
        19,
        _path(19),
        student=(0.5, 0.5),
    ),
    Case("stable", {"name": "stable", "sigma": 1.0, "delta_per_query": 0.02}, 19, _path(19)),
    Case(
        "immutable, Laplace",
        {"name": "immutable", "c": 1, "gamma": 1.0},
        9,
        (_single((3, 2, 2, 2), (2, 2, 2, 3)), _single((2, 2, 2, 3), (2, 3, 2, 2))),
    ),
    Case(
        "immutable, Gaussian",
        {"name": "immutable", "c": 2, "sigma": 6.0},
        19,
        _path(19),
    ),
    Case(
        "immutable, as published",
        {"name": "immutable", "c": 5, "gamma": 0.5},
        5,
        (_single((3, 2), (2, 3)), _single((4, 1), (3, 2))),
        claim=2 * 0.5,
    ),
)
