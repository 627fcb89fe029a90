"""A student from noisy vote counts: shares fitted to public features, then a network on the clear.

    made = student_from_counts(x, counts, teachers=1000, sigma=500.0, inputs=spec, classes=names)

The counts of every public input are fitted at once (`shares.py`). On a table the regression itself
is the student, and wherever `ridge` is asked for. For two classes of a table, and for several where
`ridge` is asked for, it has the link that predicts held-out counts better (`tanh_shares.py`,
`softmax_shares.py`). On images all but the least clear rows become labels for a kernel student
(`kernel.py`); or, if that is asked for, the clear ones for a network. Of images of many classes
there are few of each, and no regression: shares are averaged over neighbours (`neighbours.py`).
Where another student is asked for, many classes are aligned (`alignment.py`), and a kernel student
learns from their labels once: its own give up rare classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.discriminant import MANY
from terrine_models.students.alignment import aligned
from terrine_models.students.kernel import KernelStudents
from terrine_models.students.methods import MODELS, Task, check
from terrine_models.students.models import Student
from terrine_models.students.neighbours import NeighbourStudents, suits
from terrine_models.students.networks import NETWORKS, Training, train_student
from terrine_models.students.ridge import RidgeFit, RidgeStudents
from terrine_models.students.selection import LARGE, Choice, Made, candidates
from terrine_models.students.shares import FittedShares, fit_shares, noisy_agreement
from terrine_models.students.softmax_shares import fit_many_classes
from terrine_models.students.tanh_shares import fit_two_classes, matched_bias
from terrine_protocol.tables import TableSchema

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Shares lie in [0, 1]; times one of these, their softmax is the probability that is returned."""
SETTLED = 0.97
"""Share of the rows that a class wins, the clearest first, that teach a kernel student. It bears
labels of which some are wrong better than to have none where inputs are hard."""
FEWEST = 100
"""Rows below which there are too few for a kernel."""
KERNEL_TOLERANCE = 0.05
"""By how much less of the teachers may agree with a kernel student than with the regression. It
cannot collapse as a network can, and it leaves the teachers where inputs are hard and most of them
are wrong: on MNIST's training images 98.6 % of its predictions were right and 97.8 % of theirs."""
LOST = 0.02
"""Share of the rows whose class, by the regression, a student of many classes may never predict."""
DOUBT = 3.0
"""Standard errors by which a network may agree less with the teachers than the regression does."""


