"""A random forest as a student of a table. scikit-learn trains it; nothing is needed to use it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.maps import prepare
from terrine_models.storage.manifests import StoreError
from terrine_models.students.answers import Answers
from terrine_models.students.models import (
    Regression,
    Student,
    StudentMethod,
    StudentModel,
    Task,
    Tensors,
    describe_student,
)
from terrine_models.teachers.trees import Trees, fit_forest, require_scikit_learn

TREES = 100


class ForestModel:
    """A forest, as one of many (`trees.py`). Its scores are the logarithms of its probabilities."""

    def __init__(self, tensors: Tensors, inputs: InputSpec, classes: int, where: str) -> None:
        """Raises StoreError, which begins with `where`, unless `tensors` are one forest's."""
        self.tensors = tensors
        known = {name: torch.tensor(tensor) for name, tensor in tensors.items()}
        self.forest = Trees(known, inputs.shape[0], classes, where)
        if self.forest.forests != 1:
            raise StoreError(f"{where} holds {self.forest.forests} forests, expected one.")

    def __call__(self, x: NDArray[np.float32]) -> NDArray[Any]:
        """Scores [B, m] of prepared rows [B, d]."""
        with np.errstate(divide="ignore"):
            found: NDArray[Any] = np.log(self.forest.probabilities(x)[0])
        return found


class Forest(StudentMethod):
    """Forests of what is known of public rows."""

    wants = "tables"

    @classmethod
    def can_learn(cls, task: Task) -> bool:
        """Tables alone. Raises TrainingError without scikit-learn."""
        require_scikit_learn()
        return task.is_table

    def fit(self, task: Task, answers: Answers) -> Student:
        """The forest of all that is known."""
        labels = Regression.of(task, answers).labels() if answers.noise else answers.labels
        classes = task.classes
        rows = labels >= 0
        prepared = prepare(np.asarray(task.x[rows]), task.spec)
        draws = np.random.SeedSequence(task.seed)
        fitted = fit_forest(prepared, labels[rows], len(classes), TREES, draws)
        tensors = {name: tensor.numpy() for name, tensor in fitted.items()}
        how: dict[str, int | float | str] = {"method": "forest", "trees": TREES, "seed": task.seed}
        model = describe_student(task.spec, classes, how, task.encoding, architecture="forest")
        return Student(ForestModel(tensors, task.spec, len(classes), "the forest"), model)


def load(model: StudentModel, tensors: Tensors, where: str) -> ForestModel:
    """Return a saved forest. Raises StoreError if it is none."""
    if len(model.input.shape) != 1:
        raise StoreError(f"{where} holds a forest, which is for the rows of a table.")
    return ForestModel(tensors, model.input, len(model.classes), where)
