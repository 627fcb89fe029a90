"""Labels of public inputs beside private answers and released sums: used where they help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.data import digit_images
from support.wording import refuses
from terrine_models.data.arrays import DIGITS, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.labels import (
    PublicLabels,
    choose_with_labels,
    fit_public,
)
from terrine_models.students.models import Student, Task, Training
from terrine_models.students.sums import fit_sums, linear_part
from terrine_models.sums import ReleasedSums, SumMap, add_up, fit_scores

TABLE = InputSpec(shape=(5,), dtype="float32", low=0, high=1)
CLASSES = ("a", "b", "c")
Rows = NDArray[np.float32]
Ints = NDArray[np.int64]


def corners(rows: int, seed: int) -> tuple[Rows, Ints]:
    """Rows of five columns: two decide together, and a third alone."""
    random = np.random.default_rng(seed)
    x = random.random((rows, 5), dtype=np.float32)
    y = ((x[:, 0] > 0.5) ^ (x[:, 2] > 0.5)).astype(np.int64)
    return x, np.where(x[:, 4] > 0.7, 2, y)


def counted(labels: Ints, noise: float, seed: int = 1) -> Answers:
    drawn = np.random.default_rng(seed).normal(0, noise, (len(labels), 3))
    return Answers(np.eye(3)[labels] + drawn, np.full(len(labels), True), noise)


def bought(labels: Ints, count: int) -> Answers:
    return Answers.of_labels(np.where(np.arange(len(labels)) < count, labels, -1), 3)


def right(student: Student, x: NDArray[Any], labels: Ints) -> float:
    return float((student.predict_indices(x) == labels).mean())


def shuffled(labels: Ints) -> Ints:
    return np.random.default_rng(2).permutation(labels)


@pytest.mark.parametrize(
    ("answers", "labels", "expected"),
    [
        ("much noise", "right", {"labels", "labels+answers"}),
        ("little noise", "shuffled", {"trees"}),
        ("few bought", "right", {"labels", "labels+answers"}),
        ("many bought", "shuffled", {"trees", "labels+answers"}),
    ],
)
def test_public_labels_are_used_where_answers_say_that_they_help(
    answers: str, labels: str, expected: set[str]
) -> None:
    pool, truth = corners(900, 0)
    new, of_new = corners(2000, 5)
    given = {
        "much noise": counted(truth, 4.0),
        "little noise": counted(truth, 0.2),
        "few bought": bought(truth, 40),
        "many bought": bought(truth, 800),
    }[answers]
    shown = truth[:400] if labels == "right" else shuffled(truth[:400])
    task = Task(pool, TABLE, CLASSES)
    made = choose_with_labels(task, given, PublicLabels(pool[:400], shown), Training("trees"))
    assert made.choice.chosen in expected
    judged = [each.method for each in made.choice.judged]
    assert judged == ["ridge", "trees", "labels", "labels+answers"]
    assert made.choice.figures is not None
    tells_of_labels = "public_labels" in made.student.model.training
    assert tells_of_labels == made.choice.chosen.startswith("labels")
    assert right(made.student, new, of_new) > 0.85


@pytest.mark.parametrize(
    ("sigma", "labels", "count", "corrected"),
    [
        pytest.param(2e5, "right", 900, 0.0, id="labels alone"),
        pytest.param(2e5, "right", 25, 0.5, id="few labels say too little of a correction"),
        pytest.param(1.0, "right", 60, 1.0, id="sums refute few labels"),
        pytest.param(2e5, "shuffled", 900, 1.0, id="labels that say nothing"),
        pytest.param(1.0, "shuffled", 900, None, marks=pytest.mark.nightly),
        pytest.param(2e5, "exchanged", 60, None, id="wrong labels"),
    ],
)
def test_public_labels_join_released_sums_as_far_as_both_speak_for_it(
    sigma: float, labels: str, count: int, corrected: float | None, tmp_path: Path
) -> None:
    """corrected: by what share of the correction; None: the sums stand alone."""
    pool, truth = corners(900, 0)
    private, of_private = corners(6000, 3)
    new, of_new = corners(2000, 5)
    known = SumMap.fit(TABLE, PublicData.declare("pool", pool))
    exact = add_up(known(private), of_private, None, 3, known.norm)
    noise = np.rint(np.random.default_rng(1).normal(0, sigma, exact.shape)).astype(np.int64)
    released = ReleasedSums(known, exact + noise, sigma, len(private), pool[:50])
    task = Task(pool, TABLE, CLASSES)
    given = {"right": truth, "shuffled": shuffled(truth), "exchanged": 2 - truth}[labels]
    public = fit_public(task, PublicLabels(pool[:count], given[:count]))
    student, alone = fit_sums(released, task, public=public), fit_sums(released, task)
    best = max(right(each, new, of_new) for each in (alone, public.student(task)))
    assert right(student, new, of_new) > best - 0.02
    student.save(tmp_path)
    again = Student.load(tmp_path)
    np.testing.assert_allclose(again.probabilities(new), student.probabilities(new), atol=1e-9)
    how = student.model.training
    assert ("public_labels" in how) == (corrected is not None)
    assert how["method"] == ("labels" if corrected == 0 else "sums")
    assert how.get("correction") == (corrected or None)
    if corrected:
        part = linear_part(released, fit_scores(released, pool, base=public.unseen), corrected)
        assert student.model.features == (part.map.spec,)
        of_both = public.student(task, [part]).probabilities(new)
        np.testing.assert_allclose(student.probabilities(new), of_both)


@pytest.mark.parametrize("method", ["ridge", "trees", "boosting"])
def test_an_input_s_own_label_is_not_in_its_scores(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of labels by chance nothing can be said of the inputs that have them; of others, all."""
    from terrine_models.students import labels as module

    methods = module._methods
    monkeypatch.setattr(module, "_methods", lambda task: {method: methods(task)[method]})
    random = np.random.default_rng(0)
    x = random.random((300, 5), dtype=np.float32)
    task = Task(np.concatenate([x, x[:50]]), TABLE, CLASSES)  # some inputs are there twice
    y = random.integers(0, 3, 300)
    public = fit_public(task, PublicLabels(x, y))
    assert public.method == method
    said = public.unseen.argmax(axis=1)
    assert (said[:300] == y).mean() < 0.45
    assert (said[300:] == said[:50]).all()
    student = public.student(task)
    scale = public.unseen - np.log(student.probabilities(task.x))
    assert np.abs(scale).max() > 1e-3, "the student itself saw them"


