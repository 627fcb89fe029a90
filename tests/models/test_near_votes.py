"""Votes of neighbours: how many vote differs by place, and they vote for those around."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from terrine_models.data.arrays import InputSpec
from terrine_models.students import answers
from terrine_models.students.answers import (
    SCORE_VARIANCES,
    Answers,
    choose_score_variance,
    find_surroundings,
    fit_near,
    fit_softmax,
)
from terrine_models.students.models import Task, Training
from terrine_models.students.selection import choose

Floats = NDArray[np.float64]
UNITS, VOTERS = 10_000, 100
VOTING = VOTERS / UNITS


def answered(expected: Floats, voters: Floats, sigma: float, voting: float) -> Answers:
    """Counts of so many voters [N], whose shares are expected to be [N, m], with noise."""
    noise = np.random.default_rng(1).normal(scale=sigma, size=expected.shape)
    counts = np.rint(voters[:, None] * expected + noise).astype(np.int64)
    mean = max(1, round(float(voters.mean())))
    return Answers.of_counts(counts, teachers=mean, sigma=sigma, voting=voting)


def test_where_few_vote_is_not_taken_for_undecided() -> None:
    """The first column tells how likely the rarer class is; the second, how many vote."""
    x = np.random.default_rng(0).random((3000, 2))
    likelier = x[:, 0] > 0.7
    second = np.where(likelier, 0.35, 0.05)
    voters = VOTERS * (0.2 + 1.6 * x[:, 1])
    answers = answered(np.column_stack([1 - second, second]), voters, 20.0, VOTING)
    spec = InputSpec(shape=(2,), dtype="float32", low=0, high=1)

    def ranked(given: Answers) -> float:
        task = Task(x.astype(np.float32), spec, ("no", "yes"))
        found = choose(task, given, Training(method="ridge")).student.probabilities(task.x)[:, 1]
        return float(roc_auc_score(likelier, found))

    assert ranked(answers) > 0.98
    assert ranked(replace(answers, voting=1.0)) < 0.9


def test_classes_are_less_blurred_than_the_votes_of_those_around() -> None:
    x = np.random.default_rng(3).normal(size=(600, 6))
    true = softmax(4 * x[:, :3], axis=1)
    near = find_surroundings(x, 0.1)
    answers = answered(near @ true, np.full(600, 100.0), 5.0, 0.1)

    def missed(weights: Floats, biases: Floats) -> float:
        return float(((softmax(x @ weights + biases, axis=1) - true) ** 2).mean())

    sharp = missed(*fit_near(x, answers, near, SCORE_VARIANCES[1]))
    blurred = missed(*fit_softmax(x, answers.shares, answers.noise))
    assert sharp < blurred / 2


@pytest.mark.parametrize(
    ("columns", "chosen"), [(3, max(SCORE_VARIANCES)), (200, min(SCORE_VARIANCES))]
)
def test_few_columns_let_scores_spread_and_many_do_not(columns: int, chosen: float) -> None:
    x = np.random.default_rng(4).normal(size=(500, columns))
    steep = 12.0 if columns == 3 else 0.3
    near = find_surroundings(x, 0.02)
    answers = answered(near @ softmax(steep * x[:, :3], axis=1), np.full(500, 100.0), 30.0, 0.02)
    folds = np.arange(500) % 5
    assert choose_score_variance(x, answers, near, folds) == chosen
    assert (
        choose_score_variance(x, answers, near, None) == SCORE_VARIANCES[0]
    )  # too few to choose by


def test_those_around_an_input_are_the_nearest_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.arange(100.0)[:, None]
    near = find_surroundings(x, 0.03)
    np.testing.assert_allclose(near.sum(axis=1), 1, rtol=1e-6)
    assert set(near[[50]].indices) == {49, 50, 51}
    alone = find_surroundings(x, 0.001)
    np.testing.assert_array_equal(alone.toarray(), np.eye(100))
    monkeypatch.setattr(answers, "MAX_STAND_INS", 50)  # every second stands for all
    assert set(find_surroundings(x, 0.06)[[50]].indices) == {48, 50, 52}
    monkeypatch.setattr(answers, "MAX_AROUND", 1)
    assert np.diff(find_surroundings(x, 0.06).indptr).max() <= 2
