"""Edits of the database by hand, as the ledger meets them: refused when read, and found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from books import (
    EPOCHS,
    GNMAX,
    abstained,
    answered,
    open_ledger,
    open_project,
    register,
    terms,
)
from edits import Hand, edited_json, other_values
from migrated import SECRET_KEY
from publishing import open_published, published_terms, publishing_ledger, voted
from sqlalchemy import Engine, event, text

from terrine_protocol import ProjectStatus
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger import Ledger, NewProject, ProjectRecord, connect
from terrine_server.ledger.store import rows as ledger_rows
from terrine_server.ledger.store.tables import metadata


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return open_ledger(database_url)


def hand(url: str) -> Hand:
    return Hand(connect(url), url, with_key=True)


@pytest.fixture
def fresh(database_url: str) -> Iterator[Callable[[], Ledger]]:
    """Makes a ledger as another server has it, which has read nothing yet."""
    engine = connect(database_url)
    yield lambda: Ledger(engine, SECRET_KEY)
    engine.dispose()


# -------------------------------------------------------------- accounts of data-dependent projects


@pytest.fixture
def published(database_url: str) -> ProjectRecord:
    """Five queries after its first publication."""
    ledger = publishing_ledger(database_url)
    project = open_published(ledger)
    schedule = published_terms().schedule
    assert schedule is not None
    project = ledger.charge(project.id, voted(project, range(schedule.counts[0] + 5))).project
    assert len(project.published) == 1
    return project


def balance(url: str) -> list[Any]:
    with connect(url).connect() as connection:
        query = text("SELECT charges, spent, delta_spent, cap_spent, head FROM projects")
        return list(connection.execute(query).one())


def test_what_was_published_cannot_be_edited(
    published: ProjectRecord, database_url: str, fresh: Callable[[], Ledger]
) -> None:
    edits, before = hand(database_url), balance(database_url)
    columns = ("published", "spent", "delta_spent", "cap_spent", "charges")
    original = json.loads(edits.value("projects", 0, "published"))
    seq, figure = original[0]
    garbled = [*edited_json(original), f"[[{seq},{figure - 1}]]", f"[[{seq - 1},{figure}]]"]
    garbled += [f"[[{seq},{figure}],[{seq},{figure}]]", f"[[{seq},{figure}],[{seq + 2},1]]"]
    cases = [("published", value) for value in garbled]
    for column in columns:
        cases += [(column, v) for v in other_values(column, edits.value("projects", 0, column))]
    for column, value in cases:
        with edits.set("projects", 0, column, value) as done:
            if not done:
                continue
            edited = balance(database_url)
            with pytest.raises(LedgerCorrupted):
                fresh().project("study")
            with pytest.raises(LedgerCorrupted):
                fresh().secret_spend("study")
            with pytest.raises(LedgerCorrupted):
                fresh().charge(published.id, voted(published, ["new"]))
            assert balance(database_url) == edited
            assert not fresh().verify("study").ok
    assert balance(database_url) == before
    assert fresh().verify("study").ok


def test_an_edited_tally_is_refused_or_counts_on(
    published: ProjectRecord, database_url: str, fresh: Callable[[], Ledger]
) -> None:
    edits = hand(database_url)
    for column in ("charges", "tally"):
        original = edits.value("secret_spends", 0, column)
        for value in other_values(column, original):
            same_size = isinstance(value, bytes) and len(value) == len(original)
            with edits.set("secret_spends", 0, column, value) as done:
                if not done or same_size:  # only verification counts what it holds
                    assert not done or not fresh().verify("study").ok
                    continue
                before = balance(database_url)
                with pytest.raises(LedgerCorrupted):
                    fresh().charge(published.id, voted(published, ["new"]))
                with pytest.raises(LedgerCorrupted):
                    fresh().secret_spend("study")
                assert balance(database_url) == before
                assert not fresh().verify("study").ok


def test_an_epoch_that_was_opened_cannot_be_unpaid(
    ledger: Ledger, database_url: str, fresh: Callable[[], Ledger]
) -> None:
    """Four answers are of two epochs at least, as an epoch has three."""
    project = open_project(ledger, 5, EPOCHS)
    opening = project.terms.opening
    assert opening is not None
    queries = [answered(query, epoch=query // 3) for query in range(4)]
    after = ledger.charge(project.id, queries).project
    edits = hand(database_url)
    for column, price in [("spent", opening.cost), ("cap_spent", opening.cap_cost)]:
        assert getattr(after, column) == 2 * price
        for value in (0, price, 2 * price - 1, 4 * price + 1):
            with edits.set("projects", 0, column, value) as done:
                assert done
                with pytest.raises(LedgerCorrupted):
                    fresh().charge(project.id, [answered("new", epoch=0)])
                assert not ledger.verify("study").ok
    assert ledger.verify("study").ok


# ------------------------------------------------------------------------- opening and closing


def opens(ledger: Ledger) -> object:
    return ledger.open_project(NewProject("second", "mnist", GNMAX, terms(3)))


def closes(ledger: Ledger) -> object:
    return ledger.set_status("study", ProjectStatus.CLOSED)


@pytest.mark.parametrize("act", [opens, closes])
def test_an_edited_cap_reserves_and_returns_nothing(
    ledger: Ledger, database_url: str, act: Callable[[Ledger], object], fresh: Callable[[], Ledger]
) -> None:
    register(ledger, "elsewhere")
    ledger.charge(open_project(ledger, 3).id, [answered(1), answered(2)])
    edits = hand(database_url)
    columns = [column.name for column in metadata.tables["ensembles"].c]
    for column in set(columns) - {"id", "name", "path", "registered_at", "seal"}:
        original = edits.value("ensembles", 0, column)
        nearby = [
            value for value in other_values(column, original) if type(value) is type(original)
        ]
        for value in nearby:
            with edits.set("ensembles", 0, column, value) as done:
                if not done or value == original:
                    continue
                with pytest.raises(LedgerCorrupted):
                    act(fresh())
                assert not ledger.verify("study").ok, column
    assert ledger.project_names() == ["study"]
    act(fresh())
    assert ledger.verify("study").ok


def test_a_project_whose_ensemble_is_gone_is_not_passed_over(
    ledger: Ledger, database_url: str
) -> None:
    open_project(ledger, 3)
    edits = hand(database_url)
    with edits.edited("UPDATE projects SET ensemble_id = 99") as done:
        assert done
        with pytest.raises(LedgerCorrupted):
            ledger.projects()
        with pytest.raises(LedgerCorrupted):
            ledger.project("study")
        assert not ledger.verify("study").ok


# ---------------------------------------------------------------------------- what is remembered


def counting(engine: Engine) -> list[str]:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    return statements


def test_what_is_fixed_of_a_project_is_read_once_and_of_so_many_projects_only(
    database_url: str, monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], Ledger]
) -> None:
    opened = [open_project(open_ledger(database_url), 2, name="p0")]
    opened += [open_project(fresh(), 2, name=f"p{number}") for number in (1, 2)]
    monkeypatch.setattr(ledger_rows, "MOST_REMEMBERED", 2)
    engine = connect(database_url)
    ledger, statements = Ledger(engine, SECRET_KEY), counting(engine)
    for project in opened:
        assert ledger.remembered(project.name).genesis == project.genesis
        read = len(statements)
        assert ledger.remembered(project.name).terms == project.terms
        ledger.charge(project.id, [answered(1), abstained(2)][:1])
        assert not any("FROM projects LEFT OUTER JOIN" in text for text in statements[read:])
        assert len(ledger._accounts._remembered) <= 2
    assert ledger.remembered("p2").charges == 0, "all else is as it was when it was read"
