"""For valid and invalid requests, the service responds as the OpenAPI document says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.openapi.loaders import from_url
from schemathesis.specs.openapi import checks

from support.clients import DOCUMENTED, SHARES, answered, examples, tell, tireless_server
from support.data import DigitsEnsemble
from support.servers import RunningServer

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
ROLES = ("student", "auditor", "metrics", "admin", None)
STUDENTS = ("/label", "/label/used-up", "/budget", "/project")

pytestmark = pytest.mark.slow


@pytest.fixture
def server(
    tmp_path: Path, database_url: str, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    with tireless_server(tmp_path / "data", database_url, digits_ensemble) as server:
        server.open_project("survey")
        server.open_project("counted", {"name": "noisy_votes", "sigma": 500.0}, epsilon=20.0)
        yield server


@pytest.fixture
def tokens(server: RunningServer) -> dict[str | None, dict[str, str]]:
    """The headers of each role, and without a token."""
    return {
        role: {"Authorization": f"Bearer {server.token(role) if role else 'terrine_none'}"}
        for role in ROLES
    }


def cases(schema: schemathesis.BaseSchema, things: dict[str, str]) -> st.SearchStrategy[Case[Any]]:
    """Requests to every operation, valid and invalid, about known and unknown `things`."""
    strategies = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        for mode in GenerationMode:
            strategies.append(operation.as_strategy(generation_mode=mode))
        known = {name: thing for name, thing in things.items() if f"{{{name}}}" in operation.path}
        if known:
            strategies.append(operation.as_strategy(path_parameters=known))
    return st.one_of(strategies).map(on_the_digits)


def on_the_digits(case: Case[Any]) -> Case[Any]:
    """Open half of the projects on an ensemble that exists."""
    body: Any = case.body
    if case.path == "/projects" and isinstance(body, dict) and len(str(body.get("name"))) % 2:
        body["ensemble"] = "digits"
    return case


@SHARES
def test_every_response_is_described_in_the_document(
    server: RunningServer, tokens: dict[str | None, dict[str, str]], share: int
) -> None:
    schema = from_url(f"{server.url}/openapi.json")
    session = requests.Session()
    spare = server.token().split("_")[1]
    things = {"project": "study", "name": "survey", "slug": "not-found", "token_id": spare}

    @examples(DOCUMENTED // share)
    @given(cases(schema, things), st.sampled_from(["the one that may"] * 8 + [*ROLES]))
    def every_reply_is_described(case: Case[Any], role: str | None) -> None:
        if role not in ROLES:
            role = "student" if case.path in STUDENTS else "admin"
        # A parameter without a value is not sent, so the service cannot refuse it.
        unsent = any(value in (None, [], {}) for value in (case.query or {}).values())
        found = CHECKS[:-1] if unsent else CHECKS
        case.call_and_validate(session=session, headers=tokens[role], checks=found)

    every_reply_is_described()
    token = schema["/tokens"]["POST"].Case(body={"role": "auditor", "label": "reads"})
    token.call_and_validate(headers=tokens["admin"], checks=CHECKS)
    counts = answered(server)
    tell(counts)
    assert counts.total() >= DOCUMENTED // share
    assert {200, 201, 401, 403, 404, 422} <= set(counts)
    # No generated input has the digits' shape: all requests to /label were invalid.
    assert server.ledger.projects.get("study").charges == 0


def test_answers_with_and_without_noisy_counts_are_described_in_the_document(
    server: RunningServer,
) -> None:
    schema = from_url(f"{server.url}/openapi.json")
    body = {"inputs": server.ensemble.public[:3].tolist()}
    for project in ("study", "counted"):
        case = schema["/label"]["POST"].Case(body=body, media_type="application/json")
        headers = {"Authorization": f"Bearer {server.token(project=project)}"}
        reply = case.call_and_validate(headers=headers, checks=CHECKS[:-1])
        assert reply.status_code == 200
        found = reply.json()["results"]
        assert ["counts" in result for result in found] == [project == "counted"] * 3
