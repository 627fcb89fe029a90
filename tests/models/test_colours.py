"""Feature maps of pictures carry their colours, of any number of channels and of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from support.wording import refuses
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.features.fitting import public_features
from terrine_models.features.gradients import colours_width
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import Student, Task
from terrine_models.students.selection import choose
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.manifests import TeacherSettings
from terrine_models.teachers.networks import Networks
from terrine_models.teachers.training import train_ensemble

Pictures = tuple[NDArray[np.uint8], NDArray[np.int64]]
POOL, SHOWN = 400, 800
"""Pictures on which a map is fitted, and after those, some that a plain model learns from."""


def spec_of(x: NDArray[np.uint8]) -> InputSpec:
    return InputSpec(shape=x.shape[1:], dtype="uint8", low=0, high=255)


def by_colour(shape: tuple[int, int, int], rows: int = 1200) -> Pictures:
    """Noise around a colour, which is the class."""
    random = np.random.default_rng(0)
    colours = random.permuted(np.linspace(50, 205, 4 * shape[2])).reshape(4, -1)
    y = random.integers(4, size=rows)
    x = colours[y][:, None, None] + random.normal(0, 12, (rows, *shape))
    return x.clip(0, 255).astype(np.uint8), y


def by_colour_and_shape(rows: int = 1200) -> Pictures:
    """Crosses and squares of 16 x 16 pixels, green or red, as light as what is around them."""
    random = np.random.default_rng(0)
    y = random.integers(4, size=rows)
    x = np.full((rows, 16, 16, 3), 107.0)
    for each, kind, (down, across) in zip(x, y, random.integers(-2, 3, (rows, 2)), strict=True):
        rows_away = np.abs(np.arange(16) - 8 - down)[:, None]
        columns_away = np.abs(np.arange(16) - 8 - across)[None]
        near, thin = np.maximum(rows_away, columns_away), np.minimum(rows_away, columns_away)
        each[(near <= 4) & ((kind % 2 == 0) | (thin <= 1))] = [[200, 60, 60], [60, 200, 60]][
            kind // 2
        ]
    return (x + random.normal(0, 12, x.shape)).clip(0, 255).astype(np.uint8), y


def features(known: FeatureMap, x: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.concatenate([known(x[at : at + 128]) for at in range(0, len(x), 128)])


def right(x: NDArray[np.uint8], y: NDArray[np.int64]) -> float:
    """The share that a plain model on the map gets right."""
    known = public_features(spec_of(x), PublicData.declare("pool", x[:POOL]), 100)
    found = features(known, x)
    found /= found.std()
    model = LogisticRegression(max_iter=500).fit(found[POOL:SHOWN], y[POOL:SHOWN])
    return float(model.score(found[SHOWN:], y[SHOWN:]))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 3),
        (7, 7, 3),
        (24, 20, 7),
        *(
            pytest.param(shape, marks=pytest.mark.nightly)
            for shape in ((2, 5, 4), (3, 3, 4), (8, 8, 2), (16, 16, 3))
        ),
    ],
)
def test_a_class_that_is_a_colour_is_seen(shape: tuple[int, int, int]) -> None:
    assert right(*by_colour(shape)) > 0.97


def test_a_class_that_is_a_shape_in_a_colour_of_the_same_lightness_is_seen() -> None:
    assert right(*by_colour_and_shape()) > 0.97


def test_colours_that_only_distract_count_nothing_where_public_pictures_have_labels() -> None:
    x, y = by_colour_and_shape()
    shape = y % 2

    def weight_of_colours(labels: NDArray[np.int64] | None) -> float:
        pool = PublicData.declare("pool", x[:POOL], labels=labels)
        basis = public_features(spec_of(x), pool, 100).tensors["basis"]
        return float(abs(basis[-colours_width(3) :]).max())

    bright = np.random.default_rng(0).integers(0, 130, (len(x), 1, 1, 3))
    x = (x // 2 + bright).astype(np.uint8)
    assert weight_of_colours(shape[:POOL]) == 0
    assert weight_of_colours(None) > 0


def test_labels_of_public_rows_are_as_many_as_these() -> None:
    x, y = by_colour((8, 8, 3), rows=20)
    with refuses(DataError, "pool", "label"):
        PublicData.declare("pool", x, labels=y[:7])


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        pytest.param((1, 1, 3), Heads(), marks=pytest.mark.nightly),
        pytest.param((1, 1, 3), Networks(epochs=30), marks=pytest.mark.nightly),
        ((3, 3, 4), Heads()),
        ((3, 3, 4), Networks(epochs=30)),
        ((16, 16, 3), Heads()),
    ],
)
def test_teachers_of_colours_vote_as_loaded(
    shape: tuple[int, int, int], settings: TeacherSettings, tmp_path: Path
) -> None:
    x, y = by_colour(shape, rows=700)
    data = Dataset(x[POOL:], y[POOL:], tuple("abcd"), spec_of(x), name="colours")
    pool = PublicData.declare("pool", x[:POOL])
    out = tmp_path / "teachers"
    train_ensemble(data, out, name="t", teachers=5, config=settings, public=pool, seed=0)
    votes = Ensemble.load(out, device="cpu").votes(x[:POOL])
    assert (votes.argmax(1) == y[:POOL]).mean() > 0.9


NIGHTLY = [pytest.param(each, marks=pytest.mark.nightly) for each in ((1, 1, 3), (16, 16, 3))]


@pytest.mark.parametrize("shape", [(3, 3, 4), *NIGHTLY])
def test_a_student_of_colours_learns_them_and_is_the_same_when_loaded(
    shape: tuple[int, int, int], tmp_path: Path
) -> None:
    x, y = by_colour(shape, rows=700)
    pool, others = x[:POOL], x[POOL:]
    task = Task(pool, spec_of(x), tuple("abcd"))
    student = choose(task, Answers.of_labels(y[:POOL], 4)).student
    assert (student.predict_indices(others) == y[POOL:]).mean() > 0.97
    student.save(tmp_path)
    again = Student.load(tmp_path)
    np.testing.assert_array_equal(again.probabilities(others), student.probabilities(others))
