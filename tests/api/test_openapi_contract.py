"""Which changes of an OpenAPI document would break clients written for the earlier one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from terrine_server.app import create_app
from terrine_server.owner.sign_in import make_secret_key
from terrine_server.settings import Settings

Node = dict[str, Any]
Sent = Literal["request", "response"]
"""Who reads a value: a request may not be asked for more, a response may not hold less."""

LOWER_BOUNDS = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
UPPER_BOUNDS = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")


def breaking_changes(current: Node) -> list[str]:
    """Return what a client of `RELEASED` would miss in `current`, one sentence each.

    Compared are paths, methods, parameters, bodies and successful responses, with the names, types,
    enumerations and bounds of their schemas. Additions are not breaking.
    """
    return list(Comparison(RELEASED, current).paths())


class Comparison:
    def __init__(self, released: Node, current: Node) -> None:
        self.documents = released, current
        self.compared: dict[tuple[str, str, Sent], list[str]] = {}

    def paths(self) -> Iterator[str]:
        released, current = (document["paths"] for document in self.documents)
        for path, methods in released.items():
            for method, operation in methods.items():
                where = f"{method.upper()} {path}"
                if method not in current.get(path, {}):
                    yield f"{where} is gone"
                else:
                    yield from self.operation(where, operation, current[path][method])

    def operation(self, where: str, old: Node, new: Node) -> Iterator[str]:
        parameters = [
            {(p["in"], p["name"]): p for p in operation.get("parameters", [])}
            for operation in (old, new)
        ]
        for key in parameters[0].keys() - parameters[1].keys():
            yield f"{where}: the {key[0]} parameter {key[1]} is gone"
        for key, parameter in parameters[1].items():
            before = parameters[0].get(key, {"schema": parameter["schema"]})
            if parameter.get("required") and not before.get("required"):
                yield f"{where}: the {key[0]} parameter {key[1]} is now required"
            place = f"{where}, parameter {key[1]}"
            yield from self.schema(place, before["schema"], parameter["schema"], "request")
        bodies = old.get("requestBody", {}), new.get("requestBody", {})
        if bodies[1].get("required") and not bodies[0].get("required"):
            yield f"{where}: a body is now required"
        yield from self.content(f"{where}, body", *bodies, "request")
        for status, response in old["responses"].items():
            if not status.startswith("2"):
                continue
            if status not in new["responses"]:
                yield f"{where}: the response {status} is gone"
            else:
                place = f"{where}, response {status}"
                yield from self.content(place, response, new["responses"][status], "response")

    def content(self, where: str, old: Node, new: Node, sent: Sent) -> Iterator[str]:
        for kind, media in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{where}: {kind} is gone"
            else:
                now = new["content"][kind].get("schema", {})
                yield from self.schema(where, media.get("schema", {}), now, sent)

    def schema(self, where: str, old: Node, new: Node, sent: Sent) -> Iterator[str]:
        if "$ref" not in old or "$ref" not in new:
            yield from self.alternatives(where, old, new, sent)
            return
        key = (old["$ref"], new["$ref"], sent)
        if key not in self.compared:
            self.compared[key] = []  # for a schema that refers to itself
            self.compared[key] = list(self.alternatives(where, old, new, sent))
        yield from self.compared[key]

    def alternatives(self, where: str, old: Node, new: Node, sent: Sent) -> Iterator[str]:
        before, now = self.variants(old, 0), self.variants(new, 1)
        # Everything that a client sends must still be taken; all it gets, it must have known.
        demanded, offered = (before, now) if sent == "request" else (now, before)
        for one in demanded:
            pairs = [(one, other) if sent == "request" else (other, one) for other in offered]
            found = [list(self.plain(where, *pair, sent)) for pair in pairs]
            yield from min(found, key=len)

    def variants(self, schema: Node, document: int) -> list[Node]:
        """Return the alternatives of `schema`, references followed, one type each."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.variants(self.documents[document]["components"]["schemas"][name], document)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return [v for each in schema[word] for v in self.variants(each, document)]
        kinds = schema.get("type")
        return [schema | {"type": kind} for kind in kinds] if isinstance(kinds, list) else [schema]

    def plain(self, where: str, old: Node, new: Node, sent: Sent) -> Iterator[str]:
        narrow, wide = (old, new) if sent == "request" else (new, old)
        kinds = narrow.get("type"), wide.get("type")
        if kinds[1] not in (None, kinds[0]) and kinds != ("integer", "number"):
            yield f"{where}: the type was {old.get('type')}, and is {new.get('type')}"
            return
        values = [s.get("enum", [s["const"]] if "const" in s else None) for s in (narrow, wide)]
        if values[1] is not None and not set(values[0] or [None]) <= set(values[1]):
            yield f"{where}: the values were {old.get('enum')}, and are {new.get('enum')}"
        if sent == "request":
            yield from self.bounds(where, old, new)
        yield from self.properties(where, old, new, sent)
        for word in ("items", "additionalProperties"):
            inner = old.get(word), new.get(word)
            if isinstance(inner[0], dict) and isinstance(inner[1], dict):
                yield from self.schema(f"{where}[]", inner[0], inner[1], sent)

    def bounds(self, where: str, old: Node, new: Node) -> Iterator[str]:
        for words, sign in ((LOWER_BOUNDS, 1), (UPPER_BOUNDS, -1)):
            for word in words:
                if word in new and (word not in old or sign * new[word] > sign * old[word]):
                    yield f"{where}: {word} was {old.get(word)}, and is {new[word]}"
        if "pattern" in new and new["pattern"] != old.get("pattern"):
            yield f"{where}: the pattern was {old.get('pattern')}, and is {new['pattern']}"

    def properties(self, where: str, old: Node, new: Node, sent: Sent) -> Iterator[str]:
        before, now = old.get("properties", {}), new.get("properties", {})
        required = set(old.get("required", [])), set(new.get("required", []))
        for name in before.keys() - now.keys():
            yield f"{where}: the field {name} is gone"
        if sent == "request":
            for name in required[1] - required[0]:
                yield f"{where}: the field {name} is now required"
        else:
            for name in (required[0] - required[1]) & now.keys():
                yield f"{where}: the field {name} may now be absent"
        for name in before.keys() & now.keys():
            yield from self.schema(f"{where}, {name}", before[name], now[name], sent)


RELEASED = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text())
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"))
    make_secret_key(settings.secret_key_path)
    return json.loads(json.dumps(create_app(settings).openapi()))  # type: ignore[no-any-return]


def test_nothing_breaks_clients_of_the_released_api(current: dict[str, Any]) -> None:
    assert breaking_changes(current) == []


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
    assert said in "\n".join(breaking_changes(changed))


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
    assert breaking_changes(changed) == []
