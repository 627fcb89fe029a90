"""A real server in a separate process, which never outlives the demo."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_SECONDS = 90.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1
LOG_LINES = 15
RUNNING = re.compile(rb"running on (http://\S+) ")


class ServerError(Exception):
    """The server did not start; the message has the end of its log."""


@contextmanager
def running_server(data_dir: Path, log: Path) -> Iterator[str]:
    """Run `terrine serve` on `data_dir` at a free local port; yield its URL.

    Its output goes to `log`. TERRINE_* variables of the environment are not passed on.
    Raises ServerError.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRINE_")}
    environment["TERRINE_DATA_DIR"] = str(data_dir)
    command = [sys.executable, "-m", "terrine_server", "serve", "--port", "0"]
    server = None
    try:
        with log.open("ab") as output, _uninterrupted():
            before = output.tell()
            server = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        url = _wait_until_ready(server, log, before)
        yield url
    finally:
        if server is not None:
            _stop(server)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let interrupts wait: one within `Popen` would leave a server that nobody knows of."""
    numbers = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if os.name == "posix" else []))
    before = {number: signal.getsignal(number) for number in numbers}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    came: list[int] = []
    for number in handled:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)


def _wait_until_ready(server: subprocess.Popen[bytes], log: Path, before: int) -> str:
    """Return the URL that the server says in its log, after the bytes that were there before."""
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5, trust_env=False) as http:
        while server.poll() is None and time.monotonic() < deadline:
            said = RUNNING.search(log.read_bytes(), before)
            try:
                if said and http.get(f"{said[1].decode()}/readyz").is_success:
                    return said[1].decode()
            except httpx.TransportError:
                pass
            time.sleep(POLL_SECONDS)
    code = server.poll()
    what = f"is not ready after {START_SECONDS:g} s" if code is None else f"ended with code {code}"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
    raise ServerError(f"the server {what}. Its log, {log}, ends:\n{tail or '(empty)'}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
