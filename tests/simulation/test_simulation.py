"""Whatever a seed does to servers and their database, clients never see books that are wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, Engine

from support.simulated import CHANCES, simulate
from terrine_server import errors
from terrine_server.ledger import accounts, charging, database
from terrine_server.ledger.records import RecordedCharges, Result


@pytest.mark.parametrize(
    ("seed", "operations"), [(2, 400), pytest.param(1, 1200, marks=pytest.mark.nightly)]
)
def test_books_are_right_whatever_fails(tmp_path: Path, seed: int, operations: int) -> None:
    world = simulate(tmp_path / "terrine.sqlite", seed, operations)
    assert min(world.counts.values()) > 0, world.counts
    seen = world.judge.replies
    assert min(seen[kind] for kind in ("paid", "replayed", "BudgetExhausted", "ProjectPaused")) > 5


def test_a_seed_replays_exactly(tmp_path: Path) -> None:
    traces = {simulate(tmp_path / f"{i}.sqlite", 7, 100).trace.digest() for i in range(2)}
    assert len(traces) == 1
    assert simulate(tmp_path / "other.sqlite", 8, 100).trace.digest() not in traces


# ------------------------------------------------------------------ faults that it must notice


def answered_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A server that does not look whether its commit succeeded."""
    commit = database.appending

    @contextmanager
    def careless(engine: Engine) -> Iterator[Connection]:
        transaction = commit(engine)
        connection = transaction.__enter__()
        try:
            yield connection
        except BaseException:
            transaction.__exit__(*sys.exc_info())
            raise
        with suppress(errors.DatabaseUnavailable):
            transaction.__exit__(None, None, None)

    patch.setattr("terrine_server.ledger.database.appending", careless)
    patch.setitem(CHANCES, "error", 0.02)  # a commit must fail for it to matter


def deaf_to_a_pause(patch: pytest.MonkeyPatch) -> None:
    """A server that answers whatever the project's status is."""
    guard = " AND status = 'active'"
    assert guard in charging._MOVE
    patch.setattr(charging, "_MOVE", charging._MOVE.replace(guard, ""))
    patch.setattr(charging, "check_active", lambda project: None)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """A server that now and then does not find what was paid."""
    calls, find = [0], RecordedCharges.find

    def sometimes(self: RecordedCharges, *digests: bytes) -> Result | None:
        calls[0] += 1
        return None if calls[0] % 50 == 0 else find(self, *digests)

    patch.setattr(RecordedCharges, "find", sometimes)


def confused(patch: pytest.MonkeyPatch) -> None:
    """A server that now and then replays another label than was paid for."""
    calls, find = [0], RecordedCharges.find

    def sometimes(self: RecordedCharges, *digests: bytes) -> Result | None:
        calls[0] += 1
        found = find(self, *digests)
        if found is None or found.label is None or calls[0] % 50:
            return found
        return replace(found, label=(found.label + 1) % 10)

    patch.setattr(RecordedCharges, "find", sometimes)


def forgets_accounts(patch: pytest.MonkeyPatch) -> None:
    """A server that now and then charges, and writes the accounts of people as they were."""
    calls, save = [0], accounts.save_unit_accounts

    def sometimes(tx: Any, after: Any, accounts: Any) -> None:
        calls[0] += 1
        save(tx, after, np.zeros_like(accounts) if calls[0] % 10 == 0 else accounts)

    patch.setattr(accounts, "save_unit_accounts", sometimes)


@pytest.mark.parametrize(
    "fault", [answered_before_it_is_durable, deaf_to_a_pause, forgetful, confused, forgets_accounts]
)
def test_a_planted_fault_is_noticed(tmp_path: Path, fault: object) -> None:
    """Many short worlds: the books are looked at when each ends."""
    assert callable(fault)
    for seed in range(25):
        with pytest.MonkeyPatch.context() as patch:
            fault(patch)
            try:
                simulate(tmp_path / f"{seed}.sqlite", seed, 300)
            except AssertionError:
                return
    pytest.fail("nothing noticed it")
