"""What a request with a key was answered: kept as numbers of charges, and read back from those."""

from __future__ import annotations

import json
from typing import Any

import pytest
from books import answered, digest, kept_keys, open_ledger, open_project, unvoted
from edits import Hand
from migrated import SECRET_KEY
from sqlalchemy import text

from terrine_server.errors import BrokenBooks, NotFound
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.charging.earlier import numbers_kept

KEY = ("key", digest("body"))


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return open_ledger(database_url)


def hand(url: str) -> Hand:
    return Hand(connect(url), url, with_key=True)


def fresh(url: str) -> Ledger:
    """As another server, which has read nothing yet."""
    return Ledger(connect(url), SECRET_KEY)


def seqs(results: Any) -> list[tuple[int | None, bool]]:
    return [(result.seq, result.replayed) for result in results]


def kept(url: str, key: str = "key") -> list[int]:
    with connect(url).connect() as connection:
        query = text("SELECT results FROM idempotency WHERE key = :key")
        found: list[int] = json.loads(connection.execute(query, {"key": key}).scalar_one())
        return found


EDITED = (
    *("[2,1,-2,3]", "[2,-1,2,3]"),  # repeated, as if it had been paid
    *("[2,0,-2,3]", "[0,-1,-2,3]", "[2,-1,-2,0]"),  # answered, as if it had been refused
    *("[2,-2,-2,3]", "[3,-1,-2,2]", "[2,-1,-2]"),  # of other queries, or of fewer
)
"""What is made of [2,-1,-2,3]."""


def test_a_retry_is_answered_from_charges_by_their_numbers(
    ledger: Ledger, database_url: str
) -> None:
    """Paid, repeated, repeated for its input alone, and refused; though that was paid later."""
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered("before", 1)])
    batch = [
        *(answered("new", 2), answered("before", 9)),
        *(answered("view", 9, given="new"), answered("last", 3)),
    ]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(2, False), (1, True), (2, True), (3, False)]
    assert [result.label for result in first] == [2, 1, 2, 3]
    assert kept(database_url) == [2, -1, -2, 3]
    assert fresh(database_url).charge(project.id, batch, KEY).results == first

    edits = hand(database_url)
    for edited in EDITED:
        with edits.set("idempotency", 0, "results", edited):
            with pytest.raises(BrokenBooks, match="this Idempotency-Key was altered"):
                fresh(database_url).charge(project.id, batch, KEY)
            again = fresh(database_url).charge(project.id, batch).results
            assert [result.label for result in again] == [2, 1, 2, 3]

    more = [answered("new", 9), answered("fits"), answered("fits not")]
    refused = ledger.charge(project.id, more, ("second", digest("more"))).results
    assert seqs(refused) == [(2, True), (4, False), (None, False)]
    assert kept(database_url, "second") == [-2, 4, 0]
    again = fresh(database_url).charge(project.id, more, ("second", digest("more"))).results
    assert again == refused


def test_a_refused_query_that_was_paid_later_is_refused_in_a_retry(
    ledger: Ledger, database_url: str
) -> None:
    project = open_project(ledger, 3)
    ledger.charge(project.id, [answered(1)])
    batch = [unvoted(1), unvoted(2)]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(1, True), (None, False)]
    ledger.charge(project.id, [answered(2)])
    assert fresh(database_url).charge(project.id, batch, KEY).results == first


@pytest.mark.parametrize("column", ["label", "outcome", "hash", "query_digest", "input_digest"])
def test_no_label_is_read_from_a_charge_whose_hash_is_not_its_own(
    ledger: Ledger, database_url: str, column: str
) -> None:
    """Neither for its query, new to this server, nor for the key that paid for it."""
    project = open_project(ledger, 5)
    batch = [answered(1, 4), answered(2, 5), answered(3, 6)]
    ledger.charge(project.id, batch, KEY)
    edits = hand(database_url)
    others: dict[str, list[Any]] = {
        "label": [6, 0],
        "outcome": ["reinforced", "refused", "published", "unheard of"],
    }
    for value in others.get(column, [bytes(32)]):
        with edits.set("charges", 1, column, value) as done:
            assert done
            for key in (None, KEY):
                with pytest.raises(BrokenBooks, match=r"Entry [23] of project study was altered"):
                    fresh(database_url).charge(project.id, batch, key)
            with pytest.raises(BrokenBooks, match="Entry 2"):
                ledger.charges("study")
            assert not ledger.verify("study").ok
            assert seqs(ledger.charge(project.id, [answered(1)]).results) == [(1, True)]
    assert [charge.label for charge in ledger.charges("study")] == [4, 5, 6]


