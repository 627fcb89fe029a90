"""Fixtures for most tests of the service."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from caller import Caller
from server import RunningServer

Call = Callable[..., Caller]


@pytest.fixture
def call(terrine_server: RunningServer) -> Call:
    """Make a caller with a new token, by default of a student of "study"."""

    def make(role: str = "student", project: str | None = None, **token: float) -> Caller:
        return Caller(terrine_server, terrine_server.token(role, project, **token))

    return make
