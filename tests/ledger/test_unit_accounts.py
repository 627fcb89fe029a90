"""Accounts of units: written with the charge of the answers they belong to, and never behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import Table, delete, insert, select, update

from support.databases import SECRET_KEY
from support.ledgers import (
    NEIGHBOURS,
    PEOPLE,
    Opened,
    charge_one,
    counted,
    many,
    open_people,
    open_study,
    unguarded,
)
from support.wording import holds, refuses
from terrine_server.errors import (
    BudgetExhausted,
    ConcurrentUpdate,
    Conflict,
    EnsembleUnavailable,
    LedgerCorrupted,
)
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import (
    Ledger,
    ProjectSnapshot,
    Proposal,
    QueryDigest,
    SpentAccounts,
    connect,
)
from terrine_server.ledger import accounts as accounts_of
from terrine_server.ledger.charging import Charging
from terrine_server.ledger.schema import charges, projects, shadow_accounts, unit_accounts
from terrine_server.privacy import Neighbours


@pytest.fixture
def opened(database_url: str) -> Opened:
    return open_people(database_url)


def expected(opened: Opened, inputs: list[NDArray[np.uint8]]) -> NDArray[np.int64]:
    """The accounts after these inputs, one person and one query at a time."""
    people, most = opened.people, opened.allowance
    accounts = np.zeros(PEOPLE, dtype=np.int64)
    for x in inputs:
        for person in range(PEOPLE):
            votes = np.zeros(2)
            for unit, label in zip(people.units, people.labels, strict=True):
                votes[label] += x[person] * (unit == person)
            squared = int(votes @ votes)
            while squared > 1:  # scaled down to ‖v‖ ≤ 1 and floored: (1, 1) becomes (0, 0)
                votes = np.floor(votes / np.sqrt(squared))
                squared = int(votes @ votes)
            if accounts[person] + squared <= most:
                accounts[person] += squared
    return accounts


def test_accounts_follow_from_the_answers_whatever_replica_gave_them(opened: Opened) -> None:
    inputs = many(opened.people, 12)
    assert opened.stored().tolist() == [0] * PEOPLE
    opened.ask(inputs[:1])
    assert opened.stored().tolist() == expected(opened, inputs[:1]).tolist()
    opened.ask(inputs[1:7])
    opened.ask(inputs[1:7])
    opened.ask(inputs[3:12] + inputs[:3])  # some are on record, and some come twice
    answered = opened.ask(inputs[::-1] + inputs)
    assert all(result.replayed for result in answered.results)
    assert opened.stored().tolist() == expected(opened, inputs).tolist()
    assert opened.stored().max() > 1
    row, project = opened.row(unit_accounts), opened.ledger.projects.get("study")
    assert (row.charges, row.head.hex()) == (12, project.head)
    assert opened.ledger.verifier.verify_project("study").problems == []


def test_a_query_twice_in_one_group_is_voted_on_once(opened: Opened) -> None:
    x, labeling = opened.people.input(1, 2), opened.labeling()
    asks = [labeling.check("study", np.stack([x, x])), labeling.check("study", np.stack([x]))]
    labeling.answer("study", asks)
    assert opened.stored().tolist() == expected(opened, [x]).tolist()


def test_refusals_follow_from_the_number_of_queries_alone(database_url: str) -> None:
    """Long after nobody can vote any more, queries are answered, up to the last one."""
    opened = open_people(database_url, epsilon=0.5, spare=True)
    inputs = many(opened.people, 45)
    first = opened.ask(inputs[:30])
    assert opened.stored().max() == opened.allowance < 15
    assert first.project.affordable == 10
    last = opened.ask(inputs[30:])
    assert [result.seq is None for result in last.results] == [False] * 10 + [True] * 5
    with refuses(BudgetExhausted, 40):
        opened.ask(inputs[44:])
    assert opened.stored().max() == opened.allowance
    assert opened.stored().tolist() == expected(opened, inputs[:40]).tolist()
    project = opened.ledger.projects.get("study")
    assert project.spent == project.terms.budget
    assert project.cap_spent == project.terms.cap_budget
    assert opened.ledger.verifier.verify_project("study").problems == []


def test_spent_is_the_same_function_of_the_count_whoever_voted(database_url: str) -> None:
    """Another project, whose queries nobody is near, has the same balance at every count."""
    opened = open_people(database_url, spare=True)
    open_study(opened.ledger, name="other")
    inputs = many(opened.people, 25)
    nobody = [np.full(PEOPLE, 0, np.uint8) for _ in range(1)]
    labeling = opened.labeling()
    for x in [*inputs, *nobody]:
        labeling.answer("study", [labeling.check("study", np.stack([x]))])
        labeling.answer("other", [labeling.check("other", np.stack([x ^ 2]))])
        study, other = opened.ledger.projects.get("study"), opened.ledger.projects.get("other")
        assert study.account == other.account


def test_what_closing_keeps_of_the_cap_is_the_least_of_the_allowance_and_the_queries(
    opened: Opened,
) -> None:
    terms = opened.project.terms
    assert terms.allowance is not None
    for queries, name in [(0, "study"), (3, "some"), (40, "all")]:
        if name != "study":
            open_study(opened.ledger, name=name)
        labeling = opened.labeling()
        if queries:
            inputs = np.stack(many(opened.people, queries, name))
            labeling.answer(name, [labeling.check(name, inputs)])
        before = opened.ledger.ensembles.get("people").population.reserved
        opened.ledger.projects.set_status(name, "closed")  # type: ignore[arg-type]
        kept = opened.ledger.ensembles.get("people").population.reserved - (
            before - terms.cap_budget
        )
        worth = terms.allowance.cost(min(terms.allowance.most, queries), terms.cap_rule)
        assert worth * 1e12 <= kept <= worth * 1e12 + queries + 1
        assert opened.ledger.verifier.verify_project(name).problems == []


class KilledError(BaseException):
    """Not an Exception: nothing catches it, as nothing catches SIGKILL."""


def kill_at(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def die(*_: object, **__: object) -> None:
        raise KilledError

    if where == "after the draw":
        monkeypatch.setattr(Charging, "charge", die)
    elif where == "before the accounts are written":
        monkeypatch.setattr(accounts_of, "save_unit_accounts", die)
    elif where == "before the commit":
        usual = accounts_of.save_unit_accounts

        def save(*given: Any) -> None:
            usual(*given)
            die()

        monkeypatch.setattr(accounts_of, "save_unit_accounts", save)
    else:
        usual_charge = Charging.charge

        def charge(self: Charging, *given: Any) -> None:
            usual_charge(self, *given)
            die()

        monkeypatch.setattr(Charging, "charge", charge)


@pytest.mark.parametrize(
    ("where", "written"),
    [
        ("after the draw", False),
        ("before the accounts are written", False),
        ("before the commit", False),
        ("before the answer", True),
    ],
)
def test_whatever_dies_in_between_accounts_and_charges_go_together(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, where: str, written: bool
) -> None:
    inputs = many(opened.people, 8)
    opened.ask(inputs[:3])
    with monkeypatch.context() as patched:
        kill_at(patched, where)
        with pytest.raises(KilledError):
            opened.ask(inputs[3:])
    paid = 8 if written else 3
    assert opened.ledger.projects.get("study").charges == paid
    assert opened.stored().tolist() == expected(opened, inputs[:paid]).tolist()
    after = opened.ask(inputs[3:])
    assert [result.replayed for result in after.results] == [written] * 5
    assert opened.stored().tolist() == expected(opened, inputs).tolist()
    assert opened.ledger.verifier.verify_project("study").problems == []


def drawn(
    opened: Opened, query: object, near: NDArray[np.uint8]
) -> tuple[list[Proposal], ProjectSnapshot, SpentAccounts]:
    """A query that was voted on, and is not paid yet."""
    proposal = counted(query)
    counts = (5, 3)
    proposal = type(proposal)(
        proposal.query_digest, proposal.input_digest, proposal.outcome, 0, counts=counts
    )
    digests = [QueryDigest(proposal.query_digest, proposal.input_digest)]
    record = opened.ledger.charging.look_up("study", digests)
    project = record.project
    mechanism = Neighbours(PEOPLE, 2, 15.0, 40)
    weights = opened.people.near(near[None])
    _, after = mechanism.cast(
        weights,
        opened.voters.found.units,
        opened.ledger.charging.unit_accounts(project),
        opened.allowance,
    )
    shadows = opened.ledger.charging.shadow_accounts(project, PEOPLE)
    return [proposal], record, SpentAccounts(project.charges, project.head, 1, after, shadows)


def test_a_draw_that_another_replica_overtook_is_discarded(opened: Opened) -> None:
    one = drawn(opened, "one", opened.people.input(1))
    other = drawn(opened, "other", opened.people.input(1))
    replica = Ledger(connect(opened.url), SECRET_KEY)
    replica.charging.charge(opened.project.id, [other[0]], other[1], other[2])
    with pytest.raises(ConcurrentUpdate):
        opened.ledger.charging.charge(opened.project.id, [one[0]], one[1], one[2])
    assert opened.stored()[1] == 1
    with pytest.raises(ConcurrentUpdate):
        opened.ledger.charging.unit_accounts(one[1].project)


def test_a_draw_that_an_edition_overtook_is_discarded_and_drawn_again(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who left has not voted in anything that is charged afterwards."""
    inputs = many(opened.people, 6)
    opened.ask(inputs[:2])
    batch, record, cast = drawn(opened, "one", opened.people.input(1))
    before = opened.stored()
    opened.ledger.ensembles.make_edition("people", 2, "22" * 32, PEOPLE, [1])
    with refuses(ConcurrentUpdate, "People"):
        opened.ledger.charging.charge(opened.project.id, [batch], record, cast)
    with refuses(ConcurrentUpdate, "People"):
        opened.ledger.charging.unit_accounts(record.project)
    assert opened.ledger.projects.get("study").charges == 2
    before = before.copy()
    before[1] = opened.allowance
    assert opened.stored().tolist() == before.tolist()
    labeling, usual = opened.labeling(), Charging.charge

    def overtaken(self: Charging, *given: Any) -> Any:
        monkeypatch.setattr(Charging, "charge", usual)
        opened.ledger.ensembles.make_edition("people", 3, "33" * 32, PEOPLE, [1, 2])
        return usual(self, *given)

    monkeypatch.setattr(Charging, "charge", overtaken)
    (answer,) = labeling.answer("study", [labeling.check("study", np.stack(inputs[2:]))])
    assert not isinstance(answer, Exception)
    assert opened.stored()[[1, 2]].tolist() == [opened.allowance] * 2
    assert opened.ledger.verifier.verify_project("study").problems == []


