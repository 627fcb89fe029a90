"""How much noise lets one budget pay for the noisy counts of every public row, once."""

from __future__ import annotations

import math

from terrine_server.privacy.accounting.conversions import gdp_budget
from terrine_server.privacy.accounting.events import GaussianNoisyCounts
from terrine_server.privacy.budget.quoting import quote, split_delta
from terrine_server.privacy.budget.terms import Account
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.parameters import MAX_SIGMA, MIN_SIGMA, ParameterError


def sigma_for_rows(rows: int, teachers: int, classes: int, epsilon: float, delta: float) -> float:
    """Return the least σ, in votes and with three digits, at which ε certainly pays for `rows`.

    About √(2·rows/μ²), with μ² the budget in Gaussian DP. Raises `ParameterError` if it would be
    more than can be drawn.
    """
    conversion = split_delta([GaussianNoisyCounts(MIN_SIGMA)], delta).conversion
    sigma = max(MIN_SIGMA, math.sqrt(2 * rows / gdp_budget(epsilon, conversion)))
    while (sigma := _up(sigma)) <= MAX_SIGMA:
        if _affordable(NoisyVotes(teachers, classes, sigma), epsilon, delta) >= rows:
            return sigma
        sigma *= 1.0001
    raise ParameterError(
        f"{rows:,} rows need noise of σ = {sigma:,.0f} votes for ε = {epsilon:g}; "
        f"at most {MAX_SIGMA:,.0f} can be drawn. Ask fewer rows, or use a larger epsilon."
    )


def fitted_noise(rows: int, teachers: int, sigma: float, features: int) -> float:
    """Return the standard deviation of a share that least squares fits, on average over the rows.

    σ/n·√(d/rows), which is √(2d/(n²μ²)) at `sigma_for_rows`, whatever the number of rows. It is
    noise alone: what d features cannot describe comes on top.
    """
    return sigma / teachers * math.sqrt(min(features, rows) / rows)


def _affordable(mechanism: NoisyVotes, epsilon: float, delta: float) -> int:
    try:
        return quote(mechanism, epsilon, delta).affordable(Account())
    except ParameterError:
        return 0  # not a single query


def _up(value: float) -> float:
    """Round up to three digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / step - 1e-9) * step:.10g}")
