"""Data-independent features of pictures with several channels: of any number, in any order."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from terrine_models.features.gradients import oriented_gradients

CELLS = 4
"""Cells a side, of which each has its mean colours."""
BINS = 8
"""Levels of a channel's histogram."""
MOST_BANDS = 4
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
    cells = F.adaptive_avg_pool2d(images, CELLS).flatten(1) * 2 - 1
    whole = images.mean((2, 3)) * 2 - 1
    levels = torch.linspace(0, 1, BINS)
    pixels = images.flatten(2).unsqueeze(2)
    shares = (1 - (pixels - levels[:, None].to(pixels)).abs() * (BINS - 1)).clamp(min=0).mean(3)
    return torch.cat([cells / CELLS, whole, shares.sqrt().flatten(1)], 1)


def colours_width(channels: int) -> int:
    """How many of the features, at their end, are colours."""
    return channels * (CELLS * CELLS + 1 + BINS)


def _bands(images: torch.Tensor) -> torch.Tensor:
    """At most MOST_BANDS [B, bands, H, W] of channels [B, C, H, W]."""
    channels = images.shape[1]
    if channels <= MOST_BANDS:
        return images
    groups = torch.tensor_split(images, MOST_BANDS, dim=1)
    return torch.stack([group.mean(1) for group in groups], 1)
