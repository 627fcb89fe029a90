"""How a student is trained: on labels alone, or on unlabelled inputs as well.

Everything here uses public inputs and answers that were paid for, so nothing here costs privacy,
however often it is repeated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from terrine_models.data.arrays import InputSpec
from terrine_models.features.augment import DRAWS, distort
from terrine_models.features.prepared import prepare
from terrine_models.storage.manifests import CONFIG
from terrine_models.students.models import (
    MOST_MEMBERS,
    Average,
    Student,
    build_student,
    describe,
    initialise_student,
)
from terrine_models.students.ridge import class_weights
from terrine_protocol.tables import TableSchema

PROBE = 0.5
"""Length of the step that finds the adversarial direction, in units of the prepared input."""


@dataclass(frozen=True, config=CONFIG)
class Training:
    """Settings of the training; the defaults suit tens to hundreds of labels.

    `vat` is for small images with few labels; `fixmatch` is for larger images and hundreds of
    labels, and learns more from them in the same time.
    """

    method: str = "auto"
    """One of `methods.methods()`."""
    steps: Annotated[int, Field(ge=1, description="Training steps of a network.")] = 600
    batch: Annotated[int, Field(ge=1, description="Labelled inputs per step.")] = 64
    unlabelled_batch: Annotated[int, Field(ge=1, description="Unlabelled inputs per step.")] = 128
    learning_rate: Annotated[float, Field(gt=0, description="The highest, of AdamW.")] = 4e-3
    weight_decay: Annotated[float, Field(ge=0, description="Of AdamW.")] = 5e-4
    warm_up: Annotated[
        float, Field(ge=0, le=1, description="Share of the steps that use labels alone.")
    ] = 0.25
    confidence: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="fixmatch: the student's own label is used from this probability on.",
        ),
    ] = 0.8
    radius: Annotated[
        float,
        Field(
            gt=0,
            description="vat: length of the adversarial step, in units of the prepared input.",
        ),
    ] = 1.5
    seed: int = 0
    students: Annotated[
        int,
        Field(
            ge=1,
            le=MOST_MEMBERS,
            description="Networks that are trained, with seeds from `seed` on; their mean "
            "probability counts.",
        ),
    ] = 1
    balance: Annotated[
        bool, Field(description="Whether every class that has labels counts alike.")
    ] = False


def only_images(method: str, inputs: InputSpec) -> None:
    """Raise ValueError for tables, of which `method` learns nothing."""
    if len(inputs.shape) == 1:
        raise ValueError(
            f"{method} is for images, and these inputs are tables. Use auto, which compares ridge "
            "regression with a network, or supervised."
        )


class Objective:
    """What a network learns from labels and from unlabelled inputs, after it has warmed up.

    `average`: the running mean of its weights. `x`: all prepared inputs.
    """

    unlabelled = True
    """Whether it learns from unlabelled inputs, and so may collapse."""
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

    @staticmethod
    def check(inputs: InputSpec) -> None:
        """Raise ValueError if nothing is learned so from such inputs."""

    def pool(self) -> int:
        """Return the number of unlabelled inputs in a step."""
        return self.training.unlabelled_batch

    def loss(
        self,
        x: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        pool: torch.Tensor,
    ) -> torch.Tensor:
        """Loss on x [B, …] with `labels` [B], and on unlabelled inputs [U, …], as they are.

        weights: of the classes of the labels [m], if they count differently.
        """
        raise NotImplementedError

    def follow(self) -> None:
        """Do what is done after each step of the network."""


class Supervised(Objective):
    """Labels alone."""

    unlabelled = False


class Vat(Objective):
    """Virtual adversarial training, for small images with few labels."""

    def loss(
        self,
        x: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        pool: torch.Tensor,
    ) -> torch.Tensor:
        """Cross-entropy, and `vat_loss` on the unlabelled inputs."""
        known = F.cross_entropy(self.network(augment(x, self.random)), labels, weights)
        return known + vat_loss(self.network, pool, self.training.radius, self.random)


class FixMatch(Objective):
    """The averaged network's own sure labels of undistorted inputs, for larger images."""

    def loss(
        self,
        x: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
        pool: torch.Tensor,
    ) -> torch.Tensor:
        """Loss of `fixmatch_loss`."""
        confidence = self.training.confidence
        return fixmatch_loss(
            self.network, self.average, x, labels, pool, confidence, self.random, weights
        )


