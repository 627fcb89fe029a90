"""Exact laws of outcomes: sums over all values of the noise, without draws or a price's theory."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Votes = tuple[int, ...]


@lru_cache(maxsize=8)
def mass(sigma: float) -> Floats:
    """N_Z(0, σ²) on all that matters of it, symmetric around 0."""
    reach = math.ceil(12 * sigma) + 2
    found = np.exp(-(np.arange(-reach, reach + 1, dtype=np.float64) ** 2) / (2 * sigma**2))
    return np.asarray(found / found.sum())


def passes(margin: int, sigma: float) -> tuple[float, float]:
    """Pr[margin + Y ≥ 0] and its complement, each summed by itself."""
    noise = mass(sigma)
    first = min(max(len(noise) // 2 - margin, 0), len(noise))
    return float(noise[first:].sum()), float(noise[:first].sum())


@lru_cache(maxsize=4096)
def labels(votes: Votes, sigma: float) -> Floats:
    """Pr[argmax_j (votes_j + Y_j) = j], float[m]; ties go to the lowest class."""
    noise = mass(sigma)
    low, width = min(votes), max(votes) - min(votes) + len(noise) + 1
    rows = {}
    for count in set(votes):
        row = np.zeros(width)
        row[count - low + 1 : count - low + 1 + len(noise)] = noise
        rows[count] = row, np.cumsum(row)
    at_most = np.array([rows[count][1] for count in votes])
    below = np.concatenate([np.zeros((len(votes), 1)), at_most[:, :-1]], axis=1)
    return np.array(
        [
            np.sum(rows[count][0] * np.prod(below[:j], axis=0) * np.prod(at_most[j + 1 :], axis=0))
            for j, count in enumerate(votes)
        ]
    )
