"""Public points that are charged as if they were private, by the real queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from books import unguarded
from migrated import SECRET_KEY
from neighbouring import PEOPLE, Opened, many, open_people
from numpy.typing import NDArray
from refusals import holds, refuses
from sqlalchemy import delete, select, update

from terrine_server import views
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.store.tables import shadow_accounts


@pytest.fixture
def opened(each_database_url: str) -> Opened:
    return open_people(each_database_url)


def stored(opened: Opened) -> Any:
    with connect(opened.url).connect() as connection:
        return connection.execute(select(shadow_accounts)).one_or_none()


def used_up(opened: Opened) -> float | None:
    replica = Ledger(connect(opened.url), SECRET_KEY)
    return views.budget(*replica.project_with_shadows("study")).used_up


def expected(opened: Opened, inputs: Sequence[NDArray[np.uint8]]) -> list[int]:
    """Every query costs 1 where a point is near, while that fits."""
    spent = [0] * PEOPLE
    for x in inputs:
        for point, weight in enumerate(x):
            spent[point] += min(int(weight), 1) if spent[point] < opened.allowance else 0
    return spent


def test_they_are_charged_by_the_real_queries_with_them_and_no_oftener(opened: Opened) -> None:
    inputs = many(opened.people, 6)
    assert stored(opened) is None
    assert used_up(opened) == 0
    opened.ask(inputs[:4])
    opened.ask(inputs[2:])
    opened.ask(inputs)  # paid already
    accounts = np.frombuffer(stored(opened).accounts, "<u4")
    assert accounts.tolist() == expected(opened, inputs)
    assert opened.ledger.verify("study").problems == []


def test_what_is_used_up_shows_where_one_student_drains_a_region(opened: Opened) -> None:
    rows = [opened.people.near(0, 1, 2) for _ in range(30)]
    for number, row in enumerate(rows):
        row[11] = number // 16 + 1  # else they were one query
        row[10] = number % 16 + 1
    opened.ask(rows)
    accounts = np.frombuffer(stored(opened).accounts, "<u4")
    assert accounts.tolist() == expected(opened, rows)
    assert (accounts[[0, 1, 2, 10, 11]] == opened.allowance).all()
    assert used_up(opened) == pytest.approx(5 / PEOPLE)


def test_other_projects_have_none(opened: Opened) -> None:
    assert views.budget(opened.project).used_up is None, "it is not read where it is not asked for"


EDITS: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "emptied": lambda row: {"accounts": bytes(len(row.accounts))},
    "shorter": lambda row: {"accounts": row.accounts[:-4]},
    "an earlier count": lambda row: {"charges": row.charges - 1},
    "another head": lambda _: {"head": bytes(32)},
    "another seal": lambda _: {"seal": bytes(32)},
    "lost": lambda _: None,
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_ones_answer_nothing_and_verify_says_so(opened: Opened, edit: str) -> None:
    inputs = many(opened.people, 6)
    opened.ask(inputs[:4])
    values = EDITS[edit](stored(opened))
    with unguarded(opened.url, with_key=False) as connection:
        if values is None:
            connection.execute(delete(shadow_accounts))
        else:
            connection.execute(update(shadow_accounts).values(values))
    with refuses(LedgerCorrupted, "shadow", "study"):
        opened.ask(inputs[4:])
    with refuses(LedgerCorrupted, "shadow", "study"):
        used_up(opened)
    (problem,) = opened.ledger.verify("study").problems
    holds(problem, "shadows", "study")


def test_an_older_row_with_its_own_seal_is_found(opened: Opened) -> None:
    inputs = many(opened.people, 6)
    opened.ask(inputs[:2])
    older = dict(stored(opened)._mapping)
    opened.ask(inputs[2:4])
    with unguarded(opened.url) as connection:
        connection.execute(update(shadow_accounts).values(older))
    with refuses(LedgerCorrupted, "charges"):
        opened.ask(inputs[4:])
    assert opened.ledger.verify("study").problems


def test_after_a_restore_all_is_used_up(opened: Opened) -> None:
    opened.ask(many(opened.people, 4))
    opened.ledger.fill_accounts()
    assert used_up(opened) == 1
    assert opened.ledger.verify("study").problems == []
