"""Charges once they are made: what they record, how they are listed, and what an edit does."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from books import (
    CONFIDENT,
    abstained,
    answered,
    digest,
    open_ledger,
    open_project,
    unguarded,
)
from migrated import SECRET_KEY
from sqlalchemy import select, text, update

from terrine_protocol import Outcome
from terrine_server.errors import (
    LedgerCorrupted,
    NotFound,
)
from terrine_server.ledger import Ledger, Proposal, connect
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.store import searches
from terrine_server.ledger.store.tables import charges, projects
from terrine_server.privacy import VoteOutcome


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return open_ledger(database_url)


def test_a_charge_records_everything_about_its_query(ledger: Ledger) -> None:
    project = open_project(ledger, 5, CONFIDENT)
    before = datetime.now(UTC)
    ledger.charge(project.id, [answered("q", 3, given="x"), abstained("r")])
    first, second = ledger.charges("study")
    price = project.terms.prices[VoteOutcome.ANSWERED]
    assert (first.project, first.seq, first.outcome, first.label) == ("study", 1, "answered", 3)
    assert (first.cost, first.delta, first.cap_cost) == (price.cost, price.delta, price.cap_cost)
    assert first.mechanism == CONFIDENT
    assert first.event["event"] == "composition"
    assert second.event["event"] == "gaussian_threshold"
    assert (first.query_digest, first.input_digest) == (digest("q").hex(), digest("x").hex())
    assert before <= first.created_at <= datetime.now(UTC)
    assert second.hash == ledger.project("study").head != first.hash


def test_charges_are_paged_and_filtered(ledger: Ledger) -> None:
    project = open_project(ledger, 20, CONFIDENT)
    ledger.charge(project.id, [answered(i) if i % 2 else abstained(i) for i in range(10)])
    middle = datetime.now(UTC)
    ledger.charge(project.id, [answered(i) for i in range(10, 13)])

    def seqs(**filters: object) -> list[int]:
        return [charge.seq for charge in ledger.charges("study", **filters)]  # type: ignore[arg-type]

    assert seqs(limit=4) == [1, 2, 3, 4]
    assert seqs(after_seq=4, limit=4) == [5, 6, 7, 8]
    assert seqs(outcome=Outcome.ABSTAINED) == [1, 3, 5, 7, 9]
    assert seqs(since=middle) == [11, 12, 13]
    assert seqs(until=middle, after_seq=8) == [9, 10]
    assert [c.seq for c in ledger.stream_charges("study")] == list(range(1, 14))
    with pytest.raises(NotFound):
        ledger.charges("nobody")


def test_unknown_projects_are_not_found(ledger: Ledger) -> None:
    with pytest.raises(NotFound):
        ledger.charge(99, [answered(1)])


def test_an_outcome_without_a_price_is_never_released(ledger: Ledger) -> None:
    project = open_project(ledger, queries=3)
    with pytest.raises(ValueError, match="price list"):
        ledger.charge(project.id, [answered(1), abstained(2)])
    assert ledger.project("study").charges == 0


@pytest.mark.parametrize(
    ("outcome", "label"),
    [(VoteOutcome.ANSWERED, None), (VoteOutcome.ABSTAINED, 1), (None, 1)],
)
def test_a_proposal_that_contradicts_itself_cannot_be_made(
    outcome: VoteOutcome | None, label: int | None
) -> None:
    with pytest.raises(ValueError, match="label"):
        Proposal(digest(1), digest(1), outcome, label)


def test_a_label_that_is_not_paid_for_is_in_no_error(database_url: str) -> None:
    """The database refuses the row and quotes it; the error that reaches anyone does not."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=3)
    with connect(database_url).begin() as connection:
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
        ledger.charge(project.id, [answered(1, label=87654321)])
    assert "87654321" not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__
    assert ledger.project("study").charges == 0


def test_a_balance_that_lost_its_last_charge_answers_nothing(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=5)
    ledger.charge(project.id, [answered(i) for i in range(3)])
    with connect(database_url).begin() as connection:
        for statement in (
            ["DROP TRIGGER charges_no_delete"]
            if connection.dialect.name == "sqlite"
            else ["ALTER TABLE charges DISABLE TRIGGER ALL"]
        ):
            connection.execute(text(statement))
        connection.execute(charges.delete().where(charges.c.seq == 3))
        assert len(connection.execute(select(charges)).all()) == 2
    with pytest.raises(LedgerCorrupted, match="terrine ledger verify study"):
        ledger.charge(project.id, [answered("new")])


def test_beside_an_entry_that_no_balance_counts_nothing_is_answered(database_url: str) -> None:
    """Not even that entry's own query, which would be an answer that nobody paid for."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=5)
    ledger.charge(project.id, [answered(i) for i in range(3)])
    with unguarded(database_url) as connection:
        last = connection.execute(select(charges).where(charges.c.seq == 3)).one()._mapping
        unpaid = {"seq": 9, "query_digest": digest("unpaid"), "input_digest": digest("unpaid")}
        connection.execute(charges.insert().values({**last, **unpaid}))
    for query in ("unpaid", 1, "new"):
        with pytest.raises(LedgerCorrupted, match="terrine ledger verify study"):
            ledger.charge(project.id, [answered(query)])


def test_terms_altered_under_a_running_server_make_nothing_cheaper(database_url: str) -> None:
    """They are remembered as they were opened; the books that no longer agree are found."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=5)
    ledger.charge(project.id, [answered(1)])
    with unguarded(database_url) as connection:
        kept = connection.execute(select(projects.c.terms)).scalar_one()
        terms = json.loads(kept)
        terms["prices"]["answered"]["cost"] = 1
        connection.execute(update(projects).values(terms=canonical_json(terms)))
    price = project.terms.prices[VoteOutcome.ANSWERED].cost
    assert ledger.charge(project.id, [answered(2)]).project.spent == 2 * price
    with connect(database_url).begin() as connection:
        costs = connection.execute(select(charges.c.cost).order_by(charges.c.seq)).scalars().all()
    assert costs == [price, price]
    assert ledger.verify("study").problems
    # Whoever reads the terms now refuses them: other servers, and this one once it forgets them.
    with pytest.raises(LedgerCorrupted, match="The account of project 'study' was altered"):
        Ledger(connect(database_url), SECRET_KEY).charge(project.id, [answered(3)])
    with pytest.raises(LedgerCorrupted):
        ledger.project("study")


def test_what_is_read_again_for_a_charge_is_all_that_may_change() -> None:
    """All else is remembered under the genesis, which covers it."""
    assert set(searches.ACCOUNT) - {"id", "name", "genesis"} == {
        "status",
        "closed_at",
        "spent",
        "delta_spent",
        "cap_spent",
        "charges",
        "published",
        "head",
        "seal",
    }
