"""SIGKILL during a start: the next start finds nothing half-done and no stale lock."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from support.databases import Database
from support.ledgers import answered, open_ledger, open_project
from support.processes import Terrine, command, die_before_call, in_processes, start
from terrine_protocol.files import write_secret
from terrine_server.owner.sign_in import load_secret_key

OF_STARTS = 0.05
"""Kills of each test and database, as a share of those under load."""
MORE = 30
"""Further kills, if all so far came too late; about one in three does."""


@pytest.mark.parametrize(
    "fresh_database",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)],
    indirect=True,
)
@pytest.mark.slow
def test_init_completes_after_an_init_that_was_killed(
    fresh_database: Callable[[Path], AbstractContextManager[Database]],
    terrine: Terrine,
    kills: Callable[[float], int],
    seed: int,
    tally: Callable[[str], None],
    tmp_path: Path,
) -> None:
    rng, count, starts, interrupted, usual = random.Random(seed), kills(OF_STARTS), 0, 0, 0.0
    in_processes(time.sleep, (0,))  # now all shared imports are done
    while starts <= count or (not interrupted and starts <= count + MORE):
        home = tmp_path / str(starts)
        home.mkdir()
        with fresh_database(home) as database:
            place = {
                "TERRINE_DATA_DIR": str(home / "data"),
                "TERRINE_DATABASE_URL": database.url,
            }
            began = time.monotonic()
            process = start(command, ("init",), place, str(home / "log"))
            process.join(rng.uniform(0, usual) if starts else None)  # the first one lives
            took = time.monotonic() - began
            process.kill()
            process.join()
            starts += 1
            if process.exitcode == -signal.SIGKILL:
                interrupted += 1
            else:
                assert process.exitcode == 0, (home / "log").read_text()
                usual = min(usual or took, took)
            terrine("init", **place).fine  # noqa: B018 - asserts
            assert json.loads(terrine("--json", "doctor", **place).out)["ok"]
            ledger = open_ledger(database.url, key=load_secret_key(home / "data" / "secret.key"))
            ledger.charge(open_project(ledger, queries=10).id, [answered(1)])
            assert ledger.verify("study").ok
            kind = database.url.partition(":")[0]
    tally(f"{kind}, init: {starts - 1} kills, {interrupted} within the {usual:.1f} s it takes")
    assert interrupted, "every kill came too late"


@pytest.mark.slow
def test_a_secret_key_is_complete_or_missing(tmp_path: Path) -> None:
    path, call, ended = tmp_path / "secret.key", 0, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        path.unlink(missing_ok=True)
        [process] = in_processes(die_before_call, (call, write_secret, path, "ab" * 32))
        assert not path.exists() or len(load_secret_key(path)) == 64
        assert process.exitcode is not None
        ended, call = process.exitcode, call + 1
    assert ended == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert call > 10, "it consists of more calls"
