"""`terrine backup` and `terrine restore`: nothing is lost, nothing half-written, nothing believed."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import Done
from machine import Machine, question
from migrated import SECRET_KEY
from postgres import SERVICE, as_owner
from refusals import holds, says
from serving import serving, until
from sqlalchemy import Connection, text

from terrine_protocol import ProjectStatus
from terrine_server.ledger import connect
from terrine_server.ledger.store import copies
from terrine_server.ledger.store.database import sqlite_path

pytestmark = pytest.mark.usefixtures("no_sessions_left")


@pytest.fixture
def no_sessions_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions end with the command that opened them, as its process does."""


def owner(machine: Machine, *words: object) -> Done:
    """Run a command as the tables' owner."""
    return machine.run(*words, TERRINE_DATABASE_URL=as_owner(machine.database_url))


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def ask(machine: Machine, headers: dict[str, str], *numbers: int) -> list[int]:
    """Ask each question on a server of its own, and return the statuses."""
    with serving(machine) as server:
        return [
            httpx.post(f"{server.url}/label", json=question(n), headers=headers).status_code
            for n in numbers
        ]


@pytest.mark.usefixtures("each_database_url")
def test_a_backup_is_restored_on_another_machine_which_answers_and_verifies(
    served_machine: Machine, backups: Path, tmp_path: Path
) -> None:
    machine = served_machine
    headers = machine.student("paid", 20)
    assert ask(machine, headers, 1, 2) == [200, 200]
    said = machine.run("backup", backups / "one").fine
    holds(said, "secret.key", "secret")
    assert (backups / "one" / "backup.json").exists()
    new = tmp_path / "elsewhere"
    new.mkdir(mode=0o700)
    (new / "secret.key").write_bytes(SECRET_KEY)
    there = {
        "TERRINE_DATA_DIR": str(new),
        "TERRINE_DATABASE_URL": f"sqlite:///{new / 'terrine.sqlite'}",
    }
    print(machine.run("restore", backups / "one", **there).fine)
    print(machine.run("ledger", "verify", "all", **there).fine)
