"""The cost of a threshold test and the noisy maximum that follows it, priced as one release.

Charged apart, the test pays for its worst histogram and the maximum for its own. No histogram is
the worst for both: where the maximum reveals most, near a tie, the test hardly ever passes. The
theorem, its proof and what was checked: docs/privacy/joint-price.md.

All costs hold at one Rényi order, for any votes that add up to the number of teachers, of which one
changes its class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from terrine_server.privacy.events import ConfidentMax
from terrine_server.privacy.gaussian import gaussian_argmax_rdp
from terrine_server.privacy.numbers import (
    SLACK,
    Floats,
    bernoulli_rdp,
    complements,
    log_psi,
    log_tails,
)

Integers = NDArray[np.int64]

# α(α−1)/σ² up to which the tables keep their precision.
MAX_EXPONENT = 300.0
# Relative margin for sums of tables, all of whose terms are positive.
ROUNDED = 1e-10
# Rarer outcomes have no row of their own.
SMALLEST_TAIL = 1e-280


@dataclass(frozen=True)
class OutcomeCosts:
    """What an answer and an abstention cost, at one order; `flat`: both, at one price for both."""

    answer: float
    abstention: float
    flat: float


def outcome_costs(event: ConfidentMax, order: float) -> OutcomeCosts | None:
    """Return the costs of both outcomes of a release at a Rényi order.

    None if the order is too high for the noise (see `MAX_EXPONENT`), or if the answers' share is
    so small that no price of an abstention makes up for it: test and maximum are then charged
    apart. Which of them applies does not depend on the outcome.
    """
    return costs_by_share(event, (event.answer_share,), order)[0]


def costs_by_share(
    event: ConfidentMax, shares: Sequence[float], order: float
) -> list[OutcomeCosts | None]:
    """Return the `outcome_costs` with each share of an answer in place of the event's."""
    if too_high(event, order):
        return [None] * len(shares)
    most = counts_excess(event.sigma2, order)
    highest = costs_up_to(event, shares, order, most)
    if highest == costs_up_to(event, shares, order, count_excess(event.sigma2, order)):
        # The worst votes are not near a tie, so the bound between these two, which takes long to
        # compute, gives the same costs.
        return highest
    return costs_up_to(event, shares, order, min(most, label_excess(event.sigma2, order)))


def costs_up_to(
    event: ConfidentMax, shares: Sequence[float], order: float, full: float
) -> list[OutcomeCosts | None]:
    """Return the `costs_by_share` if a label reveals at most `full`, whatever the votes.

    `full` bounds Σ π^α π'^(1−α) − 1, of the label's laws before and after a move. Raises ValueError
    if the order is too high.
    """
    cells = release_cells(replace(event, answered=True, answer_share=1.0), order, full)
    flat = cells.flat()
    if not flat < math.inf:
        return [None] * len(shares)
    answers = [share * flat for share in shares]
    abstentions = [
        abstention if answer < flat else min(abstention, flat)
        for answer, abstention in zip(answers, cells.abstentions(answers), strict=True)
    ]
    return [
        OutcomeCosts(answer, abstention, flat) if abstention < math.inf else None
        for answer, abstention in zip(answers, abstentions, strict=True)
    ]


def too_high(event: ConfidentMax, order: float) -> bool:
    """Return whether an order is beyond what tables of this noise are computed for."""
    return order * (order - 1) > MAX_EXPONENT * event.sigma2**2


def label_excess(sigma: float, order: float) -> float:
    """Return a bound on Σ π^α π'^(1−α) − 1, of the label's laws, for any votes.

    It is that of `GaussianArgmax`, and infinite where only the price of all noisy counts is known
    (docs/privacy/gnmax.md).
    """
    return math.expm1((order - 1) * gaussian_argmax_rdp(sigma, order)) * (1 + SLACK)


def counts_excess(sigma: float, order: float) -> float:
    """Return the same of all noisy counts, of which two move by one vote each."""
    return math.expm1(order * (order - 1) / sigma**2) * (1 + SLACK)


def count_excess(sigma: float, order: float) -> float:
    """Return the same of one count; no `label_excess` is less."""
    return math.expm1(order * (order - 1) / (2 * sigma**2))


