"""A project that pays by the epoch: each is paid with its first entry, and `verify` sees to it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from books import (
    EPOCHS,
    STABLE,
    abstained,
    answered,
    open_project,
    terms,
    unguarded,
    unvoted,
)
from forging import kind
from migrated import SECRET_KEY
from refusals import holds
from sqlalchemy import Connection, select, update

from terrine_server.errors import BudgetExhausted, ConcurrentUpdate, InvalidTerms
from terrine_server.ledger import Ledger, NewProject, ProjectRecord
from terrine_server.ledger.chain import canonical_json, charge_hash
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.tables import charges, projects
from terrine_server.ledger.verifying.walk import verify_project
from terrine_server.privacy import (
    Composition,
    SparseVectorEpoch,
    WithinEpoch,
    build_mechanism,
    event_from_json,
)

OPENERS = [1, 4, 6, 7, 8]
"""Entries of `study`, below, that open an epoch: after three answers, after an abstention, and as
the first of a request."""


@pytest.fixture
def study(ledger: Ledger) -> ProjectRecord:
    project = open_project(ledger, 5, EPOCHS)
    first = [answered(k, epoch=0) for k in range(3)]
    first += [answered(3, epoch=1), abstained(4, epoch=1), answered(5, epoch=2)]
    ledger.charge(project.id, first)
    ledger.charge(project.id, [unvoted(0), abstained(6, epoch=0)])
    return ledger.charge(project.id, [answered(7, epoch=0), answered(8, epoch=0)]).project


def test_the_first_entry_of_an_epoch_records_and_pays_its_opening(
    ledger: Ledger, study: ProjectRecord
) -> None:
    opening = build_mechanism(EPOCHS, teachers=250, classes=10).opening
    assert isinstance(opening, SparseVectorEpoch)
    price = study.terms.opening
    assert price is not None
    for entry in ledger.charges("study"):
        opens = entry.seq in OPENERS
        within = WithinEpoch()
        expected = Composition((opening, within)) if opens else within
        assert event_from_json(entry.event) == expected
        assert (entry.cost, entry.cap_cost) == ((price.cost, price.cap_cost) if opens else (0, 0))
        assert entry.delta == 1 + (price.delta if opens else 0)
    assert study.spent == len(OPENERS) * price.cost == study.terms.budget
    assert ledger.verify("study").ok


def test_requests_at_once_open_an_epoch_each(each_ledger: Ledger) -> None:
    project = open_project(each_ledger, 5, EPOCHS)
    barrier = Barrier(8)

    def ask(client: int) -> int:
        batch = [answered((client, k), epoch=0) for k in range(3)]
        barrier.wait()
        try:
            return sum(r.seq is not None for r in each_ledger.charge(project.id, batch).results)
        except BudgetExhausted:
            return 0

    with ThreadPoolExecutor(8) as pool:
        paid = list(pool.map(ask, range(8)))
    assert sorted(paid) == [0, 0, 0, 3, 3, 3, 3, 3]
    openers = [e.seq for e in each_ledger.charges("study") if e.event["event"] == "composition"]
    assert openers == [1, 4, 7, 10, 13]
    after = each_ledger.project("study")
    assert after.spent == after.terms.budget
    assert each_ledger.verify("study").ok


def test_a_request_that_was_overtaken_charges_nothing(ledger: Ledger, study: ProjectRecord) -> None:
    with pytest.raises(ConcurrentUpdate):
        ledger.charge(study.id, [answered(8, epoch=0), answered("new", epoch=0)])
    assert ledger.project("study").account == study.account
    assert ledger.verify("study").ok


def rewrite(connection: Connection, changed: dict[int, dict[str, Any]]) -> None:
    """Alter entries, then make every hash and balance right again."""
    query = select(charges).where(charges.c.project_id == 1).order_by(charges.c.seq)
    head = connection.execute(select(projects.c.genesis)).scalar_one()
    entries = [dict(row._mapping) for row in connection.execute(query)]
    for entry in entries:
        entry |= changed.get(entry["seq"], {})
        head = entry["hash"] = charge_hash(head, entry)
        connection.execute(update(charges).where(charges.c.seq == entry["seq"]).values(entry))
    balances = {
        balance: sum(entry[price] for entry in entries)
        for balance, price in [
            ("spent", "cost"),
            ("delta_spent", "delta"),
            ("cap_spent", "cap_cost"),
        ]
    }
    connection.execute(update(projects).values(head=head, **balances))


WITHIN = {"cost": 0, "delta": 1, "cap_cost": 0, "event": canonical_json(WithinEpoch().to_json())}


def test_an_epoch_that_was_not_paid_for_is_found(
    ledger: Ledger, study: ProjectRecord, database_url: str
) -> None:
    opened = canonical_json(dict(ledger.charges("study")[0].event))
    with unguarded(database_url) as connection:
        connection.commit()

        def found(changed: dict[int, dict[str, Any]]) -> list[str]:
            rewrite(connection, changed)
            problems = list(verify_project(connection, Seals(SECRET_KEY), study.name).problems)
            connection.rollback()
            return problems

        assert found({}) == [], "the rewriting alone leaves no trace"
        for seq in OPENERS:
            price, event = found({seq: WITHIN})
            assert kind(price) == f"entry {seq}: not"
            holds(price, "opening", "epoch")
            assert kind(event) == f"entry {seq}: cost"
        # Where none is due, an opening that is recorded must be paid too.
        (price,) = found({2: {"event": opened}})
        assert kind(price) == "entry 2: not"
        holds(price, "opening", "epoch")


def test_what_opening_costs_is_part_of_the_terms(
    ledger: Ledger, study: ProjectRecord, database_url: str
) -> None:
    changed = study.terms.to_json()
    changed["opening"]["cost"] -= 1
    with unguarded(database_url) as connection:
        connection.execute(update(projects).values(terms=canonical_json(changed)))
    assert kind(ledger.verify(study.name).problems[0]) == "terms"
    events = json.loads(json.dumps(study.events))
    del events["opening"]
    with unguarded(database_url) as connection:
        connection.execute(update(projects).values(events=canonical_json(events)))
    assert not ledger.verify(study.name).ok


def test_terms_without_the_price_of_opening_are_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidTerms):
        ledger.open_project(
            NewProject("free", "mnist", EPOCHS, replace(terms(2, EPOCHS), opening=None))
        )
    opening = terms(2, EPOCHS).opening
    with pytest.raises(InvalidTerms):
        ledger.open_project(
            NewProject("odd", "mnist", STABLE, replace(terms(2, STABLE), opening=opening))
        )
