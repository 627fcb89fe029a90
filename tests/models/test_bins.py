"""Features of tables: public quantiles, what is dropped, and heads that match their prior."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from support.wording import refuses
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.fitting import public_features
from terrine_models.features.linear import fit_bins
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import FeatureSpec, load_tensors
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads, load_manifest
from terrine_models.teachers.shards import partition_records
from terrine_models.teachers.training import train_ensemble

WIDTH = 150


def table(rows: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Columns: even, mostly 0, an indicator, constant. One row in four is of class 1."""
    source = np.random.default_rng(seed)
    even = source.random(rows)
    mostly = np.where(source.random(rows) < 0.9, 0, 0.1 + 0.9 * source.random(rows))
    flag = (source.random(rows) < 0.3).astype(float)
    x = np.column_stack([even, mostly, flag, np.full(rows, 0.5)]).astype(np.float32)
    score = np.abs(even - 0.5) + (mostly > 0) + 0.2 * flag + 0.1 * source.normal(size=rows)
    return x, (score > np.quantile(score, 0.75)).astype(np.int64)


def dataset(rows: int, seed: int) -> Dataset:
    x, y = table(rows, seed)
    spec = InputSpec(shape=(4,), dtype="float32", low=0, high=1)
    return Dataset(x, y, ("no", "yes"), spec, name="private")


def pool(rows: int = 3000, seed: int = 1) -> PublicData:
    return PublicData.declare("pool", table(rows, seed)[0])


def head_votes(directory: Path, x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether each head [n] says yes to each row [P]."""
    manifest, parts = load_manifest(directory), []
    for name in manifest.teacher_files:
        parts.append(load_tensors(directory, name, manifest.files[name]))
    weights = torch.cat([part["weights"] for part in parts])
    biases = torch.cat([part["biases"] for part in parts])
    known = public_features(manifest.input, pool(), WIDTH, whiten=True)
    scores = (
        torch.einsum("pd,nmd->npm", known.to("cpu")(torch.from_numpy(x)), weights) + biases[:, None]
    )
    return np.asarray(scores.argmax(2).numpy() == 1)


def test_steps_are_at_the_deciles_and_just_above_a_common_minimum() -> None:
    x = table(4000)[0]
    tensors = fit_bins(x, WIDTH, whiten=False)
    assert tensors is not None
    found = {
        column: tensors["steps"][tensors["step_columns"] == column].tolist() for column in range(4)
    }
    np.testing.assert_allclose(found[0], np.arange(1, 10) / 10, atol=0.03)
    np.testing.assert_allclose(found[1], [0.1, 0.325, 0.55, 0.775], atol=0.06)
    assert found[1][0] == x[:, 1][x[:, 1] > 0].min()
    assert found[2] == [1.0]
    assert found[3] == []
    assert tensors["rank_columns"].tolist() == [0, 1]


def test_ranks_are_those_among_public_rows_and_ties_share_one() -> None:
    known = public_features(dataset(9, 0).spec, pool(), WIDTH)
    rows = np.array([[0.0, 0, 0, 0.5], [0.5, 0, 0, 0.5], [1.0, 0, 0, 0.5]], np.float32)
    of_bins = (
        known.of_base(rows * 2 - 1) / known.tensors["basis"].diagonal() + known.tensors["mean"]
    )
    first, second = known.spec.steps, known.spec.steps + 1
    np.testing.assert_allclose(of_bins[:, first], [0, 0.5, 1], atol=0.03)
    np.testing.assert_allclose(of_bins[:, second], [0.45, 0.45, 0.45], atol=0.03)


def test_few_or_constant_rows_keep_their_columns() -> None:
    spec = dataset(9, 0).spec
    for public in (
        None,
        pool(40),
        PublicData.declare("constant", np.full((500, 4), 0.5, np.float32)),
    ):
        known = public_features(spec, public, WIDTH)
        assert (known.spec.base, known.spec.projection) == ("identity", "none")
        assert known(np.zeros((2, 4))).shape == (2, 4)


def test_heads_say_yes_as_often_as_their_shard_does(out: Path) -> None:
    data, public = dataset(2000, 5), pool()
    manifest = train_ensemble(data, out, name="a", teachers=40, public=public)
    assert manifest.teacher.matches_prior
    assert manifest.teacher.features is not None
    assert manifest.teacher.features.projection == "whitened"
    shards, _ = partition_records(data, 40, 0)
    said = head_votes(out, public.inputs).mean(1)
    np.testing.assert_allclose(said, [data.labels[s].mean() for s in shards], atol=0.01)
    votes = Ensemble.load(out).votes(public.inputs)
    np.testing.assert_array_equal(votes[:, 1], head_votes(out, public.inputs).sum(0))


def test_shards_of_one_class_vote_for_it(out: Path) -> None:
    data = dataset(60, 5)
    data = replace(data, labels=np.zeros(60, np.int64))
    train_ensemble(data, out, name="a", teachers=3, public=pool())
    assert (Ensemble.load(out).votes(pool().inputs)[:, 0] == 3).all()


def test_the_owner_can_keep_the_columns_as_they_are(out: Path) -> None:
    manifest = train_ensemble(
        dataset(400, 5), out, name="a", teachers=20, config=Heads(bins=False), public=pool()
    )
    assert manifest.teacher.features is not None
    assert manifest.teacher.features.base == "identity"
    assert not manifest.teacher.matches_prior


def test_a_map_states_what_it_needs() -> None:
    with refuses(ValidationError, "bins"):
        FeatureSpec(base="identity", projection="none", components=3, steps=2)
    with refuses(ValidationError, "fitted"):
        FeatureSpec(base="bins", projection="scaled", components=3, steps=2)
