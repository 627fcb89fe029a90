"""All small worlds of a few people, and what `neighbours` tells of one of them, exactly.

A world is three people with up to two records each. Somebody asks up to three queries in any order,
all of them chosen as the answers come; noise is discrete Gaussian, and its law is used, not draws.
Worlds are neighbours if they differ in all that the person `SOMEBODY` is. Defects are planted in
the source of the mechanism itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy import Neighbours, Units
from terrine_server.privacy import mechanisms as source

QUERIES, CLASSES, SIGMA, NORM, ORDER = 3, 2, 2.0, 2, 2
"""At order 2 an integer shift of discrete noise costs exactly what it would cost of Gaussian."""

Record = tuple[int, tuple[int, ...]]
"""A record's class, and its weight for each query."""
Person = tuple[Record, ...]
SOMEBODY = 0
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
