"""Noisy counts of several classes: shares that are a softmax of the features.

Near 0 and 1 a regression that is linear in the features bends where it should not, and it spends
noise on classes that no teacher would choose. A softmax saturates there, so what is averaged is
what is open. Ridge regression (`shares.py`) stays beside it, and whichever predicts rows better
that it was not fitted on is used. Two classes have `tanh_shares.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from terrine_models.students.shares import FittedShares, better, fit_shares, judged, noisy_shares

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SPREAD = 1.0
"""Variance that a score x·w is expected to have before any count is seen, along the features' usual
size. The penalty on w is the variance of the noise divided by that of w. Chosen on Fashion-MNIST's
training images, where 0.5 to 1.5 did nearly as well."""
UNEVENNESS = 0.1
"""Variance that the logarithm of a class's frequency is expected to have before any count is seen.
Where noise is large, a class would otherwise win or lose rows by the noise of its total alone."""
STEPS = 40
"""Steps of L-BFGS at most, in single precision: what is left is far below the noise."""


def fit_softmax(features: Floats, counts: Ints, teachers: int, sigma: float) -> FittedShares:
    """Return shares softmax(x·W + b) fitted to counts [N, m] on features [N, d], N > 1.

    Squared errors with penalties on W, and on the differences of b, that follow from the known
    noise, `sigma` votes in each count; nothing is chosen on counts. `errors` are the same for all
    rows: what rows that were left out are missed by. `held_out`: of each row as fits without its
    fold predict it. Raises ValueError on shapes that do not fit.
    """
    noise = (sigma / teachers) ** 2

    def remaining(fitted: FittedShares) -> Floats:
        return noise * _noise_left(features, fitted, noise / UNEVENNESS)

    return judged(_fit_once, remaining, features, counts, teachers, sigma)


def fit_many_classes(
    features: Floats, counts: Ints, teachers: int, sigma: float
) -> tuple[FittedShares, str]:
    """Return the better of ridge and softmax on counts [N, m], and a sentence that says why."""
    noisy = noisy_shares(features, counts, teachers)
    ridge = fit_shares(features, counts, teachers, sigma)
    curved = fit_softmax(features, counts, teachers, sigma)
    return better(curved, ridge, ridge.held_out, noisy, (sigma / teachers) ** 2)


def _fit_once(features: Floats, counts: Ints, teachers: int, sigma: float) -> FittedShares:
    noisy = counts / teachers
    centre = features.mean(axis=0)
    rows, classes = (features - centre).astype(np.float32), counts.shape[1]
    size = float((rows**2).sum(axis=1).mean())
    seen = noisy.astype(np.float32)
    noise, least = (sigma / teachers) ** 2, 1e-9 * len(rows)
    penalty, evening = max(noise * size / SPREAD, least), noise / UNEVENNESS

    def loss_of(flat: Floats) -> tuple[float, Floats]:
        weights, biases = flat[classes:].reshape(-1, classes), flat[:classes]
        scores = rows @ weights.astype(np.float32) + biases.astype(np.float32)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        missed = shares - seen
        slopes = 2 * shares * (missed - (missed * shares).sum(axis=1, keepdims=True))
        uneven = biases - biases.mean()
        of_biases = slopes.sum(axis=0) + 2 * evening * uneven
        slope = np.concatenate([of_biases, (rows.T @ slopes + 2 * penalty * weights).flat])
        loss = float(np.square(missed, dtype=np.float64).sum())
        loss += penalty * float((weights**2).sum()) + evening * float((uneven**2).sum())
        return loss / len(rows), slope / len(rows)

    start = np.zeros(classes * (1 + features.shape[1]))
    start[:classes] = np.log(noisy.mean(axis=0).clip(0.01))
    found = minimize(loss_of, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    weights = found[classes:].reshape(-1, classes)
    biases = found[:classes] - centre @ weights
    return FittedShares(
        shares=softmax(features @ weights + biases, axis=1),
        held_out=np.empty((0, classes)),
        weights=weights,
        biases=biases,
        penalty=penalty,
        errors=np.zeros(len(rows)),
        link="softmax",
    )


def _noise_left(features: Floats, fitted: FittedShares, evening: float) -> Floats:
    """Return the mean variance [N] of each row's shares, where the noise of a share has one of 1.

    After the last step of Gauss and Newton, without what classes have in common.
    """
    rows = np.column_stack([features - features.mean(axis=0), np.ones(len(features))])
    ridge = np.full(rows.shape[1], fitted.penalty)
    ridge[-1] = evening + 1e-9 * len(rows)
    left = np.zeros(len(rows))
    for share in fitted.shares.T:
        slopes = rows * (share * (1 - share))[:, None]
        squares = slopes.T @ slopes
        spread = np.linalg.solve(squares + np.diag(ridge), slopes.T).T
        left += ((spread @ squares) * spread).sum(axis=1)
    mean: Floats = left / fitted.shares.shape[1]
    return mean
