"""A network as a student, as in the papers: trained on labels, or on unlabelled images as well."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from terrine_models.data.arrays import InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.pictures import DRAWS, distort, prepare
from terrine_models.storage.manifests import CONFIG
from terrine_models.students.answers import Answers, Ints
from terrine_models.students.models import (
    Regression,
    Student,
    StudentMethod,
    StudentModel,
    Task,
    describe,
)
from terrine_models.students.settings import Training
from terrine_models.teachers.networks import MLP

SMALL = 16  # images with a side under SMALL pixels are not shrunk before the first convolution


@dataclass(frozen=True, config=CONFIG)
class NetworkTraining(Training):
    """Settings of a network's training; the defaults suit tens to hundreds of labels."""

    steps: Annotated[int, Field(ge=1)] = 600
    batch: Annotated[int, Field(ge=1)] = 64
    unlabelled_batch: Annotated[int, Field(ge=1)] = 128
    learning_rate: Annotated[float, Field(gt=0)] = 4e-3
    """The highest, of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    warm_up: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the steps that use labels alone."""


class Edges(nn.Module):
    """Fixed first layer: the strength of edges in each of 8 directions, near each position.

    Nothing here is learned, so that a few hundred labels suffice. After the simple and
    complex cells of Hubel and Wiesel, by way of oriented-gradient histograms.
    """

    DIRECTIONS = 8
    filters: torch.Tensor

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        angles = torch.arange(self.DIRECTIONS) * (2 * math.pi / self.DIRECTIONS)
        across = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]) / 8  # Sobel
        steered = angles.cos()[:, None, None] * across + angles.sin()[:, None, None] * across.T
        self.register_buffer("filters", steered.unsqueeze(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] to [B, 8 C, H / stride, W / stride]."""
        colours = x.shape[1]
        edges = F.conv2d(x, self.filters.repeat(colours, 1, 1, 1), padding=1, groups=colours)
        near = F.avg_pool2d(F.relu(edges), 3, self.stride, padding=1)
        return torch.sqrt(near + 1e-4)


class EdgeCNN(nn.Module):
    """Edges, two convolutions, one dense layer: for images."""

    def __init__(self, inputs: InputSpec, classes: int) -> None:
        super().__init__()
        height, width = inputs.shape[:2]
        colours = inputs.shape[2] if len(inputs.shape) == 3 else 1
        stride = 1 if min(height, width) < SMALL else 2
        channels = Edges.DIRECTIONS * colours
        self.edges = nn.Sequential(Edges(stride), nn.BatchNorm2d(channels))
        self.layers = nn.Sequential(_convolution(channels, 48), _convolution(48, 96))
        with torch.no_grad():
            size = self.layers(self.edges(torch.zeros(1, colours, height, width))).numel()
        self.scores = nn.Linear(size, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What the scores are linear in, [B, d], of prepared images [B, C, H, W]."""
        features: torch.Tensor = self.layers(self.edges(x)).flatten(1)
        return features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [B, m] of prepared images [B, C, H, W]."""
        scores: torch.Tensor = self.scores(self.features(x))
        return scores


def _convolution(channels: int, filters: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1, bias=False),
        nn.BatchNorm2d(filters),
        nn.LeakyReLU(0.1),
        nn.MaxPool2d(2, ceil_mode=True),
    )


def build_network(inputs: InputSpec, classes: int, random: torch.Generator) -> nn.Module:
    """A network for inputs of this kind, with He initialisation from `random`."""
    tables = len(inputs.shape) == 1
    network = MLP(inputs, classes, (64, 32)) if tables else EdgeCNN(inputs, classes)
    initialise(network, random)
    return network


def initialise(network: nn.Module, random: torch.Generator) -> None:
    """He initialisation."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu", generator=random)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class Opponent(Protocol):
    """What a network learns against from unlabelled images, once it has warmed up."""

    def loss(self, x: torch.Tensor, labels: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """Loss of the network on x [B, …] with `labels` [B], and on unlabelled images [U, …]."""

    def follow(self) -> None:
        """Do what is done after each step of the network."""


def labels_to_teach(task: Task, answers: Answers) -> Ints:
    """Labels [N], -1 where there is none; of counts, those of a regression."""
    return Regression.of(task, answers).labels() if answers.noise else answers.labels


class Network(StudentMethod):
    """A network that learns from labels alone."""

    momenta = (0.9, 0.999)
    """Of Adam. Unless they are these, the first is not cycled."""

    @property
    def settings(self) -> NetworkTraining:
        """Those of its training; the usual ones, if none were stated."""
        stated = self.training
        if isinstance(stated, NetworkTraining):
            return stated
        return NetworkTraining(method=stated.method, threshold=stated.threshold)

    def against(
        self, network: nn.Module, x: torch.Tensor, random: torch.Generator
    ) -> Opponent | None:
        """What it learns against: nothing."""
        return None

    def fit(self, task: Task, answers: Answers) -> Student:
        """Train for all steps. Images are distorted at random in every one of them."""
        labels = torch.from_numpy(labels_to_teach(task, answers))

        def train(task: Task) -> Student:
            return self._train(task, labels)

        # The products of a table's small network are slower on several threads than on one.
        return side_by_side(train, [task])[0] if task.is_table else train(task)

    def _train(self, task: Task, labels: torch.Tensor) -> Student:
        training, random = self.settings, torch.Generator().manual_seed(task.seed)
        x = prepare(torch.from_numpy(np.asarray(task.x, dtype=np.float32)), task.spec)
        network = build_network(task.spec, len(task.classes), random)
        average = copy.deepcopy(network).eval()
        network.train()
        opponent = self.against(network, x, random)
        pace, steps = training.learning_rate, training.steps
        optimizer = torch.optim.AdamW(
            network.parameters(), pace, betas=self.momenta, weight_decay=training.weight_decay
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            pace,
            total_steps=steps,
            pct_start=0.05 if steps != 20 else 0.1,  # torch divides by 0.05 * steps - 1
            cycle_momentum=self.momenta == Network.momenta,
        )
        labelled = _shuffled((labels >= 0).nonzero().squeeze(1), training.batch, random)
        everything = _shuffled(torch.arange(len(x)), training.unlabelled_batch, random)
        for step in range(steps):
            batch = next(labelled)
            warm = step < int(steps * training.warm_up)
            if opponent is None or warm:
                loss = F.cross_entropy(network(augment(x[batch], random)), labels[batch])
            else:
                both = augment(torch.cat([x[batch], x[next(everything)]]), random)
                loss = opponent.loss(both[: len(batch)], labels[batch], both[len(batch) :])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            _follow(average, network, max(0.01, 1 / (1 + step / 10)))
            if opponent is not None and not warm:
                opponent.follow()
        how = {**asdict(training), "seed": task.seed}
        model = describe(
            task.spec,
            task.classes,
            how,
            task.encoding,
            architecture="mlp" if task.is_table else "edges",
        )
        return Student(average, model)


def load(model: StudentModel, tensors: Mapping[str, torch.Tensor], where: str) -> nn.Module:
    """Return a saved network."""
    network = build_network(model.input, len(model.classes), torch.Generator())
    network.load_state_dict(tensors)
    return network


def augment(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Images [B, C, H, W] distorted at random; rows of a table [B, d] as they are."""
    if x.ndim == 2:
        return x
    return distort(x, torch.rand(len(x), DRAWS, generator=random) * 2 - 1)


@torch.no_grad()
def _follow(average: nn.Module, network: nn.Module, pace: float) -> None:
    """Move the averaged weights and statistics by the share `pace` towards the network's."""
    for old, new in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, pace)


def _shuffled(rows: torch.Tensor, size: int, random: torch.Generator) -> Iterator[torch.Tensor]:
    """Endless batches of `size`: every row once, in random order, before any is repeated."""
    queue = rows[:0]
    while True:
        while len(queue) < size:
            queue = torch.cat([queue, rows[torch.randperm(len(rows), generator=random)]])
        yield queue[:size]
        queue = queue[size:]
