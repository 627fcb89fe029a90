"""Between rounds: which inputs would teach most, and whether more labels would teach anything."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.students.networks import Training
from terrine_models.students.ridge import class_weights, ridge_path
from terrine_models.students.sketching import Asking, Saturation, Sketches

SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
PLANE = InputSpec(shape=(2,), dtype="float32", low=-3, high=3)


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    bundle = load_digits()
    return bundle.images.astype(np.uint8)[:600], bundle.target.astype(np.int64)[:600]


@pytest.mark.parametrize("asking", ["uncertain", "disagreement"])
def test_mistakes_are_more_common_where_sketches_are_unsure(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]], asking: Asking
) -> None:
    x, truth = digits
    labels = np.where(np.arange(600) < 60, truth, -1)
    sketches = Sketches(x, inputs=SMALL, classes=DIGITS, training=Training(steps=240))
    network = sketches.network(labels)
    unsure = sketches.informative(asking, labels, network)
    assert unsure.shape == (600,)
    assert unsure.min() >= 0
    assert unsure.max() <= 1
    wrong = network.predict(x) != truth
    order = np.argsort(-unsure)
    assert wrong[order[:150]].mean() > 2 * wrong[order[-150:]].mean()
    assert not sketches.informative("representative", labels, network).any()


def test_labels_saturate_where_classes_are_far_apart_and_not_where_they_are_few(
    digits: tuple[NDArray[np.uint8], NDArray[np.int64]],
) -> None:
    random = np.random.default_rng(0)
    truth = np.arange(400) % 2
    x = (random.normal(0, 0.1, (400, 2)) + np.where(truth, 1, -1)[:, None]).astype(np.float32)
    apart = Sketches(x, inputs=PLANE, classes=("a", "b"), training=Training())
    enough = apart.saturation(np.where(np.arange(400) < 200, truth, -1))
    assert enough == Saturation(gain=0.0, error=1 / 200, changed=0.0)
    assert enough.reached
    too_few = apart.saturation(np.where(np.arange(400) < 198, truth, -1))
    assert too_few is not None
    assert not too_few.reached
    assert apart.saturation(np.where(np.arange(400) < 7, truth, -1)) is None

    images, numbers = digits
    few = Sketches(images, inputs=SMALL, classes=DIGITS, training=Training())
    found = few.saturation(np.where(np.arange(600) < 60, numbers, -1))
    assert found is not None
    assert not found.reached
    assert found.changed > 0.02


def test_a_model_that_predicts_one_class_does_not_know_what_labels_teach() -> None:
    """Labels nearly all of one class: nothing changes, and yet more labels would help."""
    random = np.random.default_rng(2)
    x = random.normal(0, 1, (600, 2)).astype(np.float32)
    labels = np.where(np.arange(600) < 400, (np.arange(600) % 100 == 0).astype(np.int64), -1)
    blind = Sketches(x, inputs=PLANE, classes=("a", "b"), training=Training())
    assert blind.saturation(labels) is None


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


def test_balanced_classes_count_alike() -> None:
    labels = np.array([0] * 9 + [2])
    weights = class_weights(labels, 3)
    assert np.allclose(weights, [10 / 18, 0, 5])
    assert np.isclose(weights[labels].mean(), 1)


def test_a_row_that_counts_twice_is_as_good_as_two() -> None:
    random = np.random.default_rng(1)
    x, labels = random.normal(size=(12, 4)), random.integers(0, 3, 12)
    times = random.integers(1, 4, 12)
    repeated = ridge_path(np.repeat(x, times, axis=0), np.repeat(labels, times), 3)
    weighted = ridge_path(x, labels, 3, each=times / times.mean())
    for (a, b), (c, d) in zip(repeated, weighted, strict=True):
        assert np.allclose(a, c, atol=1e-6)
        assert np.allclose(b, d, atol=1e-6)
