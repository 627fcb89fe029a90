"""Sums of public features, and the student that follows from them."""

from __future__ import annotations

import io
import itertools
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.wording import refuses
from terrine_models import sums
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.students.models import Student, Task
from terrine_models.students.sums import fit_sums, linear_part
from terrine_models.sums import ReleasedSums, SumMap, add_up, fit_scores
from terrine_models.teachers.sums import add_up_records, fit_sum_map
from terrine_server.privacy import Sums

SPEC = InputSpec(shape=(6,), dtype="float32", low=0, high=1)
PICTURES = InputSpec(shape=(8, 8), dtype="uint8", low=0, high=255)
CLASSES = ("no", "yes")
WEIGHTS = np.array([4.0, -3.0, 2.0, 0.0, 0.0, 0.0])


def draw_rows(rows: int, seed: int, power: float = 1.0) -> NDArray[np.float32]:
    """Rows between 0 and 1; with a power above 1 they are other people's, nearer to 0."""
    return (np.random.default_rng(seed).random((rows, 6)) ** power).astype(np.float32)


def draw_labels(x: NDArray[np.float32], seed: int, classes: int = 2) -> NDArray[np.int64]:
    """Two classes by a logistic model; more by which of the columns is the largest."""
    if classes > 2:
        return np.asarray(x[:, :classes].argmax(axis=1), np.int64)
    shares = 1 / (1 + np.exp(-(x @ WEIGHTS) + 2.5))
    return np.asarray(np.random.default_rng(seed).random(len(x)) < shares, np.int64)


def release(
    known: SumMap,
    x: NDArray[Any],
    labels: NDArray[np.int64],
    classes: int,
    sigma: float = 1.0,
    natural: NDArray[Any] | None = None,
) -> ReleasedSums:
    exact = add_up(known(x), labels, None, classes, known.norm)
    noise = np.random.default_rng(1).normal(size=exact.shape) * sigma
    rows = x[:50] if natural is None else natural
    return ReleasedSums(known, exact + np.rint(noise).astype(np.int64), sigma, len(x), rows)


def fitted_map(
    pool: NDArray[Any], spec: InputSpec = SPEC, norm: int = 1024, noise: float = 0.0
) -> SumMap:
    return SumMap.fit(spec, PublicData.declare("pool", pool), norm, noise)


def agreement(student: Student, x: NDArray[Any], labels: NDArray[np.int64]) -> float:
    return float((student.predict_indices(x) == labels).mean())


@pytest.mark.parametrize("norm", [16, 17, 100, 1024])
@pytest.mark.parametrize("size", [0.0, 0.01, 1.0, 1e6])
def test_no_row_is_longer_than_the_norm(norm: int, size: float) -> None:
    known = fitted_map(draw_rows(300, 0), norm=norm)
    places = size * np.random.default_rng(2).normal(size=(500, known.width))
    places[:3, 1:] = 0  # along one axis, where rounding could go beyond
    whole = known.round(places)
    assert whole.dtype == np.int64
    assert (whole**2).sum(axis=1).max() <= norm**2
    stretched = places * known.stretch
    inside = np.linalg.norm(stretched, axis=1) <= 0.5
    assert np.abs(whole - norm * stretched)[inside].max(initial=0) <= 0.5


def test_the_map_is_public() -> None:
    pool = draw_rows(300, 0)
    known = fitted_map(pool)
    assert known.sha256 == fitted_map(pool.copy()).sha256
    others = {
        fitted_map(pool[:299]).sha256,
        fitted_map(pool, norm=100).sha256,
        replace(known, stretch=2 * known.stretch).sha256,
        fitted_map(pool, noise=0.01).sha256,
        replace(known, centre=known.centre + 1).sha256,
    }
    assert len(others | {known.sha256}) == 6
    lengths = np.linalg.norm(known.places(pool) * known.stretch, axis=1)
    assert (lengths < 1).mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("classes", "sigma", "power", "least"),
    [(2, 1.0, 1.0, 0.92), (2, 20_000.0, 1.0, 0.9), (2, 1.0, 3.0, 0.85), (4, 1.0, 1.0, 0.88)],
    ids=["exact", "noisy", "a pool of other people", "several classes"],
)
def test_sums_teach_what_the_records_do(
    classes: int, sigma: float, power: float, least: float
) -> None:
    pool, x, new = draw_rows(2000, 0, power), draw_rows(20_000, 1), draw_rows(2000, 2)
    labels = draw_labels(x, 3, classes)
    released = release(fitted_map(pool), x, labels, classes, sigma)
    task = Task(pool, SPEC, tuple("abcd"[:classes]))
    student = fit_sums(released, task)
    best = new @ WEIGHTS > 2.5 if classes == 2 else draw_labels(new, 0, classes)
    assert agreement(student, new, best.astype(np.int64)) >= least
    found = student.probabilities(new).mean(axis=0)
    assert found == pytest.approx(np.bincount(labels) / len(labels), abs=0.03)


