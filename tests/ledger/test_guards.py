"""Guards against what should not happen: each of these tests fails without one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Connection, select, text, update

from support.forgeries import kind, rebuild, rows_of
from support.ledgers import answered, charge_one, open_project, unguarded
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger import Ledger, rows, verifying
from terrine_server.ledger.chain import canonical_json, genesis
from terrine_server.ledger.checks import int_or_zero
from terrine_server.ledger.schema import populations, projects


def reopened(connection: Connection, **changes: int) -> None:
    """Make `study` a project that was opened on other terms, with every hash as it has to be.

    Without the database's own checks, that is what a defect in opening would leave.
    """
    row = connection.execute(rows.select_projects().where(projects.c.id == 1)).one()
    fields: dict[str, Any] = {**row._mapping, **changes}
    fields["terms"] = canonical_json({**json.loads(row.terms), **changes})
    start = genesis(fields)
    changed = {name: fields[name] for name in ("terms", *changes)}
    entries = rows_of(connection)
    connection.execute(update(projects).where(projects.c.id == 1).values(changed))
    connection.execute(update(projects).where(projects.c.id == 1).values(genesis=start, head=start))
    if entries:
        rebuild(connection, entries)
    connection.execute(
        update(populations).values(
            reserved=select(projects.c.cap_budget).scalar_subquery(),
            delta_reserved=select(projects.c.delta_budget).scalar_subquery(),
        )
    )


@pytest.mark.parametrize(
    ("budget", "reserved", "cap"),
    [("cap_budget", "reserved", "cap"), ("delta_budget", "delta_reserved", "delta_cap")],
)
def test_more_reserved_than_the_cap_is_found_though_all_else_agrees(
    ledger: Ledger, database_url: str, budget: str, reserved: str, cap: str
) -> None:
    open_project(ledger, 5)
    most = getattr(ledger.ensembles.get("mnist").population, cap)
    with unguarded(database_url) as connection:
        reopened(connection, **{budget: most})
    assert ledger.verifier.verify_project("study").ok, "all of the cap may be reserved"
    with unguarded(database_url) as connection:
        reopened(connection, **{budget: most + 1})
    (found,) = ledger.verifier.verify_project("study").problems
    assert kind(found) == f"population mnist: {reserved}"


@pytest.mark.parametrize(
    ("spent", "budget"),
    [("spent", "budget"), ("cap_spent", "cap_budget"), ("delta_spent", "delta_budget")],
)
def test_more_spent_than_the_budget_is_found_though_all_else_agrees(
    ledger: Ledger, database_url: str, spent: str, budget: str
) -> None:
    project = open_project(ledger, 5)
    after = charge_one(ledger, project.id, [answered(query) for query in range(5)]).project
    most = getattr(after, spent)
    with unguarded(database_url) as connection:
        reopened(connection, **{budget: most})
    assert ledger.verifier.verify_project("study").ok, "all of the budget may be spent"
    with unguarded(database_url) as connection:
        reopened(connection, **{budget: most - 1})
    (found,) = ledger.verifier.verify_project("study").problems
    assert kind(found) == f"balance: {spent}"
    assert {str(most), str(most - 1)} <= set(found.split()), "what is spent, and of what"


def test_an_account_that_no_reader_accepts_is_not_intact_though_no_hash_covers_it(
    ledger: Ledger, database_url: str
) -> None:
    open_project(ledger, 5)
    with unguarded(database_url) as connection:
        connection.execute(text("UPDATE ensembles SET registered_at = 'yesterday'"))
    found = ledger.verifier.verify_project("study")
    assert not found.ok
    assert found.problems[0].startswith("account: ")


def test_an_instant_of_a_year_that_utc_does_not_have_is_refused_as_damaged(
    ledger: Ledger, database_url: str
) -> None:
    with unguarded(database_url) as connection:
        edit = "UPDATE ensembles SET registered_at = '0001-01-01T00:00:00+23:59'"
        connection.execute(text(edit))
    with pytest.raises(LedgerCorrupted):
        ledger.ensembles.list()


def test_an_account_is_the_same_however_often_what_was_counted_is_added_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge_one(ledger, open_project(ledger, 9).id, [answered(i, i) for i in range(9)])
    monkeypatch.setattr(verifying, "_MAX_KINDS", 2)
    assert ledger.verifier.verify_project("study").problems == []


def test_what_is_no_whole_number_counts_as_none() -> None:
    assert [int_or_zero(value) for value in (7, 0, -7)] == [7, 0, -7]
    assert {int_or_zero(value) for value in (7.0, "7", None, b"7")} == {0}
