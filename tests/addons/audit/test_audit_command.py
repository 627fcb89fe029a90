"""`terrine audit` on the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from support.processes import Terrine
from support.wording import holds
from terrine_addons.audit.commands import QUICK, SampleSizes
from terrine_addons.audit.commands import run_audit as run
from terrine_addons.audit.mechanisms import CASES, audit_mechanisms
from terrine_server.cli import app
from terrine_server.privacy.noise import NoiseTable

SMALL = SampleSizes(draws=5_000, noise=50_000, students=16)
FEW = [case for case in CASES if case.title in ("gnmax", "immutable, as published")]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Quick, and convicting what is sound less than once in 10⁹ times."""
    few = partial(audit_mechanisms, cases=FEW)
    monkeypatch.setattr("terrine_addons.audit.mechanisms.audit_mechanisms", few)
    monkeypatch.setattr("terrine_addons.audit.commands.QUICK", SMALL)
    monkeypatch.setattr("terrine_addons.audit.evidence.TOP_COUNTS_TRIED", 4)
    monkeypatch.setattr("terrine_addons.audit.commands.CONFIDENCE", 1 - 1e-9)
    # The command runs in this process, where its log settings would outlive it.
    monkeypatch.setattr("terrine_server.logs.configure", lambda level: None)
    with capture_logs():  # else it would be among what the command prints
        yield


def test_a_ledger_that_is_named_and_missing_is_an_error(terrine: Terrine) -> None:
    holds(terrine("audit", "ledger").refused, "directory")


def test_a_fresh_ledger_passes(terrine: Terrine, small: None) -> None:
    terrine("init").fine  # noqa: B018 - asserts
    done = terrine("audit", "ledger")
    holds(done.fine, 0, "projects", "charges")
    assert done.err == ""


@pytest.mark.statistical
@pytest.mark.slow
def test_all_findings_are_printed(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["--json", "audit", "--quick", "--seed", "7"])
    assert done.exit_code == 0, (done.output, done.exception)
    holds(done.stderr, "loss", "above", "price")
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert report["seed"] == 7
    found = {finding["subject"]: finding for finding in report["findings"]}
    assert found["immutable, as published"]["verdict"] == "claim refuted"
    assert found["gnmax"]["measured"] <= found["gnmax"]["price"]
    parts = {finding["part"] for finding in report["findings"]}
    assert parts == {"noise", "mechanisms", "ledger"}
    assert report["findings"][-1]["verdict"] == "nothing there"
    assert report["findings"] == [each for each in report["findings"] if each["evidence"]]


@pytest.mark.statistical
@pytest.mark.slow
def test_a_loss_above_its_price_ends_with_exit_code_1(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = NoiseTable.sample

    def half(table: NoiseTable, shape: tuple[int, ...], entropy: Any = os.urandom) -> Any:
        return np.rint(sample(table, shape, entropy) / 2).astype(np.int64)

    monkeypatch.setattr(NoiseTable, "sample", half)
    done = CliRunner().invoke(app, ["--json", "audit", "mechanisms", "--quick"])
    assert done.exit_code == 1
    assert "failed: " in str(done.exception)
    assert "gnmax" in str(done.exception)
    report = json.loads(done.stdout)  # printed anyway
    assert report["passed"] is False


@pytest.mark.nightly
@pytest.mark.statistical
def test_a_quick_audit_of_everything_passes() -> None:
    report = run(["mechanisms", "ledger"], QUICK, 1 - 1e-9, 1, None)
    assert report.passed, [finding for finding in report.findings if not finding.passed]
