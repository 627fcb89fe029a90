"""Public feature maps: data-independent, or fitted on data that its owner declared public.

Nothing in this module is fitted on a private data set. A map can only be fitted on `PublicData`,
and the only way to make one is to give public data a name: `PublicData.declare`.
Teachers' heads on top of such a map are private; the map is not, and so it costs no privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr
from scipy.special import betainc, betaincinv

from terrine_models.addons import load_added
from terrine_models.data.arrays import DataError, Dataset, InputSpec, find_outside, row_digests
from terrine_models.data.workers import side_by_side
from terrine_models.features import linear
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
from terrine_models.features.linear import (
    DISCRIMINANT_COMPONENTS,
    DISTORTED_COPIES,
    choose_landmarks,
    discriminant,
    embed,
    extend,
    nystrom,
)
from terrine_models.features.texts import (
    fit_texts,
    other_columns,
    text_features,
    text_shapes,
)
from terrine_models.storage.manifests import (
    BACKBONE_FILE,
    FEATURES_FILE,
    FeatureSpec,
    PublicModel,
    StoreError,
    save_tensors,
)
from terrine_protocol.files import write_atomically
from terrine_protocol.schema import PublicSource

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


def best_view(points: Mapping[View, NDArray[Any]], shares: NDArray[np.float64]) -> View:
    """Return the view whose features [N, C] tell most of shares [N, m], which may be noisy.

    The first is the usual one: another must be better by two standard errors, and pixels by two
    points of agreement as well.
    """
    usual, *others = points
    best, said = usual, predict_held_out(points[usual], shares)
    for view in others:
        own = predict_held_out(points[view], shares)
        gains = ((said - shares) ** 2 - (own - shares) ** 2).sum(1)
        error = float(gains.std(ddof=1)) / len(gains) ** 0.5
        least = MIN_LEAD_OF_PIXELS if view.base == "identity" else 0.0
        clear = float(gains.mean()) > MIN_LEAD_STANDARD_ERRORS * error
        if clear and _agreement(own, shares) - _agreement(said, shares) >= least:
            best, said = view, own
    return best


def predict_held_out(points: NDArray[Any], shares: NDArray[np.float64]) -> NDArray[np.float64]:
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


class Backbone(Protocol):
    """A checked model, with the bytes of its file."""

    @property
    def data(self) -> bytes:
        """The bytes of its file."""

    @property
    def source(self) -> PublicModel:
        """What a manifest says of it."""

    @classmethod
    def declare(cls, path: Path, inputs: InputSpec) -> Self:
        """State that the model at `path` is public, and check it. Raises StoreError."""

    @classmethod
    def load(cls, directory: Path, source: PublicModel) -> Self:
        """The backbone of a trained ensemble. Raises StoreError if its file is altered."""

    @classmethod
    def of_bytes(cls, data: bytes, source: PublicModel) -> Self:
        """A backbone of the bytes of its file, which were verified."""

    @staticmethod
    def check(directory: Path, source: PublicModel, inputs: InputSpec) -> None:
        """Check an ensemble's backbone once more, in a process of its own. Raises StoreError."""

    def __call__(self, x: Array) -> Array:
        """Embeddings [B, D] in float32 of inputs [B, *shape], each row by itself."""


def backbones() -> type[Backbone]:
    """The class of backbones. Raises StoreError if no add-on has one."""
    found: type[Backbone] | None = next(load_added("backbones"), None)
    if found is None:
        raise StoreError(
            "A backbone needs an add-on that runs it, and this installation of Terrine has none."
        )
    return found


