"""Inputs as numbers in [0, 1], as images with channels first, and as networks take them."""

from __future__ import annotations

import torch

from terrine_models.data.arrays import InputSpec


def to_unit(x: torch.Tensor, inputs: InputSpec) -> torch.Tensor:
    """Scale inputs from their declared range to [0, 1]."""
    return (x.float() - inputs.low) / (inputs.high - inputs.low)


def to_images(x: torch.Tensor) -> torch.Tensor:
    """[B, H, W] or [B, H, W, C] to [B, C, H, W]."""
    return x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()


def prepare(x: torch.Tensor, inputs: InputSpec) -> torch.Tensor:
    """Inputs [B, *shape] as networks take them: tables [B, d] in [-1, 1], images [B, C, H, W]."""
    unit = to_unit(x, inputs)
    return unit * 2 - 1 if unit.ndim == 2 else to_images(unit)
