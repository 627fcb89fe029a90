"""What is fitted on public features: directions, landmarks, a neighbourhood graph, and bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import eigsh

DISCRIMINANT_COMPONENTS = 300
"""Principal components among which directions are sought."""
DISTORTED_COPIES = 2
"""Distorted copies of each public image."""
CLASS_NEIGHBOURS = 5
"""Near neighbours of each public image."""
DISCRIMINANT_ROUNDS = 3
"""In each, neighbours are the nearest in the directions found before, which makes them of one class
more often."""
NEIGHBOUR_COVARIANCE_SHARE = 0.75
"""Share of the covariance within classes that is neighbours'; the rest is that of distorted
copies."""
COVARIANCE_FLOOR = 0.02
"""Added to it in all directions, relative to the mean variance of a component."""
MANY_CLASSES = 30
"""Classes from which a shard may lack some, and class means do better than regressions."""
MIN_EIGENVALUE = 1e-6
BLOCK_ROWS = 512
UNSEEN_CLASS_SCORE = -1e6
"""The score of a class that a head has not seen."""


def discriminant(
    points: torch.Tensor, copies: Sequence[torch.Tensor], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
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
    size, unit = len(points), torch.eye(points.shape[1], dtype=torch.float64)
    total = _scatter(points) / size
    distorted = sum(_scatter(points - copy) for copy in copies) / (2 * size * len(copies))
    floor = COVARIANCE_FLOOR * total.diagonal().mean() * unit
    found = points
    for _ in range(DISCRIMINANT_ROUNDS):
        nearest = _nearest(F.normalize(found, dim=1))
        apart = sum(_scatter(points - points[each]) for each in nearest.T)
        within = (
            NEIGHBOUR_COVARIANCE_SHARE * apart / (2 * size * CLASS_NEIGHBOURS)
            + (1 - NEIGHBOUR_COVARIANCE_SHARE) * distorted
        )
        root = torch.linalg.cholesky(within + floor)
        half = torch.linalg.solve_triangular(root, total, upper=False)
        values, vectors = torch.linalg.eigh(
            torch.linalg.solve_triangular(root, half.T, upper=False)
        )
        values, vectors = values.flip(0)[:width], vectors.flip(1)[:, :width]
        directions = torch.linalg.solve_triangular(root.T, vectors, upper=True).float()
        between = (values - 1).clamp(min=MIN_EIGENVALUE).float()
        found = points @ directions * confidence_weights(between)
    return directions.contiguous(), between.contiguous()


def confidence_weights(between: torch.Tensor) -> torch.Tensor:
    """How far two images tell of each other's classes, in each direction [C]: for distances."""
    return (between / (between + 1)).sqrt()


