"""Routes of the data owner: ensembles, projects and tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from terrine_protocol import (
    EnsembleAccount,
    EnsembleInfo,
    Name,
    ProjectInfo,
    ProjectOpen,
    ProjectPage,
    ProjectStatus,
    ProjectUpdate,
    RequestAccount,
    RequestApprove,
    RequestApproved,
    RequestCreate,
    RequestInfo,
    RequestPage,
    RequestRefuse,
    RequestStatus,
    Role,
    TokenCreate,
    TokenCreated,
    TokenInfo,
    TokenPage,
)
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.services import (
    PAGE_ITEMS,
    Admin,
    Anyone,
    Auditor,
    JsonBody,
    Limit,
    NameCursor,
    RequestId,
    ServicesDep,
    Student,
    TokenCursor,
    TokenId,
    public_path,
    render_page,
)
from terrine_server.errors import Forbidden
from terrine_server.ledger import ProjectRecord
from terrine_server.owner import operations
from terrine_server.owner.sign_in import Principal
from terrine_server.planning.opening import small_budget_warning

router = APIRouter(tags=["owner"])


@router.get("/ensembles", responses=openapi.problems())
def ensembles(services: ServicesDep, holder: Anyone) -> list[EnsembleAccount | EnsembleInfo]:
    """List the ensembles. A student sees its project's ensemble, without the owner's account."""
    if holder.role is Role.STUDENT:
        record = services.ledger.project(holder.project or "").ensemble
        return [views.ensemble(record, services.available(record))]
    return [
        views.ensemble_account(record, services.available(record))
        for record in services.ledger.ensembles()
    ]


@router.post(
    "/projects",
    status_code=201,
    responses=openapi.problems(
        "invalid-terms", "not-found", "conflict", "cap-exceeded", *openapi.NOT_SIGNED
    ),
)
def open_project(
    services: ServicesDep,
    holder: Admin,
    _: JsonBody,
    request: ProjectOpen,
    http: Request,
    response: Response,
) -> ProjectInfo:
    """Open a project: fix its mechanism and prices, and reserve its budget under the cap."""
    record = operations.open_project(services.ledger, request, holder.actor)
    response.headers["Location"] = public_path(http.scope, f"/projects/{record.name}")
    warning = small_budget_warning(record.terms, len(record.ensemble.facts.classes))
    shown = views.project(record, services.available(record.ensemble))
    return shown.model_copy(update={"warning": warning})


@router.get(
    "/projects",
    response_model=ProjectPage,
    responses=openapi.problems(),
)
def projects(
    services: ServicesDep,
    _: Auditor,
    cursor: NameCursor = None,
    limit: Limit = PAGE_ITEMS,
    ensemble: Annotated[Name | None, Query()] = None,
    status: Annotated[ProjectStatus | None, Query()] = None,
) -> Response:
    """List projects' terms, by name."""
    found = services.ledger.projects(cursor or None, limit + 1, ensemble=ensemble, status=status)
    available = {
        record.name: services.available(record)
        for record in {p.ensemble.name: p.ensemble for p in found}.values()
    }

    def view(record: ProjectRecord) -> ProjectInfo:
        return views.project(record, available[record.ensemble.name])

    return render_page(ProjectPage, found, limit, view, lambda last: last.name)


@router.get("/projects/{name}", responses=openapi.problems("not-found"))
def project(services: ServicesDep, holder: Anyone, name: Name) -> ProjectInfo:
    """Return a project's terms. A student may read only its own project's."""
    if holder.role is Role.STUDENT and holder.project != name:
        raise Forbidden("This token belongs to another project.")
    record = services.ledger.project(name)
    return views.project(record, services.available(record.ensemble))


