"""Clients of the released API keep working: no change breaks what docs/openapi.json promises."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openapi_contract import breaking_changes

from terrine_server.app import create_app
from terrine_server.owner.sign_in import make_secret_key
from terrine_server.settings import Settings

RELEASED = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text())
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"))
    make_secret_key(settings.secret_key_path)
    return json.loads(json.dumps(create_app(settings).openapi()))  # type: ignore[no-any-return]


def test_nothing_breaks_clients_of_the_released_api(current: dict[str, Any]) -> None:
    assert breaking_changes(RELEASED, current) == []


def test_every_path_is_in_the_document(current: dict[str, Any]) -> None:
    """`make openapi` writes it anew."""
    described = [
        {(path, method) for path, methods in document["paths"].items() for method in methods}
        for document in (RELEASED, current)
    ]
    assert described[0] == described[1]


def schemas(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["schemas"]
    return found


def parameter(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["paths"]["/log"]["get"]["parameters"][0]
    return found


BREAKING: dict[str, Change] = {
    "DELETE /tokens/{token_id} is gone": lambda d: d["paths"]["/tokens/{token_id}"].clear(),
    "GET /budget is gone": lambda d: d["paths"].pop("/budget"),
    "the field affordable is gone": lambda d: schemas(d)["Budget"]["properties"].pop("affordable"),
    "the field spent may now be absent": lambda d: schemas(d)["Budget"]["required"].remove("spent"),
    "the type was integer, and is string": lambda d: schemas(d)["Budget"]["properties"].update(
        spent={"type": "string"}
    ),
    "the type was object, and is null": lambda d: schemas(d)["Budget"]["properties"].update(
        rule={"anyOf": [{"$ref": "#/components/schemas/RuleInfo"}, {"type": "null"}]}
    ),
    "the values were": lambda d: schemas(d)["Outcome"]["enum"].append("guessed"),
    "the field label is now required": lambda d: schemas(d)["TokenCreate"]["required"].append(
        "label"
    ),
    "the field reason is now required": lambda d: schemas(d)["TokenCreate"]["required"].append(
        "reason"
    ),
    "the field sigma is gone": lambda d: schemas(d)["GNMaxSpec"]["properties"].pop("sigma"),
    "maximum was": lambda d: schemas(d)["NeighboursSpec"]["properties"]["queries"].update(
        maximum=1
    ),
    "parameter cursor is now required": lambda d: parameter(d).update(required=True),
    "parameter cursor is gone": lambda d: d["paths"]["/log"]["get"].pop("parameters"),
    "application/x-npz is gone": lambda d: d["paths"]["/label"]["post"]["requestBody"][
        "content"
    ].pop("application/x-npz"),
    "the response 200 is gone": lambda d: d["paths"]["/log"]["get"]["responses"].pop("200"),
}


@pytest.mark.parametrize("said", BREAKING)
def test_a_breaking_change_is_found(said: str) -> None:
    changed = copy.deepcopy(RELEASED)
    BREAKING[said](changed)
    assert said in "\n".join(breaking_changes(RELEASED, changed))


ADDITIONS: dict[str, Change] = {
    "nothing": lambda d: None,
    "a path": lambda d: d["paths"].update({"/new": {"get": {"responses": {}}}}),
    "a field of a reply": lambda d: schemas(d)["Budget"]["properties"].update(new={}),
    "an optional field of a request": lambda d: schemas(d)["TokenCreate"]["properties"].update(
        new={"type": "string"}
    ),
    "a kind of mechanism, in requests": lambda d: schemas(d)["ProjectOpen"]["properties"][
        "mechanism"
    ]["oneOf"].append({"type": "object", "properties": {}}),
    "an optional parameter": lambda d: d["paths"]["/log"]["get"]["parameters"].append(
        {"in": "query", "name": "new", "schema": {"type": "string"}}
    ),
    "a wider type": lambda d: schemas(d)["NeighboursSpec"]["properties"]["queries"].update(
        type="number"
    ),
}


@pytest.mark.parametrize("what", ADDITIONS)
def test_an_addition_breaks_nothing(what: str) -> None:
    changed = copy.deepcopy(RELEASED)
    ADDITIONS[what](changed)
    assert breaking_changes(RELEASED, changed) == []
