"""The example of a table in docs/student.md, command by command, on the real UCI Adult."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from support.processes import SEED, Terrine
from support.servers import Machine, serving_process
from terrine_models.tables.loading import load_table, read_schema

PAGE = Path(__file__).resolve().parents[2] / "docs" / "student.md"
POOL = 13_000


def documented() -> tuple[list[list[str]], list[str]]:
    """The owner's commands but the last, `terrine serve`, and the student's."""
    section = PAGE.read_text().partition("\n## An example: a table\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    columns = re.search(r"COLUMNS=(\S+)", blocks[0])
    assert columns is not None
    lines = [line.replace("$COLUMNS", columns[1]) for line in "".join(blocks).splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("terrine")]
    at = commands.index(["serve"])
    assert len(commands) == at + 2
    return commands[:at], commands[at + 1]


@pytest.mark.nightly
def test_the_documented_commands_make_a_student_that_beats_plain_baselines(
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
    owner, student = documented()
    secret = None
    for command in owner:
        said = terrine(*command).fine
        if command[0] == "plan":
            assert "noisy_votes:sigma=602" in said
        if command[0] == "token":
            secret = re.search(r"terrine_\S+", said)
    assert secret is not None
    with serving_process(machine) as server:
        terrine(*student, TERRINE_URL=server.url, TERRINE_TOKEN=secret[0]).fine  # noqa: B018
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
