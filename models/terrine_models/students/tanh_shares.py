"""Noisy counts of two classes: shares that are a tanh of the features, and a prior that is matched.

A share stays between 0 and 1, and near them a regression that is linear in the features bends where
it should not. So the difference of the two shares is fitted by tanh(x·w + b), by squared errors
with a penalty on w. Ridge regression (`shares.py`) stays beside it, and whichever predicts rows
better that it was not fitted on is used.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from terrine_models.students.shares import (
    FittedShares,
    better,
    by_folds,
    fit_shares,
    judged,
    noisy_shares,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SPREAD = 0.05
"""Variance that x·w is expected to have before any count is seen, along the features' usual size.
The penalty on w is the variance of the noise divided by that of w."""
STEPS, ENOUGH = 25, 1e-6
"""Newton steps at most, and the relative gain at which they end."""
LABEL_NOISE = 0.35
"""Variance of what features do not say of a label, relative to what they say (on the scale of a
probit model): about an area of 0.9 under the ROC curve."""
DOUBTFUL = 0.02
"""The greatest standard error of a prior that is worth matching."""


def fit_tanh(features: Floats, counts: Ints, teachers: int, sigma: float) -> FittedShares:
    """Return shares (1 ± tanh(x·w + b)) / 2 fitted to counts [N, 2] on features [N, d], N > 1.

    The penalty follows from the known noise; nothing is chosen on counts. `errors` are those of
    the fit made linear at its end. `held_out`: of each row as FOLDS fits without it predict it.
    Raises ValueError on shapes that do not fit.
    """
    if counts.ndim != 2 or counts.shape[1] != 2:
        raise ValueError(f"a tanh link is for two classes; counts have shape {counts.shape}")
    return judged(_fit_once, lambda fitted: fitted.errors**2, features, counts, teachers, sigma)


def fit_two_classes(
    features: Floats, counts: Ints, teachers: int, sigma: float
) -> tuple[FittedShares, str]:
    """Return the better of ridge and tanh on counts [N, 2], and a sentence that says why."""
    noisy = noisy_shares(features, counts, teachers)
    tanh = fit_tanh(features, counts, teachers, sigma)
    ridge = fit_shares(features, counts, teachers, sigma)
    folds = by_folds(fit_shares, features, counts, teachers, sigma)
    return better(tanh, ridge, folds, noisy, (sigma / teachers) ** 2)


def matched_bias(scores: Floats, prior: float, error: float) -> float | None:
    """Return what to add to scores [N] for class 1 so that its share of rows suits the prior.

    Heads that match their prior choose class 1 for the share `prior` of rows; so the mean of all
    shares is the prior of the private data. But a plurality of small shards errs towards the larger
    class, as each of them is unsure in its own way. A classifier that knew all shards would choose
    class 1 less often than the prior only by what features leave open, `LABEL_NOISE`. None if the
    standard `error` of the prior is too large.
    """
    if error > DOUBTFUL or not 2 * error < prior < 1 - 2 * error:
        return None
    normal = NormalDist()
    share = normal.cdf(normal.inv_cdf(prior) * (1 + LABEL_NOISE) ** 0.5)
    return -float(np.quantile(scores, 1 - share))


def _fit_once(features: Floats, counts: Ints, teachers: int, sigma: float) -> FittedShares:
    noise = 2 * (sigma / teachers) ** 2  # of the difference of two shares
    difference = (counts[:, 1] - counts[:, 0]) / teachers
    centre = features.mean(axis=0)
    rows = np.column_stack([features - centre, np.ones(len(features))])
    size = float((rows[:, :-1] ** 2).sum(axis=1).mean())
    penalty = noise * size / SPREAD
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
    slopes = rows * (1 - np.tanh(rows @ weights) ** 2)[:, None]
    squared = slopes.T @ slopes
    spread = np.linalg.solve(squared + np.diag(ridge), slopes.T)
    errors = np.sqrt(noise * np.einsum("ij,jk,ki->i", spread.T, squared, spread)) / 2
    bias = weights[-1] - centre @ weights[:-1]
    values = np.tanh(features @ weights[:-1] + bias)
    return FittedShares(
        shares=np.column_stack([1 - values, 1 + values]) / 2,
        held_out=np.empty((0, 2)),
        weights=np.column_stack([-weights[:-1], weights[:-1]]),
        biases=np.array([-bias, bias]),
        penalty=penalty,
        errors=errors,
        link="tanh",
    )
