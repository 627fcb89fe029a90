"""Separate networks as teachers, on the inputs themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from torch.func import functional_call, vmap

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.bases import MIN_SIDE, prepare
from terrine_models.features.distortions import DRAWS, distorted
from terrine_models.features.linear import UNSEEN_CLASS_SCORE
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import SETTINGS_CONFIG, FeatureSpec
from terrine_models.teachers.manifests import (
    SCRATCH_BYTES_PER_VALUE,
    Choose,
    Manifest,
    ShardTeachers,
    StoredEnsemble,
    TeacherSettings,
    Trained,
    Voting,
    VotingLimits,
    teacher_kind,
)
from terrine_models.teachers.shards import Shards
from terrine_protocol.base import Record


class Architecture(Record):
    """A network, and the widths of its hidden layers."""

    name: Literal["mlp", "cnn"]
    hidden: tuple[Annotated[int, Field(ge=1)], ...]


def ridge_head(
    features: torch.Tensor, labels: torch.Tensor, classes: int, ridge: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares on ±1 targets: the weights [m, d] and biases [m] of one head.

    It learns from features [r, d] and labels [r]. The penalty is `ridge` times the mean squared
    length of the centred features, so it has no unit. Where it cannot be solved in float32, as with
    numbers that overflow, the head knows how common classes are and no more: to raise an error
    would be to let one shard decide whether all others learn.
    """
    targets = 2 * F.one_hot(labels, classes).float() - 1
    centre, level = features.mean(0), targets.mean(0)
    centred = features - centre
    records, width = centred.shape
    few = records < width
    # Of few records the equations are as many as these, not as features, and the same is solved.
    gram = (centred @ centred.T if few else centred.T @ centred) / records
    penalty = ridge * gram.trace() / width + 1e-9
    gram.diagonal().add_(penalty)
    goal = (targets - level) / records
    root, failed = torch.linalg.cholesky_ex(gram)
    solved = torch.cholesky_solve(goal if few else centred.T @ goal, root)
    weights = (centred.T @ solved if few else solved).T
    if failed or not weights.isfinite().all():
        return torch.zeros(weights.shape), level
    return weights.contiguous(), level - weights @ centre


