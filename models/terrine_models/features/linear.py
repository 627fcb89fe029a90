"""What is fitted on public features: directions, landmarks, a neighbourhood graph, and bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import eigsh

from terrine_models.features.arrays import (
    Array,
    count_below,
    largest,
    namespace,
    to_float,
    to_int,
    unit_length,
)

if TYPE_CHECKING:
    import torch


Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
# Principal components among which directions are sought.
DISCRIMINANT_COMPONENTS = 300
# Distorted copies of each public image.
DISTORTED_COPIES = 2
# Near neighbours of each public image.
CLASS_NEIGHBOURS = 5
# In each, neighbours are the nearest in the directions found before, which makes them of one class
# more often.
DISCRIMINANT_ROUNDS = 3
# Share of the covariance within classes that is neighbours'; the rest is that of distorted copies.
NEIGHBOUR_COVARIANCE_SHARE = 0.75
# Added to it in all directions, relative to the mean variance of a component.
COVARIANCE_FLOOR = 0.02
# Classes from which a shard may lack some, and class means do better than regressions.
MANY_CLASSES = 30
MIN_EIGENVALUE = 1e-6
BLOCK_ROWS = 512
# The score of a class that a head has not seen.
UNSEEN_CLASS_SCORE = -1e6


def discriminant(points: Floats, copies: Sequence[Floats], width: int) -> tuple[Floats, Floats]:
    """Return directions [D, C] and variances between classes [C], the largest first.

    How images of one class differ can be seen in public ones without labels: in an image and its
    distorted copies, and in near neighbours, which mostly are of one class. That gives a covariance
    within classes, and the rest of the covariance of all images lies between them. In coordinates
    where the first is the identity, how far to trust a class mean of one or two records is known:
    probabilistic linear discriminant analysis (Ioffe, ECCV 2006). So teachers with few records of
    each of many classes do better than by ridge regression.

    Directions are found among `points` [N, D], which are centred, and distorted `copies` of these.
    Within a class the variance is 1 in each direction.
    """
    size, unit = len(points), np.eye(points.shape[1])
    total = _scatter(points) / size
    distorted = sum(_scatter(points - copy) for copy in copies) / (2 * size * len(copies))
    floor = COVARIANCE_FLOOR * total.diagonal().mean() * unit
    found = points
    for _ in range(DISCRIMINANT_ROUNDS):
        nearest = _nearest(unit_length(found, 1))
        apart = sum(_scatter(points - points[each]) for each in nearest.T)
        within = (
            NEIGHBOUR_COVARIANCE_SHARE * apart / (2 * size * CLASS_NEIGHBOURS)
            + (1 - NEIGHBOUR_COVARIANCE_SHARE) * distorted
        )
        root = cholesky(within + floor, lower=True)
        half = solve_triangular(root, total, lower=True)
        values, vectors = np.linalg.eigh(solve_triangular(root, half.T, lower=True))
        values, vectors = values[::-1][:width], vectors[:, ::-1][:, :width]
        directions = solve_triangular(root.T, vectors, lower=False).astype(np.float32)
        between = np.maximum(values - 1, MIN_EIGENVALUE).astype(np.float32)
        found = points @ directions * confidence_weights(between)
    return np.ascontiguousarray(directions), between


def confidence_weights(between: Array) -> Array:
    """How far two images tell of each other's classes, in each direction [C]: for distances."""
    return (between / (between + 1)) ** 0.5


