"""Heads and students for many classes, on directions found without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from support.data import digit_images, taught
from support.wording import refuses
from terrine_models.data.arrays import DIGITS, DataError, Dataset, InputSpec
from terrine_models.features.fitting import public_features
from terrine_models.features.linear import UNSEEN_CLASS_SCORE, mean_head
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import choose
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.heads import HeadTeachers
from terrine_models.teachers.kinds import Heads
from terrine_models.teachers.training import train_ensemble

SPEC = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
TABLE = InputSpec(shape=(3,), dtype="float32", low=0, high=1)
POOL = 600
MANY_NAMES = tuple(f"class {i}" for i in range(40))

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return digit_images()


def test_a_head_scores_what_the_density_of_a_class_is_worth() -> None:
    """With two records of each class, the posterior density by scipy; up to what all share."""
    random = np.random.default_rng(1)
    between, labels = np.array([4.0, 0.5, 2.0]), np.array([0, 1, 3, 3, 0, 1])
    rows, asked = random.normal(size=(6, 3)), random.normal(size=(5, 3))
    weights, biases = mean_head(
        torch.from_numpy(rows), torch.from_numpy(labels), 4, torch.from_numpy(between), 1
    )
    scores = asked @ weights.numpy().T + biases.numpy()
    expected = [
        multivariate_normal(
            rows[labels == k].mean(0) * 2 * between / (2 * between + 1),
            np.diag(1 + between / (2 * between + 1)),
        ).logpdf(asked)
        for k in (0, 1, 3)
    ]
    own, theirs = scores[:, [0, 1, 3]], np.stack(expected, 1)
    np.testing.assert_allclose(own - own[:, :1], theirs - theirs[:, :1], atol=1e-9)
    assert biases[2] == UNSEEN_CLASS_SCORE
    repeated = mean_head(
        torch.from_numpy(np.tile(rows, (3, 1))),
        torch.from_numpy(np.tile(labels, 3)),
        4,
        torch.from_numpy(between),
        3,
    )
    torch.testing.assert_close(repeated, (weights, biases))


def test_heads_of_many_classes_are_class_means_and_others_are_not(
    digits: Digits, tmp_path: Path
) -> None:
    x, truth = digits
    public = PublicData.declare("pool", x[:POOL])
    of_few = Dataset(x[POOL:], truth[POOL:], DIGITS, SPEC)
    of_many = Dataset(x[POOL:], truth[POOL:], MANY_NAMES, SPEC)
    assert Heads().feature_map(of_few, public).spec.projection == "graph"
    assert Heads(ridge=0.1).feature_map(of_many, public).spec.projection == "graph"
    assert Heads().feature_map(of_many, None).spec.projection == "random"
    with refuses(DataError, "ridge"):
        Heads(features="discriminant", ridge=0.1).feature_map(of_few, public)
    manifest = train_ensemble(
        of_many, tmp_path / "e", name="e", teachers=40, config=Heads(width=40), public=public
    )
    assert manifest.teacher.features is not None
    assert (manifest.teacher.features.projection, manifest.teacher.features.width) == (
        "discriminant",
        40,
    )
    assert isinstance(manifest.teacher, HeadTeachers)
    assert manifest.teacher.ridge is None
    votes = Ensemble.load(tmp_path / "e").votes(x[:POOL])
    assert (votes.argmax(1) == truth[:POOL]).mean() > 0.9
    assert votes[:, 10:].sum() == 0  # no shard has seen these


def test_discriminant_features_need_public_images() -> None:
    few = PublicData.declare("few", np.zeros((9, 8, 8), np.uint8))
    table = PublicData.declare("rows", np.zeros((900, 3), np.float32))
    for spec, public in ((SPEC, None), (SPEC, few), (TABLE, table)):
        with refuses(DataError, 200):
            public_features(spec, public, 50, "discriminant")


def test_neighbours_average_noise_away(digits: Digits, tmp_path: Path) -> None:
    x, truth = digits[0][:POOL], digits[1][:POOL]
    teachers, sigma = 1000, 400.0
    shares = np.full((POOL, 40), 0.4 / 40)
    shares[np.arange(POOL), truth] += 0.6
    noise = np.random.default_rng(0).normal(scale=sigma, size=shares.shape)
    counts = np.rint(teachers * shares + noise).astype(np.int64)
    assert (counts.argmax(1) == truth).mean() < 0.35
    answers = Answers.of_counts(counts, teachers=teachers, sigma=sigma)
    made = choose(Task(x, SPEC, MANY_NAMES), answers, Training("neighbours"))
    assert made.choice.chosen == "neighbours"
    assert (made.student.predict_indices(x) == truth).mean() > 0.8
    assert (made.student.predict_indices(digits[0][POOL:]) == digits[1][POOL:]).mean() > 0.75
    made.student.save(tmp_path)
    again = Student.load(tmp_path)
    np.testing.assert_array_equal(again.probabilities(x), made.student.probabilities(x))


def test_a_few_labels_have_no_neighbours(digits: Digits) -> None:
    labels = np.where(np.arange(POOL) < 9, digits[1][:POOL], -1)
    with refuses(ValueError, 10):
        taught("neighbours", digits[0][:POOL], labels, SPEC, DIGITS)