@pytest.mark.parametrize("results", ["", "{}", "[1,2]x", "[1,9]", "[-9,1]", "[0,0]", "[1.0,2]"])
def test_verification_names_what_was_made_of_a_key(
    ledger: Ledger, database_url: str, results: str
) -> None:
    project = open_project(ledger, 5)
    ledger.charge(project.id, [answered(1), answered(2)], KEY)
    with hand(database_url).set("idempotency", 0, "results", results):
        (found,) = ledger.verify("study").problems
        assert found.startswith("key 'key': what is kept of its request is not")
    assert ledger.verify("study").ok


def test_a_refusal_between_two_answers_is_kept_in_its_place(
    ledger: Ledger, database_url: str
) -> None:
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered("before", 1)])
    batch = [answered("new", 2), unvoted("refused"), unvoted("before")]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(2, False), (None, False), (1, True)]
    assert kept(database_url) == [2, 0, -1]
    assert fresh(database_url).charge(project.id, batch, KEY).results == first


def test_no_query_was_refused_whose_answer_another_of_its_request_got(
    ledger: Ledger, database_url: str
) -> None:
    """Both are views of one input, so the charge that answers the one answers the other."""
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered("view", 1, given="input")])
    batch = [unvoted("second view", given="input"), unvoted("third view", given="input")]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(1, True), (1, True)]
    edits = hand(database_url)
    for edited in ("[-1,0]", "[0,-1]"):
        with (
            edits.set("idempotency", 0, "results", edited),
            pytest.raises(BrokenBooks, match="this Idempotency-Key was altered"),
        ):
            fresh(database_url).charge(project.id, batch, KEY)


def test_an_altered_answer_names_the_project_to_verify_and_its_cause(
    ledger: Ledger, database_url: str
) -> None:
    """The cause is for the operator alone."""
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered(1)], KEY)
    with (
        hand(database_url).set("idempotency", 0, "results", "[2]"),
        pytest.raises(BrokenBooks, match="terrine ledger verify study") as refused,
    ):
        fresh(database_url).charge(project.id, [unvoted(1)], KEY)
    assert refused.value.cause == """ValueError("the number of another query's charge")"""
    assert refused.value.cause not in refused.value.detail


@pytest.mark.parametrize(
    "text", ["", "7", "null", '"text"', "{}", '{"1": 1}', "[]", "[0]", "[1.0]", "[true]", "[[1]]"]
)
def test_only_a_list_of_whole_numbers_is_read(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        numbers_kept(text)
    assert numbers_kept("[3,-1,0]") == [3, -1, 0]


# --------------------------------------------------------------------------------- which keys


@pytest.mark.parametrize("key", ["k", "x" * 255, " ~"], ids=["shortest", "longest", "printable"])
def test_a_key_has_1_to_255_printable_characters(ledger: Ledger, key: str) -> None:
    project = open_project(ledger, 2)
    first = ledger.charge(project.id, [answered(1)], (key, digest("body")))
    assert ledger.charge(project.id, [unvoted(1)], (key, digest("body"))) == first


def test_keys_of_the_last_days_are_all_kept(ledger: Ledger, database_url: str) -> None:
    project = open_project(ledger, 3)
    for query in range(3):
        ledger.charge(project.id, [answered(query)], (f"key {query}", digest(query)))
    assert kept_keys(database_url) == {"key 0", "key 1", "key 2"}


def test_a_project_that_is_not_there_is_named_as_it_was_asked_for(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match=r"^There is no project called nobody\.$"):
        ledger.consult("nobody", [], [])
    with pytest.raises(NotFound, match=r"^There is no project number 99\.$"):
        ledger.charge(99, [answered(1)])