def mean_head(
    features: torch.Tensor, labels: torch.Tensor, classes: int, between: torch.Tensor, times: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [m, C] and biases [m] of a head that knows features [r, C] and labels [r].

    `times`: how many of the r are copies of one record, with itself; they count as one.

    A class scores the logarithm of the density at an input, given the records of the class; what
    all classes share is left out. Classes of which there is no record are never chosen.
    """
    shown = (labels[:, None] == labels.new_tensor(range(classes))).to(features.dtype)
    counts = shown.sum(0)
    seen = counts > 0
    precision = counts[:, None] / times * between
    means = (shown.T @ features) / counts.clamp(min=1)[:, None] * (precision / (precision + 1))
    usual = counts[seen].mean() / times * between
    variances = 1 + between / (usual + 1)
    weights = means / variances
    biases = -(means * weights).sum(1) / 2
    return weights.contiguous(), biases.masked_fill(~seen, UNSEEN_CLASS_SCORE)


def _scatter(rows: Floats) -> NDArray[np.float64]:
    return (rows.T @ rows).astype(np.float64)


def _nearest(unit: Floats) -> Ints:
    """Numbers [N, CLASS_NEIGHBOURS] of the points nearest to each point [N, C] of unit length."""
    found = [largest(block @ unit.T, CLASS_NEIGHBOURS + 1)[1] for block in _blocks(unit)]
    return np.concatenate(found)[:, 1:]


def _blocks(rows: Floats) -> list[Floats]:
    return [rows[at : at + BLOCK_ROWS] for at in range(0, len(rows), BLOCK_ROWS)]


# γ times the total variance of the points: a wide kernel, exp(-0.25) between points at a usual
# distance. Chosen on MNIST's training images: 98.9 % at 0.25, 98.8 % at 0.5, 98.6 % at 1.
KERNEL_SHARPNESS = 0.25


def choose_landmarks(points: Floats, count: int) -> tuple[dict[str, NDArray[Any]], float]:
    """Choose at most `count` of `points` [N, D] at random; return the tensors of the map, and γ.

    Ridge regression on this map is kernel ridge regression with all functions that the landmarks
    span (Williams and Seeger, "Using the Nyström Method to Speed Up Kernel Machines", NIPS 2000).

    The tensors: `landmarks` [L, D], and `whitening` [L, L], which turns similarities to landmarks
    into coordinates whose dot products approximate the kernel.
    """
    random = np.random.Generator(np.random.Philox(0))
    landmarks = points[random.permutation(len(points))[:count]]
    variance = float(points.var(axis=0, ddof=1).sum()) or 1.0  # of equal points: any γ
    gamma = KERNEL_SHARPNESS / variance
    values, vectors = np.linalg.eigh(similarity(landmarks, landmarks, gamma).astype(np.float64))
    whitening = vectors / np.sqrt(np.maximum(values, MIN_EIGENVALUE * float(values.max())))
    return {"landmarks": landmarks, "whitening": whitening.astype(np.float32)}, gamma


def nystrom(points: Floats, landmarks: Floats, whitening: Floats, gamma: float) -> Floats:
    """Features [B, L] of points [B, D]."""
    return similarity(points, landmarks, gamma) @ whitening


def similarity(points: NDArray[Any], landmarks: NDArray[Any], gamma: float) -> NDArray[Any]:
    """exp(-γ d²) between points [B, D] and landmarks [L, D], in their precision."""
    squared = (points * points).sum(axis=1, keepdims=True) + (landmarks * landmarks).sum(axis=1)
    squared -= 2 * points @ landmarks.T
    found: NDArray[Any] = np.exp(-gamma * np.maximum(squared, 0))
    return found


GRAPH_NEIGHBOURS = 10
MIN_SCALE = 1e-6
# Added to each eigenvalue, so that the smoothest functions do not dominate all others.
GRAPH_STIFFNESS = 0.01


def embed(points: Floats, width: int, power: float) -> tuple[Floats, Floats]:
    """Coordinates [N, width] of `points` [N, D] of unit length, and their scales [N].

    The smoothest functions on the nearest-neighbour graph (Belkin and Niyogi, "Laplacian
    Eigenmaps", Neural Computation 2003) change little within a class and much between classes:
    ridge regression on them is Laplacian-regularised least squares.

    The less `power`, the more the less smooth functions count. A scale is the distance to the
    GRAPH_NEIGHBOURS-th neighbour: similarity falls with distance relative to it (Zelnik-Manor and
    Perona, "Self-Tuning Spectral Clustering", NIPS 2004).
    """
    size = len(points)
    weights, index, scales = neighbourhood(points)
    weights, index = weights[:, 1:], index[:, 1:]
    rows = np.repeat(np.arange(size), GRAPH_NEIGHBOURS)
    each = weights.astype(np.float64).ravel()
    one_way = csr_matrix((each, (rows, index.ravel())), (size, size))
    similarity = one_way.maximum(one_way.T)
    root = np.sqrt(np.asarray(similarity.sum(1)).ravel())
    smooth = diags(1 / root) @ similarity @ diags(1 / root)
    values, vectors = eigsh(smooth, k=width, which="LA", v0=np.ones(size), tol=1e-3)
    coordinates = vectors / root[:, None] / (1 - values + GRAPH_STIFFNESS) ** power
    coordinates -= coordinates.mean(0)
    coordinates /= np.sqrt((coordinates**2).sum(1).mean())
    return coordinates.astype(np.float32), scales


def neighbourhood(points: Floats) -> tuple[Floats, Ints, Floats]:
    """Similarities [N, 1 + GRAPH_NEIGHBOURS] of `points` [N, D] of unit length to themselves and to
    the nearest others, the numbers of these, and their scales [N] (`embed`)."""
    nearest = [_nearest_points(each, points, GRAPH_NEIGHBOURS + 1) for each in _blocks(points)]
    squared, index = (np.concatenate(each) for each in zip(*nearest, strict=True))
    scales = np.maximum(np.sqrt(squared[:, -1]), MIN_SCALE)
    return np.exp(-squared / (scales[:, None] * scales[index])), index, scales


def extend(
    x: Array,
    points: Array,
    scales: Array,
    coordinates: Array,
    *,
    skip: int = 0,
) -> Array:
    """Coordinates [B, width] of new inputs `x` [B, D] of unit length, as a weighted mean of those
    of the nearest public points (Bengio et al., "Out-of-Sample Extensions", NIPS 2003).

    With `skip` 1, the nearest point does not count: what is a point itself is treated as new.
    """
    squared, index = (
        found[:, skip:] for found in _nearest_points(x, points, GRAPH_NEIGHBOURS + skip)
    )
    own = (squared[:, -1:] ** 0.5).clip(min=MIN_SCALE)
    xp, falling = namespace(x), -squared / (own * scales[index])
    weights = xp.exp(falling - xp.amax(falling, 1, keepdims=True))
    weights = weights / weights.sum(1, keepdims=True)
    return (weights[:, :, None] * coordinates[index]).sum(1)


def _nearest_points(x: Array, points: Array, k: int) -> tuple[Array, Array]:
    """Squared distances [B, k] to the k nearest points, nearest first, and their numbers."""
    products, index = largest(x @ points.T, k)
    return (2 - 2 * products).clip(min=0), index


# A step at each decile.
STEP_QUANTILES = tuple(k / 10 for k in range(1, 10))
# A column that is at its least value in most rows: steps at these quantiles of the other rows.
QUANTILES_ABOVE_LEAST = (0.25, 0.5, 0.75)
# Quantiles by which ranks are found.
RANK_KNOTS = 101
# Variance, of columns in [0, 1], below which one is dropped: less than 0.5 % of rows differ.
MIN_COLUMN_VARIANCE = 0.005
# Steps and ranks, together.
MAX_BINS = 3000
# Public rows for each step or rank.
MIN_ROWS_PER_BIN = 10
# Whitening divides by the root of a direction's variance plus this share of the mean variance.
WHITENING_SHRINKAGE = 3.0


@dataclass(frozen=True, eq=False)
class Bins:
    """What is computed from the columns of a row, before it is scaled."""

    tensors: Mapping[str, Array]
    """`step_columns` and `steps` [s]: 1 where the column reaches the step. `rank_columns` [r] and
    `knots` [r, RANK_KNOTS]: the column's rank among the public rows, from 0 to 1."""

    def __call__(self, x: Array) -> Array:
        """[B, columns] to [B, s + r]."""
        known = self.tensors
        reached = to_float(x[:, to_int(known["step_columns"])] >= known["steps"])
        below, within = count_below(known["knots"], x[:, to_int(known["rank_columns"])].T)
        ranks = to_float((below + within).T) / (2 * RANK_KNOTS)
        return namespace(x).concatenate([reached, ranks], 1)


def fit_bins(
    x: Floats,
    width: int,
    *,
    whiten: bool,
    ranks_alone: bool = False,
    rows_per_bin: int = MIN_ROWS_PER_BIN,
) -> dict[str, NDArray[Any]] | None:
    """The map of public rows x [N, columns]: those of `Bins`, `mean` [D] and `basis` [D, d].

    Columns of two values become one step; other columns, several and a rank, or with `ranks_alone`
    nothing but that. Each result is divided by the root of its deviation, so that rare ones count
    neither nothing nor as much as common ones. `whiten` turns and scales them further, towards
    equal variance: then a head need not learn from a few rows how columns go together. More than
    `width` are reduced to that many principal components. None if all columns are nearly constant,
    if there are more than `MAX_BINS`, or fewer than `rows_per_bin` rows for each: too few to know
    what is common.
    """
    steps, ranks = [], []
    for column, values in enumerate(x.T):
        if len(np.unique(values)) <= 2:
            steps.append((column, float(values.max())))
            continue
        if not ranks_alone:
            steps += [(column, step) for step in _steps(values)]
        ranks.append((column, _quantiles(values, np.linspace(0, 1, RANK_KNOTS))))
    bins = _bins(steps, ranks)
    kept = (bins(x).var(axis=0, dtype=np.float64) >= MIN_COLUMN_VARIANCE).tolist()
    if not 0 < sum(kept) <= min(MAX_BINS, len(x) // rows_per_bin):
        return None
    bins = _bins(
        [step for step, keep in zip(steps, kept[: len(steps)], strict=True) if keep],
        [rank for rank, keep in zip(ranks, kept[len(steps) :], strict=True) if keep],
    )
    raw = bins(x).astype(np.float64)
    mean = raw.mean(axis=0)
    basis = np.diag(raw.var(axis=0) ** -0.25)
    if whiten or len(basis) > width:
        centred = (raw - mean) @ basis
        variances, directions = np.linalg.eigh(centred.T @ centred / len(raw))  # the largest last
        scale = (variances + WHITENING_SHRINKAGE * variances.mean()) ** -0.5 if whiten else 1.0
        basis = (basis @ directions * scale)[:, -width:]
    fitted = {"mean": mean.astype(np.float32), "basis": basis.astype(np.float32)}
    return {**bins.tensors, **fitted}


def shapes(steps: int, ranks: int, components: int) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of `fit_bins`."""
    return {
        "step_columns": (steps,),
        "steps": (steps,),
        "rank_columns": (ranks,),
        "knots": (ranks, RANK_KNOTS),
        "mean": (steps + ranks,),
        "basis": (steps + ranks, components),
    }


def _steps(values: Floats) -> list[float]:
    least = values.min()
    rest = values[values > least]
    if 2 * len(rest) >= len(values):
        found = _quantiles(values, np.array(STEP_QUANTILES))
    else:
        above = _quantiles(rest, np.array(QUANTILES_ABOVE_LEAST))
        found = np.concatenate([rest.min()[None], above])
    return sorted(set(found.tolist()))


def _quantiles(values: Floats, levels: NDArray[np.float64]) -> Floats:
    """Quantiles that occur among the values."""
    at = np.rint(levels * (len(values) - 1)).astype(np.int64)
    found: Floats = np.sort(values)[at]
    return found


def _bins(steps: list[tuple[int, float]], ranks: list[tuple[int, Floats]]) -> Bins:
    knots = [quantiles for _, quantiles in ranks]
    return Bins(
        {
            "step_columns": np.array([column for column, _ in steps], dtype=np.int32),
            "steps": np.array([step for _, step in steps], dtype=np.float32),
            "rank_columns": np.array([column for column, _ in ranks], dtype=np.int32),
            "knots": np.stack(knots) if knots else np.zeros((0, RANK_KNOTS), np.float32),
        }
    )
