"""Errors as RFC 9457 problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from terrine_protocol import PROBLEMS, Problem, ProblemType
from terrine_protocol.base import explain_error
from terrine_protocol.problems import PASSING_REASONS
from terrine_server.api import openapi
from terrine_server.api.callers import authenticated_caller
from terrine_server.api.paths import public_path, route_path
from terrine_server.errors import DatabaseUnavailable, EnsembleUnavailable, NotFound, ServiceError
from terrine_server.serving.refusals import RETRY_SECONDS

log = structlog.get_logger("terrine")
router = APIRouter(tags=["problems"])

MEDIA_TYPE = "application/problem+json"
# Maximum number of fields that one `invalid-request` names.
MAX_ERRORS = 20
# Problems whose cause names paths and hosts: clients get this text, the log the cause.
PRIVATE_DETAIL = {
    "database-unavailable": "The ledger cannot be used now, and no query is answered without it. "
    "Send the same again: what was answered before is free.",
    "ensemble-unavailable": "The ensemble cannot vote now: its files do not verify, or those who "
    "vote elsewhere do not answer. Nothing was charged. Retry later; the server's log has the "
    "reason: ask the data owner.",
}
# Problems that a student takes to the data owner.
PROBLEMS_WITH_CONTACT = {"budget-exhausted", "project-paused", "project-closed"}
# Problems of status 503 that last until a person has repaired something; so do those of
# `database-unavailable` whose reason does not pass by itself.
PROBLEMS_WITHOUT_RETRY = {"ledger-corrupted", "ledger-restored", "log-not-signed"}
PROBLEM_OF_STATUS = {404: "not-found", 405: "method-not-allowed", 413: "payload-too-large"}


class ProblemResponse(JSONResponse):
    """A problem document."""

    media_type = MEDIA_TYPE


def problem(
    scope: Scope,
    slug: str,
    detail: str,
    extras: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    """Return the problem document of type `slug` about a request.

    `extras` are further public members.
    """
    kind = PROBLEMS[slug]
    document = Problem(
        type=public_path(scope, f"/problems/{slug}"),
        title=kind.title,
        status=kind.status,
        detail=detail,
        instance=public_path(scope, route_path(scope)),
        **{"request_id": scope["state"]["request_id"], **(extras or {})},
    )
    added = dict(headers or {})
    if kind.status == HTTPStatus.UNAUTHORIZED:
        added["WWW-Authenticate"] = "Bearer"
    members = extras or {}
    passes = slug not in PROBLEMS_WITHOUT_RETRY and (
        members.get("reason", "unreachable") in PASSING_REASONS
    )
    waits = kind.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    if waits and passes:
        added["Retry-After"] = str(members.get("retry_after", RETRY_SECONDS))
    return ProblemResponse(document.model_dump(mode="json"), kind.status, added)


# `problem`, or what answers like it.
Answer = Callable[..., Response]


def install(app: FastAPI, answer: Answer = problem) -> None:
    """Answer every error of the routes with a problem, and document the problems."""
    app.state.answer = answer
    app.add_exception_handler(ServiceError, _handle_refusal)
    app.add_exception_handler(RequestValidationError, _handle_malformed)
    app.add_exception_handler(HTTPException, _handle_framework)
    app.include_router(router)


@router.get("/problems")
async def catalogue() -> dict[str, ProblemType]:
    """Return every problem type, by the last part of its `type`."""
    return PROBLEMS


@router.get("/problems/{slug}", responses=openapi.problems("not-found", token=False))
async def explanation(slug: str) -> ProblemType:
    """Explain one problem type."""
    if slug not in PROBLEMS:
        raise NotFound(f"There is no problem type {slug!r}. GET /problems lists them.")
    return PROBLEMS[slug]


def _handle_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)  # noqa: S101 - as registered
    if isinstance(error, DatabaseUnavailable | EnsembleUnavailable):
        log.error("unavailable", problem=error.problem, cause=str(error))
    detail, reason = PRIVATE_DETAIL.get(error.problem, error.detail), dict[str, str]()
    if isinstance(error, DatabaseUnavailable) and error.problem in PRIVATE_DETAIL:
        reason = {"reason": error.reason}
        detail = f"{detail} Reason: {error.reason}."
    contact = request.app.state.services.settings.contact
    told = {"contact": contact} if contact and error.problem in PROBLEMS_WITH_CONTACT else {}
    return _answer(request, error.problem, detail, {**error.extras, **reason, **told})


def _handle_malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    if any(item["loc"][:1] == ("body",) for item in error.errors()):
        # A body is parsed before its sender is known; what is wrong with it is not for
        # unauthenticated clients.
        try:
            authenticated_caller(request, request.app.state.services)
        except ServiceError as refusal:
            return _handle_refusal(request, refusal)
    found = [
        {"field": ".".join(map(str, item["loc"])), "message": explain_error(item)}
        for item in error.errors()[:MAX_ERRORS]
    ]
    first = found[0] if found else {"field": "body", "message": "malformed"}
    return _answer(
        request,
        "invalid-request",
        f"{first['field'] or 'body'}: {first['message']}",
        {"errors": found},
    )


def _handle_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    slug = PROBLEM_OF_STATUS.get(error.status_code, "invalid-request")
    detail = error.detail
    if slug == "not-found":
        detail = "Nothing exists at this path. GET /openapi.json lists all paths."
    elif slug == "method-not-allowed":
        allowed = (error.headers or {}).get("Allow", "")
        detail = f"{request.method} is not allowed here. Allowed: {allowed}."
    return _answer(request, slug, detail, headers=error.headers)


def _answer(
    request: Request,
    slug: str,
    detail: str,
    extras: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    request.state.problem = slug
    answer: Answer = request.app.state.answer
    return answer(request.scope, slug, detail, extras, headers)
