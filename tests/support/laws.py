"""Exact laws of the mechanisms and of votes, by enumeration, without using the product."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations, pairwise, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from terrine_server.privacy import ConfidentMax, Neighbours, Units
from terrine_server.privacy.mechanisms import neighbours as source

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


def without_one(counts: Votes) -> Iterator[Votes]:
    """Every histogram in which one vote is missing."""
    for j, count in enumerate(counts):
        if count:
            yield (*counts[:j], count - 1, *counts[j + 1 :])


def neighbours(counts: Sequence[int]) -> Iterator[Votes]:
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


Votes = tuple[int, ...]
Floats = NDArray[np.float64]
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


def divergences(p: Floats, q: Floats, alpha: Floats) -> Floats:
    """D_α(p‖q) of laws in the last axis, float[…, A]; what underflows is left out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p, log_q = np.log(p)[..., None, :], np.log(q)[..., None, :]
        terms = alpha[:, None] * log_p + (1 - alpha[:, None]) * log_q
    terms[np.isnan(terms) | (terms == np.inf)] = -np.inf
    return np.asarray(np.logaddexp.reduce(terms, axis=-1) / (alpha - 1))


def largest_divergences(pmf: Pmf, classes: int, teachers: Iterable[int], alpha: Floats) -> Floats:
    """Of the noisy maximum, over all votes, and votes that moved or are missing: float[A]."""
    votes = [each for number in teachers for each in histograms(number, classes)]
    laws = {each: noisy_max_law(each, pmf) for each in votes}
    pairs = [(laws[each], laws[other]) for each in laws for other in neighbours(each)]
    for each in laws:
        for other in without_one(each):
            if other in laws:
                pairs += [(laws[each], laws[other]), (laws[other], laws[each])]
    p, q = (np.array(side) for side in zip(*pairs, strict=True))
    return np.asarray(divergences(p, q, alpha).max(axis=0))


def ranked(votes: Votes) -> Votes:
    return tuple(sorted(votes, reverse=True))


class VoteGraph:
    """All ranked histograms of an ensemble, and their distances in changed votes."""

    def __init__(self, teachers: int, classes: int) -> None:
        self.teachers = teachers
        self.votes = np.array(sorted({ranked(each) for each in histograms(teachers, classes)}))
        index = {tuple(row): i for i, row in enumerate(self.votes.tolist())}
        size = len(self.votes)
        self.adjacent = np.eye(size, dtype=bool)
        for i, row in enumerate(self.votes.tolist()):
            for other in neighbours(row):
                self.adjacent[i, index[ranked(other)]] = True

    def largest_change(self, value: Floats) -> Floats:
        """max |value(D) − value(D′)| over neighbours D′ of each D."""
        change = np.abs(value[:, None] - value[None, :])
        return np.asarray(np.where(self.adjacent, change, 0.0).max(axis=1))

    def within(self, value: Floats, distances: int) -> Floats:
        """max of `value` over everything at distance ≤ d, for d = 0, …, distances − 1."""
        columns = [value]
        for _ in range(distances - 1):
            columns.append(np.where(self.adjacent, columns[-1][None, :], -np.inf).max(axis=1))
        return np.stack(columns, axis=1)

    def pairs(self) -> Iterator[tuple[int, int]]:
        yield from zip(*np.nonzero(self.adjacent), strict=True)


def full_walk(walk: Iterator[Floats], distances: int) -> Floats:
    """The bounds of a walk at distances 0, …, distances − 1."""
    return np.concatenate(list(walk), axis=1)[:, :distances]


QUERIES, CLASSES, SIGMA, NORM, ORDER = 3, 2, 2.0, 2, 2
"""At order 2 an integer shift of discrete noise costs exactly what it would cost of Gaussian."""

