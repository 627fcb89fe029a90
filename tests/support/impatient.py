"""A server that closes slow connections after a second, and one that never does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from caller import Caller, npy
from digits import DigitsEnsemble
from server import RunningServer, running_server

SECONDS = 1
"""Time that the impatient server allows for a head, and for a body."""
PATIENT = {"keep_alive_seconds": 600, "body_seconds": 600}
"""Settings of a server that closes no connection during a test."""
QUESTIONS = count()
"""Seeds of questions that nobody has asked yet."""
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
    return npy(np.random.default_rng(next(QUESTIONS)).integers(0, 17, (1, 8, 8), np.uint8))


def answers(server: RunningServer, count: int = 1) -> None:
    """Check that the server answers another student."""
    caller = Caller(server, server.token())
    assert caller.label(server.ensemble.public[:count]).status_code == 200
