"""Charges once they are made: what they record, how they are listed, and what an edit does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, event, text

from support.databases import SECRET_KEY, as_owner
from support.ledgers import (
    CONFIDENT,
    abstained,
    answered,
    charge_one,
    digest,
    open_ledger,
    open_project,
)
from support.wording import refuses
from terrine_protocol import Outcome
from terrine_server.errors import (
    LedgerCorrupted,
    NotFound,
)
from terrine_server.ledger import Ledger, Proposal, connect
from terrine_server.ledger import rows as ledger_rows
from terrine_server.privacy import VoteOutcome


def test_a_charge_records_everything_about_its_query(each_ledger: Ledger) -> None:
    project = open_project(each_ledger, 5, CONFIDENT)
    before = datetime.now(UTC)
    charge_one(each_ledger, project.id, [answered("q", 3, given="x"), abstained("r")])
    first, second = each_ledger.entries.list("study")
    price = project.terms.prices[VoteOutcome.ANSWERED]
    assert (first.project, first.seq, first.outcome, first.label) == ("study", 1, "answered", 3)
    assert (first.cost, first.delta, first.cap_cost) == (price.cost, price.delta, price.cap_cost)
    assert first.mechanism == CONFIDENT
    assert first.event["event"] == "composition"
    assert second.event["event"] == "gaussian_threshold"
    assert (first.query_digest, first.input_digest) == (digest("q").hex(), digest("x").hex())
    assert before <= first.created_at <= datetime.now(UTC)
    assert second.hash == each_ledger.projects.get("study").head != first.hash


def test_charges_are_paged_and_filtered(each_ledger: Ledger) -> None:
    project = open_project(each_ledger, 20, CONFIDENT)
    charge_one(each_ledger, project.id, [answered(i) if i % 2 else abstained(i) for i in range(10)])
    middle = datetime.now(UTC)
    charge_one(each_ledger, project.id, [answered(i) for i in range(10, 13)])

    def seqs(**filters: object) -> list[int]:
        return [charge.seq for charge in each_ledger.entries.list("study", **filters)]  # type: ignore[arg-type]

    assert seqs(limit=4) == [1, 2, 3, 4]
    assert seqs(after_seq=4, limit=4) == [5, 6, 7, 8]
    assert seqs(outcome=Outcome.ABSTAINED) == [1, 3, 5, 7, 9]
    assert seqs(since=middle) == [11, 12, 13]
    assert seqs(until=middle, after_seq=8) == [9, 10]
    assert [c.seq for c in each_ledger.entries.stream("study")] == list(range(1, 14))
    with pytest.raises(NotFound):
        each_ledger.entries.list("nobody")


def test_an_outcome_without_a_price_is_never_released(ledger: Ledger) -> None:
    project = open_project(ledger, queries=3)
    with refuses(ValueError, "price"):
        charge_one(ledger, project.id, [answered(1), abstained(2)])
    assert ledger.projects.get("study").charges == 0


@pytest.mark.parametrize(
    ("outcome", "label"),
    [(VoteOutcome.ANSWERED, None), (VoteOutcome.ABSTAINED, 1), (None, 1)],
)
def test_a_proposal_that_contradicts_itself_cannot_be_made(
    outcome: VoteOutcome | None, label: int | None
) -> None:
    with refuses(ValueError, "label"):
        Proposal(digest(1), digest(1), outcome, label)


def test_a_label_that_is_not_paid_for_is_in_no_error(each_database_url: str) -> None:
    """The database refuses the row and quotes it; the error that reaches anyone does not."""
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, queries=3)
    with connect(as_owner(each_database_url)).begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.execute(
                text(
                    "CREATE TRIGGER broken BEFORE INSERT ON charges "
                    "BEGIN SELECT RAISE(ABORT, 'broken'); END"
                )
            )
        else:
            connection.execute(text("ALTER TABLE charges ADD CHECK (label < 0)"))
    with pytest.raises(LedgerCorrupted) as refusal:
        charge_one(ledger, project.id, [answered(1, label=87654321)])
    assert "87654321" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__
    assert ledger.projects.get("study").charges == 0


def counting(engine: Engine) -> list[str]:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    return statements


def test_what_is_fixed_of_a_project_is_read_once_and_of_so_many_projects_only(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = [open_project(open_ledger(database_url), 2, name="p0")]
    fresh = Ledger(connect(database_url), SECRET_KEY)
    opened += [open_project(fresh, 2, name=f"p{number}") for number in (1, 2)]
    monkeypatch.setattr(ledger_rows, "MAX_CACHED_PROJECTS", 2)
    engine = connect(database_url)
    ledger, statements = Ledger(engine, SECRET_KEY), counting(engine)
    for project in opened:
        assert ledger.projects.get_cached(project.name).genesis == project.genesis
        read = len(statements)
        assert ledger.projects.get_cached(project.name).terms == project.terms
        charge_one(ledger, project.id, [answered(1)])
        assert not any("FROM projects LEFT OUTER JOIN" in text for text in statements[read:])
        assert len(ledger.projects._cache._opened) <= 2
    assert ledger.projects.get_cached("p2").charges == 0, "all else is as it was when it was read"
