"""`terrine ensemble …` as users type it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import Terrine

from terrine_models.data import Dataset


@pytest.fixture
def files(tmp_path: Path, digits: Dataset) -> Path:
    np.savez(
        tmp_path / "private.npz",
        x=digits.inputs[:600],
        y=digits.labels[:600],
        classes=digits.classes,
    )
    np.save(tmp_path / "pool.npy", digits.inputs[600:])
    return tmp_path


def test_train_show_verify(terrine: Terrine, files: Path) -> None:
    trained = terrine(
        *(
            "ensemble",
            "train",
            files / "private.npz",
            "--name",
            "digits",
            "--teachers",
            20,
            "--copies",
            1,
        ),
        *("--public", files / "pool.npy"),
    )
    assert trained.code == 0, trained.err
    directory = files / "data" / "ensembles" / "digits"
    shown = terrine("ensemble", "show", directory)
    assert shown.code == 0
    for expected in ("20 (heads, ridge)", "pool.npy (1197 public records)", "30 to 30 records"):
        assert expected in shown.out
    assert terrine("ensemble", "verify", directory).code == 0
    weights = directory / "teachers-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    refused = terrine("ensemble", "verify", directory)
    assert refused.code == 1
    assert "teachers-00000.safetensors was altered" in refused.err


def test_a_table_without_public_encoding_is_refused(terrine: Terrine, files: Path) -> None:
    (files / "private.csv").write_text("age,income\n1,low\n2,high\n")
    refused = terrine(
        *(
            "ensemble",
            "train",
            files / "private.csv",
            "--name",
            "t",
            "--teachers",
            2,
            "--label",
            "income",
        ),
    )
    assert refused.code == 1
    assert "cannot be taken from it" in refused.err
    assert "Traceback" not in refused.err
    accident = terrine(
        *(
            "ensemble",
            "train",
            files / "private.csv",
            "--name",
            "t",
            "--teachers",
            2,
            "--label",
            "income",
        ),
        *("--public", files / "private.csv"),
    )
    assert accident.code == 1
    assert "private" in accident.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.npz", "--name", "t", "--teachers", 2), "cannot be read"),
        (("nowhere", "--name", "t", "--teachers", 2), "does not exist"),
        (("private.npz", "--name", "t", "--teachers", 601), "601 teachers cannot be trained"),
        (("private.npz", "--name", "Not OK", "--teachers", 2), "name"),
        (("private.npz", "--name", "t", "--teachers", 2, "--epochs", 3), "--epochs is for"),
        (("private.npz", "--name", "t", "--teachers", 2, "--label", "y"), "CSV files only"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    terrine: Terrine, files: Path, arguments: tuple[object, ...], said: str
) -> None:
    path, *rest = arguments
    refused = terrine("ensemble", "train", files / str(path), *rest)
    assert refused.code == 1
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert not (files / "data" / "ensembles" / "t").exists()
