"""The command line of the experiments."""

from __future__ import annotations

import pytest
from commands import Terrine, commands

from terrine_experiments.__main__ import main


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terrine:
    """Run `python -m terrine_experiments …` in this process."""
    return commands(monkeypatch, capsys, main)
