"""Random affine and elastic distortions of images. Data-independent, so they cost no privacy."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from terrine_models.data.arrays import InputSpec
from terrine_models.features.pixels import to_images

ROTATION = 15.0  # degrees
SCALE = 0.12
SHEAR = 0.15
SHIFT = 0.09  # of the image's side: 2.5 pixels in 28
ELASTIC = 0.036  # of half the side: 0.5 pixels in 28
COARSE = 4  # elastic displacements are drawn on a COARSE x COARSE lattice and interpolated
DRAWS = 6 + 2 * COARSE * COARSE
"""Uniform draws from [-1, 1] for one distortion."""


def distort(
    images: torch.Tensor, draws: torch.Tensor, rotation: float = ROTATION, elastic: float = ELASTIC
) -> torch.Tensor:
    """Distort `images` [B, C, H, W] by `draws` [B, DRAWS], uniform in [-1, 1].

    `rotation`: the largest angle, in degrees. `elastic`: the largest elastic displacement, as a
    share of half the side.
    """
    rows = len(images)
    angle = draws[:, 0] * math.radians(rotation)
    across = 1 + draws[:, 1] * SCALE
    down = 1 + draws[:, 2] * SCALE
    shear = draws[:, 3] * SHEAR
    cos, sin = torch.cos(angle), torch.sin(angle)
    affine = torch.stack(
        [
            torch.stack([across * cos, across * (shear * cos - sin), 2 * SHIFT * draws[:, 4]], 1),
            torch.stack([down * sin, down * (shear * sin + cos), 2 * SHIFT * draws[:, 5]], 1),
        ],
        1,
    )
    size = list(images.shape)
    grid = F.affine_grid(affine, size, align_corners=False)
    lattice = draws[:, 6:].reshape(rows, 2, COARSE, COARSE) * elastic
    bend = F.interpolate(lattice, size=size[2:], mode="bicubic", align_corners=True)
    return F.grid_sample(
        images, grid + bend.permute(0, 2, 3, 1), mode="bilinear", align_corners=False
    )


def draws_for(seed: int, teacher: int, rows: int) -> torch.Tensor:
    """The draws [rows, DRAWS] of one teacher; they depend on the arguments only."""
    random = np.random.Generator(np.random.Philox(key=np.array([seed, teacher], dtype=np.uint64)))
    return torch.from_numpy(random.random((rows, DRAWS), dtype=np.float32) * 2 - 1)


def distorted(
    x: torch.Tensor,
    draws: torch.Tensor,
    spec: InputSpec,
    rotation: float = ROTATION,
    elastic: float = ELASTIC,
) -> torch.Tensor:
    """Distorted inputs [B, *shape]; what moves in from beyond the edge gets the lowest value."""
    bent = distort(to_images(x - spec.low), draws, rotation, elastic) + spec.low
    return bent.squeeze(1) if x.ndim == 3 else bent.permute(0, 2, 3, 1)
