"""Shares that are fitted to noisy counts: their errors are known, and clear labels are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from terrine_models.data.arrays import load_idx
from terrine_models.features.maps import PublicData, public_features
from terrine_models.students.shares import PENALTIES, fit_shares

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
    fitted = fit_shares(x, released / TEACHERS, 1000.0 / TEACHERS)
    missed = np.sqrt(((fitted.shares - counts / TEACHERS) ** 2).mean())
    assert missed < 0.1 * 1000 / TEACHERS
    raw = (released.argmax(axis=1) == counts.argmax(axis=1)).mean()
    assert (fitted.winners == counts.argmax(axis=1)).mean() > raw + 0.3


@pytest.mark.parametrize("sigma", [5.0, 100.0, 1000.0])
def test_the_stated_error_is_about_the_error_made(sigma: float) -> None:
    x, counts = study(3000, 15)
    ratios = []
    for seed in range(5):
        fitted = fit_shares(x, noisy(counts, sigma, seed) / TEACHERS, sigma / TEACHERS)
        missed = ((fitted.shares - counts / TEACHERS) ** 2).mean(axis=1)
        ratios.append(float(np.sqrt(missed.mean() / (fitted.errors**2).mean())))
    assert 0.5 < np.mean(ratios) < 2


def test_clear_labels_are_nearly_all_right_at_any_noise() -> None:
    x, counts = study(4000, 20)
    truth, kept = counts.argmax(axis=1), []
    for sigma in (10.0, 200.0, 1000.0, 4000.0):
        labels = fit_shares(x, noisy(counts, sigma) / TEACHERS, sigma / TEACHERS).clear_labels()
        clear = labels >= 0
        kept.append(int(clear.sum()))
        if sigma <= 1000:  # above, a fifth of the rows of each class is more than is clear
            assert (labels == truth)[clear].mean() > (0.95 if sigma < 1000 else 0.85)
    assert kept[1:] == sorted(kept[1:], reverse=True)
    assert all(0.2 * 4000 <= number <= 0.8 * 4000 + 4 for number in kept)


def test_every_class_that_wins_has_a_label() -> None:
    x, counts = study(300, 3)
    fitted = fit_shares(x, noisy(counts, 3000.0) / TEACHERS, 3000.0 / TEACHERS)
    labels = fitted.clear_labels()
    assert set(labels[labels >= 0]) == set(fitted.winners)


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

    fitted = fit_shares(x, shares, 0.0)
    weights, biases = solved(fitted.penalty, np.ones(9, dtype=bool))
    np.testing.assert_allclose(fitted.weights, weights, atol=1e-8)
    np.testing.assert_allclose(fitted.biases, biases, atol=1e-8)
    if width < 8:  # else some rows decide their own fit, which says nothing at small penalties
        least = min(missed(penalty) for penalty in PENALTIES)
        assert missed(fitted.penalty) == pytest.approx(least, rel=1e-6)


def test_constant_features_predict_the_mean() -> None:
    _, counts = study(100, 3)
    fitted = fit_shares(np.ones((100, 4)), counts / TEACHERS, 1.0 / TEACHERS)
    np.testing.assert_allclose(fitted.shares, np.tile(counts.mean(0) / TEACHERS, (100, 1)))


def test_a_single_row_is_enough() -> None:
    fitted = fit_shares(np.ones((1, 3)), np.array([[0.2, 0.8]]), 0.1)
    np.testing.assert_allclose(fitted.shares, [[0.2, 0.8]])


@pytest.mark.nightly
def test_real_votes_too_noisy_to_read_become_good_labels(shared_data: Path) -> None:
    """1,000 teachers, ε = 0.3 for 10,000 images: the counts alone give one label in five."""
    (path,) = (shared_data / "mnist").glob("t10k-images*")
    images = load_idx(path)
    with np.load(shared_data / "mnist_1000_votes.npz") as recorded:
        counts, truth = recorded["counts"].astype(np.int64), recorded["labels"].astype(np.int64)
    sigma = 1590.0  # planning.counts.sigma_for_rows(10_000, 1000, 10, 0.3, 1e-5)
    released = noisy(counts, sigma)
    assert (released.argmax(axis=1) == truth).mean() < 0.3
    public = public_features(images.spec, PublicData.declare("test", images.inputs), 150)
    features = public(torch.tensor(images.inputs)).double().numpy()
    fitted = fit_shares(features, released / 1000, sigma / 1000)
    labels = fitted.clear_labels()
    assert (fitted.winners == truth).mean() > 0.95
    assert (labels >= 0).sum() > 6000
    assert (labels == truth)[labels >= 0].mean() > 0.99
