"""Between rounds of queries: where a student is unsure, and whether more labels would teach it.

    sketches = Sketches(x, inputs=spec, classes=names, training=Training())
    sketches.informative("uncertain", labels)     # [N], the larger the more it would learn
    sketches.saturation(labels)

Sketches are plain models of the labels that were bought so far; they learn from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.maps import FeatureMap
from terrine_models.students.models import Student
from terrine_models.students.networks import Training, train_student
from terrine_models.students.ridge import RidgeFit, RidgeStudents, features_of, ridge_features
from terrine_models.students.selection import assign_folds
from terrine_protocol.tables import TableSchema

Asking = Literal["representative", "uncertain", "disagreement"]
"""Which inputs are asked next: those that represent the whole, those that a sketch is least certain
of, or those on which two sketches of different kinds disagree."""
QUARTER = 4
"""A sketch trains for a quarter of the steps: enough to show where it stands."""
STILL = 0.01
"""Share of labels, and of public inputs, up to which a change counts as none. At least 200 labels
are needed to show that so few change."""
SEEN = 2
"""Labels of a class from which a model that never predicts it cannot tell what labels teach."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Saturation:
    """What the second half of the labels taught a plain model that the first half had not.

    gain: how many more of the held-out labels it predicts, as a share of them, and `error`, its
    standard error, as if one more had changed. changed: the share of the public inputs that it
    predicts otherwise.
    """

    gain: float
    error: float
    changed: float

    @property
    def reached(self) -> bool:
        """Whether as many labels again are not expected to change the student."""
        return self.gain + 2 * self.error <= STILL and self.changed <= STILL


class Sketches:
    """Sketches of public inputs [N, *shape]; features are computed once."""

    def __init__(
        self,
        x: NDArray[np.generic],
        *,
        inputs: InputSpec,
        classes: tuple[str, ...],
        encoding: TableSchema | None = None,
        training: Training,
        on_step: Callable[[int, int], None] = lambda done, steps: None,
    ) -> None:
        self.x, self.inputs, self.classes, self.encoding = x, inputs, classes, encoding
        self.training, self.on_step = training, on_step

    def network(self, labels: Ints) -> Student:
        """A network on labels [N], -1 where there is none."""
        steps = max(1, self.training.steps // QUARTER)
        return train_student(
            self.x,
            labels,
            inputs=self.inputs,
            classes=self.classes,
            encoding=self.encoding,
            training=replace(self.training, method="supervised", steps=steps, students=1),
            on_step=self.on_step,
        )

    def informative(self, asking: Asking, labels: Ints, network: Student) -> Floats:
        """How unsure sketches are of each input [N], between 0 and 1.

        `uncertain`: 1 less the network's largest probability. `disagreement`: the total variation
        distance of the probabilities of the network and of ridge regression; a committee of two
        (Seung, Opper and Sompolinsky, "Query by Committee", COLT 1992).
        """
        beliefs = network.probabilities(self.x)
        if asking == "representative":
            return np.zeros(len(self.x))
        if asking == "uncertain":
            return 1 - np.asarray(beliefs.max(axis=1))
        ridges = self._ridges(labels)
        folds = assign_folds(ridges.labels, len(self.classes), self.training.seed)
        fit = RidgeFit() if folds is None else ridges.judge(folds)
        scores = fit.scale * self._scores(ridges.solve(fit))
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        others = odds / odds.sum(axis=1, keepdims=True)
        return np.asarray(np.abs(beliefs - others).sum(axis=1) / 2)

    def saturation(self, labels: Ints) -> Saturation | None:
        """Compare ridge regression on all labels [N] with that on half of them.

        None if there is nothing to judge by: fewer than two labels per class in either half, or a
        model that never predicts a class that there are labels of.
        """
        bought = labels[labels >= 0]
        folds = assign_folds(bought, len(self.classes), self.training.seed)
        if folds is None or len(bought) < 4 * len(self.classes):
            return None
        ridges, half = self._ridges(labels), _half(bought, self.training.seed)
        fit = ridges.judge(folds)
        with_all, with_half = ridges.held_out(folds, fit), ridges.held_out(folds, fit, half)
        gained = (with_all == bought).astype(float) - (with_half == bought)
        now, before = (self._scores(ridges.solve(fit, own)).argmax(1) for own in (None, half))
        shown = np.bincount(bought, minlength=len(self.classes)) >= SEEN
        if shown[np.bincount(now, minlength=len(self.classes)) == 0].any():
            return None
        return Saturation(
            gain=float(gained.mean()),
            error=float(np.sqrt((gained**2).sum() + 1) / len(gained)),
            changed=float((now != before).mean()),
        )

    def _ridges(self, labels: Ints) -> RidgeStudents:
        return RidgeStudents(
            self.x,
            labels,
            inputs=self.inputs,
            classes=self.classes,
            balance=self.training.balance,
            known=self._map,
        )

    def _scores(self, solution: tuple[Floats, Floats]) -> Floats:
        weights, biases = solution
        return self._features @ weights + biases

    @cached_property
    def _map(self) -> FeatureMap:
        return ridge_features(self.x, self.inputs, len(self.classes))

    @cached_property
    def _features(self) -> Floats:
        return features_of(self._map, self.x)


def _half(labels: Ints, seed: int) -> NDArray[np.bool_]:
    """[K] bool: half of the labels [K] of each class, drawn at random."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    half = np.zeros(len(labels), dtype=bool)
    half[shuffled[np.argsort(labels[shuffled], kind="stable")][::2]] = True
    return half
