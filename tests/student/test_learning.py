"""Students learn, from labels and from unlabelled inputs, and can be saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from refusals import refuses
from sklearn.datasets import load_digits, make_moons
from taught import taught

from terrine_models.data.arrays import DIGITS, InputSpec, read_idx
from terrine_models.data.workers import side_by_side
from terrine_models.storage.manifests import StoreError
from terrine_models.students.asking import asking_order
from terrine_models.students.methods import check
from terrine_models.students.models import Calibration, Student
from terrine_models.students.settings import Training
from terrine_models.students.task import Task

MOONS = ("upper", "lower")
PLANE = InputSpec(shape=(2,), dtype="float32", low=-2, high=3)
SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)


def methods(*names: str) -> tuple[str, ...]:
    return names


def moons() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Two interleaved moons: inputs, four labels for each moon, and all true labels."""
    x, truth = make_moons(600, noise=0.06, random_state=0)
    truth = truth.astype(np.int64)
    labels = np.full(600, -1)
    for moon in range(2):
        # Every label is far from where the moons meet: only the inputs show where that is.
        tip = np.argsort(x[:, 0] if moon == 0 else -x[:, 0])
        picked = [row for row in tip if truth[row] == moon][:4]
        labels[picked] = moon
    return x.astype(np.float32), labels, truth


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    bundle = load_digits()
    return bundle.images.astype(np.uint8), bundle.target.astype(np.int64)


def learn_moons(method: str) -> float:
    x, labels, truth = moons()
    options: dict[str, Any] = {"steps": 600, "learning_rate": 0.01, "radius": 0.12}
    return taught(method, x, labels, PLANE, MOONS, **options).accuracy(x, truth)


@pytest.mark.slow
def test_virtual_adversarial_training_finds_the_gap_between_the_moons() -> None:
    supervised, vat = side_by_side(learn_moons, methods("supervised", "vat"))
    assert supervised < 0.93
    assert vat > 0.97


@pytest.mark.slow
def test_unlabelled_digits_teach_more_than_labels_alone() -> None:
    images, truth = digits()
    pool, unseen = slice(0, 400), slice(1000, None)
    labels = np.full(400, -1)
    picked = asking_order(images[pool], SMALL, seed=0)[:50]
    labels[picked] = truth[picked]

    def accuracy(method: str) -> float:
        options = {"steps": 120, "batch": 32, "unlabelled_batch": 64}
        student = taught(method, images[pool], labels, SMALL, DIGITS, **options)
        return student.accuracy(images[unseen], truth[unseen])

    supervised, vat = side_by_side(accuracy, methods("supervised", "vat"))
    assert vat > supervised + 0.02
    assert vat > 0.93


@pytest.mark.nightly
def test_fixmatch_learns_more_from_distorted_images_than_labels_alone(shared_data: Path) -> None:
    """On images large enough to be distorted: 200 labels among 2,000 MNIST test images."""
    images = read_idx(shared_data / "mnist" / "t10k-images-idx3-ubyte.gz")
    truth = read_idx(shared_data / "mnist" / "t10k-labels-idx1-ubyte.gz").astype(np.int64)
    labels = np.where(np.arange(2000) < 200, truth[:2000], -1)
    spec = InputSpec(shape=(28, 28), dtype="uint8", low=0, high=255)

    def accuracy(method: str) -> float:
        student = taught(method, images[:2000], labels, spec, DIGITS, steps=100)
        return student.accuracy(images[8000:], truth[8000:])

    supervised, fixmatch = side_by_side(accuracy, methods("supervised", "fixmatch"))
    assert fixmatch > supervised
    assert fixmatch > 0.9


def test_representative_inputs_come_first_and_none_is_left_out() -> None:
    images, truth = digits()
    order = asking_order(images, SMALL, seed=1)
    assert sorted(order) == list(range(len(images)))
    assert len(set(truth[order[:40]])) == 10
    assert (asking_order(images, SMALL, seed=1) == order).all()
    assert (asking_order(images, SMALL, seed=2) != order).any()


