"""Smooth sensitivity of a data-dependent spend, so that a bound on it can be published.

For the public transcript o, f_o(D) is the sum of the data-dependent costs of what was charged. One
teacher's data moves at most one vote of every query, so f_o has a local sensitivity at distance d
from D, LS(d) ≤ Σ_i LS_i(d), and SS_β = max_d e^{−βd} Σ_i LS_i(d) is a β-smooth upper bound of it
(Nissim, Raskhodnikova & Smith 2007; P18, arXiv 1802.08908, Theorem 7). The sum rule needs every
LS_i(d) to be non-decreasing in d; those of `local_sensitivity` are.

Everything here is a function of private votes and therefore secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from support.reference.costs import data_dependent_rdp
from support.reference.local_sensitivity import (
    BLOCK,
    BitSensitivity,
    NoisyMaxSensitivity,
    gaussian_curve,
    laplace_curve,
)
from support.reference.vote_paths import distinct_rows
from terrine_server.privacy.events import (
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    StabilityTest,
)
from terrine_server.privacy.numbers import (
    MARGIN,
    Counts,
    Floats,
    check_orders,
    check_votes,
)
from terrine_server.privacy.published import (
    FLOOR,
    ActualCost,
    bit_table,
    check_beta,
    statistic_of,
    statistic_range,
)


@dataclass(frozen=True)
class Charged:
    """Queries charged with the same event: `counts` and `baselines` are int64[B, m]."""

    event: CostEvent
    counts: Counts
    baselines: Counts | None = None


def secret_spend(
    transcript: Sequence[Charged], *, teachers: int, order: float, beta: float
) -> ActualCost:
    """Return the cost of a transcript at its votes, and how much it can change (Theorem 7).

    Raises `ParameterError` unless every row of votes sums to `teachers`, order > 1 and beta > 0.
    """
    alpha, beta = check_orders(order), check_beta(beta)
    walks: list[_Weighted] = []
    cost = 0.0
    for charged in transcript:
        votes = check_votes(charged.counts, teachers)
        rows = data_dependent_rdp(charged.event, votes, alpha, charged.baselines)
        cost = math.fsum([cost, *rows[:, 0]])
        walks += _walks(charged.event, votes, charged.baselines, float(alpha[0]))
    total = _sum_of_walks(walks, teachers)
    ceiling = np.array([sum(walk.ceiling * walk.weights.sum() for walk in walks)])
    return ActualCost(cost, float(smooth_sensitivity(total, ceiling, beta)[0]) + FLOOR)


def smooth_sensitivity(walk: Iterator[Floats], ceiling: float | Floats, beta: float) -> Floats:
    """Return max_d e^{−βd} LS(d), float[B], of bounds LS float[B, BLOCK] at successive distances.

    No bound exceeds `ceiling`, so the maximum is final once e^{−βd}·ceiling is below it.
    """
    best: Floats = np.zeros(1)
    for index, block in enumerate(walk):
        distances = index * BLOCK + np.arange(BLOCK)
        best = np.maximum(best, (block * np.exp(-beta * distances)).max(axis=1))
        if np.all(ceiling * math.exp(-beta * (distances[-1] + 1)) <= best):
            break
    return best * (1 + MARGIN)


@lru_cache(maxsize=32)
def noisy_max_sensitivity(
    event: GaussianNoisyMax | LaplaceNoisyMax, classes: int, order: float
) -> NoisyMaxSensitivity:
    """Return the local sensitivities of one noisy maximum's cost at one order."""
    if isinstance(event, GaussianNoisyMax):
        return NoisyMaxSensitivity(gaussian_curve(event.sigma, classes, order))
    return NoisyMaxSensitivity(laplace_curve(event.gamma, order))


@lru_cache(maxsize=32)
def bit_sensitivity(event: GaussianThreshold | StabilityTest, order: float) -> BitSensitivity:
    """Return the local sensitivities of one test's cost at one order."""
    return BitSensitivity(bit_table(event, [order])[0])


@dataclass(frozen=True)
class _Weighted:
    """Distinct votes on a walk, and how many queries cast each of them."""

    walk: Iterator[Floats]
    weights: Floats
    ceiling: float


def _walks(
    event: CostEvent, votes: Counts, baselines: Counts | None, order: float
) -> list[_Weighted]:
    match event:
        case Composition(events):
            return [walk for part in events for walk in _walks(part, votes, baselines, order)]
        case GaussianNoisyMax(shift=1) | LaplaceNoisyMax(shift=1):
            sensitivity = noisy_max_sensitivity(event, votes.shape[1], order)
            rows, weights = distinct_rows(-np.sort(-votes, axis=1))
            return [_Weighted(sensitivity.walk(rows), weights, sensitivity.ceiling)]
        case GaussianThreshold() | StabilityTest():
            bit = bit_sensitivity(event, order)
            low, _ = statistic_range(event)
            statistic = statistic_of(event, votes, baselines)
            values, counts = np.unique(statistic, return_counts=True)
            return [_Weighted(bit.walk(values - low), counts.astype(np.float64), bit.ceiling)]
        case _:
            return []  # charged its worst case, which no vote changes


def _sum_of_walks(walks: Sequence[_Weighted], teachers: int) -> Iterator[Floats]:
    """Yield Σ_i LS_i(d), float[1, BLOCK]. A walk that has ended stays at its last bounds."""
    last: list[Floats] = [np.zeros(0)] * len(walks)
    for _ in range(0, teachers, BLOCK):
        total = np.zeros(BLOCK)
        for index, weighted in enumerate(walks):
            block = next(weighted.walk, None)
            if block is not None:
                last[index] = weighted.weights @ block
            else:
                last[index] = np.full(BLOCK, last[index][-1])
            total += last[index]
        yield total[None, :]