@dataclass(frozen=True)
class Cells:
    """Every case of one top count v before the move, a direction, and the count v' after it.

    With P and Q the laws of the outcome before and after: `abstained` is P(o)^α Q(o)^(1−α) for an
    abstention, at most; `answered` the same summed over the labels; `excess` their sum less 1,
    which is not computed by a subtraction. float[C] each.
    """

    order: float
    abstained: Floats
    answered: Floats
    excess: Floats

    def flat(self) -> float:
        """Return the divergence: what every query costs if all outcomes cost the same."""
        return float(np.log1p(self.excess.max()) / (self.order - 1) * (1 + SLACK))

    def abstentions(self, answers: Sequence[float]) -> list[float]:
        """Return the least cost of an abstention for each cost of an answer; infinity if none is.

        A pair of costs c is sound if Σ_o P(o)^α Q(o)^(1−α) e^(−(α−1)c(o)) ≤ 1 in every cell: then
        the total that is charged bounds the divergence of the transcript, as in a filter.
        """
        more = self.order - 1
        kept = np.array([math.expm1(-more * answer) for answer in answers])
        paid = -self.answered * kept[:, None]
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            owed = (self.excess * (1 + SLACK) - paid * (1 - SLACK)) / self.abstained
        worst = np.max(np.maximum(owed, 0.0), axis=1).tolist()
        # A cell too large for a number makes it NaN, which is not below 1 either.
        return [-math.log1p(-most) / more * (1 + SLACK) if most < 1 else math.inf for most in worst]


@lru_cache(maxsize=256)
def release_cells(event: ConfidentMax, order: float, full: float) -> Cells:
    """Return the cells of a release. Raises ValueError if the order is too high.

    `full`: the most that Σ π^α π'^(1−α) − 1 can be, of the label's laws, for any votes.
    """
    n = event.teachers
    table = label_table(event.sigma2, order)
    # The class that attains the statistic s has at least v = s + baseline votes.
    top = np.arange(event.low + event.baseline, n + 1)
    tie, lead = top[2 * top <= n + 2], top[2 * top > n + 2]
    lose, gain, aside = table.bounds(lead, n, event.classes, full)
    any_votes = np.full(len(tie), full)
    moves = [(tie, move, any_votes) for move in (-1, 0, 1)]
    moves += [(lead, -1, lose), (lead, 1, gain)]
    moves += [(lead, 0, aside)] if event.classes > 2 else []

    before = np.concatenate([v for v, _, _ in moves])
    step = np.concatenate([np.full(len(v), move) for v, move, _ in moves])
    label = np.concatenate([bound for _, _, bound in moves])
    there = (before + step >= top[0]) & (before + step <= n)
    before, step, label = before[there], step[there], label[there]
    margin = before - event.baseline - event.threshold
    p, f = _passing(event.sigma1, margin)
    p2, f2 = _passing(event.sigma1, margin + step)
    bit = np.where(step == 0, 0.0, bernoulli_rdp(p, f, p2, f2, order))
    with np.errstate(over="ignore", invalid="ignore"):
        abstained = np.exp(order * f - (order - 1) * f2)
        answered = np.exp(order * p - (order - 1) * p2)
        excess = np.expm1((order - 1) * bit) + answered * label
        return Cells(order, abstained, answered * (1 + label), excess)


def _passing(sigma: float, margin: Integers) -> tuple[Floats, Floats]:
    """Return ln Pr[margin + Y ≥ 0] and ln Pr[margin + Y < 0], Y ~ N_Z(0, sigma²)."""
    return complements(log_tails(sigma, -margin), log_tails(sigma, margin + 1))


@dataclass(frozen=True)
class LabelTable:
    """How much the label can tell, by how often it is not the class with the most votes.

    Row i belongs to k = i, for differences D = Y − Y' of two noises. `tail`: Pr[D ≥ k]. `lose`,
    `gain`, `aside`: the largest Σ π^α π'^(1−α) − 1 of the label's laws π, π' before and after the
    top class loses the moved vote, gains it, or has no part in it, if the label is another class
    with probability ≤ `tail`. float[K].
    """

    tail: Floats
    lose: Floats
    gain: Floats
    aside: Floats

    def bounds(
        self, top: Integers, teachers: int, classes: int, full: float
    ) -> tuple[Floats, Floats, Floats]:
        """Return `lose`, `gain` and `aside` for top counts above half of the votes, float[V] each.

        `full`: what bounds them for any votes.

        Another class wins with probability at most U(2v − n) + (m − 2)·U(v), with U the tail: the
        noises must differ by v − n_j, and U is convex, so all other votes in one class are worst.
        """
        last = len(self.tail) - 1
        near, far = np.minimum(2 * top - teachers, last), np.minimum(top, last)
        wrong = (self.tail[near] + (classes - 2) * self.tail[far]) * (1 + 3 * ROUNDED)
        # The largest k with tail ≥ wrong: rows are in descending order.
        row = np.maximum(np.searchsorted(-self.tail, -wrong, side="right") - 1, 0)
        never = wrong > self.tail[0]
        return tuple(  # type: ignore[return-value]
            np.where(never, full, np.minimum(bound[row], full))
            for bound in (self.lose, self.gain, self.aside)
        )


