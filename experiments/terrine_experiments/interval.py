"""How far the figure of a new run may lie from the mean of those that were made."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.stats import norm, t

CONFIDENCE = 0.95


def half_width(figures: Sequence[float], tested: int) -> float | None:
    """Return h such that a new run's figure is within h of the mean of `figures`, for 95 %.

    figures: accuracies [K] of K runs, shares of one, all on the same `tested` inputs. With p their
    mean, s their standard deviation, and t and z the two-sided 95 % points of Student's
    distribution with K − 1 degrees of freedom and of the normal one,

        h² = t² s² (1 + 1/K) + z² p (1 − p) / tested.

    The first term is the prediction interval of one more run; the second, the sampling of the test
    inputs. So it covers what a new run has right of the same inputs, and of all inputs like them.
    Together they cover at least 95 %: given s, coverage is a concave function of how the variance
    is divided between them, and it is 95 % where there is only one. None of one run: it does not
    show how runs differ. Raises ValueError without any.
    """
    runs, mean = len(figures), statistics.fmean(figures)
    if runs == 1:
        return None
    tail = 0.5 + CONFIDENCE / 2
    of_runs = t.ppf(tail, runs - 1) ** 2 * statistics.variance(figures) * (1 + 1 / runs)
    of_tests = norm.ppf(tail) ** 2 * mean * (1 - mean) / tested
    return math.sqrt(of_runs + of_tests)


def shown(figures: Sequence[float], tested: int) -> str:
    """The mean and the interval as text, rounded up."""
    runs, mean, half = len(figures), statistics.fmean(figures), half_width(figures, tested)
    if half is None:
        return f"{mean:.2%} (one run: no interval)"
    return f"{mean:.2%} ± {math.ceil(1e4 * half) / 100:.2f} (95 %, {runs} runs)"
