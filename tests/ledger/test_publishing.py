"""Data-dependent projects: refused by what was published alone, and their books."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select, update

from support.ledgers import (
    DELTA,
    EPSILON,
    PUBLISHING_GNMAX,
    PUBLISHING_TEACHERS,
    charge_one,
    digest,
    open_published,
    published_terms,
    publishing_ledger,
    unguarded,
    voted,
)
from support.ledgers import PUBLISHING_CLASSES as CLASS_COUNT
from support.processes import seed_noise
from terrine_protocol import Outcome, ProjectStatus
from terrine_server.errors import BudgetExhausted, Conflict, LedgerCorrupted
from terrine_server.ledger import Ledger, NewProject, ProjectRecord, Proposal, RecordedCharges
from terrine_server.ledger.charging import Admission, admit
from terrine_server.ledger.schema import secret_spends
from terrine_server.ledger.tallies import SecretTally
from terrine_server.privacy import Account, Terms, VoteOutcome, build_mechanism, quote
from terrine_server.privacy.published import ActualCost, Meter

TERMS = published_terms()
WORST_CASE = quote(
    build_mechanism(PUBLISHING_GNMAX, teachers=PUBLISHING_TEACHERS, classes=CLASS_COUNT),
    EPSILON,
    DELTA,
).affordable(Account())


@pytest.fixture(autouse=True)
def repeated_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance, one in ten million figures is below what it bounds, as δ allows."""
    seed_noise(monkeypatch)


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return publishing_ledger(database_url)


@pytest.fixture
def each_ledger(each_database_url: str) -> Ledger:
    return publishing_ledger(each_database_url)


def ask(ledger: Ledger, project: ProjectRecord, most: int, agreement: float = 0.95) -> int:
    """Ask in batches until the project refuses. Returns how many queries were paid."""
    paid = 0
    for start in range(0, most, 64):
        batch = voted(project, range(start, min(start + 64, most)), agreement)
        try:
            receipt = charge_one(ledger, project.id, batch)
        except BudgetExhausted:
            break
        paid += sum(result.seq is not None for result in receipt.results)
    return paid


def test_more_queries_are_answered_for_the_same_epsilon(ledger: Ledger) -> None:
    project = open_published(ledger)
    paid = ask(ledger, project, 5000)
    assert paid > 1.25 * WORST_CASE
    after = ledger.projects.get("study")
    assert len(after.published) == len(TERMS.schedule.counts if TERMS.schedule else ())
    assert after.spent <= TERMS.budget
    assert after.delta_spent <= TERMS.delta_budget
    assert not TERMS.admits(after.account)
    assert ledger.verifier.verify_project("study").ok
    entries = list(ledger.entries.stream("study"))
    assert [e.seq for e in entries if e.outcome == Outcome.PUBLISHED] == [
        published.seq for published in after.published
    ]
    # What was published is a bound on what the votes cost, and far below the worst case.
    spend = ledger.projects.secret_spend("study")
    assert spend.queries == paid
    assert spend.cost * 1e12 <= after.published[-1].figure < paid * TERMS.worst.cost / 2
    audit = pytest.importorskip("terrine_addons.audit.ledger")
    assert list(audit.check_project(ledger, after)) == []


class Script(SecretTally):
    """In place of a secret spend: figures that were written down beforehand."""

    def __init__(self, figures: list[int]) -> None:
        self.figures = figures
        self.counted = 0

    def add(self, places: tuple[int, ...]) -> None:
        self.counted += 1

    def publish(self, bound: int) -> int:
        return min(self.figures.pop(0), bound)


MANY = 1500
QUERIES = [
    Proposal(digest(i), digest(i), VoteOutcome.ANSWERED, 0, places=(0,)) for i in range(MANY)
]


