"""The cost of argmax(counts + Laplace noise): what the answer reveals, not the noisy counts.

docs/privacy/lnmax.md proves that, for any number of classes, any votes and any order of ties, the
answer costs no more than pure gamma-DP or the worst of the pairs of laws in `_laws`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from terrine_server.privacy.numbers import MARGIN, Floats

# The cost of pairs P, Q in any shape […], from ln Q and ln(P/Q) of each outcome, float[3, …].
Cost = Callable[[Floats, Floats], Floats]

# How many votes behind a class is looked at, at most: beyond, the answer costs 2·gamma.
FARTHEST = 10_000

# Into how many pieces each diagonal is divided. With more, high orders cost up to 0.4 % less.
PIECES = 4


@lru_cache(maxsize=4096)  # plans ask for the same orders again and again
def argmax_rdp(gamma: float, order: float) -> float:
    """Return a bound on the Rényi divergence of the answer; ∞ if only 2·gamma-DP is known."""
    steep, growth = 2 * gamma * order, math.expm1(2 * gamma) ** 2 * order * (order - 1) / 2

    def moment(log_q: Floats, ratio: Floats) -> Floats:
        there, back = log_q + order * ratio, log_q + (1 - order) * ratio
        return np.asarray(np.maximum(np.logaddexp.reduce(there), np.logaddexp.reduce(back)))

    def tail(mass: float) -> float:
        return float(np.logaddexp(0, math.log(2 * mass * growth) + max(0, steep - 4 * gamma)))

    rounding = 2.0**-46 * (1 + steep)
    return (_worst(gamma, moment, tail) + rounding) / (order - 1) * (1 + MARGIN)


@lru_cache(maxsize=64)
def argmax_gdp(gamma: float) -> float:
    """Return μ such that the answer is μ-GDP or pure gamma-DP; ∞ if only 2·gamma-DP is known."""

    def width(log_q: Floats, ratio: Floats) -> Floats:
        """The largest Φ⁻¹(P(S)) − Φ⁻¹(Q(S)), where S or its complement is one of the outcomes."""
        scores = [
            np.where(law < 0.5, ndtri(law), -ndtri(law[[1, 0, 0]] + law[[2, 2, 1]]))
            for law in (np.exp(log_q + ratio), np.exp(log_q))
        ]
        with np.errstate(invalid="ignore"):  # ∞ − ∞ where an outcome is impossible
            return np.asarray(np.nanmax(np.abs(scores[0] - scores[1]), axis=0))

    def tail(mass: float) -> float:
        likelier = mass * math.exp(2 * gamma)
        return float(ndtri(likelier) - ndtri(mass)) if likelier < 1 else math.inf

    return _worst(gamma, width, tail) * (1 + MARGIN)


def _worst(gamma: float, cost: Cost, tail: Callable[[float], float]) -> float:
    """Return a bound on the cost of all pairs, or ∞ if one might be too far.

    `tail`: a bound for 2·gamma-DP pairs that have one outcome except with this probability.
    """
    least, last = float(cost(*_laws(gamma, 4)).max()), math.ceil(5 / gamma)
    while last <= min(FARTHEST, 500 / gamma):  # above e^{−500} no probability underflows
        if tail(3 * float(_behind(gamma, np.array(last + 1)))) <= least:
            return float(cost(*_laws(gamma, last)).max())
        last *= 2
    return math.inf


@lru_cache(maxsize=4)
def _laws(gamma: float, last: int) -> tuple[Floats, Floats]:
    """Return ln Q and ln(P/Q) of the pairs in which a class is k = 0, …, last behind, float[3, …].

    On each diagonal they are quadratic in τ ∈ [0, 1]: in the convex hull of the ends of the pieces
    and of their Bézier control points, of which a convex cost is highest at one.
    """
    q, k, ends = math.exp(-gamma), np.arange(last + 1.0)[:, None], np.linspace(0, 1, PIECES + 1)
    low, high = np.append(ends, ends[:-1]), np.append(ends, ends[1:])
    tau, square = (low + high) / 2, low * high
    p, other = (
        np.stack([_law(gamma, *state, tie) for tie in (True, False)], axis=1)
        for state in ((k, tau, square), (k + 2, tau / q, square / q**2))
    )
    ratio = np.log(np.divide(p, other, out=np.ones_like(p), where=other > 0))
    with np.errstate(divide="ignore"):
        return np.log(other), ratio


def _law(gamma: float, k: Floats, tau: Floats, square: Floats, tie: bool) -> Floats:
    """Return the probabilities that the class behind, a third one and the one in front wins.

    `tie`: whether the class behind, by k, wins a tie with the one in front.
    """
    q, n, rest = math.exp(-gamma), 1 + math.exp(-gamma), -math.expm1(-gamma)
    w, cubic = q**k, rest / -math.expm1(-3 * gamma)
    lost = w * (tau * (q / n - cubic * (q / n) ** 2 * w) - square * (q / n) ** 3)
    gap, high = (k, k + 1) if tie else (np.abs(k - 1), np.maximum(k, 1))
    g = q**gap
    third = (1 - q**2 * (1 - g) - q**3 * (1 + g) + cubic * q**5 * g) / n**2 + rest / n * gap + q
    third = q**high * tau * third - w * square * q ** (3 if tie else 2) / n**2
    behind = _behind(gamma, k)
    front = np.where(k == 0, _behind(gamma, k + 1), 1 - behind)
    return np.stack([behind - lost, third, front + lost - third])


def _behind(gamma: float, k: Floats) -> Floats:
    """Return Pr[L′ − L ≥ k], k ≥ 0: that of two classes the one that is k behind wins."""
    q, n, rest = math.exp(-gamma), 1 + math.exp(-gamma), -math.expm1(-gamma)
    return np.asarray(q**k * ((1 + q + 2 * q * q) / n**3 + rest / n**2 * k))