Kind = Literal["graph", "fine_graph", "nystrom", "discriminant"]
"""What is fitted on public images: components and graph coordinates, a kernel's landmarks, or
directions in which classes differ (`linear.discriminant`)."""
KERNEL_COMPONENTS = 150
"""Principal components among which a kernel measures distances."""
FINE_GRAPH_POWER = 0.5
"""Power of `linear.embed` for a fine graph. Chosen, with its width, on Fashion-MNIST's training
images: 100 coordinates with this power 84.1 % right at ε = 1, 50 with a power of 1 83.7 %."""
MIN_SIDE = 4
"""Pixels of a grey picture's side from which gradients say more than the pixels themselves."""
MIN_COLOURED_SIDE = 8
"""The same for pictures with several channels."""
COLOUR_WEIGHT = 5.0
"""Of colours against gradients, where there are no public pictures to judge by."""
COLOUR_SHARES = (1.0, 0.5, 0.0)
"""How much colours may count, where labels or answers tell: 0 if they only distract. Else they
count most: where colours are classes, they are all that is worth knowing."""
MAX_JUDGED_PICTURES = 2000
"""Public pictures by which views are judged, at most."""
MAX_COLOUR_WEIGHT = 100.0
"""Of colours against gradients, at most: what varies less than that makes up for is noise."""
BLOCK_IMAGES = 128
"""Images turned into features at a time: few enough to stay in a processor's cache."""
MAX_BINNED_ROWS = 100_000
"""The most public rows of a table on which bins are fitted: of more, every second, third, ….
Quantiles of that many are near enough, and bins take several times the memory of the columns."""
MAX_TEXT_ROWS = 20_000
"""The same of rows with texts, whose principal components are sought."""
TEXT_VARIANCE_SHARE = 0.5
"""Variance of a text beside that of all other columns: it may say more than they, or nothing."""
MAX_SHARED = 0.01
"""Share of the different public rows that may be private ones as well, however seldom rows
repeat."""
MAX_FALSE_REFUSALS = 1e-4
"""How often independent public rows may be refused as private ones."""
MIN_GRAPH_POINTS, MAX_GRAPH_POINTS = 200, 10_000
"""The fewest public inputs for which there is a graph, and the most that it contains."""


@dataclass(frozen=True)
class PublicData:
    """Inputs [N, *shape] that anyone may see. Make one with `declare`."""

    inputs: NDArray[Any]
    source: PublicSource
    groups: NDArray[np.int64] | None = None
    """[N], the number of each row's person; None if that is not known."""
    labels: NDArray[np.int64] | None = None
    """[N], the class of each row; None if that is not known."""

    @classmethod
    def declare(
        cls,
        name: str,
        inputs: NDArray[np.generic],
        groups: NDArray[np.int64] | None = None,
        labels: NDArray[np.int64] | None = None,
    ) -> PublicData:
        """State that `inputs` [N, *shape] are public, under a name that the manifest will show.

        `groups`: whose they are, [N], if people have several. `labels`: their classes, [N], also
        public: of colour pictures they show how much colours matter.
        """
        if not name.strip():
            raise DataError("Public data needs a name, so that its use can be checked later.")
        if inputs.ndim < 2 or len(inputs) == 0:
            raise DataError(f"Public data {name} holds no inputs; its shape is {inputs.shape}.")
        for what, each in (("group", groups), ("label", labels)):
            if each is not None and each.shape != (len(inputs),):
                raise DataError(f"Public data {name}: expected one {what} for each of its rows.")
        inputs = np.ascontiguousarray(inputs)
        digest = hashlib.sha256(f"{inputs.dtype.str}{inputs.shape}".encode())
        digest.update(inputs.data)
        source = PublicSource(name=name, sha256=digest.hexdigest(), records=len(inputs))
        return cls(inputs, source, groups, labels)

    def check_fits(self, spec: InputSpec) -> None:
        """Raise DataError unless these are inputs such as the private ones."""
        name, inputs = self.source.name, self.inputs
        if inputs.shape[1:] != spec.shape:
            raise DataError(
                f"Public data {name} has inputs of shape {inputs.shape[1:]}, the private data of "
                f"shape {spec.shape}."
            )
        if inputs.dtype != spec.dtype:
            raise DataError(
                f"Public data {name} has dtype {inputs.dtype}, the private data {spec.dtype}."
            )
        if len(find_outside(inputs, spec)):
            raise DataError(
                f"Public data {name} has values outside the declared range [{spec.low:g}, "
                f"{spec.high:g}]."
            )

    def count_private_rows(self, private: Dataset) -> int:
        """Return how many of these rows are private ones as well, for the owner's eyes alone.

        Raises DataError if they are too many for chance: most likely the private file was given as
        the public one. One in a hundred different public rows may be private. More are compared
        with what independent rows would be: private as often as those of as many private people are
        others' too, or as public rows repeat. That is refused which would be as rare as
        `MAX_FALSE_REFUSALS`, for the highest such share that the private rows do not rule out, and
        with twice as many private rows like each. Where all are expected among the private ones, a
        mix-up looks like chance.

        Rows are compared as they are encoded: numbers outside a schema's range are those at its
        ends, and count as two different values at most.
        """
        self.check_fits(private.spec)
        own, others = row_digests(self.inputs), row_digests(private.inputs)
        rows, copies = np.unique(own, return_counts=True)
        trials, shared = len(rows), int(np.isin(rows, others).sum())
        by_public = -np.expm1(-(len(private) / len(own)) * (copies - 1))
        by_private = _chance_of_equal(others, private.groups, len(own))
        chance = max(by_private, float(by_public.mean()))
        if shared > MAX_SHARED * trials and (
            betainc(shared, trials - shared + 1, chance) < MAX_FALSE_REFUSALS / 2
        ):
            raise DataError(
                f"{np.isin(own, others).sum():,} of {len(own):,} rows of the public data "
                f"{self.source.name} are rows of the private data, more than by chance: was the "
                "private file given as the public one? Nothing may be fitted on private rows: use "
                "data that is really public, or none."
            )
        return int(np.isin(own, others).sum())