def test_a_pool_of_other_people_is_tilted_to_the_private_ones_and_no_other_is() -> None:
    x = draw_rows(20_000, 1)
    labels = draw_labels(x, 3)
    for power, moved in ((1.0, False), (3.0, True)):
        pool = draw_rows(2000, 0, power)
        released = release(fitted_map(pool), x, labels, 2)
        tilt = fit_scores(released, pool).tilt
        assert tilt.sum() == pytest.approx(1)
        points = released.map(pool) / released.map.norm
        wanted = released.means[:-1].sum(axis=1)
        before, after = (
            np.linalg.norm(each @ points - wanted) for each in (1 / 2000 + 0 * tilt, tilt)
        )
        if moved:
            assert after < before / 10
        else:
            assert after <= before < 0.05
            assert (tilt**2).sum() < 1.1 / 2000


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("sigma", [1.0, 20_000.0])
def test_fitted_weights_are_where_no_step_helps(
    classes: int, corrected: bool, sigma: float
) -> None:
    """By finite differences of the loss, with the inverse of each component's covariance."""
    pool, x = draw_rows(400, 0), draw_rows(4000, 1)
    released = release(fitted_map(pool), x, draw_labels(x, 3, classes), classes, sigma)
    known = released.map
    of = sums._Pool.of(known.places(pool), known(pool) / known.norm, released)
    base = np.random.default_rng(4).normal(size=(400, classes)) if corrected else None
    match = sums._Match(of, released, base)
    allowed, _ = match._choose_spread(match.start)
    weights = match._fit(match.start, allowed)
    left, _ = match._open(match._shares(match.start))
    covariance = released.errors + match.variances[:, None, None] * left
    covariance[-1] += (released.count_scale**2 - 1) * released.errors
    inverse = np.linalg.inv(covariance)

    def lose(w: NDArray[np.float64]) -> float:
        scores = of.places @ w + (0.0 if base is None else base)
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        missed = of.points.T @ (shares * of.tilt[:, None]) - match.wanted
        told = np.einsum("kj,kjl,kl->", missed, inverse, missed)
        return float(told + ((w - match.start) ** 2 / allowed).sum()) / 2

    def slope(w: NDArray[np.float64]) -> NDArray[np.float64]:
        steps = 1e-5 * np.eye(w.size).reshape(-1, *w.shape)
        return np.array([lose(w + step) - lose(w - step) for step in steps]) / 2e-5

    assert lose(weights) < lose(match.start)
    at_start, at_end = (np.linalg.norm(slope(each)) for each in (match.start, weights))
    assert at_end < at_start / 100


def test_of_a_large_pool_and_many_classes_fewer_rows_and_spreads_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, x, new = draw_rows(6000, 0), draw_rows(20_000, 1), draw_rows(2000, 2)
    released = release(fitted_map(pool), x, draw_labels(x, 3, 4), 4)
    every = fit_scores(released, pool)
    monkeypatch.setattr(sums, "MANY_CLASSES", 4)
    monkeypatch.setattr(sums, "MAX_POOL_NUMBERS", 2500 * released.sums.size)
    fewer = fit_scores(released, pool)
    assert ((every.tilt > 0).sum(), (fewer.tilt > 0).sum()) == (6000, 2000)
    places, truth = released.map.places(new), draw_labels(new, 0, 4)
    said = [float((each.scores(places).argmax(axis=1) == truth).mean()) for each in (every, fewer)]
    assert said[1] > said[0] - 0.03


