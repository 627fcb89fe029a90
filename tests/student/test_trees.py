"""Students of trees: what scikit-learn grew, evaluated by our own code, from untrusted files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.ensemble import RandomForestRegressor

from support.wording import holds, refuses
from terrine_models.data.arrays import InputSpec
from terrine_models.features.bases import prepare
from terrine_models.storage.manifests import StoreError, save_tensors
from terrine_models.students.answers import Answers, Ints
from terrine_models.students.models import (
    MODEL_FILE,
    WEIGHTS_FILE,
    Ridge,
    Student,
    Task,
    Tensors,
    Training,
)
from terrine_models.students.selection import choose
from terrine_models.students.trees import TREES, Trees

TABLE = InputSpec(shape=(5,), dtype="float32", low=-2, high=3)
Rows = NDArray[np.float32]


def corners(rows: int, seed: int = 0) -> tuple[Rows, Ints]:
    """Rows of five columns, and classes of which no column alone says anything."""
    random = np.random.default_rng(seed)
    x = random.uniform(TABLE.low, TABLE.high, (rows, 5)).astype(np.float32)
    middle = (TABLE.low + TABLE.high) / 2
    return x, ((x[:, 0] > middle) ^ (x[:, 2] > middle)).astype(np.int64) + (x[:, 4] > 2)


def counted(labels: Ints, noise: float) -> Answers:
    drawn = np.random.default_rng(1).normal(0, noise, (len(labels), 3))
    return Answers(np.eye(3)[labels] + drawn, np.full(len(labels), True), noise)


@pytest.mark.parametrize(
    ("noise", "leaf_rows"), [(0.0, range(1, 4)), (1.0, range(3, 31)), (3.0, range(10, 101))]
)
def test_trees_learn_of_noisy_shares_what_no_column_says(noise: float, leaf_rows: range) -> None:
    x, labels = corners(1200)
    new, truth = corners(2000, seed=5)
    task, answers = Task(x, TABLE, ("a", "b", "c")), counted(labels, noise)
    made = choose(task, answers, Training("trees"))
    assert made.choice.chosen == "trees"
    assert made.student.model.training["leaf_rows"] in leaf_rows
    right, plain = (
        (each.predict_indices(new) == truth).mean() for each in (made.student, made.plain)
    )
    assert right > plain + (0.2 if noise < 2 else 0.05)
    figures = made.choice.figures
    assert figures is not None
    assert abs(figures.accuracy.value - right) < 0.02 + 3 * figures.accuracy.error


def test_scores_are_those_of_scikit_learn(tmp_path: Path) -> None:
    x, labels = corners(300)
    task, answers = Task(x, TABLE, ("a", "b", "c")), counted(labels, 0.5)
    student = Trees(Training()).fit(task, answers)
    student.save(tmp_path)
    forest = RandomForestRegressor(
        TREES,
        max_depth=16,
        max_features=0.3,
        min_samples_leaf=int(student.model.training["leaf_rows"]),
        random_state=0,
    )
    order = np.unique(task.inputs, return_index=True)[1]
    forest.fit(prepare(x, TABLE)[order], answers.shares[order], np.ones(len(x)))
    new = corners(1000, seed=9)[0]
    expected = softmax(4 * forest.predict(prepare(new, TABLE)), axis=1)
    for each in (student, Student.load(tmp_path)):
        np.testing.assert_allclose(each.probabilities(new), expected, atol=1e-5)


def test_copies_of_an_input_do_not_judge_each_other() -> None:
    """Of labels by chance nothing can be learned, however often their inputs are repeated."""
    random = np.random.default_rng(0)
    x = np.tile(random.random((100, 5), dtype=np.float32), (6, 1))
    labels = np.tile(random.permutation(np.arange(100) % 2), 6)
    task, answers = Task(x, TABLE, ("a", "b")), Answers.of_labels(labels, 2)
    said = Trees(Training()).judge(task, answers, np.zeros(600, np.int64))
    assert (said.argmax(axis=1) == labels).mean() < 0.65


@pytest.mark.parametrize(
    ("rows", "shape", "said"),
    [
        (9, (5,), ("9", "10")),
        (40, (3, 3), ("trees", "images")),
    ],
)
def test_what_trees_cannot_learn_is_refused(
    rows: int, shape: tuple[int, ...], said: tuple[str, ...]
) -> None:
    spec = InputSpec(shape=shape, dtype="float32", low=0, high=1)
    x = np.random.default_rng(0).random((rows, *shape), dtype=np.float32)
    answers = Answers.of_labels(np.arange(rows) % 2, 2)
    with refuses(ValueError, *said):
        choose(Task(x, spec, ("a", "b")), answers, Training("trees"))


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = corners(50)
    monkeypatch.setattr("terrine_models.students.trees.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError) as raised:
        Trees(Training()).fit(Task(x, TABLE, ("a", "b", "c")), counted(labels, 0.0))
    holds(str(raised.value), "'.[student]'")


Tensor = NDArray[Any]


def put(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: change(tensors[name].copy())}


def put_first(name: str, value: float) -> Callable[[Tensors], Tensors]:
    def change(tensor: Tensor) -> Tensor:
        tensor.reshape(-1)[0] = value
        return tensor

    return put(name, change)


HOSTILE: dict[str, Callable[[Tensors], Tensors]] = {
    "one is missing": lambda t: {n: each for n, each in t.items() if n != "trees.biases"},
    "one more": lambda t: {**t, "other": np.zeros(3, np.float32)},
    "one more of trees": lambda t: {**t, "trees.other": np.zeros(3, np.float32)},
    "a column that is not there": put_first("trees.feature", 5),
    "another leaf": put_first("trees.feature", -1),
    "a negative column": put_first("trees.feature", -2),
    "another size": put_first("trees.sizes", 1),
    "an empty tree": put("trees.sizes", lambda each: np.append(each, np.int32(0))),
    "no trees": put("trees.sizes", lambda each: each[:0]),
    "a threshold that is not finite": put_first("trees.threshold", np.nan),
    "too few thresholds": put("trees.threshold", lambda each: each[:-1]),
    "a leaf that is not finite": put_first("trees.leaves", np.inf),
    "too few leaves": put("trees.leaves", lambda each: each[:-1]),
    "leaves of other classes": put("trees.leaves", lambda each: each[:, :2].copy()),
    "another type": put("trees.leaves", lambda each: each.astype(np.float64)),
    "biases of other classes": put("trees.biases", lambda each: each[:2].copy()),
    "too many trees": lambda t: {
        **t,
        "trees.sizes": np.ones(30_000, np.int32),
        "trees.feature": np.full(30_000, -1, np.int32),
        "trees.threshold": np.zeros(30_000, np.float32),
        "trees.leaves": np.zeros((30_000, 3), np.float32),
    },
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, labels = corners(60)
    made = Trees(Training()).fit(Task(x, TABLE, ("a", "b", "c")), counted(labels, 0.0))
    made.save(tmp_path_factory.mktemp("saved") / "student")
    return next(tmp_path_factory.getbasetemp().glob("saved*")) / "student"


@pytest.mark.parametrize("how", HOSTILE)
def test_trees_that_are_none_are_refused(how: str, saved: Path, tmp_path: Path) -> None:
    student = Student.load(saved)
    digest = save_tensors(tmp_path / WEIGHTS_FILE, HOSTILE[how](student.network.tensors))
    model = student.model.model_copy(update={"weights_sha256": digest})
    (tmp_path / MODEL_FILE).write_text(model.model_dump_json(exclude_none=True))
    with refuses(StoreError, WEIGHTS_FILE):
        Student.load(tmp_path)


def test_trees_and_linear_scores_are_told_apart(saved: Path, tmp_path: Path) -> None:
    """The description says of which kind a student is, and its tensors have to be of it."""
    x, labels = corners(60)
    linear = Ridge(Training()).fit(Task(x, TABLE, ("a", "b", "c")), counted(labels, 0.0))
    for student, other in ((linear, "trees"), (Student.load(saved), "ridge")):
        student.with_model(architecture=other).save(tmp_path)
        with refuses(StoreError):
            Student.load(tmp_path)
