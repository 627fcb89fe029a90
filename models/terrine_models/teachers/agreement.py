"""How far teachers agree, and how often they are right, on labelled data.

A function of the teachers' votes without noise: of teachers trained on private records, it is for
nobody's eyes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVELS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.0)
PARTS = 5
"""Levels of consensus that stand for the whole in a plan."""


@dataclass(frozen=True)
class AgreementLevel:
    """The inputs on which at least a share of the teachers, and not the next share, agrees."""

    agreement: float
    inputs: int
    right: float | None
    """Share of them on which the plurality is right; None if there are none."""


@dataclass(frozen=True)
class ClassAgreement:
    """The inputs of one class."""

    name: str
    inputs: int
    right: float | None
    votes: float | None
    """Mean share of the teachers that vote for the class."""


@dataclass(frozen=True)
class Agreement:
    """What `votes` and `labels` say about an ensemble."""

    teachers: int
    inputs: int
    mean_teacher: float
    """Mean accuracy of one teacher."""
    plurality: float
    majority: float
    """Share of the most frequent class: what a constant answer is right on."""
    levels: tuple[AgreementLevel, ...]
    classes: tuple[ClassAgreement, ...]
    consensus: tuple[float, ...]
    """Means of the agreement of equal parts of the inputs, highest first, for a plan."""

    @classmethod
    def of(
        cls, votes: NDArray[np.int64], labels: NDArray[np.int64], classes: tuple[str, ...]
    ) -> Agreement:
        """From votes [B, m], B at least 1, and labels [B], indices into `classes`."""
        teachers = int(votes[0].sum())
        shares = votes / teachers
        right = votes.argmax(axis=1) == labels
        top = shares.max(axis=1)
        of_truth = shares[np.arange(len(labels)), labels]
        levels, above = [], np.inf
        for least in LEVELS:
            chosen = (top >= least) & (top < above)
            levels.append(AgreementLevel(least, int(chosen.sum()), _mean(right[chosen])))
            above = least
        parts = np.array_split(np.sort(top)[::-1], min(PARTS, len(top)))
        return cls(
            teachers=teachers,
            inputs=len(labels),
            mean_teacher=float(of_truth.mean()),
            plurality=float(right.mean()),
            majority=float(np.bincount(labels).max() / len(labels)),
            levels=tuple(levels),
            classes=tuple(
                ClassAgreement(
                    name,
                    int((labels == c).sum()),
                    _mean(right[labels == c]),
                    _mean(of_truth[labels == c]),
                )
                for c, name in enumerate(classes)
            ),
            consensus=tuple(float(part.mean()) for part in parts),
        )


def _mean(values: NDArray[Any]) -> float | None:
    return float(np.mean(values)) if len(values) else None
