"""Histograms of oriented gradients: data-independent image features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from terrine_models.data.arrays import InputSpec

DIRECTIONS = 12
SMOOTHING = (0.2075, 0.5850, 0.2075)  # a Gaussian of 0.7 pixels, cut off after one
MIN_CELL_LENGTH = 1e-3
SMALL_SIDE_PIXELS = 20
"""Images with a smaller side are enlarged first."""
ENLARGED_SIDE_PIXELS = 28


def oriented_gradients(images: torch.Tensor, least: float = MIN_CELL_LENGTH) -> torch.Tensor:
    """Histograms of gradient direction on two scales, of grey images [B, H, W] in [0, 1].

    Images are smoothed a little. Each pixel adds the length of its gradient to the two nearest of
    DIRECTIONS directions; cells of 4 x 4 pixels every 2 and of 8 x 8 pixels every 4 sum them; each
    cell is scaled to unit length and square-rooted, which makes dot products of features Hellinger
    kernels. Cells below the length `least` stay shorter. After Dalal and Triggs, "Histograms of
    Oriented Gradients for Human Detection", CVPR 2005, but with the sign of the gradient.
    """
    images = images.unsqueeze(1)
    if min(images.shape[2:]) < SMALL_SIDE_PIXELS:
        size = (ENLARGED_SIDE_PIXELS, ENLARGED_SIDE_PIXELS)
        images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate").squeeze(1)
    side, middle, _ = SMOOTHING
    padded = side * (padded[:, 2:] + padded[:, :-2]) + middle * padded[:, 1:-1]
    padded = side * (padded[:, :, 2:] + padded[:, :, :-2]) + middle * padded[:, :, 1:-1]
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    length = torch.sqrt(across * across + down * down).unsqueeze(3)
    turn = torch.atan2(down, across).unsqueeze(3) * (DIRECTIONS / (2 * torch.pi)) + DIRECTIONS
    lower = turn.floor()
    upper_share = (turn - lower) * length
    lower_bin = lower.long() % DIRECTIONS
    votes = images.new_zeros((*across.shape, DIRECTIONS))
    votes.scatter_(3, lower_bin, length - upper_share)
    votes.scatter_(3, (lower_bin + 1) % DIRECTIONS, upper_share)
    height, width = (side // 2 * 2 for side in across.shape[1:])
    tall = votes[:, 0:height:2] + votes[:, 1:height:2]
    squares = tall[:, :, 0:width:2] + tall[:, :, 1:width:2]
    fine = _overlapping(squares)
    coarse = _overlapping(fine[:, 0::2, 0::2])
    return torch.cat(
        [torch.sqrt(F.normalize(cells, dim=3, eps=least)).flatten(1) for cells in (fine, coarse)], 1
    )


def _overlapping(blocks: torch.Tensor) -> torch.Tensor:
    """Sums [B, h - 1, w - 1, DIRECTIONS] over all 2 x 2 neighbourhoods."""
    tall = blocks[:, 1:] + blocks[:, :-1]
    return tall[:, :, 1:] + tall[:, :, :-1]


COLOUR_CELLS = 4
"""Cells a side, of which each has its mean colours."""
COLOUR_LEVELS = 8
"""Levels of a channel's histogram."""
MAX_BANDS = 4
"""Bands between which gradients are computed: of more channels, neighbouring ones are averaged."""
MIN_CONTRAST = 0.5
"""Sum of gradients in a cell below which contrasts are mostly noise of a camera or of JPEG."""


def coloured_gradients(images: torch.Tensor) -> torch.Tensor:
    """Gradients and colours of images [B, C, H, W] in [0, 1].

    First come gradients of lightness and of contrasts between bands, then colours (`colours`).
    Lightness has the features of a grey picture (`oriented_gradients`). A contrast is the
    difference of a band and the mean of those before it: of red, green and blue, green against red
    and blue against both, which are the opponent colours.
    """
    bands = _bands(images)
    gradients = [oriented_gradients(images.mean(1))]
    for band in range(1, bands.shape[1]):
        contrast = bands[:, band] - bands[:, :band].mean(1)
        gradients.append(oriented_gradients(contrast, MIN_CONTRAST))
    return torch.cat([*gradients, colours(images)], 1)


def colours(images: torch.Tensor) -> torch.Tensor:
    """Means of each channel [B, C, H, W], of the whole and of cells, and its histogram.

    Each of the three kinds has about the same weight.
    """
    cells = F.adaptive_avg_pool2d(images, COLOUR_CELLS).flatten(1) * 2 - 1
    whole = images.mean((2, 3)) * 2 - 1
    levels = torch.linspace(0, 1, COLOUR_LEVELS)
    pixels = images.flatten(2).unsqueeze(2)
    shares = (
        (1 - (pixels - levels[:, None].to(pixels)).abs() * (COLOUR_LEVELS - 1)).clamp(min=0).mean(3)
    )
    return torch.cat([cells / COLOUR_CELLS, whole, shares.sqrt().flatten(1)], 1)


def colours_width(channels: int) -> int:
    """How many of the features, at their end, are colours."""
    return channels * (COLOUR_CELLS * COLOUR_CELLS + 1 + COLOUR_LEVELS)


