"""Two classes: a tanh link."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from refusals import refuses
from scipy.special import softmax

from terrine_models.students.shares import fit_shares
from terrine_models.students.tanh_shares import fit_tanh

TEACHERS = 500
Floats = NDArray[np.float64]


def study(
    rows: int, steepness: float, sigma: float, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Features [N, 8], true shares of yes [N], and noisy counts [N, 2]."""
    source = np.random.default_rng(seed)
    x = source.normal(size=(rows, 8))
    share = (1 + np.tanh(steepness * (x @ np.linspace(0.1, 0.6, 8)) - 0.4)) / 2
    counts = np.rint(TEACHERS * np.column_stack([1 - share, share])).astype(np.int64)
    return (
        x,
        share,
        counts + np.rint(source.normal(scale=sigma, size=counts.shape)).astype(np.int64),
    )


def fitted(x: Floats, counts: NDArray[np.int64], sigma: float) -> Floats:
    """The shares of the second class that are fitted to counts."""
    weights, biases = fit_tanh(x, counts / TEACHERS, sigma / TEACHERS)
    scores = x @ weights + biases
    np.testing.assert_allclose(softmax(scores, axis=1), (1 + np.tanh(scores)) / 2)
    return np.asarray((1 + np.tanh(scores[:, 1])) / 2)


def test_without_noise_the_shares_are_found() -> None:
    x, share, counts = study(2000, 1.0, 0.0)
    np.testing.assert_allclose(fitted(x, counts, 0.5), share, atol=0.01)


def test_what_saturates_is_fitted_better_than_by_a_line() -> None:
    x, share, counts = study(4000, 3.0, 300.0)
    curved, line = fitted(x, counts, 300.0), fit_shares(x, counts / TEACHERS, 300.0 / TEACHERS)
    assert ((curved - share) ** 2).mean() < ((line.shares[:, 1] - share) ** 2).mean()


@pytest.mark.parametrize("rows", [2, 3, 9, 11])
def test_a_few_rows_are_enough_to_run(rows: int) -> None:
    x, _, counts = study(rows, 1.0, 10.0)
    assert np.isfinite(fitted(x, counts, 10.0)).all()


def test_constant_features_predict_the_mean() -> None:
    _, share, counts = study(3000, 1.0, 5.0)
    np.testing.assert_allclose(fitted(np.ones((3000, 4)), counts, 5.0), share.mean(), atol=0.01)


def test_more_classes_are_refused() -> None:
    with refuses(ValueError, "classes"):
        fit_tanh(np.zeros((5, 2)), np.zeros((5, 3)), 1.0)
