"""What the students of one part have in common: inputs, and what is computed from them once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from terrine_models.answers import student_from_answers
from terrine_models.choice import Made
from terrine_models.counted import CountedStudents
from terrine_models.forest_students import ForestStudents
from terrine_models.learning import Training, train_student
from terrine_models.students import Student
from terrine_server.bars import steps_bar
from terrine_server.reproduce.setup import Part
from terrine_server.reproduce.sources import Source

Ints = NDArray[np.int64]
CERTAIN = 0.1
"""The noise that a regression is told of true labels: its penalty must not be nothing."""


@dataclass(frozen=True, eq=False)
class Bought:
    """The answers of one study, and its account."""

    labels: Ints
    """[P], -1 where none was bought."""
    outcomes: dict[str, int]
    noisy_counts: Ints | None
    noise_sigma: float | None
    matches_prior: bool
    epsilon_spent: float
    rule: str


@dataclass(frozen=True, eq=False)
class Lesson:
    """The public inputs that students of one part see, and the tests that measure them."""

    source: Source
    part: Part
    teachers: int
    say: Callable[[str], None]
    console: Console

    @cached_property
    def counted(self) -> CountedStudents:
        """Of students that learn from noisy counts."""
        test = self.source.test
        x = test.inputs[self.part.seen]
        return CountedStudents(x, inputs=test.spec, classes=test.classes, encoding=test.encoding)

    def learn(self, bought: Bought, training: Training) -> Made:
        """Train a student on the answers to its inputs, as `terrine student train` does."""
        seen, test, counts = self.part.seen, self.source.test, bought.noisy_counts
        labels = bought.labels[seen]
        with steps_bar(self.console) as on_step:
            if counts is not None and bought.noise_sigma is not None and (labels >= 0).all():
                return self.counted.train(
                    counts[seen],
                    teachers=self.teachers,
                    sigma=bought.noise_sigma,
                    matches_prior=bought.matches_prior,
                    training=training,
                    tell=self._tell,
                    on_step=on_step,
                )
            return student_from_answers(
                test.inputs[seen],
                labels,
                teachers=self.teachers,
                noisy_counts=None if counts is None else counts[seen],
                noise_sigma=bought.noise_sigma,
                matches_prior=bought.matches_prior,
                inputs=test.spec,
                classes=test.classes,
                encoding=test.encoding,
                training=training,
                tell=self._tell,
                on_step=on_step,
            )

    def learn_truth(self, training: Training) -> Student:
        """Train a model on the true labels of the same inputs: no vote has a part in it."""
        seen, test = self.part.seen, self.source.test
        if training.method == "forest":
            return ForestStudents(
                test.inputs[seen],
                test.labels[seen],
                inputs=test.spec,
                classes=test.classes,
                encoding=test.encoding,
                seed=training.seed,
            ).train()
        if training.method == "kernel":
            return self.counted.kernels.train(test.labels[seen], again=False)
        if training.method == "neighbours":
            return self.counted.neighbours.train(test.labels[seen])
        if training.method == "ridge":
            certain = np.eye(len(test.classes), dtype=np.int64)[test.labels[seen]]
            return self.counted.train(certain, teachers=1, sigma=CERTAIN, training=training).student
        with steps_bar(self.console) as on_step:
            return train_student(
                test.inputs[seen],
                test.labels[seen],
                inputs=test.spec,
                classes=test.classes,
                encoding=test.encoding,
                training=training,
                on_step=on_step,
            )

    def right(self, student: Student) -> int:
        """How many of the part's tests a student has right."""
        tested, test = self.part.tested, self.source.test
        return int((student.predict(test.inputs[tested]) == test.labels[tested]).sum())

    def _tell(self, line: str) -> None:
        self.say(f"  {line}")