@lru_cache(maxsize=256)
def label_table(sigma: float, order: float) -> LabelTable:
    """Return the table of N_Z(0, sigma²) at a Rényi order; ValueError if out of range."""
    exponent = order * (order - 1) / sigma**2
    if exponent > MAX_EXPONENT:
        raise ValueError(f"order {order:g} is too high for a noise of sigma = {sigma:g}")
    # Beyond `reach`, all that is left out weighs less than e^-250, even where it weighs most. Rows
    # end sooner, where probabilities would underflow; the last one bounds all that would follow.
    reach = math.ceil(2 * order + 8 + 2 * sigma * (math.sqrt(exponent) + 16))
    k = np.arange(-reach, reach + 1)
    log_mass = -(k.astype(np.float64) ** 2) / (4 * sigma**2) + np.where(
        k % 2 == 0, _log_theta(sigma, 0.0), _log_theta(sigma, 0.5)
    )
    log_mass -= logsumexp(log_mass)
    mass = np.exp(log_mass)
    tail = np.cumsum(mass[::-1])[::-1]  # U(k) = Pr[D ≥ k], summed from the small end

    rows = slice(reach, reach + int(np.count_nonzero(tail[reach:] > SMALLEST_TAIL)))
    lost = _move_law(k, mass, tail, log_mass, sigma, order, -2)
    won = _move_law(k, mass, tail, log_mass, sigma, order, 2)
    # Λ(k) is the largest over all k' ≥ k, of which the table has all that matter.
    lose, gain = (_running(one.majorant[rows] + one.rest[rows]) for one in (lost, won))
    rest = _running(np.maximum(lost.rest[rows], won.rest[rows]))
    by_weight = np.argsort(-lost.weights, kind="stable")
    probability, total = np.cumsum(mass[by_weight]), np.cumsum(lost.terms[by_weight])
    # The whole of the last value that is needed, so rounded up.
    least = np.searchsorted(probability, tail[rows] * (1 + ROUNDED))
    aside = total[np.minimum(least, len(total) - 1)] + rest
    margin, left_out = 1 + SLACK, math.exp(-250.0)
    return LabelTable(
        tail=tail[rows] * (1 - ROUNDED),
        lose=lose * margin + left_out,
        gain=gain * margin + left_out,
        aside=aside * margin + left_out,
    )


@dataclass(frozen=True)
class _Moved:
    """`terms`: e(k) = d'(k) ψ(d(k)/d'(k)). `weights`: ln e(k)/d(k). `majorant`: the least concave
    one of the sums of terms, as a function of U(k). `rest`: (1 − U') ψ((1 − U)/(1 − U'))."""

    terms: Floats
    weights: Floats
    majorant: Floats
    rest: Floats


def _move_law(
    k: Integers,
    mass: Floats,
    tail: Floats,
    log_mass: Floats,
    sigma: float,
    order: float,
    by: int,
) -> _Moved:
    """Compare the law d of D with d'(k) = d(k + by), |by| = 2."""
    # ln d(k)/d(k + by), exactly: mass(k)/mass(k − 2) = e^((1−k)/σ²).
    ratio = (1 - k) / sigma**2 if by < 0 else (k + 1) / sigma**2
    weights = log_psi(ratio, order) - ratio
    terms = np.exp(log_mass + weights)
    above, below = np.cumsum(terms[::-1])[::-1], np.concatenate([[0.0], np.cumsum(terms)[:-1]])
    under = np.concatenate([[0.0], np.cumsum(mass)[:-1]])  # 1 − U(k)
    # Concave for k ≥ 1, convex below: the majorant leaves the sums where the chord to the end
    # (U = 1, all terms) is the least steep, which is where the next term is as steep. The chord
    # itself can be the same in all digits at many k, and from the far end it would be rounded away.
    zero = len(k) // 2
    slopes = below[zero + 1 :] / under[zero + 1 :]
    steep = weights[zero + 1 :] >= np.log(slopes)
    steep[-1] = True
    touch = zero + 1 + int(np.argmax(steep))
    chord = above[touch] + slopes[touch - zero - 1] * (tail - tail[touch])
    majorant = np.where(np.arange(len(k)) >= touch, above, np.maximum(chord, above))

    # U' − U = d(k−1) + d(k−2) if D moves up, −d(k) − d(k+1) if it moves down.
    if by < 0:
        after = np.concatenate([[0.0, 0.0], under[:-2]])
        step = np.concatenate([[0.0, 0.0], mass[1:-1] + mass[:-2]])
    else:
        after = np.concatenate([under[2:], [1.0, 1.0]])
        step = -np.concatenate([mass[:-1] + mass[1:], [0.0]])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rest = after * np.exp(log_psi(np.log1p(step / after), order))
    return _Moved(terms, weights, majorant, rest)


def _running(values: Floats) -> Floats:
    """Return the maximum of each value and all later ones."""
    result: Floats = np.maximum.accumulate(values[::-1])[::-1]
    return result


def _log_theta(sigma: float, start: float) -> float:
    """Return ln Σ_j exp(−(j + start)²/sigma²) over all integers j."""
    reach = math.ceil(30 * sigma) + 2
    return float(logsumexp(-((np.arange(-reach, reach + 1) + start) ** 2) / sigma**2))
