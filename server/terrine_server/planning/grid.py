"""The parameter values of a mechanism that a plan tries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from terrine_server.privacy.budget.quoting import split_delta
from terrine_server.privacy.mechanisms import MECHANISMS
from terrine_server.privacy.parameters import (
    MAX_GAMMA,
    MAX_SIGMA,
    MIN_GAMMA,
    MIN_SIGMA,
    ParameterError,
)

Grid = Mapping[str, Sequence[float]]
Spec = Mapping[str, object]

SPREADS = (0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3)
"""Noise as shares of the teachers. Less noise is expensive, more drowns the vote."""


def default_grid(name: str, teachers: int, delta: float) -> dict[str, Sequence[float]]:
    """Return the values of each parameter that a plan tries by default."""
    sigmas = _rounded(teachers, SPREADS)
    match name:
        case "gnmax" | "noisy_votes":
            return {"sigma": sigmas}
        case "lnmax":
            scales = [1 / (teachers * spread) for spread in SPREADS]
            return {"gamma": _distinct(_clip(g, MIN_GAMMA, MAX_GAMMA) for g in scales)}
        case "confident_gnmax" | "interactive_gnmax":
            shares = (0.5, 0.6, 0.7, 0.8, 0.9) if name == "confident_gnmax" else (0.3, 0.5, 0.7)
            grid: dict[str, Sequence[float]] = {
                "threshold": sorted({round(share * teachers) for share in shares}),
                "sigma1": _rounded(teachers, (0.1, 0.2, 0.3, 0.6)),
                "sigma2": _rounded(teachers, SPREADS[2:]),
            }
            return grid if name == "confident_gnmax" else grid | {"confidence": [0.9]}
        case "stable":
            each = [split_delta([], delta).conversion / 20 / queries for queries in (50, 500, 5000)]
            return {"sigma": sigmas, "delta_per_query": _distinct(each)}
        case "neighbours":
            raise ParameterError(
                "neighbours cannot be planned from a number of teachers: what it answers depends "
                "on how many people are near a query. See docs/privacy/neighbours.md."
            )
        case "immutable":
            return {"sigma": sigmas, "c": [0, 1, 2, 5]}
    raise ParameterError(f"No mechanism is called {name!r}. Use one of {', '.join(MECHANISMS)}.")


def specifications(name: str, teachers: int, delta: float, given: Grid) -> list[Spec]:
    """Return every combination of a grid's values; `given` values replace the defaults.

    Raises `ParameterError` on a parameter that the mechanism does not have.
    """
    grid = default_grid(name, teachers, delta)
    if name == "immutable" and "gamma" in given:
        del grid["sigma"]
        grid["gamma"] = []
    if "threshold" in grid and "answer_share" in given:
        grid["answer_share"] = []
    if unknown := given.keys() - grid.keys():
        raise ParameterError(
            f"{name} has no parameter {', '.join(sorted(unknown))}; it has {', '.join(grid)}."
        )
    grid |= given
    names = list(grid)
    return [
        {"name": name} | {k: _typed(k, v) for k, v in zip(names, values, strict=True)}
        for values in product(*grid.values())
    ]


def _typed(parameter: str, value: float) -> float:
    return round(value) if parameter in ("threshold", "c") else float(value)


def _rounded(teachers: int, shares: Iterable[float]) -> list[float]:
    return _distinct(_clip(teachers * share, MIN_SIGMA, MAX_SIGMA) for share in shares)


def _distinct(values: Iterable[float]) -> list[float]:
    """Round to three digits, which are enough to choose from and easy to type."""
    return sorted({float(f"{value:.3g}") for value in values})


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
