"""Students that tests train on labels, without a service."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.students.answers import Answers, Ints
from terrine_models.students.models import METHODS, Student, Task
from terrine_models.students.selection import TrainedStudent, choose
from terrine_models.students.settings import Training


def taught(
    method: str,
    x: NDArray[Any],
    labels: Ints,
    spec: InputSpec,
    classes: tuple[str, ...],
    seed: int = 0,
    training: Training | None = None,
) -> Student:
    """A student of one method, neither compared nor calibrated."""
    task, how = Task(x, spec, classes, seed=seed), training or Training(method)
    return METHODS[method](how).fit(task, Answers.of_labels(labels, len(classes)))


def chosen(
    method: str,
    x: NDArray[Any],
    labels: Ints,
    spec: InputSpec,
    classes: tuple[str, ...],
    training: Training | None = None,
) -> TrainedStudent:
    """A student as it is returned."""
    answers = Answers.of_labels(labels, len(classes))
    return choose(Task(x, spec, classes), answers, training or Training(method))
