"""Separate networks as teachers, on the inputs themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn
from torch.func import functional_call, vmap

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.augment import DRAWS, distorted
from terrine_models.features.maps import FeatureMap, PublicData
from terrine_models.features.pixels import prepare
from terrine_models.storage.manifests import CONFIG, FeatureSpec
from terrine_models.teachers.architectures import (
    Architecture,
    build_network,
    default_architecture,
    initialise,
)
from terrine_models.teachers.manifests import (
    PIXEL_BYTES,
    Choose,
    Manifest,
    ShardTeachers,
    StoredEnsemble,
    Trained,
    Voting,
    VotingLimits,
    teacher_kind,
    values_of,
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

    def feature_map(self, data: Dataset, public: PublicData | None) -> FeatureMap | None:
        """None: networks have the inputs themselves."""
        return None

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
    epochs: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    learning_rate: Annotated[float, Field(gt=0)]
    distorted: bool
    """Whether every epoch distorts each image anew."""
    settings = Networks
    per_file = 10
    previewed = False

    def train(self, shards: Shards, run: range) -> Trained:
        """Parameters of a run of k networks, each stacked along axis 0."""
        trained = side_by_side(lambda i: self._fit(*shards.of(i), shards, i), run)
        return {name: torch.stack([t[name] for t in trained]) for name in trained[0]}

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """One after the other on a CPU, side by side on other devices. Raises StoreError.

        On two cores, 250 networks voted four times as fast one after the other. The device alone
        decides: how long private weights take is not measured.
        """
        manifest = stored.manifest
        with torch.device("meta"):
            network = self.built(manifest.input, manifest.classes)
        shapes = {name: tuple(value.shape) for name, value in network.named_parameters()}
        teachers = {name: each.to(device) for name, each in stored.stacked(shapes).items()}
        values = values_of(manifest.input) * PIXEL_BYTES
        block = limits.block(2 * 8 * manifest.teachers + values, 32)
        if device == "cpu":
            return Voting(self.one_by_one(manifest, teachers), block, device)
        together = max(1, limits.memory // block // values)
        return Voting(self.side_by_side(manifest, teachers, together), block, device)

    def built(self, spec: InputSpec, classes: Sequence[str]) -> nn.Module:
        """One untrained network."""
        return build_network(self.architecture, spec, len(classes))

    def one_by_one(self, manifest: Manifest, teachers: Mapping[str, torch.Tensor]) -> Choose:
        """Networks one after the other, frozen and with channels last."""
        networks = []
        for i in range(len(next(iter(teachers.values())))):
            with torch.device("meta"):
                network = self.built(manifest.input, manifest.classes)
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
                network = self.built(manifest.input, manifest.classes)

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
        network = self.built(spec, shards.data.classes)
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