def test_nothing_is_charged_without_accounts_or_with_those_of_other_queries(
    opened: Opened,
) -> None:
    batch, record, cast = drawn(opened, "one", opened.people.input(1))
    with refuses(ValueError, "accounts"):
        charge_one(opened.ledger, opened.project.id, batch)
    with refuses(ValueError, "accounts"):
        opened.ledger.charging.charge(opened.project.id, [batch], record)
    for other in (
        replace(cast, queries=2),
        replace(cast, charges=cast.charges + 1),
        replace(cast, head="00" * 32),
    ):
        with pytest.raises(ConcurrentUpdate):
            opened.ledger.charging.charge(opened.project.id, [batch], record, other)
    assert opened.ledger.projects.get("study").charges == 0
    assert opened.stored().tolist() == [0] * PEOPLE


def test_voters_without_records_answer_nothing(opened: Opened) -> None:
    class Elsewhere(Voters):
        def check(self, record: Any) -> None:
            return

        def votes(self, record: Any, inputs: Any) -> Any:
            raise AssertionError("nobody may be asked")

    opened.voters = Elsewhere()  # type: ignore[assignment]
    with refuses(EnsembleUnavailable, "cluster"):
        opened.ask(many(opened.people, 2))
    assert opened.ledger.projects.get("study").charges == 0


