"""What a request with a key was answered: kept as two numbers, and read back from charges."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from books import answered, digest, kept_keys, open_ledger, open_project, unvoted
from edits import Hand
from migrated import SECRET_KEY
from refusals import refuses
from sqlalchemy import text

from terrine_server.errors import LedgerCorrupted, NotFound
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.charging import appending
from terrine_server.ledger.charging.idempotency_keys import Kept, read

KEY = ("key", digest("body"))


@pytest.fixture
def ledger(each_database_url: str) -> Ledger:
    return open_ledger(each_database_url)


def hand(url: str) -> Hand:
    return Hand(connect(url), url, with_key=True)


def fresh(url: str) -> Ledger:
    """As another server, which has read nothing yet."""
    return Ledger(connect(url), SECRET_KEY)


def seqs(results: Any) -> list[tuple[int | None, bool]]:
    return [(result.seq, result.replayed) for result in results]


def kept(url: str, key: str = "key") -> tuple[int, int]:
    with connect(url).connect() as connection:
        query = text("SELECT results FROM idempotency WHERE key = :key")
        found = json.loads(connection.execute(query, {"key": key}).scalar_one())
        return found["before"], found["last"]


def between(before: int, last: int) -> str:
    return f'{{"before":{before},"last":{last}}}'


EDITED = (
    between(1, 2),
    between(1, 1),  # answered, as if it had been refused
    between(1, 4),
    between(4, 4),  # with a charge that is not there
    "[2,-1,-2,3]",  # of another form
)
"""What is made of `between(1, 3)`."""


def test_a_retry_is_answered_from_charges_by_their_numbers(
    ledger: Ledger, each_database_url: str
) -> None:
    """Paid, repeated, repeated for its input alone, and refused; though that was paid later."""
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered("before", 1)])
    batch = [
        answered("new", 2),
        answered("before", 9),
        answered("view", 9, given="new"),
        answered("last", 3),
    ]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(2, False), (1, True), (2, True), (3, False)]
    assert [result.label for result in first] == [2, 1, 2, 3]
    assert kept(each_database_url) == (1, 3)
    assert fresh(each_database_url).charge(project.id, batch, KEY).results == first

    edits = hand(each_database_url)
    # Entry 1 is before the first that was paid.
    with edits.set("idempotency", 0, "results", between(0, 3)):
        assert fresh(each_database_url).charge(project.id, batch, KEY).results == first
        assert ledger.verify("study").ok
    with edits.set("idempotency", 0, "results", between(3, 3)):  # says only that it was free
        again = fresh(each_database_url).charge(project.id, batch, KEY).results
        assert again == [replace(result, replayed=True) for result in first]
    for edited in EDITED:
        with edits.set("idempotency", 0, "results", edited):
            with pytest.raises(LedgerCorrupted):
                fresh(each_database_url).charge(project.id, batch, KEY)
            again = fresh(each_database_url).charge(project.id, batch).results
            assert [result.label for result in again] == [2, 1, 2, 3]

    more = [answered("new", 9), answered("fits"), answered("fits not")]
    refused = ledger.charge(project.id, more, ("second", digest("more"))).results
    assert seqs(refused) == [(2, True), (4, False), (None, False)]
    assert kept(each_database_url, "second") == (3, 4)
    again = fresh(each_database_url).charge(project.id, more, ("second", digest("more"))).results
    assert again == refused


def test_a_refused_query_that_was_paid_later_is_refused_in_a_retry(
    ledger: Ledger, each_database_url: str
) -> None:
    project = open_project(ledger, 3)
    ledger.charge(project.id, [answered(1)])
    batch = [unvoted(1), unvoted(2)]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(1, True), (None, False)]
    ledger.charge(project.id, [answered(2)])
    assert fresh(each_database_url).charge(project.id, batch, KEY).results == first


def test_a_refusal_between_two_answers_is_kept_in_its_place(
    ledger: Ledger, each_database_url: str
) -> None:
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered("before", 1)])
    batch = [answered("new", 2), unvoted("refused"), unvoted("before")]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(2, False), (None, False), (1, True)]
    assert kept(each_database_url) == (1, 2)
    assert fresh(each_database_url).charge(project.id, batch, KEY).results == first


def test_no_query_was_refused_whose_answer_another_of_its_request_got(
    ledger: Ledger, each_database_url: str
) -> None:
    """Both are views of one input, so the charge that answers the one answers the other."""
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered("view", 1, given="input")])
    batch = [unvoted("second view", given="input"), unvoted("third view", given="input")]
    first = ledger.charge(project.id, batch, KEY).results
    assert seqs(first) == [(1, True), (1, True)]
    edits = hand(each_database_url)
    for edited in (between(0, 1), between(0, 0), "[-1,0]", "[0,-1]"):
        with (
            edits.set("idempotency", 0, "results", edited),
            pytest.raises(LedgerCorrupted),
        ):
            fresh(each_database_url).charge(project.id, batch, KEY)


def test_an_altered_answer_names_the_project_to_verify_and_its_cause(
    ledger: Ledger, each_database_url: str
) -> None:
    """The cause is for the operator alone."""
    project = open_project(ledger, 4)
    ledger.charge(project.id, [answered(1)], KEY)
    with (
        hand(each_database_url).set("idempotency", 0, "results", between(1, 2)),
        refuses(LedgerCorrupted, "study") as refused,
    ):
        fresh(each_database_url).charge(project.id, [unvoted(1)], KEY)
    assert refused.value.cause == "ValueError('charges that are not there')"
    assert refused.value.cause not in refused.value.detail


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "null",
        '"text"',
        "{}",
        '{"1": 1}',
        "[]",
        "[0]",
        "[1.0]",
        "[true]",
        "[[1]]",
        "[3,-1,0]",
        '{"before":1}',
        '{"before":1,"last":2,"more":3}',
        '{"before":1,"last":2.0}',
        '{"before":true,"last":2}',
        between(2, 1),
        between(-1, 1),
        between(0, 0),
    ],
)
def test_only_what_was_ever_written_is_read(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        read(text)
    assert read(between(3, 3)) == Kept(3, 3)


def test_what_is_kept_of_a_request_is_small_however_many_queries_it_has(
    ledger: Ledger, each_database_url: str
) -> None:
    """One paid input 4,096 times, all of them new ones, or any mixture."""
    project = open_project(ledger, 400)
    paid = ledger.charge(project.id, [answered(i) for i in range(300)], ("new", digest("new")))
    mixed = [answered(i * 1009 % 500) for i in range(4096)]
    batches = {"same": [answered(7)] * 4096, "mixed": mixed}
    receipts = {key: ledger.charge(project.id, batches[key], (key, digest(key))) for key in batches}
    with connect(each_database_url).connect() as connection:
        sizes = connection.execute(text("SELECT length(results) FROM idempotency")).scalars().all()
    assert len(sizes) == 3
    assert max(sizes) < 40
    for key, batch in batches.items():
        again = fresh(each_database_url).charge(project.id, batch, (key, digest(key)))
        assert again.results == receipts[key].results
    assert sum(r.seq is not None and not r.replayed for r in receipts["mixed"].results) == 100
    assert paid.results[0].seq == 1


# --------------------------------------------------------------------------------- which keys


@pytest.mark.parametrize("key", ["k", "x" * 255, " ~"], ids=["shortest", "longest", "printable"])
def test_a_key_has_1_to_255_printable_characters(ledger: Ledger, key: str) -> None:
    project = open_project(ledger, 2)
    first = ledger.charge(project.id, [answered(1)], (key, digest("body")))
    assert ledger.charge(project.id, [unvoted(1)], (key, digest("body"))) == first


def test_keys_of_the_last_days_are_all_kept(ledger: Ledger, each_database_url: str) -> None:
    project = open_project(ledger, 3)
    for query in range(3):
        ledger.charge(project.id, [answered(query)], (f"key {query}", digest(query)))
    assert kept_keys(each_database_url) == {"key 0", "key 1", "key 2"}


def test_a_project_keeps_so_many_keys_and_forgets_the_oldest(
    ledger: Ledger, each_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted now and then; a retry of what was forgotten is free all the same."""
    monkeypatch.setattr(appending, "MOST_KEYS", 3)
    project = open_project(ledger, 3)
    first = ledger.charge(project.id, [answered(0)], ("key 0", digest(0)))
    for query in range(1, 10):
        ledger.charge(project.id, [answered(0)], (f"key {query}", digest(query)))
    assert len(kept_keys(each_database_url)) == 10
    monkeypatch.setattr(appending, "COUNT_SECONDS", 0.0)
    ledger.charge(project.id, [answered(0)], ("last", digest("last")))
    assert kept_keys(each_database_url) == {"key 7", "key 8", "key 9", "last"}
    again = ledger.charge(project.id, [unvoted(0)], ("key 0", digest(0)))
    assert [r.label for r in again.results] == [r.label for r in first.results]
    assert again.project.charges == 1
    assert ledger.verify("study").ok


def test_a_project_that_is_not_there_is_named_as_it_was_asked_for(ledger: Ledger) -> None:
    with refuses(NotFound, "nobody"):
        ledger.look_up("nobody", [], [])
    with refuses(NotFound, 99):
        ledger.charge(99, [answered(1)])
