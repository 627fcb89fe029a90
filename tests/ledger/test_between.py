"""A charge is made of what was looked up before, or, if something came between, of what is so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, make_url, text

from support.databases import SECRET_KEY, as_owner
from support.ledgers import answered, charge_one, open_ledger, open_project
from support.workers import come_between, come_first
from terrine_protocol import ProjectStatus
from terrine_server.errors import (
    BudgetExhausted,
    DatabaseUnavailable,
    LedgerCorrupted,
    ProjectClosed,
    ProjectPaused,
    ServiceError,
)
from terrine_server.ledger import (
    Ledger,
    ProjectSnapshot,
    Proposal,
    QueryDigest,
    connect,
)


class Two:
    """Two servers on one database, where a project affords three queries and one is paid."""

    def __init__(self, url: str) -> None:
        self.url, self.project = url, open_project(open_ledger(url), queries=3).id
        self.engine = connect(url)
        self.ours, self.theirs = Ledger(self.engine, SECRET_KEY), Ledger(connect(url), SECRET_KEY)
        charge_one(self.theirs, self.project, [answered(0)])

    def look(self, proposals: Sequence[Proposal]) -> ProjectSnapshot:
        digests = [QueryDigest(p.query_digest, p.input_digest) for p in proposals]
        return self.ours.charging.look_up("study", digests)

    def pay(
        self,
        proposals: Sequence[Proposal],
        record: ProjectSnapshot | None = None,
    ) -> list[tuple[int | None, bool]] | ServiceError:
        """Number of each charge, and whether it was made before."""
        [fate] = self.ours.charging.charge(self.project, [proposals], record)
        if isinstance(fate, ServiceError):
            return fate
        return [(result.seq, result.replayed) for result in fate.results]


@pytest.fixture
def two(each_database_url: str) -> Two:
    return Two(each_database_url)


def test_what_nothing_came_between_is_not_looked_up_again(two: Two) -> None:
    batch = [answered(1), answered(0)]
    record = two.look(batch)
    statements: list[str] = []
    event.listen(two.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert two.pay(batch, record) == [(2, False), (1, True)]
    assert not [statement for statement in statements if statement.startswith("SELECT")]
    assert len(statements) == (1 if two.engine.dialect.name == "postgresql" else 2)
    statements.clear()
    assert two.pay([answered(1)], two.look([answered(1)])) == [(2, True)]
    assert not [text for text in statements if not text.startswith("SELECT")]


# When another server acts: after the look, or just before what follows from it is written.
WHEN: dict[str, Callable[[Two, Callable[[], object]], object]] = {
    "after looking": lambda two, act: act(),
    "before writing": lambda two, act: come_between(two.engine, act),
}


def test_what_this_server_charged_since_is_looked_up_before_anything_is_tried(two: Two) -> None:
    record = two.look([answered(1)])
    charge_one(two.ours, two.project, [answered(1)])
    assert two.pay([answered(1)], record) == [(2, True)]


# What another server does, and the result of a request for query 1: label 3 if it is paid.
FIRST: dict[str, tuple[Callable[[Two], object], list[object]]] = {
    "another query": (
        lambda two: charge_one(two.theirs, two.project, [answered(2)]),
        [(3, 3, False)],
    ),
    "the same query": (
        lambda two: charge_one(two.theirs, two.project, [answered(1, label=7)]),
        [(2, 7, True)],
    ),
    "all of the budget": (
        lambda two: charge_one(two.theirs, two.project, [answered(2), answered(4)]),
        [BudgetExhausted],
    ),
    "pause": (
        lambda two: two.theirs.projects.set_status("study", ProjectStatus.PAUSED),
        [ProjectPaused],
    ),
    "close": (
        lambda two: two.theirs.projects.set_status("study", ProjectStatus.CLOSED),
        [ProjectClosed],
    ),
}


def results_of(two: Two, record: ProjectSnapshot) -> list[object]:
    """Of query 1, which was looked up before."""
    try:
        [fate] = two.ours.charging.charge(two.project, [[answered(1)]], record)
    except ServiceError as error:
        return [type(error)]
    if isinstance(fate, ServiceError):
        return [type(fate)]
    return [(result.seq, result.label, result.replayed) for result in fate.results]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("first", FIRST)
def test_a_charge_goes_by_what_another_server_did_between(two: Two, first: str, when: str) -> None:
    act, expected = FIRST[first]
    record = two.look([answered(1)])
    WHEN[when](two, lambda: act(two))
    assert results_of(two, record) == expected
    assert two.ours.verifier.verify_project("study").ok


@pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("first", FIRST)
def test_a_charge_that_waited_for_another_server_goes_by_what_that_has_written(
    two: Two, first: str
) -> None:
    """Its statement began before the other's was committed, and does not see it by itself."""
    act, expected = FIRST[first]
    record, results = two.look([answered(1)]), list[object]()
    ask = lambda: results.extend(results_of(two, record))  # noqa: E731
    come_first(connect(as_owner(two.url)), lambda: act(two), ask)
    assert results == expected
    assert two.ours.verifier.verify_project("study").ok


@pytest.mark.parametrize("each_database_url", ["sqlite"], indirect=True)
def test_what_a_commit_refuses_is_not_answered(two: Two) -> None:
    """SQLite can be set to check references only then."""
    record, tries = two.look([answered(1)]), list[int]()

    @event.listens_for(two.engine, "commit")
    def refer_to_nothing(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        connection.exec_driver_sql(
            "INSERT INTO secret_spends (project_id, charges, tally, seal) "
            "VALUES (99, 0, x'', zeroblob(32))"
        )
        tries.append(1)

    with pytest.raises(LedgerCorrupted):
        two.pay([answered(1)], record)
    assert len(tries) == 2
    assert two.theirs.projects.get("study").charges == 1


@pytest.mark.parametrize("when", WHEN)
def test_what_was_asked_of_one_ledger_is_not_paid_from_another(
    two: Two, each_database_url: str, tmp_path: Path, when: str
) -> None:
    """A project of the same name and number, but other terms, was put in its place."""
    record = two.look([answered(1)])
    WHEN[when](two, lambda: exchange(each_database_url, tmp_path))
    with pytest.raises(DatabaseUnavailable):
        two.pay([answered(1)], record)
    assert two.ours.projects.get("study").charges == 0
    assert two.pay([answered(1)]) == [(1, False)]


def exchange(url: str, directory: Path) -> None:
    """Restore another ledger's backup in place of this one."""
    if url.startswith("sqlite"):
        other = directory / "other.sqlite"
        open_project(open_ledger(f"sqlite:///{other}"), queries=5)
        with (
            closing(sqlite3.connect(other)) as backup,
            closing(sqlite3.connect(make_url(url).database or "")) as ours,
        ):
            backup.backup(ours)
        return
    engine = connect(as_owner(url))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        connection.execute(text("GRANT USAGE ON SCHEMA public TO PUBLIC"))
    engine.dispose()
    open_project(open_ledger(url), queries=5)