Record = tuple[int, tuple[int, ...]]
"""A record's class, and its weight for each query."""
Person = tuple[Record, ...]
OTHERS: tuple[tuple[Person, Person], ...] = (
    (((0, (1, 1, 1)),), ((1, (1, 0, 1)),)),
    (((0, (2, 1, 0)), (1, (0, 0, 1))), ((1, (1, 2, 1)),)),
)
Weigh = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]


def people() -> list[Person]:
    """Everything that somebody can be; first, nothing."""
    single = [((label, w),) for label in (0, 1) for w in product(range(3), repeat=QUERIES)]
    double = [
        ((0, one), (1, other))
        for one in product(range(2), repeat=QUERIES)
        for other in product(range(2), repeat=QUERIES)
    ]
    # Longer than `NORM`, so they are scaled down.
    long = [((0, weights), (1, weights[::-1])) for weights in product(range(3), repeat=QUERIES)]
    return [(), *single, *double, *long]


def orders() -> list[tuple[int, ...]]:
    """Every order in which all queries are asked; a shorter one is the start of one of them."""
    return list(permutations(range(QUERIES)))


def mutated(old: str, new: str) -> type[Neighbours]:
    """The mechanism with a defect: its source with another text in one place."""
    text = inspect.getsource(source)
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is not in the mechanism once, but {text.count(old)} times")
    namespace: dict[str, object] = {"__name__": source.__name__}
    exec(compile(text.replace(old, new), source.__file__, "exec"), namespace)
    made = namespace["Neighbours"]
    if not isinstance(made, type):
        raise TypeError("the mechanism is a class")
    return made


@dataclass(frozen=True)
class Shifts:
    """What is cast in each world, for all worlds of the same others.

    `cast`: int64[worlds, orders, queries, classes].
    """

    cast: NDArray[np.int64]

    def losses(self, together: int) -> NDArray[np.float64]:
        """D_α of any two worlds: float[worlds, worlds]. `together`: worlds at a time.

        It is the largest over all orders and lengths; the most that a student who adapts can find,
        as what is cast follows from the queries alone and not from the noise.
        """
        found = np.empty((len(self.cast), len(self.cast)))
        for start in range(0, len(self.cast), together):
            part = self.cast[start : start + together, None] - self.cast[None]
            steps = (part**2).sum(axis=-1)
            found[start : start + together] = steps.sum(axis=-1).max(axis=-1)
        return ORDER * found / (2 * SIGMA**2)


def shifts(
    kind: type[Neighbours], others: tuple[Person, ...], allowance: int, weigh: Weigh | None = None
) -> Shifts:
    """Return what is cast in all worlds with these others; `weigh` changes the weights of a query.

    `weigh`: of all records together, `[B, N]`, as an ensemble would that knows all of them.
    """
    mechanism = kind(1 + len(others), CLASSES, SIGMA, QUERIES, NORM)
    cast = []
    for somebody in people():
        units, weights = laid_out((somebody, *others))
        if weigh is not None:
            weights = weigh(weights)
        accounts = np.zeros(units.count, dtype=np.uint32)
        cast.append(
            [
                mechanism.cast(weights[list(order)], units, accounts, allowance)[0]
                for order in orders()
            ]
        )
    return Shifts(np.array(cast))


def laid_out(world: Sequence[Person]) -> tuple[Units, NDArray[np.uint8]]:
    """Return the layout of a world's records, and their weights uint8[queries, N]."""
    records = sorted(
        (unit, label, weights) for unit, person in enumerate(world) for label, weights in person
    )
    units = np.array([unit for unit, _, _ in records], dtype=np.int32)
    labels = np.array([label for _, label, _ in records], dtype=np.int16)
    weights = np.array([weights for _, _, weights in records], dtype=np.uint8).T
    return Units.of(units, labels, len(world)), np.ascontiguousarray(weights)


