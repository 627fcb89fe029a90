"""Histograms of oriented gradients: data-independent image features."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

BINS = 12
SMOOTH = (0.2075, 0.5850, 0.2075)  # a Gaussian of 0.7 pixels, cut off after one
LEAST = 1e-3
SMALL, ENLARGED = 20, 28  # images with a side under SMALL pixels are enlarged first


def oriented_gradients(images: torch.Tensor, least: float = LEAST) -> torch.Tensor:
    """Histograms of gradient direction on two scales, of grey images [B, H, W] in [0, 1].

    Images are smoothed a little. Each pixel adds the length of its gradient to the two nearest of
    BINS directions; cells of 4 x 4 pixels every 2 and of 8 x 8 pixels every 4 sum them; each cell
    is scaled to unit length and square-rooted, which makes dot products of features Hellinger
    kernels. Cells below the length `least` stay shorter. After Dalal and Triggs, "Histograms of
    Oriented Gradients for Human Detection", CVPR 2005, but with the sign of the gradient.
    """
    images = images.unsqueeze(1)
    if min(images.shape[2:]) < SMALL:
        size = (ENLARGED, ENLARGED)
        images = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate").squeeze(1)
    side, middle, _ = SMOOTH
    padded = side * (padded[:, 2:] + padded[:, :-2]) + middle * padded[:, 1:-1]
    padded = side * (padded[:, :, 2:] + padded[:, :, :-2]) + middle * padded[:, :, 1:-1]
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    length = torch.sqrt(across * across + down * down).unsqueeze(3)
    turn = torch.atan2(down, across).unsqueeze(3) * (BINS / (2 * torch.pi)) + BINS
    lower = turn.floor()
    upper_share = (turn - lower) * length
    lower_bin = lower.long() % BINS
    votes = images.new_zeros((*across.shape, BINS))
    votes.scatter_(3, lower_bin, length - upper_share)
    votes.scatter_(3, (lower_bin + 1) % BINS, upper_share)
    height, width = (side // 2 * 2 for side in across.shape[1:])
    tall = votes[:, 0:height:2] + votes[:, 1:height:2]
    squares = tall[:, :, 0:width:2] + tall[:, :, 1:width:2]
    fine = _overlapping(squares)
    coarse = _overlapping(fine[:, 0::2, 0::2])
    return torch.cat(
        [torch.sqrt(F.normalize(cells, dim=3, eps=least)).flatten(1) for cells in (fine, coarse)], 1
    )


def _overlapping(blocks: torch.Tensor) -> torch.Tensor:
    """Sums [B, h - 1, w - 1, BINS] over all 2 x 2 neighbourhoods."""
    tall = blocks[:, 1:] + blocks[:, :-1]
    return tall[:, :, 1:] + tall[:, :, :-1]
