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
from functools import lru_cache
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import beta

from terrine_addons.audit.findings import AuditFinding, Unit
from terrine_server.privacy import (
    ConfidentMax,
    CostEvent,
    GaussianArgmax,
    Price,
    Rule,
    VoteOutcome,
    build_mechanism,
    price,
)
from terrine_server.privacy.numbers import COST_UNITS


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


def events(outcomes: Iterable[Hashable]) -> Iterator[tuple[Hashable, ...]]:
    """Yield every set of outcomes except the empty and the full set."""
    known = sorted(set(outcomes), key=repr)
    yield from chain.from_iterable(combinations(known, k) for k in range(1, len(known)))


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


EXAMPLE = {
    "name": "confident_gnmax",
    "threshold": 1600,
    "sigma1": 400.0,
    "sigma2": 300.0,
    "answer_share": 0.5,
}
TEACHERS, CLASSES, ORDER = 2000, 10, 17.71
PLAIN_MECHANISM = {"name": "gnmax", "sigma": 40.0}
# How many top counts are tried.
TOP_COUNTS_TRIED = 40
# Shares of honest teachers that agree on queries as they come.
NATURAL_SHARES = (1.0, 0.99, 0.95, 0.9, 0.75)
# Shares of the teachers that are the adversary's.
POISONED_SHARES = (0.0, 0.1, 0.3, 0.45)


def audit_prices() -> Iterator[AuditFinding]:
    """Yield what each adversary's worst votes need of the prices of two examples."""
    for what, spec in (("joint price", EXAMPLE), ("price of an answer", PLAIN_MECHANISM)):
        mechanism = build_mechanism(spec, teachers=TEACHERS, classes=CLASSES)
        charged = {o: price(e, Rule("rdp", ORDER)) for o, e in mechanism.events().items()}
        event, answer = mechanism.events()[VoteOutcome.ANSWERED], charged[VoteOutcome.ANSWERED]
        abstention = charged.get(VoteOutcome.ABSTAINED, answer)
        needed, votes = max(
            needed_share(event, answer, abstention, ORDER),
            needed_by_answer(event, answer, ORDER, TEACHERS, CLASSES),
        )
        title = f"{what} of {mechanism.name}, {TEACHERS:,} teachers"
        yield AuditFinding(
            "mechanisms",
            f"{title}: control of the queries",
            "exceeded" if needed > 1 else "holds",
            f"with poisoned shards or without, the worst votes found, {format_votes(votes)}, need "
            f"{needed:.1%} of it (exact laws, no draws)",
        )
        shares = {
            own: needed_if_poisoned(event, answer, abstention, own) for own in POISONED_SHARES
        }
        listed = ", ".join(f"{share:.1%} with {own:.0%}" for own, share in shares.items())
        yield AuditFinding(
            "mechanisms",
            f"{title}: poisoned shards",
            "exceeded" if max(shares.values()) > 1 else "holds",
            f"queries as they come need {listed} of the shards poisoned (exact laws, no draws)",
        )


def needed_if_poisoned(
    event: CostEvent, answer: Price, abstention: Price, poisoned: float
) -> float:
    """Return the largest share of an example's prices that queries as they come are found to need.

    `poisoned`: the share of its teachers that vote as the adversary likes, who knows the other
    votes. The queries are of the kinds of `NATURAL_SHARES`, each as often, and are seen, so that a
    moment of the whole is the mean of theirs.
    """
    costs = abstention.cost / COST_UNITS, answer.cost / COST_UNITS
    own = round(poisoned * TEACHERS)
    worst = []
    for agreed in NATURAL_SHARES:
        moments = (
            _moments(event, votes, moved, ORDER)
            for votes in _poison_votes(_natural(agreed, TEACHERS - own), own)
            for moved in _move_votes(votes)
        )
        worst.append(max(moments, key=lambda each: _find_needed_share(each, costs, ORDER)))
    abstained, answered = np.mean(worst, axis=0)
    return _find_needed_share((float(abstained), float(answered)), costs, ORDER)


def _natural(agreed: float, teachers: int) -> Votes:
    """Return votes of which a share `agreed` is for the first class, and the rest spread evenly."""
    top = round(agreed * teachers)
    each, more = divmod(teachers - top, CLASSES - 1)
    return (top, *(each + (j < more) for j in range(CLASSES - 1)))


def _poison_votes(votes: Votes, own: int) -> Iterator[Votes]:
    """Yield votes with `own` more: some for the second class, the others for the first or third."""
    for second in sorted({int(some) for some in np.linspace(0, own, TOP_COUNTS_TRIED)}):
        for place in (0, 2):
            cast = [*votes]
            cast[1] += second
            cast[place] += own - second
            yield tuple(cast)


def _move_votes(votes: Votes) -> Iterator[Votes]:
    """Yield votes of which one has moved between the first two classes."""
    for loses, gains in ((0, 1), (1, 0)):
        if votes[loses]:
            moved = [*votes]
            moved[loses], moved[gains] = moved[loses] - 1, moved[gains] + 1
            yield tuple(moved)


