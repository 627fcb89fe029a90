"""`terrine serve` in a separate process, with any workers that it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from machine import Machine

TERRINE = [sys.executable, "-c", "from terrine_server.cli import main; main()"]
T = TypeVar("T")


class Serving:
    """A server in a separate process, its address, and its log so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.wait_for(r"running on (http://\S+)")[0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
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
        self.process.send_signal(how)
        code = self.process.wait(timeout=30)
        self._reader.join(timeout=30)
        assert not self._reader.is_alive(), "a worker outlived the server"
        return code


def until(look: Callable[[], T], good: Callable[[T], bool], seconds: float = 60) -> T:
    """Repeat `look()` until its result is `good`, and return it."""
    deadline = time.monotonic() + seconds
    while not good(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


@contextmanager
def serving(
    machine: Machine, *options: str, before: Callable[[], None] | None = None, **settings: object
) -> Iterator[Serving]:
    """Serve; `settings` override the defaults. `before`: called in the process before it starts."""
    environment = os.environ | {
        "TERRINE_DATA_DIR": str(machine.data),
        "TERRINE_DATABASE_URL": machine.database_url,
        "TERRINE_REQUESTS_PER_MINUTE": "1000000",
        **{f"TERRINE_{name.upper()}": str(value) for name, value in settings.items()},
    }
    process = subprocess.Popen(
        [*TERRINE, "serve", "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=before,
    )
    try:
        yield Serving(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
