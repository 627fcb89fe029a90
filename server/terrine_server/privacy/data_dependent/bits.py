"""What a threshold's or a stability test's bit costs at its votes: exactly what it leaks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from terrine_server.privacy.accounting import log_tails
from terrine_server.privacy.costs import GaussianThreshold, StabilityTest
from terrine_server.privacy.data_dependent.checks import (
    MARGIN,
    SMALLEST,
    Counts,
    Floats,
    check_orders,
    check_votes,
)
from terrine_server.privacy.data_dependent.noisy_max import log1mexp
from terrine_server.privacy.parameters import ParameterError, check_sigma

_ROUNDING = 2.0**-50  # a few roundings


def statistic_of(
    event: GaussianThreshold | StabilityTest, counts: Counts, baselines: Counts | None = None
) -> Counts:
    """Return the integer that the event compares with its threshold, int[B].

    max_j (n_j − b_j) for a threshold, the distance to instability for a stability test. Raises
    `ParameterError` where it lies outside the event's range.
    """
    votes = check_votes(counts)
    if isinstance(event, StabilityTest):
        ranked = np.partition(votes, -2, axis=1)
        statistic = np.maximum(0, (ranked[:, -1] - ranked[:, -2] - 1) // 2)
    elif baselines is None:
        statistic = votes.max(axis=1, initial=0)
    elif baselines.shape == votes.shape and np.issubdtype(baselines.dtype, np.integer):
        statistic = (votes - baselines).max(axis=1, initial=-(2**62))
    else:
        raise ParameterError(f"Baselines must be integers of shape {votes.shape}.")
    low, high = statistic_range(event)
    if len(statistic) and (statistic.min() < low or statistic.max() > high):
        raise ParameterError(f"The votes were not cast by the ensemble of this event: {event}.")
    return np.asarray(statistic)


def statistic_range(event: GaussianThreshold | StabilityTest) -> tuple[int, int]:
    """Return the least and the largest value of `statistic_of`."""
    return (0 if isinstance(event, StabilityTest) else event.low), event.high


def bit_table(event: GaussianThreshold | StabilityTest, orders: ArrayLike) -> Floats:
    """Return the cost of the test's bit at each order and each value of its statistic.

    float[A, high − low + 1], for the discrete Gaussian noise that is drawn.
    """
    check_sigma("sigma", event.sigma)
    low, high = statistic_range(event)
    margins = np.arange(low, high + 1) - event.threshold
    return bit_rdp(log_tails(event.sigma, -margins), log_tails(event.sigma, margins + 1), orders)


def bit_rdp(log_passed: Floats, log_failed: Floats, orders: ArrayLike) -> Floats:
    """Return the exact cost of a bit whose statistic moves by at most one.

    `log_passed`, `log_failed`: float[V], ln Pr[bit = 1] and ln Pr[bit = 0] at each value of the
    statistic in its range. The cost at v is the larger of D_α(Bern(p_v)‖Bern(p_{v±1})); P18 bounds
    it by the whole Gaussian's α/2σ². Returns float[A, V].
    """
    alpha = check_orders(orders)
    # Of two complementary probabilities only the smaller is known to full precision.
    log_p = np.where(log_passed < log_failed, log_passed, log1mexp(-log_failed))
    log_s = np.where(log_passed < log_failed, log1mexp(-log_passed), log_failed)
    cost = np.zeros((len(alpha), len(log_p)))
    here, there = slice(1, None), slice(None, -1)
    for a, order in enumerate(alpha):
        for x, y in ((here, there), (there, here)):
            np.maximum(
                cost[a, x],
                _bernoulli(log_p[x], log_s[x], log_p[y], log_s[y], float(order)),
                out=cost[a, x],
            )
    return cost


def _bernoulli(
    log_p: Floats, log_s: Floats, log_p2: Floats, log_s2: Floats, order: float
) -> Floats:
    """D_α(Bern(p)‖Bern(p′)), rounded up; s = 1 − p. float[V].

    ln(1 + x)/(α−1) with x = p^α p′^{1−α} + s^α s′^{1−α} − 1. Written with the smaller probability u
    and the step b = ln(u′/u), both terms of x contain the same u′ − u, so that their first orders
    cancel exactly and x keeps its relative precision from 1 down to 1e-300.
    """
    swap = log_p > log_s
    small, small2 = np.where(swap, log_s, log_p), np.where(swap, log_s2, log_p2)
    large, large2 = np.where(swap, log_p, log_s), np.where(swap, log_p2, log_s2)
    step, more = small2 - small, order - 1
    first, second = order * large - more * large2, order * small - more * small2
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        back = np.log1p(-_growth(small - large, step))
        terms = _growth(large, -more * back), _growth(small, -more * step)
        x = terms[0] + terms[1] + _ROUNDING * (np.abs(terms[0]) + np.abs(terms[1]))
        steep = np.logaddexp(first, second)
        total = np.where(np.maximum(first, second) < 1, np.log1p(np.maximum(x, 0)), steep)
        # u is known up to relative error 2⁻⁵² |ln u|, and x is of second order in the step.
        margin = MARGIN + _ROUNDING * (1 - small) / np.abs(step)
        cost: Floats = np.maximum(total, 0) / more * (1 + margin) + SMALLEST
    return cost


def _growth(start: Floats, step: Floats) -> Floats:
    """e^start (e^step − 1), without overflow of a factor."""
    large = np.exp(start + step) - np.exp(start)
    return np.where(step > 1, large, np.exp(start) * np.expm1(np.minimum(step, 1)))