def _bands(images: torch.Tensor) -> torch.Tensor:
    """At most MAX_BANDS [B, bands, H, W] of channels [B, C, H, W]."""
    channels = images.shape[1]
    if channels <= MAX_BANDS:
        return images
    groups = torch.tensor_split(images, MAX_BANDS, dim=1)
    return torch.stack([group.mean(1) for group in groups], 1)


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


ROTATION_DEGREES = 15.0  # degrees
MAX_SCALING = 0.12
MAX_SHEAR = 0.15
MAX_SHIFT = 0.09  # of the image's side: 2.5 pixels in 28
ELASTIC_SHARE = 0.036  # of half the side: 0.5 pixels in 28
LATTICE_SIDE = 4  # elastic displacements are drawn on a square lattice and interpolated
DRAWS = 6 + 2 * LATTICE_SIDE * LATTICE_SIDE
"""Uniform draws from [-1, 1] for one distortion."""


def distort(
    images: torch.Tensor,
    draws: torch.Tensor,
    rotation: float = ROTATION_DEGREES,
    elastic: float = ELASTIC_SHARE,
) -> torch.Tensor:
    """Distort `images` [B, C, H, W] by `draws` [B, DRAWS], uniform in [-1, 1].

    `rotation`: the largest angle, in degrees. `elastic`: the largest elastic displacement, as a
    share of half the side.
    """
    rows = len(images)
    angle = draws[:, 0] * math.radians(rotation)
    across = 1 + draws[:, 1] * MAX_SCALING
    down = 1 + draws[:, 2] * MAX_SCALING
    shear = draws[:, 3] * MAX_SHEAR
    cos, sin = torch.cos(angle), torch.sin(angle)
    affine = torch.stack(
        [
            torch.stack(
                [across * cos, across * (shear * cos - sin), 2 * MAX_SHIFT * draws[:, 4]], 1
            ),
            torch.stack([down * sin, down * (shear * sin + cos), 2 * MAX_SHIFT * draws[:, 5]], 1),
        ],
        1,
    )
    size = list(images.shape)
    grid = F.affine_grid(affine, size, align_corners=False)
    lattice = draws[:, 6:].reshape(rows, 2, LATTICE_SIDE, LATTICE_SIDE) * elastic
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
    rotation: float = ROTATION_DEGREES,
    elastic: float = ELASTIC_SHARE,
) -> torch.Tensor:
    """Distorted inputs [B, *shape]; what moves in from beyond the edge gets the lowest value."""
    bent = distort(to_images(x - spec.low), draws, rotation, elastic) + spec.low
    return bent.squeeze(1) if x.ndim == 3 else bent.permute(0, 2, 3, 1)


Base = Literal["oriented_gradients", "coloured_gradients", "identity", "bins", "texts", "backbone"]
MIN_LEAD_STANDARD_ERRORS = 2.0
MIN_LEAD_OF_PIXELS = 0.02
"""Share of the answers on which pixels must agree more than gradients do: gradients gain from
distorted copies as well, which a plain regression does not see."""
PENALTIES = tuple(10.0**power for power in range(-5, 2))
"""Of a regression, relative to the variance of all features together."""


@dataclass(frozen=True)
class View:
    """What pictures are taken as."""

    base: Base
    colours: float = 1.0
    """How much colours count, of what makes them vary as much as gradients."""


def best_view(points: Mapping[View, torch.Tensor], shares: torch.Tensor) -> View:
    """Return the view whose features [N, C] tell most of shares [N, m], which may be noisy.

    The first is the usual one: another must be better by two standard errors, and pixels by two
    points of agreement as well.
    """
    usual, *others = points
    best, said = usual, held_out(points[usual], shares)
    for view in others:
        own = held_out(points[view], shares)
        gains = ((said - shares) ** 2 - (own - shares) ** 2).sum(1)
        clear = float(gains.mean()) > MIN_LEAD_STANDARD_ERRORS * float(
            gains.std() / len(gains) ** 0.5
        )
        least = MIN_LEAD_OF_PIXELS if view.base == "identity" else 0.0
        if clear and _agreement(own, shares) - _agreement(said, shares) >= least:
            best, said = view, own
    return best


def held_out(points: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return what ridge regressions say [N, m] of each row, fitted to all others.

    Of points [N, C] and shares [N, m]; with the penalty for which they are nearest to the shares.
    """
    x = points.double() - points.double().mean(0)
    level = shares.mean(0)
    left, values, _ = torch.linalg.svd(x, full_matrices=False)
    turned = left.T @ (shares - level)
    best, least = level.expand_as(shares), float("inf")
    for penalty in PENALTIES:
        kept = values**2 / (values**2 + penalty * (values**2).sum())
        fitted = level + left @ (kept[:, None] * turned)
        leverage = (left**2 @ kept + 1 / len(x)).clamp(max=1 - 1e-6)
        said = shares - (shares - fitted) / (1 - leverage[:, None])
        missed = float(((said - shares) ** 2).mean())
        if missed < least:
            best, least = said, missed
    return best


def _agreement(said: torch.Tensor, shares: torch.Tensor) -> float:
    return float(shares.gather(1, said.argmax(1, keepdim=True)).mean())
