"""A kernel student: ridge regression on a Nyström map, with distorted copies, taught twice.

    students = KernelStudents(x, inputs=spec, classes=names)
    student = students.train(labels)                              # labels: -1 where unknown

First it learns from the labels that are known. Then what it predicts for all public inputs, the
least clear ones left out, are the labels that it learns from (Lee, "Pseudo-Label", 2013): its
predictions are better than the labels it was given where these are noisy or one-sided. Nothing is
drawn but the distortions, and nothing can diverge.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.augment import DRAWS, distort
from terrine_models.features.maps import BLOCK, FeatureMap, PublicData, public_features
from terrine_models.features.pixels import to_images
from terrine_models.students.models import Student, build_student, describe
from terrine_models.students.ridge import SCALES

Ints = NDArray[np.int64]

LANDMARKS = 1500
COPIES, MOST_ROWS = 3, 40_000
"""Distorted copies of each input; fewer where there would be more rows than that."""
PENALTIES = (1e-3, 1e-2, 0.1, 1.0)
"""Relative to the mean variance of a feature. The first, unless held-out labels speak for a
stronger one by more than a standard error: with thousands of labels it matters little (98.9 % from
1e-4 to 1e-2), with hundreds, of which many are wrong, it does."""
DOUBTFUL = 0.03
"""Share of the inputs, the least clear ones, that are left out in the second round."""
HELD_OUT = 5
"""Every fifth label is held out to choose the penalty and the scale of the scores."""


class KernelStudents:
    """Kernel students on public images [N, H, W] or [N, H, W, C]; features are computed once."""

    def __init__(
        self, x: NDArray[Any], *, inputs: InputSpec, classes: tuple[str, ...], seed: int = 0
    ) -> None:
        if len(inputs.shape) == 1:
            raise DataError("The kernel student is for images; tables have the ridge student.")
        self.inputs, self.classes = inputs, classes
        public = PublicData.declare("the student's public inputs", np.asarray(x))
        self.map = public_features(inputs, public, LANDMARKS, "nystrom")
        copies = max(0, min(COPIES, MOST_ROWS // len(x) - 1))
        random = np.random.Generator(np.random.Philox(seed))
        plain = torch.from_numpy(np.asarray(x, dtype=np.float32))
        parts = [_features(self.map, plain)]
        for _ in range(copies):
            draws = torch.from_numpy(random.random((len(x), DRAWS), dtype=np.float32) * 2 - 1)
            parts.append(_features(self.map, plain, draws))
        self.rows = torch.stack(parts)
        """[1 + copies, N, L], centred; the first are the inputs as they are."""
        self.centre = self.rows.mean((0, 1))
        self.rows -= self.centre
        self.gram = self._gram(torch.arange(len(x)))

    def train(self, labels: Ints, *, again: bool = True) -> Student:
        """Learn from labels [N], -1 where there is none. Raises ValueError if all are.

        With `again` it learns twice; without, from the given labels alone.
        """
        given = torch.from_numpy(np.asarray(labels))
        known = (given >= 0).nonzero().squeeze(1)
        if len(known) == 0:
            raise ValueError("there is nothing to learn from: no input has a label")
        penalty, scale = self._choose(known, given)
        ((weights, biases),) = self._fit(known, given[known], penalty)
        if again:
            scores = self.rows[0] @ weights + biases
            clear = torch.argsort(_leads(scores))[int(DOUBTFUL * len(scores)) :]
            ((weights, biases),) = self._fit(clear, scores.argmax(1)[clear], penalty)
        return self._student(weights, biases, penalty, scale)

    def judge(self, labels: Ints, folds: Ints) -> float:
        """Share of the known labels that are predicted without their fold [K], in one round."""
        given = torch.from_numpy(np.asarray(labels))
        known = (given >= 0).nonzero().squeeze(1)
        right = 0
        for fold in np.unique(folds):
            own = torch.from_numpy(folds == fold)
            ((weights, biases),) = self._fit(known[~own], given[known[~own]], PENALTIES[0])
            scores = self.rows[0, known[own]] @ weights + biases
            right += int((scores.argmax(1) == given[known[own]]).sum())
        return right / len(known)

    def _fit(
        self, chosen: torch.Tensor, labels: torch.Tensor, *penalties: float
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Least squares on ±1 targets of the rows `chosen` [K], once for each penalty.

        Returns weights [L, m] and biases [m] of each.
        """
        targets = 2 * F.one_hot(labels, len(self.classes)).float() - 1
        level = targets.mean(0)
        left_out = torch.ones(self.rows.shape[1], dtype=torch.bool)
        left_out[chosen] = False
        others = left_out.nonzero().squeeze(1)
        gram = self.gram - self._gram(others) if len(others) < len(chosen) else self._gram(chosen)
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

    def _gram(self, chosen: torch.Tensor) -> torch.Tensor:
        """Products [L, L] of the features of some rows and of their copies."""
        gram = torch.zeros((self.rows.shape[2],) * 2, dtype=torch.float64)
        for copy in self.rows:
            rows = copy[chosen]
            gram += rows.T @ rows
        return gram

    def _choose(self, known: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
        """Return the penalty, and the scale of scores, that suit labels not learned from."""
        held = torch.zeros(len(known), dtype=torch.bool)
        held[::HELD_OUT] = True
        if held.all():
            return PENALTIES[0], SCALES[1]
        own, rows = labels[known[held]], self.rows[0, known[held]]
        solutions = self._fit(known[~held], labels[known[~held]], *PENALTIES)
        scores = [rows @ weights + biases for weights, biases in solutions]
        right = [float((each.argmax(1) == own).float().mean()) for each in scores]
        best = int(np.argmax(right))
        if right[best] - right[0] <= math.sqrt(right[0] * (1 - right[0]) / len(own)):
            best = 0
        scale = min(SCALES, key=lambda scale: float(F.cross_entropy(scale * scores[best], own)))
        return PENALTIES[best], scale

    def _student(
        self, weights: torch.Tensor, biases: torch.Tensor, penalty: float, scale: float
    ) -> Student:
        network = build_student(self.inputs, len(self.classes), self.map.spec)
        state = {
            **self.map.tensors,
            "scores.weight": (scale * weights.T).contiguous(),
            "scores.bias": scale * (biases - self.centre @ weights),
        }
        network.load_state_dict(state)
        how: dict[str, int | float | str] = {
            "method": "kernel",
            "penalty": penalty,
            "scale": scale,
            "copies": len(self.rows) - 1,
        }
        return Student(network, describe(self.inputs, self.classes, how, None, self.map.spec))


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


def _leads(scores: torch.Tensor) -> torch.Tensor:
    best = scores.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]
