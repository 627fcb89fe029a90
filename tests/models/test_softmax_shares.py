"""Several classes: a softmax link beside ridge, chosen by held-out counts."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from terrine_models.students.shares import fit_shares
from terrine_models.students.softmax_shares import fit_many_classes, fit_softmax

TEACHERS = 500
Floats = NDArray[np.float64]


def study(rows: int, sigma: float, seed: int = 0) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Features [N, 8], true shares [N, 4], and noisy counts [N, 4]."""
    source = np.random.default_rng(seed)
    x = source.normal(size=(rows, 8))
    shares = softmax(x @ np.random.default_rng(99).normal(size=(8, 4)) + [0.5, 0, 0, -1], axis=1)
    noisy = TEACHERS * shares + source.normal(scale=sigma, size=shares.shape)
    return x, shares, np.rint(noisy).astype(np.int64)


def test_without_noise_the_shares_are_found() -> None:
    x, shares, counts = study(2000, 0.0)
    fitted = fit_softmax(x, counts, TEACHERS, 0.5)
    np.testing.assert_allclose(fitted.shares, shares, atol=0.01)
    np.testing.assert_allclose(fitted.predict(x), fitted.shares)
    np.testing.assert_allclose(fitted.shares.sum(axis=1), 1)
    assert fitted.winners.tolist() == fitted.shares.argmax(axis=1).tolist()


@pytest.mark.parametrize("sigma", [50.0, 500.0])
def test_the_stated_error_is_about_the_error_made(sigma: float) -> None:
    ratios = []
    for seed in range(4):
        x, shares, counts = study(4000, sigma, seed)
        fitted = fit_softmax(x, counts, TEACHERS, sigma)
        missed = float(((fitted.shares - shares) ** 2).mean())
        ratios.append(np.sqrt(missed / (fitted.errors**2).mean()))
    assert 0.2 < np.mean(ratios) < 2  # what features miss is known to within the noise alone


def test_the_link_that_predicts_held_out_counts_better_is_used() -> None:
    x, shares, counts = study(4000, 300.0)
    better, why = fit_many_classes(x, counts, TEACHERS, 300.0)
    assert better.link == "softmax"
    assert "the first is used" in why
    ridge = fit_shares(x, counts, TEACHERS, 300.0)
    assert ((better.shares - shares) ** 2).mean() < ((ridge.shares - shares) ** 2).mean()
    assert (better.winners == shares.argmax(axis=1)).mean() > 0.9
    source = np.random.default_rng(1)
    x = source.random((4000, 2))
    shares = np.column_stack([x / 2, 1 - x.sum(axis=1) / 2])  # linear up to its ends
    counts = np.rint(TEACHERS * shares).astype(np.int64)
    better, why = fit_many_classes(x, counts, TEACHERS, 0.5)
    assert better.link == "identity"
    assert "the second is used" in why


def test_a_row_does_not_know_what_predicts_it_without_its_counts() -> None:
    x, _, counts = study(200, 100.0)
    before = fit_softmax(x, counts, TEACHERS, 100.0)
    counts[17] += [5000, 0, 0, 0]
    after = fit_softmax(x, counts, TEACHERS, 100.0)
    np.testing.assert_array_equal(before.held_out[17], after.held_out[17])
    assert not np.allclose(before.shares[17], after.shares[17])


@pytest.mark.parametrize("rows", [2, 3, 9, 11])
def test_a_few_rows_are_enough_to_run(rows: int) -> None:
    x, _, counts = study(rows, 10.0)
    better, _ = fit_many_classes(x, counts, TEACHERS, 10.0)
    assert np.isfinite(better.shares).all()
    assert np.isfinite(better.errors).all()


def test_constant_features_predict_the_mean() -> None:
    _, _, counts = study(400, 1.0)
    fitted = fit_softmax(np.zeros((400, 3)), counts, TEACHERS, 1.0)
    np.testing.assert_allclose(
        fitted.shares.mean(axis=0), counts.mean(axis=0) / TEACHERS, atol=0.01
    )


def test_the_noise_of_its_total_makes_no_class_frequent() -> None:
    sigma, truth = 5000.0, np.full((400, 4), TEACHERS // 4)
    noise = np.random.default_rng(0).normal(scale=sigma, size=truth.shape)
    counts = truth + np.rint(noise).astype(np.int64)
    totals = counts.mean(axis=0) / TEACHERS
    shares = fit_softmax(np.zeros((400, 3)), counts, TEACHERS, sigma).shares[0]
    assert totals.max() - totals.min() > 0.5
    assert shares.max() - shares.min() < 0.1


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, _, counts = study(20, 1.0)
    with pytest.raises(ValueError, match="need the same rows"):
        fit_softmax(x[:19], counts, TEACHERS, 1.0)
