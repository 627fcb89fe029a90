"""A request is decided once, together with what it opens, and is seen by whoever made it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from at_once import at_once
from books import GNMAX, digest, open_ledger, open_project, terms
from ledger_workers import die_approving
from migrated import SECRET_KEY
from processes import in_processes
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from terrine_protocol import ProjectStatus, RequestStatus, Role
from terrine_server.errors import CapExceeded, Conflict, NotFound, TerrineError
from terrine_server.ledger import Ledger, NewProject, NewToken, RequestRecord, connect
from terrine_server.ledger.requests import MOST_OPEN
from terrine_server.privacy import Terms

LATER = datetime(2100, 1, 1, tzinfo=UTC)
ASKED = {"mechanism": GNMAX, "epsilon": 1.0, "delta": 1e-5}
WORDS: Any = {"title": "More", "purpose": "To learn"}


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    """A study with two students, and an admin."""
    ledger = open_ledger(database_url)
    open_project(ledger, 1)
    for id, project in (("ada", "study"), ("ben", "study"), ("admin", None)):
        role = Role.ADMIN if project is None else Role.STUDENT
        ledger.create_token(
            NewToken(id=id, hash=digest(id), role=role, project=project, label=id, expires_at=LATER)
        )
    return ledger


def ask(ledger: Ledger, number: int, token: str = "ada") -> RequestRecord:
    words = {**WORDS, "title": f"More {number}"}
    return ledger.make_request(id=f"{number:016x}", token=token, asked=ASKED, **words)


def approve(ledger: Ledger, id: str, name: str, bought: Terms | None = None) -> Any:
    new = NewToken(name, digest(name), Role.STUDENT, name, "", LATER)
    project = NewProject(name, "mnist", GNMAX, bought or terms(2), **WORDS)
    return ledger.approve_request(id, project, new)


def everything(ledger: Ledger) -> list[object]:
    found: list[object] = [*ledger.ensembles(), *ledger.projects(), *ledger.list_tokens()]
    return [*found, *ledger.list_requests(), *ledger.log(limit=1000)]


def test_a_request_comes_back_as_it_was_made_to_whoever_made_it(ledger: Ledger) -> None:
    made = ask(ledger, 1)
    assert (made.token, made.token_project, made.ensemble) == ("ada", "study", "mnist")
    assert (made.title, made.purpose, made.asked) == ("More 1", "To learn", ASKED)
    assert (made.status, made.project, made.reason) == (RequestStatus.OPEN, None, None)
    assert ledger.find_request(made.id) == ledger.find_request(made.id, token="ada") == made
    others = ask(ledger, 2, "ben")
    for hidden in (others.id, "f" * 16):
        with pytest.raises(NotFound, match=f"There is no request {hidden}."):
            ledger.find_request(hidden, token="ada")
        with pytest.raises(NotFound, match=f"There is no request {hidden}."):
            ledger.list_requests("ada", after=hidden)
    assert ledger.list_requests("ada") == [made]
    assert ledger.list_requests() == [made, others]
    assert ledger.list_requests(after=made.id, limit=1) == [others]
    for token in ("admin", "nobody"):
        with pytest.raises(NotFound):
            ask(ledger, 3, token)


def test_a_request_is_refused_once_and_for_good(ledger: Ledger) -> None:
    made = ask(ledger, 1)
    refused = ledger.refuse_request(made.id, "Not now")
    assert (refused.status, refused.reason) == (RequestStatus.REFUSED, "Not now")
    assert refused.decided_at is not None
    assert ledger.list_requests(status=RequestStatus.OPEN) == []
    for act in (
        lambda: ledger.refuse_request(made.id, "Never"),
        lambda: approve(ledger, made.id, "second"),
    ):
        with pytest.raises(Conflict, match="refused already"):
            act()
    assert ledger.find_request(made.id) == refused
    assert ledger.project_names() == ["study"]
    assert ledger.verify_log().ok


def test_the_same_request_is_open_once_and_nobody_floods(ledger: Ledger) -> None:
    made = ask(ledger, 1)
    again = ledger.make_request(
        id="f" * 16, token="ada", title="More 1", purpose="To learn", asked=ASKED
    )
    assert again == made

    def asks(client: int) -> bool:
        try:
            ask(ledger, 10 + client)
        except Conflict:
            return False
        return True

    assert sum(at_once(6, asks)) == MOST_OPEN - 1
    assert len(ledger.list_requests("ada", RequestStatus.OPEN)) == MOST_OPEN
    ask(ledger, 30, "ben")
    ledger.refuse_request(made.id, "No")
    assert ask(ledger, 31).status is RequestStatus.OPEN


def test_admins_who_approve_at_once_open_one_project(ledger: Ledger, database_url: str) -> None:
    made, before = ask(ledger, 1), ledger.ensemble("mnist").reserved

    def approves(client: int) -> str | None:
        own = Ledger(connect(database_url), SECRET_KEY)
        try:
            approve(own, made.id, f"more-{client}")
        except Conflict:
            return None
        return f"more-{client}"

    [opened] = filter(None, at_once(4, approves))
    decided = ledger.find_request(made.id)
    assert (decided.status, decided.project) == (RequestStatus.APPROVED, opened)
    assert ledger.project_names() == [opened, "study"]
    assert [t.id for t in ledger.list_tokens(project=opened)] == [opened]
    assert ledger.ensemble("mnist").reserved == before + terms(2).cap_budget
    acts = [entry.action for entry in ledger.log(limit=3, newest=True)]
    assert acts == ["project-opened", "token-created", "request-approved"]
    assert ledger.verify_log().ok


def test_an_approval_that_opens_nothing_changes_nothing(ledger: Ledger) -> None:
    made = ask(ledger, 1)
    before = everything(ledger)
    large = replace(terms(2), cap_budget=ledger.ensemble("mnist").cap)
    acts: list[tuple[type[TerrineError], Callable[[], object]]] = [
        (CapExceeded, lambda: approve(ledger, made.id, "large", large)),
        (Conflict, lambda: approve(ledger, made.id, "study")),
        (NotFound, lambda: approve(ledger, "f" * 16, "none")),
    ]
    for kind, act in acts:
        with pytest.raises(kind):
            act()
        assert everything(ledger) == before


@pytest.mark.slow
def test_killed_in_mid_approval_it_is_done_as_a_whole_or_not_at_all(
    ledger: Ledger, database_url: str
) -> None:
    moments = ["INSERT INTO tokens", "UPDATE requests", "COMMIT"]
    made = [ask(ledger, number).id for number in range(len(moments))]
    before = everything(ledger)
    given = [(database_url, id, moment) for id, moment in zip(made, moments, strict=True)]
    processes = in_processes(die_approving, *given)
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * len(moments)
    assert everything(ledger) == before
    [process] = in_processes(die_approving, (database_url, made[0], "reply"))
    assert process.exitcode == -signal.SIGKILL
    decided = ledger.find_request(made[0])
    assert (decided.status, decided.project) == (RequestStatus.APPROVED, f"more-{made[0]}")
    assert len(ledger.list_tokens(project=decided.project)) == 1
    assert ledger.verify_log().ok
    approve(ledger, made[1], "after")  # nobody is left holding a lock


def test_the_database_forbids_to_change_what_was_asked_or_decided(
    ledger: Ledger, database_url: str
) -> None:
    made = ask(ledger, 1)
    approve(ledger, made.id, "more")
    for edit in (
        "UPDATE requests SET title = 'Less'",
        "UPDATE requests SET asked = '{}'",
        "UPDATE requests SET status = 'open', project_id = NULL, decided_at = NULL",
        "DELETE FROM requests",
        "UPDATE projects SET title = 'Less'",
        "UPDATE projects SET purpose = NULL WHERE name = 'more'",
    ):
        engine = connect(database_url)
        with pytest.raises(DBAPIError), engine.begin() as connection:
            connection.execute(text(edit))
        engine.dispose()
    assert ledger.find_request(made.id).project == "more"


def test_titles_and_purposes_are_those_of_the_log(ledger: Ledger) -> None:
    opened = ledger.open_project(NewProject("named", "mnist", GNMAX, terms(2), "Named", "To learn"))
    assert (opened.title, opened.purpose) == ("Named", "To learn")
    [entry] = ledger.log(limit=1, newest=True)
    assert (entry.detail["title"], entry.detail["purpose"]) == ("Named", "To learn")
    ledger.set_status("named", ProjectStatus.PAUSED)
    assert ledger.project("named").title == "Named"
    unnamed = ledger.project("study")
    assert (unnamed.title, unnamed.purpose) == (None, None)
    first = next(e for e in ledger.log(limit=100) if e.action == "project-opened")
    assert (first.detail["title"], first.detail["purpose"]) == (None, None)
    assert ledger.verify_log().ok
