"""No interleaving of threads and processes overspends, charges twice or leaves a gap."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from at_once import at_once
from books import GNMAX, answered, digest, open_ledger, open_project, terms
from ledger_workers import ask_same, ask_until_exhausted, open_projects
from migrated import SECRET_KEY
from processes import in_processes

from terrine_protocol import ProjectStatus
from terrine_server.errors import BudgetExhausted, CapExceeded, ProjectClosed, TerrineError
from terrine_server.ledger import Ledger, NewProject, connect


def test_threads_never_overspend(database_url: str) -> None:
    """16 clients ask 2 queries at a time, 3 times; the budget pays for 50 of the 96."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=50)

    def ask(client: int) -> int:
        paid = 0
        for round in range(3):
            batch = [answered(f"{client} {round} {i}") for i in range(2)]
            try:
                results = ledger.charge(project.id, batch).results
            except BudgetExhausted:
                continue
            paid += sum(result.seq is not None for result in results)
        return paid

    assert sum(at_once(16, ask)) == 50
    after = ledger.project("study")
    assert (after.charges, after.spent) == (50, after.terms.budget)
    assert ledger.verify("study").ok


@pytest.mark.slow
def test_processes_never_overspend(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=100)
    processes = in_processes(
        ask_until_exhausted, *[(database_url, project.id, f"client {i}", 3) for i in range(4)]
    )
    assert [process.exitcode for process in processes] == [0] * 4
    after = ledger.project("study")
    assert (after.charges, after.spent) == (100, after.terms.budget)
    assert ledger.verify("study").ok


def test_simultaneous_first_askings_are_paid_once(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=50)
    results = at_once(8, lambda client: ledger.charge(project.id, [answered("same", client)]))
    paid = [receipt.results[0] for receipt in results if not receipt.results[0].replayed]
    assert len(paid) == 1
    assert {receipt.results[0].label for receipt in results} == {paid[0].label}
    assert ledger.project("study").charges == 1


def test_the_same_key_at_once_gives_the_same_receipt(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=50)
    key = ("key", digest("body"))
    batch = [answered(1), answered(2), answered(1)]
    receipts = at_once(8, lambda _: ledger.charge(project.id, batch, key))
    assert all(receipt.results == receipts[0].results for receipt in receipts)
    assert ledger.project("study").charges == 2


@pytest.mark.slow
def test_processes_that_ask_the_same_pay_once(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=50)
    processes = in_processes(
        ask_same, *[(database_url, project.id, 20, f"key {i % 2}") for i in range(4)]
    )
    assert [process.exitcode for process in processes] == [0] * 4
    assert ledger.project("study").charges == 20
    assert ledger.verify("study").ok


@pytest.mark.slow
def test_projects_opened_at_once_never_exceed_the_cap(database_url: str) -> None:
    """The cap holds 5 such budgets; 4 processes try 3 each."""
    ledger = open_ledger(database_url)
    cap = ledger.ensemble("mnist").cap
    share = replace(terms(1), budget=cap // 5, cap_budget=cap // 5)
    names = [[f"p{process}-{i}" for i in range(3)] for process in range(4)]
    processes = in_processes(open_projects, *[(database_url, mine, share, GNMAX) for mine in names])
    assert [process.exitcode for process in processes] == [0] * 4
    projects = ledger.projects()
    assert len(projects) == 5
    assert ledger.ensemble("mnist").reserved == 5 * (cap // 5)
    assert all(ledger.verify(project.name).ok for project in projects)


def test_one_name_opened_at_once_is_opened_once(database_url: str) -> None:
    ledger = open_ledger(database_url)

    def attempt(_: int) -> str:
        try:
            return open_project(ledger, queries=2).name
        except TerrineError as error:
            return error.problem

    assert sorted(at_once(6, attempt)) == ["conflict"] * 5 + ["study"]
    reserved = ledger.ensemble("mnist").reserved
    assert reserved == ledger.project("study").terms.cap_budget


def test_opening_charging_and_closing_at_once_keep_the_books_whole(database_url: str) -> None:
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=500)

    def work(client: int) -> None:
        for round in range(4):
            name = f"other-{client}-{round}"
            if client % 2:
                other = open_project(ledger, queries=3, name=name)
                ledger.charge(other.id, [answered(1)])
                ledger.set_status(name, ProjectStatus.CLOSED)
            else:
                ledger.charge(project.id, [answered(f"{client} {round}")])
            assert ledger.verify("study").ok

    at_once(6, work)
    assert all(ledger.verify(project.name).ok for project in ledger.projects())
    spent = sum(project.cap_spent for project in ledger.projects(status=ProjectStatus.CLOSED))
    assert ledger.ensemble("mnist").reserved == project.terms.cap_budget + spent


def test_a_project_closed_while_charging_keeps_what_was_paid(database_url: str) -> None:
    """Whichever comes first, the cap gets back exactly what was not spent."""
    ledger = open_ledger(database_url)
    project = open_project(ledger, queries=50)

    def work(client: int) -> None:
        if client == 3:
            ledger.set_status("study", ProjectStatus.CLOSED)
        else:
            with suppress(ProjectClosed):
                ledger.charge(project.id, [answered(client)])

    at_once(6, work)
    assert ledger.ensemble("mnist").reserved == ledger.project("study").cap_spent
    assert ledger.verify("study").ok


def test_two_engines_in_one_process_are_as_safe_as_two_processes(database_url: str) -> None:
    first = open_ledger(database_url)
    second = Ledger(connect(database_url), SECRET_KEY)
    project = open_project(first, queries=20)

    def ask(client: int) -> int:
        ledger = (first, second)[client % 2]
        try:
            results = ledger.charge(
                project.id, [answered(f"{client} {i}") for i in range(4)]
            ).results
        except BudgetExhausted:
            return 0
        return sum(result.seq is not None for result in results)

    assert sum(at_once(8, ask)) == 20
    assert first.verify("study").ok


def test_cap_is_not_exceeded_by_threads(database_url: str) -> None:
    ledger = open_ledger(database_url)
    cap = ledger.ensemble("mnist").cap
    share = replace(terms(1), budget=cap // 2 + 1, cap_budget=cap // 2 + 1)

    def attempt(client: int) -> bool:
        try:
            ledger.open_project(NewProject(f"project-{client}", "mnist", GNMAX, share))
        except CapExceeded:
            return False
        return True

    assert sum(at_once(4, attempt)) == 1