class FeatureMap:
    """Turns inputs [B, *shape] into features [B, width].

    Arrays of NumPy with the map as it is fitted; tensors of PyTorch after `to`.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        inputs: InputSpec,
        tensors: Mapping[str, Array],
        backbone: Backbone | None = None,
    ) -> None:
        self.spec = spec
        self.inputs = inputs
        self.backbone = backbone
        self.tensors = dict(tensors)
        """`mean` [D] and `basis` [D, components] of a projection; of a graph also `points`
        [N, components], `scales` [N] and `coordinates` [N, coordinates]; of nystrom also
        `landmarks` [L, components] and `whitening` [L, L]; of discriminant also `between`
        [components]; of bins, `linear.Bins`, and of texts those of `texts.fit_texts`."""

    def __call__(self, x: Array) -> Array:
        """Features [B, width] in float32 of inputs [B, *shape] in any dtype."""
        return self.of_base(base_features(self.spec.base, x, self.inputs, self.backbone))

    def of_block(self, x: Array, size: int) -> Array:
        """Features [size, width] of inputs [B, *shape] and of rows of zeros after them.

        Products round by their size, so what one person's records round to depends on no other's
        if the size is always the same. A backbone is asked about the B alone: it has no blocks.
        """
        if self.backbone is not None:
            return self.of_base(_fill_up(self.backbone(x), size))
        return self(_fill_up(x, size))

    def of_base(self, base: Array, *, skip: int = 0) -> Array:
        """Features [B, width] of the data-independent ones [B, D] (`base_features`).

        `skip` as in `linear.extend`.
        """
        if self.spec.projection == "none":
            return base
        if self.spec.projection == "nystrom":
            landmarks, whitening = (self.tensors[name] for name in ("landmarks", "whitening"))
            return nystrom(self.projected(base), landmarks, whitening, self.spec.gamma or 0.0)
        if self.spec.projection == "discriminant":
            return self.projected(base)
        if self.spec.base == "bins":
            return self.projected(linear.Bins(self.tensors)(base))
        if self.spec.base == "texts":
            found = text_features(base, self.inputs, self.tensors)
            if self.spec.steps + self.spec.ranks:
                others = base[:, like(other_columns(self.inputs), base)]
                binned = self.projected(linear.Bins(self.tensors)(others))
                found = namespace(base).concatenate([binned, found], 1)
            if not self.spec.points:
                return found
            along = self._along_graph(unit_length(found, 1), skip)
            return namespace(base).concatenate([found, along], 1)
        points = unit_length(self.projected(base), 1)
        if self.spec.projection != "graph":
            return points
        return namespace(base).concatenate([points, self._along_graph(points, skip)], 1)

    def _along_graph(self, points: Array, skip: int) -> Array:
        """Coordinates of points of unit length on the public graph."""
        known = (self.tensors[name] for name in ("points", "scales", "coordinates"))
        return extend(points, *known, skip=skip)

    def projected(self, base: Array) -> Array:
        """What the basis makes of data-independent features, or bins, [B, D]: [B, components]."""
        return _project(base, self.tensors)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes that the tensors must have."""
        if self.spec.projection == "none":
            return {}
        spec = self.spec
        if spec.base == "bins":
            return linear.shapes(spec.steps, spec.ranks, spec.components)
        if spec.base == "texts":
            known = spec.texts or ()
            bins = linear.shapes(spec.steps, spec.ranks, spec.components - sum(known))
            others = bins if spec.steps + spec.ranks else {}
            graph = self._graph_shapes() if spec.points else {}
            return others | text_shapes(self.inputs, known) | graph
        size = spec.backbone.width if spec.backbone else _base_size(spec.base, self.inputs)
        shapes: dict[str, tuple[int, ...]] = {"mean": (size,), "basis": (size, spec.components)}
        if spec.projection == "graph":
            shapes |= self._graph_shapes()
        if spec.projection == "discriminant":
            shapes["between"] = (spec.components,)
        if spec.projection == "nystrom":
            shapes["landmarks"] = (spec.landmarks, spec.components)
            shapes["whitening"] = (spec.landmarks, spec.landmarks)
        return shapes

    def _graph_shapes(self) -> dict[str, tuple[int, ...]]:
        spec = self.spec
        return {
            "points": (spec.points, spec.components),
            "scales": (spec.points,),
            "coordinates": (spec.points, spec.coordinates),
        }

    def save(self, directory: Path) -> dict[str, str]:
        """Save the tensors and the backbone, if there are any; return the SHA-256 of each file."""
        files = {}
        if self.tensors:
            files[FEATURES_FILE] = save_tensors(directory / FEATURES_FILE, self.tensors)
        if self.backbone is not None:
            write_atomically(directory / BACKBONE_FILE, self.backbone.data)
            files[BACKBONE_FILE] = self.backbone.source.sha256
        return files

    def to(self, device: str) -> FeatureMap:
        """The same map for tensors of PyTorch on a device."""
        from torch import as_tensor

        moved = {name: as_tensor(each, device=device) for name, each in self.tensors.items()}
        return FeatureMap(self.spec, self.inputs, moved, self.backbone)


