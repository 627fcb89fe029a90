"""Neighbours: each record votes by itself, by a public radius, and exactly as counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.processes import Terrine
from support.wording import holds, refuses
from terrine_models.data.arrays import DataError, Dataset, InputSpec
from terrine_models.features.maps import FeatureMap
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import StoreError, load_tensors, save_tensors
from terrine_models.teachers import neighbours
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.manifests import save_manifest
from terrine_models.teachers.neighbours import (
    MAX_POINT_LENGTH,
    RECORDS_FILE,
    NeighbourEnsemble,
    NeighbourSettings,
    NeighbourTeachers,
    build,
    coordinates,
    forecast_from_public,
    quantize,
)

PLANE = InputSpec(shape=(6,), dtype="float32", low=0, high=1)
FEW = NeighbourSettings(near=30)


@pytest.fixture(scope="module")
def public(digits: Dataset) -> PublicData:
    return PublicData.declare("digits from 1300 on", digits.inputs[1300:])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, digits: Dataset, public: PublicData) -> Path:
    out = tmp_path_factory.mktemp("neighbours") / "digits"
    build(part(digits, slice(0, 1300)), out, name="digits", public=public, settings=FEW)
    return out


def test_pictures_with_channels_first_are_refused_with_what_to_save(tmp_path: Path) -> None:
    spec = InputSpec(shape=(3, 9, 9), dtype="uint8", low=0, high=255)
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 9, 9)).astype(np.uint8)
    data = Dataset(x, np.arange(60) % 2, ("no", "yes"), spec)
    public = PublicData.declare("others", x[:20])
    for maker in (FEW, Heads()):
        with refuses(DataError, "[3, 9, 9]", "x.transpose(0,"):
            maker.feature_map(data, public)


def part(data: Dataset, rows: slice | NDArray[np.int64]) -> Dataset:
    return replace(data, inputs=data.inputs[rows], labels=data.labels[rows])


def people(seed: int, rows: int = 90, persons: int = 25) -> Dataset:
    """A small table in which persons have several rows, in no order."""
    random = np.random.default_rng(seed)
    x = random.random((rows, 6)).astype(np.float32)
    named = np.concatenate([np.arange(persons), random.integers(0, persons, rows - persons)])
    _, first, groups = np.unique(named, return_index=True, return_inverse=True)
    groups = np.argsort(np.argsort(first))[groups]  # by where they first appear
    return Dataset(
        x,
        (x[:, 0] + x[:, 1] > 1).astype(np.int64),
        ("no", "yes"),
        PLANE,
        groups=groups,
        group_column="person",
    )


POOL = PublicData.declare("rows", people(7, 900).inputs)


def by_hand(ensemble: NeighbourEnsemble, points: NDArray[np.int16]) -> NDArray[np.uint8]:
    """The same weights, one pair after the other, in whole numbers of any size."""
    kind = ensemble.manifest.teacher
    assert isinstance(kind, NeighbourTeachers)
    records = ensemble._records[:-1].T.numpy().astype(np.int64)

    def score(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
        return int(one @ other) - int(other @ other) // 2

    found = np.zeros((len(points), len(records)), np.uint8)
    for row, query in enumerate(points.astype(np.int64)):
        scores = sorted(score(query, each.astype(np.int64)) for each in ensemble.public)
        least = scores[-kind.rank]
        for i, each in enumerate(records):
            found[row, i] = score(query, each) >= least
    return found


def test_weights_are_those_of_a_loop_over_all_pairs(built: Path, digits: Dataset) -> None:
    ensemble = NeighbourEnsemble.load(built)
    x = digits.inputs[1300:1330]
    kind = ensemble.manifest.teacher
    assert isinstance(kind, NeighbourTeachers)
    weights = ensemble.weights(x)
    assert weights.dtype == np.uint8
    assert weights.shape == (30, 1300)
    expected = by_hand(ensemble, quantize(coordinates(ensemble.features, x), kind.scale))
    assert np.array_equal(weights, expected)
    assert 5 < weights.sum(1).mean() < 100
    assert ensemble.weights(x[:0]).shape == (0, 1300)


def test_neighbours_know_digits(built: Path, digits: Dataset) -> None:
    ensemble = NeighbourEnsemble.load(built)
    weights = ensemble.weights(digits.inputs[1300:])
    counts = [weights[:, ensemble.labels == c].sum(1) for c in range(10)]
    assert (np.argmax(counts, 0) == digits.labels[1300:]).mean() > 0.9
    assert ensemble.manifest.teachers == ensemble.manifest.units == 1300
    assert ensemble.manifest.teacher.matches_prior


def test_weights_do_not_depend_on_the_other_queries(built: Path, digits: Dataset) -> None:
    ensemble = NeighbourEnsemble.load(built)
    x = digits.inputs[1300:1500]
    together = ensemble.weights(x)
    backwards = ensemble.weights(np.ascontiguousarray(x[::-1]))[::-1]
    alone = np.concatenate([ensemble.weights(x[i : i + 1]) for i in range(0, 200, 20)])
    assert np.array_equal(together, backwards)
    assert np.array_equal(together[::20], alone)


def test_a_record_without_a_place_votes_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, place = people(4), neighbours.coordinates

    def broken(features: FeatureMap, x: NDArray[np.float32], *more: Any) -> NDArray[np.float32]:
        found = place(features, x, *more)
        found[(x[:, 0] > 0.9) & (len(x) == len(data))] = np.nan  # of private rows alone
        return found

    build(data, tmp_path / "whole", name="t", public=POOL, settings=NeighbourSettings(near=5))
    monkeypatch.setattr(neighbours, "coordinates", broken)
    build(data, tmp_path / "less", name="t", public=POOL, settings=NeighbourSettings(near=5))
    monkeypatch.undo()
    whole_, less = (NeighbourEnsemble.load(tmp_path / name) for name in ("whole", "less"))
    assert less.manifest.units == whole_.manifest.units == 25
    lost = len(whole_.labels) - len(less.labels)
    assert lost == (np.asarray(data.inputs, np.float32)[:, 0] > 0.9).sum() > 0
    totals = [each.weights(POOL.inputs).sum() for each in (whole_, less)]
    assert totals[1] <= totals[0]


def test_no_sum_is_rounded() -> None:
    random = np.random.default_rng(1)
    points = random.standard_normal((400, 300)).astype(np.float32)
    points[:100] = np.eye(300, dtype=np.float32)[:100] * 5
    points[100] = np.nan
    points[101] = np.inf
    made = quantize(points * 1e6, 3.0)
    squares = (made.astype(np.int64) ** 2).sum(1)
    assert (made[100:102] == 0).all()
    assert abs(np.sqrt(np.delete(squares, [100, 101])) - MAX_POINT_LENGTH).max() < 10
    assert 1.5 * squares.max() < 2**24


def test_what_public_rows_forecast_is_so(built: Path, digits: Dataset) -> None:
    ensemble = NeighbourEnsemble.load(built)
    found = forecast_from_public(ensemble)
    real = ensemble.weights(digits.inputs[1300:]).sum(1)
    assert found.near == pytest.approx(real.mean(), rel=0.4)


def test_people_of_the_pool_stand_for_people_with_all_their_rows(tmp_path: Path) -> None:
    """By hand: whose rows are within a radius, or among the nearest, and ‖v‖² of each."""
    pool = people(5, 400, 90)
    assert pool.groups is not None
    known = PublicData.declare("rows", pool.inputs, pool.groups)
    settings = NeighbourSettings(near=2)
    build(people(3), tmp_path / "known", name="known", public=known, settings=settings)
    ensemble = NeighbourEnsemble.load(tmp_path / "known")
    assert ensemble.shadows == 90
    sizes = np.bincount(pool.groups)
    assert sorted(np.bincount(ensemble.owners)) == sorted(sizes)
    points = ensemble.to_points(POOL.inputs[:60])
    found = ensemble.public_neighbours(points)
    apart = points[:, None].astype(np.int64) - ensemble.public
    apart = (apart**2).sum(2)
    kind = ensemble.manifest.teacher
    assert isinstance(kind, NeighbourTeachers)
    rank = kind.rank
    assert rank > 20, "so all that are around are within the radius"
    radius = np.sort(apart, 1)[:, rank - 1 : rank]
    counted = np.stack([np.bincount(ensemble.owners, row, 90) for row in apart <= radius])
    # The square of a length may be odd, of which half is left out.
    assert (np.abs(counted - found.weights) > 0).mean() < 0.01
    assert found.weights.max() > 1
    assert (found.near_wider == found.weights).all()
    once, twice = forecast_from_public(ensemble), forecast_from_public(ensemble, norm=2)
    assert once.people
    assert once.spent.sum() < twice.spent.sum()
    alone = tmp_path / "alone"
    build(people(3), alone, name="alone", public=POOL, settings=settings)
    assert not forecast_from_public(NeighbourEnsemble.load(alone)).people
    single = tmp_path / "single"
    build(replace(people(3), groups=None, group_column=None), single, name="s", public=known)
    assert NeighbourEnsemble.load(single).shadows == 400, "each row is a unit"


def test_of_a_large_pool_whole_people_are_taken(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    groups = np.sort(random.integers(0, 4000, 24_000))
    rows = random.random((24_000, 6)).astype(np.float32)
    public = PublicData.declare("rows", rows, groups)
    build(people(3), tmp_path / "t", name="t", public=public, settings=NeighbourSettings(near=2))
    ensemble = NeighbourEnsemble.load(tmp_path / "t")
    assert 9900 < len(ensemble.public) <= 10_000
    assert np.bincount(ensemble.owners).mean() == pytest.approx(6, abs=0.3)
    assert ensemble.shadows == pytest.approx(10_000 / 6, rel=0.05)


def test_a_record_that_is_also_public_votes_like_any_other(
    tmp_path: Path, digits: Dataset, public: PublicData
) -> None:
    """Nothing compares the two: which rows would be refused tells of the private ones."""
    both = part(digits, slice(1200, 1500))
    build(both, tmp_path / "both", name="both", public=public, settings=NeighbourSettings(near=1))
    weights = NeighbourEnsemble.load(tmp_path / "both").weights(both.inputs[100:])
    assert weights[np.arange(200), np.arange(100, 300)].all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": lambda p: p * 2}, "long"),
        ({"points": lambda p: p[:, 1:]}, "tensors"),
        ({"points": lambda p: p.float()}, "types"),
        ({"labels": lambda y: y.flip(0)}, "sorted"),
        ({"labels": lambda y: y + 10}, "sorted"),
        ({"units": lambda u: u.flip(0)}, "sorted"),
        ({"units": lambda u: u + 1}, "sorted"),
    ],
)
def test_a_manifest_by_hand_does_not_spare_records_the_check(
    tmp_path: Path, change: dict[str, Callable[[torch.Tensor], torch.Tensor]], said: str
) -> None:
    out = tmp_path / "t"
    manifest = build(people(3), out, name="t", public=POOL, settings=NeighbourSettings(near=5))
    tensors = load_tensors(out, RECORDS_FILE, manifest.files[RECORDS_FILE])
    tensors |= {name: make(tensors[name]) for name, make in change.items()}
    files = {**manifest.files, RECORDS_FILE: save_tensors(out / RECORDS_FILE, tensors)}
    save_manifest(out, manifest.model_copy(update={"files": files}))
    with refuses(StoreError, *said.split()):
        NeighbourEnsemble.load(out)


def test_neighbours_vote_in_projects_alone(built: Path, digits: Dataset) -> None:
    with refuses(StoreError, "project"):
        Ensemble.load(built)
    with refuses(ValueError, "[B, 8, 8]"):
        NeighbourEnsemble.load(built).weights(np.zeros((2, 8, 9), np.uint8))


def test_public_data_of_another_kind_are_refused(tmp_path: Path, digits: Dataset) -> None:
    with refuses(DataError, "shape"):
        build(digits, tmp_path / "t", name="t", public=POOL)


def test_people_are_placed_from_the_command_line(
    terrine: Terrine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = people(1)
    assert data.groups is not None
    rows = [
        f"{g},{','.join(f'{v:.3f}' for v in x)},{'ny'[y]}"
        for g, x, y in zip(data.groups, data.inputs, data.labels, strict=True)
    ]
    header = "person,a,b,c,d,e,f,ill"
    Path("private.csv").write_text("\n".join([header, *rows]) + "\n")
    pool = people(2, 900)
    rows = [
        f"{i},{','.join(f'{v:.3f}' for v in x)},{'ny'[y]}"
        for i, (x, y) in enumerate(zip(pool.inputs, pool.labels, strict=True))
    ]
    Path("pool.csv").write_text("\n".join([header, *rows]) + "\n")
    assert terrine("ensemble", "schema", "pool.csv", "--label", "ill").fine
    place = ("ensemble", "train", "private.csv", "--public", "pool.csv", "--name", "t")
    near = (*place, "--kind", "neighbours:near=5")
    holds(terrine(*near).refused, "--schema")
    said = terrine(*near, "--schema", "schema.json").fine
    assert "25 (neighbours)" in said
    holds(said, "people", "rows")
    holds(terrine("ensemble", "show", "t", "--verify").fine, 4, "files")
    assert terrine("init").fine
    assert terrine("ensemble", "register", "t", "--epsilon", 4, "--delta", 1e-3).fine
    ensemble = NeighbourEnsemble.load(tmp_path / "data" / "ensembles" / "t")
    assert ensemble.manifest.units == 25
    assert (np.diff(ensemble.units) >= 0).all()
    assert np.bincount(ensemble.units).tolist() == np.bincount(data.groups).tolist()
