"""The plainest student: a regression of shares on public features.

Nothing here is random and nothing can diverge. The features are those of teachers' heads, fitted on
the student's own public inputs, so they use unlabelled inputs too: on images, a third of them are
coordinates on the inputs' neighbourhood graph (`graph.py`). Of labels the shares are linear in the
features (`shares.py`); of noisy counts they have a link that saturates at 0 and 1
(`softmax_shares.py`), which bears a finer graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import softmax

from terrine_models.features.maps import (
    FeatureMap,
    Kind,
    PublicData,
    base_features,
    public_features,
)
from terrine_models.students.answers import Answers, Floats, Ints
from terrine_models.students.models import LinearPart, Student, linear_student
from terrine_models.students.near_votes import around, chosen_spread, fit_near
from terrine_models.students.shares import fit_shares
from terrine_models.students.softmax_shares import fit_softmax
from terrine_models.students.task import StudentMethod, Task

WIDTH, OF_A_CLASS = 150, 3
"""Features of an image: as many as teachers' heads have by default, or more where there are many
classes. A third of them are coordinates on the graph, and a class needs one of its own: with 150
classes, 450 features fit noisy counts right on 52 % of the inputs, 150 on 43 %."""
LINEAR = 4.0
"""A linear share times this has a softmax that is about a probability."""
CLEAR = 0.97
"""Share of the inputs that a class wins, the clearest first, that teach it to others."""
BLOCK = 512


@dataclass(frozen=True, eq=False)
class Features:
    """A public map, and the features [N, d] of the inputs that it was fitted on."""

    map: FeatureMap
    rows: Floats
    as_new: Floats
    """The same, of each input as if the graph did not have it."""
    spreads: WeakKeyDictionary[Answers, float] = field(default_factory=WeakKeyDictionary)
    """What `spread_of` chose."""
    _around: dict[float, csr_array] = field(default_factory=dict, repr=False)

    def around(self, voting: float) -> csr_array:
        """The inputs [N, N] around each, of which so many vote (`near_votes.around`)."""
        if voting not in self._around:
            self._around[voting] = around(self.rows, voting)
        return self._around[voting]

    @classmethod
    def of(cls, task: Task, kind: Kind) -> Features:
        """Fit the map on the task's inputs."""
        public = PublicData.declare("the student's public inputs", np.asarray(task.x))
        wide = min(OF_A_CLASS * len(task.classes), len(task.x) // 2)
        known = public_features(task.spec, public, max(WIDTH, wide), kind, view=task.view)
        rows = features_of(known, task.x)
        graph = known.spec.projection == "graph"
        return cls(known, rows, features_of(known, task.x, skip=1) if graph else rows)


def usual(task: Task) -> Features:
    """Features for a regression that is linear."""
    return Features.of(task, "graph")


def fine(task: Task) -> Features:
    """Features for one with a link."""
    return Features.of(task, "graph" if task.is_table else "fine_graph")


def by_those_near(task: Task, answers: Answers) -> bool:
    """Whether answers are those of the units near each row of a table."""
    return task.is_table and answers.noise > 0 and answers.voting < 1


def spread_of(task: Task, answers: Answers) -> float:
    """Choose, once, how far scores may spread, of answers of the units near each row."""
    features = task.once(fine)
    if answers not in features.spreads:
        folds = answers.folds(task.seed, task.inputs)
        near = features.around(answers.voting)
        features.spreads[answers] = chosen_spread(features.rows, answers, near, folds)
    return features.spreads[answers]


@dataclass(frozen=True, eq=False)
class Regression:
    """Weights [d, m] and biases [m] of scores whose softmax are the shares, on public features."""

    features: Features
    weights: Floats
    biases: Floats

    @classmethod
    def of(cls, task: Task, answers: Answers, spread: float | None = None) -> Regression:
        """Fit it to what is known. spread: of the votes of those near, if it is chosen already."""
        features = task.once(fine if answers.noise else usual)
        if by_those_near(task, answers):
            spread = spread or spread_of(task, answers)
            near = features.around(answers.voting)
            return cls(features, *fit_near(features.rows, answers, near, spread))
        rows, shares = features.rows[answers.known], answers.shares[answers.known]
        if answers.noise:
            return cls(features, *fit_softmax(rows, shares, answers.noise))
        weights, biases = fit_shares(rows, shares)
        return cls(features, LINEAR * weights, LINEAR * biases)

    @property
    def part(self) -> LinearPart:
        """It, as a part of a student."""
        weights, biases = (torch.from_numpy(each).float() for each in (self.weights, self.biases))
        return LinearPart(self.features.map, weights, biases)

    def scores(self, features: Floats) -> Floats:
        """Scores [B, m] of features [B, d]."""
        return features @ self.weights + self.biases

    def probabilities(self, features: Floats) -> Floats:
        """Shares [B, m] of features [B, d]."""
        found: Floats = softmax(self.scores(features), axis=1)
        return found

    def labels(self) -> Ints:
        """Labels [N] of all inputs, -1 for those of each class that are least clear."""
        shares = self.probabilities(self.features.rows)
        winners = shares.argmax(axis=1)
        second, first = np.partition(shares, -2, axis=1)[:, -2:].T
        labels = np.full(len(shares), -1)
        for winner in np.unique(winners):
            rows = np.flatnonzero(winners == winner)
            rows = rows[np.argsort((second - first)[rows], kind="stable")]
            labels[rows[: math.ceil(CLEAR * len(rows))]] = winner
        return labels


class Ridge(StudentMethod):
    """Regression on public features."""

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Everywhere: it is what others are compared with."""
        return True

    def fit(self, task: Task, answers: Answers) -> Student:
        """The student of all that is known."""
        parts = [Regression.of(task, answers).part]
        return linear_student(task.spec, task.classes, {"method": "ridge"}, parts, task.encoding)

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """Held-out inputs are placed on the graph as new ones would be, by their neighbours."""
        held_out = np.zeros((len(task.x), len(task.classes)))
        # One choice of two or three for all folds: it says next to nothing of the answers of any.
        spread = spread_of(task, answers) if by_those_near(task, answers) else None
        for fold in np.unique(folds[folds >= 0]):
            rows = folds == fold
            regression = Regression.of(task, answers.only(~rows), spread)
            held_out[rows] = regression.probabilities(regression.features.as_new[rows])
        return held_out


def features_of(known: FeatureMap, x: NDArray[Any], skip: int = 0) -> Floats:
    """Features [N, d] of inputs [N, *shape]; on a graph, leave out the nearest `skip` inputs."""
    blocks = []
    for at in range(0, len(x), BLOCK):
        block = torch.from_numpy(np.asarray(x[at : at + BLOCK], dtype=np.float32))
        base = base_features(known.spec.base, block, known.inputs)
        blocks.append(known.of_base(base, skip=skip))
    features: Floats = torch.cat(blocks).double().numpy()
    return features
