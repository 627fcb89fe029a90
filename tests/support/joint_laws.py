"""Exact laws of a threshold test followed by the noisy maximum, from their definitions alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations

import numpy as np
from exact_laws import gaussian_pmf, noisy_max_law, tail

from terrine_server.privacy import ConfidentMax

Votes = tuple[int, ...]
ROUNDING = 1e-9
"""Relative error of the exact laws, which are sums in double precision."""


def release(
    teachers: int,
    classes: int,
    threshold: int,
    sigma1: float,
    sigma2: float,
    *,
    share: float = 1.0,
    low: int | None = None,
    baseline: int = 0,
) -> ConfidentMax:
    least = -(-teachers // classes) if low is None else low
    return ConfidentMax(
        teachers, classes, threshold, sigma1, sigma2, least, baseline, share, answered=True
    )


def histograms(teachers: int, classes: int) -> Iterator[Votes]:
    if classes == 1:
        yield (teachers,)
        return
    for first in range(teachers + 1):
        for rest in histograms(teachers - first, classes - 1):
            yield (first, *rest)


def moved(votes: Votes) -> Iterator[Votes]:
    """Every histogram after one vote changes its class."""
    for loses, gains in permutations(range(len(votes)), 2):
        if votes[loses]:
            after = list(votes)
            after[loses] -= 1
            after[gains] += 1
            yield tuple(after)


@cache
def label_law(votes: Votes, sigma: float) -> np.ndarray:
    return np.array(noisy_max_law(votes, gaussian_pmf(sigma)))


@cache
def passing(margin: int, sigma: float) -> tuple[float, float]:
    """Pr[margin + Y ≥ 0] and its complement, both summed from the small end."""
    pmf = gaussian_pmf(sigma)
    return tail(pmf, -margin), tail(pmf, margin + 1)


def moments(
    before: Votes, after: Votes, event: ConfidentMax, order: float, baseline: Votes | None = None
) -> tuple[float, float]:
    """Exact Σ P(o)^α Q(o)^(1−α) over the abstention, and over all answers."""
    own = baseline or (0,) * len(before)
    statistics = [max(n - b for n, b in zip(votes, own, strict=True)) for votes in (before, after)]
    (p, f), (p2, f2) = (passing(s - event.threshold, event.sigma1) for s in statistics)
    here, there = (label_law(votes, event.sigma2) for votes in (before, after))
    labels = float(np.sum(here**order * there ** (1 - order)))
    return f**order * f2 ** (1 - order), p**order * p2 ** (1 - order) * labels