NETWORKS: dict[str, type[Objective]] = {"supervised": Supervised, "vat": Vat, "fixmatch": FixMatch}
"""By name: how networks learn."""


def train_student(
    x: NDArray[np.generic],
    labels: NDArray[np.int64],
    *,
    inputs: InputSpec,
    classes: tuple[str, ...],
    encoding: TableSchema | None = None,
    training: Training | None = None,
    on_step: Callable[[int, int], None] = lambda done, steps: None,
) -> Student:
    """Train on inputs [N, *shape] with `labels` [N], -1 where there is none.

    Images are distorted at random in every step. The student is the running mean of the weights;
    of several, the mean of their probabilities. By default it learns from labels alone. Raises
    ValueError when no input has a label, or if no network learns so from such inputs: all other
    methods `choose_student` knows.
    """
    training = training or Training(method="supervised")
    if training.method not in NETWORKS:
        raise ValueError(f"{training.method} trains no network: choose_student knows it")
    NETWORKS[training.method].check(inputs)
    if x.shape != (len(labels), *inputs.shape):
        raise ValueError(f"inputs have shape {x.shape}, expected {(len(labels), *inputs.shape)}")
    known = np.flatnonzero(labels >= 0)
    if len(known) == 0:
        raise ValueError("there is nothing to learn from: no input has a label")
    prepared = prepare(torch.from_numpy(np.asarray(x, dtype=np.float32)), inputs)
    total, weights = training.students * training.steps, None
    if training.balance:
        weights = torch.from_numpy(class_weights(labels[known], len(classes))).float()

    def train(member: int) -> nn.Module:
        return _train(
            prepared,
            torch.from_numpy(known),
            torch.from_numpy(labels),
            weights,
            build_student(inputs, len(classes)),
            replace(training, seed=training.seed + member),
            lambda done, _: on_step(member * training.steps + done, total),
        )

    networks = [train(member) for member in range(training.students)]
    several = None if len(networks) == 1 else len(networks)
    network = networks[0] if several is None else Average(networks)
    model = describe(inputs, classes, asdict(training), encoding, members=several)
    return Student(network, model)


def _train(
    x: torch.Tensor,
    known: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor | None,
    network: nn.Module,
    training: Training,
    on_step: Callable[[int, int], None],
) -> nn.Module:
    random = torch.Generator().manual_seed(training.seed)
    initialise_student(network, random)
    average = copy.deepcopy(network).eval()
    network.train()
    pace = training.learning_rate
    objective = NETWORKS[training.method](network, average, x, training, random)
    optimizer = torch.optim.AdamW(
        network.parameters(), pace, betas=objective.momenta, weight_decay=training.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        pace,
        total_steps=training.steps,
        pct_start=0.05 if training.steps != 20 else 0.1,  # torch divides by 0.05 * steps - 1
        cycle_momentum=objective.momenta == Objective.momenta,
    )
    labelled, everything = (
        _shuffled(known, training.batch, random),
        _shuffled(torch.arange(len(x)), objective.pool(), random),
    )
    warm_up = int(training.steps * training.warm_up) if objective.unlabelled else training.steps
    for step in range(training.steps):
        batch = next(labelled)
        if step < warm_up:
            loss = F.cross_entropy(network(augment(x[batch], random)), labels[batch], weights)
        else:
            loss = objective.loss(x[batch], labels[batch], weights, x[next(everything)])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        follow(average, network, max(0.01, 1 / (1 + step / 10)))
        if step >= warm_up:
            objective.follow()
        on_step(step + 1, training.steps)
    return average


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
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Loss on the labels of x [B, …], and on the student's own of pool [U, …] where it is sure.

    weights: of the classes of the labels [m], if they count differently. What the averaged network
    predicts for a plain input is the target for the distorted one. After
    Sohn et al., "FixMatch", NeurIPS 2020, with Tarvainen and Valpola's mean teacher.
    """
    with torch.no_grad():
        sure, guess = average(pool).softmax(1).max(1)
    scores = network(augment(torch.cat([x, pool]), random))
    loss = F.cross_entropy(scores[: len(x)], labels, weights)
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
