"""The command line as an operator types it, on the test's own data directory."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.data import DigitsEnsemble
from support.databases import SECRET_KEY
from support.processes import Terrine
from support.servers import Machine
from terrine_server.ledger import connect
from terrine_server.ledger.database import sqlite_path

_prepared: dict[str, bytes] = {}
"""Database files of machines, by the rule of the digits' cap."""


@pytest.fixture
def machine(
    terrine: Terrine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str
) -> Machine:
    """A machine on which nothing is set up yet."""
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    return Machine(tmp_path / "data", database_url, terrine)


@pytest.fixture(params=["rdp"])
def served_machine(
    request: pytest.FixtureRequest,
    machine: Machine,
    digits_ensemble: DigitsEnsemble,
    database_url: str,
) -> Machine:
    """A machine with tables, a key, the digits registered and a project open.

    The parameter is the rule of the digits' cap. On SQLite, each machine has a copy of the first.
    """
    cap = ("--epsilon", "20", "--delta", "1e-4", "--rule", request.param)
    shutil.copytree(digits_ensemble.directory, machine.ensemble)
    machine.data.chmod(0o700)
    (machine.data / "secret.key").write_bytes(SECRET_KEY)
    (machine.data / "secret.key").chmod(0o600)
    path = sqlite_path(connect(database_url))
    if path is not None and (kept := _prepared.get(request.param)):
        path.touch(mode=0o600)
        path.write_bytes(kept)
        return machine
    mechanism = ("--mechanism", "gnmax:sigma=4")
    budget = ("--epsilon", "5", "--delta", "1e-5")
    assert machine.init().code == 0
    for command in (
        ("ensemble", "register", "digits", *cap),
        ("project", "open", "study", "--ensemble", "digits", *mechanism, *budget),
    ):
        done = machine.run(*command)
        assert done.code == 0, done.err
    if path is not None:
        # Who reads the file itself drops the locks that this process holds on it.
        copy = path.with_name("copy")
        with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(copy)) as target:
            live.backup(target)
        _prepared[request.param] = copy.read_bytes()
        copy.unlink()
    return machine
