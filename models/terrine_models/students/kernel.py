"""A kernel student: the regression, and ridge regression on a Nyström map with distorted copies.

The kernel learns the labels that were bought and, of all other public inputs, those of the plain
student's regression (Lee, "Pseudo-Label", 2013), from which it differs by its distorted copies and
the length at which it smooths. The scores of both are added: each is right where the other errs.
Nothing is drawn but the distortions, and nothing can diverge.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from scipy.special import softmax

from terrine_models.data.workers import side_by_side
from terrine_models.features.augment import DRAWS, distort
from terrine_models.features.maps import BLOCK, FeatureMap, PublicData, public_features
from terrine_models.features.pixels import to_images
from terrine_models.students.answers import Answers, Bools, Floats, Ints
from terrine_models.students.models import LinearPart, Student, linear_student
from terrine_models.students.ridge import Regression
from terrine_models.students.task import StudentMethod, Task

LANDMARKS = 1500
COPIES, MOST_ROWS = 3, 40_000
"""Distorted copies of each input; fewer where there would be more rows than that."""
PENALTY = 1e-3
"""Relative to the mean variance of a feature. From 1e-4 to 1e-2 it matters little."""
WEIGHT = 3.0
"""Of the kernel's scores, in the sum. From 2, which is better for clothes, to 6, which is better
for digits, it matters by 0.3 points at most, on the training images of both."""
FEWEST = 100
"""Inputs below which there are too few for a kernel."""


class Copies:
    """Nyström features of public images and of their distorted copies."""

    def __init__(self, task: Task) -> None:
        x = task.x
        public = PublicData.declare("the student's public inputs", np.asarray(x))
        self.map = public_features(task.spec, public, LANDMARKS, "nystrom", view=task.view)
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
        self, chosen: torch.Tensor, labels: torch.Tensor, classes: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [L, m] and biases [m] by least squares on ±1 targets of the rows `chosen` [K]."""
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
        unit = float(gram.diagonal().mean())
        penalised = gram + torch.eye(len(gram), dtype=gram.dtype) * (PENALTY * unit + 1e-9)
        factor = torch.linalg.cholesky(penalised)
        weights = torch.cholesky_solve(cross.double(), factor).float()
        return weights, level - mean @ weights

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
        """Learn from the answers and from what the regression says of the other inputs."""
        copies, regression = task.once(Copies), Regression.of(task, answers)
        weights, biases = self._learned(copies, answers, regression)
        kernel = LinearPart(
            copies.map, WEIGHT * weights, WEIGHT * (biases - copies.centre @ weights)
        )
        how: dict[str, int | float | str] = {"method": "kernel", "copies": len(copies.rows) - 1}
        return linear_student(task.spec, task.classes, how, [regression.part, kernel])

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """Held-out inputs teach nothing, not even by what the regression says of them."""
        copies = task.once(Copies)
        held_out = np.zeros((len(task.x), len(task.classes)))
        for fold in np.unique(folds[folds >= 0]):
            own = folds == fold
            rest = answers.only(~own)
            regression = Regression.of(task, rest)
            weights, biases = self._learned(copies, rest, regression, own)
            kernel = (copies.rows[0, torch.from_numpy(own)] @ weights + biases).double().numpy()
            scores = regression.scores(regression.features.as_new[own]) + WEIGHT * kernel
            held_out[own] = softmax(scores, axis=1)
        return held_out

    @staticmethod
    def _learned(
        copies: Copies, answers: Answers, regression: Regression, but: Bools | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        labels = regression.labels()
        if not answers.noise:
            labels = np.where(answers.known, answers.labels, labels)
        if but is not None:
            labels = np.where(but, -1, labels)
        known = torch.from_numpy(np.flatnonzero(labels >= 0))
        return copies.fit(known, torch.from_numpy(labels)[known], answers.shares.shape[1])


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
