"""A server that waits a second for anybody, and clients that keep it waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from caller import Caller, npy
from digits import DigitsEnsemble
from server import RunningServer, running_server
from wire import Wire

CHUNKED = "Transfer-Encoding: chunked"
SECONDS = 1
"""Time that the impatient server allows for a head, and for a body."""
PATIENT = {"keep_alive_seconds": 600, "body_seconds": 600}
"""Settings of a server that closes no connection during a test."""
PATIENCE_SECONDS = 30
"""How long a test waits for the server to close a connection."""
CHEAP = {"name": "gnmax", "sigma": 100.0}


@contextmanager
def impatient(
    directory: Path, ensemble: DigitsEnsemble, **settings: Any
) -> Iterator[RunningServer]:
    """Run a server with the project "study" that waits one second for heads and bodies."""
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    short = {"keep_alive_seconds": SECONDS, "body_seconds": SECONDS} | settings
    with running_server(directory / "data", url, ensemble, **short) as server:
        server.open_project("study", CHEAP)
        yield server


def charges(server: RunningServer, project: str = "study") -> int:
    return server.ledger.project(project).charges


def question() -> bytes:
    """Return a .npy file with a new input."""
    return npy(np.random.default_rng().integers(0, 17, (1, 8, 8), np.uint8))


def answers(server: RunningServer, count: int = 1) -> None:
    """Check that the server answers another student."""
    caller = Caller(server, server.token())
    assert caller.label(server.ensemble.public[:count]).status_code == 200


def dribble(wires: list[Wire], data: bytes) -> None:
    """Send `data` again and again until the server responds or closes.

    A server that measures the time since the last byte would never do so.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while waiting := [wire for wire in wires if wire.silent()]:
        assert time.monotonic() < deadline, "the server waits for the end of an endless request"
        for wire in waiting:
            wire.send(data)
        time.sleep(0.1)