def test_a_public_model_is_corrected_and_one_that_is_wrong_is_seen() -> None:
    pool, x, new = draw_rows(2000, 0), draw_rows(5000, 1), draw_rows(2000, 2)
    released = release(fitted_map(pool), x, draw_labels(x, 3), 2, 100_000.0)
    plain = fit_scores(released, pool)
    truth = (new @ WEIGHTS > 2.5).astype(np.int64)

    def base(rows: NDArray[np.float32], sign: float) -> NDArray[np.float64]:
        scores = sign * (rows[:, :2] @ WEIGHTS[:2] - 0.5)  # of two of the three columns
        return np.stack([-scores / 2, scores / 2], axis=1)

    right, wrong = (fit_scores(released, pool, base(pool, sign)) for sign in (1, -3))
    assert right.evidence > plain.evidence > wrong.evidence
    places = released.map.places(new)
    own = base(new, 1)
    agreed = [
        float((scores.argmax(axis=1) == truth).mean())
        for scores in (plain.scores(places), own, own + right.scores(places))
    ]
    assert agreed[2] >= max(agreed[:2])


def test_a_student_of_sums_is_saved_and_loaded_and_computes_as_it_was_fitted(
    tmp_path: Path,
) -> None:
    pool, x = draw_rows(500, 0), draw_rows(5000, 1)
    released = release(fitted_map(pool), x, draw_labels(x, 3), 2)
    task = Task(pool, SPEC, CLASSES)
    student, found = fit_sums(released, task), fit_scores(released, pool)
    student.save(tmp_path)
    again = Student.load(tmp_path)
    assert again.model.architecture == "ridge"
    shares = found.probabilities(released.map.places(x))
    assert student.probabilities(x) == pytest.approx(shares, abs=1e-5)
    assert np.array_equal(again.probabilities(x), student.probabilities(x))
    assert linear_part(released, found).weights.dtype == np.float32


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_the_second_class_is_said_as_often_as_it_was_released(share: float) -> None:
    pool, x = draw_rows(3000, 0), draw_rows(20_000, 1)
    order = x @ WEIGHTS + np.random.default_rng(4).logistic(size=len(x))
    labels = (order > np.quantile(order, 1 - share)).astype(np.int64)
    released = release(fitted_map(pool), x, labels, 2)
    student = fit_sums(released, Task(pool, SPEC, CLASSES))
    assert student.predict_indices(x).mean() == pytest.approx(share, abs=0.02)
    for wanted in ("accuracy", 0.25):
        cut = fit_sums(released, Task(pool, SPEC, CLASSES), wanted).model.threshold
        assert cut == (None if wanted == "accuracy" else wanted)


@pytest.mark.parametrize("share", [0.2, 0.45, 0.55])
def test_a_cut_leaves_equal_rows_together(share: float) -> None:
    """Two columns of yes and no; half of the rows are alike, and likelier of the second class."""
    kinds = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) @ np.eye(2, 6)
    which = np.random.default_rng(0).choice(4, 20_000, p=[0.3, 0.1, 0.5, 0.1])
    x, chances = kinds[which].astype(np.float32), np.array([0.05, 0.1, share, 0.6])[which]
    labels = (np.random.default_rng(1).random(len(x)) < chances).astype(np.int64)
    student = fit_sums(release(fitted_map(x[:2000]), x, labels, 2), Task(x[:2000], SPEC, CLASSES))
    said = [set(student.predict_indices(x[which == kind]).tolist()) for kind in range(4)]
    assert all(len(each) == 1 for each in said)
    reached = [0.0, 0.1, 0.6]
    nearest = min(reached, key=lambda each: abs(each - labels.mean()))
    assert student.predict_indices(x).mean() == pytest.approx(nearest, abs=0.02)


def _ten_rows() -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], float]:
    x = draw_rows(2000, 1)
    return draw_rows(10, 0), x, draw_labels(x, 3), 1.0


