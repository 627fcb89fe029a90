"""A student that goes by its neighbours among the public inputs, for many classes.

With many classes there are few rows of each, and a regression on shared features has little to
average noise with: it must fit as many functions as there are classes. Neighbours in discriminant
directions (`discriminant.py`) mostly are of one class, so the noisy shares of each input are shrunk
towards their average over its neighbours, the more the larger the noise is beside what neighbours
differ by (empirical Bayes: Efron and Morris, 1973); then classes are aligned (`alignment.py`). The
student has the labels that result, and asks the nearest of them.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from terrine_models.features.discriminant import MANY, believed
from terrine_models.features.graph import NEIGHBOURS, extend, neighbourhood
from terrine_models.features.maps import FEWEST_POINTS, FeatureMap, PublicData, public_features
from terrine_models.students.alignment import class_biases
from terrine_models.students.answers import Answers, Floats, Ints
from terrine_models.students.models import LinearPart, Student, linear_student
from terrine_models.students.ridge import BLOCK, features_of
from terrine_models.students.task import StudentMethod, Task

WIDTH = 150
TIMES = 2
"""How often shares are averaged over neighbours: where few are known, one more reaches further."""
SCALE = 4.0
"""The share of a class among neighbours times this has a softmax that is about a probability."""


class Neighbourhoods:
    """Public images as points among which near ones mostly are of one class."""

    def __init__(self, task: Task) -> None:
        public = PublicData.declare("the student's public inputs", np.asarray(task.x))
        self.map = public_features(task.spec, public, WIDTH, "discriminant", view=task.view)
        weights = believed(self.map.tensors["between"])
        self.basis = self.map.tensors["basis"] * weights
        found = torch.from_numpy(features_of(self.map, task.x)).float()
        self.points = F.normalize(found * weights, dim=1)

    @cached_property
    def near(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each its nearest: weights and indices [N, NEIGHBOURS], and the scale of distances."""
        return neighbourhood(self.points)


class NearestNeighbours(StudentMethod):
    """Students that ask the nearest public images."""

    wants = "images"

    @classmethod
    def can(cls, task: Task) -> bool:
        """Images, and enough to have neighbours."""
        return not task.is_table and len(task.x) > NEIGHBOURS

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Images of many classes."""
        return not task.is_table and len(task.classes) >= MANY and len(task.x) >= FEWEST_POINTS

    def fit(self, task: Task, answers: Answers) -> Student:
        """Raises ValueError on too few answers."""
        found, labels = task.once(Neighbourhoods), self._labels(task, answers)
        known = np.flatnonzero(labels >= 0)
        if len(known) <= NEIGHBOURS:
            raise ValueError(f"{len(known)} labels; neighbours need more than {NEIGHBOURS}")
        points, classes = found.points[known], len(task.classes)
        shown = F.one_hot(torch.from_numpy(labels[known]), classes).float()
        _, _, scales = found.near if len(known) == len(labels) else neighbourhood(points)
        spec = found.map.spec.model_copy(
            update={"projection": "graph", "coordinates": classes, "points": len(points)}
        )
        weights = torch.zeros((spec.width, classes))
        weights[spec.components :] = SCALE * torch.eye(classes)
        tensors = {
            "mean": found.map.tensors["mean"],
            "basis": found.basis,
            "points": points,
            "scales": scales,
            "coordinates": shown,
        }
        part = LinearPart(FeatureMap(spec, task.spec, tensors), weights, torch.zeros(classes))
        return linear_student(task.spec, task.classes, {"method": "neighbours"}, [part])

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """What the labels of other folds say of each input."""
        points = task.once(Neighbourhoods).points
        held_out = np.zeros((len(task.x), len(task.classes)))
        for fold in np.unique(folds[folds >= 0]):
            own = folds == fold
            labels = self._labels(task, answers.only(~own))
            known = np.flatnonzero((labels >= 0) & ~own)
            shown = F.one_hot(torch.from_numpy(labels[known]), len(task.classes)).float()
            _, _, scales = neighbourhood(points[known])
            scores = extend(points[own], points[known], scales, shown)
            held_out[own] = (SCALE * scores).softmax(1).numpy()
        return held_out

    @staticmethod
    def _labels(task: Task, answers: Answers) -> Ints:
        """Labels [N]; of noisy counts, of the shares that are averaged over neighbours."""
        if not answers.noise:
            return answers.labels
        weights, index, _ = task.once(Neighbourhoods).near
        known = torch.from_numpy(answers.known).float()
        mean = torch.from_numpy(answers.shares).float()
        for _ in range(TIMES):
            of_known = weights * known[index]
            of_known /= of_known.sum(1, keepdim=True).clamp_min(1e-9)
            blocks = torch.split(torch.arange(len(mean)), BLOCK)
            mean = torch.cat([(of_known[at, :, None] * mean[index[at]]).sum(1) for at in blocks])
            known = torch.ones(len(mean))
        fitted = mean.double().numpy()
        own = _own_weight(fitted, answers)
        fitted[answers.known] += own * (answers.shares - fitted)[answers.known]
        if len(task.classes) >= MANY:
            error = answers.noise * math.hypot(own, (1 - own) / math.sqrt(TIMES * NEIGHBOURS))
            fitted = fitted + class_biases(fitted, answers.prior, error)
        labels: Ints = fitted.argmax(axis=1)
        return labels


def _own_weight(mean: Floats, answers: Answers) -> float:
    """Weight of an input's own noisy shares against their mean [N, m] over its neighbours.

    It is τ²/(τ² + noise²): τ² is how much the true shares differ from the mean, class by class as
    often as the mean has it.
    """
    expected, differences = mean[answers.known].clip(min=0), (answers.shares - mean)[answers.known]
    squares = (expected * differences**2).sum() / max(expected.sum(), 1e-9)
    own = max(squares - answers.noise**2, 0.0)
    return float(own / (own + answers.noise**2))
