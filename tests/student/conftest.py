"""The service that students of digits ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.data import DigitsEnsemble
from support.processes import seed_noise
from support.servers import RunningServer, running_server


@pytest.fixture
def drawn() -> None:
    """Students are drawn, which takes longer than anything else that a short study does."""


@pytest.fixture
def server(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    digits_ensemble: DigitsEnsemble,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RunningServer]:
    """With the same noise each time: what a student learns is then the same, too."""
    seed_noise(monkeypatch)
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("terrine_client.distill.draw", lambda _, path: path.touch())
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    with running_server(tmp_path / "data", url, digits_ensemble) as running:
        yield running
