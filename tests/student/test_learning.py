"""Students learn, from labels and from unlabelled inputs, and can be saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.datasets import make_moons

from support.data import digit_images, taught
from support.wording import refuses
from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import StoreError
from terrine_models.students.calibration import Calibration
from terrine_models.students.methods import check_method
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.selection import asking_order

MOONS = ("upper", "lower")
PLANE = InputSpec(shape=(2,), dtype="float32", low=-2, high=3)
SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)


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


def test_representative_inputs_come_first_and_none_is_left_out() -> None:
    images, truth = digit_images()
    order = asking_order(images, SMALL, seed=1)
    assert sorted(order) == list(range(len(images)))
    assert len(set(truth[order[:40]])) == 10
    assert (asking_order(images, SMALL, seed=1) == order).all()
    assert (asking_order(images, SMALL, seed=2) != order).any()


def test_copies_of_one_input_are_ordered_too() -> None:
    order = asking_order(np.zeros((50, 8, 8), dtype=np.uint8), SMALL, seed=0)
    assert sorted(order) == list(range(50))


def test_a_saved_student_predicts_the_same(tmp_path: Path) -> None:
    x, labels, _ = moons()
    student = taught("ridge", x, labels, PLANE, MOONS)
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
    taught("ridge", x, labels, PLANE, MOONS).save(tmp_path)
    weights = tmp_path / "model.safetensors"
    altered = bytearray(weights.read_bytes())
    altered[-1] ^= 1
    weights.write_bytes(altered)
    with refuses(StoreError, "altered"):
        Student.load(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with refuses(StoreError, "malformed"):
        Student.load(tmp_path)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("kernel", "kernel images"),
        ("neighbours", "neighbours images"),
        ("vats", "'vats' auto ridge"),
    ],
)
def test_methods_that_do_not_suit_are_refused_beforehand(method: str, said: str) -> None:
    with refuses(ValueError, *said.split()):
        check_method(method, Task(moons()[0], PLANE, MOONS))


@pytest.mark.parametrize("given", [{"threshold": 1.5}, {"threshold": "often"}])
def test_settings_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with refuses(ValidationError, next(iter(given))):
        Training("ridge", **given)
