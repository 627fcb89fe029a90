"""The walk from a table to a student, by script, on the real UCI Adult."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import REPEATED
from support.wording import holds
from walk import Walk, read_ended

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "walk.py"


@pytest.mark.nightly
def test_a_walk_gets_what_was_forecast_and_more_than_a_plain_model(
    tmp_path: Path, shared_data: Path
) -> None:
    out = tmp_path / "walk.jsonl"
    given = [f"adult={shared_data / 'adult'}", "--seeds", "1", "--out", str(out)]
    noise = os.environ | REPEATED
    subprocess.run([sys.executable, str(SCRIPT), *given], check=True, cwd=tmp_path, env=noise)
    [found] = read_ended(out, 1.0).values()
    assert isinstance(found, Walk)
    student = found.student
    assert found.answered >= found.promised, "what was certain"
    assert student.accuracy > 0.83
    assert student.balanced > 0.7
    assert all(student.accuracy > plain.accuracy - 0.01 for plain in found.plain.values())
    low, high, _ = found.ranges["accuracy"]
    assert low - 0.2 < student.accuracy < high + 0.2


@pytest.mark.nightly
def test_without_data_it_says_that_it_skips() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], check=True, capture_output=True, text=True)
    holds(done.stdout, "Skipped")
