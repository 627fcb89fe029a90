"""What is written as CSV holds no formula, whatever classes are called."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import terrine_server
from support.databases import SECRET_KEY, migrated
from support.ledgers import FACTS, answered, charge_one, digest, open_project
from terrine_server.api.ledger import csv_lines
from terrine_server.cli.ledger import app
from terrine_server.cli.student import save_labels
from terrine_server.ledger import Ledger
from terrine_server.ledger.verifying import verify_export
from terrine_server.privacy import cap

HOSTILE = [
    '=HYPERLINK("http://attacker.example";"ok")',
    "+1+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
    "-1.0",
    "plain",
    "a=b",
]
SAFE = [f"'{name}" for name in HOSTILE[:8]] + HOSTILE[8:]


@pytest.fixture
def ledger(tmp_path: Path, secret_key: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    monkeypatch.setenv("TERRINE_DATABASE_URL", url)
    ledger = Ledger(migrated(url), SECRET_KEY)
    info = FACTS.model_copy(update={"classes": HOSTILE})
    ledger.ensembles.register("mnist", "e", digest("m").hex(), info, 60_000, cap(20.0, 1e-5))
    project = open_project(ledger, 20)
    charge_one(ledger, project.id, [answered(label, label) for label in range(len(HOSTILE))])
    return ledger


def labels_of(text: str) -> list[str]:
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["label"] for row in rows] == [str(label) for label in range(len(HOSTILE))]
    return [row["label_name"] for row in rows]


def test_the_ledger_as_csv_has_no_formula(ledger: Ledger) -> None:
    entries = ledger.entries.stream("study")
    assert labels_of("".join(csv_lines(entries, ledger.ensembles.get("mnist")))) == SAFE


def test_an_export_that_is_verified_has_the_names_as_they_are(
    ledger: Ledger, tmp_path: Path
) -> None:
    file = tmp_path / "study.json"
    assert CliRunner().invoke(app, ["export", "study", "--output", str(file)]).exit_code == 0
    assert verify_export(file).ok
    assert "HYPERLINK" in file.read_text()
    assert "'=HYPERLINK" not in file.read_text()


def test_answers_as_csv_have_no_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    size = len(HOSTILE)
    labels: Any = SimpleNamespace(
        outcomes=np.array(["answered"] * size),
        labels=np.arange(size),
        classes=("no", "yes"),
        names=np.array(HOSTILE, dtype=object),
        charges=np.arange(1, size + 1),
        noisy_counts=np.full((size, 2), -7),
        noise_sigma=4.0,
    )
    save_labels(labels, tmp_path / "labels.csv")
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["label"] for row in rows] == SAFE
    assert [row["count_no"] for row in rows] == ["-7"] * size


def test_csv_for_people_is_written_in_one_place() -> None:
    source = Path(terrine_server.__file__).parent
    writers = {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if "csv.writer" in path.read_text() or "csv.DictWriter" in path.read_text()
    }
    assert writers == {"sheets.py"}
