"""The command line of the experiments."""

from __future__ import annotations

import pytest

from support.processes import Terrine, commands, seed_noise
from terrine_experiments.__main__ import main


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terrine:
    """Run `python -m terrine_experiments …` in this process, with the same noise each time."""
    seed_noise(monkeypatch)
    return commands(monkeypatch, capsys, main)
