"""Every invalid request gets a clear problem of a stable type and charges nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import numpy as np
import pytest
from sqlalchemy import make_url
from starlette.responses import JSONResponse

from support.clients import Caller, npy, npz, slug
from support.data import DigitsEnsemble
from support.databases import database_gone
from support.documents import ROOT
from support.servers import INTERACTIVE, RunningServer, running_server
from support.tables import even_pool
from support.wording import refuses
from terrine_client import BudgetExhausted, Client, Forbidden
from terrine_models.data.arrays import Dataset
from terrine_models.storage.manifests import manifest_digest
from terrine_models.tables.loading import encoded_input
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import PROBLEMS
from terrine_protocol.problems import PASSING_REASONS, Reason
from terrine_protocol.schema import TableSchema
from terrine_server.api.problems import problem
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.voters import read_pool
from terrine_server.serving.refusals import STATUS_OF_PROBLEM, Refusal, render_short

Call = Callable[..., Caller]
NPY, NPZ, JSON = "application/x-npy", "application/x-npz", "application/json"


@pytest.fixture
def nothing_charged(terrine_server: RunningServer) -> Callable[[], None]:
    """Asserts that the books of all projects have not changed since the test began."""

    def books() -> list[tuple[str, int, str]]:
        return [(p.name, p.spent, p.head) for p in terrine_server.ledger.projects.list()]

    before: list[Any] = []

    def check() -> None:
        if not before:
            before.append(books())
        assert books() == before[0]

    return check


def test_bad_queries_are_named_and_cost_nothing(
    terrine_server: RunningServer, call: Call, nothing_charged: Callable[[], None]
) -> None:
    terrine_server.open_project()
    nothing_charged()
    student, good = call(), terrine_server.ensemble.public[:2]
    floats = good.astype(float)
    with_nan = floats.copy()
    with_nan[0, 0, 0] = np.nan
    objects = np.array([{"a": 1}], dtype=object)

    def inputs(value: object) -> bytes:
        return json.dumps({"inputs": value}).encode()

    unknown = json.dumps({"inputs": good.tolist(), "votes": True}).encode()
    cases: list[tuple[str, bytes, str, str]] = [
        ("wrong shape", npy(good[:, :4]), NPY, "invalid-query"),
        ("one input without a batch", npy(good[0]), NPY, "invalid-query"),
        ("not whole numbers", npy(floats + 0.5), NPY, "invalid-query"),
        ("NaN", npy(with_nan), NPY, "invalid-query"),
        ("NaN in JSON", inputs(with_nan.tolist()), JSON, "invalid-query"),
        ("infinity in JSON", inputs(np.full((1, 8, 8), np.inf).tolist()), JSON, "invalid-query"),
        ("out of range", npy(good + 17), NPY, "invalid-query"),
        ("strings", npy(np.array([["a"]])), NPY, "invalid-query"),
        ("a pickle", npy(objects, allow_pickle=True), NPY, "invalid-query"),
        ("truncated", npy(good)[:-1], NPY, "invalid-query"),
        ("trailing bytes", npy(good) + b"x", NPY, "invalid-query"),
        ("npz as npy", npz(inputs=good), NPY, "invalid-query"),
        ("npy as npz", npy(good), NPZ, "invalid-query"),
        ("bomb", npz(inputs=np.zeros(2**27, np.uint8)), NPZ, "payload-too-large"),
        ("huge batch", npy(np.zeros((5000, 8, 8), np.uint8)), NPY, "payload-too-large"),
        ("empty batch", npy(good[:0]), NPY, "invalid-query"),
        ("empty batch in JSON", inputs([]), JSON, "invalid-query"),
        ("ragged", inputs([good[0].tolist(), [1]]), JSON, "invalid-query"),
        ("booleans", inputs((good > 3).tolist()), JSON, "invalid-query"),
        ("unneeded probabilities", npz(inputs=good, probabilities=floats), NPZ, "invalid-query"),
        ("unknown field", unknown, JSON, "invalid-request"),
        ("no JSON", b"{", JSON, "invalid-request"),
        ("no body", b"", JSON, "invalid-request"),
        ("text", b"1", "text/plain", "unsupported-media-type"),
        ("no type", npy(good), "", "unsupported-media-type"),
    ]
    said = {case: slug(student.send(body, kind)) for case, body, kind, _ in cases}
    assert said == {case: expected for case, _, _, expected in cases}

    huge = student.send(npy(np.zeros((5000, 8, 8), np.uint8)), NPY).json()
    assert huge["limit"] == terrine_server.settings.max_batch
    errors = student.send(unknown, JSON).json()["errors"]
    assert [error["field"] for error in errors] == ["votes"]
    packed = student.http.post(
        "/label", content=npy(good), headers={"Content-Type": NPY, "Content-Encoding": "gzip"}
    )
    assert slug(packed) == "unsupported-media-type"
    nothing_charged()


def test_interactive_needs_valid_probabilities(
    terrine_server: RunningServer, call: Call, nothing_charged: Callable[[], None]
) -> None:
    terrine_server.open_project(mechanism=INTERACTIVE)
    nothing_charged()
    student, inputs = call(), terrine_server.ensemble.public[:2]
    uniform = np.full((2, 10), 0.1)
    for wrong in (uniform[:1], uniform[:, :9], uniform * 1.1, uniform * np.nan, uniform - 0.2):
        assert slug(student.send(npz(inputs=inputs, probabilities=wrong), NPZ)) == "invalid-query"
    beyond = np.eye(10)[:2]
    beyond[0, 0] = 1.002
    assert slug(student.send(npz(inputs=inputs, probabilities=beyond), NPZ)) == "invalid-query"
    for missing in (student.label(inputs), student.send(npy(inputs), NPY)):
        assert slug(missing) == "invalid-query"
        assert "probabilities" in missing.json()["detail"]
    nothing_charged()


def test_a_probability_rounded_above_one_counts_as_one(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project(mechanism=INTERACTIVE)
    student, inputs = call(), terrine_server.ensemble.public[:1]
    above = np.eye(10, dtype=np.float32)[:1] * np.nextafter(np.float32(1), np.float32(2))
    assert above.max() > 1
    first = student.send(npz(inputs=inputs, probabilities=above), NPZ)
    assert first.status_code == 200, first.text
    exactly = student.send(npz(inputs=inputs, probabilities=np.eye(10)[:1]), NPZ)
    assert exactly.json()["results"][0]["replayed"]


def test_duplicate_and_misspelt_parameters_are_refused(
    terrine_server: RunningServer, call: Call, nothing_charged: Callable[[], None]
) -> None:
    terrine_server.open_project()
    nothing_charged()
    student, auditor = call(), call("auditor")
    body = npy(terrine_server.ensemble.public[:1])
    token = student.http.headers["Authorization"]
    for name, first, second in (("Content-Type", NPY, JSON), ("Authorization", token, token)):
        given = {"Content-Type": NPY, "Authorization": token} | {name: first}
        headers = [*given.items(), (name, second)]
        said = httpx.post(f"{terrine_server.url}/label", content=body, headers=headers)
        assert slug(said) == "invalid-request", name
        assert name.lower() in said.json()["detail"]
    for path in (
        "/ledger/study?outcom=answered",
        "/ledger/study?cursor=1&cursor=2",
        "/ledger?stats=closed",
        "/ledger/study/verify?project=other",
    ):
        assert slug(auditor.http.get(path)) == "invalid-request", path
    assert auditor.http.get("/ledger/study?outcome=answered&limit=1").status_code == 200
    nothing_charged()


def test_the_size_of_a_body_is_limited_whatever_length_it_declares(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    student, admin = call(), call("admin")
    limit = terrine_server.settings.max_body_bytes

    def endless() -> Iterator[bytes]:
        for _ in range(limit // 2**20 + 8):
            yield bytes(2**20)

    declared = student.http.post("/label", content=bytes(limit + 1), headers={"Content-Type": NPY})
    assert slug(declared) == "payload-too-large"
    assert declared.json()["limit"] == limit
    chunked = student.http.post("/label", content=endless(), headers={"Content-Type": NPY})
    assert slug(chunked) == "payload-too-large"
    management = admin.http.post("/projects", content=b" " * 100_000)
    assert slug(management) == "payload-too-large"
    assert student.label(terrine_server.ensemble.public[:1]).status_code == 200


def test_a_refusal_sent_before_the_end_of_the_body_can_be_read(
    terrine_server: RunningServer, call: Call
) -> None:
    """Closing a socket with unread bytes resets it, and the refusal is lost."""
    terrine_server.open_project()
    student, stranger = call(), Caller(terrine_server, "terrine_none")
    body = bytes(2**20)
    gzip = {"Content-Type": NPY, "Content-Encoding": "gzip"}
    for _ in range(40):
        refused = student.http.post("/label", content=body, headers=gzip)
        assert slug(refused) == "unsupported-media-type"
        assert refused.headers["Connection"] == "close"
    refused = stranger.http.post("/label", content=body, headers={"Content-Type": NPY})
    assert slug(refused) == "unauthorized"
    assert refused.headers["Connection"] == "close"


def test_routes_need_a_valid_token_of_the_right_role_and_project(
    terrine_server: RunningServer, call: Call, nothing_charged: Callable[[], None]
) -> None:
    terrine_server.open_project()
    terrine_server.open_project("other")
    nothing_charged()
    inputs = terrine_server.ensemble.public[:1]
    valid = terrine_server.token()
    revoked = terrine_server.token()
    terrine_server.ledger.tokens.revoke(revoked.split("_")[1])
    expired = terrine_server.token(expires_in_days=1e-9)
    forged = valid[:-1] + ("0" if valid[-1] != "0" else "1")
    for token in (None, "", "x", "terrine_", forged, revoked, expired, valid + "0", valid[:-1]):
        said = (
            Caller(terrine_server, token).label(inputs)
            if token != ""
            else httpx.post(f"{terrine_server.url}/label", headers={"Authorization": "Basic dTpw"})
        )
        assert slug(said) == "unauthorized", token
        assert said.headers["WWW-Authenticate"] == "Bearer"
        assert token is None or token == "" or token not in said.text

    student, auditor, admin = call(), call("auditor"), call("admin")
    assert slug(student.http.get("/projects/other")) == "forbidden"
    assert student.http.get("/projects/study").status_code == 200
    for role, doors in (
        (student, ["GET /ledger", "GET /ledger/study", "GET /ledger/study/verify", "GET /tokens"]),
        (student, ["GET /projects", "POST /projects", "PATCH /projects/study", "POST /tokens"]),
        (student, ["GET /metrics", "GET /log", "GET /log/verify"]),
        (auditor, ["GET /budget", "GET /project", "POST /label"]),
        (auditor, ["POST /projects", "PATCH /projects/study", "GET /tokens", "POST /tokens"]),
        (auditor, ["DELETE /tokens/0123456789abcdef"]),
        (admin, ["GET /budget", "GET /project", "POST /label"]),
    ):
        for door in doors:
            method, path = door.split()
            body: dict[str, Any] = {"POST /tokens": {"role": "admin"}}
            body["PATCH /projects/study"] = {"status": "paused"}
            body["POST /projects"] = {
                "name": "x",
                "ensemble": "digits",
                "mechanism": {"name": "gnmax", "sigma": 4},
                "epsilon": 1,
                "delta": 1e-5,
            }
            said = role.http.request(method, path, json=body.get(door))
            assert slug(said) == "forbidden", door
    nothing_charged()


def test_paused_and_closed_projects_answer_nothing(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    student, admin = call(), call("admin")
    inputs = terrine_server.ensemble.public
    assert student.label(inputs[:2]).status_code == 200

    def becomes(status: str) -> httpx.Response:
        return admin.http.patch("/projects/study", json={"status": status})

    for status, expected in (("paused", "project-paused"), ("closed", "project-closed")):
        assert becomes(status).json()["status"] == status
        for asked in (inputs[:2], inputs[2:4]):
            assert slug(student.label(asked)) == expected
        assert student.http.get("/budget").json()["status"] == status
        if status == "paused":
            assert becomes("active").status_code == 200
            assert student.label(inputs[:2]).status_code == 200
    assert slug(becomes("active")) == "conflict"
    assert terrine_server.ledger.projects.get("study").charges == 2


@pytest.mark.parametrize("file", ["manifest.json", "teachers-00000.safetensors"])
def test_altered_files_never_vote(
    terrine_server: RunningServer, call: Call, nothing_charged: Callable[[], None], file: str
) -> None:
    terrine_server.open_project()
    nothing_charged()
    student, inputs = call(), terrine_server.ensemble.public[:2]
    path = terrine_server.settings.ensembles_dir / "digits" / file
    whole = path.read_bytes()
    for damaged in (whole[:-1] + bytes([whole[-1] ^ 1]), whole + b" ", whole[:-1], None):
        before = path.stat() if path.exists() else None
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
            if before is not None:  # a file's modification time is easy to set
                os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        refused = student.label(inputs)
        assert slug(refused) == "ensemble-unavailable"
        assert refused.headers["Retry-After"]
        assert str(path.parent) not in refused.text
        assert slug(student.http.get("/readyz")) == "ensemble-unavailable"
        assert student.http.get("/project").json()["ensemble"]["available"] is False
        assert student.http.get("/healthz").status_code == 200
    nothing_charged()
    path.write_bytes(whole)
    assert student.http.get("/readyz").status_code == 200
    assert student.label(inputs).status_code == 200


@pytest.mark.usefixtures("each_database_url")
def test_without_its_database_the_service_answers_nothing_and_recovers(
    terrine_server: RunningServer, call: Call, database_url: str
) -> None:
    terrine_server.open_project()
    student, inputs = call(), terrine_server.ensemble.public[:2]
    assert student.http.get("/readyz").status_code == 200
    with database_gone(database_url):
        for refused in (
            student.label(inputs),
            student.http.get("/budget"),
            student.http.get("/readyz"),
        ):
            assert slug(refused) == "database-unavailable"
            reason = "misconfigured" if database_url.startswith("sqlite") else "unreachable"
            assert refused.json()["reason"] == reason
            assert ("Retry-After" in refused.headers) == (reason in PASSING_REASONS)
            assert str(make_url(database_url).database) not in refused.text
        assert student.http.get("/healthz").status_code == 200
    assert student.http.get("/readyz").status_code == 200
    assert student.label(inputs).status_code == 200
    assert terrine_server.ledger.projects.get("study").charges == 2
    assert terrine_server.ledger.verifier.verify_project("study").ok


def test_whoever_has_spent_a_budget_is_told_whom_to_ask(
    tmp_path: Path, database_url: str, digits_ensemble: DigitsEnsemble
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
            with pytest.raises(Forbidden) as other:
                client.project("another")
            assert other.value.contact is None


def test_a_project_without_a_designed_pool_says_so(
    terrine_server: RunningServer, call: Call
) -> None:
    terrine_server.open_project()
    refused = call().http.get("/pool")
    assert (refused.status_code, slug(refused)) == (404, "not-found")


def test_a_designed_pool_that_was_altered_is_not_sent(tmp_path: Path) -> None:
    schema = TableSchema.model_validate(
        {
            "columns": [
                {"name": "ward", "role": "categorical", "values": ["A", "B"]},
                {"name": "ill", "role": "label", "values": ["no", "yes"]},
            ]
        }
    )
    pool = even_pool(schema, rows=20)
    random = np.random.default_rng(0)
    inputs = np.eye(3, dtype=np.float32)[random.integers(3, size=40)]
    labels = random.integers(2, size=40)
    data = Dataset(inputs, labels, ("no", "yes"), encoded_input(schema), name="wards")
    out = tmp_path / "ensembles" / "wards"
    train_ensemble(data, out, name="wards", teachers=4, pool=pool)
    facts = SimpleNamespace(designed=True)
    digest = manifest_digest(out)
    record: Any = SimpleNamespace(
        name="wards", path="ensembles/wards", facts=facts, manifest_sha256=digest
    )
    assert read_pool(tmp_path, record) == pool.to_bytes()
    (out / "pool.npz").write_bytes(pool.to_bytes()[:-1] + b"x")
    with pytest.raises(EnsembleUnavailable, match="backup"):
        read_pool(tmp_path, record)


@pytest.mark.parametrize("slug", PROBLEMS)
def test_every_problem_that_passes_says_when_to_try_again(slug: str) -> None:
    """And docs/api.md names those that do not pass."""
    said = (ROOT / "docs" / "api.md").read_text().partition("**Waiting.**")[2].partition("\n- ")[0]
    waits = PROBLEMS[slug].status in (429, 503)
    lasts = f"`{slug}`" in said
    scope = {"path": "/label", "state": {"request_id": "1"}}
    answer = problem(scope, slug, "A detail.")
    assert ("Retry-After" in answer.headers) == (waits and not lasts)
    assert waits or not lasts
    if slug == "database-unavailable":
        for reason in get_args(Reason):
            answer = problem(scope, slug, "A detail.", {"reason": reason})
            assert ("Retry-After" in answer.headers) == (reason in PASSING_REASONS)
            assert f"`{reason}`" in said or reason not in PASSING_REASONS
    if slug in STATUS_OF_PROBLEM:  # what witnesses and owners refuse
        short = render_short(Refusal(slug, "A detail."))
        assert isinstance(short, JSONResponse)
        assert ("Retry-After" in short.headers) == waits
