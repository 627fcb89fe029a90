"""A witness that listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers import RunningWitness, witnessing


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[RunningWitness]:
    with witnessing(tmp_path / "witness") as running:
        yield running
