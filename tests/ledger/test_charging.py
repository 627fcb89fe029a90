"""Paying: what fits is answered, what was paid is free, and nothing is ever half-written."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event, text

from support.databases import SECRET_KEY, SQLITE_BY_DAY
from support.ledgers import (
    CONFIDENT,
    abstained,
    answered,
    charge_one,
    digest,
    open_ledger,
    open_project,
    open_published,
    publishing_ledger,
    unvoted,
    voted,
)
from support.wording import refuses
from terrine_protocol import Outcome, ProjectStatus
from terrine_server.errors import (
    BudgetExhausted,
    InvalidQuery,
    NotFound,
    ProjectClosed,
    ProjectPaused,
)
from terrine_server.ledger import Ledger, QueryDigest, RecordedCharges, Result, connect
from terrine_server.ledger.charging import REFUSED

POSTGRES = pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)


@pytest.fixture
def ledger(each_database_url: str) -> Ledger:
    return open_ledger(each_database_url)


def fates(results: Sequence[Result]) -> str:
    """One letter a query: Paid, replayed (free), refused (-)."""
    return "".join("-" if r.seq is None else "f" if r.replayed else "P" for r in results)


def test_find_returns_what_was_answered_by_query(ledger: Ledger) -> None:
    project = open_project(ledger, queries=1200)
    charge_one(ledger, project.id, [answered(i, i % 10) for i in range(1100)])
    digests = [QueryDigest(digest(i), digest(i)) for i in range(1200)]
    found = ledger.charging.look_up("study", digests).recorded
    assert len(found.queries) == len(found.answered_inputs) == 1100
    last = Result(Outcome.ANSWERED, 9, seq=1100, replayed=True)
    assert found.find(digest(1099), digest("other")) == found.find(digest("other"), digest(1099))
    assert found.find(digest(1099), digest(1099)) == last
    assert ledger.charging.look_up("study", []).recorded.queries == {}


@SQLITE_BY_DAY
def test_a_project_that_is_not_there_is_named_as_it_was_asked_for(ledger: Ledger) -> None:
    with refuses(NotFound, "nobody"):
        ledger.charging.look_up("nobody", [])
    with refuses(NotFound, 99):
        charge_one(ledger, 99, [answered(1)])


@SQLITE_BY_DAY
def test_projects_do_not_see_each_others_answers(ledger: Ledger) -> None:
    first = open_project(ledger, queries=5, name="first")
    second = open_project(ledger, queries=5, name="second")
    charge_one(ledger, first.id, [answered(1)])
    found = ledger.charging.look_up("second", [QueryDigest(digest(1), digest(1))]).recorded
    assert found == RecordedCharges({}, {})
    assert fates(charge_one(ledger, second.id, [answered(1)]).results) == "P"


@SQLITE_BY_DAY
def test_a_teachers_label_answers_any_later_query_of_the_same_input(ledger: Ledger) -> None:
    """Interactive: the label holds whatever the student believes; an abstention does not."""
    project = open_project(ledger, 9, CONFIDENT)
    charge_one(ledger, project.id, [abstained("x+b1", "x"), abstained("y+b1", "y")])
    charge_one(ledger, project.id, [answered("x+b2", 4, given="x")])
    receipt = charge_one(
        ledger,
        project.id,
        [
            answered("x+b3", 5, given="x"),
            abstained("x+b1", given="x"),
            answered("y+b2", 6, given="y"),
            answered("y+b3", 7, given="y"),
        ],
    )
    assert fates(receipt.results) == "ffPf"
    assert [r.label for r in receipt.results] == [4, None, 6, 6]


def test_a_retry_gets_the_same_answers_and_pays_nothing(ledger: Ledger) -> None:
    project = open_project(ledger, 3, CONFIDENT)
    charge_one(ledger, project.id, [answered(0)])
    batch = [answered(0), abstained(1), answered(2), answered(3)]
    receipt = charge_one(ledger, project.id, batch)
    assert fates(receipt.results) == "fPP-"
    again = charge_one(ledger, project.id, [unvoted(query) for query in range(4)])
    assert fates(again.results) == "fff-"
    assert again == replace(
        receipt,
        results=[replace(r, replayed=True) for r in receipt.results[:3]] + [receipt.results[3]],
    )


@pytest.mark.parametrize("kind", ["plain", "data-dependent"])
def test_what_pays_for_nothing_waits_for_nobody_who_writes(
    kind: str, each_database_url: str
) -> None:
    if kind == "plain":
        ledger = open_ledger(each_database_url)
        project, batch = open_project(ledger, queries=1), [answered(0)]
    else:
        ledger = publishing_ledger(each_database_url)
        project = open_published(ledger)
        batch = voted(project, [0])
    paid = charge_one(ledger, project.id, batch).results
    with connect(each_database_url).connect() as other:
        other.execute(text("UPDATE projects SET seal = seal"))
        again = charge_one(ledger, project.id, [*batch, unvoted(1)])
        assert again.results == [replace(paid[0], replayed=True), REFUSED]
        with pytest.raises(BudgetExhausted):
            charge_one(ledger, project.id, [unvoted(1)])
        other.rollback()
    assert ledger.projects.get("study").charges == 1


@SQLITE_BY_DAY
def test_an_empty_batch_is_no_request(ledger: Ledger) -> None:
    project = open_project(ledger, queries=3)
    with pytest.raises(InvalidQuery):
        charge_one(ledger, project.id, [])


@SQLITE_BY_DAY
@pytest.mark.parametrize(
    ("status", "refusal"),
    [(ProjectStatus.PAUSED, ProjectPaused), (ProjectStatus.CLOSED, ProjectClosed)],
)
def test_a_project_that_is_not_active_answers_nothing(
    ledger: Ledger, status: ProjectStatus, refusal: type[Exception]
) -> None:
    project = open_project(ledger, queries=3)
    charge_one(ledger, project.id, [answered(0)])
    ledger.projects.set_status("study", status)
    for batch in ([answered(1)], [answered(0)]):
        with pytest.raises(refusal):
            charge_one(ledger, project.id, batch)
    assert ledger.projects.get("study").charges == 1


@pytest.mark.parametrize("queries", [1, 64])
def test_the_thousandth_charge_is_as_quick_as_the_tenth(queries: int, tmp_path: Path) -> None:
    """Balances stand on the project's row: no sum, and no scan, over what was charged before."""
    engine = connect(f"sqlite:///{tmp_path / 'terrine.sqlite'}")
    ledger = open_ledger(str(engine.url))
    project = open_project(ledger, 2300, {"name": "gnmax", "sigma": 100.0})
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    @event.listens_for(engine, "connect")
    def instrument(connection: sqlite3.Connection, _: object) -> None:
        connection.set_progress_handler(count, 10)

    def work(name: str) -> int:
        """Virtual machine instructions of looking a batch up and charging it, in tens."""
        before = steps
        batch = [answered(f"{name} {i}") for i in range(queries)]
        asked = [QueryDigest(p.query_digest, p.input_digest) for p in batch]
        Ledger(engine, SECRET_KEY).charging.look_up("study", asked)
        charge_one(Ledger(engine, SECRET_KEY), project.id, batch)
        charge_one(Ledger(engine, SECRET_KEY), project.id, batch)
        return steps - before

    work("warm up")
    early = work("early")
    charge_one(ledger, project.id, [answered(i) for i in range(2000)])
    assert work("late") <= 1.2 * early


