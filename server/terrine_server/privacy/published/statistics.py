"""The cost of a threshold's or a stability test's bit at its votes: exactly what it leaks."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from terrine_server.privacy.accounting.bits import bit_rdp, log_tails
from terrine_server.privacy.accounting.checks import Counts, Floats, check_votes
from terrine_server.privacy.accounting.events import GaussianThreshold, StabilityTest
from terrine_server.privacy.parameters import ParameterError, check_sigma


def statistic_of(
    event: GaussianThreshold | StabilityTest, counts: Counts, baselines: Counts | None = None
) -> Counts:
    """Return the integer that the event compares with its threshold, int[B].

    max_j (n_j − b_j) for a threshold, the distance to instability for a stability test. Raises
    `ParameterError` if it lies outside the event's range.
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
    """Return the smallest and the largest value of `statistic_of`."""
    return (0 if isinstance(event, StabilityTest) else event.low), event.high


def bit_table(event: GaussianThreshold | StabilityTest, orders: ArrayLike) -> Floats:
    """Return the cost of the test's bit at each order and each value of its statistic.

    float[A, high − low + 1], for the discrete Gaussian noise that is drawn.
    """
    check_sigma("sigma", event.sigma)
    low, high = statistic_range(event)
    margins = np.arange(low, high + 1) - event.threshold
    return bit_rdp(log_tails(event.sigma, -margins), log_tails(event.sigma, margins + 1), orders)
