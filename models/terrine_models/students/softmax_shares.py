"""Noisy counts: shares that are a softmax of the features.

Near 0 and 1 a regression that is linear in the features bends where it should not, and it spends
noise on classes that no teacher would choose. A softmax saturates there, so what is averaged is
what is open.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from terrine_models.students.answers import Floats

SPREAD, OF_TWO = 1.0, 0.2
"""Variance that a score x·w is expected to have before any count is seen, along the features' usual
size, of several classes and of two. The penalty on w is the variance of the noise divided by that
of w. Chosen on Fashion-MNIST's training images, where 0.5 to 1.5 did nearly as well, and on Adult,
where 0.1 to 0.4 did; where features say little, as of late flights, 0.1 shrinks too much."""
UNEVENNESS = 0.1
"""Variance that the logarithm of a class's frequency is expected to have before any count is seen.
Where noise is large, a class would otherwise win or lose rows by the noise of its total alone. Two
classes are cut afterwards, by the share of each (`thresholds.py`)."""
STEPS = 40
"""Steps of L-BFGS at most, in single precision: what is left is far below the noise."""


def fit_softmax(features: Floats, shares: Floats, noise: float) -> tuple[Floats, Floats]:
    """Return W [d, m] and b [m] of shares softmax(x·W + b), fitted to noisy ones [N, m].

    Squared errors on features [N, d], with penalties on W, and on the differences of b, that follow
    from the known `noise` of each share; nothing is chosen on the answers.
    """
    centre = features.mean(axis=0)
    rows, classes = (features - centre).astype(np.float32), shares.shape[1]
    size = float((rows**2).sum(axis=1).mean())
    seen = shares.astype(np.float32)
    variance, least = noise**2, 1e-9 * len(rows)
    several = classes > 2
    penalty = max(variance * size / (SPREAD if several else OF_TWO), least)
    evening = variance / UNEVENNESS if several else 0.0

    def loss_of(flat: Floats) -> tuple[float, Floats]:
        weights, biases = flat[classes:].reshape(-1, classes), flat[:classes]
        scores = rows @ weights.astype(np.float32) + biases.astype(np.float32)
        fitted = np.exp(scores - scores.max(axis=1, keepdims=True))
        fitted /= fitted.sum(axis=1, keepdims=True)
        missed = fitted - seen
        slopes = 2 * fitted * (missed - (missed * fitted).sum(axis=1, keepdims=True))
        uneven = biases - biases.mean()
        of_biases = slopes.sum(axis=0) + 2 * evening * uneven
        slope = np.concatenate([of_biases, (rows.T @ slopes + 2 * penalty * weights).flat])
        loss = float(np.square(missed, dtype=np.float64).sum())
        loss += penalty * float((weights**2).sum()) + evening * float((uneven**2).sum())
        return loss / len(rows), slope / len(rows)

    start = np.zeros(classes * (1 + features.shape[1]))
    start[:classes] = np.log(shares.mean(axis=0).clip(0.01))
    found = minimize(loss_of, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    weights = found[classes:].reshape(-1, classes)
    return weights, found[:classes] - centre @ weights