class CountedStudents:
    """Students from noisy counts of the same inputs [N, *shape].

    What needs the inputs alone is computed once, so several students cost little more than one.
    """

    def __init__(
        self,
        x: NDArray[np.generic],
        *,
        inputs: InputSpec,
        classes: tuple[str, ...],
        encoding: TableSchema | None = None,
        seed: int = 0,
    ) -> None:
        if x.shape[1:] != inputs.shape:
            raise ValueError(f"inputs have shape {x.shape}, expected {(len(x), *inputs.shape)}")
        self.x, self.inputs, self.classes, self.encoding = x, inputs, classes, encoding
        self.seed = seed
        """Of the distortions from which kernel students learn."""

    @cached_property
    def ridges(self) -> RidgeStudents:
        """Of the regression: the features of every input."""
        return self._ridges()

    @cached_property
    def linked(self) -> RidgeStudents:
        """Of the regression with a softmax link, which bears a finer graph."""
        return self._ridges(fine=True)

    def _ridges(self, *, fine: bool = False) -> RidgeStudents:
        everything = np.zeros(len(self.x), dtype=np.int64)
        return RidgeStudents(
            self.x,
            everything,
            inputs=self.inputs,
            classes=self.classes,
            encoding=self.encoding,
            fine=fine,
        )

    @cached_property
    def kernels(self) -> KernelStudents:
        """Of kernel students: the features of every image, and of its distorted copies."""
        return KernelStudents(self.x, inputs=self.inputs, classes=self.classes, seed=self.seed)

    @cached_property
    def neighbours(self) -> NeighbourStudents:
        """Of students of neighbours: who is near whom."""
        return NeighbourStudents(self.x, inputs=self.inputs, classes=self.classes)

    def train(
        self,
        counts: Ints,
        *,
        teachers: int,
        sigma: float,
        matches_prior: bool = False,
        training: Training | None = None,
        tell: Callable[[str], None] = lambda line: None,
        on_step: Callable[[int, int], None] = lambda done, steps: None,
    ) -> Made:
        """Train a student on noisy counts [N, m]; see `student_from_counts`."""
        training = training or Training()
        check(training, self.inputs)
        if len(counts) != len(self.x):
            raise ValueError(f"{len(counts)} rows of counts, expected {len(self.x)}")
        by_neighbours = suits(self.inputs, len(self.classes), len(self.x))
        if training.method == "neighbours" or (training.method == "auto" and by_neighbours):
            tell("Averaging the shares of the votes over neighbours …")
            found = self.neighbours.labels(counts, teachers=teachers, sigma=sigma)
            why = f"Noisy shares were averaged over neighbours: all {len(found):,} rows are labels."
            choice = Choice(training.method, "neighbours", why, (), len(found), 0, 0)
            return Made(self.neighbours.train(found), choice)
        tell("Fitting the shares of the votes to public features …")
        linked = training.method == "ridge" and len(self.classes) > 2
        ridges = self.linked if linked else self.ridges
        if len(self.inputs.shape) == 1 and len(self.classes) == 2:
            fitted, links = fit_two_classes(ridges.features, counts, teachers, sigma)
        elif linked:
            fitted, links = fit_many_classes(ridges.features, counts, teachers, sigma)
        else:
            fitted, links = fit_shares(ridges.features, counts, teachers, sigma), ""
        many = len(self.classes) >= MANY
        if many:
            fitted = aligned(fitted, counts.mean(axis=0) / teachers)
        labels = fitted.clear_labels()
        regression, suited = _regression(ridges, fitted, counts, teachers, sigma, matches_prior)
        clear = int((labels >= 0).sum())
        # Of each row as it is predicted without its own counts: otherwise fitted noise counts.
        share = noisy_agreement(fitted.held_out.argmax(axis=1), counts, teachers)
        says = (
            f"{clear:,} of {len(self.x):,} rows are clear. About {share:.1%} of the teachers agree "
            "with the regression."
        )
        says = " ".join(filter(None, (says, links, suited)))

        def made(chosen: str, why: str) -> Choice:
            students = training.students if chosen in NETWORKS else 1
            return Choice(training.method, chosen, f"{says} {why}", (), clear, 0, 0, students)

        wanted = candidates(training.method, self.inputs, clear)[-1]
        if training.method == "ridge":
            wanted = "ridge"
        if training.method == "auto" and self._has_large_images:
            wanted = "kernel" if len(self.x) >= FEWEST else "ridge"
        if training.method == "auto" and (wanted == "supervised" or len(self.inputs.shape) == 1):
            # On tables, and where hardly anything is clear, a network adds nothing.
            return Made(regression, made("ridge", "It is the student."))
        if wanted == "ridge":
            return Made(regression, made("ridge", "It is the student, as asked."))
        if wanted == "kernel":
            labels = _settled(fitted)
        tell(f"Training {wanted} on {int((labels >= 0).sum()):,} rows …")
        if wanted == "kernel":
            student = self.kernels.train(labels, again=not many)
        elif wanted in MODELS:
            task = Task(self.x, labels, self.inputs, self.classes, self.encoding, training.seed)
            student = MODELS[wanted](task).train()
        else:
            student = train_student(
                self.x,
                labels,
                inputs=self.inputs,
                classes=self.classes,
                encoding=self.encoding,
                training=replace(training, method=wanted),
                on_step=on_step,
            )
        predicted = student.predict(self.x)
        own = noisy_agreement(predicted, counts, teachers)
        differ = int((predicted != fitted.winners).sum())
        doubt = DOUBT * sigma / teachers * np.sqrt(2 * differ) / len(self.x)
        fault = None
        if own < share - doubt - (KERNEL_TOLERANCE if wanted == "kernel" else 0):
            fault = f"With the {wanted} student only {own:.1%} do"
        elif (~np.isin(fitted.winners, predicted)).mean() > (LOST if many else 0):
            missing = len(np.setdiff1d(fitted.winners, predicted))
            fault = f"The {wanted} student gave up {missing} of its classes"
        if fault is not None:
            return Made(regression, made("ridge", f"{fault}, so the regression is returned."))
        taught = int((labels >= 0).sum())
        why = f"{own:.1%} do with the {wanted} student, which learned from {taught:,} rows."
        return Made(student, made(wanted, why))

    @property
    def _has_large_images(self) -> bool:
        return len(self.inputs.shape) > 1 and min(self.inputs.shape[:2]) >= LARGE


