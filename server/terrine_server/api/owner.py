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
    Role,
    TokenCreate,
    TokenCreated,
    TokenInfo,
    TokenPage,
)
from terrine_server import views
from terrine_server.api import openapi
from terrine_server.api.callers import Admin, Anyone, Auditor
from terrine_server.api.paging import (
    PAGE_ITEMS,
    Limit,
    NameCursor,
    TokenCursor,
    TokenId,
    render_page,
)
from terrine_server.api.paths import public_path
from terrine_server.api.services import JsonBody, ServicesDep
from terrine_server.errors import Forbidden
from terrine_server.ledger import ProjectRecord
from terrine_server.owner import operations
from terrine_server.planning.opening import small_budget_warning

router = APIRouter(tags=["owner"])


@router.get("/ensembles", responses=openapi.problems())
def ensembles(services: ServicesDep, holder: Anyone) -> list[EnsembleAccount | EnsembleInfo]:
    """List the ensembles. A student sees its project's ensemble, without the owner's account."""
    if holder.role is Role.STUDENT:
        record = services.ledger.projects.get(holder.project or "").ensemble
        return [views.ensemble(record, services.available(record))]
    return [
        views.ensemble_account(record, services.available(record))
        for record in services.ledger.ensembles.list()
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
    found = services.ledger.projects.list(
        cursor or None, limit + 1, ensemble=ensemble, status=status
    )
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
    record = services.ledger.projects.get(name)
    return views.project(record, services.available(record.ensemble))


@router.patch("/projects/{name}", responses=openapi.problems("not-found", "conflict"))
def update_project(
    services: ServicesDep, holder: Admin, _: JsonBody, name: Name, request: ProjectUpdate
) -> ProjectInfo:
    """Pause, resume or close a project. Closing is final and returns the unspent budget."""
    record = services.ledger.projects.set_status(name, request.status, holder.actor)
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
    found = services.ledger.tokens.list(after=cursor or None, limit=limit + 1)
    return render_page(TokenPage, found, limit, TokenInfo.model_validate, lambda last: last.id)


@router.delete("/tokens/{token_id}", responses=openapi.problems("not-found"))
def revoke_token(services: ServicesDep, holder: Admin, token_id: TokenId) -> TokenInfo:
    """Revoke a token immediately and for good."""
    return TokenInfo.model_validate(services.ledger.tokens.revoke(token_id, holder.actor))
