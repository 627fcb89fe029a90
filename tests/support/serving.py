"""`terrine serve` in a separate process."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import processes
from machine import Machine
from patience import PATIENCE_SECONDS

T = TypeVar("T")


class Serving:
    """A server in a separate process, its address, and its log so far."""

    def __init__(self, process: BaseProcess, log: Path) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()
        self.url = self.wait_for(r"running on (http://\S+)")[0]

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def _read(self, log: Path) -> None:
        with log.open() as lines:  # until the last process that writes to it has ended
            for line in lines:
                self.lines.append(line)

    def entries(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines, each a JSON object, whose event matches."""
        entries: list[dict[str, Any]] = [json.loads(line) for line in list(self.lines)]
        return [entry for entry in entries if re.search(event, entry["event"])]

    def wait_for(self, event: str, count: int = 1) -> list[str]:
        """Wait for `count` log lines; return what the pattern's group matched in each."""
        pattern = re.compile(event)
        return until(
            lambda: [
                found[pattern.groups]
                for e in self.entries(event)
                if (found := pattern.search(e["event"]))
            ],
            lambda found: len(found) >= count,
        )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        os.kill(self.pid, how)
        self.process.join(timeout=PATIENCE_SECONDS)
        self._reader.join(timeout=PATIENCE_SECONDS)
        assert not self._reader.is_alive(), "a process outlived the server"
        assert self.process.exitcode is not None
        return self.process.exitcode


def until(
    look: Callable[[], T], good: Callable[[T], bool] = bool, seconds: float = PATIENCE_SECONDS
) -> T:
    """Repeat `look()` until its result is `good`, and return it."""
    deadline = time.monotonic() + seconds
    while not good(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


@contextmanager
def serving(
    machine: Machine,
    *options: str,
    descriptors: tuple[int, int] | None = None,
    **settings: object,
) -> Iterator[Serving]:
    """Serve; `settings` override the defaults. `descriptors`: see `processes.command`."""
    variables = {
        "TERRINE_DATA_DIR": str(machine.data),
        "TERRINE_DATABASE_URL": machine.database_url,
        "TERRINE_REQUESTS_PER_MINUTE": "1000000",
        **{f"TERRINE_{name.upper()}": str(value) for name, value in settings.items()},
    }
    with started("serve", "--port", "0", *options, descriptors=descriptors, **variables) as server:
        yield server


@contextmanager
def started(
    *arguments: str, descriptors: tuple[int, int] | None = None, **variables: str
) -> Iterator[Serving]:
    """Run `terrine` with arguments that make it serve, and with these environment variables."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        os.mkfifo(log)
        given = (arguments, os.environ | variables, str(log), descriptors)
        process = processes.start(processes.command, *given, daemon=False)
        try:
            yield Serving(process, log)
        finally:
            process.kill()
            process.join()
