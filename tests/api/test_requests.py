"""Requests over HTTP, with the client and at the command line: who sees what, and what is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.clients import Caller, slug
from support.data import DigitsEnsemble
from support.databases import SQLITE_BY_DAY
from support.processes import Terrine
from support.servers import RunningServer, running_server
from support.wording import holds, refuses
from terrine_client import BudgetExhausted, Client, Conflict, NotFound
from terrine_protocol import (
    GNMaxSpec,
    ProjectStatus,
    RequestAccount,
    RequestApprove,
    RequestApproved,
    RequestInfo,
    RequestPage,
    RequestStatus,
)

Call = Callable[..., Caller]
MORE: dict[str, Any] = {"title": "More", "purpose": "To learn", "epsilon": 2.0}


@pytest.fixture
def study(terrine_server: RunningServer) -> RunningServer:
    terrine_server.open_project("study")
    return terrine_server


@SQLITE_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_a_request_is_made_seen_by_its_maker_alone_and_approved(
    study: RunningServer, call: Call
) -> None:
    student, other, admin, auditor = (
        call(),
        call(),
        call("admin", expires_in_days=60),
        call("auditor"),
    )
    made = student.http.post("/requests", json=MORE)
    assert made.status_code == 201
    info = RequestInfo.model_validate_json(made.content)
    assert made.headers["Location"] == f"/requests/{info.id}"
    assert (info.mechanism, info.delta) == (GNMaxSpec(name="gnmax", sigma=4.0), 1e-5)
    again = student.http.post("/requests", json=MORE)
    assert (again.status_code, again.json()) == (200, made.json())
    assert student.http.get(f"/requests/{info.id}").json() == made.json()
    assert student.http.get("/requests").json() == {"items": [made.json()], "next": None}

    hidden, absent = (other.http.get(f"/requests/{id}") for id in (info.id, "f" * 16))
    assert slug(hidden) == slug(absent) == "not-found"
    assert other.http.get("/requests").json() == {"items": [], "next": None}
    assert slug(other.http.get("/requests", params={"cursor": info.id})) == "not-found"
    for caller in (admin, auditor):
        assert slug(caller.http.post("/requests", json=MORE)) == "forbidden"
    for caller in (student, auditor):
        for act, body in (("approve", {"name": "more"}), ("refuse", {"reason": "No"})):
            assert slug(caller.http.post(f"/requests/{info.id}/{act}", json=body)) == "forbidden"

    page = RequestPage.model_validate_json(auditor.http.get("/requests").content)
    [account] = page.items
    assert isinstance(account, RequestAccount)
    assert (account.id, account.token_project, account.approval) == (info.id, "study", None)
    seen = RequestAccount.model_validate_json(admin.http.get(f"/requests/{info.id}").content)
    assert seen.approval is not None
    assert seen.approval.fits
    refused = admin.http.post(f"/requests/{info.id}/approve", json={"name": "study"})
    assert slug(refused) == "conflict"
    much = admin.http.post(f"/requests/{info.id}/approve", json={"name": "more", "epsilon": 60.0})
    assert slug(much) == "cap-exceeded"
    named: dict[str, Any] = {"name": "more", "token_expires_in_days": 30}
    done = admin.http.post(f"/requests/{info.id}/approve", json=named)
    assert done.status_code == 201, done.text
    approved = RequestApproved.model_validate_json(done.content)
    assert (approved.project.title, approved.project.epsilon) == ("More", 2.0)
    reserved = study.ledger.ensemble("digits").population.reserved
    assert seen.approval.reserved == reserved, "as it was said before"
    assert approved.token is not None
    told = student.http.get(f"/requests/{info.id}").json()
    assert (told["status"], told["project"]) == ("approved", "more")
    assert not {"token", "token_project", "approval"} & set(told)
    assert slug(admin.http.post(f"/requests/{info.id}/approve", json=named)) == "conflict"
    with Client(study.url, approved.token.token) as client:
        assert client.project().purpose == "To learn"
        assert len(client.label(study.ensemble.public[:2])) == 2


def test_what_a_student_is_told_depends_on_nobody_else(study: RunningServer, call: Call) -> None:
    """A cap that others have taken, and names that others have, change no reply."""
    student = call()
    study.open_project("full", epsilon=44.0)
    more = {"epsilon": 100.0, "title": "full"}
    assert student.http.post("/requests", json=MORE | more).status_code == 201
    for wrong, why in (
        ({"mechanism": {"name": "noisy_votes", "sigma": 1e-9}}, "invalid-terms"),
        ({"ensemble": "digits"}, "invalid-request"),
        ({"title": "\u202e"}, "invalid-request"),
        ({"epsilon": "2"}, "invalid-request"),
        ({"purpose": "x" * 1001}, "invalid-request"),
    ):
        assert slug(student.http.post("/requests", json=MORE | wrong)) == why, wrong
    study.ledger.set_status("study", ProjectStatus.CLOSED)  # whose token may still ask
    assert student.http.post("/requests", json=MORE).status_code == 201


def test_the_client_asks_follows_and_decides(study: RunningServer) -> None:
    words, other = ("More", "To learn", 2.0), GNMaxSpec(name="gnmax", sigma=40)
    with (
        Client(study.url, study.token()) as student,
        Client(study.url, study.token("admin")) as admin,
    ):
        made = student.request_project(*words)
        assert student.request_project(*words) == made
        others = [student.request_project(f"More {n}", "To learn", 2.0, delta=1e-6) for n in (1, 2)]
        with refuses(Conflict, 3):
            student.request_project("More 3", *words[1:], mechanism=other)
        assert [each.id for each in student.requests()] == [each.id for each in (made, *others)]
        refused = admin.refuse_request(made.id, "Not now")
        assert (refused.status, student.request(made.id).reason) == ("refused", "Not now")
        done = admin.approve_request(others[0].id, RequestApprove(name="more", epsilon=3.0))
        assert (done.project.epsilon, done.token) == (3.0, None)
        assert [each.id for each in admin.requests(RequestStatus.OPEN)] == [others[1].id]
        with pytest.raises(NotFound):
            student.request("f" * 16)


def test_whoever_has_spent_a_budget_is_told_whom_to_ask(
    tmp_path: Any, database_url: str, digits_ensemble: DigitsEnsemble
) -> None:
    contact = "Data office, data@hospital.example"
    with running_server(tmp_path, database_url, digits_ensemble, contact=contact) as server:
        server.open_project("study", epsilon=3.0)
        with Client(server.url, server.token()) as client:
            left = client.budget().affordable
            client.label(server.ensemble.public[:left])
            with refuses(BudgetExhausted, "data@hospital.example") as caught:
                client.label(server.ensemble.public[left : left + 1])
            assert caught.value.contact == contact
            with pytest.raises(NotFound) as other:
                client.request("f" * 16)
            assert other.value.contact is None


def test_the_commands_do_what_the_api_does(
    study: RunningServer, terrine: Terrine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in study.variables.items():
        monkeypatch.setenv(name, value)
    with (
        capture_logs(),  # the server would write its own among what the commands print
        Client(study.url, study.token()) as student,
        Client(study.url, study.token("admin")) as admin,
    ):
        made = [student.request_project(f"[b]{n}[/b]", "To learn", 2.0) for n in range(3)]
        listed = json.loads(terrine("--json", "request", "show").fine)
        assert listed == [each.model_dump(mode="json") for each in admin.requests()]
        assert "[b]1[/b]" in terrine("request", "show").fine
        shown = json.loads(terrine("--json", "request", "show", made[0].id).fine)
        assert shown == admin.request(made[0].id).model_dump(mode="json")
        holds(terrine("request", "show", made[0].id).fine, "cap", "reserved")
        approval = ("request", "approve", made[0].id, "--name", "more")
        said = terrine(*approval, "--mechanism", "gnmax:sigma").refused
        holds(said, "PARAMETER=VALUE")
        assert "--epsilon" in terrine(*approval, "--epsilon", "-1").refused
        with_token = terrine(*approval, "--epsilon", 3, "--token-expires-in-days", 5)
        with Client(study.url, with_token.fine.strip()) as new:
            assert (new.project().name, new.project().epsilon) == ("more", 3.0)
        holds(terrine(*approval).refused, "approved", "already")
        of = ("--name", "other", "--mechanism", "gnmax:sigma=40")
        other = ("request", "approve", made[1].id, *of)
        opened = json.loads(terrine("--json", *other).fine)
        assert opened["project"]["mechanism"]["sigma"] == 40
        assert "refused" in terrine("request", "refuse", made[2].id, "--reason", "Not now").fine
        assert student.request(made[2].id).reason == "Not now"
        actors = {e.actor for e in study.ledger.log(limit=3, newest=True)}
        assert all(actor.startswith("local:") for actor in actors)
    opened_so = (
        "project",
        "open",
        "named",
        "--ensemble",
        "digits",
        "--mechanism",
        "gnmax:sigma=40",
    )
    terms = ("--epsilon", 2, "--delta", 1e-5)
    assert "Sepsis" in terrine(*opened_so, *terms, "--title", "Sepsis", "--purpose", "To warn").fine