@pytest.mark.parametrize("beside", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_labels_may_be_of_inputs_that_are_not_asked(beside: bool) -> None:
    pool, truth = corners(600, 0)
    new, of_new = corners(2000, 5)
    x, y = corners(500, 9) if beside else (pool[:500], truth[:500])
    made = choose_with_labels(
        Task(pool, TABLE, CLASSES), counted(truth, 6.0), PublicLabels(x, y), Training("ridge")
    )
    assert made.choice.chosen.startswith("labels")
    assert made.student.model.training["public_labels"] == 500
    assert right(made.student, new, of_new) > 0.85


def test_a_class_that_no_public_label_has_comes_of_the_answers() -> None:
    pool, truth = corners(900, 0)
    new, of_new = corners(2000, 5)
    shown = truth < 2
    labels = PublicLabels(pool[shown], truth[shown])
    made = choose_with_labels(
        Task(pool, TABLE, CLASSES), counted(truth, 0.5), labels, Training("ridge")
    )
    said = made.student.predict_indices(new)
    assert (said == 2)[of_new == 2].mean() > 0.8
    assert right(made.student, new, of_new) > 0.6


def test_pictures_have_public_labels_too() -> None:
    images, truth = digit_images()
    spec = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=16)
    noise = np.random.default_rng(0).normal(0, 3.0, (250, 10))
    answers = Answers(np.eye(10)[truth[:250]] + noise, np.full(250, True), 3.0)
    made = choose_with_labels(
        Task(images[:250], spec, DIGITS), answers, PublicLabels(images[:150], truth[:150])
    )
    assert made.choice.chosen.startswith("labels")
    assert right(made.student, images[1000:], truth[1000:]) > 0.85


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.zeros(40, np.int64), ("class",)),
        (np.arange(5) % 3, ("5", "3", "6")),
    ],
)
def test_labels_that_tell_nothing_are_refused(labels: Ints, said: tuple[str, ...]) -> None:
    pool, truth = corners(200, 0)
    task = Task(pool, TABLE, CLASSES)
    with refuses(ValueError, *said):
        choose_with_labels(task, counted(truth, 1.0), PublicLabels(pool[: len(labels)], labels))


@pytest.mark.parametrize("count", [10, pytest.param(30, marks=pytest.mark.nightly)])
def test_ten_labels_are_enough_for_a_model_and_do_no_harm(count: int) -> None:
    pool, truth = corners(600, 0)
    new, of_new = corners(2000, 5)
    made = choose_with_labels(
        Task(pool, TABLE, CLASSES),
        counted(truth, 0.2),
        PublicLabels(pool[:count], truth[:count]),
        Training("trees"),
    )
    assert right(made.student, new, of_new) > 0.9
