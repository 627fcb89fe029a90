"""A faulty server, and retries without waits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import stamina

from support.clients import FaultyServer, running_faulty_server


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    with running_faulty_server() as server:
        yield server


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client meant to wait before each retry. It does not wait."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


@pytest.fixture
def no_backoff() -> Iterator[None]:
    """Retry as often as in production, without the waits in between."""
    with stamina.set_testing(True, attempts=100, cap=True):
        yield
