"""The plainest student: a regression of shares on public features.

Nothing here is random and nothing can diverge. The features are those of teachers' heads, fitted on
the student's own public inputs, so they use unlabelled inputs too: on images, a third of them are
coordinates on the inputs' neighbourhood graph (`graph.py`). Of labels the shares are linear in the
features (`shares.py`); of noisy counts they have a link that saturates at 0 and 1
(`softmax_shares.py`), which bears a finer graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.features.discriminant import MANY
from terrine_models.features.maps import (
    FeatureMap,
    Kind,
    PublicData,
    base_features,
    public_features,
)
from terrine_models.students.alignment import aligned
from terrine_models.students.answers import Answers, Floats, Ints
from terrine_models.students.models import RidgeModel, Student, describe
from terrine_models.students.shares import FittedShares, fit_shares
from terrine_models.students.softmax_shares import fit_softmax
from terrine_models.students.task import StudentMethod, Task

WIDTH, OF_A_CLASS = 150, 3
"""Features of an image: as many as teachers' heads have by default, or more where there are many
classes. A third of them are coordinates on the graph, and a class needs one of its own: with 150
classes, 450 features fit noisy counts right on 52 % of the inputs, 150 on 43 %."""
LINEAR = 4.0
"""A linear share times this has a softmax that is about a probability."""
BLOCK = 512


@dataclass(frozen=True, eq=False)
class Features:
    """A public map, and the features [N, d] of the inputs that it was fitted on."""

    map: FeatureMap
    rows: Floats
    as_new: Floats
    """The same, of each input as if the graph did not have it."""

    @classmethod
    def of(cls, task: Task, kind: Kind) -> Features:
        """Fit the map on the task's inputs."""
        public = PublicData.declare("the student's public inputs", np.asarray(task.x))
        wide = min(OF_A_CLASS * len(task.classes), len(task.x) // 2)
        known = public_features(task.spec, public, max(WIDTH, wide), kind)
        rows = features_of(known, task.x)
        graph = known.spec.projection == "graph"
        return cls(known, rows, features_of(known, task.x, skip=1) if graph else rows)


def usual(task: Task) -> Features:
    """Features for a regression that is linear."""
    return Features.of(task, "graph")


def fine(task: Task) -> Features:
    """Features for one with a link."""
    return Features.of(task, "graph" if task.is_table else "fine_graph")


def fitted_shares(task: Task, answers: Answers) -> FittedShares:
    """The linear regression on what is known, rare ones of many classes aligned."""
    known = answers.known
    fitted = fit_shares(task.once(usual).rows[known], answers.shares[known], answers.noise)
    return aligned(fitted, answers.prior) if len(task.classes) >= MANY else fitted


def labels_to_teach(task: Task, answers: Answers, **clear: float) -> Ints:
    """Labels [N], -1 where there is none, for a method that learns from these alone.

    Of noisy counts, those of the regression, where it is clear (`FittedShares.clear_labels`).
    """
    if not answers.noise:
        return answers.labels
    labels = np.full(len(task.x), -1)
    labels[answers.known] = fitted_shares(task, answers).clear_labels(**clear)
    return labels


class Ridge(StudentMethod):
    """Regression on public features."""

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Everywhere: it is what others are compared with."""
        return True

    def fit(self, task: Task, answers: Answers) -> Student:
        """The student of all that is known."""
        features = self._features(task, answers)
        weights, biases = self._solve(features.rows, task, answers)
        network = RidgeModel(task.spec, len(task.classes), features.map.spec)
        state = {
            **features.map.tensors,
            "scores.weight": torch.from_numpy(weights.T).float(),
            "scores.bias": torch.from_numpy(biases).float(),
        }
        network.load_state_dict(state)
        model = describe(
            task.spec, task.classes, {"method": "ridge"}, task.encoding, features.map.spec
        )
        return Student(network, model)

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """Held-out inputs are placed on the graph as new ones would be, by their neighbours."""
        features = self._features(task, answers)
        scores = np.zeros((len(task.x), len(task.classes)))
        for fold in np.unique(folds[folds >= 0]):
            rows = folds == fold
            weights, biases = self._solve(features.rows, task, answers.only(~rows))
            scores[rows] = features.as_new[rows] @ weights + biases
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        held_out: Floats = odds / odds.sum(axis=1, keepdims=True)
        return held_out

    @staticmethod
    def _features(task: Task, answers: Answers) -> Features:
        return task.once(fine if answers.noise else usual)

    @staticmethod
    def _solve(features: Floats, task: Task, answers: Answers) -> tuple[Floats, Floats]:
        """Weights [d, m] and biases [m] of scores whose softmax are the shares."""
        rows, shares = features[answers.known], answers.shares[answers.known]
        if answers.noise:
            return fit_softmax(rows, shares, answers.noise)
        fitted = fit_shares(rows, shares, answers.noise)
        return LINEAR * fitted.weights, LINEAR * fitted.biases


def features_of(known: FeatureMap, x: NDArray[Any], skip: int = 0) -> Floats:
    """Features [N, d] of inputs [N, *shape]; on a graph, leave out the nearest `skip` inputs."""
    blocks = []
    for at in range(0, len(x), BLOCK):
        block = torch.from_numpy(np.asarray(x[at : at + BLOCK], dtype=np.float32))
        base = base_features(known.spec.base, block, known.inputs)
        blocks.append(known.of_base(base, skip=skip))
    features: Floats = torch.cat(blocks).double().numpy()
    return features