@POSTGRES
@pytest.mark.parametrize("queries", [pytest.param(1, marks=pytest.mark.nightly), 64])
@pytest.mark.parametrize("statistics", [False, True])
def test_a_plan_that_postgresql_keeps_from_when_little_was_charged_reads_no_more_later(
    statistics: bool, queries: int, each_database_url: str
) -> None:
    engine = connect(each_database_url)
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, 4200, {"name": "gnmax", "sigma": 100.0})
    kept = Ledger(engine, SECRET_KEY)

    def scalar(query: str, **given: str) -> int:
        with engine.begin() as connection:  # not rolled back: that discards plans
            return int(connection.execute(text(query), given).scalar_one())

    def read(table: str) -> int:
        """Rows and entries of indexes that were read of a table so far."""
        scalar("SELECT count(pg_stat_force_next_flush())")
        rows = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = :table"
        entries = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE relname = :table"
        return scalar(f"SELECT sum(n) FROM ({rows} UNION ALL {entries}) AS _ (n)", table=table)

    def work(name: str) -> dict[str, int]:
        """Rows read of each table to look ten batches up, charge them, and answer retries."""
        before = {table: read(table) for table in ("charges", "projects")}
        for number in range(10):
            batch = [answered(f"{name} {number} {i}") for i in range(queries)]
            asked = [QueryDigest(p.query_digest, p.input_digest) for p in batch]
            for _ in range(2):
                found = kept.charging.look_up("study", asked)
                kept.charging.charge(project.id, [batch], found)
        return {table: read(table) - count for table, count in before.items()}

    if statistics:  # to read all of so few rows is quickest then
        charge_one(ledger, project.id, [answered("first")])
        with engine.begin() as connection:
            connection.execute(text("ANALYZE"))
    work("plans are made")
    assert scalar("SELECT sum(generic_plans) FROM pg_prepared_statements"), "they are kept"
    early = work("early")
    charge_one(ledger, project.id, [answered(i) for i in range(2000)])
    late = work("late")
    assert early["charges"] > 10 * queries
    assert all(late[table] <= 1.2 * count for table, count in early.items()), (early, late)
