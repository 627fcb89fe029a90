"""Parameter checks. Every error says what was given, what was expected and why."""

from __future__ import annotations

import math

# The allowed ε of a project or an ensemble. In this range the 256-bit sampler's slack, multiplied
# by e^ε, stays below what a query pays for it (docs/decisions/0010-noise-of-256-bits.md).
MIN_EPSILON, MAX_EPSILON = 1e-6, 100.0

# Standard deviations, in votes, for which the discrete Gaussian is sampled and priced.
#
# Below, more than three draws in four are 0, so there is hardly any noise left to price. Above, the
# sampler's table would have more than 378,000 entries (12 MB).
MIN_SIGMA, MAX_SIGMA = 0.5, 10_000.0

# Inverse scales of the discrete Laplace noise, in 1/votes, limited for the same two reasons.
MIN_GAMMA, MAX_GAMMA = 0.001, 50.0

# What an answer may cost, as a multiple of what one price for all outcomes would be.
MIN_ANSWER_SHARE, MAX_ANSWER_SHARE = 0.001, 100.0

MAX_TEACHERS = 1_000_000
MAX_CLASSES = 100_000
# Where noisy counts are released, every answer sends and stores one for each class.
MAX_COUNTED_CLASSES = 1000


class ParameterError(ValueError):
    """A mechanism parameter, ε or δ that cannot be used. The text says why and what would work."""


def real(name: str, value: object) -> float:
    """Return `value` as a finite float, or raise `ParameterError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ParameterError(f"{name} must be a number, not {value!r}.")
    if not math.isfinite(value):
        raise ParameterError(f"{name} must be finite, not {value}.")
    return float(value)


def within(name: str, value: object, low: float, high: float, why: str) -> float:
    """Return `value` as a float in [low, high], or raise `ParameterError`."""
    number = real(name, value)
    if not low <= number <= high:
        raise ParameterError(f"{name} = {number:g} is not between {low:g} and {high:g}: {why}.")
    return number


def integer(name: str, value: object, low: int, high: int, why: str) -> int:
    """Return `value` as an int in [low, high], or raise `ParameterError`."""
    if isinstance(value, float) and value > high:  # as 1e100 is written
        raise ParameterError(f"{name} = {value:g} is not between {low} and {high}: {why}.")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(f"{name} must be a whole number, not {value!r}.")
    if not low <= value <= high:
        shown = value if abs(value) < 10**18 else f"{value:g}"
        raise ParameterError(f"{name} = {shown} is not between {low} and {high}: {why}.")
    return value


def check_sigma(name: str, value: object) -> float:
    """Check a Gaussian standard deviation, in votes."""
    if real(name, value) <= 0:
        raise ParameterError(
            f"{name} = {value} must be positive: without noise there is no privacy."
        )
    why = "the discrete Gaussian's table and price are proven in this range"
    return within(name, value, MIN_SIGMA, MAX_SIGMA, why)


def check_gamma(value: object) -> float:
    """Check an inverse Laplace scale, in 1/votes."""
    if real("gamma", value) <= 0:
        raise ParameterError(f"gamma = {value} must be positive; the noise has scale 1/gamma.")
    why = "the noise has scale 1/gamma, and its table is limited to scales of 0.02 to 1000 votes"
    return within("gamma", value, MIN_GAMMA, MAX_GAMMA, why)


def check_threshold(value: object, teachers: int) -> int:
    """Check a vote threshold T against the number of teachers."""
    why = f"{teachers} teachers cast at most {teachers} votes"
    return integer("threshold", value, 0, teachers, why)


def check_answer_share(value: object) -> float | None:
    """Check what an answer costs, as a multiple of one price for all outcomes; None is allowed."""
    if value is None:
        return None
    why = "far from 1, one of the outcomes costs next to nothing, or everything"
    return within("answer_share", value, MIN_ANSWER_SHARE, MAX_ANSWER_SHARE, why)


def check_ensemble(teachers: object, classes: object) -> tuple[int, int]:
    """Check the size of an ensemble."""
    return (
        integer("teachers", teachers, 1, MAX_TEACHERS, "a vote needs at least one teacher"),
        integer("classes", classes, 2, MAX_CLASSES, "a label needs at least two classes"),
    )


def check_epsilon(value: object) -> float:
    """Check a privacy budget's ε."""
    if real("epsilon", value) <= 0:
        raise ParameterError(f"epsilon = {value} must be positive.")
    why = "less pays for no query, and more gives no meaningful privacy"
    return within("epsilon", value, MIN_EPSILON, MAX_EPSILON, why)


def check_delta(name: str, value: object) -> float:
    """Check a failure probability δ."""
    number = real(name, value)
    if not 0 < number < 1:
        raise ParameterError(f"{name} = {number:g} must lie strictly between 0 and 1.")
    return number
