"""Two classes: a tanh link beside ridge, chosen by held-out counts, and priors that are matched."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from terrine_models.students.shares import by_folds, fit_shares
from terrine_models.students.tanh_shares import fit_tanh, fit_two_classes, matched_bias

TEACHERS = 500


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


def test_without_noise_the_shares_are_found() -> None:
    x, share, counts = study(2000, 1.0, 0.0)
    fitted = fit_tanh(x, counts, TEACHERS, 0.5)
    np.testing.assert_allclose(fitted.shares[:, 1], share, atol=0.01)
    np.testing.assert_allclose(fitted.predict(x), fitted.shares)
    np.testing.assert_allclose(fitted.shares.sum(axis=1), 1)


@pytest.mark.parametrize("sigma", [50.0, 1000.0])
def test_the_stated_error_is_about_the_error_made(sigma: float) -> None:
    ratios = []
    for seed in range(4):
        x, share, counts = study(4000, 1.0, sigma, seed)
        fitted = fit_tanh(x, counts, TEACHERS, sigma)
        missed = (fitted.shares[:, 1] - share) ** 2
        ratios.append(float(np.sqrt(missed.mean() / (fitted.errors**2).mean())))
    assert 0.2 < np.mean(ratios) < 2  # what features miss is known to within the noise alone


def test_the_link_that_predicts_held_out_counts_better_is_used() -> None:
    x, share, counts = study(4000, 3.0, 300.0)
    better, why = fit_two_classes(x, counts, TEACHERS, 300.0)
    assert better.link == "tanh"
    assert "the first is used" in why
    ridge = fit_shares(x, counts, TEACHERS, 300.0)
    assert ((better.shares[:, 1] - share) ** 2).mean() < ((ridge.shares[:, 1] - share) ** 2).mean()
    source = np.random.default_rng(1)
    x = source.random((4000, 3))
    share = x @ [0.3, 0.3, 0.39]  # linear up to its ends
    counts = np.rint(TEACHERS * np.column_stack([1 - share, share])).astype(np.int64)
    better, why = fit_two_classes(x, counts, TEACHERS, 0.5)
    assert better.link == "identity"
    assert "the second is used" in why


def test_held_out_shares_do_not_know_their_row() -> None:
    x, _, counts = study(500, 1.0, 2000.0)
    held_out = by_folds(fit_shares, x, counts, TEACHERS, 2000.0)
    noise = counts / TEACHERS - np.clip(counts, 0, TEACHERS) / TEACHERS
    assert abs(np.corrcoef(held_out[:, 1], noise[:, 1])[0, 1]) < 0.2


@pytest.mark.parametrize("rows", [2, 3, 9, 11])
def test_a_few_rows_are_enough_to_run(rows: int) -> None:
    x, _, counts = study(rows, 1.0, 10.0)
    better, _ = fit_two_classes(x, counts, TEACHERS, 10.0)
    assert np.isfinite(better.shares).all()
    assert np.isfinite(better.errors).all()


def test_constant_features_predict_the_mean() -> None:
    _, share, counts = study(3000, 1.0, 5.0)
    fitted = fit_tanh(np.ones((3000, 4)), counts, TEACHERS, 5.0)
    np.testing.assert_allclose(fitted.shares[:, 1], share.mean(), atol=0.01)


def test_more_classes_and_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="two classes"):
        fit_tanh(np.zeros((5, 2)), np.zeros((5, 3), np.int64), 10, 1.0)
    with pytest.raises(ValueError, match="need the same rows"):
        fit_tanh(np.zeros((4, 2)), np.zeros((5, 2), np.int64), 10, 1.0)


def test_a_prior_is_matched_if_it_is_known() -> None:
    scores = np.random.default_rng(0).normal(size=10_000) - 2
    bias = matched_bias(scores, prior=0.24, error=0.005)
    assert bias is not None
    assert 0.19 < (scores + bias > 0).mean() < 0.24
    even = matched_bias(scores, prior=0.5, error=0.005)
    assert even is not None
    assert (scores + even > 0).mean() == pytest.approx(0.5, abs=0.001)
    assert matched_bias(scores, prior=0.24, error=0.1) is None
    assert matched_bias(scores, prior=-0.1, error=0.005) is None
    assert matched_bias(scores, prior=0.999, error=0.005) is None
