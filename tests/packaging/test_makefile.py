"""`make` explains itself, and creates secrets once, closed to other accounts."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from support.processes import run_program

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    shutil.which("make") is None, reason="NO MAKE on this machine: the Makefile is not tested here."
)


def make(directory: Path, *arguments: str) -> str:
    done = run_program(
        "make", "--no-print-directory", "--file", REPOSITORY / "Makefile", *arguments, cwd=directory
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_names_every_target(tmp_path: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    said = make(tmp_path)
    assert [
        t for t in phony.split() if not re.search(rf"^  make {t} +\S", said, re.MULTILINE)
    ] == []


def test_secrets_are_random_closed_to_others_and_never_replaced(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TERRINE_PORT=8001")  # without a line's end
    make(tmp_path, "secrets")
    directory = tmp_path / "secrets"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    made = {file.name: file.read_text() for file in directory.iterdir()}
    assert set(made) == {"db_password", "service_password", "secret_key"}
    assert len(set(made.values())) == 3
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in made.values())

    make(tmp_path, "secrets")
    assert {file.name: file.read_text() for file in directory.iterdir()} == made
    assert (tmp_path / ".env").read_text() == "TERRINE_PORT=8001\nSECRETS_DIR=./secrets\n"


def test_ci_can_be_run() -> None:
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)
