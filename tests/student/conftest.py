"""The service that students of digits ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from digits import DigitsEnsemble
from server import RunningServer, running_server


@pytest.fixture
def server(tmp_path: Path, digits_ensemble: DigitsEnsemble) -> Iterator[RunningServer]:
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    with running_server(tmp_path / "data", url, digits_ensemble) as running:
        yield running
