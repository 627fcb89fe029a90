"""Shards for teachers that are trained elsewhere."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.onnx_files import mlp
from support.processes import Terrine
from support.tables import stays
from support.wording import holds, refuses
from terrine_models.data.arrays import Dataset, load_npz
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import ensemble_format, load_manifest
from terrine_models.teachers.shards import (
    PARTITION_FILE,
    TrainingError,
    partition_records,
    read_partition,
    split,
)
from terrine_models.teachers.training import train_ensemble


def test_shards_are_disjoint_and_whole_people(plane: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    sharded = split(plane, out, teachers=8, seed=3)
    assert read_partition(out / PARTITION_FILE) == sharded
    assert (sharded.partition.recipe, sharded.partition.group_column) == ("groups", "person")
    files = sorted(out.glob("*.npz"))
    assert len(files) == 8
    rows, _ = partition_records(plane, 8, 3)
    assert plane.groups is not None
    people = [set(plane.groups[shard].tolist()) for shard in rows]
    assert sum(map(len, people)) == len(set().union(*people)) == 40
    for path, shard in zip(files, rows, strict=True):
        with np.load(path, allow_pickle=False) as found:
            assert (found["x"] == plane.inputs[shard]).all()
            assert (found["y"] == plane.labels[shard]).all()
            assert found["classes"].tolist() == list(plane.classes)
    private = {stat.S_IMODE(p.stat().st_mode) & 0o077 for p in (out, *files)}
    assert private == {0}
    with refuses(TrainingError, "exists"):
        split(plane, out, teachers=8)


def test_how_many_rows_a_person_has_is_in_no_public_document(
    plane: Dataset, tmp_path: Path
) -> None:
    """One person has one row, or all of theirs: neighbours, whose documents must be the same."""
    assert plane.groups is not None
    kept = np.flatnonzero(
        (plane.groups != 7) | (np.arange(len(plane)) == np.argmax(plane.groups == 7))
    )
    fewer = replace(
        plane, inputs=plane.inputs[kept], labels=plane.labels[kept], groups=plane.groups[kept]
    )
    assert len(fewer) < len(plane)
    shown, registered = [], []
    for data in (plane, fewer):
        at = tmp_path / str(len(data))
        sharded = split(data, at / "shards", teachers=8)
        manifest = train_ensemble(data, at / "plane", name="plane", teachers=8)
        # Digests of the teachers' files are those of salted files: they differ in every training.
        shown.append((sharded, manifest.model_dump_json(exclude={"files"}), set(manifest.files)))
        registered.append(ensemble_format(at / "plane").facts(at / "plane"))
    assert shown[0] == shown[1]
    assert registered[0] == registered[1]
    assert registered[0][0] == 40


def test_a_table_is_split_trained_on_and_imported(
    terrine: Terrine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sample.csv").write_text(stays(997, 479), newline="")
    Path("stays.csv").write_text(stays(300, 140, 1), newline="")
    assert terrine("ensemble", "schema", "sample.csv", "--label", "readmitted").fine
    split_it = ("ensemble", "split", "stays.csv", "--teachers", 4, "--out", "shards")
    holds(terrine(*split_it).refused, "--schema")
    holds(terrine(*split_it, "--schema", "schema.json").fine, 4, 35, "people")
    shard = load_npz_shard(Path("shards/00000.npz"))
    models = [Path(f"{i}.onnx") for i in range(4)]
    for i, path in enumerate(models):
        path.write_bytes(mlp(i, inputs=shard.shape[1], classes=2).SerializeToString())
    import_them = ("ensemble", "import", "--name", "stays", "--input", "shards/partition.json")
    stated = (*import_them, "--disjoint-by", "model i knows shard i alone")
    holds(terrine(*stated, *models[:3]).refused, "shard")
    assert "drop --units" in terrine(*stated, *models, "--units", 3).refused
    assert terrine(*stated, *models, "--public", "sample.csv").fine
    directory = Path("data/ensembles/stays")
    manifest = load_manifest(directory)
    assert manifest.partition is not None
    assert (manifest.partition.recipe, manifest.units) == ("groups", 140)
    assert manifest.encoding is not None
    assert Ensemble.load(directory).votes(shard).sum() == 4 * len(shard)
    holds(terrine("ensemble", "show", directory).fine, 35, "people")
    Path("shards/partition.json").write_text("{}")
    holds(terrine(*stated, *models).refused, "partition")


def load_npz_shard(path: Path) -> np.ndarray:
    with np.load(path, allow_pickle=False) as found:
        x: np.ndarray = found["x"]
    return x


def test_a_shard_of_images_is_training_data(digits: Dataset, tmp_path: Path) -> None:
    split(digits, tmp_path / "shards", teachers=3)
    assert len(load_npz(tmp_path / "shards" / "00000.npz")) == 599
