"""The student that is returned is never worse than a plain model on the same labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.storage.manifests import StoreError
from terrine_models.students.asking import asking_order
from terrine_models.students.collapse import Evidence, collapse
from terrine_models.students.models import Student
from terrine_models.students.networks import Training, train_student
from terrine_models.students.ridge import PENALTIES, RidgeFit, RidgeStudents, ridge_path
from terrine_models.students.selection import Made, assign_folds, candidates, choose_student
from terrine_models.tables.loading import load_table
from terrine_models.tables.roles import propose_schema

SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
LARGE = InputSpec(shape=(28, 28), dtype="uint8", low=0, high=255)
TABLE = InputSpec(shape=(4,), dtype="float32", low=0, high=1)
ADULT = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
)
POOL = 500
BOTH: tuple[str, ...] = ("vat", "supervised")


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    bundle = load_digits()
    return bundle.images.astype(np.uint8), bundle.target.astype(np.int64)


def some_digits(count: int) -> NDArray[np.int64]:
    """Labels [POOL], of which the first `count` are known."""
    return np.where(np.arange(POOL) < count, digits()[1][:POOL], -1)


def small_steps(method: str, steps: int) -> Training:
    return Training(method=method, steps=steps, batch=32, unlabelled_batch=64)


def choose_digits(labels: NDArray[np.int64], method: str = "auto", steps: int = 30) -> Made:
    training, images = small_steps(method, steps), digits()[0][:POOL]
    return choose_student(images, labels, inputs=SMALL, classes=DIGITS, training=training)


def accuracy(made: Made) -> float:
    images, truth = digits()
    return made.student.accuracy(images[1000:], truth[1000:])


class Income:
    """UCI Adult's test table, and labels that 250 recorded teachers would give with real noise.

    The first thousand rows that a student would send are asked; nine in ten of those that are
    answered are in the larger class, since the teachers agree most there.
    """

    POOL, ASKED, STEPS = 9000, 1000, 400

    def __init__(self, shared_data: Path) -> None:
        path = shared_data / "adult" / "adult.test.gz"
        data = load_table(path, propose_schema(path, label="income", columns=ADULT).schema)
        self.x: NDArray[Any] = data.inputs
        self.truth, self.spec, self.classes = data.labels, data.spec, data.classes
        rows = asking_order(self.x[: self.POOL], self.spec, 0)[: self.ASKED]
        with np.load(shared_data / "adult_250_votes.npz") as file:
            votes = file["counts"][rows].astype(float)
        noise = np.random.default_rng(1)
        answered = votes.max(1) + noise.normal(0, 40, len(rows)) > 180
        noisy = votes + noise.normal(0, 20, votes.shape)
        self.labels = np.full(self.POOL, -1)
        self.labels[rows[answered]] = noisy.argmax(1)[answered]

    def choose(self, method: str) -> Made:
        return choose_student(
            self.x[: self.POOL],
            self.labels,
            inputs=self.spec,
            classes=self.classes,
            training=Training(method=method, steps=self.STEPS),
        )

    def train(self, method: str) -> Student:
        return train_student(
            self.x[: self.POOL],
            self.labels,
            inputs=self.spec,
            classes=self.classes,
            training=Training(method=method, steps=self.STEPS),
        )

    def accuracy(self, student: Student) -> float:
        return student.accuracy(self.x[self.POOL :], self.truth[self.POOL :])


@pytest.fixture(scope="module")
def income(shared_data: Path) -> Income:
    return Income(shared_data)


@pytest.mark.slow
def test_vat_collapses_on_income_and_the_plain_model_is_returned(income: Income) -> None:
    collapsed, plain = side_by_side(income.train, BOTH)
    assert collapsed.predict(income.x).mean() < 0.01
    made = income.choose("vat")
    assert made.choice.chosen == "supervised"
    assert "collapsed" in made.choice.why
    assert income.accuracy(made.student) >= income.accuracy(plain)
    assert income.accuracy(made.student) > income.accuracy(collapsed) + 0.04


@pytest.mark.slow
def test_auto_is_at_least_as_good_as_plain_on_income(income: Income) -> None:
    made = income.choose("auto")
    assert [each.method for each in made.choice.judged] == ["ridge", "supervised"]
    assert income.accuracy(made.student) >= income.accuracy(income.train("supervised"))


@pytest.mark.slow
def test_vat_collapses_on_one_sided_labels_of_digits_and_the_plain_model_is_returned() -> None:
    """Many labels of one digit and one of each other: no held-out label shows the collapse."""
    images, truth = digits()
    labels = np.full(POOL, -1)
    for digit in range(10):
        labels[np.flatnonzero(truth[:POOL] == digit)[: 45 if digit == 1 else 1]] = digit

    def train(method: str) -> Student:
        training = small_steps(method, 60)
        return train_student(images[:POOL], labels, inputs=SMALL, classes=DIGITS, training=training)

    collapsed, plain = (
        student.accuracy(images[1000:], truth[1000:]) for student in side_by_side(train, BOTH)
    )
    assert collapsed < plain - 0.1
    made = choose_digits(labels, "vat", steps=60)
    assert "collapsed: it hardly ever predicts" in made.choice.why
    assert made.choice.chosen in ("ridge", "supervised")
    assert accuracy(made) > collapsed + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 150])
def test_auto_is_at_least_as_good_as_plain_on_digits(count: int) -> None:
    images, truth = digits()
    labels = some_digits(count)
    made, training = choose_digits(labels), small_steps("supervised", 30)
    plain = train_student(
        images[:POOL], labels, inputs=SMALL, classes=DIGITS, training=training
    ).accuracy(images[1000:], truth[1000:])
    assert made.choice.folds == min(5, count // 10)
    assert [each.method for each in made.choice.judged] == ["ridge", "supervised", "vat"]
    assert accuracy(made) >= plain


@pytest.mark.nightly
def test_a_sound_vat_that_was_asked_for_is_kept_and_compared() -> None:
    images, truth = digits()
    labels = some_digits(60)
    made = choose_digits(labels, "vat", steps=100)
    assert made.choice.chosen == "vat"
    assert made.student.model.training["method"] == "vat"
    shares = {each.method: each.agreement for each in made.choice.judged}
    plain = max(shares["ridge"], shares["supervised"])
    said = "But the plain model" if plain > shares["vat"] else "no plain model agrees with more"
    assert said in made.choice.why
    assert made.student.accuracy(images[1000:], truth[1000:]) > 0.85


def test_the_choice_is_repeated_exactly_whatever_is_not_bought_or_public() -> None:
    """It has no other inputs: the same labels and inputs give the same choice and model."""
    labels = some_digits(30)
    first, again = (choose_digits(labels, steps=5) for _ in range(2))
    assert first.choice == again.choice
    images = digits()[0]
    difference = first.student.probabilities(images) - again.student.probabilities(images)
    assert np.abs(difference).max() < 1e-4


def test_ridge_is_returned_where_it_is_asked_for() -> None:
    source = np.random.default_rng(0)
    x = source.random((80, 4)).astype(np.float32)
    labels = (x[:, 0] > 0.5).astype(np.int64)
    training = Training(method="ridge", steps=5)
    made = choose_student(x, labels, inputs=TABLE, classes=("no", "yes"), training=training)
    assert made.choice.chosen == "ridge"
    assert "ridge was asked for" in made.choice.why
    assert (made.student.predict(x) == labels).mean() > 0.8


def test_too_few_labels_fall_back_to_a_plain_model_and_say_so() -> None:
    labels = some_digits(19)
    for method, expected in (("auto", "ridge"), ("vat", "ridge"), ("supervised", "supervised")):
        made = choose_digits(labels, method, steps=10)
        assert made.choice.chosen == expected
        assert (made.choice.folds, made.choice.judged) == (0, ())
        assert "fewer than 2 per class" in made.choice.why


def test_fewer_inputs_than_classes_are_enough_for_the_plain_model() -> None:
    images, truth = digits()
    made = choose_student(images[:3], truth[:3], inputs=SMALL, classes=DIGITS)
    assert made.choice.chosen == "ridge"
    assert (made.student.predict(images[:3]) == truth[:3]).all()


def test_a_class_that_was_never_answered_is_never_predicted_by_the_plain_model() -> None:
    labels = some_digits(200)
    labels[labels == 7] = -1
    made = choose_digits(labels, steps=12)
    assert made.choice.folds == 5
    assert 7 not in made.student.predict(digits()[0][:POOL])


def test_labels_of_one_class_leave_the_plainest_model() -> None:
    labels = np.where(np.arange(POOL) < 40, 3, -1)
    made = choose_digits(labels, steps=12)
    assert made.choice.chosen == "ridge"
    assert (made.student.predict(digits()[0]) == 3).all()


@pytest.mark.parametrize("x", [np.zeros((60, 4)), np.tile([[0.1, 0.9, 0, 1]], (60, 1))])
def test_constant_columns_leave_the_most_frequent_class(x: NDArray[np.float64]) -> None:
    labels = np.where(np.arange(60) % 3 == 0, 1, 0)
    made = choose_student(
        x.astype(np.float32), labels, inputs=TABLE, classes=("a", "b"), training=Training(steps=20)
    )
    assert (made.student.predict(x.astype(np.float32)) == 0).all()


def test_identical_images_can_be_judged() -> None:
    images = np.full((260, 8, 8), 7, dtype=np.uint8)
    labels = np.where(np.arange(260) < 40, np.arange(260) % 2, -1)
    training = small_steps("auto", 12)
    made = choose_student(images, labels, inputs=SMALL, classes=("a", "b"), training=training)
    assert np.isfinite(made.student.probabilities(images)).all()


def test_nothing_can_be_chosen_without_a_label() -> None:
    images = digits()[0][:20]
    with pytest.raises(ValueError, match="no input has a label"):
        choose_student(images, np.full(20, -1), inputs=SMALL, classes=DIGITS)
    with pytest.raises(ValueError, match="inputs have shape"):
        choose_student(images, np.zeros(19, dtype=np.int64), inputs=SMALL, classes=DIGITS)
    with pytest.raises(ValueError, match="choose_student knows it"):
        train_student(
            images, np.zeros(20, dtype=np.int64), inputs=SMALL, classes=DIGITS, training=Training()
        )


@pytest.mark.parametrize(
    ("method", "spec", "labels", "added"),
    [
        ("auto", TABLE, 1000, ()),
        ("auto", SMALL, 50, ("vat",)),
        ("auto", LARGE, 50, ()),
        ("auto", LARGE, 100, ("fixmatch",)),
        ("vat", TABLE, 10, ("vat",)),
        ("fixmatch", SMALL, 10, ("fixmatch",)),
        ("kernel", LARGE, 10, ("kernel",)),
        ("supervised", LARGE, 1000, ()),
    ],
)
def test_candidates_follow_from_public_facts(
    method: str, spec: InputSpec, labels: int, added: tuple[str, ...]
) -> None:
    assert candidates(method, spec, labels) == ("ridge", "supervised", *added)


@given(labels=st.lists(st.integers(0, 3), min_size=8, max_size=60), seed=st.integers(0, 5))
def test_folds_are_even_in_size_and_in_every_class(labels: list[int], seed: int) -> None:
    marks = np.array(labels)
    folds = assign_folds(marks, 4, seed)
    assert folds is not None
    number = int(folds.max()) + 1
    assert number == min(5, len(labels) // 4)
    for own in (marks, *(marks[marks == k] for k in range(4))):
        of_these = folds if own is marks else folds[marks == own[0]] if len(own) else folds
        sizes = np.bincount(of_these, minlength=number)
        assert sizes.max() - sizes.min() <= 1


def test_there_are_no_folds_for_fewer_than_two_labels_per_class() -> None:
    assert assign_folds(np.zeros(7, dtype=np.int64), 4, 0) is None
    assert assign_folds(np.zeros(8, dtype=np.int64), 4, 0) is not None


LABELS = np.repeat([0, 1, 2], [60, 30, 10])


def evidence(**changed: Any) -> Evidence:
    """A perfect student; plain models that are right for 90 of 100."""
    plain = LABELS.copy()
    plain[:10] = 1
    sound: dict[str, Any] = {
        "labels": LABELS,
        "own": LABELS,
        "plain_agreement": 0.9,
        "pool": LABELS,
        "plain_pool": plain,
        "other_pool": np.where(np.arange(100) < 20, 1, LABELS),
    }
    return Evidence(**{**sound, **changed})


def test_a_sound_student_has_not_collapsed() -> None:
    assert collapse(evidence(), ("a", "b", "c")) is None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"pool": np.zeros(100, dtype=np.int64)}, "predicts a for every public input"),
        ({"pool": np.minimum(LABELS, 1)}, "hardly ever predicts c"),
        ({"own": np.where(np.arange(100) < 14, 2, LABELS)}, "fits only 86.0% of the labels"),
        ({"pool": np.where(np.arange(100) < 15, 2, LABELS)}, "on 85.0% of the public inputs"),
    ],
)
def test_every_sign_of_a_collapse_is_named(changed: dict[str, Any], said: str) -> None:
    assert said in (collapse(evidence(**changed), ("a", "b", "c")) or "")


def test_a_single_label_of_a_class_may_be_noise() -> None:
    labels = np.array([0] * 99 + [1])
    zeros = np.zeros(100, dtype=np.int64)
    found = evidence(labels=labels, own=zeros, pool=zeros, plain_pool=zeros, other_pool=zeros)
    assert collapse(found, ("a", "b", "c")) is None


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 4), width=st.integers(1, 12))
def test_ridge_solves_the_normal_equations(seed: int, classes: int, width: int) -> None:
    random = np.random.default_rng(seed)
    x, labels = random.normal(size=(9, width)), random.integers(0, classes, 9)
    centred = x - x.mean(0)
    gram = centred.T @ centred
    targets = 2 * np.eye(classes)[labels] - 1
    for penalty, (weights, biases) in zip(PENALTIES, ridge_path(x, labels, classes), strict=True):
        matrix = gram + penalty * np.trace(gram) / width * np.eye(width)
        assert np.allclose(matrix @ weights, centred.T @ targets, atol=1e-8)
        assert np.allclose((x @ weights + biases).mean(0), targets.mean(0))


def test_a_saved_ridge_student_predicts_the_same_and_an_altered_one_is_refused(
    tmp_path: Path,
) -> None:
    images = digits()[0]
    ridges = RidgeStudents(images[:POOL], some_digits(100), inputs=SMALL, classes=DIGITS)
    student = ridges.train(RidgeFit())
    student.save(tmp_path)
    loaded = Student.load(tmp_path)
    assert loaded.model == student.model
    assert (loaded.probabilities(images) == student.probabilities(images)).all()
    assert np.allclose(loaded.probabilities(images).sum(1), 1)
    text = (tmp_path / "model.json").read_text()
    (tmp_path / "model.json").write_text(
        text.replace('"architecture": "ridge"', '"architecture": "mlp"')
    )
    with pytest.raises(StoreError, match="a ridge model, and no other"):
        Student.load(tmp_path)
