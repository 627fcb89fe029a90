"""How much two samples prove: exact confidence limits on a privacy loss.

If a mechanism keeps its promise, no event S is much likelier on one data set than on its
neighbour. Clopper-Pearson limits p ≤ Pr[S | one] and q ≥ Pr[S | other] therefore prove at least the
loss that p and q imply. Such a test can convict a mechanism but never acquit it. The event is
chosen on one half of the sample and judged on the other, so the choice costs no confidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from scipy.special import ndtr, ndtri
from scipy.stats import beta

from terrine_server.findings import Unit

ROUNDING = 1e-9
"""More than sums of exact probabilities are off."""


@dataclass(frozen=True)
class Promise:
    """What a release may reveal apart from δ.

    `limit`-Gaussian DP (μ), pure `limit`-DP (ε), or a Rényi divergence of order 2 up to `limit`.
    """

    unit: Unit
    limit: float
    delta: float = 0.0

    def loss(self, p: float, q: float) -> float:
        """Return the loss that Pr[S | one] ≥ p and Pr[S | other] ≤ q prove; 0 if none."""
        p -= self.delta
        if p <= 0:
            return 0.0
        if self.unit == "ε":
            return max(0.0, math.log(p / q))
        if self.unit == "D₂":
            return math.log(p**2 / q + (1 - p) ** 2 / (1 - q)) if p > q else 0.0
        return max(0.0, float(ndtri(p) - ndtri(q)))

    def epsilon_delta(self, p: float, q: float) -> tuple[float, float, float]:
        """Return (ε, the δ that p and q prove at that ε, the δ that is promised there).

        ε is where the promise is tight for an event of probability q: the slope of its trade-off
        curve at q for μ, the promised ε itself for pure DP. A divergence promises no δ: all are 0.
        """
        if self.unit == "D₂":
            return 0.0, 0.0, 0.0
        if self.unit == "ε":
            epsilon, promised = self.limit, 0.0
        else:
            z = float(ndtri(q))
            epsilon = max(0.0, -z * self.limit - self.limit**2 / 2)
            u = epsilon / self.limit
            promised = float(
                ndtr(self.limit / 2 - u) - math.exp(epsilon) * ndtr(-self.limit / 2 - u)
            )
        return epsilon, max(0.0, p - math.exp(epsilon) * q), min(1.0, promised + self.delta)


@dataclass(frozen=True)
class Sample:
    """How often each outcome was observed on one data set."""

    seen: Counter[Hashable]

    @property
    def size(self) -> int:
        """The number of draws."""
        return self.seen.total()

    def hits(self, event: Iterable[Hashable]) -> int:
        """Return the number of draws in the event."""
        return sum(self.seen[outcome] for outcome in event)


@dataclass(frozen=True)
class ConfidenceLimits:
    """Pr[S | one] ≥ p and Pr[S | other] ≤ q, both with confidence 1 − level together."""

    p: float
    q: float


def limits(one: Sample, other: Sample, event: Sequence[Hashable], level: float) -> ConfidenceLimits:
    """Return Clopper-Pearson limits (1934); each is wrong with probability at most level/2."""
    hits, other_hits = one.hits(event), other.hits(event)
    p = float(beta.ppf(level / 2, hits, one.size - hits + 1)) if hits else 0.0
    q = 1.0
    if other_hits < other.size:
        q = float(beta.isf(level / 2, other_hits + 1, other.size - other_hits))
    return ConfidenceLimits(p, q)


def held_to_law(
    one: Sample,
    other: Sample,
    event: Sequence[Hashable],
    law: tuple[float, float],
    level: float,
) -> tuple[ConfidenceLimits, bool]:
    """Return the limits, and whether the exact probabilities of the event, `law`, are within them.

    And within the limits from the other side. All four are right with confidence 1 − level.
    """
    found, reverse = (limits(*each, event, level / 2) for each in ((one, other), (other, one)))
    p, q = law
    lawful = (
        found.p - ROUNDING <= p <= reverse.q + ROUNDING
        and reverse.p - ROUNDING <= q <= found.q + ROUNDING
    )
    return found, lawful


def events(outcomes: Iterable[Hashable]) -> Iterator[tuple[Hashable, ...]]:
    """Yield every set of outcomes except the empty and the full set."""
    known = sorted(set(outcomes), key=repr)
    yield from chain.from_iterable(combinations(known, k) for k in range(1, len(known)))
