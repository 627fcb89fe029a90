"""Between rounds: which inputs would teach most, and whether more labels would teach anything."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.students.answers import Answers
from terrine_models.students.settings import Training
from terrine_models.students.sketching import Asking, Saturation, Sketches
from terrine_models.students.task import Task

SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
PLANE = InputSpec(shape=(2,), dtype="float32", low=-3, high=3)


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    bundle = load_digits()
    return bundle.images.astype(np.uint8)[:600], bundle.target.astype(np.int64)[:600]


def first(truth: NDArray[np.int64], count: int, classes: int = 2) -> Answers:
    """Labels of the first inputs alone."""
    return Answers.of_labels(np.where(np.arange(len(truth)) < count, truth, -1), classes)


@pytest.mark.parametrize("asking", ["uncertain", "disagreement"])
def test_mistakes_are_more_common_where_sketches_are_unsure(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]], asking: Asking
) -> None:
    x, truth = digits
    labels = np.where(np.arange(600) < 60, truth, -1)
    sketches = Sketches(Task(x, SMALL, DIGITS), Training(steps=240))
    answers = Answers.of_labels(labels, 10)
    network = sketches.network(answers)
    unsure = sketches.informative(asking, answers, network)
    assert unsure.shape == (600,)
    assert unsure.min() >= 0
    assert unsure.max() <= 1
    wrong = network.predict(x) != truth
    order = np.argsort(-unsure)
    assert wrong[order[:150]].mean() > 2 * wrong[order[-150:]].mean()
    assert not sketches.informative("representative", answers, network).any()


def test_labels_saturate_where_classes_are_far_apart_and_not_where_they_are_few(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]],
) -> None:
    random = np.random.default_rng(0)
    truth = np.arange(400) % 2
    x = (random.normal(0, 0.1, (400, 2)) + np.where(truth, 1, -1)[:, None]).astype(np.float32)
    apart = Sketches(Task(x, PLANE, ("a", "b")), Training())
    enough = apart.saturation(first(truth, 200))
    assert enough == Saturation(gain=0.0, error=1 / 200, changed=0.0)
    assert enough.reached
    too_few = apart.saturation(first(truth, 198))
    assert too_few is not None
    assert not too_few.reached
    assert apart.saturation(first(truth, 7)) is None

    images, numbers = digits
    few = Sketches(Task(images, SMALL, DIGITS), Training())
    found = few.saturation(first(numbers, 60, classes=10))
    assert found is not None
    assert not found.reached
    assert found.changed > 0.02


def test_a_model_that_predicts_one_class_does_not_know_what_labels_teach() -> None:
    """Labels nearly all of one class: nothing changes, and yet more labels would help."""
    random = np.random.default_rng(2)
    x = random.normal(0, 1, (600, 2)).astype(np.float32)
    labels = np.where(np.arange(600) < 400, (np.arange(600) % 100 == 0).astype(np.int64), -1)
    blind = Sketches(Task(x, PLANE, ("a", "b")), Training())
    assert blind.saturation(Answers.of_labels(labels, 2)) is None


@pytest.mark.parametrize(
    ("found", "reached"),
    [
        (Saturation(0.004, 0.003, 0.01), True),
        (Saturation(0.005, 0.003, 0.01), False),
        (Saturation(0.0, 0.005, 0.011), False),
        (Saturation(-0.01, 0.005, 0.0), True),
    ],
)
def test_saturation_needs_both_signs(found: Saturation, reached: bool) -> None:
    assert found.reached == reached
