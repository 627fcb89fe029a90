"""Whether a student that learned from unlabelled inputs has collapsed.

Losses on unlabelled inputs reward confident and constant predictions, and are at their best where
all inputs are in one class. Labels hold against that. Where they are few, one-sided or wrong, it
happens that a student gives up classes as training goes on, and no training loss shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SEEN = 2
"""Labels of a class that show, by themselves, that there are such inputs: one may be noise."""
ENOUGH = 10
"""Inputs that the plain model puts into a class, from which it counts as left out."""
FRACTION = 4
"""A class is left out if it is predicted less than a quarter as often as by the plain model."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Predictions of a finished student and of plain models. All are class indices."""

    labels: Ints
    """[K], the bought labels."""
    own: Ints
    """[K], what the student predicts for them. It was trained on them."""
    plain_agreement: float
    """Share of the labels that the plain model predicts in cross-validation."""
    pool: Ints
    """[P], what the student predicts for a sample of the public inputs."""
    plain_pool: Ints
    """[P], what the plain model predicts for it."""
    other_pool: Ints
    """[P], what the second plain model predicts for it."""


def collapse(found: Evidence, classes: tuple[str, ...]) -> str | None:
    """What is wrong with the student, as a sentence; None if nothing is.

    A student that was trained on all labels should fit them at least as well as the plain model
    predicts them unseen (up to one standard error), and resemble the plain model as much as
    another, weaker plain model does.
    """
    labels = len(found.labels)
    counts = np.bincount(found.labels, minlength=len(classes))
    shown, predicted = int((counts >= SEEN).sum()), np.unique(found.pool)
    if len(predicted) == 1 and shown > 1:
        return (
            f"it predicts {classes[predicted[0]]} for every public input, where the labels show "
            f"{shown} classes."
        )
    share, plain = (
        np.bincount(pool, minlength=len(classes)) for pool in (found.pool, found.plain_pool)
    )
    left_out = (counts > 0) & (plain >= ENOUGH) & (FRACTION * share < plain)
    missing = np.flatnonzero(left_out)
    if len(missing):
        return f"it hardly ever predicts {', '.join(classes[k] for k in missing)}."
    own = float((found.own == found.labels).mean())
    error = float(np.sqrt(found.plain_agreement * (1 - found.plain_agreement) / labels))
    if own < found.plain_agreement - error:
        return (
            f"it fits only {own:.1%} of the labels that it was trained on, of which the plain "
            f"model predicts {found.plain_agreement:.1%} unseen."
        )
    alike = float((found.pool == found.plain_pool).mean())
    usual = float((found.other_pool == found.plain_pool).mean())
    if alike < usual:
        return (
            f"it agrees with the better plain model on {alike:.1%} of the public inputs, where the "
            f"other plain model does on {usual:.1%}."
        )
    return None
