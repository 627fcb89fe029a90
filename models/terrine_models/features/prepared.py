"""Inputs as networks take them, and the small network for the rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from terrine_models.data.arrays import InputSpec
from terrine_models.features.pixels import to_images, to_unit


def prepare(x: torch.Tensor, inputs: InputSpec) -> torch.Tensor:
    """Inputs [B, *shape] as networks take them: tables [B, d] in [-1, 1], images [B, C, H, W]."""
    unit = to_unit(x, inputs)
    return unit * 2 - 1 if unit.ndim == 2 else to_images(unit)


class MLP(nn.Module):
    """Fully connected layers with ReLU, for tables."""

    def __init__(self, inputs: InputSpec, classes: int, hidden: Sequence[int]) -> None:
        super().__init__()
        sizes = [inputs.shape[0], *hidden, classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [B, m] of prepared inputs [B, d]."""
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        scores: torch.Tensor = self.layers[-1](x)
        return scores