def nearest(k: int) -> Weigh:
    """The k records that weigh most vote, and no others: whose vote depends on everybody's."""

    def weigh(weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
        # The later record is nearer where two weigh the same.
        rank = np.argsort(np.argsort(weights[:, ::-1], axis=1, kind="stable")[:, ::-1], axis=1)
        found: NDArray[np.uint8] = ((rank < k) & (weights > 0)).astype(np.uint8)
        return found

    return weigh


def scaled(weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A foreign map that scales all records it is given by the largest, as quantisation does."""
    largest = weights.max(axis=1, initial=1, keepdims=True)
    found: NDArray[np.uint8] = (2 * weights // largest).astype(np.uint8)
    return found


def one_at_a_time(weigh: Weigh) -> Weigh:
    """The same map, which is given one record after the other."""

    def apart(weights: NDArray[np.uint8]) -> NDArray[np.uint8]:
        found = np.empty_like(weights)
        for record in range(weights.shape[1]):
            found[:, [record]] = weigh(weights[:, [record]])
        return found

    return apart


# ------------------------------------------------------------- students that adapt to each answer

Paid = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Which outcomes, int64[outcomes, classes], are charged."""


class Student:
    """The best student that decides on each query after seeing the noisy counts before it.

    Every outcome of every query is gone through, `REACH` to either side of what is cast; what is
    beyond is less than 1e-9 of anything.
    """

    REACH = 8

    def __init__(self, kind: type[Neighbours], allowance: int, paid: Paid | None = None) -> None:
        self.kind, self.allowance, self.paid, self.paths = kind, allowance, paid, 0

    def loss(self, world: Sequence[Person], other: Sequence[Person]) -> float:
        """D_α of the transcripts of two worlds, for the best adaptive choice of queries."""
        mechanism = self.kind(len(world), CLASSES, SIGMA, QUERIES, NORM)
        both = [laid_out(world), laid_out(other)]

        @cache
        def best(left: frozenset[int], one: bytes, two: bytes) -> float:
            most = 1.0
            for query in left:
                cast, after = [], []
                for (units, weights), state in zip(both, (one, two), strict=True):
                    accounts = np.frombuffer(state, np.uint32)
                    counts, spent = mechanism.cast(
                        weights[query : query + 1], units, accounts, self.allowance
                    )
                    cast.append(counts[0])
                    after.append(spent.tobytes())
                charged, free = self._moments(cast[0], cast[1])
                rest = left - {query}
                self.paths += 1
                value = charged * best(rest, *after)
                if free:
                    value += free * best(rest, one, two)
                most = max(most, value)
            return most

        start = np.zeros(len(world), dtype=np.uint32).tobytes()
        return float(np.log(best(frozenset(range(QUERIES)), start, start)) / (ORDER - 1))

    def _moments(self, p: NDArray[np.int64], q: NDArray[np.int64]) -> tuple[float, float]:
        """Σ P^α Q^(1−α) over the outcomes that are charged, and over those that are not."""
        reach = int(self.REACH * SIGMA * 2)
        line = np.arange(-reach, reach + 1)
        grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, CLASSES)
        near = _law(grid - p) ** ORDER / _law(grid - q) ** (ORDER - 1)
        if self.paid is None:
            return float(near.sum()), 0.0
        charged = self.paid(grid)
        return float(near[charged].sum()), float(near[~charged].sum())


def _law(at: NDArray[np.int64]) -> NDArray[np.float64]:
    line = np.arange(-200, 201)
    total = np.exp(-(line**2) / (2 * SIGMA**2)).sum()
    found: NDArray[np.float64] = np.exp(-(at**2).sum(axis=1) / (2 * SIGMA**2)) / total**CLASSES
    return found


def some_pairs(count: int, seed: int) -> Iterator[tuple[Person, Person]]:
    """Pairs of people that somebody could be, the first of whom may be nobody."""
    draw, everybody = np.random.default_rng(seed), people()
    for _ in range(count):
        one, other = draw.integers(len(everybody), size=2)
        yield everybody[one if draw.random() < 0.7 else 0], everybody[other]
