"""A random forest as a student of a table. scikit-learn trains it; nothing is needed to use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_protocol.tables import TableSchema

from .architectures import prepare
from .data import DataError, InputSpec
from .forests import fit_forest, require_scikit_learn
from .students import ForestModel, Student, describe

TREES = 100

Ints = NDArray[np.int64]


def check_forest(shape: Sequence[int]) -> None:
    """Raise DataError unless inputs [N, *shape] are a table, TrainingError without scikit-learn."""
    if len(shape) != 1:
        raise DataError("The forest student is for tables; images have the kernel student.")
    require_scikit_learn()


class ForestStudents:
    """Forests on the labelled rows among public ones [N, columns]; labels are -1 where unknown."""

    def __init__(
        self,
        x: NDArray[Any],
        labels: Ints,
        *,
        inputs: InputSpec,
        classes: tuple[str, ...],
        encoding: TableSchema | None = None,
        seed: int = 0,
    ) -> None:
        check_forest(inputs.shape)
        known = labels >= 0
        if not known.any():
            raise ValueError("there is nothing to learn from: no input has a label")
        self.inputs, self.classes, self.encoding, self.seed = inputs, classes, encoding, seed
        self.x, self.labels = np.asarray(x)[known], labels[known]

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
        x = torch.from_numpy(np.asarray(self.x[rows], dtype=np.float32))
        prepared = prepare(x, self.inputs).numpy()
        draws = np.random.SeedSequence(self.seed)
        tensors = fit_forest(prepared, self.labels[rows], len(self.classes), TREES, draws)
        how: dict[str, int | float | str] = {"method": "forest", "trees": TREES, "seed": self.seed}
        model = describe(self.inputs, self.classes, how, self.encoding, architecture="forest")
        return Student(ForestModel(tensors, self.inputs, len(self.classes), "the forest"), model)
