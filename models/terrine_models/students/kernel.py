"""A kernel student: ridge regression on a Nyström map, with distorted copies, taught twice.

First it learns from the labels that are known; of noisy counts, from all but the least clear rows
of the regression. Then what it says of all public inputs, on average over their distorted copies,
are the labels that it learns from (Lee, "Pseudo-Label", 2013): that is better than the labels it
was given where these are noisy or one-sided. Nothing is drawn but the distortions, and nothing can
diverge.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from terrine_models.data.workers import side_by_side
from terrine_models.features.augment import DRAWS, distort
from terrine_models.features.discriminant import MANY
from terrine_models.features.maps import BLOCK, FeatureMap, PublicData, public_features
from terrine_models.features.pixels import to_images
from terrine_models.students.answers import Answers, Floats, Ints
from terrine_models.students.models import RidgeModel, Student, describe
from terrine_models.students.ridge import labels_to_teach
from terrine_models.students.task import StudentMethod, Task

LANDMARKS = 1500
COPIES, MOST_ROWS = 3, 40_000
"""Distorted copies of each input; fewer where there would be more rows than that."""
PENALTIES = (1e-3, 1e-2, 0.1, 1.0)
"""Relative to the mean variance of a feature. The first, unless held-out labels speak for a
stronger one by more than a standard error: with thousands of labels it matters little (98.9 % from
1e-4 to 1e-2), with hundreds, of which many are wrong, it does."""
HELD_OUT = 5
"""Every fifth label is held out to choose the penalty."""
SETTLED = 0.97
"""Share of the rows that a class wins, the clearest first, that noisy counts teach. It bears labels
of which some are wrong better than to have none where inputs are hard."""
FEWEST = 100
"""Inputs below which there are too few for a kernel."""


class Copies:
    """Nyström features of public images and of their distorted copies."""

    def __init__(self, task: Task) -> None:
        x = task.x
        public = PublicData.declare("the student's public inputs", np.asarray(x))
        self.map = public_features(task.spec, public, LANDMARKS, "nystrom")
        copies = max(0, min(COPIES, MOST_ROWS // len(x) - 1))
        random = np.random.Generator(np.random.Philox(task.seed))
        plain = torch.from_numpy(np.asarray(x, dtype=np.float32))
        parts = [_features(self.map, plain)]
        for _ in range(copies):
            draws = torch.from_numpy(random.random((len(x), DRAWS), dtype=np.float32) * 2 - 1)
            parts.append(_features(self.map, plain, draws))
        self.rows = torch.stack(parts)
        """[1 + copies, N, L], centred; the first are the inputs as they are."""
        self.centre = self.rows.mean((0, 1))
        self.rows -= self.centre
        self.all = self.gram(torch.arange(len(x)))

    def fit(
        self, chosen: torch.Tensor, labels: torch.Tensor, classes: int, *penalties: float
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Least squares on ±1 targets of the rows `chosen` [K], once for each penalty.

        Returns weights [L, m] and biases [m] of each.
        """
        targets = 2 * F.one_hot(labels, classes).float() - 1
        level = targets.mean(0)
        left_out = torch.ones(self.rows.shape[1], dtype=torch.bool)
        left_out[chosen] = False
        others = left_out.nonzero().squeeze(1)
        gram = self.all - self.gram(others) if len(others) < len(chosen) else self.gram(chosen)
        mean = torch.zeros(self.rows.shape[2])
        cross = torch.zeros((self.rows.shape[2], targets.shape[1]))
        for copy in self.rows:
            rows = copy[chosen]
            mean += rows.mean(0) / len(self.rows)
            cross += rows.T @ (targets - level)
        centre = mean.double()
        gram -= len(self.rows) * len(chosen) * torch.outer(centre, centre)
        unit, found = float(gram.diagonal().mean()), []
        for penalty in penalties:
            penalised = gram + torch.eye(len(gram), dtype=gram.dtype) * (penalty * unit + 1e-9)
            factor = torch.linalg.cholesky(penalised)
            weights = torch.cholesky_solve(cross.double(), factor).float()
            found.append((weights, level - mean @ weights))
        return found

    def gram(self, chosen: torch.Tensor) -> torch.Tensor:
        """Products [L, L] of the features of some rows and of their copies."""
        gram = torch.zeros((self.rows.shape[2],) * 2, dtype=torch.float64)
        for copy in self.rows:
            rows = copy[chosen]
            gram += rows.T @ rows
        return gram