def needed_by_answer(
    event: CostEvent, answer: Price, order: float, teachers: int, classes: int
) -> tuple[float, Votes]:
    """Return the largest share of the price of an answer that any votes need, and the votes.

    0 for an event that is not priced by its answer.
    """
    if not isinstance(event, GaussianArgmax):
        return 0.0, ()
    found: tuple[float, Votes] = (0.0, ())
    widest = min(teachers, round(6 * event.sigma))
    for lead in sorted({int(lead) for lead in np.linspace(0, widest, TOP_COUNTS_TRIED)}):
        top = (teachers + lead) // 2
        votes = (top, teachers - top, *[0] * (classes - 2))
        for moved in ((top - 1, teachers - top + 1), (top + 1, teachers - top - 1)):
            if min(moved) >= 0:
                moment = _sum_over_labels(votes, (*moved, *votes[2:]), event.sigma, order)
                needed = math.log(moment) / (order - 1) / (answer.cost / COST_UNITS)
                found = max(found, (needed, votes))
    return found


def needed_share(
    event: CostEvent, answer: Price, abstention: Price, order: float
) -> tuple[float, Votes]:
    """Return the largest share of both prices that any votes need, and the votes; > 1: too low.

    0 for an event that is not priced jointly.
    """
    if not isinstance(event, ConfidentMax):
        return 0.0, ()
    costs = abstention.cost / COST_UNITS, answer.cost / COST_UNITS
    found: tuple[float, Votes] = (0.0, ())
    for before, after in _suspects(event):
        moments = _moments(event, before, after, order)
        found = max(found, (_find_needed_share(moments, costs, order), before))
    return found


def format_votes(votes: Votes) -> str:
    """Return votes as text, without the classes that have none."""
    return " : ".join(f"{count:,}" for count in votes if count)


def _find_needed_share(
    moments: tuple[float, float], costs: tuple[float, float], order: float
) -> float:
    def unpaid(share: float) -> float:
        paid = (math.exp(-(order - 1) * share * cost) for cost in costs)
        return sum(m * p for m, p in zip(moments, paid, strict=True)) - 1

    if unpaid(0.0) <= 0:
        return 0.0
    return float(brentq(unpaid, 0.0, 64.0, xtol=1e-6)) if unpaid(64.0) < 0 else 64.0


def _suspects(event: ConfidentMax) -> Iterator[tuple[Votes, Votes]]:
    """Yield votes with a lead that the test is likely to see, and moves to and from the top."""
    n, m = event.teachers, event.classes
    reach = 4 * event.sigma1
    needed = _top_needed(event)
    low, high = max(-(-n // m), round(needed - reach)), min(n - 1, round(needed + reach))
    tops = {*np.linspace(low, high, TOP_COUNTS_TRIED).astype(int), (n + 1) // 2, n // 2 + 2}
    for top in sorted(int(top) for top in tops if low <= top < n):
        for rest in _divide_votes(n - top, m - 1, top):
            yield from (((top, *rest), moved) for moved in _move_votes((top, *rest)))


def _top_needed(event: ConfidentMax) -> int:
    """How many votes the top class needs to pass without noise, if all baselines are the same."""
    return event.threshold + event.baseline


def _divide_votes(votes: int, classes: int, most: int) -> Iterator[Votes]:
    """Yield ways to divide votes among classes, none above `most`."""
    for first in {votes, votes // 2 + 1, -(-votes // classes), 2 * votes // 3}:
        left, counts = votes, []
        for place in range(classes):
            share = -(-left // (classes - place)) if first * (classes - place) < left else first
            counts.append(min(left, share))
            left -= counts[-1]
        if left == 0 and max(counts) <= most:
            yield tuple(counts)


def _moments(event: CostEvent, before: Votes, after: Votes, order: float) -> tuple[float, float]:
    """Σ P^α Q^(1−α) over the abstention, and over the labels."""
    if isinstance(event, GaussianArgmax):
        return 0.0, _sum_over_labels(before, after, event.sigma, order)
    if not isinstance(event, ConfidentMax):
        raise TypeError(f"no exact law is known of {event}")
    tails = [passes(max(votes) - _top_needed(event), event.sigma1) for votes in (before, after)]
    (p, f), (p2, f2) = tails
    answered = _sum_over_labels(before, after, event.sigma2, order)
    return f**order * f2 ** (1 - order), p**order * p2 ** (1 - order) * answered


def _sum_over_labels(before: Votes, after: Votes, sigma: float, order: float) -> float:
    """Σ P^α Q^(1−α) over the labels."""
    here, there = (labels(votes, sigma) for votes in (before, after))
    seen = (here > 0) & (there > 0)
    return float(np.sum(np.exp(order * np.log(here[seen]) + (1 - order) * np.log(there[seen]))))
