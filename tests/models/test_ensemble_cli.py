"""`terrine ensemble …` as its users type it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from terrine_models.data import Dataset
from terrine_server.cli import main


@dataclass(frozen=True)
class Finished:
    returncode: object
    stdout: str
    stderr: str


class Terrine(Protocol):
    def __call__(self, *arguments: object) -> Finished: ...


@pytest.fixture
def terrine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terrine:
    """The command, run in this process: importing torch anew for each would take longer."""
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr("sys.argv", ["terrine", "ensemble", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Finished(ended.value.code, said.out, said.err)

    return run


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
        *("train", files / "private.npz", "--name", "digits", "--teachers", 20, "--copies", 1),
        *("--public", files / "pool.npy"),
    )
    assert trained.returncode == 0, trained.stderr
    directory = files / "ensembles" / "digits"
    shown = terrine("show", directory)
    assert shown.returncode == 0
    for expected in ("20 (heads, ridge)", "pool.npy (1197 public records)", "30 to 30 records"):
        assert expected in shown.stdout
    assert terrine("verify", directory).returncode == 0
    weights = directory / "teachers-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    refused = terrine("verify", directory)
    assert refused.returncode == 1
    assert "teachers-00000.safetensors was altered" in refused.stderr


def test_a_table_without_public_encoding_is_refused(terrine: Terrine, files: Path) -> None:
    (files / "private.csv").write_text("age,income\n1,low\n2,high\n")
    refused = terrine(
        *("train", files / "private.csv", "--name", "t", "--teachers", 2, "--label", "income"),
    )
    assert refused.returncode == 1
    assert "cannot be taken from it" in refused.stderr
    assert "Traceback" not in refused.stderr
    accident = terrine(
        *("train", files / "private.csv", "--name", "t", "--teachers", 2, "--label", "income"),
        *("--public", files / "private.csv"),
    )
    assert accident.returncode == 1
    assert "private" in accident.stderr


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
def test_mistakes_get_one_clear_line(
    terrine: Terrine, files: Path, arguments: tuple[object, ...], said: str
) -> None:
    path, *rest = arguments
    refused = terrine("train", files / str(path), *rest)
    assert refused.returncode == 1
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (files / "ensembles" / "t").exists()
