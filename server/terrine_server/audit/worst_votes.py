"""Attack prices at the worst votes that can be found, by exact laws instead of draws.

One query of a large ensemble reveals so little that no number of draws would show a price that is a
tenth too low. But the law of its outcome can be computed: sums over all values of the noise, in
which nothing of a price's own theory appears (`accounting.joint`, `accounting.gaussian`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from terrine_server.audit.findings import AuditFinding
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
from terrine_server.privacy.accounting.units import COST_UNITS

Floats = NDArray[np.float64]
Votes = tuple[int, ...]

EXAMPLE = {
    "name": "confident_gnmax",
    "threshold": 1600,
    "sigma1": 400.0,
    "sigma2": 300.0,
    "answer_share": 0.5,
}
TEACHERS, CLASSES, ORDER = 2000, 10, 17.71
ALONE = {"name": "gnmax", "sigma": 40.0}
LEVELS = 40
"""How many top counts are tried."""


def audit_joint_price() -> AuditFinding:
    """Return what the worst votes that are found need of the price list of an example."""
    mechanism = build_mechanism(EXAMPLE, teachers=TEACHERS, classes=CLASSES)
    events = mechanism.events()
    charged = {outcome: price(event, Rule("rdp", ORDER)) for outcome, event in events.items()}
    prices = charged[VoteOutcome.ANSWERED], charged[VoteOutcome.ABSTAINED]
    needed, votes = needed_share(events[VoteOutcome.ANSWERED], *prices, ORDER)
    return AuditFinding(
        "mechanisms",
        f"joint price of confident_gnmax, {TEACHERS:,} teachers",
        "exceeded" if needed > 1 else "holds",
        f"the worst votes found, {shown(votes)}, need {needed:.1%} of it (exact laws, no draws)",
    )


def audit_answer_price() -> AuditFinding:
    """Return what the worst votes that are found need of the price of an answer in an example."""
    mechanism = build_mechanism(ALONE, teachers=TEACHERS, classes=CLASSES)
    (event,) = mechanism.events().values()
    charged = price(event, Rule("rdp", ORDER))
    needed, votes = needed_by_answer(event, charged, ORDER, TEACHERS, CLASSES)
    return AuditFinding(
        "mechanisms",
        f"price of an answer of gnmax, {TEACHERS:,} teachers",
        "exceeded" if needed > 1 else "holds",
        f"the worst votes found, {shown(votes)}, need {needed:.1%} of it (exact laws, no draws)",
    )


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
    for lead in sorted({int(lead) for lead in np.linspace(0, widest, LEVELS)}):
        top = (teachers + lead) // 2
        votes = (top, teachers - top, *[0] * (classes - 2))
        for moved in ((top - 1, teachers - top + 1), (top + 1, teachers - top - 1)):
            if min(moved) >= 0:
                moment = _labelled(votes, (*moved, *votes[2:]), event.sigma, order)
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
        found = max(found, (_needed(moments, costs, order), before))
    return found


def shown(votes: Votes) -> str:
    """Return votes as text, without the classes that have none."""
    return " : ".join(f"{count:,}" for count in votes if count)


def _needed(moments: tuple[float, float], costs: tuple[float, float], order: float) -> float:
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
    tops = {*np.linspace(low, high, LEVELS).astype(int), (n + 1) // 2, n // 2 + 2}
    for top in sorted(int(top) for top in tops if low <= top < n):
        for rest in _divided(n - top, m - 1, top):
            votes = (top, *rest)
            for loses, gains in ((0, 1), (1, 0)):
                if votes[loses]:
                    moved = list(votes)
                    moved[loses], moved[gains] = moved[loses] - 1, moved[gains] + 1
                    yield votes, tuple(moved)


def _top_needed(event: ConfidentMax) -> int:
    """How many votes the top class needs to pass without noise, if all baselines are the same."""
    return event.threshold + event.baseline


def _divided(votes: int, classes: int, most: int) -> Iterator[Votes]:
    """Yield ways to divide votes among classes, none above `most`."""
    for first in {votes, votes // 2 + 1, -(-votes // classes), 2 * votes // 3}:
        left, counts = votes, []
        for place in range(classes):
            share = -(-left // (classes - place)) if first * (classes - place) < left else first
            counts.append(min(left, share))
            left -= counts[-1]
        if left == 0 and max(counts) <= most:
            yield tuple(counts)


def _moments(event: ConfidentMax, before: Votes, after: Votes, order: float) -> tuple[float, float]:
    """Σ P^α Q^(1−α) over the abstention, and over the labels."""
    tails = [_passes(max(votes) - _top_needed(event), event.sigma1) for votes in (before, after)]
    (p, f), (p2, f2) = tails
    labels = _labelled(before, after, event.sigma2, order)
    return f**order * f2 ** (1 - order), p**order * p2 ** (1 - order) * labels


def _labelled(before: Votes, after: Votes, sigma: float, order: float) -> float:
    """Σ P^α Q^(1−α) over the labels."""
    here, there = (_labels(votes, sigma) for votes in (before, after))
    seen = (here > 0) & (there > 0)
    return float(np.sum(np.exp(order * np.log(here[seen]) + (1 - order) * np.log(there[seen]))))


@lru_cache(maxsize=8)
def _mass(sigma: float) -> Floats:
    reach = math.ceil(12 * sigma) + 2
    mass = np.exp(-(np.arange(-reach, reach + 1, dtype=np.float64) ** 2) / (2 * sigma**2))
    return np.asarray(mass / mass.sum())


def _passes(margin: int, sigma: float) -> tuple[float, float]:
    """Pr[margin + Y ≥ 0] and its complement, each summed by itself."""
    mass = _mass(sigma)
    first = min(max(len(mass) // 2 - margin, 0), len(mass))
    return float(mass[first:].sum()), float(mass[:first].sum())


@lru_cache(maxsize=4096)
def _labels(votes: Votes, sigma: float) -> Floats:
    """Pr[argmax_j (votes_j + Y_j) = j], float[m]; ties go to the lowest class."""
    mass = _mass(sigma)
    low, width = min(votes), max(votes) - min(votes) + len(mass) + 1
    rows = {}
    for count in set(votes):
        row = np.zeros(width)
        row[count - low + 1 : count - low + 1 + len(mass)] = mass
        rows[count] = row, np.cumsum(row)
    at_most = np.array([rows[count][1] for count in votes])
    below = np.concatenate([np.zeros((len(votes), 1)), at_most[:, :-1]], axis=1)
    return np.array(
        [
            np.sum(rows[count][0] * np.prod(below[:j], axis=0) * np.prod(at_most[j + 1 :], axis=0))
            for j, count in enumerate(votes)
        ]
    )
