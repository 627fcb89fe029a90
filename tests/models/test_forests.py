"""Forests: what scikit-learn trains, evaluated by our own code, from files that are not trusted."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.ensemble import RandomForestClassifier

from support.wording import refuses
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.features.trees import MAX_DEPTH, round_down
from terrine_models.storage.manifests import StoreError, save_tensors
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Forests, load_manifest
from terrine_models.teachers.manifests import Trained, save_manifest
from terrine_models.teachers.shards import TrainingError, partition_records
from terrine_models.teachers.training import train_ensemble
from terrine_models.teachers.trees import Trees, as_tensors, fit_forest

Floats = NDArray[np.float32]
FEW = Forests(trees=8)


def table(rows: int, classes: int = 2, seed: int = 0) -> Dataset:
    """Rows of six columns, of which some have few values; the label follows from them, mostly."""
    random = np.random.default_rng(seed)
    x = random.random((rows, 6), dtype=np.float32)
    x[:, 3:] = np.round(x[:, 3:] * 4) / 4
    y = ((x[:, 0] + x[:, 3] + random.normal(0, 0.2, rows)) * classes / 2).astype(np.int64)
    spec = InputSpec(shape=(6,), dtype="float32", low=0, high=1)
    names = tuple("abcdefgh"[:classes])
    return Dataset(x, y.clip(0, classes - 1), names, spec, name="table")


def theirs(x: Floats, y: NDArray[np.int64]) -> tuple[Any, Trained]:
    forest = RandomForestClassifier(20, max_depth=MAX_DEPTH, random_state=0).fit(x, y)
    return forest, as_tensors(forest.estimators_, forest.classes_, 5)


def at_thresholds(x: Floats, tensors: Trained, rows: int) -> Floats:
    """Rows made of thresholds, of the float32 numbers on both sides of them, and of extremes."""
    random = np.random.default_rng(1)
    feature, threshold = tensors["feature"].numpy(), tensors["threshold"].numpy()
    made = x[random.integers(0, len(x), rows)].copy()
    for column in range(x.shape[1]):
        known = threshold[feature == column]
        if len(known) == 0:
            continue
        picked = random.choice(known, rows)
        moved = np.nextafter(picked, random.choice([-np.inf, np.inf], rows).astype(np.float32))
        made[:, column] = np.where(random.random(rows) < 0.5, picked, moved)
    made[:6] = np.array([-1e30, 1e30, 0, 1, -0.0, 1e-45])[:, None]
    return made


@pytest.mark.parametrize("labels", [[0, 1], [0, 4], [1, 2, 3], [3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("rows", [1, 3, 40, 600])
def test_probabilities_and_choices_are_those_of_scikit_learn(labels: list[int], rows: int) -> None:
    random = np.random.default_rng(rows)
    x = (random.normal(size=(rows, 6)) * 10.0 ** random.integers(-8, 8, 6)).astype(np.float32)
    x[:, 5] = np.round(x[:, 5])
    y = random.choice(labels, rows)
    forest, tensors = theirs(x, y)
    trees = Trees(tensors, 6, 5, "here")
    asked = np.concatenate([x, at_thresholds(x, tensors, 500)])
    expected = np.zeros((len(asked), 5))
    expected[:, forest.classes_] = forest.predict_proba(asked)
    own = trees.probabilities(asked)[0]
    assert np.abs(own - expected).max() < 1e-9
    assert np.abs(own.sum(1) - 1).max() < 1e-9
    chosen = trees.choices(asked)[:, 0]
    first, second = np.sort(expected, 1)[:, [-1, -2]].T
    clear = first - second > 1e-9
    assert (chosen[clear] == forest.predict(asked)[clear]).all()
    tied = expected >= first[:, None] - 1e-9
    assert (chosen == tied.argmax(1)).all(), "equal classes do not go to the lowest"


def test_a_threshold_that_is_no_float32_parts_the_same_numbers() -> None:
    below = np.float32(0.1)
    above = np.nextafter(below, np.float32(1))
    thresholds = np.linspace(float(below), float(above), 9)
    for threshold, rounded in zip(thresholds, round_down(thresholds), strict=True):
        for x in (below, above):
            assert (np.float64(x) <= threshold) == (x <= rounded)


def test_ties_go_to_the_lowest_class() -> None:
    thirds = [[1 / 3, 2 / 3, 0], [2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3], [0, 1 / 3, 2 / 3]]
    one_leaf = {
        "nodes": torch.ones((1, 4), dtype=torch.int32),
        "feature": torch.full((4,), -1, dtype=torch.int32),
        "threshold": torch.zeros(4),
        "leaves": torch.tensor(thirds, dtype=torch.float64),
        "biases": torch.zeros((1, 3), dtype=torch.float64),
    }
    x = np.zeros((3, 2), np.float32)
    assert (Trees(one_leaf, 2, 3, "here").choices(x) == 1).all()
    one_leaf["biases"][0] = torch.tensor([1 / 6, 0, 0.1])
    one_leaf["leaves"][2:, 1] += 1 / 3
    one_leaf["leaves"][2:, 2] -= 1 / 3
    one_leaf["biases"][0] = torch.tensor([1 / 3, 0, 0])
    assert Trees(one_leaf, 2, 3, "here").choices(x)[0, 0] == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad: float) -> None:
    data = table(50)
    _, tensors = theirs(np.asarray(data.inputs, np.float32), data.labels)
    x = np.zeros((2, 6), np.float32)
    x[1, 2] = bad
    with refuses(ValueError, "NaN"):
        Trees(tensors, 6, 5, "here").choices(x)
    with refuses(ValueError, "[b, 6]"):
        Trees(tensors, 6, 5, "here").choices(np.zeros((2, 7), np.float32))


# ------------------------------------------------------------------------- ensembles


@pytest.fixture(scope="module")
def forests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "forests"
    public = PublicData.declare("rows", table(300, seed=9).inputs)
    train_ensemble(table(1200), directory, name="f", teachers=60, config=FEW, public=public)
    return directory


def test_votes_are_those_of_scikit_learns_forests(out: Path) -> None:
    data = table(300, classes=4)
    train_ensemble(data, out, name="f", teachers=30, config=FEW, seed=5)
    shards, _ = partition_records(data, 30, 5)
    x = np.asarray(table(500, seed=3).inputs, np.float32)
    expected = np.zeros((500, 4), np.int64)
    for number, rows in enumerate(shards):
        state = int(np.random.SeedSequence([5, number]).generate_state(1)[0])
        forest = RandomForestClassifier(8, max_depth=MAX_DEPTH, random_state=state)
        forest.fit(data.inputs[rows], data.labels[rows])
        # Not their predict: where two classes are equal up to rounding, it takes either.
        tied = np.round(forest.predict_proba(x), 9)
        expected[np.arange(500), forest.classes_[tied.argmax(1)]] += 1
    votes = Ensemble.load(out).votes(x)
    assert (votes == expected).all()
    assert (votes.sum(1) == 30).all()


def test_blocks_and_memory_change_no_vote(forests: Path) -> None:
    x = np.asarray(table(400, seed=4).inputs, np.float32)
    votes = Ensemble.load(forests).votes(x)
    tight = Ensemble.load(forests, memory=2**16)
    assert tight.voting.block < Ensemble.load(forests).voting.block
    assert (tight.votes(x) == votes).all()
    assert (np.concatenate([tight.votes(x[i : i + 1]) for i in range(9)]) == votes[:9]).all()
    assert (votes.argmax(1) == table(400, seed=4).labels).mean() > 0.7


def test_matched_forests_say_yes_as_often_as_their_records(tmp_path: Path) -> None:
    data = table(2000)
    columns = np.asarray(data.inputs, np.float32)
    rare = replace(data, labels=(columns[:, 0] + columns[:, 3] > 1.5).astype(np.int64))
    public = PublicData.declare("rows", table(1000, seed=9).inputs)
    x = np.asarray(table(1000, seed=2).inputs, np.float32)
    said = {}
    for matches in (True, False):
        config, directory = Forests(trees=20, match_prior=matches), tmp_path / str(matches)
        made = train_ensemble(rare, directory, name="f", teachers=20, config=config, public=public)
        assert made.teacher.matches_prior is matches
        fitted = public.source.model_dump() if matches else None
        assert made.teacher.model_dump()["matched_on"] == fitted
        votes = Ensemble.load(directory).votes(x)
        said[matches] = votes[:, 1].sum() / votes.sum()
    prior = float(rare.labels.mean())
    assert said[False] < said[True] < prior * 1.1
    assert said[True] == pytest.approx(prior, abs=0.03)


def test_images_are_refused(out: Path, digits: Dataset) -> None:
    with refuses(TrainingError, "heads", "networks"):
        train_ensemble(digits, out, name="f", teachers=4, config=FEW)
    assert not out.exists()


def test_without_scikit_learn_training_says_what_to_install(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("terrine_models.teachers.trees.find_spec", lambda name: None)
    with refuses(TrainingError, ".[server]"):
        train_ensemble(table(40), out, name="f", teachers=4, config=FEW)


def test_forests_vote_where_scikit_learn_is_missing(
    forests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert Ensemble.load(forests).votes(table(5).inputs).sum() == 5 * 60


# ------------------------------------------------------------------------ hostile files


def small() -> Trained:
    """Two forests of two trees on two columns: a question each, but the last tree is one leaf."""
    return {
        "nodes": torch.tensor([[3, 3], [3, 1]], dtype=torch.int32),
        "feature": torch.tensor([0, -1, -1, 1, -1, -1, 0, -1, -1, -1], dtype=torch.int32),
        "threshold": torch.full((10,), 0.5),
        "leaves": torch.tensor([[1.0, 0], [0, 1]] * 3 + [[0.5, 0.5]], dtype=torch.float64),
        "biases": torch.zeros((2, 2), dtype=torch.float64),
    }


def chain(levels: int) -> Trained:
    """One tree in which each question leads to a leaf and to the next question."""
    nodes = 2 * levels + 1
    feature = torch.tensor([0, *[-1, 0] * (levels - 1), -1, -1], dtype=torch.int32)
    return {
        "nodes": torch.tensor([[nodes]], dtype=torch.int32),
        "feature": feature,
        "threshold": torch.full((nodes,), 0.5),
        "leaves": torch.tensor([[1.0, 0]] * (levels + 1), dtype=torch.float64),
        "biases": torch.zeros((1, 2), dtype=torch.float64),
    }


def set_at(name: str, at: int, value: float) -> Callable[[Trained], None]:
    def change(tensors: Trained) -> None:
        tensors[name].view(-1)[at] = value

    return change


def drop(name: str) -> Callable[[Trained], None]:
    def change(tensors: Trained) -> None:
        del tensors[name]

    return change


def to(name: str, dtype: torch.dtype) -> Callable[[Trained], None]:
    def change(tensors: Trained) -> None:
        tensors[name] = tensors[name].to(dtype)

    return change


def cut(name: str, rows: int) -> Callable[[Trained], None]:
    def change(tensors: Trained) -> None:
        tensors[name] = tensors[name][:rows]

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_at("feature", 0, 2), "feature 0 1"),
        (set_at("feature", 0, -2), "feature 0 1"),
        (set_at("feature", 0, 2**31 - 1), "feature 0 1"),
        (set_at("feature", 1, 0), "breadth-first"),
        (set_at("feature", 0, -1), "breadth-first"),
        (set_at("nodes", 0, 0), "nodes add"),
        (set_at("nodes", 0, -3), "nodes add"),
        (set_at("nodes", 0, 2**31 - 1), "nodes add"),
        (set_at("nodes", 0, 5), "nodes add"),
        (set_at("threshold", 0, np.nan), "finite"),
        (set_at("threshold", 0, -np.inf), "finite"),
        (set_at("leaves", 0, np.nan), "sum 1"),
        (set_at("leaves", 0, 1.5), "sum 1"),
        (set_at("leaves", 1, -0.5), "sum 1"),
        (set_at("biases", 0, np.nan), "bias"),
        (set_at("biases", 0, 3), "bias"),
        (drop("leaves"), "expected"),
        (to("feature", torch.int64), "feature torch.int64"),
        (to("leaves", torch.bfloat16), "leaves torch.bfloat16"),
        (cut("leaves", 6), "leaves 6 7"),
        (cut("feature", 9), "number"),
        (cut("biases", 1), "fit"),
        (cut("nodes", 0), "nodes"),
    ],
)
def test_arrays_that_are_no_forests_are_refused(
    change: Callable[[Trained], None], said: str
) -> None:
    tensors = small()
    assert Trees(tensors, 2, 2, "file").choices(np.ones((1, 2), np.float32)).shape == (1, 2)
    change(tensors)
    with refuses(StoreError, "file", *said.split()):
        Trees(tensors, 2, 2, "file")


def test_a_parent_comes_before_its_children() -> None:
    tensors = chain(1)
    tensors["feature"] = torch.tensor([-1, 0, -1], dtype=torch.int32)
    with refuses(StoreError, "breadth-first"):
        Trees(tensors, 1, 2, "file")


def test_trees_that_are_too_deep_are_refused() -> None:
    assert Trees(chain(MAX_DEPTH), 1, 2, "file").trees == 1
    for levels in (MAX_DEPTH + 1, 100_000):
        with refuses(StoreError, 16):
            Trees(chain(levels), 1, 2, "file")


def test_a_hostile_file_is_named(forests: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(forests, tmp_path / "copy"))
    manifest = load_manifest(copy)
    name = manifest.teacher_files[1]
    for tensors, said in ((small(), "expected"), ({"weights": torch.zeros(10, 2, 6)}, "holds")):
        digest = save_tensors(copy / name, tensors)
        save_manifest(copy, manifest.model_copy(update={"files": {**manifest.files, name: digest}}))
        with refuses(StoreError, name, said):
            Ensemble.load(copy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"teacher": {"kind": "networks", "trees": 3}}, "networks.architecture"),
        ({"teacher": {"kind": "forest"}}, "forest.trees"),
        ({"partition": None}, "partitioned"),
        ({"input": {"shape": [2, 3], "dtype": "float32", "low": 0, "high": 1}}, "table"),
    ],
)
def test_a_manifest_of_forests_is_coherent(
    forests: Path, change: dict[str, object], said: str
) -> None:
    manifest = load_manifest(forests)
    with refuses(ValidationError, *said.split()):
        type(manifest).model_validate({**manifest.model_dump(), **change})


def test_one_class_and_one_record_make_a_forest() -> None:
    seed = np.random.SeedSequence(0)
    one = fit_forest(np.zeros((1, 3), np.float32), np.array([2]), 4, 5, seed)
    assert (Trees(one, 3, 4, "here").choices(np.ones((2, 3), np.float32)) == 2).all()