def admitted(terms: Terms, figures: list[int], sizes: list[int]) -> list[Admission]:
    """Ask in batches of these sizes, each query new."""
    account, made, first = Account(), [], 0
    for size in sizes:
        batch = QUERIES[first : first + size]
        made.append(admit(terms, account, RecordedCharges({}, {}), batch, Script(figures)))
        account, first = made[-1].account, first + size
    return made


@settings(max_examples=60)
@given(
    figures=st.lists(st.integers(0, 2 * TERMS.budget), min_size=64, max_size=64),
    sizes=st.lists(st.integers(1, 180), min_size=1, max_size=8),
)
def test_whatever_is_published_no_budget_is_overspent(figures: list[int], sizes: list[int]) -> None:
    before = Account()
    for admission in admitted(TERMS, figures, sizes):
        after = admission.account
        assert after.spent <= TERMS.budget
        assert after.delta_spent <= TERMS.delta_budget
        assert after.cap_spent <= TERMS.cap_budget
        assert TERMS.schedule is not None
        assert after.published <= len(TERMS.schedule.counts)
        paid = after.queries - before.queries
        assert paid >= min(len(admission.results), TERMS.affordable(before)), "a broken promise"
        assert not TERMS.due(after), "what was due was not published"
        before = after


@settings(max_examples=30)
@given(
    figures=st.lists(st.integers(0, TERMS.budget), min_size=64, max_size=64),
    size=st.integers(1, 300),
)
def test_batching_changes_nothing(figures: list[int], size: int) -> None:
    (whole,) = admitted(TERMS, list(figures), [MANY])
    parts = admitted(TERMS, list(figures), [size] * -(-MANY // size))
    assert [result for part in parts for result in part.results] == list(whole.results)
    assert parts[-1].account == whole.account


def test_other_votes_with_the_same_published_record_are_refused_alike(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the votes and keep the published record: the same refusal, entry for entry.

    Without the record the refusals differ, so the votes would have shown if anything looked.
    """
    free = {c: ask(ledger, open_published(ledger, f"free-{c}"), 3000, c / 100) for c in (95, 60)}
    assert free[95] > 1.2 * free[60]

    figures = [published.figure for published in ledger.projects.get("free-95").published]
    released: dict[str, Any] = {}
    for name, agreement in (("agreeing", 0.99), ("split", 0.51)):
        record = iter(figures)
        monkeypatch.setattr(SecretTally, "publish", lambda _, bound, r=record: min(next(r), bound))
        project = open_published(ledger, name)
        paid = ask(ledger, project, 3000, agreement)
        entries = [
            (e.seq, e.outcome, e.label, e.figure, e.cost, e.delta, e.cap_cost, dict(e.event))
            for e in ledger.entries.stream(name)
        ]
        released[name] = paid, entries, ledger.projects.get(name).account
    assert released["agreeing"] == released["split"]
    assert released["agreeing"][0] == free[95]


def test_the_secret_is_read_only_to_publish(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between publications nothing evaluates the tally: no time, branch or message tells of it."""
    project = open_published(ledger)
    assert TERMS.schedule is not None
    looked: list[int] = []
    spend = Meter.spend

    def watched(self: Meter, tally: np.ndarray, beta: float) -> ActualCost:
        looked.append(1)
        return spend(self, tally, beta)

    monkeypatch.setattr(Meter, "spend", watched)
    first = TERMS.schedule.counts[0]
    charge_one(ledger, project.id, voted(project, range(first - 1)))
    (
        ledger.projects.get("study"),
        ledger.verifier.verify_project("study"),
        ledger.entries.list("study"),
    )
    assert not looked
    charge_one(ledger, project.id, voted(project, [first]))
    assert len(looked) == 1
    assert ledger.projects.get("study").published[0].queries == first


def test_a_replay_counts_nothing(ledger: Ledger) -> None:
    project = open_published(ledger)
    batch = voted(project, range(20))
    charge_one(ledger, project.id, batch + batch)
    charge_one(ledger, project.id, batch)
    assert (
        ledger.projects.get("study").charges == ledger.projects.secret_spend("study").queries == 20
    )


def test_threads_count_every_query_once(each_ledger: Ledger) -> None:
    project = open_published(each_ledger)

    def some(worker: int) -> None:
        for start in range(0, 60, 15):
            asked = [(worker % 2, start + i) for i in range(15)]  # each asked by two workers
            charge_one(each_ledger, project.id, voted(project, asked))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, range(4)))
    assert each_ledger.projects.get("study").account.queries == 120
    assert each_ledger.verifier.verify_project("study").ok


def test_a_charge_that_fails_publishes_nothing(
    each_ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = open_published(each_ledger)
    assert TERMS.schedule is not None
    first = TERMS.schedule.counts[0]
    charge_one(each_ledger, project.id, voted(project, range(first - 1)))
    before = each_ledger.projects.get("study")

    def dies(*_: object) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr("terrine_server.ledger.tallies.save_tally", dies)
        with pytest.raises(ConnectionError):
            charge_one(each_ledger, project.id, voted(project, ["last"]))
    assert each_ledger.projects.get("study") == before
    assert each_ledger.verifier.verify_project("study").ok
    charge_one(each_ledger, project.id, voted(project, ["last"]))
    assert len(each_ledger.projects.get("study").published) == 1
    assert each_ledger.verifier.verify_project("study").ok


DAMAGE: dict[str, Callable[[bytes], dict[str, Any] | None]] = {
    "lost": lambda _: None,
    "empty": lambda _: {"tally": b""},
    "shorter": lambda tally: {"tally": tally[:-4]},
    "longer": lambda tally: {"tally": tally + bytes(4)},
    "of fewer charges": lambda _: {"charges": 2},
    "of more charges": lambda _: {"charges": 4},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_tally_that_is_lost_or_damaged_is_not_counted_on(
    damage: str, ledger: Ledger, database_url: str
) -> None:
    """Though its seal fits. What was paid is repeated without it."""
    project = open_published(ledger)
    paid = charge_one(ledger, project.id, voted(project, range(3)))
    with unguarded(database_url) as connection:
        values = DAMAGE[damage](connection.execute(select(secret_spends.c.tally)).scalar_one())
        command = delete(secret_spends) if values is None else update(secret_spends).values(values)
        connection.execute(command)
    for read in (
        lambda: ledger.projects.secret_spend("study"),
        lambda: charge_one(ledger, project.id, voted(project, ["new"])),
    ):
        with pytest.raises(LedgerCorrupted):
            read()
    assert ledger.projects.get("study").account == paid.project.account
    again = charge_one(ledger, project.id, voted(project, range(3)))
    assert again.results == [replace(result, replayed=True) for result in paid.results]


def test_a_worst_case_project_has_no_secret_spend(ledger: Ledger) -> None:
    mechanism = build_mechanism(PUBLISHING_GNMAX, teachers=PUBLISHING_TEACHERS, classes=CLASS_COUNT)
    terms = quote(mechanism, 1.0, DELTA, cap_rule=TERMS.cap_rule)
    ledger.projects.open(NewProject("plain", "thousand", PUBLISHING_GNMAX, terms))
    with pytest.raises(Conflict):
        ledger.projects.secret_spend("plain")


def test_a_closed_project_returns_what_its_figures_left(ledger: Ledger) -> None:
    project = open_published(ledger)
    assert TERMS.schedule is not None
    charge_one(ledger, project.id, voted(project, range(TERMS.schedule.counts[0])))
    spent = ledger.projects.get("study").cap_spent
    assert spent < TERMS.schedule.counts[0] * TERMS.worst.cap_cost / 2
    ledger.projects.set_status("study", ProjectStatus.CLOSED)
    assert ledger.ensembles.get("thousand").population.reserved == spent
    assert ledger.verifier.verify_project("study").ok
