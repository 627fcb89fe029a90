"""The ridge regression of shares on public features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from terrine_models.students.answers import RIDGE_PENALTIES, fit_shares

TEACHERS = 500


def study(
    rows: int, features: int, classes: int = 4, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features [N, d], and vote counts [N, m] that are nearly linear in them."""
    source = np.random.default_rng(seed)
    x = source.normal(size=(rows, features))
    scores = x @ source.normal(size=(features, classes)) / np.sqrt(features)
    shares = np.exp(0.7 * scores)
    counts = np.floor(TEACHERS * shares / shares.sum(axis=1, keepdims=True)).astype(np.int64)
    counts[:, 0] += TEACHERS - counts.sum(axis=1)
    return x, counts


def noisy(counts: NDArray[np.int64], sigma: float, seed: int = 1) -> NDArray[np.int64]:
    noise = np.random.default_rng(seed).normal(scale=sigma, size=counts.shape)
    return counts + np.rint(noise).astype(np.int64)


def test_fitting_takes_off_most_of_the_noise() -> None:
    x, counts = study(4000, 20)
    released = noisy(counts, sigma=1000.0)  # twice the teachers
    weights, biases = fit_shares(x, released / TEACHERS)
    fitted = x @ weights + biases
    missed = np.sqrt(((fitted - counts / TEACHERS) ** 2).mean())
    assert missed < 0.1 * 1000 / TEACHERS
    raw = (released.argmax(axis=1) == counts.argmax(axis=1)).mean()
    assert (fitted.argmax(axis=1) == counts.argmax(axis=1)).mean() > raw + 0.3


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 4), width=st.integers(1, 12))
def test_the_regression_solves_the_normal_equations_of_the_penalty_that_predicts_best(
    seed: int, classes: int, width: int
) -> None:
    """By hand, without a decomposition; each row is left out and all the others fitted anew."""
    random = np.random.default_rng(seed)
    x, shares = random.normal(size=(9, width)), random.dirichlet(np.ones(classes), size=9)

    def solved(
        penalty: float, rows: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        centred = x[rows] - x[rows].mean(0)
        every = x - x.mean(0)
        unit = np.trace(every.T @ every) / width
        matrix = centred.T @ centred + penalty * unit * np.eye(width)
        weights = np.linalg.solve(matrix, centred.T @ (shares[rows] - shares[rows].mean(0)))
        return weights, shares[rows].mean(0) - x[rows].mean(0) @ weights

    def missed(penalty: float) -> float:
        squares = []
        for row in range(9):
            weights, biases = solved(penalty, np.arange(9) != row)
            squares.append((x[row] @ weights + biases - shares[row]) ** 2)
        return float(np.mean(squares))

    weights, biases = fit_shares(x, shares)
    every = [solved(penalty, np.ones(9, dtype=bool)) for penalty in RIDGE_PENALTIES]
    distances = [np.abs(weights - w).max() + np.abs(biases - b).max() for w, b in every]
    assert min(distances) < 1e-7
    if width < 8:  # else some rows decide their own fit, which says nothing at small penalties
        least = min(missed(penalty) for penalty in RIDGE_PENALTIES)
        assert missed(RIDGE_PENALTIES[int(np.argmin(distances))]) == pytest.approx(least, rel=1e-6)
