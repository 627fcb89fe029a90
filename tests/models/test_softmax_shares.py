"""Noisy counts: a softmax link."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from terrine_models.students.answers import SCORE_VARIANCE_OF_TWO, fit_shares, fit_softmax

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


def by_a_line(x: Floats, counts: NDArray[np.int64]) -> Floats:
    weights, biases = fit_shares(x, counts / TEACHERS)
    return x @ weights + biases


def test_without_noise_the_shares_are_found() -> None:
    x, shares, counts = study(2000, 0.0)
    np.testing.assert_allclose(fitted(x, counts, 0.5), shares, atol=0.01)


def test_what_saturates_is_fitted_better_than_by_a_line() -> None:
    x, shares, counts = study(4000, 300.0)
    curved, line = fitted(x, counts, 300.0), by_a_line(x, counts)
    assert ((curved - shares) ** 2).mean() < ((line - shares) ** 2).mean()
    assert (curved.argmax(axis=1) == shares.argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("rows", [2, 3, 9, 11])
def test_a_few_rows_are_enough_to_run(rows: int) -> None:
    x, _, counts = study(rows, 10.0)
    assert np.isfinite(fitted(x, counts, 10.0)).all()


def test_the_noise_of_its_total_makes_no_class_frequent() -> None:
    sigma, truth = 5000.0, np.full((400, 4), TEACHERS // 4)
    noise = np.random.default_rng(0).normal(scale=sigma, size=truth.shape)
    counts = truth + np.rint(noise).astype(np.int64)
    totals = counts.mean(axis=0) / TEACHERS
    shares = fitted(np.zeros((400, 3)), counts, sigma)[0]
    assert totals.max() - totals.min() > 0.5
    assert shares.max() - shares.min() < 0.1


def two(
    rows: int, steepness: float, sigma: float, seed: int = 0
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Features [N, 8], true shares of the second of two classes [N], and noisy counts [N, 2]."""
    source = np.random.default_rng(seed)
    x = source.normal(size=(rows, 8))
    share = (1 + np.tanh(steepness * (x @ np.linspace(0.1, 0.6, 8)) - 0.4)) / 2
    counts = TEACHERS * np.column_stack([1 - share, share])
    noisy = counts + source.normal(scale=sigma, size=counts.shape)
    return x, share, np.rint(noisy).astype(np.int64)


def test_two_classes_keep_their_mean_share_however_uneven() -> None:
    _, _, counts = two(3000, 1.0, 500.0)
    found = fitted(np.ones((3000, 4)), counts, 500.0)[:, 1]
    np.testing.assert_allclose(found, counts.mean(axis=0)[1] / TEACHERS, atol=0.03)


def test_two_classes_are_fitted_as_newton_fits_a_tanh() -> None:
    """A softmax of two scores is a tanh of their difference: solved here by Newton's method."""
    x, _, counts = two(400, 2.0, 50.0)
    noise, shares = 50.0 / TEACHERS, counts / TEACHERS
    rows = np.column_stack([x - x.mean(axis=0), np.ones(len(x))])
    size = float((rows[:, :-1] ** 2).sum(axis=1).mean())
    ridge = np.append(np.full(8, 2 * noise**2 * size / (SCORE_VARIANCE_OF_TWO / 2)), 0.0)
    weights = np.zeros(9)
    for _ in range(100):
        value = np.tanh(rows @ weights)
        slopes = rows * (1 - value**2)[:, None]
        missed = slopes.T @ (value - (shares[:, 1] - shares[:, 0])) + ridge * weights
        weights -= np.linalg.solve(slopes.T @ slopes + np.diag(ridge), missed) / 2
    expected = (1 + np.tanh(rows @ weights)) / 2
    np.testing.assert_allclose(fitted(x, counts, 50.0)[:, 1], expected, atol=2e-3)
