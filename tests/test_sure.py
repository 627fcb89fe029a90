"""`make test-sure` says how runs went, stops at the first that fails, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support import sure
from support.processes import until
from support.wording import holds


def repeated(
    program: str, directory: Path, monkeypatch: pytest.MonkeyPatch, *pieces: str
) -> tuple[int, list[str]]:
    """Run a program in place of pytest; return the exit code, and the names of the logs kept."""
    monkeypatch.setattr(sure, "REPOSITORY", directory)
    monkeypatch.setattr(sure, "LOGS", directory / "logs")
    monkeypatch.setattr(sure, "PYTEST", [sys.executable, "-c", program])
    monkeypatch.setattr(sys, "argv", ["sure", *pieces])
    return sure.main(), sorted(log.name for log in (directory / "logs").iterdir())


def test_a_run_that_fails_is_the_last_and_its_log_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('again with: seed 7'); sys.exit(3)"
    assert repeated(program, tmp_path, monkeypatch, "idle=2") == (3, ["idle-1.log"])
    assert "seed 7" in (tmp_path / "logs" / "idle-1.log").read_text()
    said = capsys.readouterr().out
    holds(said, "idle", 1, 2, "exit", 3)
    assert "idle 2" not in said


def test_busy_processes_end_with_who_started_them() -> None:
    program = (
        "import os, signal, subprocess; from support import sure\n"
        "started, popen = [], subprocess.Popen\n"
        "subprocess.Popen = lambda *given: started.append(popen(*given)) or started[-1]\n"
        "with sure.busy(2):\n"
        "    print(*(each.pid for each in started), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(sure.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    pids = done.stdout.split()
    assert len(pids) == 2, done.stderr
    until(lambda: all(map(ended, pids)))


def ended(pid: str) -> bool:
    """Whether no more than its entry is left of a process, or not even that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
