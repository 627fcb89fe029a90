"""What teachers will see is told to their owner; how far they agree comes from public data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import Terrine
from hospital import stays
from refusals import holds

from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.preview import Preview, stand_in


def test_a_preview_is_what_training_deals(plane: Dataset) -> None:
    found = Preview.of(plane, 10, seed=3)
    assert (found.records, found.people) == (200, 40)
    assert found.rows[0] <= found.rows[1] <= found.rows[2] < 200
    assert found.lacking == {} or max(found.lacking.values()) <= 10
    alone = Preview.of(plane, 40, seed=3)
    assert alone.rows[0] >= 1
    assert alone.classes[0] < 3
    assert sum(alone.lacking.values()) > 0


def separated(count: int, noise: float) -> Dataset:
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, count)
    inputs = np.clip(0.3 + 0.4 * labels[:, None] + random.normal(0, noise, (count, 3)), 0, 1)
    spec = InputSpec(shape=(3,), dtype="float32", low=0, high=1)
    return Dataset(inputs.astype(np.float32), labels, ("no", "yes"), spec)


def test_stand_ins_agree_where_classes_are_separate() -> None:
    clear = stand_in(separated(400, 0.05), 10, Heads(), seed=0)
    assert clear is not None
    assert (clear.teachers, clear.inputs) == (20, 200)
    assert clear.plurality > 0.95
    blurred = stand_in(separated(400, 0.6), 10, Heads(), seed=0)
    assert blurred is not None
    assert blurred.levels[0].inputs < clear.levels[0].inputs / 2
    assert stand_in(separated(60, 0.05), 10, Heads(), seed=0) is None, "too few for five"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "public.csv").write_text(stays(900, 700, seed=1))
    (tmp_path / "private.csv").write_text(stays(900, 700, seed=2))
    terrine("ensemble", "schema", "public.csv", "--label", "readmitted").fine  # noqa: B018
    return tmp_path


def test_the_owner_is_told_before_training(terrine: Terrine, files: Path) -> None:
    schema = ("--schema", "schema.json")
    train = ("ensemble", "train", "private.csv", *schema)
    said = terrine(*train, "--name", "few", "--teachers", 20, "--public", "public.csv").fine
    holds(said, 900, 700, 20)
    holds(said, 10, 45)
    said = terrine(*train, "--name", "many", "--teachers", 600, "--public", "public.csv").fine
    holds(said, "teachers", "class")
    assert "yes (" in said
    holds(said, "fewer", "teachers")
    manifest = (files / "data" / "ensembles" / "many" / "manifest.json").read_text()
    assert "lacking" not in manifest
    unlabelled = (files / "public.csv").read_text().replace(",yes\n", ",\n")
    unlabelled = unlabelled.replace(",yes\r\n", ",\r\n")
    (files / "pool.csv").write_text(unlabelled)
    said = terrine(*train, "--name", "bare", "--teachers", 20, "--public", "pool.csv").fine
    holds(said, "pool.csv", "labels")


def test_public_arrays_with_labels_say_how_far_teachers_agree(
    terrine: Terrine, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = digits.inputs, digits.labels
    np.savez("private.npz", x=x[:800], y=y[:800], classes=digits.classes)
    np.savez("labelled.npz", x=x[800:], y=y[800:])
    np.savez("unlabelled.npz", x=x[800:])
    np.savez("renamed.npz", x=x[800:], y=y[800:], classes=digits.classes[::-1])
    train = (
        "ensemble",
        "train",
        "private.npz",
        "--teachers",
        20,
        "--kind",
        "heads:augmentations=0",
        "--public",
    )
    said = terrine(*train, "labelled.npz", "--name", "told").fine
    holds(said, 12, 40)
    said = terrine(*train, "unlabelled.npz", "--name", "bare").fine
    holds(said, "unlabelled.npz", "y")
    said = terrine(*train, "renamed.npz", "--name", "renamed").fine
    holds(said, "renamed.npz", "private.npz")
    ensembles = (Ensemble.load(tmp_path / "data" / "ensembles" / n) for n in ("told", "bare"))
    told, bare = (ensemble.votes(x[:100]) for ensemble in ensembles)
    assert (told == bare).all(), "labels train nobody"
