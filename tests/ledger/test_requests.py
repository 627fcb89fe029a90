"""A request is decided once, together with what it opens, and is seen by whoever made it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from support.databases import SECRET_KEY, SQLITE_BY_DAY
from support.ledgers import GNMAX, digest, open_ledger, open_project, terms
from support.processes import at_once, in_processes
from support.wording import refuses
from support.workers import die_approving
from terrine_protocol import RequestStatus, Role
from terrine_server.errors import CapExceeded, Conflict, NotFound, ServiceError
from terrine_server.ledger import Ledger, NewProject, NewToken, RequestRecord, connect
from terrine_server.ledger.tokens import MAX_OPEN_REQUESTS
from terrine_server.privacy import Terms

LATER = datetime(2100, 1, 1, tzinfo=UTC)
ASKED = {"mechanism": GNMAX, "epsilon": 1.0, "delta": 1e-5}
WORDS: Any = {"title": "More", "purpose": "To learn"}


def attended(url: str) -> Ledger:
    """A study with two students, and an admin."""
    ledger = open_ledger(url)
    open_project(ledger, 1)
    for id, project in (("ada", "study"), ("ben", "study"), ("admin", None)):
        role = Role.ADMIN if project is None else Role.STUDENT
        ledger.create_token(
            NewToken(id=id, hash=digest(id), role=role, project=project, label=id, expires_at=LATER)
        )
    return ledger


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return attended(database_url)


@pytest.fixture
def each_ledger(each_database_url: str) -> Ledger:
    return attended(each_database_url)


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


@SQLITE_BY_DAY
def test_a_request_comes_back_as_it_was_made_to_whoever_made_it(each_ledger: Ledger) -> None:
    made = ask(each_ledger, 1)
    assert (made.token, made.token_project, made.ensemble) == ("ada", "study", "mnist")
    assert (made.title, made.purpose, made.asked) == ("More 1", "To learn", ASKED)
    assert (made.status, made.project, made.reason) == (RequestStatus.OPEN, None, None)
    assert (
        each_ledger.find_request(made.id) == each_ledger.find_request(made.id, token="ada") == made
    )
    others = ask(each_ledger, 2, "ben")
    for hidden in (others.id, "f" * 16):
        with refuses(NotFound, hidden):
            each_ledger.find_request(hidden, token="ada")
        with refuses(NotFound, hidden):
            each_ledger.list_requests("ada", after=hidden)
    assert each_ledger.list_requests("ada") == [made]
    assert each_ledger.list_requests() == [made, others]
    assert each_ledger.list_requests(after=made.id, limit=1) == [others]
    for token in ("admin", "nobody"):
        with pytest.raises(NotFound):
            ask(each_ledger, 3, token)


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
        with pytest.raises(Conflict):
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

    assert sum(at_once(6, asks)) == MAX_OPEN_REQUESTS - 1
    assert len(ledger.list_requests("ada", RequestStatus.OPEN)) == MAX_OPEN_REQUESTS
    ask(ledger, 30, "ben")
    ledger.refuse_request(made.id, "No")
    assert ask(ledger, 31).status is RequestStatus.OPEN


def test_admins_who_approve_at_once_open_one_project(
    each_ledger: Ledger, each_database_url: str
) -> None:
    made, before = ask(each_ledger, 1), each_ledger.ensemble("mnist").population.reserved

    def approves(client: int) -> str | None:
        own = Ledger(connect(each_database_url), SECRET_KEY)
        try:
            approve(own, made.id, f"more-{client}")
        except Conflict:
            return None
        return f"more-{client}"

    [opened] = filter(None, at_once(4, approves))
    decided = each_ledger.find_request(made.id)
    assert (decided.status, decided.project) == (RequestStatus.APPROVED, opened)
    assert each_ledger.project_names() == [opened, "study"]
    assert [t.id for t in each_ledger.list_tokens(project=opened)] == [opened]
    assert each_ledger.ensemble("mnist").population.reserved == before + terms(2).cap_budget
    acts = [entry.action for entry in each_ledger.log(limit=3, newest=True)]
    assert acts == ["project-opened", "token-created", "request-approved"]
    assert each_ledger.verify_log().ok


def test_an_approval_that_opens_nothing_changes_nothing(ledger: Ledger) -> None:
    made = ask(ledger, 1)
    before = everything(ledger)
    large = replace(terms(2), cap_budget=ledger.ensemble("mnist").population.cap)
    acts: list[tuple[type[ServiceError], Callable[[], object]]] = [
        (CapExceeded, lambda: approve(ledger, made.id, "large", large)),
        (Conflict, lambda: approve(ledger, made.id, "study")),
        (NotFound, lambda: approve(ledger, "f" * 16, "none")),
    ]
    for kind, act in acts:
        with pytest.raises(kind):
            act()
        assert everything(ledger) == before


@SQLITE_BY_DAY
@pytest.mark.slow
def test_killed_in_mid_approval_it_is_done_as_a_whole_or_not_at_all(
    each_ledger: Ledger, each_database_url: str
) -> None:
    moments = ["INSERT INTO tokens", "UPDATE requests", "COMMIT"]
    made = [ask(each_ledger, number).id for number in range(len(moments))]
    before = everything(each_ledger)
    given = [(each_database_url, id, moment) for id, moment in zip(made, moments, strict=True)]
    processes = in_processes(die_approving, *given)
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * len(moments)
    assert everything(each_ledger) == before
    [process] = in_processes(die_approving, (each_database_url, made[0], "reply"))
    assert process.exitcode == -signal.SIGKILL
    decided = each_ledger.find_request(made[0])
    assert (decided.status, decided.project) == (RequestStatus.APPROVED, f"more-{made[0]}")
    assert len(each_ledger.list_tokens(project=decided.project)) == 1
    assert each_ledger.verify_log().ok
    approve(each_ledger, made[1], "after")  # nobody is left holding a lock