def student_from_counts(
    x: NDArray[np.generic],
    counts: Ints,
    *,
    teachers: int,
    sigma: float,
    inputs: InputSpec,
    classes: tuple[str, ...],
    matches_prior: bool = False,
    encoding: TableSchema | None = None,
    training: Training | None = None,
    tell: Callable[[str], None] = lambda line: None,
    on_step: Callable[[int, int], None] = lambda done, steps: None,
) -> Made:
    """Train a student on inputs [N, *shape] and their noisy counts [N, m], all of them answered.

    `sigma`: of the noise, in votes. `matches_prior`: whether teachers for two classes match their
    prior on public rows (`architectures.match_priors`); then the student suits it too. With the
    method `auto`, neighbours on images of many classes; else a kernel student on images of some 20
    pixels a side or more, a network on smaller ones, and the regression on tables. A kernel student
    or network that agrees less with the teachers than the regression does is not returned. Raises
    ValueError on fewer than two rows.
    """
    if x.shape != (len(counts), *inputs.shape):
        raise ValueError(f"inputs have shape {x.shape}, expected {(len(counts), *inputs.shape)}")
    seed = training.seed if training else 0
    students = CountedStudents(x, inputs=inputs, classes=classes, encoding=encoding, seed=seed)
    return students.train(
        counts,
        teachers=teachers,
        sigma=sigma,
        matches_prior=matches_prior,
        training=training,
        tell=tell,
        on_step=on_step,
    )


def _settled(fitted: FittedShares) -> Ints:
    """Return labels [N] for the clearest `SETTLED` of the rows that each class wins, else −1."""
    winners, leads = fitted.winners, fitted.leads
    labels = np.full(len(winners), -1, dtype=np.int64)
    for winner in np.unique(winners):
        rows = np.flatnonzero(winners == winner)
        clearest = rows[np.argsort(-leads[rows], kind="stable")]
        labels[clearest[: math.ceil(SETTLED * len(rows))]] = winner
    return labels


def _regression(
    ridges: RidgeStudents,
    fitted: FittedShares,
    counts: Ints,
    teachers: int,
    sigma: float,
    matches_prior: bool,
) -> tuple[Student, str]:
    """Return the regression as a student, and what was done about the prior."""
    biases, suited = fitted.biases, ""
    if matches_prior and len(biases) == 2:
        leads = ridges.features @ (fitted.weights[:, 1] - fitted.weights[:, 0])
        prior = 0.5 + float((counts[:, 1] - counts[:, 0]).mean()) / (2 * teachers)
        error = sigma / teachers / np.sqrt(2 * len(counts))
        lead = matched_bias(leads, prior, error)
        suited = f"The mean share of {ridges.classes[1]} is {prior:.1%}"
        if lead is None:
            suited += ", too uncertain to be matched."
        else:
            biases = np.array([-lead / 2, lead / 2])
            chosen = float((leads + lead > 0).mean())
            suited += f", so the student chooses it for {chosen:.1%} of the rows."
    scale = 1.0 if fitted.link != "identity" else _scale(fitted, counts / teachers)
    return ridges.student(fitted.weights, biases, RidgeFit(fitted.penalty, scale)), suited


def _scale(fitted: FittedShares, noisy: Floats) -> float:
    """Return the scale whose probabilities are nearest to the shares, which noise does not bias."""

    def missed(scale: float) -> float:
        odds = np.exp(scale * (fitted.shares - fitted.shares.max(axis=1, keepdims=True)))
        return float(((odds / odds.sum(axis=1, keepdims=True) - noisy) ** 2).mean())

    return min(SCALES, key=missed)
