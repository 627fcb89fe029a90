"""Several classes: a softmax link."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from terrine_models.students.shares import fit_shares
from terrine_models.students.softmax_shares import fit_softmax

TEACHERS = 500
Floats = NDArray[np.float64]


def study(rows: int, sigma: float, seed: int = 0) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Features [N, 8], true shares [N, 4], and noisy counts [N, 4]."""
    source = np.random.default_rng(seed)
    x = source.normal(size=(rows, 8))
    shares = softmax(x @ np.random.default_rng(99).normal(size=(8, 4)) + [0.5, 0, 0, -1], axis=1)
    noisy = TEACHERS * shares + source.normal(scale=sigma, size=shares.shape)
    return x, shares, np.rint(noisy).astype(np.int64)


def fitted(x: Floats, counts: NDArray[np.int64], sigma: float) -> Floats:
    """The shares that are fitted to counts."""
    weights, biases = fit_softmax(x, counts / TEACHERS, sigma / TEACHERS)
    return np.asarray(softmax(x @ weights + biases, axis=1))


def test_without_noise_the_shares_are_found() -> None:
    x, shares, counts = study(2000, 0.0)
    np.testing.assert_allclose(fitted(x, counts, 0.5), shares, atol=0.01)


def test_what_saturates_is_fitted_better_than_by_a_line() -> None:
    x, shares, counts = study(4000, 300.0)
    curved, line = fitted(x, counts, 300.0), fit_shares(x, counts / TEACHERS, 300.0 / TEACHERS)
    assert ((curved - shares) ** 2).mean() < ((line.shares - shares) ** 2).mean()
    assert (curved.argmax(axis=1) == shares.argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("rows", [2, 3, 9, 11])
def test_a_few_rows_are_enough_to_run(rows: int) -> None:
    x, _, counts = study(rows, 10.0)
    assert np.isfinite(fitted(x, counts, 10.0)).all()


def test_constant_features_predict_the_mean() -> None:
    _, _, counts = study(400, 1.0)
    found = fitted(np.zeros((400, 3)), counts, 1.0)
    np.testing.assert_allclose(found.mean(axis=0), counts.mean(axis=0) / TEACHERS, atol=0.01)


def test_the_noise_of_its_total_makes_no_class_frequent() -> None:
    sigma, truth = 5000.0, np.full((400, 4), TEACHERS // 4)
    noise = np.random.default_rng(0).normal(scale=sigma, size=truth.shape)
    counts = truth + np.rint(noise).astype(np.int64)
    totals = counts.mean(axis=0) / TEACHERS
    shares = fitted(np.zeros((400, 3)), counts, sigma)[0]
    assert totals.max() - totals.min() > 0.5
    assert shares.max() - shares.min() < 0.1
