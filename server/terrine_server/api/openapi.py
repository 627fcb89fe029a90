"""Additions to the OpenAPI document: bodies and problems."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from terrine_protocol import PROBLEMS, LabelRequest, Problem, RowsRequest

Responses = dict[int | str, dict[str, Any]]

# Problems that any request may meet before it reaches its route.
ALWAYS = (
    "malformed-http",
    "invalid-request",
    "payload-too-large",
    "unsupported-media-type",
    "request-timeout",
    "rate-limited",
    "overloaded",
    "database-unavailable",
    "ledger-corrupted",
)
# Problems of a route that spends.
NOT_SIGNED = ("ledger-restored", "log-not-signed")
WITH_TOKEN = ("unauthorized", "forbidden")
BINARY = {"type": "string", "format": "binary"}
BYTES: Responses = {200: {"content": {"application/octet-stream": {"schema": BINARY}}}}


def problems(*slugs: str, token: bool = True) -> Responses:
    """Return the problem responses of a route: those of every route, and `slugs`."""
    responses: Responses = {}
    for slug in dict.fromkeys([*slugs, *ALWAYS, *(WITH_TOKEN if token else ())]):
        kind = PROBLEMS[slug]
        response = responses.setdefault(
            kind.status,
            {
                "description": "",
                "content": {
                    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                },
            },
        )
        titles = [response["description"], f"{kind.title} (`{slug}`)"]
        response["description"] = "; ".join(filter(None, titles))
    return responses


LABEL_REQUEST: dict[str, Any] = {
    "security": [{"token": []}],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        {"$ref": "#/components/schemas/LabelRequest"},
                        {"$ref": "#/components/schemas/RowsRequest"},
                    ]
                },
            },
            "text/csv": {
                "schema": {
                    "type": "string",
                    "description": "Of projects of tables: UTF-8, fields separated by commas, with "
                    "a header that names every feature of `ensemble.encoding`.",
                },
            },
            "application/x-npy": {
                "schema": BINARY | {"description": "`numpy.save` of the inputs, shape [B, …]."}
            },
            "application/x-npz": {
                "schema": BINARY
                | {
                    "description": "`numpy.savez` or `savez_compressed` of `inputs` and, for "
                    "`interactive_gnmax`, `probabilities` of shape [B, m]."
                }
            },
        },
    },
}

INPUTS_REQUEST = {key: LABEL_REQUEST[key] for key in ("security", "requestBody")}

LABEL_RESPONSES: Responses = problems(
    "invalid-query",
    "budget-exhausted",
    "project-paused",
    "project-closed",
    "ensemble-unavailable",
    *NOT_SIGNED,
)

CSV_RESPONSES: Responses = problems("not-found") | {
    200: {"content": {"text/csv": {"schema": {"type": "string"}}}}
}


def complete(app: FastAPI) -> None:
    """Add the schemas that only request bodies and problems refer to."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "Problem" not in schemas:
            _, extra = models_json_schema(
                [
                    (Problem, "serialization"),
                    (LabelRequest, "validation"),
                    (RowsRequest, "validation"),
                ],
                ref_template="#/components/schemas/{model}",
            )
            schemas.update(extra["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]
