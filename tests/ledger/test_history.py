"""How a budget was spent, as the pages draw it: it follows from the entries alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.pool import Pool

from support.databases import SECRET_KEY
from support.ledgers import (
    CONFIDENT,
    abstained,
    answered,
    charge_one,
    open_ledger,
    open_project,
    open_published,
    published_terms,
    publishing_ledger,
    unguarded,
    voted,
)
from terrine_protocol import Outcome
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger import Ledger, connect, history


def test_a_history_follows_from_its_entries_and_from_nothing_else(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, 300, CONFIDENT)
    assert ledger.entries.history("study").reached == ()
    entries = [abstained(k) if k % 3 else answered(k) for k in range(130)]
    for start in range(0, 130, 26):
        charge_one(ledger, project.id, entries[start : start + 26])
    shown, charged = ledger.entries.history("study"), ledger.entries.list("study", limit=1000)
    spent = {0: 0}
    for entry in charged:
        spent[entry.seq] = spent[entry.seq - 1] + entry.cost
    assert [(r.spent, r.at) for r in shown.reached] == [
        (spent[r.seq], charged[r.seq - 1].created_at) for r in shown.reached
    ]
    assert shown.reached[-1].seq == 130
    found = {(entry.created_at.date(), entry.outcome) for entry in charged}
    assert sum(shown.days[day][outcome] for day, outcome in found) == 130
    with unguarded(database_url) as connection:
        connection.execute(text("UPDATE charges SET cost = cost - 1 WHERE seq = 1"))
    with pytest.raises(LedgerCorrupted):
        open_again(database_url).entries.history("study")


def test_a_history_has_few_points_and_ends_at_the_account(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_POINTS", 4)
    ledger = open_ledger(database_url)
    project = open_project(ledger, 300, CONFIDENT)
    done = 0
    for more in (1, 2, 13, 1, 50, 64, 70, 3):
        entries = range(done, done + more)
        charge_one(ledger, project.id, [abstained(k) if k % 3 else answered(k) for k in entries])
        done += more
        shown = ledger.entries.history("study")
        assert shown.reached[-1].seq == done
        assert len(shown.reached) <= 4
        assert open_again(database_url).entries.history("study") == shown, (
            "as if all were summed now"
        )
    assert len(shown.reached) > 2


def test_a_second_view_of_a_history_reads_only_what_came_since(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    ledger = open_ledger(url, epsilon=100.0)
    project = open_project(ledger, 1100, CONFIDENT)
    charge_one(ledger, project.id, [answered(k) for k in range(1000)])
    with counted_instructions() as counted:
        first, at_first = ledger.entries.history("study"), counted()
        assert ledger.entries.history("study") == first
        again = counted()
        charge_one(ledger, project.id, [answered(k) for k in range(1000, 1010)])
        counted()
        assert ledger.entries.history("study").outcomes == {Outcome.ANSWERED: 1010}
        after_ten = counted()
        open_again(url).entries.history("study")
        elsewhere = counted()
    assert again < at_first / 20
    assert after_ten < at_first / 10
    assert elsewhere > at_first / 2, "another process sums for itself"


def test_what_is_remembered_is_of_the_ledger_that_is_there(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, 300, CONFIDENT)
    for start in (0, 10):
        charge_one(ledger, project.id, [answered(k) for k in range(start, start + 10)])
        if start == 0:
            assert ledger.entries.history("study").outcomes == {Outcome.ANSWERED: 10}
    with unguarded(database_url) as connection:
        other = "UPDATE charges SET cost = cost - 1, hash = :hash WHERE seq = 10"
        connection.execute(text(other), {"hash": bytes(32)})
    with pytest.raises(LedgerCorrupted):
        ledger.entries.history("study")


@contextmanager
def counted_instructions() -> Iterator[Callable[[], int]]:
    """Count what SQLite executes, in hundreds of instructions; each call begins anew."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    def taken(connection: Any, *_: object) -> None:
        connection.set_progress_handler(step, 100)

    def counted() -> int:
        nonlocal count
        found, count = count, 0
        return found

    event.listen(Pool, "checkout", taken)
    try:
        yield counted
    finally:
        event.remove(Pool, "checkout", taken)


def open_again(url: str) -> Ledger:
    """The ledger as another process has it, which remembers nothing."""
    return Ledger(connect(url), SECRET_KEY)


def test_filters_find_what_reading_everything_finds(
    each_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, 300, CONFIDENT)
    for start in range(0, 200, 4):
        # Servers whose clocks differ by half a minute take turns.
        at = now + timedelta(minutes=start, seconds=30 * (start % 8 == 0) * (start + 1))
        monkeypatch.setattr("terrine_server.ledger.database.now", lambda at=at: at)
        rare = range(start, start + 4)
        kinds = [answered(k) if k in (7, 90, 91, 180) else abstained(k) for k in rare]
        charge_one(ledger, project.id, kinds)
    everything = ledger.entries.list("study", limit=1000)
    assert [e.created_at for e in everything] != sorted(e.created_at for e in everything)
    outcomes: list[Outcome | None] = [None, *Outcome]
    days = [None, *(now + timedelta(minutes=m) for m in (-5, 0, 43, 90, 91, 1000))]
    asked = [*product(outcomes, days, days, (2, 1000), (0, 80), (None, 150), (False, True))]
    for outcome, since, until, limit, after, before, newest in Random(1).sample(asked, 150):
        expected = [
            e.seq
            for e in everything
            if (outcome in (None, e.outcome) and e.seq > after and e.seq < (before or 1000))
            and (since is None or e.created_at >= since)
            and (until is None or e.created_at < until)
        ]
        found = ledger.entries.list(
            "study", after, limit, outcome, since, until, before_seq=before, newest=newest
        )
        assert [e.seq for e in found] == (expected[::-1] if newest else expected)[:limit]


@pytest.mark.slow
def test_a_published_figure_replaces_what_its_queries_had_cost(database_url: str) -> None:
    terms, ledger = published_terms(), publishing_ledger(database_url)
    project = open_published(ledger)
    assert terms.schedule is not None
    first, each = terms.schedule.counts[0], terms.worst.cost
    charge_one(ledger, project.id, voted(project, range(first - 5)))
    assert ledger.entries.history("study").reached[-1].seq == first - 5
    charge_one(ledger, project.id, voted(project, range(first - 5, first)))
    charge_one(ledger, project.id, voted(project, range(first, first + 40)))
    now, found = ledger.projects.get("study"), ledger.entries.history("study")
    (published,) = now.published
    spent = {reached.seq: reached.spent for reached in found.reached}
    assert published.seq == first + 1
    assert spent[first] == first * each, "there is a point before each publication"
    figure = published.figure + terms.schedule.price.cost
    assert spent[now.charges] == figure + 40 * each == now.spent
    assert sum(day.get(Outcome.PUBLISHED, 0) for day in found.days.values()) == 1
    assert open_again(database_url).entries.history("study") == found