def _chance_of_equal(digests: NDArray[Any], groups: NDArray[np.int64] | None, rows: int) -> float:
    """Return how likely one of `rows` different rows, drawn independently, equals a private one.

    As if they were those of a random part of the private people, compared with all others: where h
    people have a row, a part f has it with probability 1 − (1 − f)^h, and has it alone with f^h.
    Twice as many private rows as there are may be like each; or, if that is more, the upper bound
    of Clopper and Pearson holds, at half of `MAX_FALSE_REFUSALS`. `groups`: whose rows they are.
    """
    which = np.unique(digests, return_inverse=True)[1]
    people = np.arange(len(which)) if groups is None else groups
    holders = np.bincount(np.unique(np.stack([which, people]), axis=1)[0]).astype(np.float64)
    part = min(rows / len(which), 0.5)
    seen = 1 - (1 - part) ** holders
    equal = float(np.clip(1 - (part**holders).sum() / seen.sum(), 0, 1))
    values = len(holders)
    least = max(values * (1 - equal), 1e-9)
    highest = float(betaincinv(values * equal + 1, least, 1 - MAX_FALSE_REFUSALS / 2))
    doubled: float = 1 - (1 - equal) ** (2 / (1 - part))
    return max(highest, doubled)


def _fill_up(rows: Array, size: int) -> Array:
    more = zeros((size - len(rows), *rows.shape[1:]), rows)
    return namespace(rows).concatenate([rows, more])


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


def _base_size(base: Base, inputs: InputSpec) -> int:
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


