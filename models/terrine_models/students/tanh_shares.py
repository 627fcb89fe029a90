"""Noisy counts of two classes: shares that are a tanh of the features.

A share stays between 0 and 1, and near them a regression that is linear in the features bends where
it should not. So the difference of the two shares is fitted by tanh(x·w + b), by squared errors
with a penalty on w.
"""

from __future__ import annotations

import numpy as np

from terrine_models.students.answers import Floats

SPREAD = 0.1
"""Variance that x·w is expected to have before any count is seen, along the features' usual size.
The penalty on w is the variance of the noise divided by that of w. On Adult 0.05 to 0.2 did equally
well; where features say little, as of late flights, 0.05 shrinks too much."""
STEPS, ENOUGH = 25, 1e-6
"""Newton steps at most, and the relative gain at which they end."""


def fit_tanh(features: Floats, shares: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return W [d, 2] and b [2] of shares (1 ± tanh(x·w + b)) / 2, fitted to noisy ones [N, 2].

    Of these scores the shares are a softmax. The penalty follows from the known `noise` of each
    share; nothing is chosen on the answers. Raises ValueError unless there are two classes.
    """
    if shares.shape[1] != 2:
        raise ValueError(f"a tanh link is for two classes; shares have shape {shares.shape}")
    variance = 2 * noise**2  # of the difference of two shares
    difference = shares[:, 1] - shares[:, 0]
    centre = features.mean(axis=0)
    rows = np.column_stack([features - centre, np.ones(len(features))])
    size = float((rows[:, :-1] ** 2).sum(axis=1).mean())
    penalty = variance * size / SPREAD
    ridge = np.full(rows.shape[1], max(penalty, 1e-9 * len(rows)))
    ridge[-1] = 1e-9 * len(rows)

    def loss_of(weights: Floats) -> float:
        missed = np.tanh(rows @ weights) - difference
        return float(missed @ missed + (ridge * weights) @ weights)

    weights = np.zeros(rows.shape[1])
    weights[-1] = np.arctanh(np.clip(difference.mean(), -0.9, 0.9))
    loss = loss_of(weights)
    for _ in range(STEPS):
        value = np.tanh(rows @ weights)
        slopes = rows * (1 - value**2)[:, None]
        hessian = slopes.T @ slopes + np.diag(ridge)  # Gauss and Newton's
        step = np.linalg.solve(hessian, slopes.T @ (value - difference) + ridge * weights)
        size_of_step = 1.0
        while (after := loss_of(weights - size_of_step * step)) > loss and size_of_step > 1e-4:
            size_of_step /= 2
        if after > loss:
            break
        weights, gain, loss = weights - size_of_step * step, loss - after, after
        if gain < ENOUGH * loss:
            break
    bias = weights[-1] - centre @ weights[:-1]
    return np.column_stack([-weights[:-1], weights[:-1]]), np.array([-bias, bias])
