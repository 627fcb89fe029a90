"""A random forest as a student of a table. scikit-learn trains it; nothing is needed to use it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.features.prepared import prepare
from terrine_models.storage.manifests import StoreError
from terrine_models.students.methods import Task
from terrine_models.students.models import Student, StudentModel, describe
from terrine_models.teachers.forests import fit_forest, require_scikit_learn
from terrine_models.teachers.trees import Trees

TREES = 100

Ints = NDArray[np.int64]


class ForestModel(nn.Module):
    """A forest, as one of many (`trees.py`). Its scores are the logarithms of its probabilities."""

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], inputs: InputSpec, classes: int, where: str
    ) -> None:
        """Raises StoreError, which begins with `where`, unless `tensors` are one forest's."""
        super().__init__()
        self.forest = Trees(tensors, inputs.shape[0], classes, where)
        if self.forest.forests != 1:
            raise StoreError(f"{where} holds {self.forest.forests} forests, expected one.")
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [B, m] of prepared rows [B, d]."""
        return torch.from_numpy(self.forest.probabilities(x.numpy())[0]).log()


class Forest:
    """Forests on the labelled rows among public ones [N, columns]."""

    def __init__(self, task: Task) -> None:
        self.check(task.inputs)
        known = task.labels >= 0
        if not known.any():
            raise ValueError("there is nothing to learn from: no input has a label")
        self.task = task
        self.x, self.labels = np.asarray(task.x)[known], task.labels[known]

    @staticmethod
    def check(inputs: InputSpec) -> None:
        """Raise DataError unless inputs are tables, TrainingError without scikit-learn."""
        if len(inputs.shape) != 1:
            raise DataError("The forest student is for tables; images have the kernel student.")
        require_scikit_learn()

    def judge(self, folds: Ints) -> float:
        """The share of labels that forests predict which learned from the other `folds` [K]."""
        right = 0
        for fold in np.unique(folds):
            own = folds == fold
            predicted = self._fit(~own).predict(self.x[own])
            right += int((predicted == self.labels[own]).sum())
        return right / len(self.labels)

    def train(self) -> Student:
        """The student on all labels."""
        return self._fit(np.ones(len(self.labels), dtype=bool))

    def _fit(self, rows: NDArray[np.bool_]) -> Student:
        task, classes = self.task, self.task.classes
        x = torch.from_numpy(np.asarray(self.x[rows], dtype=np.float32))
        prepared = prepare(x, task.inputs).numpy()
        draws = np.random.SeedSequence(task.seed)
        tensors = fit_forest(prepared, self.labels[rows], len(classes), TREES, draws)
        how: dict[str, int | float | str] = {"method": "forest", "trees": TREES, "seed": task.seed}
        model = describe(task.inputs, classes, how, task.encoding, architecture="forest")
        return Student(ForestModel(tensors, task.inputs, len(classes), "the forest"), model)


def load(model: StudentModel, tensors: Mapping[str, torch.Tensor], where: str) -> ForestModel:
    """Return a saved forest. Raises StoreError if it is none."""
    if len(model.input.shape) != 1:
        raise StoreError(f"{where} holds a forest, which is for the rows of a table.")
    return ForestModel(tensors, model.input, len(model.classes), where)
