"""What one teacher is: a ridge head on public features, an MLP or a small CNN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from pydantic import Field
from torch import nn

from terrine_models.data.arrays import InputSpec
from terrine_models.features.maps import MIN_SIDE
from terrine_protocol.tables import Record


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
    gram = centred.T @ centred / len(features)
    cross = centred.T @ (targets - level) / len(features)
    diagonal = gram.diagonal()
    diagonal += ridge * diagonal.mean() + 1e-9
    root, failed = torch.linalg.cholesky_ex(gram)
    weights = torch.cholesky_solve(cross, root).T
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
    return matched_biases((weights[:, 1] - weights[:, 0]) @ rows.T, priors, biases)


def matched_biases(leads: torch.Tensor, priors: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
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


def build_network(architecture: Architecture, inputs: InputSpec, classes: int) -> nn.Module:
    """One untrained network."""
    return {"mlp": MLP, "cnn": CNN}[architecture.name](inputs, classes, architecture.hidden)


def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Uniform He initialisation from `generator`, so that a teacher depends on its seed alone."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.zero_()
            else:
                bound = math.sqrt(6 / parameter[0].numel())
                parameter.uniform_(-bound, bound, generator=generator)
