"""What teachers will see is told to their owner before they are trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.processes import Terrine
from support.tables import stays
from support.wording import holds
from terrine_models.data.arrays import Dataset
from terrine_models.teachers.ensemble import Ensemble


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
    said = terrine(*train, "--name", "many", "--teachers", 600, "--public", "public.csv").fine
    holds(said, "teachers", "class")
    assert "yes (" in said
    holds(said, "fewer", "teachers")
    manifest = (files / "data" / "ensembles" / "many" / "manifest.json").read_text()
    assert "lacking" not in manifest


def test_labels_of_public_arrays_train_nobody_and_what_is_wrong_with_them_is_said(
    terrine: Terrine, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = digits.inputs, digits.labels
    np.savez("private.npz", x=x[:400], y=y[:400], classes=digits.classes)
    np.savez("labelled.npz", x=x[1400:], y=y[1400:])
    np.savez("unlabelled.npz", x=x[1400:])
    np.savez("renamed.npz", x=x[1400:], y=y[1400:], classes=digits.classes[::-1])
    few = ("--teachers", 5, "--kind", "heads:augmentations=0")
    train = ("ensemble", "train", "private.npz", *few, "--public")
    terrine(*train, "labelled.npz", "--name", "told").fine  # noqa: B018 - asserts
    said = terrine(*train, "unlabelled.npz", "--name", "bare").fine
    holds(said, "unlabelled.npz", "y")
    said = terrine(*train, "renamed.npz", "--name", "renamed").fine
    holds(said, "renamed.npz", "private.npz")
    ensembles = (Ensemble.load(tmp_path / "data" / "ensembles" / n) for n in ("told", "bare"))
    told, bare = (ensemble.votes(x[:100]) for ensemble in ensembles)
    assert (told == bare).all(), "labels train nobody"
