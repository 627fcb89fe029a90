"""Networks as students, trained on labels alone or on unlabelled inputs as well."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from terrine_models.data.workers import alone, side_by_side
from terrine_models.features.augment import DRAWS, distort
from terrine_models.features.prepared import prepare
from terrine_models.students.answers import Answers, Floats, Ints
from terrine_models.students.models import Student, build_student, describe, initialise_student
from terrine_models.students.ridge import labels_to_teach
from terrine_models.students.settings import Training
from terrine_models.students.task import OnStep, StudentMethod, Task

PROBE = 0.5
"""Length of the step that finds the adversarial direction, in units of the prepared input."""
OF_IMAGES, LEAST = 4, 100
"""To be judged, networks for images are trained for a quarter of the steps, but for 100 at least.
Those for tables train fast, and are trained for all of them."""


class Objective(ABC):
    """What a network learns from labels and from unlabelled inputs, after it has warmed up.

    `average`: the running mean of its weights. `x`: all prepared inputs. It begins with `random`.
    """

    momenta = (0.9, 0.999)
    """Of Adam. Unless they are these, the first is not cycled."""

    def __init__(
        self,
        network: nn.Module,
        average: nn.Module,
        x: torch.Tensor,
        training: Training,
        random: torch.Generator,
    ) -> None:
        self.network, self.average = network, average
        self.training, self.random = training, random

    def pool(self) -> int:
        """Return the number of unlabelled inputs in a step."""
        return self.training.unlabelled_batch

    @abstractmethod
    def loss(self, x: torch.Tensor, labels: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """Loss on x [B, …] with `labels` [B], and on unlabelled inputs [U, …], as they are."""

    def follow(self) -> None:
        """Do what is done after each step of the network."""
        return  # most do nothing


class Consistent(Objective):
    """Virtual adversarial training."""

    def loss(self, x: torch.Tensor, labels: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """Cross-entropy, and `vat_loss` on the unlabelled inputs."""
        known = F.cross_entropy(self.network(augment(x, self.random)), labels)
        return known + vat_loss(self.network, pool, self.training.radius, self.random)


class Sure(Objective):
    """The averaged network's own sure labels of undistorted inputs."""

    def loss(self, x: torch.Tensor, labels: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """Loss of `fixmatch_loss`."""
        confidence = self.training.confidence
        return fixmatch_loss(self.network, self.average, x, labels, pool, confidence, self.random)


class Network(StudentMethod):
    """A network that learns from labels, and by its `objective` from unlabelled inputs as well."""

    objective: ClassVar[type[Objective] | None] = None

    def fit(self, task: Task, answers: Answers) -> Student:
        """Train for all steps. Images are distorted at random in every one of them."""
        steps, labels = self.training.steps, labels_to_teach(task, answers)

        def train(done: Count) -> Student:
            return self._train(task, labels, steps, done)

        done = Count(self.on_step, steps)
        # The products of a table's small network are slower on several threads than on one.
        return alone(train, done) if task.is_table else train(done)

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """After short trainings, side by side."""
        steps = self._short(task)
        rows = [folds == fold for fold in np.unique(folds[folds >= 0])]
        labels = [labels_to_teach(task, answers.only(~own)) for own in rows]
        done = Count(self.on_step, len(rows) * steps)
        held_out = np.zeros((len(task.x), len(task.classes)))

        def train(fold: int) -> None:
            student = self._train(task, labels[fold], steps, done)
            held_out[rows[fold]] = student.probabilities(task.x[rows[fold]])

        try:
            side_by_side(train, range(len(rows)))
        except BaseException:  # Ctrl-C, too; whatever it is, it is raised again
            done.halt()  # otherwise the program would wait for every training to finish
            raise
        return held_out

    def _short(self, task: Task) -> int:
        steps = self.training.steps
        return steps if task.is_table else min(steps, max(LEAST, steps // OF_IMAGES))

    def _train(self, task: Task, given: Ints, steps: int, done: Count) -> Student:
        labels, known = torch.from_numpy(given), torch.from_numpy(np.flatnonzero(given >= 0))
        network, training = build_student(task.spec, len(task.classes)), self.training
        x = prepare(torch.from_numpy(np.asarray(task.x, dtype=np.float32)), task.spec)
        random = torch.Generator().manual_seed(task.seed)
        initialise_student(network, random)
        average = copy.deepcopy(network).eval()
        network.train()
        objective = None
        if self.objective is not None:
            objective = self.objective(network, average, x, training, random)
        momenta = objective.momenta if objective else Objective.momenta
        pace = training.learning_rate
        optimizer = torch.optim.AdamW(
            network.parameters(), pace, betas=momenta, weight_decay=training.weight_decay
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            pace,
            total_steps=steps,
            pct_start=0.05 if steps != 20 else 0.1,  # torch divides by 0.05 * steps - 1
            cycle_momentum=momenta == Objective.momenta,
        )
        labelled = _shuffled(known, training.batch, random)
        pool = objective.pool() if objective else training.unlabelled_batch
        everything = _shuffled(torch.arange(len(x)), pool, random)
        for step in range(steps):
            batch = next(labelled)
            warm = objective is None or step < int(steps * training.warm_up)
            if objective is None or warm:
                loss = F.cross_entropy(network(augment(x[batch], random)), labels[batch])
            else:
                loss = objective.loss(x[batch], labels[batch], x[next(everything)])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            follow(average, network, max(0.01, 1 / (1 + step / 10)))
            if objective is not None and not warm:
                objective.follow()
            done.step()
        how = {**asdict(replace(training, steps=steps)), "seed": task.seed}
        return Student(average, describe(task.spec, task.classes, how, task.encoding))


class Supervised(Network):
    """Labels alone."""


class OfImages(Network):
    """A network that learns from unlabelled images, too. Of tables it learns nothing."""

    wants = "images"

    @classmethod
    def can(cls, task: Task) -> bool:
        """Images alone: the classes of a table are not separated by gaps."""
        return not task.is_table


class Vat(OfImages):
    """Virtual adversarial training, for small images with few labels."""

    objective = Consistent


class FixMatch(OfImages):
    """Its own sure labels, for larger images and hundreds of labels."""

    objective = Sure


class Count:
    """The steps that were done, of several trainings at once, and whether to go on."""

    def __init__(self, on_step: OnStep, total: int) -> None:
        self.on_step, self.total, self.done = on_step, total, 0
        self.lock, self.halted = threading.Lock(), threading.Event()

    def step(self) -> None:
        """Count one more. Raises InterruptedError once the training is to end."""
        if self.halted.is_set():
            raise InterruptedError("the training was interrupted")
        with self.lock:
            self.done += 1
            self.on_step(self.done, self.total)

    def halt(self) -> None:
        """Let every training end."""
        self.halted.set()


@torch.no_grad()
def follow(average: nn.Module, network: nn.Module, pace: float) -> None:
    """Move the averaged weights and statistics by the share `pace` towards the network's."""
    for old, new in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, pace)


def augment(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Images [B, C, H, W] distorted at random; rows of a table [B, d] as they are."""
    if x.ndim == 2:
        return x
    return distort(x, torch.rand(len(x), DRAWS, generator=random) * 2 - 1)


def fixmatch_loss(
    network: nn.Module,
    average: nn.Module,
    x: torch.Tensor,
    labels: torch.Tensor,
    pool: torch.Tensor,
    confidence: float,
    random: torch.Generator,
) -> torch.Tensor:
    """Loss on the labels of x [B, …], and on the student's own of pool [U, …] where it is sure.

    What the averaged network predicts for a plain input is the target for the distorted one. After
    Sohn et al., "FixMatch", NeurIPS 2020, with Tarvainen and Valpola's mean teacher.
    """
    with torch.no_grad():
        sure, guess = average(pool).softmax(1).max(1)
    scores = network(augment(torch.cat([x, pool]), random))
    loss = F.cross_entropy(scores[: len(x)], labels)
    own = F.cross_entropy(scores[len(x) :], guess, reduction="none")
    total: torch.Tensor = loss + (own * (sure >= confidence)).mean()
    return total


def vat_loss(
    network: nn.Module, x: torch.Tensor, radius: float, random: torch.Generator
) -> torch.Tensor:
    """Local distributional smoothness of the network at x [B, …], plus its entropy there.

    LDS(x) = KL(p(x) || p(x + r)), where r has length `radius` and the adversarial direction; the
    gradient flows through p(x + r) alone. After Miyato, Maeda, Koyama and Ishii, "Virtual
    Adversarial Training", TPAMI 2018, with their conditional entropy ("VAT+EntMin").
    """
    with frozen_statistics(network):
        clean = network(x)
        direction = adversarial_direction(network, x, clean.detach(), random)
        smoothness = divergence(clean.detach(), network(x + radius * direction))
    entropy = -(clean.softmax(1) * clean.log_softmax(1)).sum(1).mean()
    total: torch.Tensor = smoothness + entropy
    return total


def adversarial_direction(
    network: nn.Module, x: torch.Tensor, clean: torch.Tensor, random: torch.Generator
) -> torch.Tensor:
    """Unit vectors [B, …] along which the scores at x [B, …] change most from `clean` [B, m].

    One power iteration from a random direction d: the gradient of KL(p(x) || p(x + PROBE d)) in d
    is, to first order, the Hessian of the divergence times d.
    """
    start = _unit(torch.randn(x.shape, generator=random)).requires_grad_()
    change = divergence(clean, network(x + PROBE * start))
    (gradient,) = torch.autograd.grad(change, start)
    return _unit(gradient)


def divergence(scores: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Mean KL divergence of the distributions with scores [B, m] from those with `others`."""
    return F.kl_div(
        others.log_softmax(1), scores.log_softmax(1), reduction="batchmean", log_target=True
    )


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Keep perturbed inputs out of the running means of batch normalisation."""
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def _unit(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x.flatten(1)).view_as(x)


def _shuffled(rows: torch.Tensor, size: int, random: torch.Generator) -> Iterator[torch.Tensor]:
    """Endless batches of `size`: every row once, in random order, before any is repeated."""
    queue = rows[:0]
    while True:
        while len(queue) < size:
            queue = torch.cat([queue, rows[torch.randperm(len(rows), generator=random)]])
        yield queue[:size]
        queue = queue[size:]