def public_features(
    inputs: InputSpec,
    public: PublicData | None,
    width: int,
    kind: Kind = "graph",
    *,
    whiten: bool = False,
    backbone: Backbone | None = None,
    view: View | None = None,
) -> FeatureMap:
    """The feature map for inputs of this kind, with at most `width` numbers per input.

    Images get oriented gradients, and of several channels colours too (`base_of`). Small images are
    like tables. Where public data has labels, they decide how much colours count, and whether
    larger images, too, are better taken as tables (`ViewPoints`); or `view` says it. With
    public data features of images are reduced to principal components, and a third of the width are
    coordinates on its neighbourhood graph; or, with the kind `nystrom`, they are compared with
    `width` public landmarks by a Gaussian kernel. A `fine_graph` has twice as
    many coordinates, beyond the width, and the less smooth ones count for more. With the kind
    `discriminant` they are the directions in which classes seem to differ. Without public data
    oriented gradients are reduced by a random orthogonal projection to four times the width: it is
    data-independent and needs more dimensions. Tables get bins at the quantiles of public rows
    (`linear.fit_bins`, which explains `whiten`). Without public rows, or with too few, tables keep
    their encoded columns. Of texts, principal components of n-grams and embeddings stand beside the
    other columns' bins (`texts.py`), and with the kind `fine_graph` coordinates of their graph;
    without public rows, a random projection of all.
    With a backbone, its embeddings replace oriented gradients, of images and of tables; without
    public data they are kept as they are. `nystrom`, which students have, is for public images and
    no backbone. Raises DataError for `discriminant` without public images or with a backbone.
    """
    if public is not None and backbone is None:
        view = view or _view(public, inputs)
    if kind == "discriminant":
        return _discriminant(inputs, public, width, backbone, view)
    if backbone is not None and public is None:
        spec = FeatureSpec(
            base="backbone",
            projection="none",
            components=backbone.source.width,
            backbone=backbone.source,
        )
        return FeatureMap(spec, inputs, {}, backbone)
    if backbone is not None:
        view = View("backbone")
    view = view or View(base_of(inputs))
    name = view.base
    if name == "identity" and (kind != "nystrom" or public is None):
        if public is None or inputs.texts is None:
            return _of_tables(inputs, public, width, whiten)
        known = _of_texts(inputs, public, width, whiten)
        return _with_graph(known, public, width) if kind == "fine_graph" else known
    if public is None:
        return _random_projection(inputs, 4 * width)
    every = -(-len(public.inputs) // MAX_GRAPH_POINTS)
    blocks = _blocks(public.inputs[::every])
    compute = partial(base_features, name, inputs=inputs, backbone=backbone)
    base = np.concatenate(side_by_side(compute, blocks))
    weights = _weights(view, base, inputs)
    if kind == "nystrom":
        return _landmarks(inputs, name, base, weights, public.source, width)
    tensors = _principal_components(base, width - width // 3, weights)
    tensors["basis"] = tensors["basis"] * tensors.pop("deviations") ** -0.5
    spec = FeatureSpec(
        base=name,
        projection="pca",
        components=tensors["basis"].shape[1],
        fitted_on=public.source,
        backbone=None if backbone is None else backbone.source,
    )
    if len(base) >= MIN_GRAPH_POINTS:
        points = unit_length(_project(base, tensors), 1)
        fine = kind == "fine_graph"
        count, power = (2 * (width // 3), FINE_GRAPH_POWER) if fine else (width // 3, 1.0)
        coordinates, scales = embed(points, count, power)
        tensors |= {"points": points, "scales": scales, "coordinates": coordinates}
        spec = spec.model_copy(
            update={"projection": "graph", "coordinates": count, "points": len(points)}
        )
    return FeatureMap(spec, inputs, tensors, backbone)


def _discriminant(
    inputs: InputSpec,
    public: PublicData | None,
    width: int,
    backbone: Backbone | None,
    view: View | None,
) -> FeatureMap:
    """The map to at most `width` directions in which public images of other classes differ."""
    pictures = public is not None and len(inputs.shape) > 1 and backbone is None
    if public is None or view is None or not pictures or len(public.inputs) < MIN_GRAPH_POINTS:
        raise DataError(
            f"Discriminant features need at least {MIN_GRAPH_POINTS} public images, and no "
            "backbone."
        )
    every = -(-len(public.inputs) // MAX_GRAPH_POINTS)
    plain, name = public.inputs[::every], view.base
    rows = _blocks(np.arange(len(plain)))
    base = np.concatenate(side_by_side(lambda own: base_features(name, plain[own], inputs), rows))
    tensors = _principal_components(base, DISCRIMINANT_COMPONENTS, _weights(view, base, inputs))
    del tensors["deviations"]

    def changed(copy: int) -> Floats:
        draws = draws_for(0, copy, len(plain))

        def compute(own: NDArray[np.int64]) -> Floats:
            bent = distorted(plain[own].astype(np.float32), draws[own], inputs)
            found: Floats = _project(base_features(name, bent, inputs), tensors)
            return found

        return np.concatenate(side_by_side(compute, rows))

    directions, between = discriminant(
        _project(base, tensors), [changed(i) for i in range(DISTORTED_COPIES)], width
    )
    tensors["basis"] = (tensors["basis"] @ directions).astype(np.float32)
    spec = FeatureSpec(
        base=name, projection="discriminant", components=len(between), fitted_on=public.source
    )
    return FeatureMap(spec, inputs, tensors | {"between": between})


def _landmarks(
    inputs: InputSpec,
    name: Base,
    base: Floats,
    weights: Floats | None,
    source: PublicSource,
    width: int,
) -> FeatureMap:
    """The map to similarities with at most `width` of the public points."""
    tensors = _principal_components(base, KERNEL_COMPONENTS, weights)
    del tensors["deviations"]
    points = _project(base, tensors)
    found, gamma = choose_landmarks(points, width)
    spec = FeatureSpec(
        base=name,
        projection="nystrom",
        components=points.shape[1],
        landmarks=len(found["landmarks"]),
        gamma=gamma,
        fitted_on=source,
    )
    return FeatureMap(spec, inputs, tensors | found)


def _of_tables(
    inputs: InputSpec, public: PublicData | None, width: int, whiten: bool
) -> FeatureMap:
    if inputs.texts is not None and public is None:
        return _random_projection(inputs, 4 * width)
    if public is not None:
        every = -(-len(public.inputs) // MAX_BINNED_ROWS)
        rows = base_features("bins", public.inputs[::every], inputs)
        tensors = linear.fit_bins(rows, width, whiten=whiten)
        if tensors is None and len(inputs.shape) > 1:  # pixels are many: too few rows for steps
            tensors = linear.fit_bins(rows, width, whiten=whiten, ranks_alone=True)
        if tensors is not None:
            spec = FeatureSpec(
                base="bins",
                projection="whitened" if whiten else "scaled",
                components=tensors["basis"].shape[1],
                steps=len(tensors["steps"]),
                ranks=len(tensors["knots"]),
                fitted_on=public.source,
            )
            return FeatureMap(spec, inputs, tensors)
    spec = FeatureSpec(base="identity", projection="none", components=math.prod(inputs.shape))
    return FeatureMap(spec, inputs, {})


def _of_texts(inputs: InputSpec, public: PublicData, width: int, whiten: bool) -> FeatureMap:
    """The map of rows with texts: components of these, beside bins of all other columns.

    A text varies half as much as all other columns together (`TEXT_VARIANCE_SHARE`).
    """
    every = -(-len(public.inputs) // MAX_TEXT_ROWS)
    rows = base_features("texts", public.inputs[::every], inputs)
    columns = rows[:, other_columns(inputs)]
    bins = linear.fit_bins(columns, width, whiten=whiten)
    if bins is None:  # few rows: as much of the columns as there is
        bins = linear.fit_bins(columns, width, whiten=whiten, ranks_alone=True, rows_per_bin=1)
    length = 1.0
    if bins is not None:
        variance = float(_project(linear.Bins(bins)(columns), bins).var(0).sum())
        length = (TEXT_VARIANCE_SHARE * variance) ** 0.5
    texts = fit_texts(rows, inputs, width, length, _principal_components)
    known = tuple(texts[f"basis_{number}"].shape[1] for number in range(len(inputs.texts or ())))
    spec = FeatureSpec(
        base="texts",
        projection="whitened" if whiten else "scaled",
        components=sum(known) + (0 if bins is None else bins["basis"].shape[1]),
        steps=0 if bins is None else len(bins["steps"]),
        ranks=0 if bins is None else len(bins["knots"]),
        texts=known,
        fitted_on=public.source,
    )
    return FeatureMap(spec, inputs, (bins or {}) | texts)


def _with_graph(known: FeatureMap, public: PublicData, width: int) -> FeatureMap:
    """A map of texts with a fine graph besides, of a third of `width` coordinates."""
    rows = public.inputs[:: -(-len(public.inputs) // MAX_GRAPH_POINTS)]
    if len(rows) < MIN_GRAPH_POINTS:
        return known
    points = unit_length(known(rows), 1)
    coordinates, scales = embed(points, width // 3, FINE_GRAPH_POWER)
    spec = known.spec.model_copy(update={"coordinates": width // 3, "points": len(points)})
    graph = {"points": points, "scales": scales, "coordinates": coordinates}
    return FeatureMap(spec, known.inputs, known.tensors | graph)


def views_of(inputs: InputSpec, x: NDArray[Any]) -> tuple[View, ...]:
    """Return the ways to see public inputs x [N, *shape], the usual one first.

    Pictures whose channels are all the same are grey.
    """
    pixels, channels = View("identity"), x.reshape(*x.shape[:3], -1) if x.ndim > 2 else None
    grey = channels is not None and bool((channels == channels[..., :1]).all())
    shown = inputs.model_copy(update={"shape": inputs.shape[:2]}) if grey else inputs
    usual = base_of(shown)
    if usual == "identity":
        return (pixels,)
    if usual == "oriented_gradients":
        return View(usual), pixels
    shares = (View(usual, share) for share in COLOUR_SHARES)
    return (*shares, View("oriented_gradients"), pixels)


@dataclass(frozen=True, eq=False)
class ViewPoints:
    """Features of some public inputs in each view, by which views are compared."""

    rows: NDArray[np.int64]
    """[K], which of the inputs."""
    points: dict[View, Floats]
    """[K, C] each."""

    @classmethod
    def of(cls, inputs: InputSpec, x: NDArray[Any], rows: NDArray[np.int64]) -> ViewPoints:
        """Compute them for at most MAX_JUDGED_PICTURES of the `rows` of x [N, *shape], unless there
        is only one view."""
        rows, views = rows[:: -(-len(rows) // MAX_JUDGED_PICTURES)], views_of(inputs, x)
        if len(views) < 2 or len(rows) < MIN_GRAPH_POINTS:
            return cls(rows, {views[0]: np.zeros(0, np.float32)})
        blocks, points = _blocks(x[rows]), dict[View, Floats]()
        bases = dict[Base, Floats]()
        for view in views:
            name = view.base
            if name not in bases:
                known = side_by_side(partial(base_features, name, inputs=inputs), blocks)
                bases[name] = np.concatenate(known)
            weights = _weights(view, bases[name], inputs)
            tensors = _principal_components(bases[name], KERNEL_COMPONENTS, weights)
            found = _project(bases[name], tensors)
            points[view] = found if name == "identity" else unit_length(found, 1)
        return cls(rows, points)

    def best(self, shares: NDArray[np.float64], known: NDArray[np.bool_]) -> View:
        """Return the view that tells most of shares [N, m], of the rows that are `known` [N]."""
        usual, own = next(iter(self.points)), known[self.rows]
        if len(self.points) < 2 or np.count_nonzero(own) < MIN_GRAPH_POINTS:
            return usual
        points = {view: each[own] for view, each in self.points.items()}
        return best_view(points, shares[self.rows[own]])


def _view(public: PublicData, inputs: InputSpec) -> View:
    """Return how public inputs are seen best, if their labels tell."""
    if public.labels is None:
        return views_of(inputs, public.inputs)[0]
    points = ViewPoints.of(inputs, public.inputs, np.arange(len(public.inputs)))
    shares = np.eye(int(public.labels.max()) + 1)[public.labels]
    return points.best(shares, np.ones(len(shares), dtype=bool))


def _weights(view: View, base: Floats, inputs: InputSpec) -> Floats | None:
    """Weights [D] of the features of public pictures [N, D], None where all are of one kind.

    Colours vary as much as gradients, in sum, times what the view says.
    """
    if view.base != "coloured_gradients":
        return None
    colours = colours_width(inputs.shape[2])
    variances = base.var(axis=0)
    own, others = float(variances[-colours:].sum()), float(variances[:-colours].sum())
    alike = min(math.sqrt(others / max(own, 1e-12)), MAX_COLOUR_WEIGHT)
    weights = np.ones(base.shape[1], np.float32)
    weights[-colours:] = alike * view.colours
    return weights


ITERATIONS = 6
"""Of a subspace, towards principal components."""
FEATURES_PER_ROW_OF_FEW = 4
"""Features for each row from which rows are so few that their products are iterated."""


def _principal_components(
    base: Floats, width: int, weights: Floats | None = None
) -> dict[str, Floats]:
    """Mean [D], basis [D, C] and the components' standard deviations [C].

    The basis is orthonormal, or of features times `weights` [D].
    """
    mean = base.mean(axis=0)
    centred = base - mean
    if weights is not None:
        centred *= weights
    keep = min(width, *base.shape)
    # Subspace iteration (Halko, Martinsson and Tropp, SIAM Review 2011): exact to far below what
    # matters to a teacher, and many times faster than a full decomposition.
    subspace = _random_directions(base.shape[1], min(keep + 20, *base.shape))
    if FEATURES_PER_ROW_OF_FEW * len(base) <= base.shape[1]:
        # Products of rows are fewer than features. They have squares of what they are made of, so
        # in double precision.
        products, rows = centred.astype(np.float64), centred @ subspace
        products = products @ products.T
        for _ in range(ITERATIONS - 1):
            rows = _orthonormal(products @ rows)
        subspace = _orthonormal(centred.T @ rows.astype(np.float32))
    else:
        for _ in range(ITERATIONS):
            subspace = _orthonormal(centred.T @ (centred @ subspace))
    _, deviations, directions = np.linalg.svd(centred @ subspace, full_matrices=False)
    variances = deviations[:keep] ** 2 / np.float32(len(base))
    basis = subspace @ directions[:keep].T
    return {
        "mean": mean,
        "basis": basis if weights is None else weights[:, None] * basis,
        "deviations": np.sqrt(np.maximum(variances, 1e-9)),
    }


def _project(base: Array, tensors: Mapping[str, Array]) -> Array:
    return (base - tensors["mean"]) @ tensors["basis"]


def _blocks(rows: NDArray[Any]) -> list[NDArray[Any]]:
    return np.array_split(rows, -(-len(rows) // BLOCK_IMAGES))


def _random_projection(inputs: InputSpec, width: int) -> FeatureMap:
    base = base_of(inputs)
    size = _base_size(base, inputs)
    basis = _random_directions(size, min(width, size)).copy()
    spec = FeatureSpec(base=base, projection="random", components=basis.shape[1], seed=0)
    if base == "coloured_gradients":
        basis[-colours_width(inputs.shape[2]) :] *= COLOUR_WEIGHT
    return FeatureMap(spec, inputs, {"mean": np.zeros(size, np.float32), "basis": basis})


def _orthonormal(columns: NDArray[Any]) -> NDArray[Any]:
    """Return an orthonormal basis of what columns span, in their precision. NumPy's is double."""
    basis: NDArray[Any] = qr(columns, mode="economic", check_finite=False)[0]
    return basis


@lru_cache(maxsize=8)
def _random_directions(size: int, count: int) -> Floats:
    """An orthonormal basis [size, count] of a uniformly random subspace."""
    random = np.random.Generator(np.random.Philox(0))
    basis: Floats = np.linalg.qr(random.standard_normal((size, count), dtype=np.float32))[0]
    basis.flags.writeable = False
    return basis
