"""Fit labels to public features: the share of each class, by ridge regression.

Everything here is post-processing of released labels and public inputs: it costs no privacy.
"""

from __future__ import annotations

import numpy as np

from terrine_models.students.answers import Floats

PENALTIES = np.geomspace(1e-6, 1e2, 41)
"""Ridge penalties that are tried, relative to the mean variance of a feature."""
TINY = 1e-9
"""What a row that decides its own fit leaves open: nothing."""


def fit_shares(features: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return weights [d, m] and biases [m] of the ridge regression of shares [N, m] on features.

    The penalty is the one with the least error on rows that are left out, one at a time, in closed
    form. features: [N, d].
    """
    centre, level = features.mean(axis=0), shares.mean(axis=0)
    left, values, right = np.linalg.svd(features - centre, full_matrices=False)
    rotated, squares = left.T @ (shares - level), values**2
    unit = float(squares.sum()) / features.shape[1] or 1.0  # constant features: any penalty

    def error_of(penalty: float) -> float:
        shrunk = squares / (squares + penalty * unit)
        leverage = (left**2) @ shrunk + 1 / len(shares)
        missed = shares - level - left @ (rotated * shrunk[:, None])
        return float(((missed / np.maximum(1 - leverage, TINY)[:, None]) ** 2).mean())

    errors = [error_of(penalty) for penalty in PENALTIES]
    best = PENALTIES[np.flatnonzero(errors == np.min(errors))[-1]]  # of equals, the strongest
    weights: Floats = right.T @ (rotated * (values / (squares + best * unit))[:, None])
    return weights, level - centre @ weights
