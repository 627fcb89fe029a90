"""Costs are counted in integers, so that sums are exact. Prices round up and budgets down."""

from __future__ import annotations

import math
from fractions import Fraction

COST_UNITS = 10**12
"""Costs are counted in 1e-12 of a rule's quantity (μ² or Rényi divergence)."""

DELTA_UNITS = 10**18
"""Additive δ is counted in 1e-18."""

SAMPLER_DELTA = 1
"""Units of δ in every price, for the sampler's distance from the ideal noise (see `noise`)."""

SLACK = 1e-9
"""Relative margin, never in our favour, for the rounding of floating-point formulas."""


def floor_units(value: float, units: int) -> int:
    """Return a budget in whole units, rounded down; never negative."""
    return max(0, math.floor(Fraction(value) * units))


def ceil_units(value: float, units: int) -> int:
    """Return a price in whole units, rounded up."""
    return math.ceil(Fraction(value) * units)
