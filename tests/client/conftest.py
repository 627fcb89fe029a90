"""A faulty server, and retries without waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stamina
from faulty_server import FaultyServer, running_faulty_server


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    with running_faulty_server() as server:
        yield server


@pytest.fixture
def no_backoff() -> Iterator[None]:
    """Retry as often as in production, without the waits in between."""
    with stamina.set_testing(True, attempts=100, cap=True):
        yield
