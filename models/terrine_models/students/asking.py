"""Which public inputs to query first. Uses public inputs only, so it costs no privacy."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.maps import BLOCK, base_features, base_of

COMPONENTS = 60
MOST_SPREAD = 2048
"""Number of inputs that are spread out; the others follow in random order."""


def asking_order(x: NDArray[np.generic], inputs: InputSpec, seed: int) -> NDArray[np.int64]:
    """An order [N] of inputs [N, *shape] of which any beginning represents the whole.

    Each next input is drawn with a probability proportional to its distance from the nearest one
    before it, so that rare kinds of input come early and near copies late. After Arthur and
    Vassilvitskii, "k-means++", SODA 2007, who square the distance; that would draw too many
    outliers, on which teachers disagree.
    """
    random = np.random.default_rng(seed)
    points = _points(x, inputs)
    squares = (points * points).sum(1)
    nearest = np.full(len(points), np.inf)
    chosen: list[int] = []
    free = np.ones(len(points), dtype=bool)
    following = int(random.integers(len(points)))
    while len(chosen) < min(MOST_SPREAD, len(points)):
        chosen.append(following)
        free[following] = False
        distances = squares + squares[following] - 2 * (points @ points[following])
        nearest = np.minimum(nearest, np.maximum(distances, 0))
        weights = np.sqrt(nearest) * free
        if not weights.any():  # only copies of what was chosen are left
            break
        following = int(random.choice(len(points), p=weights / weights.sum()))
    return np.concatenate([np.array(chosen), random.permutation(np.flatnonzero(free))])


def _points(x: NDArray[np.generic], inputs: InputSpec) -> NDArray[np.float64]:
    """[N, at most COMPONENTS]: principal components of the features of inputs [N, *shape]."""
    blocks = [
        torch.from_numpy(np.asarray(x[at : at + BLOCK], dtype=np.float32))
        for at in range(0, len(x), BLOCK)
    ]
    base = base_of(inputs)
    features = torch.cat(side_by_side(lambda block: base_features(base, block, inputs), blocks))
    centred = (features - features.mean(0)).numpy()
    width = min(COMPONENTS, *centred.shape)
    random = np.random.default_rng(0).standard_normal((centred.shape[1], width), dtype=np.float32)
    for _ in range(3):  # subspace iteration
        random, _ = np.linalg.qr(centred.T @ (centred @ random))
    return (centred @ random).astype(np.float64)
