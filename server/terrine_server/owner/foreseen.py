"""What a first project should buy, foreseen from labelled public records alone.

Stand-ins for the teachers are trained on some public records, as many to each as a teacher would
have. They vote on others, with noise, and the product's student learns from that. The noise is
such that a share fitted to these rows has the noise that it would have, fitted to the whole pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import Dataset
from terrine_models.students.answers import Answers
from terrine_models.students.selection import choose
from terrine_models.students.task import Task
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.preview import StandIns, stand_ins
from terrine_server.planning.first_project import FirstProject
from terrine_server.planning.remaining import FEW
from terrine_server.privacy import NoisyVotes
from terrine_server.privacy.parameters import MIN_SIGMA

DRAWS = 3
MOST, MOST_ROWS = 400, 4_000
"""Stand-ins, and rows on which they vote. With fewer than in the project, each share varies more
and fewer rows fit the features, so a student is rather foreseen worse."""
USELESS = 0.1
"""Balanced accuracy above that of guessing, without which nothing was learned."""
TESTED = 4
"""One in so many of the rows that are voted on tests the student, which does not see it."""


@dataclass(frozen=True)
class Foreseen:
    """Figures of students over a few draws of stand-ins, rows and noise.

    Each [least, most], and two standard errors of all tested rows further: few rows tell little.
    """

    accuracy: tuple[float, float]
    balanced_accuracy: tuple[float, float]
    majority: float
    """Share of the most frequent class: what a constant answer is right on."""
    stand_ins: int
    useless: bool
    """Whether no student is much better than a constant answer."""


def foresee(public: Dataset, records: int, first: FirstProject) -> Foreseen | None:
    """Simulate students of teachers of `records` records each.

    None if there are too few public ones.
    """
    figures, teachers, tested, classes = [], 0, 0, len(public.classes)
    most = min(MOST, first.teachers)
    for seed in range(DRAWS):
        found = stand_ins(public, records, Heads(), seed, most=most, most_rows=MOST_ROWS)
        if found is None or len(found.asked) < TESTED * FEW * classes:
            return None
        figures.append(_student(public, found, first, seed))
        teachers, tested = found.teachers, tested + len(found.asked) // TESTED
    accuracy, balanced = (_range(values, tested) for values in zip(*figures, strict=True))
    majority = float(np.bincount(public.labels).max() / len(public))
    useless = max(values[1] for values in figures) < 1 / classes + USELESS
    return Foreseen(accuracy, balanced, majority, teachers, useless)


def _range(values: tuple[float, ...], tested: int) -> tuple[float, float]:
    least, most = min(values), max(values)
    error = 2 * float(np.sqrt(np.mean(values) * (1 - np.mean(values)) / tested))
    return max(0.0, least - error), min(1.0, most + error)


def _student(
    public: Dataset, found: StandIns, first: FirstProject, seed: int
) -> tuple[float, float]:
    """Return the accuracy and the balanced accuracy of one student."""
    classes, random = len(public.classes), np.random.default_rng(seed)
    learned = np.arange(len(found.asked)) % TESTED > 0
    sigma = max(MIN_SIGMA, first.fitted_noise * found.teachers * float(learned.sum()) ** 0.5)
    noisy = NoisyVotes(found.teachers, classes, sigma).release(
        found.votes[learned], entropy=random.bytes
    )
    if noisy.counts is None:
        raise RuntimeError("noisy_votes released no counts")
    task = Task(public.inputs[found.asked[learned]], public.spec, public.classes)
    answers = Answers.of_counts(
        noisy.counts, teachers=found.teachers, sigma=sigma, matches_prior=found.matches_prior
    )
    tested = found.asked[~learned]
    return _right(
        choose(task, answers).student.predict(public.inputs[tested]), public.labels[tested]
    )


def _right(said: NDArray[np.int64], labels: NDArray[np.int64]) -> tuple[float, float]:
    right = said == labels
    recalls = [float(right[labels == label].mean()) for label in np.unique(labels)]
    return float(right.mean()), float(np.mean(recalls))
