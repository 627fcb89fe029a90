"""How far q = Pr[wrong winner] can move when d votes change, for many votes and distances at once.

Every histogram here is ranked: int64[B, m], largest count first. `log_tail[g]` is ln Pr[difference
of two noises ≥ g], a convex decreasing function of the integer gap g ≥ 0; results are
L = −ln Σ_{j ≥ 2} tail(n₁ − n_j), at most ln(m/(m−1)) small, float[B, D].
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

NEGLIGIBLE = -60.0
"""Terms below e^{−60} of the largest are omitted: 1e-26, far below the rounding margin."""


def levels_towards(ranked: Counts, log_tail: Floats, distances: Counts) -> Floats:
    """Return the least L within d votes of consensus: d votes go from the first to the second.

    Convexity: d votes raise Σ tail(n₁ − n_j) most when all go to the smallest gap. Distances beyond
    a tie of the two count as the tie.
    """
    moved = np.minimum(distances, ((ranked[:, 0] - ranked[:, 1]) // 2)[:, None])
    top = ranked[:, :1] - moved
    second = log_tail[top - ranked[:, 1:2] - moved]
    others, weights = _run_lengths(ranked[:, 2:])
    return _level(second + np.log1p(_rest(top, second, others, weights, log_tail)), ranked)


def levels_away(ranked: Counts, log_tail: Floats, distances: Counts) -> Floats:
    """Return the largest L within d votes: d votes move to the first from whichever is second.

    Convexity: d votes lower Σ tail(n₁ − n_j) most when they level the largest of the others. With
    R_k the votes that bring the first k of them down to the next one, d votes bring k classes to
    `base` or `base` + 1. Distances beyond unanimity count as unanimity.
    """
    others = ranked[:, 1:]
    rows, rest = others.shape
    prefix = np.cumsum(others, axis=1)
    following = np.concatenate([others[:, 1:], np.zeros((rows, 1), dtype=np.int64)], axis=1)
    needed = prefix - np.arange(1, rest + 1) * following
    moved = np.minimum(distances, prefix[:, -1:])

    # One search for all rows: an offset larger than any count keeps the rows apart.
    offset = (np.arange(rows) * (int(prefix.max(initial=0)) + 2))[:, None]
    found = np.searchsorted((needed + offset).ravel(), (moved + offset).ravel(), side="left")
    k = found.reshape(moved.shape) - np.arange(rows)[:, None] * rest
    left = np.take_along_axis(prefix, k, axis=1) - moved
    k += 1
    base, extra = left // k, left % k

    top = ranked[:, :1] + moved
    at_base = log_tail[top - base]
    leveled = (k - extra) + extra * np.exp(log_tail[top - base - (extra > 0)] - at_base)
    values, weights = _run_lengths(others)
    unmoved = _rest(top, at_base, values, weights, log_tail, below=base)
    level = _level(at_base + np.log(leveled + unmoved), ranked)
    unchanged = levels_towards(ranked, log_tail, np.zeros(1, dtype=np.int64))
    return np.where(moved == 0, unchanged, level)


def distinct_rows(ranked: Counts) -> tuple[Counts, Floats]:
    """Return the distinct rows, and how often each occurs."""
    rows, counts = np.unique(ranked, axis=0, return_counts=True)
    return rows, counts.astype(np.float64)


def _level(log_q: Floats, ranked: Counts) -> Floats:
    return np.maximum(-log_q, -math.log1p(-1 / ranked.shape[1]))


def _rest(
    top: Counts,
    reference: Floats,
    values: Counts,
    weights: Counts,
    log_tail: Floats,
    below: Counts | None = None,
) -> Floats:
    """Return Σ_j w_j exp(ln tail(top − n_j) − reference), over n_j ≤ below if given; float[B, D].

    The references are the largest terms, so that nothing overflows.
    """
    total = np.zeros(reference.shape)
    for column in range(values.shape[1]):
        count = values[:, column : column + 1]
        part = log_tail[top - count] - reference
        if below is not None:
            part = np.where(count <= below, part, -np.inf)
        elif part.max(initial=-np.inf) < NEGLIGIBLE:
            break  # the counts fall from column to column, and their terms with them
        total += weights[:, column : column + 1] * np.exp(part)
    return total


def _run_lengths(ranked: Counts) -> tuple[Counts, Counts]:
    """Return the distinct counts of each row, padded with zeros, and how many classes have each."""
    rows, width = ranked.shape
    if width == 0:
        return ranked, ranked
    run = np.zeros(ranked.shape, dtype=np.int64)
    np.cumsum(ranked[:, 1:] != ranked[:, :-1], axis=1, out=run[:, 1:])
    place = run + (np.arange(rows) * width)[:, None]
    weights = np.bincount(place.ravel(), minlength=rows * width).reshape(rows, width)
    values = np.zeros(rows * width, dtype=np.int64)
    values[place] = ranked
    used = int(run[:, -1].max(initial=-1)) + 1
    return values.reshape(rows, width)[:, :used], weights[:, :used]
