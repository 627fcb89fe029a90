"""Between rounds of queries: where a student is unsure, and whether more labels would teach it.

Sketches are plain models of the labels that were bought so far; they learn from nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from terrine_models.students.answers import Answers, Bools, Floats, Ints
from terrine_models.students.models import Student
from terrine_models.students.networks import Supervised
from terrine_models.students.ridge import Ridge
from terrine_models.students.settings import Training
from terrine_models.students.task import OnStep, Task, unseen

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


@dataclass(frozen=True, eq=False)
class Sketches:
    """Sketches of the answers to public inputs."""

    task: Task
    training: Training
    on_step: OnStep = unseen

    def network(self, answers: Answers) -> Student:
        """A network."""
        steps = max(1, self.training.steps // QUARTER)
        return Supervised(replace(self.training, steps=steps), self.on_step).fit(self.task, answers)

    def ridge(self, answers: Answers) -> Student:
        """A regression."""
        return Ridge(self.training).fit(self.task, answers)

    def informative(self, asking: Asking, answers: Answers, network: Student) -> Floats:
        """How unsure sketches are of each input [N], between 0 and 1.

        `uncertain`: 1 less the network's largest probability. `disagreement`: the total variation
        distance of the probabilities of the network and of ridge regression; a committee of two
        (Seung, Opper and Sompolinsky, "Query by Committee", COLT 1992).
        """
        x = self.task.x
        if asking == "representative":
            return np.zeros(len(x))
        beliefs = network.probabilities(x)
        if asking == "uncertain":
            return 1 - np.asarray(beliefs.max(axis=1))
        others = self.ridge(answers).probabilities(x)
        return np.asarray(np.abs(beliefs - others).sum(axis=1) / 2)

    def saturation(self, answers: Answers) -> Saturation | None:
        """Compare ridge regression on all labels [N] with that on half of them.

        None if there is nothing to judge by: fewer than two labels per class in either half, or a
        model that never predicts a class that there are labels of.
        """
        task, known = self.task, answers.known
        folds, classes = answers.folds(task.seed, task.inputs), len(task.classes)
        if folds is None or known.sum() < 4 * classes:
            return None
        labels, half = answers.labels[known], answers.only(_half(answers.labels, task.seed))
        held_out, before = (
            Ridge(self.training).judge(task, each, folds)[known].argmax(axis=1)
            for each in (answers, half)
        )
        gained = (held_out == labels).astype(float) - (before == labels)
        now, earlier = (self.ridge(each).predict(task.x) for each in (answers, half))
        shown = np.bincount(labels, minlength=classes) >= SEEN
        if shown[np.bincount(now, minlength=classes) == 0].any():
            return None
        return Saturation(
            gain=float(gained.mean()),
            error=float(np.sqrt((gained**2).sum() + 1) / len(gained)),
            changed=float((now != earlier).mean()),
        )


def _half(labels: Ints, seed: int) -> Bools:
    """[N] bool: half of the labels [N] of each class, drawn at random; -1 is a class, too."""
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    half = np.zeros(len(labels), dtype=bool)
    half[shuffled[np.argsort(labels[shuffled], kind="stable")][::2]] = True
    return half
