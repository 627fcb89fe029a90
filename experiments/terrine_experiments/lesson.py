"""What the students of one part have in common: inputs, and what is computed from them once."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from terrine_experiments.setup import Part
from terrine_experiments.sources import Source
from terrine_models.students.answers import CERTAIN, student_from_answers, true_counts
from terrine_models.students.models import Student
from terrine_models.students.networks import Training
from terrine_models.students.noisy_counts import CountedStudents
from terrine_models.students.ridge import RidgeFit
from terrine_models.students.selection import Made, assign_folds
from terrine_server.bars import steps_bar

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Answers:
    """What a student learns from: answers to the public inputs [P], bought or true."""

    labels: Ints
    """[P], -1 where there is none."""
    teachers: int
    noisy_counts: Ints | None
    """[P, m], of noisy_votes."""
    noise_sigma: float | None
    matches_prior: bool


@dataclass(frozen=True, eq=False)
class Bought:
    """The answers of one run, and its account."""

    answers: Answers
    outcomes: dict[str, int]
    epsilon_spent: float
    rule: str


def truth(labels: Ints, classes: int, like: Answers) -> Answers:
    """True labels [P] as answers of the same form: where counts are sold, one certain vote each."""
    counts, sigma = None, None
    if like.noisy_counts is not None:
        counts, sigma = true_counts(labels, classes), CERTAIN
    teachers = like.teachers if counts is None else 1
    return Answers(labels, teachers, counts, sigma, like.matches_prior)


@dataclass(frozen=True, eq=False)
class Lesson:
    """The public inputs that students of one part see, and the tests that measure them."""

    source: Source
    part: Part
    say: Callable[[str], None]
    console: Console

    @cached_property
    def counted(self) -> CountedStudents:
        """Of students that learn from noisy counts."""
        test = self.source.test
        x = test.inputs[self.part.seen]
        return CountedStudents(x, inputs=test.spec, classes=test.classes, encoding=test.encoding)

    def learn(self, answers: Answers, training: Training) -> Made:
        """Train a student on the answers to its inputs, as `terrine student train` does."""
        seen, test, counts = self.part.seen, self.source.test, answers.noisy_counts
        labels, sigma = answers.labels[seen], answers.noise_sigma
        with steps_bar(self.console) as on_step:
            if counts is not None and sigma is not None and (labels >= 0).all():
                return self.counted.train(
                    counts[seen],
                    teachers=answers.teachers,
                    sigma=sigma,
                    matches_prior=answers.matches_prior,
                    training=training,
                    tell=self._tell,
                    on_step=on_step,
                )
            return student_from_answers(
                test.inputs[seen],
                labels,
                teachers=answers.teachers,
                noisy_counts=None if counts is None else counts[seen],
                noise_sigma=sigma,
                matches_prior=answers.matches_prior,
                inputs=test.spec,
                classes=test.classes,
                encoding=test.encoding,
                training=training,
                tell=self._tell,
                on_step=on_step,
            )

    def learn_plainly(self, answers: Answers) -> Student:
        """Train the plain student: ridge regression on the labels alone, one of each answer."""
        labels, students = answers.labels[self.part.seen], copy(self.counted.ridges)
        known = labels >= 0
        students.labels = labels[known]
        students.features, students.as_new = students.features[known], students.as_new[known]
        folds = assign_folds(students.labels, len(students.classes), 0)
        return students.train(RidgeFit() if folds is None else students.judge(folds))

    def right(self, student: Student) -> int:
        """How many of the part's tests a student has right."""
        tested, test = self.part.tested, self.source.test
        return int((student.predict(test.inputs[tested]) == test.labels[tested]).sum())

    def _tell(self, line: str) -> None:
        self.say(f"  {line}")