def _constant_column() -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], float]:
    pool, x = draw_rows(500, 0), draw_rows(2000, 1)
    pool[:, 0] = 0.5
    return pool, x, draw_labels(x, 3), 1.0


def _same_rows() -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], float]:
    x = draw_rows(2000, 1)
    return np.full((20, 6), 0.5, np.float32), x, draw_labels(x, 3), 1.0


def _one_class() -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], float]:
    x = draw_rows(2000, 1)
    return draw_rows(500, 0), x, np.ones(len(x), np.int64), 1.0


def _all_noise() -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], float]:
    x = draw_rows(20, 1)
    return draw_rows(500, 0), x, draw_labels(x, 3), 1e6


def _far_away() -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], float]:
    x = draw_rows(2000, 1, 0.02)
    return draw_rows(500, 0, 50.0), x, draw_labels(x, 3), 1.0


@pytest.mark.parametrize(
    "draw", [_ten_rows, _constant_column, _same_rows, _one_class, _all_noise, _far_away]
)
def test_what_teaches_little_makes_a_student_of_finite_numbers(draw: Any) -> None:
    pool, x, labels, sigma = draw()
    released = release(fitted_map(pool), x, labels, 2, sigma)
    student = fit_sums(released, Task(pool, SPEC, CLASSES))
    shares = student.probabilities(draw_rows(200, 5))
    assert np.isfinite(shares).all()
    if draw is _one_class:
        assert (student.predict_indices(draw_rows(200, 5)) == 1).all()
    if draw is _all_noise:
        assert np.ptp(shares[:, 1]) < 0.9, "noise alone tells no rows apart"


def test_rows_of_another_shape_are_refused() -> None:
    pool = draw_rows(100, 0)
    released = release(fitted_map(pool), pool, draw_labels(pool, 3), 2)
    for rows in (pool[:, :5], pool[:0]):
        with refuses(DataError, "[6]"):
            fit_scores(released, rows)


@pytest.mark.parametrize("spec", [SPEC, PICTURES], ids=["table", "pictures"])
def test_released_sums_are_what_they_were_when_they_are_read(spec: InputSpec) -> None:
    random = np.random.default_rng(0)
    pool = draw_rows(400, 0) if spec is SPEC else random.integers(0, 256, (400, 8, 8), np.uint8)
    released = release(fitted_map(pool, spec), pool, random.integers(0, 3, 400), 3)
    again = ReleasedSums.of_bytes(released.to_bytes())
    assert again.map.sha256 == released.map.sha256
    assert np.array_equal(again.sums, released.sums)
    assert np.array_equal(again.natural, released.natural)
    assert np.array_equal(again.map(pool), released.map(pool))
    assert (again.sigma, again.units) == (released.sigma, released.units)
    assert again.prior.sum() == pytest.approx(1)
    assert again.to_bytes() == released.to_bytes()


def _archive(**changed: Any) -> bytes:
    """An archive with some of its arrays changed, and those without which are None."""
    pool = draw_rows(100, 0)
    held = np.load(io.BytesIO(release(fitted_map(pool), pool, draw_labels(pool, 3), 2).to_bytes()))
    arrays = {name: each for name, each in {**held, **changed}.items() if each is not None}
    made = io.BytesIO()
    np.savez(made, **arrays)
    return made.getvalue()


def _about(old: bytes, new: bytes) -> bytes:
    said = np.load(io.BytesIO(_archive()))["about"].tobytes()
    assert old in said
    return _archive(about=np.frombuffer(said.replace(old, new), np.uint8))


