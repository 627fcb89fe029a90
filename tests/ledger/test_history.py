"""How a budget was spent, as the pages draw it: it follows from the entries alone."""

from __future__ import annotations

import pytest
from books import CONFIDENT, abstained, answered, open_ledger, open_project, unguarded
from publishing import open_published, published_terms, publishing_ledger, voted
from sqlalchemy import text

from terrine_protocol import Outcome
from terrine_server.errors import BrokenBooks
from terrine_server.planning.remaining import most_queries


def test_a_history_follows_from_its_entries_and_from_nothing_else(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, 300, CONFIDENT)
    assert ledger.history("study").reached == ()
    entries = [abstained(k) if k % 3 else answered(k) for k in range(130)]
    for start in range(0, 130, 26):
        ledger.charge(project.id, entries[start : start + 26])
    history, charged = ledger.history("study"), ledger.charges("study", limit=1000)
    spent = {0: 0}
    for entry in charged:
        spent[entry.seq] = spent[entry.seq - 1] + entry.cost
    assert [(r.spent, r.at) for r in history.reached] == [
        (spent[r.seq], charged[r.seq - 1].created_at) for r in history.reached
    ]
    assert history.reached[-1].seq == 130
    found = {(entry.created_at.date(), entry.outcome) for entry in charged}
    assert sum(history.days[day][outcome] for day, outcome in found) == 130
    with unguarded(database_url) as connection:
        connection.execute(text("UPDATE charges SET cost = cost - 1 WHERE seq = 1"))
    with pytest.raises(BrokenBooks, match="do not add up"):
        ledger.history("study")


@pytest.mark.slow
def test_a_published_figure_replaces_what_its_queries_had_cost(database_url: str) -> None:
    terms, ledger = published_terms(), publishing_ledger(database_url)
    project = open_published(ledger)
    assert terms.schedule is not None
    first, each = terms.schedule.counts[0], terms.worst.cost
    ledger.charge(project.id, voted(project, range(first)))
    ledger.charge(project.id, voted(project, range(first, first + 40)))
    now, history = ledger.project("study"), ledger.history("study")
    (published,) = now.published
    spent = {reached.seq: reached.spent for reached in history.reached}
    assert published.seq == first + 1
    assert spent[first] == first * each, "there is a point before each publication"
    figure = published.figure + terms.schedule.price.cost
    assert spent[now.charges] == figure + 40 * each == now.spent
    assert sum(day.get(Outcome.PUBLISHED, 0) for day in history.days.values()) == 1
    assert most_queries(terms, now.account) is not None, "its δ limits it"
