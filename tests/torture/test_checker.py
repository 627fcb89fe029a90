"""The checker of the other tests finds what it should find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.clients import Answer, Crowd, Exchange, Worker, discrepancies
from support.ledgers import NOISY, answered, charge_one, open_ledger, open_project, unguarded
from support.wording import holds
from support.workers import FLAWS

FIRST = Answer(1, "answered", 7, charge=1, replayed=False)
SECOND = Answer(2, "answered", 7, charge=2, replayed=False)
AGAIN = replace(FIRST, replayed=True)
TRUTH = [Exchange("study", "a", (1,), (FIRST,)), Exchange("study", "b", (2, 1), (SECOND, AGAIN))]


@pytest.fixture
def books(database_url: str) -> str:
    """Make two charges; return the URL of their database."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=3)
    charge_one(ledger, project.id, [answered(1, 7)])
    charge_one(ledger, project.id, [answered(2, 7), answered(1, 7)])
    return database_url


def test_the_truth_passes(books: str) -> None:
    assert discrepancies(books, "study", [*TRUTH, TRUTH[0]]) == []


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (Exchange("study", "a", (1,), (replace(FIRST, label=8),)), "books"),
        (Exchange("study", "a", (1,), (replace(FIRST, counts=(1, 7)),)), "books"),
        (Exchange("study", "a", (1,), (replace(FIRST, charge=3),)), "books None"),
        (Exchange("study", "c", (1,), (replace(FIRST, charge=2),)), "query 1 paid"),
        (Exchange("study", "c", (3,), (replace(FIRST, query=3),)), "charge 1 paid"),
        (Exchange("study", "c", (1,), (FIRST,)), "charge 1 paid"),
        (Exchange("study", "a", (1,), (SECOND,)), "request a answered"),
        (Exchange("study", "a", (1, 2), (FIRST,)), "other answers"),
        (
            Exchange("study", "c", (3,), (Answer(3, "answered", 7, None, False),)),
            "without charge",
        ),
    ],
)
def test_a_wrong_answer_to_a_client_is_found(books: str, wrong: Exchange, found: str) -> None:
    holds(discrepancies(books, "study", [*TRUTH, wrong]), *found.split())


def test_a_charge_that_was_never_sent_is_found(books: str) -> None:
    holds(discrepancies(books, "study", TRUTH[:1]), "never", "sent", "[2]")


@pytest.mark.parametrize(
    ("forgery", "found"),
    [
        ("DELETE FROM charges WHERE seq = 1", "gaps"),
        ("UPDATE projects SET charges = 3", "gaps"),
        ("UPDATE projects SET spent = spent + 1", "recorded"),
        ("UPDATE projects SET budget = spent - 1", "budget"),
        ("UPDATE charges SET cost = 0 WHERE seq = 1", "paid"),
    ],
)
def test_books_that_do_not_balance_are_found(books: str, forgery: str, found: str) -> None:
    with unguarded(books) as connection:
        connection.exec_driver_sql(forgery)
    holds(discrepancies(books, "study", TRUTH), found)


@pytest.mark.nightly
@pytest.mark.parametrize("flaw", [None, *FLAWS])
def test_a_crowd_and_kills_reveal_a_flawed_ledger(flaw: str | None, tmp_path: Path) -> None:
    """The crash tests' clients, kills and checker, on workers with a bug and without one."""
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    project = open_project(open_ledger(url), queries=500, mechanism=NOISY)
    workers = [Worker(url, {"study": project.id}, flaw) for _ in range(4)]
    crowd = Crowd(1, [("study", worker) for worker in workers])
    with crowd.asking():
        for kill in range(20):
            crowd.wait_for_answers(3)
            workers[kill % len(workers)].kill()
    for worker in workers:
        worker.stop()
    assert bool(discrepancies(url, "study", crowd.exchanges)) == (flaw is not None)