def mean_head(
    features: torch.Tensor, labels: torch.Tensor, classes: int, between: torch.Tensor, times: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [m, C] and biases [m] of a head that knows features [r, C] and labels [r].

    `times`: how many of the r are copies of one record, with itself; they count as one.

    A class scores the logarithm of the density at an input, given the records of the class; what
    all classes share is left out. Classes of which there is no record are never chosen.
    """
    shown = F.one_hot(labels, classes).to(features.dtype)
    counts = shown.sum(0)
    seen = counts > 0
    precision = counts[:, None] / times * between
    means = (shown.T @ features) / counts.clamp(min=1)[:, None] * (precision / (precision + 1))
    usual = counts[seen].mean() / times * between
    variances = 1 + between / (usual + 1)
    weights = means / variances
    biases = -(means * weights).sum(1) / 2
    return weights.contiguous(), torch.where(
        seen, biases, torch.full_like(biases, UNSEEN_CLASS_SCORE)
    )


def _scatter(rows: torch.Tensor) -> torch.Tensor:
    return (rows.T @ rows).double()


def _nearest(unit: torch.Tensor) -> torch.Tensor:
    """Numbers [N, CLASS_NEIGHBOURS] of the points nearest to each point [N, C] of unit length."""
    found = [
        (block @ unit.T).topk(CLASS_NEIGHBOURS + 1, 1).indices
        for block in torch.split(unit, BLOCK_ROWS)
    ]
    return torch.cat(found)[:, 1:]


KERNEL_SHARPNESS = 0.25
"""γ times the total variance of the points: a wide kernel, exp(-0.25) between points at a usual
distance. Chosen on MNIST's training images: 98.9 % at 0.25, 98.8 % at 0.5, 98.6 % at 1."""


def choose_landmarks(
    points: torch.Tensor, count: int, seed: int = 0
) -> tuple[dict[str, torch.Tensor], float]:
    """Choose at most `count` of `points` [N, D] at random; return the tensors of the map, and γ.

    Ridge regression on this map is kernel ridge regression with all functions that the landmarks
    span (Williams and Seeger, "Using the Nyström Method to Speed Up Kernel Machines", NIPS 2000).

    The tensors: `landmarks` [L, D], and `whitening` [L, L], which turns similarities to landmarks
    into coordinates whose dot products approximate the kernel.
    """
    random = torch.Generator().manual_seed(seed)
    landmarks = points[torch.randperm(len(points), generator=random)[:count]].clone()
    variance = float(points.var(0).sum()) or 1.0  # of equal points: any γ
    gamma = KERNEL_SHARPNESS / variance
    values, vectors = torch.linalg.eigh(_similarity(landmarks, landmarks, gamma).double())
    whitening = vectors / values.clamp(min=MIN_EIGENVALUE * float(values.max())).sqrt()
    return {"landmarks": landmarks, "whitening": whitening.float().contiguous()}, gamma


def nystrom(
    points: torch.Tensor, landmarks: torch.Tensor, whitening: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Features [B, L] of points [B, D]."""
    return _similarity(points, landmarks, gamma) @ whitening


def _similarity(points: torch.Tensor, landmarks: torch.Tensor, gamma: float) -> torch.Tensor:
    squared = (
        (points * points).sum(1, keepdim=True)
        + (landmarks * landmarks).sum(1)
        - 2 * points @ landmarks.T
    )
    return torch.exp(-gamma * squared.clamp(min=0))


GRAPH_NEIGHBOURS = 10
GRAPH_STIFFNESS = 0.01
"""Added to each eigenvalue, so that the smoothest functions do not dominate all others."""


def embed(
    points: torch.Tensor, width: int, power: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
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
    one_way = csr_matrix((weights.double().flatten(), (rows, index.flatten())), (size, size))
    similarity = one_way.maximum(one_way.T)
    root = np.sqrt(np.asarray(similarity.sum(1)).ravel())
    smooth = diags(1 / root) @ similarity @ diags(1 / root)
    values, vectors = eigsh(smooth, k=width, which="LA", v0=np.ones(size), tol=1e-3)
    coordinates = vectors / root[:, None] / (1 - values + GRAPH_STIFFNESS) ** power
    coordinates -= coordinates.mean(0)
    coordinates /= np.sqrt((coordinates**2).sum(1).mean())
    return torch.from_numpy(coordinates).float(), scales


def neighbourhood(
    points: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Similarities [N, 1 + GRAPH_NEIGHBOURS] of `points` [N, D] of unit length to themselves and to
    the nearest others, the numbers of these, and their scales [N] (`embed`)."""
    nearest = [
        _nearest_points(block, points, GRAPH_NEIGHBOURS + 1)
        for block in torch.split(points, BLOCK_ROWS)
    ]
    squared = torch.cat([found[0] for found in nearest])
    index = torch.cat([found[1] for found in nearest])
    scales = squared[:, -1].sqrt().clamp(min=1e-6)
    return torch.exp(-squared / (scales.unsqueeze(1) * scales[index])), index, scales


def extend(
    x: torch.Tensor,
    points: torch.Tensor,
    scales: torch.Tensor,
    coordinates: torch.Tensor,
    *,
    skip: int = 0,
) -> torch.Tensor:
    """Coordinates [B, width] of new inputs `x` [B, D] of unit length, as a weighted mean of those
    of the nearest public points (Bengio et al., "Out-of-Sample Extensions", NIPS 2003).

    With `skip` 1, the nearest point does not count: what is a point itself is treated as new.
    """
    squared, index = (
        found[:, skip:] for found in _nearest_points(x, points, GRAPH_NEIGHBOURS + skip)
    )
    own = squared[:, -1:].sqrt().clamp(min=1e-6)
    weights = torch.softmax(-squared / (own * scales[index]), 1)
    return (weights.unsqueeze(2) * coordinates[index]).sum(1)


def _nearest_points(
    x: torch.Tensor, points: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared distances [B, k] to the k nearest points, nearest first, and their numbers."""
    products, index = torch.topk(x @ points.T, k, dim=1)
    return (2 - 2 * products).clamp(min=0), index


STEP_QUANTILES = tuple(k / 10 for k in range(1, 10))
"""A step at each decile."""
QUANTILES_ABOVE_LEAST = (0.25, 0.5, 0.75)
"""A column that is at its least value in most rows: steps at these quantiles of the other rows."""
RANK_KNOTS = 101
"""Quantiles by which ranks are found."""
MIN_COLUMN_VARIANCE = 0.005
"""Variance, of columns in [0, 1], below which one is dropped: less than 0.5 % of rows differ."""
MAX_BINS = 3000
"""Steps and ranks, together."""
MIN_ROWS_PER_BIN = 10
"""Public rows for each step or rank."""
WHITENING_SHRINKAGE = 3.0
"""Whitening divides by the root of a direction's variance plus this share of the mean variance."""


@dataclass(frozen=True, eq=False)
class Bins:
    """What is computed from the columns of a row, before it is scaled."""

    tensors: dict[str, torch.Tensor]
    """`step_columns` and `steps` [s]: 1 where the column reaches the step. `rank_columns` [r] and
    `knots` [r, RANK_KNOTS]: the column's rank among the public rows, from 0 to 1."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[B, columns] to [B, s + r]."""
        reached = x[:, self.tensors["step_columns"].long()] >= self.tensors["steps"]
        ranked = x[:, self.tensors["rank_columns"].long()].T.contiguous()
        knots = self.tensors["knots"].contiguous()
        below = torch.searchsorted(knots, ranked)
        within = torch.searchsorted(knots, ranked, right=True)
        ranks = (below + within).T / (2 * RANK_KNOTS)
        return torch.cat([reached.to(x.dtype), ranks.to(x.dtype)], 1)


def fit_bins(
    x: torch.Tensor,
    width: int,
    *,
    whiten: bool,
    ranks_alone: bool = False,
    rows_per_bin: int = MIN_ROWS_PER_BIN,
) -> dict[str, torch.Tensor] | None:
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
    for column in range(x.shape[1]):
        values = x[:, column]
        if len(set(values.tolist())) <= 2:
            steps.append((column, float(values.max())))
            continue
        if not ranks_alone:
            steps += [(column, step) for step in _steps(values)]
        ranks.append((column, _quantiles(values, torch.linspace(0, 1, RANK_KNOTS))))
    bins = _bins(steps, ranks)
    kept = (bins(x).double().var(0, unbiased=False) >= MIN_COLUMN_VARIANCE).tolist()
    if not 0 < sum(kept) <= min(MAX_BINS, len(x) // rows_per_bin):
        return None
    bins = _bins(
        [step for step, keep in zip(steps, kept[: len(steps)], strict=True) if keep],
        [rank for rank, keep in zip(ranks, kept[len(steps) :], strict=True) if keep],
    )
    raw = bins(x).double()
    mean = raw.mean(0)
    basis = raw.var(0, unbiased=False).pow(-0.25).diag()
    if whiten or len(basis) > width:
        covariance = ((raw - mean) @ basis).T.cov(correction=0).reshape(basis.shape)
        variances, directions = torch.linalg.eigh(covariance)  # the largest last
        scale = (variances + WHITENING_SHRINKAGE * variances.mean()).rsqrt() if whiten else 1.0
        basis = (basis @ directions * scale)[:, -width:]
    return bins.tensors | {"mean": mean.float(), "basis": basis.float().contiguous()}


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


def _steps(values: torch.Tensor) -> list[float]:
    least = values.min()
    rest = values[values > least]
    if 2 * len(rest) >= len(values):
        found = _quantiles(values, torch.tensor(STEP_QUANTILES))
    else:
        found = torch.cat([rest.min()[None], _quantiles(rest, torch.tensor(QUANTILES_ABOVE_LEAST))])
    return sorted(set(found.tolist()))


def _quantiles(values: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Quantiles that occur: `torch.quantile` refuses large inputs."""
    at = (levels * (len(values) - 1)).round().long()
    return values.sort().values[at]


def _bins(steps: list[tuple[int, float]], ranks: list[tuple[int, torch.Tensor]]) -> Bins:
    knots = [quantiles for _, quantiles in ranks]
    return Bins(
        {
            "step_columns": torch.tensor([column for column, _ in steps], dtype=torch.int32),
            "steps": torch.tensor([step for _, step in steps], dtype=torch.float32),
            "rank_columns": torch.tensor([column for column, _ in ranks], dtype=torch.int32),
            "knots": torch.stack(knots) if knots else torch.zeros(0, RANK_KNOTS),
        }
    )