class Kernel(StudentMethod):
    """Kernel students."""

    wants = "images"

    @classmethod
    def can(cls, task: Task) -> bool:
        """Images alone."""
        return not task.is_table

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Images from some 20 pixels a side, of which there are enough for a kernel."""
        return task.has_large_images and len(task.x) >= FEWEST

    def fit(self, task: Task, answers: Answers) -> Student:
        """Learn from the answers, and unless classes are many once more from what it predicts."""
        copies, given = task.once(Copies), self._taught(task, answers)
        known = (given >= 0).nonzero().squeeze(1)
        classes = len(task.classes)
        penalty = self._penalty(copies, known, given, classes)
        ((weights, biases),) = copies.fit(known, given[known], classes, penalty)
        if classes < MANY:  # of many classes it would give up the rare ones
            labels = (copies.rows @ weights).mean(0).add(biases).argmax(1)
            every = torch.arange(len(labels))
            ((weights, biases),) = copies.fit(every, labels, classes, penalty)
        network = RidgeModel(task.spec, classes, copies.map.spec)
        state = {
            **copies.map.tensors,
            "scores.weight": weights.T.contiguous(),
            "scores.bias": biases - copies.centre @ weights,
        }
        network.load_state_dict(state)
        how: dict[str, int | float | str] = {
            "method": "kernel",
            "penalty": penalty,
            "copies": len(copies.rows) - 1,
        }
        return Student(network, describe(task.spec, task.classes, how, None, copies.map.spec))

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """With the usual penalty, and without learning from what it predicts."""
        copies = task.once(Copies)
        held_out = np.zeros((len(task.x), len(task.classes)))
        for fold in np.unique(folds[folds >= 0]):
            own = folds == fold
            given = self._taught(task, answers.only(~own))
            known = (given >= 0).nonzero().squeeze(1)
            ((weights, biases),) = copies.fit(known, given[known], len(task.classes), PENALTIES[0])
            scores = copies.rows[0, torch.from_numpy(own)] @ weights + biases
            held_out[own] = scores.softmax(1).numpy()
        return held_out

    @staticmethod
    def _taught(task: Task, answers: Answers) -> torch.Tensor:
        return torch.from_numpy(labels_to_teach(task, answers, deviations=0.0, most=SETTLED))

    @staticmethod
    def _penalty(copies: Copies, known: torch.Tensor, labels: torch.Tensor, classes: int) -> float:
        """Return the penalty that suits labels not learned from."""
        held = torch.zeros(len(known), dtype=torch.bool)
        held[::HELD_OUT] = True
        if held.all():
            return PENALTIES[0]
        own, rows = labels[known[held]], copies.rows[0, known[held]]
        solutions = copies.fit(known[~held], labels[known[~held]], classes, *PENALTIES)
        right = [
            float(((rows @ weights + biases).argmax(1) == own).float().mean())
            for weights, biases in solutions
        ]
        best = int(np.argmax(right))
        if right[best] - right[0] <= math.sqrt(right[0] * (1 - right[0]) / len(own)):
            best = 0
        return PENALTIES[best]


def _features(
    known: FeatureMap, x: torch.Tensor, draws: torch.Tensor | None = None
) -> torch.Tensor:
    """Features [N, L] of inputs [N, *shape], distorted by `draws` [N, DRAWS] if there are any."""

    def compute(rows: torch.Tensor) -> torch.Tensor:
        block = x[rows]
        if draws is not None:
            low = known.inputs.low
            bent = distort(to_images(block - low), draws[rows]) + low
            block = bent.squeeze(1) if block.ndim == 3 else bent.permute(0, 2, 3, 1)
        with torch.inference_mode():
            return known(block)

    return torch.cat(side_by_side(compute, torch.split(torch.arange(len(x)), BLOCK)))
