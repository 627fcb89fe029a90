"""`GET /log`: who did what, through the API, the command line or another program."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from support.clients import Caller, slug
from support.servers import RunningServer
from support.wording import holds
from terrine_protocol import LogEntry, LogPage, LogVerification
from terrine_server.ledger import connect
from terrine_server.owner import operations

Call = Callable[..., Caller]
TERMS: dict[str, Any] = {
    "name": "study",
    "ensemble": "digits",
    "mechanism": {"name": "gnmax", "sigma": 4.0},
    "epsilon": 5.0,
    "delta": 1e-5,
}


def logged(caller: Caller) -> list[LogEntry]:
    page = caller.http.get("/log", params={"cursor": "", "limit": 1000})
    return LogPage.model_validate_json(page.content).items


@pytest.mark.usefixtures("each_database_url")
def test_every_act_of_an_admin_is_logged_with_its_token_and_request(call: Call) -> None:
    admin = call("admin")
    before = len(logged(admin))
    own = logged(admin)[-1]
    assert (own.action, own.actor.partition(":")[0]) == ("token-created", "local")
    acts: list[tuple[str, Callable[[], Any]]] = [
        ("project-opened", lambda: admin.http.post("/projects", json=TERMS)),
        ("project-paused", lambda: admin.http.patch("/projects/study", json={"status": "paused"})),
        ("project-resumed", lambda: admin.http.patch("/projects/study", json={"status": "active"})),
        (
            "token-created",
            lambda: admin.http.post("/tokens", json={"role": "student", "project": "study"}),
        ),
        (
            "ledger-exported",
            lambda: admin.http.get("/ledger/study", headers={"Accept": "text/csv"}),
        ),
        ("project-closed", lambda: admin.http.patch("/projects/study", json={"status": "closed"})),
    ]
    replies = [act() for _, act in acts]
    assert all(reply.is_success for reply in replies), [reply.text for reply in replies]
    student = replies[3].json()
    replies.append(admin.http.delete(f"/tokens/{student['id']}"))
    entries = logged(admin)[before:]
    assert [entry.action for entry in entries] == [*(action for action, _ in acts), "token-revoked"]
    assert {entry.actor for entry in entries} == {f"token:{own.subject}"}
    assert [entry.request_id for entry in entries] == [r.headers["x-request-id"] for r in replies]
    made, revoked = entries[3], entries[-1]
    assert made.subject == revoked.subject == student["id"]
    assert made.detail["expires_at"][:19] == student["expires_at"][:19]
    assert (made.detail["role"], made.detail["revoked_at"]) == ("student", None)
    assert revoked.detail["revoked_at"] is not None
    assert student["token"] not in str([entry.model_dump() for entry in entries])
    assert all(entry.created_at <= datetime.now(UTC) for entry in entries)


def test_refused_acts_and_repeated_ones_leave_no_entry(call: Call) -> None:
    admin = call("admin")
    admin.http.post("/projects", json=TERMS)
    before = logged(admin)
    assert slug(admin.http.post("/projects", json=TERMS)) == "conflict"
    assert slug(admin.http.patch("/projects/none", json={"status": "paused"})) == "not-found"
    assert admin.http.patch("/projects/study", json={"status": "active"}).is_success
    assert logged(admin) == before


def test_it_is_read_and_verified_by_auditors_and_not_by_students(
    terrine_server: RunningServer, call: Call
) -> None:
    call("admin").http.post("/projects", json=TERMS)
    auditor = call("auditor")
    whole = logged(auditor)
    assert len(whole) >= 4
    assert [entry.seq for entry in whole] == list(range(1, len(whole) + 1))
    assert auditor.http.get("/log").json()["items"][0]["action"] == "ledger-initialised"
    verdict = LogVerification.model_validate_json(auditor.http.get("/log/verify").content)
    assert (verdict.ok, verdict.entries, verdict.head) == (True, len(whole), whole[-1].hash)


def test_what_the_machine_does_is_logged_beside_it_and_edits_are_found(
    terrine_server: RunningServer, call: Call
) -> None:
    auditor = call("auditor")
    project = terrine_server.open_project("study")
    list(operations.export(terrine_server.ledger, project.name))
    opened, exported = logged(auditor)[-2:]
    assert (opened.action, exported.action) == ("project-opened", "ledger-exported")
    assert opened.actor.startswith("local:")
    assert opened.request_id is None
    engine = connect(terrine_server.settings.database)
    token = next(entry.subject for entry in logged(auditor) if entry.action == "token-created")
    with engine.begin() as connection:
        connection.execute(text("UPDATE tokens SET role = 'admin' WHERE id = :id"), {"id": token})
    engine.dispose()
    assert slug(auditor.http.get("/log")) == "unauthorized", "it was edited"
    verdict = call("auditor").http.get("/log/verify").json()
    assert not verdict["ok"]
    holds(verdict["problems"], token, "role", "'admin'", "'auditor'")
