"""Routes of requests for projects: made and followed by students, decided by admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from terrine_protocol import (
    RequestAccount,
    RequestApprove,
    RequestApproved,
    RequestCreate,
    RequestInfo,
    RequestPage,
    RequestRefuse,
    RequestStatus,
    Role,
)
from terrine_server import views
from terrine_server.api import openapi, paging
from terrine_server.api.paging import Limit, RequestId, TokenCursor
from terrine_server.api.services import Admin, Anyone, JsonBody, ServicesDep, Student
from terrine_server.owner import requests
from terrine_server.owner.tokens import Principal

router = APIRouter(tags=["requests"])


@router.post(
    "/requests",
    status_code=201,
    responses=openapi.problems("invalid-terms", "conflict")
    | {200: {"model": RequestInfo, "description": "The same request is open already"}},
)
def make_request(
    services: ServicesDep,
    holder: Student,
    _: JsonBody,
    request: RequestCreate,
    response: Response,
) -> RequestInfo:
    """Ask for a new project on the ensemble of the token's project, also for more budget.

    Sent again while it is open, it is the same request.
    """
    record, new = requests.make(services.ledger, request, holder)
    response.headers["Location"] = f"/requests/{record.id}"
    response.status_code = 201 if new else 200
    return views.request(record)


@router.get("/requests", response_model=RequestPage, responses=openapi.problems("not-found"))
def list_requests(
    services: ServicesDep,
    holder: Anyone,
    cursor: TokenCursor = None,
    limit: Limit = paging.PAGE,
    status: Annotated[RequestStatus | None, Query()] = None,
) -> Response:
    """List requests, oldest first. A student sees those of its own token, and nobody else's."""
    found = services.ledger.list_requests(_own(holder), status, cursor or None, limit + 1)
    view = views.request if holder.role is Role.STUDENT else views.request_account
    return paging.page(RequestPage, found, limit, view, lambda last: last.id)


@router.get("/requests/{request_id}", responses=openapi.problems("not-found"))
def request(
    services: ServicesDep, holder: Anyone, request_id: RequestId
) -> RequestAccount | RequestInfo:
    """Return a request; to the data owner with what approving it would mean, while it is open."""
    record = services.ledger.find_request(request_id, _own(holder))
    if holder.role is Role.STUDENT:
        return views.request(record)
    return views.request_account(record, *requests.examine(services.ledger, record))


@router.post(
    "/requests/{request_id}/approve",
    status_code=201,
    responses=openapi.problems(
        "invalid-terms", "not-found", "conflict", "cap-exceeded", *openapi.NOT_SIGNED
    ),
)
def approve_request(
    services: ServicesDep,
    holder: Admin,
    _: JsonBody,
    request_id: RequestId,
    approval: RequestApprove,
    response: Response,
) -> RequestApproved:
    """Open the project that was asked for, as it was or with other terms.

    The request, the project, its token and the log's entries are written together or not at all.
    """
    terms = requests.as_opened(services.ledger.find_request(request_id), approval)
    done = requests.approve(
        services.ledger,
        services.tokens,
        request_id,
        terms,
        approval.token_expires_in_days,
        by=holder.actor,
        until=holder.expires_at,
    )
    response.headers["Location"] = f"/projects/{done.project.name}"
    return RequestApproved(
        request=views.request_account(done.request),
        project=views.project(done.project, services.available(done.project.ensemble)),
        token=done.token,
    )


@router.post(
    "/requests/{request_id}/refuse",
    responses=openapi.problems("not-found", "conflict"),
)
def refuse_request(
    services: ServicesDep,
    holder: Admin,
    _: JsonBody,
    request_id: RequestId,
    refusal: RequestRefuse,
) -> RequestAccount:
    """Refuse a request, with a reason that whoever made it reads."""
    record = services.ledger.refuse_request(request_id, refusal.reason, holder.actor)
    return views.request_account(record)


def _own(holder: Principal) -> str | None:
    """Whose requests the caller may see: None for everybody's."""
    return holder.token_id if holder.role is Role.STUDENT else None
