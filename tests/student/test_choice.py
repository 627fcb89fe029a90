"""The student that is returned is compared with the plain one of the same labels."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.data import chosen, digit_images
from support.tables import ADULT
from support.wording import holds, refuses
from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.students import selection
from terrine_models.students.answers import Answers, Estimate
from terrine_models.students.methods import METHODS
from terrine_models.students.models import (
    Ridge,
    Student,
    StudentMethod,
    Task,
    Tensors,
    Training,
    describe_student,
)
from terrine_models.students.selection import TrainedStudent, asking_order, choose
from terrine_models.tables.loading import load_table
from terrine_models.tables.proposal import propose_schema

SMALL = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
LARGE = InputSpec(shape=(28, 28), dtype="uint8", low=0, high=255)
TABLE = InputSpec(shape=(4,), dtype="float32", low=0, high=1)
POOL = 500


def some_digits(count: int) -> NDArray[np.int64]:
    """Labels [POOL], of which the first `count` are known."""
    return np.where(np.arange(POOL) < count, digit_images()[1][:POOL], -1)


def choose_digits(labels: NDArray[np.int64], method: str = "auto") -> TrainedStudent:
    return chosen(method, digit_images()[0][:POOL], labels, SMALL, DIGITS)


@pytest.fixture(scope="module")
def of_few() -> TrainedStudent:
    """A student of 40 labels, made once: it is tried with each method."""
    return choose_digits(some_digits(40))


def accuracy(made: TrainedStudent) -> float:
    images, truth = digit_images()
    return made.student.accuracy(images[1000:], truth[1000:])


class Income:
    """UCI Adult's test table, and labels that 250 recorded teachers would give with real noise.

    The first thousand rows that a student would send are asked; nine in ten of those that are
    answered are in the larger class, since the teachers agree most there.
    """

    POOL, ASKED = 9000, 1000

    def __init__(self, shared_data: Path, folder: Path) -> None:
        path = folder / "adult.test"
        path.write_bytes(gzip.decompress((shared_data / "adult" / "adult.test.gz").read_bytes()))
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

    def accuracy(self, student: Student) -> float:
        right = student.predict_indices(self.x[self.POOL :]) == self.truth[self.POOL :]
        return float(right.mean())


@pytest.fixture(scope="module")
def income(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Income:
    return Income(shared_data, tmp_path_factory.mktemp("income"))


def test_auto_finds_both_classes_of_income(income: Income) -> None:
    pool = income.x[: income.POOL]
    made = chosen("auto", pool, income.labels, income.spec, income.classes)
    assert [each.method for each in made.choice.judged] == ["ridge"], "labels are on clear rows"
    assert income.accuracy(made.student) > 0.8
    predicted = made.student.predict_indices(income.x[income.POOL :])
    assert (predicted == 1)[income.truth[income.POOL :] == 1].mean() > 0.25


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.nightly)])
def test_auto_learns_digits_from_a_few_labels(count: int, of_few: TrainedStudent) -> None:
    made = of_few if count == 40 else choose_digits(some_digits(count))
    assert made.choice.folds == min(5, count // 10)
    assert [each.method for each in made.choice.judged] == ["ridge", "kernel"]
    assert accuracy(made) > 0.9


def test_a_student_that_fits_nearly_all_answers_is_not_called_collapsed() -> None:
    """One that is right on 99 of 100 answers, of which the plain one predicts all unseen."""
    images, truth = digit_images()
    images, truth = images[:POOL], truth[:POOL]
    answers = Answers.of_labels(truth, 10)

    class Almost(StudentMethod):
        def fit(self, task: Task, answers: Answers) -> Student:
            wrong = np.where(np.arange(POOL) % 100, truth, (truth + 1) % 10)
            return Ridge(self.training).fit(task, Answers.of_labels(wrong, 10))

        def judge(self, task: Task, answers: Answers, folds: NDArray[np.int64]) -> Any:
            wrong = np.where(np.arange(POOL) % 100, truth, (truth + 1) % 10)
            return 0.9 * np.eye(10)[wrong] + 0.01

    METHODS["almost"] = Almost
    try:
        made = choose(Task(images, SMALL, DIGITS), answers, Training("almost"))
    finally:
        del METHODS["almost"]
    assert made.choice.chosen == "almost"


SURE, TORN = 0.97, 0.4
"""The probability that is said of a class, and of each of two."""


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(("errs_where", "expected"), [("unclear", "better"), ("clear", "ridge")])
def test_a_student_is_not_punished_for_being_better_than_the_voters(
    noise: float, errs_where: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one row in five most voters are wrong, and the plain student says what they say.

    Beside it there is one that disagrees with one answer in twenty: as it is right where they are
    wrong, or as it is wrong where they are right.
    """
    truth = np.arange(POOL) % 10
    unclear = np.arange(POOL) // 10 % 5 == 0
    voted = np.where(unclear, (truth + 1) % 10, truth)
    votes = 0.9 * np.eye(10)[voted] + 0.01
    votes[unclear] = 0.5 * np.eye(10)[voted[unclear]] + 0.45 * np.eye(10)[truth[unclear]] + 0.005
    drawn = np.random.default_rng(0).normal(0, noise, votes.shape)
    answers = Answers(votes + drawn if noise else np.eye(10)[voted], np.full(POOL, True), noise)
    torn = TORN * (np.eye(10)[voted] + np.eye(10)[(voted + 1) % 10])
    usual = np.where(unclear[:, None], torn, SURE * np.eye(10)[voted]) + 0.01 * np.eye(10)[voted]
    disagrees = np.arange(POOL) // 10 % 20 == (0 if errs_where == "unclear" else 1)
    said = np.where(disagrees, np.where(unclear, truth, (truth + 1) % 10), voted)

    class Better(StudentMethod):
        @classmethod
        def suits(cls, task: Task) -> bool:
            return True

        def fit(self, task: Task, answers: Answers) -> Student:
            return Ridge(self.training).fit(task, Answers.of_labels(voted, 10))

        def judge(self, task: Task, answers: Answers, folds: NDArray[np.int64]) -> Any:
            return 0.01 + SURE * np.eye(10)[said]

    monkeypatch.setattr(Ridge, "judge", lambda *_: usual + 0.001)
    monkeypatch.setattr(selection, "METHODS", {"ridge": Ridge, "better": Better})
    monkeypatch.setattr(selection, "_collapse", lambda *_: None)  # what is trained does not matter
    made = choose(Task(digit_images()[0][:POOL], SMALL, DIGITS), answers)
    by_method = {each.method: each.figures.accuracy.value for each in made.choice.judged}
    assert by_method["better"] < by_method["ridge"], "it agrees with fewer votes"
    assert made.choice.chosen == expected


