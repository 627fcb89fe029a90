"""The command line as an operator types it, on a data directory of the test's own."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from digits import DigitsEnsemble
from machine import Done, Machine


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    database_url: str,
) -> Machine:
    """Nothing is prepared on it yet. Commands run in this process, where all is imported."""
    from terrine_server.cli import main

    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)

    def run(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            patched.setattr(sys, "argv", ["terrine", *arguments])
            with pytest.raises(SystemExit) as ended:
                main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return Machine(tmp_path / "data", database_url, run)


@pytest.fixture
def served_machine(machine: Machine, digits_ensemble: DigitsEnsemble) -> Machine:
    """A machine with all it needs: tables, key, the digits registered and a project open."""
    shutil.copytree(digits_ensemble.directory, machine.ensemble)
    machine.data.chmod(0o700)
    mechanism = ("--mechanism", "gnmax", "--sigma", "4")
    budget = ("--epsilon", "5", "--delta", "1e-5")
    for command in (
        ("init",),
        ("ensemble", "register", "digits", "--epsilon", "20", "--delta", "1e-4"),
        ("project", "open", "study", "--ensemble", "digits", *mechanism, *budget),
    ):
        done = machine.run(*command)
        assert done.code == 0, done.err
    return machine
