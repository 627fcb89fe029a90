"""The kernel student, and the Nyström map that it and teachers can have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.data import digit_images
from terrine_models.data.arrays import DIGITS, InputSpec, load_idx
from terrine_models.features.bases import prepare
from terrine_models.features.distortions import DRAWS, distort
from terrine_models.features.gradients import oriented_gradients
from terrine_models.features.linear import choose_landmarks, nystrom
from terrine_models.students.answers import Answers
from terrine_models.students.models import (
    KERNEL_PENALTY,
    Copies,
    Kernel,
    Regression,
    Ridge,
    RidgeModel,
    Student,
    Task,
    Training,
)

SPEC = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
POOL = 600


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return digit_images()


@pytest.fixture(scope="module")
def task(digits: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> Task:
    return Task(digits[0][:POOL], SPEC, DIGITS)


def kernel(task: Task, labels: NDArray[np.int64]) -> Student:
    return Kernel(Training()).fit(task, Answers.of_labels(labels, len(task.classes)))


def test_it_is_better_than_the_labels_it_learned_from(
    task: Task, digits: tuple[NDArray[np.uint8], NDArray[np.int64]], tmp_path: Path
) -> None:
    x, truth = digits
    random = np.random.default_rng(0)
    labels = np.where(random.random(POOL) < 0.2, random.integers(0, 10, POOL), truth[:POOL])
    labels[random.random(POOL) < 0.3] = -1
    made = kernel(task, labels)
    right = float((labels == truth[:POOL])[labels >= 0].mean())
    assert right < 0.85
    assert made.accuracy(x[:POOL], truth[:POOL]) > right + 0.02
    assert kernel(task, truth[:POOL]).accuracy(x[POOL:], truth[POOL:]) > 0.93
    made.save(tmp_path)
    again = Student.load(tmp_path)
    np.testing.assert_array_equal(again.probabilities(x[POOL:]), made.probabilities(x[POOL:]))
    assert again.model.training["method"] == "kernel"


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_it_is_ridge_regression_on_all_copies_of_the_labelled_rows(
    task: Task, digits: tuple[NDArray[np.uint8], NDArray[np.int64]], share: float
) -> None:
    """By hand, whether products of few rows are added up or those of few others subtracted."""
    chosen = np.flatnonzero(np.random.default_rng(1).random(POOL) < share)
    labels = digits[1][chosen]
    copies = task.cached(Copies)
    weights, biases = copies.fit(chosen, labels, 10)
    rows = np.concatenate(copies.rows[:, chosen]).astype(np.float64)
    targets = np.tile(2 * np.eye(10)[labels] - 1, (len(copies.rows), 1))
    centred = rows - rows.mean(0)
    gram = centred.T @ centred
    gram += (KERNEL_PENALTY * np.diag(gram).mean() + 1e-9) * np.eye(len(gram))
    expected = np.linalg.solve(gram, centred.T @ (targets - targets.mean(0)))
    fitted = rows @ expected + targets.mean(0) - rows.mean(0) @ expected
    found = rows @ weights + biases
    np.testing.assert_allclose(found, fitted, atol=2e-3)


def test_its_scores_are_those_of_the_plain_student_and_of_a_kernel(
    task: Task, digits: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> None:
    answers = Answers.of_labels(np.where(np.arange(POOL) < 200, digits[1][:POOL], -1), 10)
    plain, made = Ridge(Training()).fit(task, answers), Kernel(Training()).fit(task, answers)
    assert isinstance(made.network, RidgeModel)
    for name, tensor in plain.network.tensors.items():
        np.testing.assert_array_equal(made.network.tensors[name], tensor)
    base = oriented_gradients(prepare(digits[0][POOL:], SPEC).mean(1))
    regression, kernel = (part.scores(base) for part in made.network.parts)
    both = regression + kernel
    assert np.abs(kernel).max() > 1
    expected = np.exp(both - both.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(made.probabilities(digits[0][POOL:]), expected, atol=1e-5)


@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.nightly), 0.3])
def test_it_is_judged_by_answers_that_had_no_part_in_it(
    task: Task, digits: tuple[NDArray[np.uint8], NDArray[np.int64]], noise: float
) -> None:
    random, folds = np.random.default_rng(0), np.arange(POOL) % 5
    shares = np.eye(10)[digits[1][:POOL]] + noise * random.normal(size=(POOL, 10))
    answers = Answers(shares, np.arange(POOL) % 3 != 0, noise)
    others = np.where(folds[:, None] == 2, np.roll(shares, 1, axis=1), shares)
    student = Kernel(Training())
    said = student.judge(task, answers, folds)
    again = student.judge(task, Answers(others, answers.known, noise), folds)
    np.testing.assert_array_equal(again[folds == 2], said[folds == 2])
    assert not np.allclose(again[folds != 2], said[folds != 2])
    right = said.argmax(axis=1) == digits[1][:POOL]
    assert right.mean() > 0.9


def test_pictures_that_are_held_out_are_judged_as_new_ones(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]],
) -> None:
    """Where a map was fitted on them, 92 % are right, and of new ones 96 %."""
    order, few = np.random.default_rng(1).permutation(len(digits[0])), 120
    x, truth = digits[0][order], digits[1][order]
    task, answers = Task(x[:few], SPEC, DIGITS), Answers.of_labels(truth[:few], len(DIGITS))
    student, folds = Kernel(Training()), answers.folds(0, np.arange(few))
    assert folds is not None
    judged = student.judge(task, answers, folds).argmax(axis=1) == truth[:few]
    new = student.fit(task, answers).accuracy(x[1000:], truth[1000:])
    assert judged.mean() == pytest.approx(new, abs=0.02)


@pytest.mark.nightly
def test_real_votes_too_noisy_to_read_become_good_labels(shared_data: Path) -> None:
    """1,000 teachers, ε = 0.3 for 10,000 images: the counts alone give one label in five."""
    (path,) = (shared_data / "mnist").glob("t10k-images*")
    images = load_idx(path)
    with np.load(shared_data / "mnist_1000_votes.npz") as recorded:
        counts, truth = recorded["counts"].astype(np.int64), recorded["labels"].astype(np.int64)
    sigma = 1590.0  # planning.counts.sigma_for_rows(10_000, 1000, 10, 0.3, 1e-5)
    released = counts + np.rint(np.random.default_rng(1).normal(scale=sigma, size=counts.shape))
    assert (released.argmax(axis=1) == truth).mean() < 0.3
    answers = Answers.of_counts(released.astype(np.int64), teachers=1000, sigma=sigma)
    labels = Regression.of(Task(images.inputs, images.spec, DIGITS), answers).labels()
    clear = labels >= 0
    assert clear.mean() == pytest.approx(0.97, abs=0.002)
    assert (labels == truth)[clear].mean() > 0.95


def test_dot_products_of_features_are_the_kernel_between_landmarks() -> None:
    points = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    found, gamma = choose_landmarks(points, 20)
    landmarks = found["landmarks"]
    features = nystrom(landmarks, landmarks, found["whitening"], gamma)
    distances = ((landmarks[:, None] - landmarks[None]) ** 2).sum(2)
    np.testing.assert_allclose(features @ features.T, np.exp(-gamma * distances), atol=2e-3)
    equal, _ = choose_landmarks(np.ones((30, 5), np.float32), 20)
    assert np.isfinite(nystrom(np.ones((2, 5), np.float32), **equal, gamma=1.0)).all()


def test_an_image_that_is_not_distorted_stays_as_it_is() -> None:
    images = np.random.default_rng(0).random((2, 1, 9, 9), np.float32)
    draws = np.zeros((2, DRAWS), np.float32)
    draws[:, 0] = draws[:, 6:].T[0] = 1.0
    np.testing.assert_allclose(distort(images, draws, rotation=0, elastic=0), images, atol=1e-5)
    turned = distort(images, draws, rotation=90, elastic=0)
    np.testing.assert_allclose(turned, np.rot90(images, 1, (2, 3)), atol=1e-4)