def _huge_header() -> bytes:
    header = io.BytesIO()
    np.save(header, np.zeros((10, 2), np.int64))
    said = header.getvalue().replace(b"(10, 2)", b"(1099511627776, 2)").replace(b" " * 11, b"", 1)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("sums.npy", said)
    return made.getvalue()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no zip": lambda: b"PK\x03\x04",
    "cut off": lambda: _archive()[:-400],
    "a header of terabytes": _huge_header,
    "objects": lambda: _archive(sums=np.array([[{}, 1]], dtype=object)),
    "no sums": lambda: _archive(sums=None),
    "sums of one class": lambda: _archive(sums=np.zeros((7, 1), np.int64)),
    "sums of other features": lambda: _archive(sums=np.zeros((9, 2), np.int64)),
    "sums as floats": lambda: _archive(sums=np.zeros((7, 2))),
    "sums that nobody drew": lambda: _archive(sums=np.full((7, 2), 1 << 60)),
    "a centre of no numbers": lambda: _archive(centre=np.full(6, np.nan)),
    "no public rows": lambda: _archive(natural=np.zeros((0, 6), np.float32)),
    "rows of another shape": lambda: _archive(natural=np.zeros((5, 7), np.float32)),
    "too many rows": lambda: _archive(natural=np.zeros((4001, 6), np.float32)),
    "another array": lambda: _archive(**{"map.more": np.zeros(3)}),
    "about of another kind": lambda: _archive(about=np.frombuffer(b"[]", np.uint8)),
    "about as floats": lambda: _archive(about=np.zeros(3)),
    "no noise": lambda: _about(b'"sigma":1.0', b'"sigma":0.0'),
    "nobody": lambda: _about(b'"units":100', b'"units":0'),
    "a norm beyond the greatest": lambda: _about(b'"norm":1024', b'"norm":99999'),
    "another format": lambda: _about(b"terrine-sums-2", b"terrine-sums-9"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_are_no_released_sums_is_refused(hostile: str) -> None:
    with refuses(DataError, "sums"):
        ReleasedSums.of_bytes(HOSTILE[hostile]())


Row = tuple[tuple[int, int], int]
Add = Callable[..., NDArray[np.int64]]


def slowly_added(person: list[Row], classes: int, norm: int) -> NDArray[np.int64]:
    """What a person contributes, by whole numbers and fractions one at a time: [d + 1, m]."""
    width, rows, longer = len(person[0][0]), len(person), 2 if classes == 2 else 1
    found = np.zeros((width + 1, classes), np.int64)
    for each in range(classes):
        own = [point for point, label in person if label == each]
        count = norm // longer * len(own) // rows
        mean = [int(Fraction(sum(values), rows)) for values in zip(*own, strict=True)]
        squared, most = sum(value**2 for value in mean), longer * count
        if squared > most**2:
            length = math.isqrt(squared - 1) + 1
            mean = [int(Fraction(value * most, length)) for value in mean]
        found[:width, each] = mean or 0
        found[width, each] = count
    return by_column(found)


def by_column(own: NDArray[np.int64]) -> NDArray[np.int64]:
    """What is released of the sums of each class, [d + 1, m]."""
    if own.shape[1] > 2:
        return own
    first, second = own.T
    return np.stack([2 * (second - first), first + second], axis=1)


def of_classes(added: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sums of each class, of what is released by column: [..., d + 1, m]."""
    if added.shape[-1] > 2:
        return added
    twice, both = added[..., 0], added[..., 1]
    return np.stack([2 * both - twice, 2 * both + twice], axis=-1) // 4


def tiny_people(norm: int, classes: int) -> list[list[Row]]:
    """Everybody with one to three rows of a few points, and some with many."""
    a, b = 3 * norm // 5, 4 * norm // 5
    points = [(norm, 0), (-norm, 0), (a, b), (-b, a), (-1, -2), (0, 0)]
    rows = list(itertools.product(points, range(classes)))
    few = [
        list(own)
        for count in (1, 2, 3)
        for own in itertools.combinations_with_replacement(rows, count)
    ]
    near = [((a, b), 0), ((b, a), 0)] * 60 + [((-norm, 0), 1)]
    return [*few, near, [*near, *rows], [((-a, -b), 0)] * 101 + [((0, norm), 1)]]


def add_one(add: Add, person: list[Row], classes: int, norm: int) -> NDArray[np.int64]:
    points = np.array([point for point, _ in person], np.int64)
    labels = np.array([label for _, label in person])
    return add(points, labels, np.zeros(len(person), np.int64), classes, norm)


def measure(add: Add, people: list[list[Row]], classes: int, norm: int) -> tuple[int, int]:
    """The most that two people's contributions are apart, and that a class's is too long: squared.

    A person's contribution is [d + 1, m]: of each class the features, and what bounds them.
    """
    given = np.array([add_one(add, person, classes, norm) for person in people])
    flat = given.reshape(len(people), -1)
    squared = (flat**2).sum(axis=1)
    apart = squared[:, None] + squared - 2 * flat @ flat.T
    own = of_classes(given)
    longest = own[:, -1] * (2 if classes == 2 else 1)
    too_long = (own[:, :-1] ** 2).sum(axis=1) - longest**2
    return int(apart.max()), int(too_long.max())


@pytest.mark.parametrize("classes", [2, 3])
def test_replacing_a_person_moves_the_sums_by_what_is_paid_for(classes: int) -> None:
    norm = 10
    people = tiny_people(norm, classes)
    priced = Sums(9.0, norm, 2, classes, "ab" * 32).event.squared
    assert measure(add_up, people, classes, norm) == (priced, 0)
    assert priced == 4 * norm**2 * (5 if classes == 2 else 1)


def _every_row(points: Any, labels: Any, groups: Any, classes: int, norm: int) -> Any:
    """People with many rows are not bounded."""
    return add_up(points, labels, None, classes, norm)


def _not_shortened(points: Any, labels: Any, groups: Any, classes: int, norm: int) -> Any:
    """Counts are rounded, and features are not shortened to them."""
    found = of_classes(add_up(points, labels, groups, classes, norm))
    for each in range(classes):
        found[:-1, each] = np.trunc(points[labels == each].sum(axis=0) / len(points))
    return by_column(found)


def _to_the_nearest(points: Any, labels: Any, groups: Any, classes: int, norm: int) -> Any:
    """Means and counts are rounded to the nearest whole number."""
    found = of_classes(add_up(points, labels, groups, classes, norm))
    constant = sums.constant_feature(norm, classes)
    for each in range(classes):
        own = labels == each
        found[:-1, each] = np.rint(points[own].sum(axis=0) / len(points))
        found[-1, each] = np.rint(constant * own.mean())
    return by_column(found)


def _longer_rows(points: Any, labels: Any, groups: Any, classes: int, norm: int) -> Any:
    """A row may be longer than the norm, as if it were only rounded."""
    return add_up(points + 2 * np.sign(points), labels, groups, classes, norm + 2)


def _longer_constant(points: Any, labels: Any, groups: Any, classes: int, norm: int) -> Any:
    """The constant is a unit longer than what is free."""
    found = add_up(points, labels, groups, classes, norm)
    found[-1] += np.sign(found[-1])
    return found


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "defect", [_every_row, _not_shortened, _to_the_nearest, _longer_rows, _longer_constant]
)
def test_a_defect_of_what_people_contribute_is_seen(defect: Add, classes: int) -> None:
    priced = Sums(9.0, 10, 2, classes, "ab" * 32).event.squared
    apart, too_long = measure(defect, tiny_people(10, classes), classes, 10)
    assert apart > priced or too_long > 0


@pytest.mark.parametrize("block", [1, 7, 1 << 13])
def test_sums_are_of_what_each_person_contributes(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order of the rows, the numbers of the people and who is added up together."""
    monkeypatch.setattr(sums, "BLOCK_ROWS", block)
    random, norm = np.random.default_rng(block), 9
    people = tiny_people(5, 3)[::9]
    rows = [(*row, who) for who, person in enumerate(people) for row in person]
    random.shuffle(rows)
    points = np.array([row[0] for row in rows], np.int64)
    labels, who = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    expected = sum(slowly_added(person, 3, norm) for person in people)
    assert np.array_equal(add_up(points, labels, 1000 - 3 * who, 3, norm), expected)
    alone = np.stack([np.where(labels == each, points.T, 0).sum(axis=1) for each in range(3)], 1)
    counts = norm * np.bincount(labels, minlength=3)
    assert np.array_equal(add_up(points, labels, None, 3, norm), np.vstack([alone, counts]))


@pytest.mark.parametrize("extreme", [np.iinfo(np.int64).min, np.iinfo(np.int64).max, 1 << 40, 6])
def test_a_bound_is_kept_whatever_is_added_up(extreme: int) -> None:
    """Records that a map should not have made, or that have no class, stop and reveal nothing."""
    norm = 5
    points = np.array([[extreme, 1], [extreme, extreme], [0, 0]], np.int64)
    for labels, groups in itertools.product(([0, 1, 1], [-7, 99, 1]), (None, [4, 4, 4])):
        found = of_classes(add_up(points, labels, groups, 2, norm))
        people = 3 if groups is None else 1
        assert np.abs(found).max() <= people * norm
        assert found[-1].sum() <= people * norm // 2
        for only in range(3):
            one = add_up(points[only : only + 1], labels[only : only + 1], None, 2, norm)
            assert (of_classes(one)[:-1] ** 2).sum() <= norm**2


def test_a_person_with_ten_thousand_rows_counts_once() -> None:
    random, norm = np.random.default_rng(0), 100
    points = random.integers(-40, 41, (10_500, 3))
    labels = random.integers(0, 3, len(points))
    groups = np.maximum(np.arange(len(points)) - 10_000, 0)
    found = add_up(points, labels, groups, 3, norm)
    others = groups > 0
    person = found - add_up(points[others], labels[others], groups[others], 3, norm)
    assert (person[-1] == norm * np.bincount(labels[~others]) // 10_001).all()
    assert ((person[:-1] ** 2).sum(axis=0) <= person[-1] ** 2).all()
    assert add_up(points[:0], labels[:0], groups[:0], 3, norm).tolist() == [[0, 0, 0]] * 4


@pytest.mark.parametrize(
    ("points", "norm"),
    [(np.zeros((3, 2)), 5), (np.zeros((3, 2), np.int64), 1 << 26), (np.zeros((3, 2), np.int64), 0)],
)
def test_sums_that_would_not_be_exact_are_refused(points: Any, norm: int) -> None:
    with refuses(ValueError, "int64"):
        add_up(points, [0, 1, 0], None, 2, norm)
    with refuses(ValueError, "label"):
        add_up(np.zeros((3, 2), np.int64), [0, 1], None, 2, 5)


def world(people: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]]) -> Dataset:
    """Records of people, one after another."""
    groups = np.repeat(np.arange(len(people)), [len(labels) for _, labels in people])
    rows, labels = (np.concatenate(each) for each in zip(*people, strict=True))
    return Dataset(rows, labels, CLASSES, SPEC, groups, name="world", group_column="who")


def test_what_a_person_adds_depends_on_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even by what products round to, which depends on how many rows are multiplied."""
    known = fitted_map(draw_rows(300, 0))
    of_base = FeatureMap.of_base

    def round_by_size(self: FeatureMap, base: Any, *, skip: int = 0) -> Any:
        return of_base(self, base, skip=skip) + np.float32(0.01) * len(base)

    monkeypatch.setattr(FeatureMap, "of_base", round_by_size)
    rows = [draw_rows(count, count) for count in (1, 9, 3, 200, 17, 1)]
    people = [(x, draw_labels(x, 0)) for x in rows]
    alone = [add_up_records(known, world([person])) for person in people]
    for one, other in itertools.permutations(range(len(people)), 2):
        others = [people[each] for each in range(len(people)) if each not in (one, other)]
        told = add_up_records(known, world([others[0], people[one], *others[1:]]))
        replaced = add_up_records(known, world([others[0], people[other], *others[1:]]))
        assert np.array_equal(told - replaced, alone[one] - alone[other])
        apart = int(((told - replaced) ** 2).sum())
        assert apart <= Sums(9.0, known.norm, known.width, 2, "").event.squared


def test_the_map_is_the_same_whatever_private_records_hold() -> None:
    public = PublicData.declare("pool", draw_rows(300, 0))
    found = {
        fit_sum_map(world([(x, draw_labels(x, 1))]), public, 100).sha256
        for x in (draw_rows(5, 1), draw_rows(400, 2, 9.0), np.zeros((7, 6), np.float32))
    }
    assert found == {SumMap.fit(SPEC, public, 100).sha256}
