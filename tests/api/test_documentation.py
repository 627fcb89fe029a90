"""The reference and the OpenAPI document match the server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from support.processes import run_program
from support.servers import RunningServer
from support.tables import open_counted, records
from terrine_protocol import PROBLEMS
from terrine_server.api.decoding import CONTENT_TYPES, CSV
from terrine_server.settings import Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE, OPERATING = DOCS / "api.md", DOCS / "operating.md"
Document = dict[str, Any]


def reference() -> str:
    return REFERENCE.read_text()


@pytest.fixture
def document(terrine_server: RunningServer) -> Document:
    served: Document = httpx.get(f"{terrine_server.url}/openapi.json").json()
    return served


def operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_the_table_of_limits_names_every_limit_that_can_be_set() -> None:
    table = OPERATING.read_text().partition("## Who is limited by what")[2].partition("\nThe ")[0]
    limits = {
        f"TERRINE_{name.upper()}"
        for name, field in Settings.model_fields.items()
        if name != "port" and int in (field.annotation, *get_args(field.annotation))
    }
    assert set(re.findall(r"`(TERRINE_\w+)`", table)) == limits


def test_the_reference_lists_exactly_the_endpoints_that_exist(document: Document) -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| ", reference(), re.MULTILINE)
    assert sorted(rows) == sorted((method, path) for method, path, _ in operations(document))


def test_every_command_in_the_reference_works(
    terrine_server: RunningServer, tmp_path: Path
) -> None:
    terrine_server.open_project()
    ledger, settings = terrine_server.ledger, terrine_server.settings
    environment = os.environ | {
        "TERRINE_URL": terrine_server.url,
        "STUDENT": terrine_server.token(),
        "OF_A_TABLE": open_counted(ledger, settings, "table", records(settings)),
        "AUDITOR": terrine_server.token("auditor"),
        "METRICS": terrine_server.token("metrics"),
        "ADMIN": terrine_server.token("admin", expires_in_days=60),
    }
    blocks = re.findall(r"```bash\n(.*?)```", reference(), re.DOTALL)
    assert len(blocks) > 5
    done = run_program(
        "bash", "-euo", "pipefail", "-c", "\n".join(blocks), cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_the_openapi_document_is_complete(document: Document) -> None:
    schemas = document["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)):
        assert name in schemas
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    open_to_all = {"/healthz", "/readyz", "/problems", "/problems/{slug}"}
    open_to_all |= {"/checkpoint", "/tile/{path}"}
    for method, path, operation in operations(document):
        assert operation["description"], path
        assert ("security" in operation) is (path not in open_to_all), path
        assert "HTTPValidationError" not in json.dumps(operation), path
        if path not in open_to_all:
            kinds = set(problems(operation))
            assert {"unauthorized", "forbidden", "database-unavailable"} <= kinds, (method, path)
    bodies = document["paths"]["/label"]["post"]["requestBody"]["content"]
    assert set(bodies) == {*CONTENT_TYPES, CSV}
    shown = {slug for _, _, operation in operations(document) for slug in problems(operation)}
    assert shown >= set(PROBLEMS) - {"method-not-allowed", "internal"}


def problems(operation: Document) -> Iterator[str]:
    for status, response in operation["responses"].items():
        if "application/problem+json" in response.get("content", {}):
            for slug in re.findall(r"\(`([a-z-]+)`\)", response["description"]):
                assert int(status) == PROBLEMS[slug].status
                yield slug
