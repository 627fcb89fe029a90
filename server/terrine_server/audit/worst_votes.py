"""Attack prices at the worst votes that can be found, by exact laws instead of draws.

One query of a large ensemble reveals so little that no number of draws would show a price that is a
tenth too low. But the law of its outcome can be computed: sums over all values of the noise, in
which nothing of a price's own theory appears (`accounting.joint`, `accounting.gaussian`).

The adversaries are those of Chadha, Jagielski, Papernot, Choquette-Choo and Nasr, *Auditing Private
Prediction* (ICML 2024, arXiv 2402.09403). Who controls the queries can bring about any split of the
teachers between two classes. Who controls a share of the shards, but not the queries, adds the
votes of those teachers to what the others think of queries as they come.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.optimize import brentq

from terrine_server.audit.laws import Votes, labels, passes
from terrine_server.findings import AuditFinding
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
NATURAL = (1.0, 0.99, 0.95, 0.9, 0.75)
"""Shares of honest teachers that agree on queries as they come."""
POISONED = (0.0, 0.1, 0.3, 0.45)
"""Shares of the teachers that are the adversary's."""


def audit_prices() -> Iterator[AuditFinding]:
    """Yield what each adversary's worst votes need of the prices of two examples."""
    for what, spec in (("joint price", EXAMPLE), ("price of an answer", ALONE)):
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
            f"with poisoned shards or without, the worst votes found, {shown(votes)}, need "
            f"{needed:.1%} of it (exact laws, no draws)",
        )
        shares = {own: needed_if_poisoned(event, answer, abstention, own) for own in POISONED}
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
    votes. The queries are of the kinds of `NATURAL`, each as often, and are seen, so that a moment
    of the whole is the mean of theirs.
    """
    costs = abstention.cost / COST_UNITS, answer.cost / COST_UNITS
    own = round(poisoned * TEACHERS)
    worst = []
    for agreed in NATURAL:
        moments = (
            _moments(event, votes, moved, ORDER)
            for votes in _poisoned(_natural(agreed, TEACHERS - own), own)
            for moved in _moved(votes)
        )
        worst.append(max(moments, key=lambda each: _needed(each, costs, ORDER)))
    abstained, answered = np.mean(worst, axis=0)
    return _needed((float(abstained), float(answered)), costs, ORDER)


def _natural(agreed: float, teachers: int) -> Votes:
    """Return votes of which a share `agreed` is for the first class, and the rest spread evenly."""
    top = round(agreed * teachers)
    each, more = divmod(teachers - top, CLASSES - 1)
    return (top, *(each + (j < more) for j in range(CLASSES - 1)))


def _poisoned(votes: Votes, own: int) -> Iterator[Votes]:
    """Yield votes with `own` more: some for the second class, the others for the first or third."""
    for second in sorted({int(some) for some in np.linspace(0, own, LEVELS)}):
        for place in (0, 2):
            cast = [*votes]
            cast[1] += second
            cast[place] += own - second
            yield tuple(cast)


def _moved(votes: Votes) -> Iterator[Votes]:
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
            yield from (((top, *rest), moved) for moved in _moved((top, *rest)))


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


def _moments(event: CostEvent, before: Votes, after: Votes, order: float) -> tuple[float, float]:
    """Σ P^α Q^(1−α) over the abstention, and over the labels."""
    if isinstance(event, GaussianArgmax):
        return 0.0, _labelled(before, after, event.sigma, order)
    if not isinstance(event, ConfidentMax):
        raise TypeError(f"no exact law is known of {event}")
    tails = [passes(max(votes) - _top_needed(event), event.sigma1) for votes in (before, after)]
    (p, f), (p2, f2) = tails
    answered = _labelled(before, after, event.sigma2, order)
    return f**order * f2 ** (1 - order), p**order * p2 ** (1 - order) * answered


def _labelled(before: Votes, after: Votes, sigma: float, order: float) -> float:
    """Σ P^α Q^(1−α) over the labels."""
    here, there = (labels(votes, sigma) for votes in (before, after))
    seen = (here > 0) & (there > 0)
    return float(np.sum(np.exp(order * np.log(here[seen]) + (1 - order) * np.log(there[seen]))))
