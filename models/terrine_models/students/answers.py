"""A student from the answers of any mechanism: labels, or noisy counts where these were bought."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.students.networks import Training
from terrine_models.students.noisy_counts import student_from_counts
from terrine_models.students.selection import Made, choose_student
from terrine_protocol.tables import TableSchema

Ints = NDArray[np.int64]
CERTAIN = 0.1
"""The noise that a student is told of true labels, in shares: a penalty must not be nothing."""


def true_counts(labels: Ints, classes: int) -> Ints:
    """Return true labels [N] as the counts [N, m] of one teacher, who is right.

    A student that learns from these, with a noise of `CERTAIN`, is what the same student of noisy
    counts is compared with.
    """
    return np.eye(classes, dtype=np.int64)[labels]


def student_from_answers(
    x: NDArray[np.generic],
    labels: Ints,
    *,
    teachers: int,
    noisy_counts: Ints | None = None,
    noise_sigma: float | None = None,
    matches_prior: bool = False,
    inputs: InputSpec,
    classes: tuple[str, ...],
    encoding: TableSchema | None = None,
    training: Training | None = None,
    tell: Callable[[str], None] = lambda line: None,
    on_step: Callable[[int, int], None] = lambda done, steps: None,
) -> Made:
    """Train a student on inputs [N, *shape] and the answers to them.

    labels: [N], -1 where there is none. noisy_counts: [N, m], of the rows with a label, and
    noise_sigma, in votes, for noisy_votes: then the student learns from the counts
    (`noisy_counts.py`, which explains matches_prior), else from the labels (`selection.py`). Raises
    ValueError when no input has a label.
    """
    common: dict[str, Any] = {
        "inputs": inputs,
        "classes": classes,
        "encoding": encoding,
        "training": training,
        "tell": tell,
        "on_step": on_step,
    }
    answered = labels >= 0
    if noisy_counts is not None and noise_sigma is not None and answered.sum() > 1:
        counted = noisy_counts[answered]
        return student_from_counts(
            x[answered],
            counted,
            teachers=teachers,
            sigma=noise_sigma,
            matches_prior=matches_prior,
            **common,
        )
    return choose_student(x, labels, **common)
