"""Pictures are seen by what tells public labels, or answers, best: gradients, colours or pixels."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from terrine_models.data.arrays import InputSpec
from terrine_models.features.fitting import public_features
from terrine_models.features.public import PublicData
from terrine_models.features.views import View, best_view, predict_held_out, views_of
from terrine_models.students.answers import Answers
from terrine_models.students.models import Task, Training
from terrine_models.students.selection import choose

Pictures = tuple[NDArray[np.uint8], NDArray[np.int64]]
POOL = 600
NOISE = 0.1
GREY, PIXELS = View("oriented_gradients"), View("identity")


def spec_of(x: NDArray[np.uint8]) -> InputSpec:
    return InputSpec(shape=x.shape[1:], dtype="uint8", low=0, high=255)


def by_lightness(rows: int = 1000) -> Pictures:
    """Noise around a lightness, which is the class: gradients see nothing of it."""
    random = np.random.default_rng(0)
    y = random.integers(4, size=rows)
    x = 40 + 45 * y[:, None, None] + random.normal(0, 25, (rows, 12, 12))
    return x.clip(0, 255).astype(np.uint8), y


def by_shape(rows: int = 1000) -> Pictures:
    """Bars that lie or stand, of which pixels tell little, as they are anywhere."""
    random = np.random.default_rng(0)
    y = random.integers(2, size=rows)
    x = random.normal(60, 20, (rows, 16, 16))
    for each, kind, at in zip(x, y, random.integers(0, 10, (rows, 2)), strict=True):
        tall, wide = (7, 3) if kind else (3, 7)
        each[at[0] : at[0] + tall, at[1] : at[1] + wide] += 90
    return x.clip(0, 255).astype(np.uint8), y


def in_random_colours(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    random = np.random.default_rng(1)
    dark, light = random.integers(0, 90, (2, len(x), 1, 1, 3))
    share = x[..., None] / 255
    coloured: NDArray[np.uint8] = ((1 - share) * dark + share * (165 + light)).astype(np.uint8)
    return coloured


def noisy(y: NDArray[np.int64]) -> Answers:
    classes = int(y.max()) + 1
    shares = np.eye(classes)[y] + np.random.default_rng(2).normal(0, NOISE, (len(y), classes))
    return Answers(shares, np.ones(len(y), dtype=bool), NOISE)


def task_of(x: NDArray[np.uint8], y: NDArray[np.int64]) -> Task:
    return Task(x[:POOL], spec_of(x), tuple("abcdefghij"[: int(y.max()) + 1]))


def right_on_map(x: NDArray[np.uint8], y: NDArray[np.int64], *, labelled: bool) -> float:
    pool = PublicData.declare("pool", x[:POOL], labels=y[:POOL] if labelled else None)
    known = public_features(spec_of(x), pool, 60)
    found = np.concatenate([known(x[at : at + 128]) for at in range(0, len(x), 128)])
    found /= found.std()
    model = LogisticRegression(max_iter=500).fit(found[:POOL], y[:POOL])
    return float(model.score(found[POOL:], y[POOL:]))


def test_a_map_takes_pixels_where_public_labels_say_that_gradients_lose_the_class() -> None:
    x, y = by_lightness()
    assert right_on_map(x, y, labelled=False) < 0.7
    assert right_on_map(x, y, labelled=True) > 0.9


def test_a_map_keeps_gradients_where_they_tell_more() -> None:
    x, y = by_shape()
    pool = PublicData.declare("pool", x[:POOL], labels=y[:POOL])
    assert public_features(spec_of(x), pool, 60).spec.base == "oriented_gradients"


def test_a_student_takes_pixels_where_noisy_answers_say_that_gradients_lose_the_class() -> None:
    x, y = by_lightness()
    task = task_of(x, y)
    student = choose(task, noisy(y[:POOL]), Training(method="ridge")).student
    assert (student.predict_indices(x[POOL:]) == y[POOL:]).mean() > 0.9
    usual = Task(task.x, task.spec, task.classes)
    assert usual.with_best_view(Answers.of_labels(y[:POOL] % 1, 4)).view == GREY, "nothing to tell"


@pytest.mark.parametrize("coloured", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_student_overlooks_colours_that_only_distract(coloured: bool) -> None:
    x, y = by_shape()
    if coloured:
        x = in_random_colours(x)
    task, answers = task_of(x, y), noisy(y[:POOL])
    assert task.with_best_view(answers).view != View("coloured_gradients")
    assert task.with_best_view(answers).view != PIXELS
    student = choose(task, answers, Training(method="ridge")).student
    assert (student.predict_indices(x[POOL:]) == y[POOL:]).mean() > 0.95


@pytest.mark.parametrize("side", [5, 16])
def test_grey_pictures_stored_in_colour_have_the_features_of_grey_ones(side: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (300, side, side), dtype=np.uint8)
    stored = x[..., None].repeat(3, 3)
    assert views_of(spec_of(stored), stored) == views_of(spec_of(x), x) == (GREY, PIXELS)
    maps = [
        public_features(spec_of(each), PublicData.declare("p", each), 30) for each in (x, stored)
    ]
    one, other = (abs(known(each)) for known, each in zip(maps, (x, stored), strict=True))
    np.testing.assert_allclose(one, other, atol=1e-3, rtol=1e-3)


def test_too_few_public_pictures_or_answers_decide_nothing() -> None:
    x, y = by_lightness()
    few = PublicData.declare("pool", x[:150], labels=y[:150])
    assert public_features(spec_of(x), few, 60).spec.base == "oriented_gradients"
    answers = noisy(y[:POOL]).only(np.arange(POOL) < 150)
    assert task_of(x, y).with_best_view(answers).view == GREY


def test_held_out_regressions_are_those_of_a_loop() -> None:
    random = np.random.default_rng(0)
    points = random.normal(size=(40, 5))
    shares = points[:, :2] + random.normal(size=(40, 2))
    found = predict_held_out(points, shares)
    centred = points - points.mean(0)
    squares = (centred**2).sum()
    expected = []
    for penalty in [10.0**power for power in range(-5, 2)]:
        said = []
        for row in range(len(points)):
            kept = np.arange(len(points)) != row
            x, y = centred[kept], shares[kept]
            z = np.column_stack([np.ones(len(x)), x])
            ridge = np.diag([0.0] + [float(penalty * squares)] * 5)
            weights = np.linalg.solve(z.T @ z + ridge, z.T @ y)
            said.append(np.append(1, centred[row]) @ weights)
        expected.append(np.stack(said))
    best = min(expected, key=lambda each: float(((each - shares) ** 2).mean()))
    np.testing.assert_allclose(found, best)


def test_a_view_that_is_hardly_better_is_not_taken() -> None:
    random = np.random.default_rng(0)
    shares = np.eye(2)[random.integers(0, 2, 500)]
    some, again = (shares[:, :1] + random.normal(size=(500, 1)) for _ in range(2))
    assert best_view({GREY: some, PIXELS: again}, shares) == GREY
    assert best_view({GREY: some, PIXELS: np.column_stack([some, shares])}, shares) == PIXELS
