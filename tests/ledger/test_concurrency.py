"""No interleaving of threads and processes overspends, charges twice or leaves a gap."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from support import processes
from support.databases import migrated
from support.ledgers import answered, charge_one, open_project
from support.processes import at_once, until
from support.wording import refuses
from support.workers import take_turn
from terrine_protocol import ProjectStatus
from terrine_server.errors import DatabaseUnavailable, ProjectClosed, ServiceError
from terrine_server.ledger import Ledger, connect, database, locks


@pytest.fixture
def ledger(each_ledger: Ledger) -> Ledger:
    return each_ledger


def test_simultaneous_first_askings_are_paid_once(ledger: Ledger) -> None:
    project = open_project(ledger, queries=50)
    results = at_once(8, lambda client: charge_one(ledger, project.id, [answered("same", client)]))
    paid = [receipt.results[0] for receipt in results if not receipt.results[0].replayed]
    assert len(paid) == 1
    assert {receipt.results[0].label for receipt in results} == {paid[0].label}
    assert ledger.projects.get("study").charges == 1


def test_one_name_opened_at_once_is_opened_once(ledger: Ledger) -> None:

    def attempt(_: int) -> str:
        try:
            return open_project(ledger, queries=2).name
        except ServiceError as error:
            return error.problem

    assert sorted(at_once(6, attempt)) == ["conflict"] * 5 + ["study"]
    reserved = ledger.ensembles.get("mnist").population.reserved
    assert reserved == ledger.projects.get("study").terms.cap_budget


def test_opening_charging_and_closing_at_once_keep_the_books_whole(ledger: Ledger) -> None:
    project = open_project(ledger, queries=500)

    def work(client: int) -> None:
        for round in range(2):
            name = f"other-{client}-{round}"
            if client % 2:
                other = open_project(ledger, queries=3, name=name)
                charge_one(ledger, other.id, [answered(1)])
                ledger.projects.set_status(name, ProjectStatus.CLOSED)
            else:
                charge_one(ledger, project.id, [answered(f"{client} {round}")])
            assert ledger.verifier.verify_project("study").ok

    at_once(6, work)
    assert all(
        ledger.verifier.verify_project(project.name).ok for project in ledger.projects.list()
    )
    spent = sum(project.cap_spent for project in ledger.projects.list(status=ProjectStatus.CLOSED))
    assert ledger.ensembles.get("mnist").population.reserved == project.terms.cap_budget + spent


def test_a_project_closed_while_charging_keeps_what_was_paid(ledger: Ledger) -> None:
    """Whichever comes first, the cap gets back exactly what was not spent."""
    project = open_project(ledger, queries=50)

    def work(client: int) -> None:
        if client == 3:
            ledger.projects.set_status("study", ProjectStatus.CLOSED)
        else:
            with suppress(ProjectClosed):
                charge_one(ledger, project.id, [answered(client)])

    at_once(6, work)
    assert (
        ledger.ensembles.get("mnist").population.reserved == ledger.projects.get("study").cap_spent
    )
    assert ledger.verifier.verify_project("study").ok


@pytest.mark.usefixtures("each_database_url")
def test_a_turn_ends_with_its_process_and_is_of_one_project(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated(database_url).dispose()
    taken = tmp_path / "taken"
    process = processes.start(take_turn, database_url, 7, str(taken))
    until(taken.exists)
    patient = connect(database_url)
    with locks.project_lock(patient, 8):
        pass
    for room in (database, locks):
        monkeypatch.setattr(room, "BUSY_SECONDS", 0.3)
    engine = connect(database_url, statement_seconds=0.3)
    with refuses(DatabaseUnavailable, "busy"), locks.project_lock(engine, 7):
        raise AssertionError("two have it")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    for room in (database, locks):
        monkeypatch.setattr(room, "BUSY_SECONDS", 30)
    with locks.project_lock(patient, 7):
        pass
    with refuses(ValueError, "within"), locks.project_lock(patient, 7):
        raise ValueError("within")
    with locks.project_lock(patient, 7):
        pass
    for each in (engine, patient):
        each.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_turn_that_cannot_be_given_back_does_not_undo_what_was_charged(database_url: str) -> None:
    """The connection that holds it is cut while it is held: the block ends as if nothing was."""
    engine, other = connect(database_url), connect(database_url)
    migrated(database_url).dispose()
    with locks.project_lock(engine, 7), other.begin() as connection:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        connection.exec_driver_sql(cut)
    with locks.project_lock(other, 7):
        pass
    engine.dispose()
    other.dispose()
