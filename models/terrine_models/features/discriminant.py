"""Directions in which images of other classes differ, found without labels; and heads on them.

How images of one class differ can be seen in public ones without labels: in an image and its
distorted copies, and in near neighbours, which mostly are of one class. That gives a covariance
within classes, and the rest of the covariance of all images lies between them. In coordinates where
the first is the identity, a class mean from one or two records already says much, and how far to
believe it is known: probabilistic linear discriminant analysis (Ioffe, ECCV 2006). So teachers with
few records of each of many classes do better than by ridge regression, whose every direction is
learned from the shard alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

COMPONENTS = 300
"""Principal components among which directions are sought."""
COPIES = 2
"""Distorted copies of each public image."""
NEIGHBOURS, ROUNDS = 5, 3
"""Near neighbours of each public image; in every round they are nearest in the directions found
before, which makes them of one class more often."""
OF_NEIGHBOURS, FLOOR = 0.75, 0.02
"""Share of the covariance within classes that is neighbours'; the rest is that of distorted copies.
What is added to it in all directions, relative to the mean variance of a component."""
MANY = 30
"""Classes from which a shard may lack some, and class means do better than regressions."""
LEAST = 1e-6
BLOCK = 512
NEVER = -1e6
"""The score of a class that a head has not seen."""


def discriminant(
    points: torch.Tensor, copies: Sequence[torch.Tensor], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return directions [D, C] and variances between classes [C], the largest first.

    They are found among `points` [N, D], which are centred, and distorted `copies` of these. Within
    a class the variance is 1 in each direction.
    """
    size, unit = len(points), torch.eye(points.shape[1], dtype=torch.float64)
    total = _scatter(points) / size
    distorted = sum(_scatter(points - copy) for copy in copies) / (2 * size * len(copies))
    floor = FLOOR * total.diagonal().mean() * unit
    found = points
    for _ in range(ROUNDS):
        nearest = _nearest(F.normalize(found, dim=1))
        apart = sum(_scatter(points - points[each]) for each in nearest.T)
        within = OF_NEIGHBOURS * apart / (2 * size * NEIGHBOURS) + (1 - OF_NEIGHBOURS) * distorted
        root = torch.linalg.cholesky(within + floor)
        half = torch.linalg.solve_triangular(root, total, upper=False)
        values, vectors = torch.linalg.eigh(
            torch.linalg.solve_triangular(root, half.T, upper=False)
        )
        values, vectors = values.flip(0)[:width], vectors.flip(1)[:, :width]
        directions = torch.linalg.solve_triangular(root.T, vectors, upper=True).float()
        between = (values - 1).clamp(min=LEAST).float()
        found = points @ directions * believed(between)
    return directions.contiguous(), between.contiguous()


def believed(between: torch.Tensor) -> torch.Tensor:
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
    return weights.contiguous(), torch.where(seen, biases, torch.full_like(biases, NEVER))


def _scatter(rows: torch.Tensor) -> torch.Tensor:
    return (rows.T @ rows).double()


def _nearest(unit: torch.Tensor) -> torch.Tensor:
    """Numbers [N, NEIGHBOURS] of the points nearest to each point [N, C] of unit length."""
    found = [(block @ unit.T).topk(NEIGHBOURS + 1, 1).indices for block in torch.split(unit, BLOCK)]
    return torch.cat(found)[:, 1:]
