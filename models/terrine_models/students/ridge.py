"""The plainest student: ridge regression on public features, solved in closed form.

Nothing here is random and nothing can diverge. The features are those of teachers' heads, fitted on
the student's own public inputs, so they use unlabelled inputs too: on images, a third of them are
coordinates on the inputs' neighbourhood graph (`graph.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.maps import (
    FeatureMap,
    Kind,
    PublicData,
    base_features,
    public_features,
)
from terrine_models.students.models import Student, build_student, describe
from terrine_protocol.tables import TableSchema

WIDTH, OF_A_CLASS = 150, 3
"""Features of an image: as many as teachers' heads have by default, or more where there are many
classes. A third of them are coordinates on the graph, and a class needs one of its own: with 150
classes, 450 features fit noisy counts right on 52 % of the inputs, 150 on 43 %."""
PENALTIES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Relative to the mean variance of the features, from the weakest to the strongest."""
USUAL = 0.1
"""What teachers' heads use."""
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Scores are about -1 and 1; times one of these, their softmax is a probability."""
BLOCK = 512

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def class_weights(labels: Ints, classes: int) -> Floats:
    """Weights [m] with which classes of `labels` [K] count alike; their mean over labels is 1."""
    counts = np.bincount(labels, minlength=classes)
    shown = int((counts > 0).sum())
    weights: Floats = np.where(counts > 0, len(labels) / (shown * np.maximum(counts, 1)), 0.0)
    return weights


@dataclass(frozen=True)
class RidgeFit:
    """A penalty, a scale, and what they achieve on labels that were not used to fit."""

    penalty: float = USUAL
    scale: float = 2.0
    agreement: float | None = None
    """Share of the held-out labels that are predicted; None without cross-validation."""


class RidgeStudents:
    """Ridge students on the features of public inputs [N, *shape], computed once."""

    def __init__(
        self,
        x: NDArray[Any],
        labels: Ints,
        *,
        inputs: InputSpec,
        classes: tuple[str, ...],
        encoding: TableSchema | None = None,
        balance: bool = False,
        known: FeatureMap | None = None,
        fine: bool = False,
    ) -> None:
        """`balance`: whether every class that has labels counts alike.

        `known`: the map that was fitted on x before; by default it is fitted now, of images on a
        fine graph if `fine` (`maps.public_features`).
        """
        self.balance = balance
        self.inputs, self.classes, self.encoding = inputs, classes, encoding
        self.map = known or ridge_features(x, inputs, len(classes), fine=fine)
        bought = labels >= 0
        self.labels = labels[bought]
        self.features = features_of(self.map, x[bought])
        self.as_new = self.features
        if self.map.spec.projection == "graph":
            self.as_new = features_of(self.map, x[bought], skip=1)

    def judge(self, folds: Ints) -> RidgeFit:
        """Choose penalty and scale by cross-validation on `folds` [K], one for each label.

        Held-out inputs are placed on the graph as new ones would be, by their neighbours alone.
        The penalty is the one with the most agreement, of equals the one nearest to the usual; the
        scale, the one with the greatest likelihood. As the best of six, its agreement is a little
        too high.
        """
        scores = np.empty((len(PENALTIES), len(self.labels), len(self.classes)))
        for fold in np.unique(folds):
            own = folds == fold
            solutions = self._path(~own)
            for i, (weights, biases) in enumerate(solutions):
                scores[i, own] = self.as_new[own] @ weights + biases
        agreements = (scores.argmax(2) == self.labels).mean(1)
        equals = np.flatnonzero(agreements == agreements.max())
        best = min(equals, key=lambda i: abs(np.log(PENALTIES[i] / USUAL)))
        losses = [_log_loss(scale * scores[best], self.labels) for scale in SCALES]
        return RidgeFit(PENALTIES[best], SCALES[int(np.argmin(losses))], float(agreements[best]))

    def held_out(self, folds: Ints, fit: RidgeFit, own: NDArray[np.bool_] | None = None) -> Ints:
        """What is predicted of each label [K] without its fold; from the labels `own` [K] alone."""
        own = np.ones(len(folds), dtype=bool) if own is None else own
        predicted = np.empty_like(self.labels)
        for fold in np.unique(folds):
            ((weights, biases),) = self._path(own & (folds != fold), (fit.penalty,))
            rows = folds == fold
            predicted[rows] = (self.as_new[rows] @ weights + biases).argmax(1)
        return predicted

    def solve(self, fit: RidgeFit, own: NDArray[np.bool_] | None = None) -> tuple[Floats, Floats]:
        """Weights [d, m] and biases [m] from all labels, or from `own` [K] alone."""
        own = np.ones(len(self.labels), dtype=bool) if own is None else own
        ((weights, biases),) = self._path(own, (fit.penalty,))
        return weights, biases

    def train(self, fit: RidgeFit) -> Student:
        """The student on all labels."""
        return self.student(*self.solve(fit), fit)

    def _path(
        self, rows: NDArray[np.bool_], penalties: tuple[float, ...] = PENALTIES
    ) -> Iterator[tuple[Floats, Floats]]:
        labels, classes, each = self.labels[rows], len(self.classes), None
        if self.balance:
            each = class_weights(labels, classes)[labels]
        return ridge_path(self.features[rows], labels, classes, penalties, each)

    def student(self, weights: Floats, biases: Floats, fit: RidgeFit) -> Student:
        """The student with scores features @ `weights` [d, m] + `biases` [m], times a scale."""
        network = build_student(self.inputs, len(self.classes), self.map.spec)
        state = {
            **self.map.tensors,
            "scores.weight": torch.from_numpy(fit.scale * weights.T).float(),
            "scores.bias": torch.from_numpy(fit.scale * biases).float(),
        }
        network.load_state_dict(state)
        how: dict[str, int | float | str] = {
            "method": "ridge",
            "penalty": fit.penalty,
            "scale": fit.scale,
        }
        model = describe(self.inputs, self.classes, how, self.encoding, self.map.spec)
        return Student(network, model)


def ridge_features(
    x: NDArray[Any], inputs: InputSpec, classes: int, *, fine: bool = False
) -> FeatureMap:
    """The features of ridge students, fitted on public inputs [N, *shape]."""
    public = PublicData.declare("the student's public inputs", np.asarray(x))
    wide = min(OF_A_CLASS * classes, len(x) // 2)
    kind: Kind = "fine_graph" if fine else "graph"
    return public_features(inputs, public, max(WIDTH, wide), kind)


def ridge_path(
    features: Floats,
    labels: Ints,
    classes: int,
    penalties: tuple[float, ...] = PENALTIES,
    each: Floats | None = None,
) -> Iterator[tuple[Floats, Floats]]:
    """Least squares on ±1 targets for each penalty: weights [d, m] and biases [m].

    `features` is [r, d], `labels` [r], and `each` [r] what a row counts, 1 on average. The penalty
    is relative to the features' mean variance, as in `architectures.ridge_head`; one singular
    value decomposition serves all.
    """
    targets = 2 * np.eye(classes)[labels] - 1
    each = np.ones(len(features)) if each is None else each
    centre, level = each @ features / len(features), each @ targets / len(features)
    roots = np.sqrt(each)[:, None]
    left, values, right = np.linalg.svd(roots * (features - centre), full_matrices=False)
    squares = values**2
    rotated = left.T @ (roots * (targets - level))
    unit = squares.sum() / features.shape[1] or 1.0  # constant features: any penalty
    for penalty in penalties:
        weights = right.T @ (rotated * (values / (squares + penalty * unit))[:, None])
        yield weights, level - centre @ weights


def features_of(known: FeatureMap, x: NDArray[Any], skip: int = 0) -> Floats:
    """Features [N, d] of inputs [N, *shape]; on a graph, leave out the nearest `skip` inputs."""
    blocks = []
    for at in range(0, len(x), BLOCK):
        block = torch.from_numpy(np.asarray(x[at : at + BLOCK], dtype=np.float32))
        base = base_features(known.spec.base, block, known.inputs)
        blocks.append(known.of_base(base, skip=skip))
    features: Floats = torch.cat(blocks).double().numpy()
    return features


def _log_loss(scores: Floats, labels: Ints) -> float:
    """Mean negative log-likelihood of `labels` [K] under the softmax of `scores` [K, m]."""
    top = scores.max(1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(scores - top).sum(1))
    return float((total - scores[np.arange(len(labels)), labels]).mean())
