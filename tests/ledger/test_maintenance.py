"""All projects are paused at once, and exactly those go on afterwards."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from support.ledgers import LNMAX, answered, charge_one, open_ledger, open_project, unguarded
from support.wording import refuses
from terrine_protocol import ProjectStatus
from terrine_server.errors import LedgerCorrupted, ProjectPaused
from terrine_server.ledger import Actor, Ledger

ADA = Actor("token:ada")


@pytest.fixture
def ledger(each_database_url: str) -> Ledger:
    """`a`, `b` and `c` answer, `resting` is paused, `done` is closed."""
    ledger = open_ledger(each_database_url)
    for name in ("c", "b", "a", "resting", "done"):
        open_project(ledger, 3, LNMAX, name=name)
    ledger.projects.set_status("resting", ProjectStatus.PAUSED)
    ledger.projects.set_status("done", ProjectStatus.CLOSED)
    return ledger


def active(ledger: Ledger) -> list[str]:
    return [each.name for each in ledger.projects.list(status=ProjectStatus.ACTIVE)]


def test_what_was_paused_for_maintenance_goes_on_and_nothing_else(ledger: Ledger) -> None:
    assert ledger.projects.maintenance() is None
    assert ledger.projects.resume_all(ADA) == []
    before = ledger.verifier.verify_log().entries
    assert ledger.projects.pause_all(ADA) == ["a", "b", "c"]
    assert active(ledger) == []
    with pytest.raises(ProjectPaused):
        charge_one(ledger, ledger.projects.get("a").id, [answered(1)])
    found = ledger.projects.maintenance()
    assert found is not None
    assert (found.by, found.paused) == (ADA.who, ["a", "b", "c"])

    assert ledger.projects.resume_all(ADA) == ["a", "b", "c"]
    assert active(ledger) == ["a", "b", "c"]
    assert ledger.projects.maintenance() is None
    assert ledger.projects.resume_all(ADA) == []
    charge_one(ledger, ledger.projects.get("a").id, [answered(1)])
    assert ledger.verifier.verify_log().problems == []
    told = [(entry.action, entry.subject, entry.actor) for entry in ledger.log.list(before)]
    assert told == [
        *(("project-paused", name, ADA.who) for name in ("c", "b", "a")),
        ("maintenance-begun", "projects", ADA.who),
        *(("project-resumed", name, ADA.who) for name in ("a", "b", "c")),
        ("maintenance-ended", "projects", ADA.who),
    ]


def test_what_is_decided_of_one_project_meanwhile_stays(ledger: Ledger) -> None:
    ledger.projects.pause_all()
    ledger.projects.set_status("a", ProjectStatus.ACTIVE)
    ledger.projects.set_status("a", ProjectStatus.PAUSED)
    ledger.projects.set_status("b", ProjectStatus.CLOSED)
    open_project(ledger, 1, LNMAX, name="new")
    assert ledger.projects.resume_all() == ["c"]
    assert active(ledger) == ["c", "new"]
    assert ledger.projects.get("a").status is ProjectStatus.PAUSED


def test_pausing_all_again_adds_what_is_active_by_then(ledger: Ledger) -> None:
    ledger.projects.pause_all()
    assert ledger.projects.pause_all() == []
    open_project(ledger, 1, LNMAX, name="new")
    ledger.projects.set_status("b", ProjectStatus.ACTIVE)
    assert ledger.projects.pause_all() == ["b", "new"]
    assert ledger.projects.resume_all() == ["a", "b", "c", "new"]
    ledger.projects.pause_all()
    ledger.projects.resume_all()
    assert ledger.projects.maintenance() is None, "the second is another one"


def test_a_project_may_be_called_as_the_log_calls_all_of_them(ledger: Ledger) -> None:
    open_project(ledger, 1, LNMAX, name="projects")
    ledger.projects.pause_all()
    ledger.projects.set_status("projects", ProjectStatus.ACTIVE)
    assert ledger.projects.resume_all() == ["a", "b", "c"]
    ledger.projects.set_status("projects", ProjectStatus.PAUSED)
    assert ledger.projects.maintenance() is None


def test_after_a_restore_each_project_is_resumed_by_its_name(ledger: Ledger) -> None:
    """A backup may well have been made during a maintenance."""
    ledger.projects.pause_all()
    ledger.projects.fill_accounts()
    assert ledger.projects.maintenance() is None
    assert ledger.projects.resume_all() == []
    assert active(ledger) == []


def test_what_to_resume_is_not_taken_from_an_edited_log(
    ledger: Ledger, each_database_url: str
) -> None:
    ledger.projects.pause_all()
    edit = (
        'UPDATE administrative_log SET detail = \'{"paused":["resting"]}\' '
        "WHERE action = 'maintenance-begun'"
    )
    with unguarded(each_database_url, with_key=False) as connection:
        connection.execute(text(edit))
        connection.commit()
    with refuses(LedgerCorrupted, "log"):
        ledger.projects.resume_all()
    assert active(ledger) == []
