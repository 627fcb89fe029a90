"""Histograms of oriented gradients: data-independent image features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.features.arrays import (
    Array,
    like,
    namespace,
    put_last,
    take_last,
    to_float,
    to_int,
    unit_length,
    zeros,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
DIRECTIONS = 12
SMOOTHING = (0.2075, 0.5850, 0.2075)  # a Gaussian of 0.7 pixels, cut off after one
MIN_CELL_LENGTH = 1e-3
SMALL_SIDE_PIXELS = 20
"""Images with a smaller side are enlarged first."""
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
            images = _enlarged(images, axis)
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


def _between(images: Array, rows: Floats, columns: Floats) -> Array:
    """Images [..., H, W] as rows · image · columnsᵀ."""
    return like(rows, images) @ images @ like(columns, images).T


def enlarging(pixels: int) -> tuple[Ints, Ints, Floats]:
    """How a side of so many becomes ENLARGED_SIDE_PIXELS, by linear interpolation.

    For each the number of the pixel before it, of the one after it, and how far it is from the
    first to the second. Places where nothing changes stay exactly as even as they are.
    """
    at = (np.arange(ENLARGED_SIDE_PIXELS) + 0.5) * (pixels / ENLARGED_SIDE_PIXELS) - 0.5
    at = at.clip(0, pixels - 1)
    before = np.floor(at).astype(np.int64)
    return before, (before + 1).clip(max=pixels - 1), (at - before).astype(np.float32)


def _enlarged(images: Array, axis: int) -> Array:
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


COLOUR_CELLS = 4
"""Cells a side, of which each has its mean colours."""
COLOUR_LEVELS = 8
"""Levels of a channel's histogram."""
MAX_BANDS = 4
"""Bands between which gradients are computed: of more channels, neighbouring ones are averaged."""
MIN_CONTRAST = 0.5
"""Sum of gradients in a cell below which contrasts are mostly noise of a camera or of JPEG."""


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
    cells = _between(images, *map(averaging, images.shape[2:])).reshape(len(images), -1) * 2 - 1
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


ROTATION_DEGREES = 15.0  # degrees
MAX_SCALING = 0.12
MAX_SHEAR = 0.15
MAX_SHIFT = 0.09  # of the image's side: 2.5 pixels in 28
ELASTIC_SHARE = 0.036  # of half the side: 0.5 pixels in 28
LATTICE_SIDE = 4  # elastic displacements are drawn on a square lattice and interpolated
DRAWS = 6 + 2 * LATTICE_SIDE * LATTICE_SIDE
"""Uniform draws from [-1, 1] for one distortion."""


def distort(
    images: Array,
    draws: Array,
    rotation: float = ROTATION_DEGREES,
    elastic: float = ELASTIC_SHARE,
) -> Array:
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
    bend = _between(lattice, _cubic(height), _cubic(width))
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


CUBIC = -0.75
"""The slope of the cubic by which displacements are interpolated (Keys, 1981)."""


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


Base = Literal["oriented_gradients", "coloured_gradients", "identity", "bins", "backbone"]
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


def best_view(points: Mapping[View, NDArray[Any]], shares: NDArray[np.float64]) -> View:
    """Return the view whose features [N, C] tell most of shares [N, m], which may be noisy.

    The first is the usual one: another must be better by two standard errors, and pixels by two
    points of agreement as well.
    """
    usual, *others = points
    best, said = usual, held_out(points[usual], shares)
    for view in others:
        own = held_out(points[view], shares)
        gains = ((said - shares) ** 2 - (own - shares) ** 2).sum(1)
        error = float(gains.std(ddof=1)) / len(gains) ** 0.5
        least = MIN_LEAD_OF_PIXELS if view.base == "identity" else 0.0
        clear = float(gains.mean()) > MIN_LEAD_STANDARD_ERRORS * error
        if clear and _agreement(own, shares) - _agreement(said, shares) >= least:
            best, said = view, own
    return best


def held_out(points: NDArray[Any], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what ridge regressions say [N, m] of each row, fitted to all others.

    Of points [N, C] and shares [N, m]; with the penalty for which they are nearest to the shares.
    """
    x = points.astype(np.float64)
    x -= x.mean(axis=0)
    level = shares.mean(axis=0)
    left, values, _ = np.linalg.svd(x, full_matrices=False)
    turned, squares = left.T @ (shares - level), values**2
    best, least = np.broadcast_to(level, shares.shape), math.inf
    for penalty in PENALTIES:
        kept = squares / (squares + penalty * squares.sum())
        fitted = level + left @ (kept[:, None] * turned)
        leverage = np.minimum(left**2 @ kept + 1 / len(x), 1 - 1e-6)
        said = shares - (shares - fitted) / (1 - leverage[:, None])
        missed = float(((said - shares) ** 2).mean())
        if missed < least:
            best, least = said, missed
    return best


def _agreement(said: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    return float(shares[np.arange(len(shares)), said.argmax(axis=1)].mean())
