"""The walk from a table to a student, by script, on the real UCI Adult."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from corpus import PictureSource
from support.processes import REPEATED
from support.wording import holds
from walk import Walk, walk

WALK = Path(__file__).parents[2] / "benchmarks" / "walk.py"


@pytest.mark.nightly
def test_a_walk_gets_what_was_forecast_and_more_than_a_plain_model(
    tmp_path: Path, shared_data: Path
) -> None:
    out = tmp_path / "walk.jsonl"
    given = ["--adult", str(shared_data / "adult"), "--seeds", "1", "--out", str(out)]
    noise = os.environ | REPEATED
    subprocess.run([sys.executable, str(WALK), *given], check=True, cwd=tmp_path, env=noise)
    found = json.loads(out.read_text())
    student = found["student"]
    assert found["answered"] >= found["promised"], "what was certain"
    assert student["accuracy"] > 0.83
    assert student["balanced"] > 0.7
    assert all(student["accuracy"] > plain["accuracy"] - 0.01 for plain in found["plain"].values())
    low, high = found["range"]
    assert low - 0.2 < student["accuracy"] < high + 0.2


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_students_of_pictures_whose_class_is_their_colour_learn_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in REPEATED.items():
        monkeypatch.setenv(name, value)
    random = np.random.default_rng(0)
    y = random.integers(4, size=3000)
    colours = random.permuted(np.linspace(50, 205, 12)).reshape(4, 3)
    x = colours[y][:, None, None] + random.normal(0, 12, (3000, 16, 16, 3))
    source = PictureSource("", lambda: (x.clip(0, 255).astype(np.uint8), y))
    made = source.deal("colours", tmp_path, random)
    found = walk("colours", made, tmp_path, seed=0, epsilon=3.0)
    assert isinstance(found, Walk)
    assert found.student.accuracy > 0.9
    assert not any(lead.clear for lead in found.leads.values())


@pytest.mark.nightly
def test_without_data_it_says_that_it_skips() -> None:
    done = subprocess.run([sys.executable, str(WALK)], check=True, capture_output=True, text=True)
    holds(done.stdout, "Skipped")
