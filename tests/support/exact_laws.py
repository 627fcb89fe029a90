"""Output laws of the mechanisms by exact enumeration, from their definitions alone.

Nothing here touches the product: these are what `release` must sample and what prices must cover.
A law maps (outcome, label) to its probability; label is -1 where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Law = dict[tuple[str, int], float]
Pmf = NDArray[np.float64]  # probabilities of −K, …, K


def gaussian_pmf(sigma: float) -> Pmf:
    reach = math.ceil(14 * sigma) + 2
    mass = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return np.asarray(mass / mass.sum())


def laplace_pmf(gamma: float) -> Pmf:
    reach = math.ceil(60 / gamma) + 2
    mass = np.exp(-gamma * np.abs(np.arange(-reach, reach + 1)))
    return np.asarray(mass / mass.sum())


def tail(pmf: Pmf, k: int) -> float:
    """Pr[Y ≥ k]."""
    reach = len(pmf) // 2
    return float(pmf[max(0, k + reach) :].sum()) if k <= reach else 0.0


def noisy_max_law(counts: Sequence[int], pmf: Pmf) -> list[float]:
    """Pr[argmax_j (counts_j + Y_j) = j], ties to the lowest class."""
    low = min(counts)
    width = max(counts) - low + len(pmf) + 1
    masses = np.zeros((len(counts), width))
    for j, count in enumerate(counts):
        masses[j, count - low + 1 : count - low + 1 + len(pmf)] = pmf
    at_most = np.cumsum(masses, axis=1)
    below = np.concatenate([np.zeros((len(counts), 1)), at_most[:, :-1]], axis=1)
    return [
        float(np.sum(masses[j] * np.prod(below[:j], axis=0) * np.prod(at_most[j + 1 :], axis=0)))
        for j in range(len(counts))
    ]


def law(
    spec: Mapping[str, Any], counts: Sequence[int], probabilities: Sequence[float] | None = None
) -> Law:
    """The law of one query's outcome under a mechanism's specification."""
    name, n, votes = spec["name"], sum(counts), list(counts)
    if name == "lnmax":
        return _answers(noisy_max_law(votes, laplace_pmf(spec["gamma"])))
    if name in ("gnmax", "noisy_votes"):
        return _answers(noisy_max_law(votes, gaussian_pmf(spec["sigma"])))
    if name == "immutable":
        votes[votes.index(max(votes))] += spec["c"]
        laplace = spec.get("gamma") is not None
        pmf = laplace_pmf(spec["gamma"]) if laplace else gaussian_pmf(spec["sigma"])
        return _answers(noisy_max_law(votes, pmf))
    if name == "stable":
        first, second = sorted(votes, reverse=True)[:2]
        distance = max(0, math.floor((first - second - 1) / 2))
        pmf = gaussian_pmf(spec["sigma"])
        w = next(k for k in range(1, len(pmf)) if tail(pmf, k) <= spec["delta_per_query"])
        passed = tail(pmf, w - distance)
        return {
            ("abstained", -1): 1 - passed,
            ("answered", votes.index(first)): passed,
        }
    baseline, otherwise = [0] * len(votes), ("abstained", -1)
    if name == "interactive_gnmax":
        assert probabilities is not None
        baseline = [math.floor(n * p + 0.5) for p in probabilities]
        if max(probabilities) > spec["confidence"]:
            otherwise = ("reinforced", probabilities.index(max(probabilities)))
    v = max(count - b for count, b in zip(votes, baseline, strict=True))
    passed = tail(gaussian_pmf(spec["sigma1"]), spec["threshold"] - v)
    answers = _answers(noisy_max_law(votes, gaussian_pmf(spec["sigma2"])))
    return {otherwise: 1 - passed} | {key: passed * p for key, p in answers.items()}


def _answers(probabilities: Sequence[float]) -> Law:
    return {("answered", j): p for j, p in enumerate(probabilities)}


def without_one(counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every histogram in which one vote is missing."""
    for j, count in enumerate(counts):
        if count:
            yield (*counts[:j], count - 1, *counts[j + 1 :])


def neighbours(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every vote vector that one changed vote can lead to."""
    for loser, winner in permutations(range(len(counts)), 2):
        if counts[loser] > 0:
            moved = list(counts)
            moved[loser] -= 1
            moved[winner] += 1
            yield tuple(moved)


def histograms(teachers: int, classes: int) -> Iterator[tuple[int, ...]]:
    """Every way in which the teachers can vote."""
    for bars in combinations(range(teachers + classes - 1), classes - 1):
        edges = (-1, *bars, teachers + classes - 1)
        yield tuple(b - a - 1 for a, b in pairwise(edges))


def events_of(*laws: Law) -> list[tuple[tuple[str, int], ...]]:
    """Every set of outcomes."""
    outcomes = sorted(set(chain(*laws)))
    return list(
        chain.from_iterable(combinations(outcomes, size) for size in range(1, len(outcomes)))
    )


def probability(law: Law, event: Sequence[tuple[str, int]]) -> float:
    return min(1.0, sum(law.get(outcome, 0.0) for outcome in event))


def allowed_by_gdp(q: float, mu: float) -> float:
    """The largest Pr_D[S] that μ-GDP allows where Pr_D'[S] = q: 1 − G_μ(q)."""
    return float(ndtr(ndtri(q) + mu))


def renyi(p: Law, q: Law, order: float) -> float:
    """Rényi divergence D_order(p‖q) of two laws."""
    terms = [
        order * math.log(p[o]) + (1 - order) * math.log(q[o]) for o in p if p[o] > 0 and o in q
    ]
    return float(np.logaddexp.reduce(terms) / (order - 1))