EDITS: dict[str, Callable[[Any], dict[str, Any] | None]] = {
    "emptied": lambda row: {"accounts": bytes(len(row.accounts))},
    "shorter": lambda row: {"accounts": row.accounts[:-4]},
    "longer": lambda row: {"accounts": row.accounts + bytes(4)},
    "an earlier count": lambda row: {"charges": row.charges - 1},
    "another head": lambda _: {"head": bytes(32)},
    "counted as filled": lambda _: {"filled": 1},
    "another seal": lambda _: {"seal": bytes(32)},
    "lost": lambda _: None,
}
KINDS = {unit_accounts: "accounts", shadow_accounts: "shadow"}


@pytest.mark.parametrize("table", KINDS, ids=str)
def test_accounts_that_were_edited_answer_nothing_and_verify_says_so(
    opened: Opened, table: Table
) -> None:
    inputs = many(opened.people, 6)
    opened.ask(inputs[:4])
    kept = opened.row(table)
    for what, edit in EDITS.items():
        if what == "counted as filled" and table is shadow_accounts:
            continue
        values = edit(kept)
        with unguarded(opened.url, with_key=False) as connection:
            connection.execute(delete(table))
            if values is not None:
                connection.execute(insert(table).values({**kept._mapping, **values}))
        with refuses(LedgerCorrupted, KINDS[table], "study"):
            opened.ask(inputs[4:])
        if table is shadow_accounts:
            with refuses(LedgerCorrupted, "shadow", "study"):
                opened.ledger.projects.get_with_shadows("study")
        assert opened.ledger.projects.get("study").charges == 4
        (problem,) = opened.ledger.verifier.verify_project("study").problems
        holds(problem, KINDS[table], "study")
        assert opened.ask(inputs[:4]).results[0].replayed, "what was paid needs no account"


