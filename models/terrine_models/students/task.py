"""What is to be learned, and what a way to learn it looks like.

A `Task` is what all students of the same public inputs share; a `StudentMethod` makes a student of
a task and the answers to it. `methods.py` lists them. Everything here uses public inputs and
answers that were paid for, so it costs no privacy, however often it is repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec, distinct
from terrine_models.features.maps import ViewPoints
from terrine_models.features.views import View
from terrine_models.students.answers import Answers, Floats, Ints
from terrine_models.students.models import Student
from terrine_models.students.settings import Training
from terrine_protocol.tables import TableSchema

T = TypeVar("T")
LARGE = 20
"""Side in pixels from which distorted images teach more than small perturbations."""


@dataclass(frozen=True, eq=False)
class Task:
    """Public inputs x [N, *shape], what they look like, and the classes that they may be in."""

    x: NDArray[np.generic]
    spec: InputSpec
    classes: tuple[str, ...]
    encoding: TableSchema | None = None
    """Of a table: how its rows became inputs."""
    seed: int = 0
    view: View | None = None
    """How pictures are seen. None: as is usual."""
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError if the inputs are not as `spec` says."""
        if self.x.shape[1:] != self.spec.shape:
            raise ValueError(
                f"inputs have shape {self.x.shape}, expected {(len(self.x), *self.spec.shape)}"
            )

    @property
    def is_table(self) -> bool:
        """Whether inputs are rows of a table, not images."""
        return len(self.spec.shape) == 1

    @property
    def has_large_images(self) -> bool:
        """Whether inputs are images from some 20 pixels a side."""
        return not self.is_table and min(self.spec.shape[:2]) >= LARGE

    @property
    def inputs(self) -> Ints:
        """Which of the distinct inputs each row [N] is: in a table of few values, rows repeat."""
        return self.once(_distinct)

    def seen_for(self, answers: Answers) -> Task:
        """The same task, whose pictures are seen as the answers are learned best."""
        if self.is_table:
            return self
        view = self.once(_view_points).best(answers.shares, answers.known)
        seen: Task = self._made.setdefault(view, replace(self, view=view, _made={}))
        return seen

    def once(self, make: Callable[[Task], T]) -> T:
        """What `make` computes of the inputs alone: it is computed once, for all students."""
        if make not in self._made:
            self._made[make] = make(self)
        found: T = self._made[make]
        return found


def _view_points(task: Task) -> ViewPoints:
    first = np.unique(task.inputs, return_index=True)[1]
    return ViewPoints.of(task.spec, np.asarray(task.x), np.sort(first))


def _distinct(task: Task) -> Ints:
    return distinct(np.asarray(task.x))


class StudentMethod(ABC):
    """One way to train a student. A subclass says whom it suits and how it is fitted."""

    wants: ClassVar[str] = "any inputs"
    """What it is for, in an error message."""

    def __init__(self, training: Training) -> None:
        self.training = training

    @classmethod
    def can(cls, task: Task) -> bool:
        """Whether it learns anything from such inputs."""
        return True

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Whether `auto` takes it for such inputs, by public facts alone."""
        return False

    @abstractmethod
    def fit(self, task: Task, answers: Answers) -> Student:
        """Train a student on what is known of the inputs. Raises ValueError if nothing is."""

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """Probabilities [N, m] of inputs by students that did not see the answers of their fold.

        folds: [N], -1 where an input is never held out; its row is 0.
        """
        held_out = np.zeros((len(task.x), len(task.classes)))
        for fold in np.unique(folds[folds >= 0]):
            rows = folds == fold
            student = self.fit(task, answers.only(~rows))
            held_out[rows] = student.probabilities(task.x[rows])
        return held_out