def test_copies_of_one_input_are_ordered_too() -> None:
    order = asking_order(np.zeros((50, 8, 8), dtype=np.uint8), SMALL, seed=0)
    assert sorted(order) == list(range(50))


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", ["supervised", "vat", "fixmatch"])
def test_a_student_depends_on_its_seed_alone_not_on_others_trained_in_parallel(
    method: str,
) -> None:
    images, truth = digits()
    labels = np.where(np.arange(100) < 30, truth[:100], -1)

    def train(seed: int) -> Student:
        return taught(method, images[:100], labels, SMALL, DIGITS, seed, steps=12)

    together = side_by_side(train, [3, 4, 3])
    scores = [student.probabilities(images[:50]) for student in together]
    assert np.abs(scores[0] - scores[2]).max() < 1e-4  # only rounding
    assert np.abs(scores[0] - scores[1]).max() > 1e-2


def test_a_saved_student_predicts_the_same(tmp_path: Path) -> None:
    x, labels, _ = moons()
    student = taught("vat", x, labels, PLANE, MOONS, steps=30)
    student = student.with_model(calibration=Calibration(scale=2.0, shift=0.3), threshold=0.4)
    student.save(tmp_path)
    loaded = Student.load(tmp_path)
    assert (loaded.probabilities(x) == student.probabilities(x)).all()
    assert loaded.model == student.model
    assert np.allclose(loaded.probabilities(x).sum(1), 1)


def test_an_altered_or_missing_student_is_refused(tmp_path: Path) -> None:
    x, labels, _ = moons()
    with refuses(StoreError, "`terrine"):
        Student.load(tmp_path)
    taught("vat", x, labels, PLANE, MOONS, steps=5).save(tmp_path)
    weights = tmp_path / "model.safetensors"
    altered = bytearray(weights.read_bytes())
    altered[-1] ^= 1
    weights.write_bytes(altered)
    with refuses(StoreError, "altered"):
        Student.load(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with refuses(StoreError, "malformed"):
        Student.load(tmp_path)


def test_without_a_label_there_is_nothing_to_learn() -> None:
    x, labels, _ = moons()
    with refuses(ValueError, "label"):
        taught("supervised", x, np.full_like(labels, -1), PLANE, MOONS)


def test_colour_images_of_odd_size_can_be_learned() -> None:
    spec = InputSpec(shape=(19, 23, 3), dtype="float32", low=0, high=1)
    x = np.random.default_rng(0).random((40, 19, 23, 3)).astype(np.float32)
    labels = np.where(np.arange(40) % 2, 1, 0)
    student = taught("vat", x, labels, spec, ("a", "b"), steps=3)
    assert student.probabilities(x).shape == (40, 2)
    with refuses(ValueError, "[B, 19, 23, 3]"):
        student.probabilities(x[:, 1:])


@pytest.mark.parametrize("steps", [1, 2, 3, 19, 20, 21])
@pytest.mark.parametrize("method", ["supervised", "vat", "fixmatch"])
def test_every_number_of_steps_can_be_trained(method: str, steps: int) -> None:
    images, truth = digits()
    labels = np.where(np.arange(30) < 12, truth[:30], -1)
    options = {"steps": steps, "batch": 4, "unlabelled_batch": 4}
    student = taught(method, images[:30], labels, SMALL, DIGITS, **options)
    assert np.isfinite(student.probabilities(images[:30])).all()


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("kernel", "kernel images"),
        ("neighbours", "neighbours images"),
        ("vat", "vat images rows"),
        ("vats", "'vats' auto ridge"),
    ],
)
def test_methods_that_do_not_suit_are_refused_beforehand(method: str, said: str) -> None:
    with refuses(ValueError, *said.split()):
        check(method, Task(moons()[0], PLANE, MOONS))


@pytest.mark.parametrize("given", [{"steps": 0}, {"threshold": 1.5}, {"threshold": "often"}])
def test_settings_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with refuses(ValidationError, next(iter(given))):
        Training("vat", **given)
