"""Noisy counts: shares that are a softmax of the features.

Near 0 and 1 a regression that is linear in the features bends where it should not, and it spends
noise on classes that no teacher would choose. A softmax saturates there, so what is averaged is
what is open.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array

from terrine_models.students.answers import Floats

Real = TypeVar("Real", np.float32, np.float64)
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


def fit_softmax(
    features: Floats,
    shares: Floats,
    noise: float,
    *,
    votes: csr_array | None = None,
    spread: float | None = None,
) -> tuple[Floats, Floats]:
    """Return W [d, m] and b [m] of shares softmax(x·W + b), fitted to noisy ones [K, m].

    Squared errors on features [N, d], with penalties on W, and on the differences of b, that follow
    from the known `noise` of each share. votes: [K, N], what the shares at each input add to those
    that were seen (`near_votes.py`); without it, they are the same. spread: None is the usual one.
    """
    centre = features.mean(axis=0)
    rows, classes = (features - centre).astype(np.float32), shares.shape[1]
    size = float((rows**2).sum(axis=1).mean())
    seen = shares.astype(np.float32)
    variance, least = noise**2, 1e-9 * len(seen)
    several = classes > 2
    spread = spread or (SPREAD if several else OF_TWO)
    penalty = max(variance * size / spread, least)
    evening = variance / UNEVENNESS if several else 0.0
    back = None if votes is None else votes.T.tocsr()

    def loss_of(flat: Floats) -> tuple[float, Floats]:
        weights, biases = flat[classes:].reshape(-1, classes), flat[:classes]
        fitted = softmax_of(rows @ weights.astype(np.float32) + biases.astype(np.float32))
        missed = (fitted if votes is None else votes @ fitted) - seen
        steep = missed if back is None else back @ missed
        slopes = 2 * fitted * (steep - (steep * fitted).sum(axis=1, keepdims=True))
        uneven = biases - biases.mean()
        of_biases = slopes.sum(axis=0) + 2 * evening * uneven
        slope = np.concatenate([of_biases, (rows.T @ slopes + 2 * penalty * weights).flat])
        loss = float(np.square(missed, dtype=np.float64).sum())
        loss += penalty * float((weights**2).sum()) + evening * float((uneven**2).sum())
        return loss / len(seen), slope / len(seen)

    start = np.zeros(classes * (1 + features.shape[1]))
    start[:classes] = np.log(shares.mean(axis=0).clip(0.01))
    found = minimize(loss_of, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    weights = found[classes:].reshape(-1, classes)
    return weights, found[:classes] - centre @ weights


def softmax_of(scores: NDArray[Real]) -> NDArray[Real]:
    """Shares [N, m] of scores [N, m], in their precision."""
    fitted: NDArray[Real] = np.exp(scores - scores.max(axis=1, keepdims=True))
    fitted /= fitted.sum(axis=1, keepdims=True)
    return fitted
