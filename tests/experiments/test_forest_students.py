"""Forests as students: chosen when they agree best, and used without scikit-learn."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import terrine_experiments.students  # noqa: F401 - which makes the forest a method
from support.data import chosen, taught
from support.wording import refuses
from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import StoreError, sha256
from terrine_models.students.answers import Answers
from terrine_models.students.models import MODEL_FILE, WEIGHTS_FILE, Student, Task, Training
from terrine_models.students.selection import choose
from terrine_models.teachers.shards import TrainingError

pytestmark = pytest.mark.nightly

SPEC = InputSpec(shape=(4,), dtype="float32", low=0, high=1)
CLASSES = ("no", "yes")


def board(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Squares of a chessboard in two of four columns: no model of single columns learns them."""
    x = np.random.default_rng(seed).random((rows, 4), dtype=np.float32)
    return x, ((x[:, 0] * 3).astype(np.int64) + (x[:, 1] * 3).astype(np.int64)) % 2


X, TRUTH = board(1500)
LABELS = np.where(np.arange(1500) < 900, TRUTH, -1)


@pytest.fixture(scope="module")
def student() -> Student:
    return taught("forest", X, LABELS, SPEC, CLASSES)


def test_a_forest_is_judged_beside_the_plain_models_and_learns_what_they_cannot() -> None:
    made = chosen("forest", X, LABELS, SPEC, CLASSES)
    agreements = {each.method: each.figures.accuracy.value for each in made.choice.judged}
    assert list(agreements) == ["ridge", "forest"]
    assert (made.choice.asked, made.choice.chosen) == ("forest", "forest")
    assert made.student.model.architecture == "forest"
    assert agreements["forest"] == max(agreements.values())
    x, truth = board(1000, seed=1)
    assert made.student.accuracy(x, truth) > 0.9


def test_a_forest_learns_from_noisy_counts_if_it_is_asked_for() -> None:
    share = np.where(TRUTH == 1, 0.9, 0.1)
    counts = np.stack([1 - share, share], 1) * 1000
    noisy = (counts + np.random.default_rng(0).normal(0, 5, counts.shape)).round().astype(np.int64)
    answers = Answers.of_counts(noisy, teachers=1000, sigma=5.0)
    task = Task(X, SPEC, CLASSES)
    assert choose(task, answers).choice.chosen == "ridge"
    asked = choose(task, answers, Training(method="forest"))
    assert [each.method for each in asked.choice.judged] == ["ridge", "forest"]


def test_a_saved_forest_predicts_the_same_without_scikit_learn(
    student: Student, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student.save(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    loaded = Student.load(tmp_path)
    x, truth = board(700, seed=2)
    assert np.array_equal(loaded.probabilities(x), student.probabilities(x))
    assert np.abs(loaded.probabilities(x).sum(1) - 1).max() < 1e-9
    assert loaded.accuracy(x, truth) > 0.9
    assert loaded.probabilities(x[:0]).shape == (0, 2)
    with refuses(ValueError, "NaN"):
        loaded.predict(np.full((1, 4), np.nan, np.float32))


def test_an_altered_forest_is_refused(student: Student, tmp_path: Path) -> None:
    student.save(tmp_path)
    weights, model = tmp_path / WEIGHTS_FILE, tmp_path / MODEL_FILE
    sound, text = weights.read_bytes(), model.read_text()
    weights.write_bytes(sound[:-1] + b"!")
    with refuses(StoreError, "altered"):
        Student.load(tmp_path)
    tensors = dict(student.network.tensors)
    tensors["feature"] = tensors["feature"].copy()
    tensors["feature"][0] = 4
    from safetensors.numpy import save

    data = save(tensors)
    weights.write_bytes(data)
    model.write_text(text.replace(sha256(sound), sha256(data)))
    with refuses(StoreError, WEIGHTS_FILE, "feature", 0, 3):
        Student.load(tmp_path)
    two = {name: np.concatenate([each] * 2) for name, each in student.network.tensors.items()}
    data = save(two)
    weights.write_bytes(data)
    model.write_text(text.replace(sha256(sound), sha256(data)))
    with refuses(StoreError, 2):
        Student.load(tmp_path)


def test_what_cannot_be_a_forest_is_refused() -> None:
    image = InputSpec(shape=(4, 4), dtype="float32", low=0, high=1)
    with refuses(ValueError, "tables"):
        chosen("forest", np.zeros((4, 4, 4), np.float32), np.arange(4) % 2, image, CLASSES)


def test_without_scikit_learn_a_forest_is_refused_and_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("terrine_models.teachers.trees.find_spec", lambda name: None)
    with refuses(TrainingError, ".[forest]"):
        chosen("forest", X, LABELS, SPEC, CLASSES)
