"""Additions to the OpenAPI document: bodies, problems and examples."""

from __future__ import annotations

from typing import Any

from fastapi import Body, FastAPI
from pydantic.json_schema import models_json_schema

from terrine_protocol import PROBLEMS, LabelRequest, Problem

Responses = dict[int | str, dict[str, Any]]

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
"""Problems that any request may meet before it reaches its route."""
WITH_TOKEN = ("unauthorized", "forbidden")
BINARY = {"type": "string", "format": "binary"}


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
                    "application/problem+json": {
                        "schema": {"$ref": "#/components/schemas/Problem"},
                        "examples": {},
                    }
                },
            },
        )
        titles = [response["description"], kind.title]
        response["description"] = "; ".join(filter(None, titles))
        response["content"]["application/problem+json"]["examples"][slug] = {
            "summary": kind.meaning,
            "value": {
                "type": f"/problems/{slug}",
                "title": kind.title,
                "status": kind.status,
                "detail": kind.meaning,
                "instance": "/label",
                "request_id": "1f0c2b9d5e7a4c3b8d6f0a1b2c3d4e5f",
            },
        }
    return responses


IDEMPOTENCY_KEY = r"^[\x21-\x7e]{1,255}$"

LABEL_REQUEST: dict[str, Any] = {
    "security": [{"token": []}],
    "parameters": [
        {
            "name": "idempotency-key",
            "in": "header",
            "required": False,
            "schema": {"type": "string", "pattern": IDEMPOTENCY_KEY},
            "description": "Identifies this request. A retry with the same inputs returns the same "
            "answers at no cost; with other inputs it is refused.",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/LabelRequest"},
                "examples": {
                    "two inputs of shape [4]": {
                        "value": {"inputs": [[5.1, 3.5, 1.4, 0.2], [6.2, 2.9, 4.3, 1.3]]}
                    },
                    "with probabilities": {
                        "summary": "interactive_gnmax also takes the student's own predictions",
                        "value": {
                            "inputs": [[5.1, 3.5, 1.4, 0.2]],
                            "probabilities": [[0.9, 0.05, 0.05]],
                        },
                    },
                },
            },
            "application/x-npy": {
                "schema": BINARY | {"description": "`numpy.save` of the inputs, shape [B, …]."}
            },
            "application/x-npz": {
                "schema": BINARY
                | {
                    "description": "`numpy.savez` or `savez_compressed` of `inputs` and, for "
                    "interactive_gnmax, `probabilities` of shape [B, m]."
                }
            },
        },
    },
}

_BUDGET_EXAMPLE = {
    "project": "diabetes",
    "status": "active",
    "epsilon": 1.0,
    "delta": 1e-05,
    "rule": {"name": "gdp", "order": None},
    "budget": 71786372145,
    "spent": 2500000200,
    "delta_budget": 10000000000,
    "delta_spent": 2,
    "epsilon_spent": 0.1508,
    "charges": 2,
    "affordable": 55,
}

LABEL_RESPONSES: Responses = problems(
    "invalid-query",
    "idempotency-conflict",
    "budget-exhausted",
    "project-paused",
    "project-closed",
    "ensemble-unavailable",
) | {
    200: {
        "content": {
            "application/json": {
                "example": {
                    "results": [
                        {"outcome": "answered", "label": 0, "charge": 1, "replayed": False},
                        {"outcome": "abstained", "label": None, "charge": 2, "replayed": False},
                    ],
                    "budget": _BUDGET_EXAMPLE,
                }
            }
        }
    }
}

CSV_RESPONSES: Responses = problems("not-found") | {
    200: {
        "content": {
            "text/csv": {
                "schema": {"type": "string"},
                "example": "project,seq,created_at,outcome,label,cost,delta,query_digest,hash\r\n",
            }
        }
    }
}

EXAMPLE_PROJECT = Body(
    openapi_examples={
        "answers when teachers agree": {
            "value": {
                "name": "diabetes",
                "ensemble": "clinics",
                "mechanism": {
                    "name": "confident_gnmax",
                    "threshold": 200,
                    "sigma1": 75.0,
                    "sigma2": 25.0,
                },
                "epsilon": 1.0,
                "delta": 1e-05,
            }
        },
        "every query answered": {
            "value": {
                "name": "survey",
                "ensemble": "clinics",
                "mechanism": {"name": "gnmax", "sigma": 40.0},
                "epsilon": 1.0,
                "delta": 1e-05,
            }
        },
    }
)

EXAMPLE_REQUEST = Body(
    openapi_examples={
        "more budget": {
            "value": {
                "title": "Sepsis, second year",
                "purpose": "To label another year of public records.",
                "epsilon": 1.0,
            }
        },
    }
)

EXAMPLE_TOKEN = Body(
    openapi_examples={
        "a student": {
            "value": {
                "role": "student",
                "project": "diabetes",
                "label": "Ada, cardiology",
                "expires_in_days": 90,
            }
        },
        "an auditor": {"value": {"role": "auditor", "label": "2026 review"}},
    }
)


def complete(app: FastAPI) -> None:
    """Add the schemas that only request bodies and problems refer to."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "Problem" not in schemas:
            _, extra = models_json_schema(
                [(Problem, "serialization"), (LabelRequest, "validation")],
                ref_template="#/components/schemas/{model}",
            )
            schemas.update(extra["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]
