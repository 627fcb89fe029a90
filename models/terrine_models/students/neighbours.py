"""A student that goes by its neighbours among the public inputs, for many classes.

    students = NeighbourStudents(x, inputs=spec, classes=names)
    student = students.train(students.labels(counts, teachers=5000, sigma=900.0))

With many classes there are few rows of each, and a regression on shared features has little to
average noise with: it must fit as many functions as there are classes. Neighbours in discriminant
directions (`discriminant.py`) mostly are of one class, so noisy shares are averaged over them
instead, and over theirs; then classes are aligned (`alignment.py`). The student has the labels that
result, and asks the nearest of them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.features.discriminant import MANY, believed
from terrine_models.features.graph import NEIGHBOURS, extend, neighbourhood
from terrine_models.features.maps import FEWEST_POINTS, PublicData, public_features
from terrine_models.students.alignment import class_biases
from terrine_models.students.models import Student, build_student, describe
from terrine_models.students.ridge import BLOCK, SCALES, features_of

Ints = NDArray[np.int64]

WIDTH = 150
TIMES = 2
"""How often shares are averaged over neighbours."""
SOME = 1000
"""Labels, at most, that choose the scale of the scores."""


def suits(inputs: InputSpec, classes: int, rows: int) -> bool:
    """Whether this is the usual student of noisy counts, by public facts alone."""
    return len(inputs.shape) > 1 and classes >= MANY and rows >= FEWEST_POINTS


class NeighbourStudents:
    """Students on public images [N, H, W] or [N, H, W, C]; neighbours are found once."""

    def __init__(self, x: NDArray[Any], *, inputs: InputSpec, classes: tuple[str, ...]) -> None:
        if len(inputs.shape) == 1:
            raise DataError("The neighbours student is for images; tables have the ridge student.")
        self.inputs, self.classes = inputs, classes
        public = PublicData.declare("the student's public inputs", np.asarray(x))
        self.map = public_features(inputs, public, WIDTH, "discriminant")
        weights = believed(self.map.tensors["between"])
        self.basis = self.map.tensors["basis"] * weights
        found = torch.from_numpy(features_of(self.map, np.asarray(x))).float()
        self.points = F.normalize(found * weights, dim=1)

    @cached_property
    def _near(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return neighbourhood(self.points)

    def labels(self, counts: Ints, *, teachers: int, sigma: float) -> Ints:
        """Return labels [N] that follow from noisy counts [N, m] of all inputs."""
        weights, index, _ = self._near
        weights = weights / weights.sum(1, keepdim=True)
        shares = torch.from_numpy(counts / teachers).float()
        means = shares.mean(0).double().numpy()
        for _ in range(TIMES):
            shares = torch.cat(
                [
                    (weights[at : at + BLOCK, :, None] * shares[index[at : at + BLOCK]]).sum(1)
                    for at in range(0, len(shares), BLOCK)
                ]
            )
        fitted = shares.double().numpy()
        if len(self.classes) >= MANY:
            error = sigma / teachers / np.sqrt(TIMES * NEIGHBOURS)
            fitted = fitted + class_biases(fitted, means, error)
        labels: Ints = fitted.argmax(axis=1)
        return labels

    def train(self, labels: Ints) -> Student:
        """Learn from labels [N], -1 where there is none. Raises ValueError on too few."""
        known = np.flatnonzero(labels >= 0)
        if len(known) <= NEIGHBOURS:
            raise ValueError(f"{len(known)} labels; neighbours need more than {NEIGHBOURS}")
        points, given = self.points[known], torch.from_numpy(labels[known])
        shown = F.one_hot(given, len(self.classes)).float()
        _, _, scales = self._near if len(known) == len(labels) else neighbourhood(points)
        some = slice(None, None, -(-len(known) // SOME))
        as_new = extend(points[some], points, scales, shown, skip=1)
        scale = min(SCALES, key=lambda scale: float(F.cross_entropy(scale * as_new, given[some])))
        spec = self.map.spec.model_copy(
            update={
                "projection": "graph",
                "coordinates": len(self.classes),
                "points": len(points),
            }
        )
        network = build_student(self.inputs, len(self.classes), spec)
        weight = torch.zeros((len(self.classes), spec.width))
        weight[:, spec.components :] = scale * torch.eye(len(self.classes))
        state = {
            "mean": self.map.tensors["mean"],
            "basis": self.basis,
            "points": points,
            "scales": scales,
            "coordinates": shown,
            "scores.weight": weight,
            "scores.bias": torch.zeros(len(self.classes)),
        }
        network.load_state_dict(state)
        how: dict[str, int | float | str] = {"method": "neighbours", "scale": scale}
        return Student(network, describe(self.inputs, self.classes, how, None, spec))

    def judge(self, labels: Ints, folds: Ints) -> float:
        """Share of the known labels [K] that are predicted without their fold [K]."""
        known, right = np.flatnonzero(labels >= 0), 0
        shown = F.one_hot(torch.from_numpy(labels[known]), len(self.classes)).float()
        for fold in np.unique(folds):
            own = torch.from_numpy(folds == fold)
            points, others = self.points[known[folds == fold]], self.points[known[folds != fold]]
            _, _, scales = neighbourhood(others)
            scores = extend(points, others, scales, shown[~own])
            right += int((scores.argmax(1) == shown[own].argmax(1)).sum())
        return right / len(known)
