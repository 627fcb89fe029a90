"""From a table to a student, by an owner's and a student's commands, on the real UCI Adult."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from support.processes import SEED, Terrine
from support.servers import Machine, serving_process
from terrine_models.tables.loading import load_table, read_schema

POOL = 13_000
COLUMNS = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,"
    "capital_gain,capital_loss,hours_per_week,native_country,income"
)
OWNER = f"""
init
ensemble schema census.csv --label income --columns {COLUMNS}
ensemble train adult.data --name income --teachers 1000 --public census.csv --schema schema.json
ensemble register income --epsilon 1.1 --delta 1e-5 --rule gdp
plan noisy_votes --teachers 1000 --classes 2 --epsilon 1 --rows 13000
project open census --ensemble income --mechanism noisy_votes:sigma=602 --epsilon 1 --delta 1e-5
token create --role student --project census
"""
STUDENT = "student train census.csv --held-out own.csv --out student"


@pytest.mark.nightly
def test_the_commands_make_a_student_that_beats_plain_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terrine: Terrine, shared_data: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SEED, "0")
    adult = shared_data / "adult"
    (tmp_path / "adult.data").write_bytes(gzip.decompress((adult / "adult.data.gz").read_bytes()))
    rows = gzip.decompress((adult / "adult.test.gz").read_bytes()).decode().splitlines()[1:]
    (tmp_path / "census.csv").write_text("\n".join(rows[:POOL]) + "\n")
    (tmp_path / "own.csv").write_text("\n".join(rows[POOL:]) + "\n")
    machine = Machine(tmp_path / "data", f"sqlite:///{tmp_path / 'data/terrine.sqlite'}", terrine)
    secret = None
    for command in map(str.split, OWNER.strip().splitlines()):
        said = terrine(*command).fine
        if command[0] == "plan":
            assert "noisy_votes:sigma=602" in said
        if command[0] == "token":
            secret = re.search(r"terrine_\S+", said)
    assert secret is not None
    with serving_process(machine) as server:
        terrine(*STUDENT.split(), TERRINE_URL=server.url, TERRINE_TOKEN=secret[0]).fine  # noqa: B018
    report = json.loads((tmp_path / "student" / "report.json").read_text())
    assert report["epsilon_spent"] <= 1
    schema = read_schema(tmp_path / "schema.json")
    pool, own = (
        load_table(tmp_path / "census.csv", schema),
        load_table(tmp_path / "own.csv", schema),
    )
    majority = np.bincount(own.labels).max() / len(own)
    assert report["accuracy"] > 0.825 > majority
    with np.load(tmp_path / "student" / "answers.npz") as answers:
        labels = answers["labels"]
    plain = LogisticRegression(max_iter=300).fit(pool.inputs, labels)
    assert report["accuracy"] > plain.score(own.inputs, own.labels) - 0.01