@router.patch("/projects/{name}", responses=openapi.problems("not-found", "conflict"))
def update_project(
    services: ServicesDep, holder: Admin, _: JsonBody, name: Name, request: ProjectUpdate
) -> ProjectInfo:
    """Pause, resume or close a project. Closing is final and returns the unspent budget."""
    record = services.ledger.set_status(name, request.status, holder.actor)
    return views.project(record, services.available(record.ensemble))


@router.post(
    "/tokens",
    status_code=201,
    responses=openapi.problems("not-found"),
)
def create_token(
    services: ServicesDep,
    holder: Admin,
    _: JsonBody,
    request: TokenCreate,
) -> TokenCreated:
    """Create a token. Its secret is in this response and nowhere else.

    It expires no later than the token that creates it; `terrine token create` makes longer ones.
    """
    return services.tokens.create(request, holder.actor, until=holder.expires_at)


@router.get(
    "/tokens",
    response_model=TokenPage,
    responses=openapi.problems("not-found"),
)
def tokens(
    services: ServicesDep,
    _: Admin,
    cursor: TokenCursor = None,
    limit: Limit = PAGE_ITEMS,
) -> Response:
    """List tokens without their secrets, oldest first."""
    found = services.ledger.list_tokens(after=cursor or None, limit=limit + 1)
    return render_page(TokenPage, found, limit, TokenInfo.model_validate, lambda last: last.id)


@router.delete("/tokens/{token_id}", responses=openapi.problems("not-found"))
def revoke_token(services: ServicesDep, holder: Admin, token_id: TokenId) -> TokenInfo:
    """Revoke a token immediately and for good."""
    return TokenInfo.model_validate(services.ledger.revoke_token(token_id, holder.actor))


requests_router = APIRouter(tags=["requests"])


@requests_router.post(
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
    http: Request,
    response: Response,
) -> RequestInfo:
    """Ask for a new project on the ensemble of the token's project, also for more budget.

    Sent again while it is open, it is the same request.
    """
    record, new = operations.make_request(services.ledger, request, holder)
    response.headers["Location"] = public_path(http.scope, f"/requests/{record.id}")
    response.status_code = 201 if new else 200
    return views.request(record)


@requests_router.get(
    "/requests", response_model=RequestPage, responses=openapi.problems("not-found")
)
def list_requests(
    services: ServicesDep,
    holder: Anyone,
    cursor: TokenCursor = None,
    limit: Limit = PAGE_ITEMS,
    status: Annotated[RequestStatus | None, Query()] = None,
) -> Response:
    """List requests, oldest first. A student sees those of its own token, and nobody else's."""
    found = services.ledger.list_requests(_own(holder), status, cursor or None, limit + 1)
    view = views.request if holder.role is Role.STUDENT else views.request_account
    return render_page(RequestPage, found, limit, view, lambda last: last.id)


@requests_router.get("/requests/{request_id}", responses=openapi.problems("not-found"))
def request(
    services: ServicesDep, holder: Anyone, request_id: RequestId
) -> RequestAccount | RequestInfo:
    """Return a request; to the data owner with what approving it would mean, while it is open."""
    record = services.ledger.find_request(request_id, _own(holder))
    if holder.role is Role.STUDENT:
        return views.request(record)
    return views.request_account(record, *operations.examine_request(services.ledger, record))


@requests_router.post(
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
    http: Request,
    response: Response,
) -> RequestApproved:
    """Open the project that was asked for, as it was or with other terms.

    The request, the project, its token and the log's entries are written together or not at all.
    """
    terms = operations.merge_approval(services.ledger.find_request(request_id), approval)
    done = operations.approve_request(
        services.ledger,
        services.tokens,
        request_id,
        terms,
        approval.token_expires_in_days,
        by=holder.actor,
        until=holder.expires_at,
    )
    location = public_path(http.scope, f"/projects/{done.project.name}")
    response.headers["Location"] = location
    return RequestApproved(
        request=views.request_account(done.request),
        project=views.project(done.project, services.available(done.project.ensemble)),
        token=done.token,
    )


@requests_router.post(
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
