"""A stand-in for a hospital's teachers, trained on public stays, feeds the plan."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from support.processes import SEED, Terrine
from support.tables import stays
from support.wording import holds


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Public stays with labels, from which the schema is taken."""
    path = tmp_path / "published.csv"
    path.write_text(stays(1500, 1200, seed=2))
    return path


def test_a_stand_in_says_how_far_teachers_agree_and_feeds_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine, published: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    terrine("ensemble", "schema", published, "--label", "readmitted").fine  # noqa: B018
    schema = ("--schema", "schema.json")
    train = ("ensemble", "train", published, "--name", "stand-in", "--teachers", 40, *schema)
    holds(terrine(*train).err, "private")
    half = tmp_path / "half.csv"
    half.write_text(stays(1200, 1000, seed=5))
    terrine(*train[:2], half, *train[3:]).fine  # noqa: B018 - asserts
    own = tmp_path / "own.csv"
    own.write_text(stays(800, 800, seed=6))
    evaluate = ("ensemble", "evaluate", "stand-in", own)
    assert "--trained-on public" in terrine(*evaluate).refused
    said = terrine(*evaluate, "--trained-on", "public", "--votes", "votes.npz").fine
    holds(said, 40, "stand-in", 800)
    assert re.search(r"│ yes\s*│", said)
    assert "terrine plan --votes votes.npz --votes-are public" in said
    counted = json.loads(terrine("--json", *evaluate, "--trained-on", "public").fine)
    with np.load(tmp_path / "votes.npz") as file:
        right = (file["counts"].argmax(axis=1) == file["labels"]).mean()
        top = file["counts"].max(axis=1) / 40
        mean = file["counts"][np.arange(800), file["labels"]].mean() / 40
    assert counted["plurality"] == pytest.approx(right)
    assert counted["mean_teacher"] == pytest.approx(mean)
    assert sum(level["inputs"] for level in counted["levels"]) == 800
    assert np.mean(counted["consensus"]) == pytest.approx(top.mean())
    planned = terrine("plan", "--votes", "votes.npz", "--votes-are", "public", "--epsilon", 4)
    assert "confident_gnmax" in planned.fine
