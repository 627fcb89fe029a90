"""Shared by exact costs: margins for rounding up, and checks of their inputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine_server.privacy.parameters import ParameterError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MARGIN = 1e-10
"""Relative margin for rounding up, far above the error of the formulas in double precision."""

SMALLEST = 1e-300
"""A cost that underflows is rounded up to this."""


def check_orders(orders: ArrayLike) -> Floats:
    """Return Rényi orders as float[A]; raise `ParameterError` unless all are finite and > 1."""
    alpha = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if alpha.ndim != 1 or not np.all(np.isfinite(alpha) & (alpha > 1)):
        raise ParameterError(f"Rényi orders must be finite and above 1, not {orders!r}.")
    return alpha


def check_votes(counts: NDArray[np.int64], teachers: int | None = None) -> Counts:
    """Return vote counts as int64[B, m], or raise `ParameterError` without quoting any count.

    `teachers`: the sum required of every row; None allows any sum.
    """
    votes = np.asarray(counts)
    if votes.ndim != 2 or votes.shape[1] < 2 or not np.issubdtype(votes.dtype, np.integer):
        raise ParameterError(
            f"Vote counts must be integers of shape [B, m ≥ 2], not {votes.dtype} {votes.shape}."
        )
    votes = votes.astype(np.int64, copy=False)
    if np.any(votes < 0):
        raise ParameterError("Vote counts must not be negative.")
    if teachers is not None and np.any(votes.sum(axis=1) != teachers):
        raise ParameterError(f"Each row of vote counts must sum to {teachers}, one per teacher.")
    return votes
