"""An export is verified from the file alone, and whatever was done to it is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from support.forgeries import first_finding
from support.ledgers import (
    CONFIDENT,
    abstained,
    answered,
    charge_one,
    open_ledger,
    open_project,
)
from support.wording import holds
from terrine_protocol import ProjectStatus
from terrine_server.cli.ledger import app
from terrine_server.ledger import Ledger
from terrine_server.ledger.exports import ArchiveError
from terrine_server.ledger.verifying import verify_export

ENTRIES = 6


@pytest.fixture
def ledger(database_url: str, secret_key: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A closed project of six charges."""
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")
    ledger = open_ledger(database_url)
    project = open_project(ledger, 20, CONFIDENT)
    charge_one(
        ledger, project.id, [abstained(i) if i % 3 == 1 else answered(i, i) for i in range(ENTRIES)]
    )
    ledger.projects.set_status("study", ProjectStatus.CLOSED)
    return ledger


@pytest.fixture
def export(ledger: Ledger, tmp_path: Path) -> Path:
    file = tmp_path / "study.json"
    assert terrine("export", "study", "--output", file).exit_code == 0
    return file


def terrine(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_an_archived_project_outlives_its_database(
    export: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ledger.projects.get("study").head
    monkeypatch.setenv("TERRINE_DATABASE_URL", f"sqlite:///{tmp_path / 'nowhere.sqlite'}")
    verified = terrine("verify", "--file", export)
    assert verified.exit_code == 0, verified.output
    assert verified.stderr == "", "a bar is drawn on a terminal only"
    holds(verified.output, "study", "intact", 6)
    assert head in verified.output
    export.write_text(export.read_text().replace('"label": 3', '"label": 4'))
    found = terrine("verify", "--file", export)
    assert found.exit_code == 1
    assert "entry 4: altered" in found.output


def test_an_export_is_of_one_moment_though_charges_are_made_meanwhile(
    database_url: str, tmp_path: Path
) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, 20, CONFIDENT)
    charge_one(ledger, project.id, [answered(1), answered(2)])
    lines = ledger.exports.export_project("study")
    begun = [next(lines)]
    charge_one(ledger, project.id, [answered(3)])
    assert first_finding(tmp_path / "study.json", [*begun, *lines]) == ""


def test_a_value_of_another_type_is_no_entry(export: Path) -> None:
    lines = [json.loads(line) for line in export.read_text().splitlines()]
    for name in ("seq", "label", "cost", "delta", "cap_cost"):
        for changed in (float(lines[1][name]), str(lines[1][name]), True):
            found = first_finding(export, [lines[0], {**lines[1], name: changed}, *lines[2:]])
            holds(found, 2, "entry")


@pytest.mark.parametrize("text", ["", "\n", "[]\n", '{"seq": 1}\n', "seq,created_at\n1,2\n"])
def test_what_is_no_export_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_text(text)
    with pytest.raises(ArchiveError):
        verify_export(file)
    assert isinstance(terrine("verify", "--file", file).exception, ArchiveError)


def test_a_damaged_line_is_named(export: Path) -> None:
    damaged = export.read_bytes().replace(b'"label"', b'"la\xffel"', 1)
    export.write_bytes(damaged)
    with pytest.raises(ArchiveError):
        verify_export(export)