def match_priors(
    weights: torch.Tensor, biases: torch.Tensor, priors: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Biases [k, 2] with which heads choose class 1 for the share `priors` [k] of rows [P, d].

    The scores of a small shard vary little, so that unmatched heads would hardly ever leave the
    larger class. `rows` are features of public rows, and a prior is the share of class 1 in the
    head's own shard: nothing else is used. Heads that know one class only are not changed.
    """
    return match_biases((weights[:, 1] - weights[:, 0]) @ rows.T, priors, biases)


def level_biases(
    weights: torch.Tensor, biases: torch.Tensor, known: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Biases [k, m] with which heads choose each class of about as many rows [P, d] as any other.

    Of two classes, exactly half each; of more, the mean score of all is the same. `known`: which
    classes the records of each head have, bool [k, m]; others are never chosen. Heads that know one
    class only are not changed.
    """
    if weights.shape[1] == 2:
        half = torch.where(known.all(1), 0.5, known[:, 1].float())
        return match_priors(weights, biases, half, rows)
    level = -(weights @ rows.mean(0))
    return torch.where(known, level, torch.full_like(level, UNSEEN_CLASS_SCORE))


def match_biases(leads: torch.Tensor, priors: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    """Biases [k, 2] with which teachers choose class 1 on the share `priors` [k] of public rows.

    `leads` [k, P] are by how much each prefers class 1 to class 0 on each row, without a bias.
    Teachers that know one class only keep `biases`.
    """
    rows = leads.shape[1]
    chosen = (priors * rows).round().long().clamp(1, rows - 1)
    around = torch.stack([rows - chosen - 1, rows - chosen], 1)
    half = leads.sort(1).values.gather(1, around).mean(1) / 2
    matched = torch.stack([half, -half], 1)
    one_class = (priors <= 0) | (priors >= 1)
    return torch.where(one_class[:, None], biases, matched)


class MLP(nn.Module):
    """Fully connected layers with ReLU, for tables and for pictures of few pixels."""

    def __init__(self, inputs: InputSpec, classes: int, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [math.prod(inputs.shape), *hidden, classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [B, m] of prepared inputs [B, d] or [B, C, H, W]."""
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        scores: torch.Tensor = self.layers[-1](x)
        return scores


class CNN(nn.Module):
    """Two convolutions and two dense layers, for images; a small version of PATE's teachers."""

    def __init__(self, inputs: InputSpec, classes: int, hidden: Sequence[int]) -> None:
        super().__init__()
        first, second, dense = hidden
        colours = 1 if len(inputs.shape) == 2 else inputs.shape[2]
        small = min(inputs.shape[:2]) < 16
        kernel, padding, lost = (3, 1, 0) if small else (5, 0, 4)
        height, width = (((side - lost) // 2 - lost) // 2 for side in inputs.shape[:2])
        self.conv1 = nn.Conv2d(colours, first, kernel, padding=padding)
        self.conv2 = nn.Conv2d(first, second, kernel, padding=padding)
        self.dense = nn.Linear(second * height * width, dense)
        self.scores = nn.Linear(dense, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [B, m] of prepared inputs [B, C, H, W]."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        scores: torch.Tensor = self.scores(F.relu(self.dense(x.flatten(1))))
        return scores


def default_architecture(inputs: InputSpec) -> Architecture:
    """The network for inputs of this kind: a CNN for images, an MLP for tables and tiny images."""
    if len(inputs.shape) == 1 or min(inputs.shape[:2]) < MIN_SIDE:
        return Architecture(name="mlp", hidden=(32,))
    return Architecture(name="cnn", hidden=(16, 32, 64))


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Uniform He initialisation from `generator`, so that a teacher depends on its seed alone."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.zero_()
            else:
                bound = math.sqrt(6 / parameter[0].numel())
                parameter.uniform_(-bound, bound, generator=generator)


Epochs = Annotated[int, Field(ge=1, description="Passes over a shard.")]
Batch = Annotated[int, Field(ge=1, description="Records in a step.")]
LearningRate = Annotated[
    float, Field(gt=0, allow_inf_nan=False, description="The highest, of SGD with momentum.")
]


@dataclass(frozen=True, config=SETTINGS_CONFIG)
class Networks(TeacherSettings):
    """A network for each teacher, slow: a small CNN for images, an MLP for tables."""

    epochs: Epochs = 100
    batch: Batch = 30
    learning_rate: LearningRate = 0.1
    kind = "networks"

    def teacher(
        self, data: Dataset, features: FeatureSpec | None, public: PublicData | None
    ) -> NetworkTeachers:
        """What the manifest will say: the network that suits the inputs."""
        architecture = default_architecture(data.spec)
        return NetworkTeachers(
            architecture=architecture,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            distorted=architecture.name == "cnn",
        )


@teacher_kind
class NetworkTeachers(ShardTeachers):
    """Networks, as the manifest describes them."""

    kind: Literal["networks"] = "networks"
    features: None = None
    architecture: Architecture
    epochs: Epochs
    batch: Batch
    learning_rate: LearningRate
    distorted: bool
    """Whether every epoch distorts each image anew."""
    settings = Networks
    per_file = 10

    def train(self, shards: Shards, run: range) -> Trained:
        """Parameters of a run of k networks, each stacked along axis 0."""
        trained = side_by_side(lambda i: self._fit(*shards.records_of(i), shards, i), run)
        return {name: torch.stack([t[name] for t in trained]) for name in trained[0]}

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """One after the other on a CPU, side by side on other devices. Raises StoreError.

        On two cores, 250 networks voted four times as fast one after the other. The device alone
        decides: how long private weights take is not measured.
        """
        manifest = stored.manifest
        with torch.device("meta"):
            network = self.build(manifest.input, manifest.classes)
        shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
        teachers = {name: each.to(device) for name, each in stored.stacked(shapes).items()}
        values = manifest.input.size * SCRATCH_BYTES_PER_VALUE
        block = limits.block(2 * 8 * manifest.teachers + values, 32)
        if device == "cpu":
            return Voting(self.one_by_one(manifest, teachers), block, device)
        together = max(1, limits.memory // block // values)
        return Voting(self.side_by_side(manifest, teachers, together), block, device)

    def build(self, spec: InputSpec, classes: Sequence[str]) -> nn.Module:
        """One untrained network."""
        network = {"mlp": MLP, "cnn": CNN}[self.architecture.name]
        return network(spec, len(classes), self.architecture.hidden)

    def one_by_one(self, manifest: Manifest, teachers: Mapping[str, torch.Tensor]) -> Choose:
        """Networks one after the other, frozen and with channels last."""
        networks = []
        for i in range(len(next(iter(teachers.values())))):
            with torch.device("meta"):
                network = self.build(manifest.input, manifest.classes)
            one = {name: tensor[i] for name, tensor in teachers.items()}
            network.load_state_dict(one, assign=True)
            network.requires_grad_(False)
            networks.append(_channels_last(network.eval()))

        def choose(x: torch.Tensor) -> torch.Tensor:
            prepared = prepare(x, manifest.input)
            if prepared.ndim == 4:
                prepared = prepared.contiguous(memory_format=torch.channels_last)
            return torch.stack([network(prepared).argmax(1) for network in networks], 1)

        return choose

    def side_by_side(
        self, manifest: Manifest, teachers: Mapping[str, torch.Tensor], together: int
    ) -> Choose:
        """So many networks at a time."""

        def choose(x: torch.Tensor) -> torch.Tensor:
            with torch.device("meta"):  # one a call: threads may not share it in functional_call
                network = self.build(manifest.input, manifest.classes)

            def one(parameters: dict[str, torch.Tensor], prepared: torch.Tensor) -> torch.Tensor:
                scores: torch.Tensor = functional_call(network, parameters, prepared)
                return scores.argmax(1)

            all_of_them = vmap(one, in_dims=(0, None), out_dims=1, chunk_size=together)
            choices: torch.Tensor = all_of_them(dict(teachers), prepare(x, manifest.input))
            return choices

        return choose

    def _fit(
        self, x: torch.Tensor, y: torch.Tensor, shards: Shards, teacher: int
    ) -> dict[str, torch.Tensor]:
        """SGD with Nesterov momentum; the rate warms up, then falls as a cosine."""
        epochs, batch = self.epochs, self.batch
        generator = torch.Generator().manual_seed(shards.seed * 1_000_003 + teacher)
        spec = shards.data.spec
        network = self.build(spec, shards.data.classes)
        initialise(network, generator)
        optimizer = torch.optim.SGD(
            network.parameters(),
            lr=self.learning_rate,
            momentum=0.9,
            weight_decay=5e-4,
            nesterov=True,
        )
        steps = epochs * -(-len(x) // batch)
        warm = max(1, steps // 10)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min(1.0, (step + 1) / warm) * (1 + math.cos(math.pi * step / steps)) / 2,
        )
        for _ in range(epochs):
            for picked in torch.split(torch.randperm(len(x), generator=generator), batch):
                inputs = x[picked]
                if self.distorted:
                    draws = torch.rand((len(picked), DRAWS), generator=generator) * 2 - 1
                    inputs = distorted(inputs, draws, spec)
                loss = F.cross_entropy(network(prepare(inputs, spec)), y[picked])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
        return {name: value.detach() for name, value in network.named_parameters()}


def _channels_last(network: nn.Module) -> nn.Module:
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network
