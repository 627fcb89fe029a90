"""A hospital's table, from the export to an audited student, by the documented commands alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.processes import SEED, Terrine
from support.servers import Machine, serving_process
from support.tables import stays
from support.wording import holds
from terrine_client import Client
from terrine_models.students.models import Student
from terrine_protocol.tables.encoding import encode_frame, encode_table

PATIENTS, RECORDS, POOL = 6000, 9000, 3000


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Private records of a German spreadsheet: semicolons, decimal commas, Windows-1252."""
    path = tmp_path / "export.csv"
    text = stays(RECORDS, PATIENTS, seed=1, delimiter=";", decimal=",")
    path.write_bytes(text.encode("windows-1252"))
    return path


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Public stays with labels, from which the schema is taken."""
    path = tmp_path / "published.csv"
    path.write_text(stays(1500, 1200, seed=2))
    return path


# By day the documented session walks from records to a checked ledger, and test_quickstart.py from
# a table of people to a student.
@pytest.mark.nightly
def test_owner_student_and_auditor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    terrine: Terrine,
    export: Path,
    published: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    data = tmp_path / "data"
    machine = Machine(data, f"sqlite:///{data / 'terrine.sqlite'}", terrine)
    # ------------------------------------------------------------------------------- the owner
    terrine("init").fine  # noqa: B018 - asserts
    said = terrine("ensemble", "schema", published, "--label", "readmitted").fine
    assert re.search(r"patient_id\s*│ group", said)
    assert re.search(r"admitted\s*│ date\s*│ dates from 2019", said)
    holds(said, "indicator", "median")
    trained = terrine(
        "ensemble",
        "train",
        export,
        "--name",
        "stays",
        "--teachers",
        400,
        "--public",
        published,
        "--schema",
        "schema.json",
    ).fine
    holds(trained, "export.csv", "UTF-8", 3, "windows-1252")
    holds(trained, "semicolons")
    holds(trained, 15, "people")
    assert "400 (heads" in terrine("ensemble", "show", "stays").fine
    register = ("ensemble", "register", "stays", "--epsilon", 2.2, "--delta", 1e-5)
    assert "ε = 2.2" in terrine(*register, "--rule", "gdp").fine
    planned = terrine(
        "plan",
        "noisy_votes",
        "--teachers",
        400,
        "--classes",
        2,
        "--epsilon",
        2,
        "--rows",
        POOL,
    ).fine
    sigma = re.search(r"noisy_votes:sigma=(\S+)", planned)
    assert sigma is not None
    opened = terrine(
        "project",
        "open",
        "readmission",
        "--ensemble",
        "stays",
        "--mechanism",
        f"noisy_votes:sigma={sigma[1]}",
        "--epsilon",
        2,
        "--delta",
        1e-5,
    )
    assert opened.code == 0, opened.err
    student = token(terrine, "--role", "student", "--project", "readmission")
    auditor = token(terrine, "--role", "auditor")
    assert machine.wrong() == []
    # ----------------------------------------------------------------------------- the student
    everything = pd.read_csv(published_like(tmp_path, seed=3), dtype=str, keep_default_na=False)
    pool = tmp_path / "pool.parquet"
    everything.drop(columns=["patient_id", "readmitted"]).to_parquet(pool)
    own = tmp_path / "own.csv"
    own.write_bytes(stays(2000, 2000, seed=4).encode("latin-1"))
    held_out = ("--held-out", own)
    with serving_process(machine) as server:
        with Client(server.url, student) as client:
            schema = client.project().ensemble.encoding
            assert schema is not None
            x = encode_table(pool, schema)
            assert np.array_equal(encode_frame(everything, schema), x)
        dry = terrine(
            "student",
            "train",
            pool,
            *held_out,
            "--dry-run",
            TERRINE_URL=server.url,
            TERRINE_TOKEN=student,
        ).fine
        holds(dry, f"{POOL:,}", "budget")
        holds(dry, "ε", 0, 2)
        learned = terrine(
            "student",
            "train",
            pool,
            *held_out,
            "--out",
            "student",
            TERRINE_URL=server.url,
            TERRINE_TOKEN=student,
        ).fine
        holds(learned, "own.csv", "UTF-8", 3, "windows-1252")
        # --------------------------------------------------------------------------- the auditor
        with Client(server.url, auditor) as client:
            distinct = len(np.unique(x, axis=0))
            assert client.verify("readmission").ok
            entries = list(client.charges("readmission", outcome="answered"))
            assert len(entries) == distinct
        with Client(server.url, student) as client:
            asked = client.label(x[:50])
            paid = {entry.seq: entry.label_name for entry in entries}
            assert asked.names.tolist() == [("no", "yes")[label] for label in asked.labels]
            assert asked.names.tolist() == [paid[charge] for charge in asked.charges]
    report: dict[str, Any] = json.loads((tmp_path / "student" / "report.json").read_text())
    assert report["outcomes"] == {"answered": POOL}
    assert report["epsilon_spent"] <= 2
    assert f"{report['accuracy']:.2%}" in learned
    truth = pd.read_csv(own, encoding="latin-1")["readmitted"]
    majority = truth.value_counts(normalize=True).max()
    assert report["accuracy"] > majority + 0.02, "better than a constant answer"
    predicted = Student.load(tmp_path / "student").predict(x)
    assert 0.1 < predicted.mean() < 0.6, "both classes are predicted"
    assert "intact" in terrine("ledger", "verify", "readmission").fine
    assert machine.wrong() == []


def published_like(directory: Path, seed: int) -> Path:
    path = directory / f"stays-{seed}.csv"
    path.write_text(stays(POOL, POOL, seed=seed))
    return path


def token(terrine: Terrine, *options: str) -> str:
    found = re.search(r"terrine_\S+", terrine("token", "create", *options).fine)
    assert found is not None
    return found[0]


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
