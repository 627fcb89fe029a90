"""A project of six charges, and a key pair."""

from __future__ import annotations

from pathlib import Path

import pytest
from anchoring import ENTRIES, key_pair
from books import CONFIDENT, answered, open_ledger, open_project

from terrine_server.ledger import Ledger


@pytest.fixture
def ledger(database_url: str, secret_key: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")
    ledger = open_ledger(database_url)
    project = open_project(ledger, 20, CONFIDENT)
    ledger.charge(project.id, [answered(i, i) for i in range(ENTRIES)])
    return ledger


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A key pair as `openssl genpkey -algorithm ed25519` writes it."""
    return key_pair(tmp_path, "anchor")
