"""The ways to train a student, by name.

A network learns by an `Objective` (`networks.NETWORKS`). A `Model` is anything else that learns
from labels (`MODELS`). To add one, write its class and put it into one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.students.kernel import KernelStudents
from terrine_models.students.models import Student
from terrine_models.students.neighbours import NeighbourStudents
from terrine_models.students.networks import NETWORKS, Training, only_images
from terrine_protocol.tables import TableSchema

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Task:
    """What a student learns from: inputs [N, *shape] and `labels` [N], -1 where there is none."""

    x: NDArray[np.generic]
    labels: Ints
    inputs: InputSpec
    classes: tuple[str, ...]
    encoding: TableSchema | None
    seed: int


class Model(Protocol):
    """A student that is one model: networks are averaged, and classes balanced, but not these."""

    def __init__(self, task: Task) -> None: ...

    @staticmethod
    def check(inputs: InputSpec) -> None:
        """Raise ValueError or DataError if there is none for such inputs."""

    def judge(self, folds: Ints) -> float:
        """The share of the K known labels that is predicted without their fold, of `folds` [K]."""

    def train(self) -> Student:
        """The student on all labels."""


class Kernel:
    """The kernel student, for images."""

    def __init__(self, task: Task) -> None:
        self.labels = task.labels
        self.students = KernelStudents(
            task.x, inputs=task.inputs, classes=task.classes, seed=task.seed
        )

    @staticmethod
    def check(inputs: InputSpec) -> None:
        """Raise ValueError for tables."""
        only_images("kernel", inputs)

    def judge(self, folds: Ints) -> float:
        """The share of the labels that is predicted without their fold."""
        return self.students.judge(self.labels, folds)

    def train(self) -> Student:
        """The student on all labels."""
        return self.students.train(self.labels)


class Neighbours:
    """The student of neighbours, for images of many classes."""

    def __init__(self, task: Task) -> None:
        self.labels = task.labels
        self.students = NeighbourStudents(task.x, inputs=task.inputs, classes=task.classes)

    @staticmethod
    def check(inputs: InputSpec) -> None:
        """Raise ValueError for tables."""
        only_images("neighbours", inputs)

    def judge(self, folds: Ints) -> float:
        """The share of the labels that is predicted without their fold."""
        return self.students.judge(self.labels, folds)

    def train(self) -> Student:
        """The student on all labels."""
        return self.students.train(self.labels)


MODELS: dict[str, type[Model]] = {"kernel": Kernel, "neighbours": Neighbours}
"""By name: models beside `ridge`, which is always tried."""


def methods() -> tuple[str, ...]:
    """Return what may be asked for. `auto` tries several, and chooses by the labels."""
    return ("auto", "ridge", *NETWORKS, *MODELS)


def check(training: Training, inputs: InputSpec) -> None:
    """Raise ValueError if no student for such inputs can be trained so."""
    method = training.method
    if method not in methods():
        raise ValueError(f"There is no method {method!r}, but {', '.join(methods())}.")
    if method in MODELS:
        MODELS[method].check(inputs)
        if training.students > 1 or training.balance:
            raise ValueError(
                f"a {method} student is one model, to which every label counts alike. Leave out "
                "students and balance, or use another method."
            )
    elif method in NETWORKS:
        NETWORKS[method].check(inputs)
