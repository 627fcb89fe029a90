"""Distorted copies of pictures, by draws that their caller makes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.arrays import (
    Array,
    between,
    like,
    namespace,
    take_last,
    to_int,
    zeros,
)
from terrine_models.features.bases import to_images

Floats = NDArray[np.float32]
ROTATION_DEGREES = 15.0  # degrees
MAX_SCALING = 0.12
MAX_SHEAR = 0.15
MAX_SHIFT = 0.09  # of the image's side: 2.5 pixels in 28
ELASTIC_SHARE = 0.036  # of half the side: 0.5 pixels in 28
LATTICE_SIDE = 4  # elastic displacements are drawn on a square lattice and interpolated
# Uniform draws from [-1, 1] for one distortion.
DRAWS = 6 + 2 * LATTICE_SIDE * LATTICE_SIDE


def distort(images: Array, draws: Array, rotation: float, elastic: float) -> Array:
    """Distort `images` [B, C, H, W] by `draws` [B, DRAWS], uniform in [-1, 1].

    `rotation`: the largest angle, in degrees. `elastic`: the largest elastic displacement, as a
    share of half the side.
    """
    xp, (rows, channels, height, width) = namespace(images), images.shape
    # Of one picture each [B, 1, 1], beside places of pixels: [H, 1] down and [W] across.
    turn, wide, tall, lean, right, low = (draws[:, i, None, None] for i in range(6))
    angle, shear = turn * math.radians(rotation), lean * MAX_SHEAR
    cos, sin = xp.cos(angle), xp.sin(angle)
    down, across = (like(_centres(side), images) for side in (height, width))
    down = down[:, None]
    lattice = draws[:, 6:].reshape(rows, 2, LATTICE_SIDE, LATTICE_SIDE) * elastic
    bend = between(lattice, _cubic(height), _cubic(width))
    scale_across, scale_down = 1 + wide * MAX_SCALING, 1 + tall * MAX_SCALING
    to_right = scale_across * (cos * across + (shear * cos - sin) * down)
    to_low = scale_down * (sin * across + (shear * sin + cos) * down)
    to_right = to_right + 2 * MAX_SHIFT * right + bend[:, 0]
    to_low = to_low + 2 * MAX_SHIFT * low + bend[:, 1]
    # In pixels of the picture with a border of zeros, beyond which there is nothing either.
    to_right = (((to_right + 1) * width - 1) / 2 + 1).clip(0, width + 1)
    to_low = (((to_low + 1) * height - 1) / 2 + 1).clip(0, height + 1)
    first_column, first_row = xp.floor(to_right).clip(max=width), xp.floor(to_low).clip(max=height)
    right_share, low_share = ((to_right - first_column)[:, None], (to_low - first_row)[:, None])
    bordered = zeros((rows, channels, height + 2, width + 2), images)
    bordered[:, :, 1:-1, 1:-1] = images
    flat = bordered.reshape(rows, channels, -1)
    at = to_int(first_row) * (width + 2) + to_int(first_column)

    def pixels(further: int) -> Array:
        found = take_last(flat, at.reshape(rows, 1, -1) + further)
        return found.reshape(rows, channels, height, width)

    upper = pixels(0) * (1 - right_share) + pixels(1) * right_share
    lower = pixels(width + 2) * (1 - right_share) + pixels(width + 3) * right_share
    return upper * (1 - low_share) + lower * low_share


def _centres(pixels: int) -> Floats:
    """Where pixels' centres are, on a side from -1 to 1."""
    return ((2 * np.arange(pixels) + 1) / pixels - 1).astype(np.float32)


# The slope of the cubic by which displacements are interpolated (Keys, 1981).
CUBIC = -0.75


def _cubic(pixels: int) -> Floats:
    """The matrix [pixels, LATTICE_SIDE] of cubic interpolation, whose corners are the lattice's."""
    at = np.arange(pixels) * ((LATTICE_SIDE - 1) / max(pixels - 1, 1))
    first, found = np.floor(at).astype(int), np.zeros((pixels, LATTICE_SIDE), dtype=np.float32)
    for step in range(-1, 3):
        d = np.abs(at - first - step)
        near = (CUBIC + 2) * d**3 - (CUBIC + 3) * d**2 + 1
        far = CUBIC * (d**3 - 5 * d**2 + 8 * d - 4)
        places = (first + step).clip(0, LATTICE_SIDE - 1)
        np.add.at(found, (np.arange(pixels), places), np.where(d <= 1, near, far))
    return found


def draws_for(seed: int, teacher: int, rows: int) -> Floats:
    """The draws [rows, DRAWS] of one teacher; they depend on the arguments only."""
    random = np.random.Generator(np.random.Philox(key=np.array([seed, teacher], dtype=np.uint64)))
    draws: Floats = random.random((rows, DRAWS), dtype=np.float32) * 2 - 1
    return draws


def distorted(
    x: Array,
    draws: Array,
    spec: InputSpec,
    rotation: float = ROTATION_DEGREES,
    elastic: float = ELASTIC_SHARE,
) -> Array:
    """Distorted inputs [B, *shape]; what moves in from beyond the edge gets the lowest value."""
    bent = distort(to_images(x - spec.low), draws, rotation, elastic) + spec.low
    return bent[:, 0] if x.ndim == 3 else namespace(x).moveaxis(bent, 1, 3)
