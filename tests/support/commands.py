"""Commands as a person types them, in the test's process, where imports are done, or their own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import processes
import pytest


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def fine(self) -> str:
        """Its output; the command must have succeeded."""
        assert self.code == 0, self.err
        return self.out

    @property
    def refused(self) -> str:
        """Its error, which must be readable: on stderr only, without a traceback.

        That of a server is in its log, whose last line says that it cannot start, and why.
        """
        assert self.code == 1, self
        assert self.out == ""
        assert "Traceback" not in self.err
        if not self.err.startswith("Error: "):
            last = json.loads(self.err.splitlines()[-1])
            assert (last["event"], last["level"]) == ("cannot start", "error")
            return str(last["cause"])
        return self.err


class Terrine(Protocol):
    """Runs `terrine` with arguments, and with environment variables for this command alone."""

    def __call__(self, *arguments: object, **variables: str) -> Done: ...


def commands(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Callable[[], None] | None = None,
) -> Terrine:
    """Return a function that runs commands on a terminal wide enough for any table.

    `program`: another command line than that of `terrine`.
    """
    from terrine_server.cli import main

    def run(*arguments: object, **variables: str) -> Done:
        with monkeypatch.context() as patched:
            for name, value in {"COLUMNS": "200", **variables}.items():
                patched.setenv(name, value)
            patched.setattr(sys, "argv", ["terrine", *map(str, arguments)])
            before = os.umask(0o022)  # as most accounts have it
            try:
                with pytest.raises(SystemExit) as ended:
                    (program or main)()
            finally:
                os.umask(before)
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run


def in_own_processes(directory: Path, environment: Mapping[str, str]) -> Terrine:
    """Return a function that runs each command in a process of its own, in this directory."""
    out, err = directory / "out", directory / "err"

    def run(*arguments: object, **variables: str) -> Done:
        for file in (out, err):
            file.unlink(missing_ok=True)
        words, every = [*map(str, arguments)], {"COLUMNS": "200", **environment, **variables}
        given = (directory, words, every, str(out), str(err))
        [process] = processes.in_processes(processes.command_in, given)
        assert process.exitcode is not None, f"{words} does not end"
        return Done(process.exitcode, out.read_text(), err.read_text())

    return run
