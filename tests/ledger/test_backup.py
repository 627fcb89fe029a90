"""Backup and restore with the databases' own tools; a backup that is too old is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.databases import SECRET_KEY, Tool, tools_of
from support.ledgers import answered, open_ledger, open_project
from support.servers import policy_of, publisher
from support.wording import holds
from terrine_server.errors import BudgetExhausted
from terrine_server.ledger import Ledger, connect


@pytest.fixture
def tools(each_database_url: str) -> tuple[Tool, Tool]:
    """What makes a backup of the database, and what restores it."""
    return tools_of(each_database_url)


def kept_elsewhere(ledger: Ledger) -> dict[str, str]:
    """A checkpoint of now, by what it is called."""
    publisher(ledger).round()
    return {"kept": ledger.checkpoint() or ""}


def problems(ledger: Ledger, earlier: dict[str, str]) -> list[str]:
    return ledger.check_tree(policy_of(), earlier).problems


def test_an_older_backup_refunds_the_budget_and_is_found_by_a_checkpoint(
    each_database_url: str, tools: tuple[Tool, Tool], tmp_path: Path
) -> None:
    backup, restore = tools
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, 8)
    ledger.charge(project.id, [answered(i) for i in range(5)])
    size = kept_elsewhere(ledger)["kept"].splitlines()[1]
    before = ledger.project("study")
    backup(each_database_url, tmp_path / "backup")
    ledger.charge(project.id, [answered(i) for i in range(5, 8)])
    with pytest.raises(BudgetExhausted):
        ledger.charge(project.id, [answered("one too many")])
    kept = kept_elsewhere(ledger)
    ledger._engine.dispose()
    restore(each_database_url, tmp_path / "backup")

    restored = Ledger(connect(each_database_url), SECRET_KEY)
    assert restored.verify("study").ok, "by itself it is consistent"
    assert restored.project("study") == before
    found = f"the checkpoint kept is of {int(size) + 3} leaves, but there are {size}"
    assert problems(restored, kept)[0].startswith(found)
    # Spending what it gave back does not hide it.
    again = restored.charge(project.id, [answered(0), *(answered(f"again {i}") for i in range(3))])
    assert [result.replayed for result in again.results] == [True, False, False, False]
    kept_elsewhere(restored)
    assert restored.verify("study").ok
    holds(problems(restored, kept)[0], "histories")