@pytest.mark.parametrize(("lead", "chosen"), [(-0.01, "kernel"), (-0.03, "ridge")])
def test_the_plain_student_is_returned_where_it_is_ahead_by_one_standard_error(
    lead: float, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_estimate_lead", lambda *_: Estimate(lead, 0.02))
    assert choose_digits(some_digits(40)).choice.chosen == chosen


def test_a_method_is_added_in_one_place_and_judged_without_more() -> None:
    """The nearest labelled image: a class, and its name in the registry."""

    class Nearest(StudentMethod):
        wants = "images"

        @classmethod
        def can_learn(cls, task: Task) -> bool:
            return not task.is_table

        def fit(self, task: Task, answers: Answers) -> Student:
            known = np.flatnonzero(answers.known)
            points = task.x[known].reshape(len(known), -1).astype(float)

            class Model:
                def __init__(self) -> None:
                    self.tensors: Tensors = {}

                def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
                    scaled = x.reshape(len(x), -1) * points.max()
                    near = [((points - each) ** 2).sum(1).argmin() for each in scaled]
                    return 4 * answers.shares[known][near]

            how: dict[str, int | float | str] = {"method": "nearest"}
            return Student(
                Model(), describe_student(task.spec, task.classes, how, architecture="nearest")
            )

    METHODS["nearest"] = Nearest
    try:
        made = choose_digits(some_digits(300), "nearest")
        rows = np.zeros((40, 4), np.float32)
        with refuses(ValueError, "images"):
            chosen("nearest", rows, np.arange(40) % 2, TABLE, ("a", "b"))
    finally:
        del METHODS["nearest"]
    assert made.choice.chosen == "nearest"
    assert [each.method for each in made.choice.judged] == ["ridge", "nearest"]
    assert made.choice.figures is not None
    assert made.choice.figures.accuracy.value > 0.9
    assert accuracy(made) > 0.9


def test_the_choice_is_repeated_exactly_whatever_is_not_bought_or_public(
    of_few: TrainedStudent,
) -> None:
    first, again = of_few, choose_digits(some_digits(40))
    assert first.choice == again.choice
    images = digit_images()[0]
    difference = first.student.probabilities(images) - again.student.probabilities(images)
    assert np.abs(difference).max() < 1e-4


def test_too_few_labels_fall_back_to_a_plain_model_and_say_so() -> None:
    labels = some_digits(19)
    for method in ("auto", "kernel"):
        made = choose_digits(labels, method)
        assert made.choice.chosen == "ridge"
        assert (made.choice.folds, made.choice.judged) == (0, ())
        holds(made.choice.why, "few")


def test_a_class_that_was_never_answered_is_never_predicted_by_the_plain_model() -> None:
    labels = some_digits(200)
    labels[labels == 7] = -1
    made = choose_digits(labels, "ridge")
    assert made.choice.folds == 5
    assert 7 not in made.student.predict_indices(digit_images()[0][:POOL])


def test_labels_of_one_class_leave_the_plainest_model() -> None:
    labels = np.where(np.arange(POOL) < 40, 3, -1)
    made = choose_digits(labels)
    assert (made.student.predict_indices(digit_images()[0]) == 3).all()


@pytest.mark.parametrize("x", [np.zeros((60, 4)), np.tile([[0.1, 0.9, 0, 1]], (60, 1))])
def test_constant_columns_leave_the_most_frequent_class(x: NDArray[np.float64]) -> None:
    labels = np.where(np.arange(60) % 3 == 0, 1, 0)
    made = chosen("auto", x.astype(np.float32), labels, TABLE, ("a", "b"))
    assert (made.student.predict_indices(x.astype(np.float32)) == 0).all()


def test_nothing_can_be_chosen_without_a_label() -> None:
    images = digit_images()[0][:20]
    with refuses(ValueError, "label"):
        chosen("auto", images, np.full(20, -1), SMALL, DIGITS)
    with refuses(ValueError, 20):
        chosen("auto", images, np.zeros(19, dtype=np.int64), SMALL, DIGITS)
    with refuses(ValueError, "shape"):
        chosen("auto", images[:, 1:], np.zeros(20, dtype=np.int64), SMALL, DIGITS)


@pytest.mark.parametrize(
    ("spec", "classes", "suited"),
    [
        (TABLE, 2, ["ridge", "trees"]),
        (SMALL, 10, ["ridge", "kernel"]),
        (LARGE, 10, ["ridge", "kernel"]),
        (LARGE, 40, ["ridge", "kernel", "neighbours"]),
    ],
)
def test_what_auto_tries_follows_from_public_facts(
    spec: InputSpec, classes: int, suited: list[str]
) -> None:
    x = np.zeros((400, *spec.shape), dtype=spec.dtype)
    task = Task(x, spec, tuple(str(k) for k in range(classes)))
    assert [name for name, method in METHODS.items() if method.suits(task)] == suited


@pytest.mark.parametrize(
    ("rows", "together", "noisy", "taken"),
    [
        (900, True, True, "trees"),
        (900, False, True, "ridge"),
        (900, True, False, "ridge"),  # labels are on what teachers agree on
        (150, True, True, "ridge"),
    ],
)
def test_trees_are_taken_of_a_table_where_counts_say_that_they_are_better(
    rows: int, together: bool, noisy: bool, taken: str
) -> None:
    """Where columns tell the class together, as whether both are large, or neither."""
    random = np.random.default_rng(0)
    x = random.random((rows, *TABLE.shape), dtype=np.float32)
    large = x[:, :2] > 0.5
    truth = (large[:, 0] ^ large[:, 1] if together else x.sum(axis=1) > 2).astype(np.int64)
    counts = np.rint(600 * np.eye(2)[truth] + 200 + random.normal(0, 100, (rows, 2)))
    answers = Answers.of_labels(truth, 2)
    if noisy:
        answers = Answers.of_counts(counts.astype(np.int64), teachers=1000, sigma=100.0)
    made = choose(Task(x, TABLE, ("no", "yes")), answers)
    assert made.choice.chosen == taken


@given(labels=st.lists(st.integers(0, 3), min_size=8, max_size=60), seed=st.integers(0, 5))
def test_folds_are_even_in_size_and_in_every_class(labels: list[int], seed: int) -> None:
    marks = np.array(labels)
    folds = Answers.of_labels(marks, 4).folds(seed, np.arange(len(marks)))
    assert folds is not None
    number = int(folds.max()) + 1
    assert number == min(5, len(labels) // 4)
    for own in (marks, *(marks[marks == k] for k in range(4))):
        of_these = folds if own is marks else folds[marks == own[0]] if len(own) else folds
        sizes = np.bincount(of_these, minlength=number)
        assert sizes.max() - sizes.min() <= 1


def test_there_are_no_folds_for_fewer_than_two_labels_per_class() -> None:
    assert Answers.of_labels(np.zeros(7, dtype=np.int64), 4).folds(0, np.arange(7)) is None
    assert Answers.of_labels(np.zeros(8, dtype=np.int64), 4).folds(0, np.arange(8)) is not None
