"""Coordinates along the shape of public data, from its neighbourhood graph.

Unlabelled public data shows which inputs are variations of one another. The smoothest functions
on its nearest-neighbour graph (Belkin and Niyogi, "Laplacian Eigenmaps", Neural Computation 2003)
change little within a class and much between classes, so a teacher needs few labels of its own:
ridge regression on them is Laplacian-regularised least squares. New inputs get the weighted mean
of the coordinates of their nearest public points (Bengio et al., "Out-of-Sample Extensions",
NIPS 2003).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import eigsh

NEIGHBOURS = 10
STIFFNESS = 0.01
"""Added to each eigenvalue, so that the smoothest functions do not dominate all others."""
BLOCK = 512


def embed(
    points: torch.Tensor, width: int, power: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates [N, width] of `points` [N, D] of unit length, and their scales [N].

    The less `power`, the more the less smooth functions count. A scale is the distance to the
    NEIGHBOURS-th neighbour: similarity falls with distance relative to it (Zelnik-Manor and Perona,
    "Self-Tuning Spectral Clustering", NIPS 2004).
    """
    size = len(points)
    weights, index, scales = neighbourhood(points)
    weights, index = weights[:, 1:], index[:, 1:]
    rows = np.repeat(np.arange(size), NEIGHBOURS)
    one_way = csr_matrix((weights.double().flatten(), (rows, index.flatten())), (size, size))
    similarity = one_way.maximum(one_way.T)
    root = np.sqrt(np.asarray(similarity.sum(1)).ravel())
    smooth = diags(1 / root) @ similarity @ diags(1 / root)
    values, vectors = eigsh(smooth, k=width, which="LA", v0=np.ones(size), tol=1e-3)
    coordinates = vectors / root[:, None] / (1 - values + STIFFNESS) ** power
    coordinates -= coordinates.mean(0)
    coordinates /= np.sqrt((coordinates**2).sum(1).mean())
    return torch.from_numpy(coordinates).float(), scales


def neighbourhood(
    points: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Similarities [N, 1 + NEIGHBOURS] of `points` [N, D] of unit length to themselves and to the
    nearest others, the numbers of these, and their scales [N] (`embed`)."""
    nearest = [_nearest(block, points, NEIGHBOURS + 1) for block in torch.split(points, BLOCK)]
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
    """Coordinates [B, width] of new inputs `x` [B, D] of unit length.

    With `skip` 1, the nearest point does not count: what is a point itself is treated as new.
    """
    squared, index = (found[:, skip:] for found in _nearest(x, points, NEIGHBOURS + skip))
    own = squared[:, -1:].sqrt().clamp(min=1e-6)
    weights = torch.softmax(-squared / (own * scales[index]), 1)
    return (weights.unsqueeze(2) * coordinates[index]).sum(1)


def _nearest(x: torch.Tensor, points: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Squared distances [B, k] to the k nearest points, nearest first, and their numbers."""
    products, index = torch.topk(x @ points.T, k, dim=1)
    return (2 - 2 * products).clamp(min=0), index
