"""Fixtures for most tests of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.clients import IMPATIENT_GNMAX, PATIENT, Caller, charges, impatient
from support.data import DigitsEnsemble
from support.servers import RunningServer
from terrine_server.api import shared

Call = Callable[..., Caller]


@pytest.fixture(autouse=True)
def _ready_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/readyz` finds out anew each time, so that tests need not wait a second."""
    monkeypatch.setattr(shared, "LOOKUP_SECONDS", 0.0)


@pytest.fixture
def call(terrine_server: RunningServer) -> Call:
    """Make a caller with a new token, by default of a student of "study"."""

    def make(role: str = "student", project: str | None = None, **token: float) -> Caller:
        return Caller(terrine_server, terrine_server.token(role, project, **token))

    return make


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    """It waits for slow clients, as this test may be one on a busy machine."""
    with impatient(tmp_path_factory.mktemp("abused"), digits_ensemble, **PATIENT) as server:
        server.open_project("other", IMPATIENT_GNMAX)
        yield server


@pytest.fixture
def unpaid(served: RunningServer) -> Iterator[None]:
    """Asserts that the test charges nothing."""
    before = charges(served)
    yield
    assert charges(served) == before
