"""What grey and coloured pictures become without any data: gradients and colours."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from terrine_models.features.arrays import (
    Array,
    between,
    like,
    namespace,
    put_last,
    to_int,
    unit_length,
    zeros,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
DIRECTIONS = 12
SMOOTHING = (0.2075, 0.5850, 0.2075)  # a Gaussian of 0.7 pixels, cut off after one
MIN_CELL_LENGTH = 1e-3
# Images with a smaller side are enlarged first.
SMALL_SIDE_PIXELS = 20
ENLARGED_SIDE_PIXELS = 28


def oriented_gradients(images: Array, least: float = MIN_CELL_LENGTH) -> Array:
    """Histograms of gradient direction on two scales, of grey images [B, H, W] in [0, 1].

    Images are smoothed a little. Each pixel adds the length of its gradient to the two nearest of
    DIRECTIONS directions; cells of 4 x 4 pixels every 2 and of 8 x 8 pixels every 4 sum them; each
    cell is scaled to unit length and square-rooted, which makes dot products of features Hellinger
    kernels. Cells below the length `least` stay shorter. After Dalal and Triggs, "Histograms of
    Oriented Gradients for Human Detection", CVPR 2005, but with the sign of the gradient.
    """
    xp = namespace(images)
    if min(images.shape[1:]) < SMALL_SIDE_PIXELS:
        for axis in (1, 2):
            images = _enlarge(images, axis)
    padded = images
    for axis in (1, 2):
        padded = _with_edges(padded, axis)
    side, middle, _ = SMOOTHING
    padded = side * (padded[:, 2:] + padded[:, :-2]) + middle * padded[:, 1:-1]
    padded = side * (padded[:, :, 2:] + padded[:, :, :-2]) + middle * padded[:, :, 1:-1]
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    length = xp.sqrt(across * across + down * down)[..., None]
    turn = xp.arctan2(down, across)[..., None] * (DIRECTIONS / (2 * math.pi)) + DIRECTIONS
    lower = xp.floor(turn)
    upper_share = (turn - lower) * length
    lower_bin = to_int(lower) % DIRECTIONS
    votes = zeros((*across.shape, DIRECTIONS), images)
    put_last(votes, lower_bin, length - upper_share)
    put_last(votes, (lower_bin + 1) % DIRECTIONS, upper_share)
    height, width = (side // 2 * 2 for side in across.shape[1:])
    tall = votes[:, 0:height:2] + votes[:, 1:height:2]
    squares = tall[:, :, 0:width:2] + tall[:, :, 1:width:2]
    fine = _overlapping(squares)
    coarse = _overlapping(fine[:, 0::2, 0::2])
    return xp.concatenate(
        [
            xp.sqrt(unit_length(cells, 3, least)).reshape(len(images), -1)
            for cells in (fine, coarse)
        ],
        1,
    )


def _with_edges(images: Array, axis: int) -> Array:
    """Images [B, H, W] with two more pixels on both sides of an axis, as those at the edge."""
    first, last = ((slice(None),) * axis + (each,) for each in (slice(0, 1), slice(-1, None)))
    parts = [images[first]] * 2 + [images] + [images[last]] * 2
    return namespace(images).concatenate(parts, axis)


def enlarging(pixels: int) -> tuple[Ints, Ints, Floats]:
    """How a side of so many becomes ENLARGED_SIDE_PIXELS, by linear interpolation.

    For each the number of the pixel before it, of the one after it, and how far it is from the
    first to the second. Places where nothing changes stay exactly as even as they are.
    """
    at = (np.arange(ENLARGED_SIDE_PIXELS) + 0.5) * (pixels / ENLARGED_SIDE_PIXELS) - 0.5
    at = at.clip(0, pixels - 1)
    before = np.floor(at).astype(np.int64)
    return before, (before + 1).clip(max=pixels - 1), (at - before).astype(np.float32)


def _enlarge(images: Array, axis: int) -> Array:
    found = enlarging(images.shape[axis])
    before, after, share = (like(each, images) for each in found)
    if axis == 1:
        first, second, share = images[:, before], images[:, after], share[:, None]
    else:
        first, second = images[:, :, before], images[:, :, after]
    return first + (second - first) * share


def _overlapping(blocks: Array) -> Array:
    """Sums [B, h - 1, w - 1, DIRECTIONS] over all 2 x 2 neighbourhoods."""
    tall = blocks[:, 1:] + blocks[:, :-1]
    return tall[:, :, 1:] + tall[:, :, :-1]


# Cells a side, of which each has its mean colours.
COLOUR_CELLS = 4
# Levels of a channel's histogram.
COLOUR_LEVELS = 8
# Bands between which gradients are computed: of more channels, neighbouring ones are averaged.
MAX_BANDS = 4
# Sum of gradients in a cell below which contrasts are mostly noise of a camera or of JPEG.
MIN_CONTRAST = 0.5


def coloured_gradients(images: Array) -> Array:
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
    return namespace(images).concatenate([*gradients, colours(images)], 1)


def colours(images: Array) -> Array:
    """Means of each channel [B, C, H, W], of the whole and of cells, and its histogram.

    Each of the three kinds has about the same weight.
    """
    cells = between(images, *map(averaging, images.shape[2:])).reshape(len(images), -1) * 2 - 1
    whole = images.mean((2, 3)) * 2 - 1
    levels = like(np.linspace(0, 1, COLOUR_LEVELS, dtype=np.float32)[:, None], images)
    apart = abs(images.reshape(*images.shape[:2], 1, -1) - levels) * (COLOUR_LEVELS - 1)
    shares = (1 - apart).clip(min=0).mean(3) ** 0.5
    parts = [cells / COLOUR_CELLS, whole, shares.reshape(len(images), -1)]
    return namespace(images).concatenate(parts, 1)


def averaging(pixels: int) -> Floats:
    """The matrix [COLOUR_CELLS, pixels] of means over cells; they overlap where they must."""
    cells, place = np.arange(COLOUR_CELLS)[:, None], np.arange(pixels)
    inside = place >= cells * pixels // COLOUR_CELLS
    inside &= place < -(-(cells + 1) * pixels // COLOUR_CELLS)
    found: Floats = (inside / inside.sum(axis=1, keepdims=True)).astype(np.float32)
    return found


def colours_width(channels: int) -> int:
    """How many of the features, at their end, are colours."""
    return channels * (COLOUR_CELLS * COLOUR_CELLS + 1 + COLOUR_LEVELS)


def _bands(images: Array) -> Array:
    """At most MAX_BANDS [B, bands, H, W] of channels [B, C, H, W]."""
    channels = images.shape[1]
    if channels <= MAX_BANDS:
        return images
    groups = np.array_split(np.arange(channels), MAX_BANDS)
    means = [images[:, own[0] : own[-1] + 1].mean(1) for own in groups]
    return namespace(images).stack(means, 1)