@pytest.mark.parametrize("table", KINDS, ids=str)
def test_an_older_row_with_its_own_seal_is_found(opened: Opened, table: Table) -> None:
    inputs = many(opened.people, 6)
    opened.ask(inputs[:2])
    older = dict(opened.row(table)._mapping)
    opened.ask(inputs[2:4])
    with unguarded(opened.url) as connection:
        connection.execute(update(table).values(older))
    with refuses(LedgerCorrupted, "charges"):
        opened.ask(inputs[4:])
    assert opened.ledger.verifier.verify_project("study").problems


def test_after_a_restore_nobody_votes_and_nothing_goes_back_to_the_cap(opened: Opened) -> None:
    open_study(opened.ledger, name="untouched")
    inputs = many(opened.people, 6)
    opened.ask(inputs[:4])
    done = opened.ledger.projects.fill_accounts()
    assert (done.paused, done.filled) == (["study", "untouched"], ["study", "untouched"])
    with connect(opened.url).connect() as connection:
        for row in connection.execute(select(unit_accounts)):
            assert set(np.frombuffer(row.accounts, "<u4").tolist()) == {opened.allowance}
    for name in ("study", "untouched"):
        with refuses(Conflict, "paused"):
            opened.ledger.projects.set_status(name, "closed")  # type: ignore[arg-type]
        assert opened.ledger.verifier.verify_project(name).problems == []
    opened.ledger.projects.set_status("study", "active")  # type: ignore[arg-type]
    opened.ask(inputs[4:])  # what is answered now is noise
    assert set(opened.stored().tolist()) == {opened.allowance}
    with refuses(Conflict, "paused"):
        opened.ledger.projects.set_status("study", "closed")  # type: ignore[arg-type]
    assert opened.ledger.verifier.verify_project("study").problems == []
    assert opened.ledger.projects.fill_accounts().filled == ["study", "untouched"]
    logged = [entry.action for entry in opened.ledger.log.list(limit=100)]
    assert logged.count("accounts-filled") == 4


def test_a_backup_restored_under_a_running_server_answers_nothing(opened: Opened) -> None:
    """On SQLite the file is replaced, which no server uses; so here rows are put back."""
    inputs, labeling = many(opened.people, 6), opened.labeling()

    def ask(some: list[NDArray[np.uint8]]) -> None:
        labeling.answer("study", [labeling.check("study", np.stack(some))])

    ask(inputs[:2])
    with connect(opened.url).connect() as connection:
        older = {
            table: [dict(row._mapping) for row in connection.execute(select(table))]
            for table in (projects, unit_accounts, shadow_accounts)
        }
    ask(inputs[2:4])
    with unguarded(opened.url) as connection:
        connection.execute(delete(charges).where(charges.c.seq > 2))
        for table, (row,) in older.items():
            connection.execute(update(table).values(row))
    assert opened.ledger.verifier.verify_project("study").problems == [], (
        "only a checkpoint can tell"
    )
    with refuses(LedgerCorrupted, "backup"):
        ask(inputs[4:])


def test_nothing_that_leaves_the_ledger_has_an_account_in_it(opened: Opened) -> None:
    """Two worlds that differ in all their accounts say the same, but for digests and times."""
    opened.ask(many(opened.people, 5))
    told = json.dumps(
        [*opened.ledger.exports.export_project("study"), *opened.ledger.exports.export_log()]
    )
    assert "accounts" not in told
    assert NEIGHBOURS["name"] in told
    for text in (
        repr(opened.ledger.projects.get("study")),
        repr(drawn(opened, 1, opened.people.input(1))),
    ):
        assert "array" not in text
