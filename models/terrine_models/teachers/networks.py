"""Separate networks as teachers, on the inputs themselves."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pydantic import Field
from pydantic.dataclasses import dataclass

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.augment import DRAWS, distorted
from terrine_models.features.maps import FeatureMap, PublicData
from terrine_models.features.prepared import prepare
from terrine_models.storage.manifests import (
    CONFIG,
    Architecture,
    EnsemblePlan,
    FeatureSpec,
    TeacherTraining,
)
from terrine_models.teachers.architectures import (
    build_network,
    default_architecture,
    initialise,
)
from terrine_models.teachers.shards import Shards


@dataclass(frozen=True, config=CONFIG)
class Networks:
    """A network for each teacher, slow: a small CNN for images, an MLP for tables."""

    epochs: Annotated[int, Field(ge=1, description="Passes over a shard.")] = 100
    batch: Annotated[int, Field(ge=1, description="Records in a step.")] = 30
    learning_rate: Annotated[
        float, Field(gt=0, allow_inf_nan=False, description="The highest, of SGD with momentum.")
    ] = 0.1
    kind = "networks"
    per_file = 10
    packages = ()

    def architecture(self, inputs: InputSpec) -> Architecture:
        """The network that suits the inputs."""
        return default_architecture(inputs)

    def training(
        self, data: Dataset, seed: int, features: FeatureSpec | None, public: PublicData | None
    ) -> TeacherTraining:
        """What the manifest records."""
        return TeacherTraining(
            seed=seed,
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            distorted=len(data.spec.shape) > 1,
        )

    def feature_map(self, data: Dataset, public: PublicData | None) -> FeatureMap | None:
        """None: networks have the inputs themselves."""
        return None

    def train(self, shards: Shards, run: range) -> dict[str, torch.Tensor]:
        """Parameters of a run of k networks, each stacked along axis 0."""
        trained = side_by_side(lambda i: _train_network(*shards.of(i), i, shards.plan), run)
        return {name: torch.stack([t[name] for t in trained]) for name in trained[0]}


def _train_network(
    x: torch.Tensor, y: torch.Tensor, teacher: int, plan: EnsemblePlan
) -> dict[str, torch.Tensor]:
    """SGD with Nesterov momentum; the rate warms up, then falls as a cosine."""
    settings = plan.training
    epochs, batch = settings.epochs or 0, settings.batch or 0
    generator = torch.Generator().manual_seed((settings.seed or 0) * 1_000_003 + teacher)
    network = build_network(plan.architecture, plan.input, len(plan.classes))
    initialise(network, generator)
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=settings.learning_rate or 0.0,
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
            if settings.distorted:
                draws = torch.rand((len(picked), DRAWS), generator=generator) * 2 - 1
                inputs = distorted(inputs, draws, plan.input)
            loss = F.cross_entropy(network(prepare(inputs, plan.input)), y[picked])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return {name: value.detach() for name, value in network.named_parameters()}
