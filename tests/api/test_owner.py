"""The data owner's and the auditor's routes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from support.clients import Caller, slug
from support.databases import as_owner
from support.servers import RunningServer
from support.wording import holds
from terrine_protocol import (
    BudgetPage,
    EnsembleInfo,
    LedgerPage,
    ProjectInfo,
    ProjectPage,
    TokenCreated,
    TokenInfo,
    TokenPage,
    Verification,
)
from terrine_server.ledger import connect

Call = Callable[..., Caller]
TERMS: dict[str, Any] = {
    "name": "study",
    "ensemble": "digits",
    "mechanism": {"name": "gnmax", "sigma": 4.0},
    "epsilon": 5.0,
    "delta": 1e-5,
}


@pytest.mark.usefixtures("each_database_url")
def test_an_act_that_the_database_ignores_is_no_success_and_the_server_not_ready(
    call: Call, terrine_server: RunningServer, database_url: str
) -> None:
    """A trigger that somebody added swallows it; nothing that is stored shows that."""
    admin = call("admin")
    assert admin.http.post("/projects", json=TERMS).status_code == 201
    assert admin.http.get("/readyz").status_code == 200
    engine = connect(as_owner(database_url))
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql(
                "CREATE TRIGGER quiet BEFORE UPDATE ON projects BEGIN SELECT RAISE(IGNORE); END"
            )
        else:
            connection.exec_driver_sql(
                "CREATE RULE quiet AS ON UPDATE TO projects DO INSTEAD NOTHING"
            )
    engine.dispose()
    paused = admin.http.patch("/projects/study", json={"status": "paused"})
    assert (paused.status_code, slug(paused)) == (503, "ledger-corrupted")
    assert admin.http.get("/projects/study").json()["status"] == "active"
    ready = admin.http.get("/readyz")
    assert ready.status_code == 503
    assert "quiet" not in ready.text
    auditor = call("auditor")
    found = auditor.http.get("/ledger/study/verify").json()
    assert not found["ok"]
    assert found["problems"] == [
        f"schema: added: {'trigger' if 'sqlite' in database_url else 'rule'} quiet of projects"
    ]
    assert auditor.http.get("/log/verify").json()["problems"] == found["problems"]


@pytest.mark.usefixtures("each_database_url")
def test_a_project_is_opened_read_listed_and_closed(call: Call) -> None:
    admin = call("admin")
    opened = admin.http.post("/projects", json=TERMS)
    assert opened.status_code == 201
    assert opened.headers["Location"] == "/projects/study"
    info = ProjectInfo.model_validate_json(opened.content)
    assert info.mechanism.model_dump() == TERMS["mechanism"]
    said = {key: value for key, value in opened.json().items() if key != "warning"}
    assert admin.http.get("/projects/study").json() == said
    for name in ("a-third", "another"):
        assert admin.http.post("/projects", json=TERMS | {"name": name}).status_code == 201

    def listed(**filters: str) -> list[str]:
        page = admin.http.get("/projects", params={"cursor": ""} | filters)
        return [project.name for project in ProjectPage.model_validate_json(page.content).items]

    assert listed() == ["a-third", "another", "study"]
    admin.http.patch("/projects/another", json={"status": "closed"})
    assert listed(status="closed") == ["another"]


def test_a_budget_that_buys_too_little_is_opened_with_a_warning(call: Call) -> None:
    admin = call("admin")
    poor = admin.http.post("/projects", json=TERMS)
    holds(poor.json()["warning"], 10, "classes")
    assert "warning" not in admin.http.get("/projects/study").json()
    terms = {"name": "rich", "epsilon": 20.0, "mechanism": {"name": "gnmax", "sigma": 40.0}}
    rich = admin.http.post("/projects", json=TERMS | terms)
    assert rich.status_code == 201
    assert "warning" not in rich.json()


@pytest.mark.parametrize(
    ("mechanism", "event"),
    [
        ({"name": "lnmax", "gamma": 0.4}, "laplace_argmax"),
        ({"name": "gnmax", "sigma": 4.0}, "gaussian_argmax"),
    ],
)
def test_a_new_project_pays_for_answers_alone(
    terrine_server: RunningServer, call: Call, mechanism: dict[str, Any], event: str
) -> None:
    admin = call("admin")
    opened = admin.http.post("/projects", json=TERMS | {"mechanism": mechanism})
    assert opened.status_code == 201
    assert opened.json()["mechanism"] == mechanism
    call().label(terrine_server.ensemble.public[:2])
    page = admin.http.get("/ledger/study").json()
    assert {charge["event"]["event"] for charge in page["items"]} == {event}
    assert terrine_server.ledger.verifier.verify_project("study").problems == []


def test_invalid_terms_open_no_project(terrine_server: RunningServer, call: Call) -> None:
    admin = call("admin")

    def mechanism(name: str, **parameters: Any) -> dict[str, Any]:
        return {"mechanism": {"name": name} | parameters}

    confident = {"threshold": 25, "sigma1": 8.0, "sigma2": 4.0}
    cases: list[tuple[dict[str, Any], str]] = [
        (mechanism("gnmax", sigma=0), "invalid-terms"),
        (mechanism("gnmax", sigma=-1), "invalid-terms"),
        (mechanism("gnmax", sigma=1e-3), "invalid-terms"),
        (mechanism("gnmax", sigma=1e9), "invalid-terms"),
        (mechanism("gnmax"), "invalid-request"),
        (mechanism("gnmax", sigma=4, gamma=1), "invalid-request"),
        (mechanism("votes"), "invalid-request"),
        (mechanism("lnmax", gamma=0), "invalid-terms"),
        (mechanism("confident_gnmax", **confident | {"threshold": 41}), "invalid-terms"),
        (mechanism("confident_gnmax", **confident | {"threshold": -1}), "invalid-terms"),
        (mechanism("immutable", c=1), "invalid-terms"),
        (mechanism("immutable", c=1, sigma=4, gamma=1), "invalid-terms"),
        (mechanism("immutable", c=1, gamma=0.2, pricing="as_published"), "invalid-request"),
        (mechanism("stable", sigma=8, delta_per_query=0.5), "invalid-terms"),
        ({"epsilon": -1}, "invalid-request"),
        ({"epsilon": 0}, "invalid-request"),
        ({"epsilon": 1e9}, "invalid-request"),
        ({"epsilon": "Infinity"}, "invalid-request"),
        ({"epsilon": 1e-6}, "invalid-terms"),
        ({"delta": 0}, "invalid-request"),
        ({"delta": 1}, "invalid-request"),
        ({"delta": 1 / 1200}, "invalid-terms"),
        ({"name": "No Good"}, "invalid-request"),
        ({"ensemble": "nowhere"}, "not-found"),
        ({"colour": "red"}, "invalid-request"),
        ({"epsilon": 60}, "cap-exceeded"),
    ]
    for change, expected in cases:
        refused = admin.http.post("/projects", json=TERMS | change)
        assert slug(refused) == expected, (change, refused.text)
    refused = admin.http.post("/projects", json=TERMS | {"epsilon": -1, "colour": "red"})
    fields = {error["field"] for error in refused.json()["errors"]}
    assert fields == {"body.epsilon", "body.colour"}, "every malformed field is named"
    raw = admin.http.post("/projects", content=b'{"epsilon": Infinity, "delta": NaN}')
    assert slug(raw) == "invalid-request"
    assert terrine_server.ledger.projects.list() == []
    assert terrine_server.ledger.ensembles.get("digits").population.reserved == 0
    assert admin.http.post("/projects", json=TERMS).status_code == 201
    assert slug(admin.http.post("/projects", json=TERMS)) == "conflict"


def test_a_token_is_shown_once_and_refused_once_revoked(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    admin = call("admin")
    request = {"role": "student", "project": "study", "label": "Ada", "expires_in_days": 2}
    made = admin.http.post("/tokens", json=request)
    assert made.status_code == 201
    token = TokenCreated.model_validate_json(made.content)
    assert token.expires_at - token.created_at <= timedelta(days=2, seconds=1)
    student = Caller(terrine_server, token.token)
    assert student.http.get("/budget").status_code == 200

    listed = admin.http.get("/tokens?cursor=")
    assert token.token not in listed.text
    assert token.id in {one.id for one in TokenPage.model_validate_json(listed.content).items}
    revoked = admin.http.delete(f"/tokens/{token.id}")
    assert TokenInfo.model_validate_json(revoked.content).revoked_at is not None
    assert slug(student.http.get("/budget")) == "unauthorized"

    assert slug(admin.http.delete("/tokens/0123456789abcdef")) == "not-found"
    assert slug(admin.http.post("/tokens", json=request | {"project": "nobody"})) == "not-found"
    for wrong in (
        {"role": "student"},
        {"role": "admin", "project": "study"},
        {"role": "king"},
        request | {"expires_in_days": 0},
        request | {"label": "a\x00b"},
        request | {"label": "a\x9bb"},
        request | {"label": "a\u202eb"},
        request | {"label": "a\u2066b"},
        request | {"label": "a\u200bb"},
        request | {"scope": "all"},
    ):
        assert slug(admin.http.post("/tokens", json=wrong)) == "invalid-request"


def test_a_copy_of_the_database_holds_no_token(
    terrine_server: RunningServer, database_url: str
) -> None:
    token = terrine_server.token("admin")
    record = terrine_server.ledger.tokens.find(token.split("_")[1])
    assert record is not None
    assert token.split("_")[2] not in repr(record)
    assert len(record.hash) == 32


def test_a_student_sees_its_own_ensemble_and_not_the_owners_account(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    (seen,) = call().http.get("/ensembles").json()
    assert EnsembleInfo.model_validate(seen).teachers == 40
    assert "cap" not in seen
    assert "reserved" not in seen


def test_the_ledger_is_the_same_in_json_and_csv_and_is_verified(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project("b")
    call("student", "b").label(terrine_server.ensemble.public[:7])
    auditor = call("auditor")
    page = BudgetPage.model_validate_json(auditor.http.get("/ledger").content)
    assert [budget.project for budget in page.items] == ["b"]
    entries = LedgerPage.model_validate_json(auditor.http.get("/ledger/b").content).items
    assert [entry.seq for entry in entries] == list(range(1, 8))

    table = auditor.http.get("/ledger/b", headers={"Accept": "text/csv"})
    assert table.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [int(row["seq"]) for row in rows] == list(range(1, 8))
    assert [row["hash"] for row in rows] == [entry.hash for entry in entries]
    assert [int(row["cost"]) for row in rows] == [entry.cost for entry in entries]

    verified = Verification.model_validate_json(auditor.http.get("/ledger/b/verify").content)
    assert verified.ok
    assert verified.head == entries[-1].hash
    assert slug(auditor.http.get("/ledger/nobody")) == "not-found"
    assert slug(auditor.http.get("/ledger/nobody/verify")) == "not-found"


def test_the_ledger_is_filtered_by_outcome_and_time(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    call().label(terrine_server.ensemble.public[:4])
    auditor = call("auditor")

    def count(**filters: Any) -> int:
        as_json = auditor.http.get("/ledger/study", params=filters).json()["items"]
        as_csv = auditor.http.get(
            "/ledger/study", params=filters, headers={"Accept": "text/csv"}
        ).text
        assert len(as_json) == as_csv.count("\n") - 1
        return len(as_json)

    now = datetime.now(UTC)
    assert count() == count(outcome="answered") == 4
    assert count(outcome="abstained") == 0
    assert count(since=(now + timedelta(hours=1)).isoformat()) == 0
    in_paris = (now - timedelta(hours=1)).astimezone(timezone(timedelta(hours=1))).isoformat()
    assert count(since=in_paris) == count(since=in_paris.replace("+", " ")) == count() > 0, (
        "as it is typed"
    )
    assert count(until=(now + timedelta(hours=1)).isoformat()) == 4
    assert count(until=(now - timedelta(hours=1)).isoformat()) == 0
    for wrong in (
        {"outcome": "refused"},
        {"since": "yesterday"},
        {"since": "2026-01-01T00:00:00"},
        {"since": "0001-01-01T00:00:00+14:00"},
        {"limit": 0},
        {"limit": 1001},
        {"cursor": "x"},
        {"cursor": "9" * 19},
    ):
        assert slug(auditor.http.get("/ledger/study", params=wrong)) == "invalid-request", wrong


@pytest.mark.usefixtures("each_database_url")
def test_names_that_databases_do_not_accept_are_refused_before_any_query(call: Call) -> None:
    admin = call("admin")
    for path in ("/projects/%00", "/ledger/A%00b", "/ledger/%ff/verify", "/tokens/%00"):
        method = "DELETE" if "tokens" in path else "GET"
        assert slug(admin.http.request(method, path)) == "invalid-request", path
