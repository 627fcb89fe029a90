"""Inputs before anything is fitted to them: the data-independent part of a feature map."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from terrine_models.data.arrays import DataError, InputSpec
from terrine_models.features.arrays import (
    Array,
    namespace,
    to_float,
)
from terrine_models.features.backbones import Backbone
from terrine_models.features.gradients import coloured_gradients, oriented_gradients

Base = Literal["oriented_gradients", "coloured_gradients", "identity", "bins", "texts", "backbone"]
# Pixels of a grey picture's side from which gradients say more than the pixels themselves.
MIN_SIDE = 4
# The same for pictures with several channels.
MIN_COLOURED_SIDE = 8
# Images turned into features at a time: few enough to stay in a processor's cache.
BLOCK_IMAGES = 128


def to_unit(x: Array, inputs: InputSpec) -> Array:
    """Scale inputs from their declared range to [0, 1]."""
    return (to_float(x) - inputs.low) / (inputs.high - inputs.low)


def to_images(x: Array) -> Array:
    """[B, H, W] or [B, H, W, C] to [B, C, H, W]."""
    return x[:, None] if x.ndim == 3 else namespace(x).moveaxis(x, 3, 1)


def prepare(x: Array, inputs: InputSpec) -> Array:
    """Inputs [B, *shape] as networks take them: tables [B, d] in [-1, 1], images [B, C, H, W]."""
    unit = to_unit(x, inputs)
    return unit * 2 - 1 if unit.ndim == 2 else to_images(unit)


def base_features(
    base: Base, x: Array, inputs: InputSpec, backbone: Backbone | None = None
) -> Array:
    """The data-independent part of a map: [B, *shape] to [B, D]. A backbone has its own."""
    return prepared_features(base, prepare(x, inputs)) if backbone is None else backbone(x)


def prepared_features(base: Base, x: Array) -> Array:
    """The same of prepared inputs: rows of tables [B, d], or images [B, C, H, W]."""
    if base == "backbone":
        raise ValueError("the features of a backbone need its model")
    if base == "oriented_gradients":
        return oriented_gradients(x.mean(1))
    if base == "coloured_gradients":
        return coloured_gradients(x)
    return x if x.ndim == 2 else x.reshape(len(x), -1) * 2 - 1


def base_of(inputs: InputSpec) -> Base:
    """Which data-independent features suit such inputs, by their shape alone.

    Rows of tables and pictures of few pixels are taken as they are, other pictures by gradients,
    and those with several channels by gradients and colours.
    """
    if len(inputs.shape) == 1:
        return "identity"
    side, coloured = min(inputs.shape[:2]), math.prod(inputs.shape[2:]) > 1
    if side < (MIN_COLOURED_SIDE if coloured else MIN_SIDE):
        return "identity"
    return "coloured_gradients" if coloured else "oriented_gradients"


def base_size(base: Base, inputs: InputSpec) -> int:
    """How many numbers `base_features` has of an input."""
    size: int = base_features(base, np.zeros((1, *inputs.shape)), inputs).shape[1]
    return size


def check_channels_last(inputs: InputSpec) -> None:
    """Raise DataError for pictures as PyTorch has them, of which gradients would mean nothing."""
    shape = inputs.shape
    if len(shape) == 3 and shape[0] in (1, 3, 4) and min(shape[1:]) > max(shape[0], 3):
        wanted = "x[:, 0]" if shape[0] == 1 else "x.transpose(0, 2, 3, 1)"
        raise DataError(
            f"Inputs of shape {list(shape)} have the channels of their pictures first; expected "
            f"[height, width] or [height, width, channels]. Save {wanted}, of private and public "
            "inputs."
        )
