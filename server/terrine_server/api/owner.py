"""What the data owner manages: ensembles, projects and tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from terrine_protocol import (
    EnsembleAccount,
    EnsembleInfo,
    Name,
    ProjectInfo,
    ProjectOpen,
    ProjectStatus,
    ProjectUpdate,
    Role,
    SecretSpend,
    TokenCreate,
    TokenCreated,
    TokenInfo,
)
from terrine_server.api import openapi, views
from terrine_server.api.services import Admin, Anyone, Auditor, ServicesDep
from terrine_server.errors import Forbidden
from terrine_server.owner import operations

router = APIRouter(tags=["owner"])


@router.get("/ensembles", responses=openapi.problems())
def ensembles(services: ServicesDep, holder: Anyone) -> list[EnsembleAccount | EnsembleInfo]:
    """List the ensembles; to a student, the one of its project, without the owner's account."""
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
    responses=openapi.problems("invalid-terms", "not-found", "conflict", "cap-exceeded"),
)
def open_project(
    services: ServicesDep,
    _: Admin,
    request: Annotated[ProjectOpen, openapi.EXAMPLE_PROJECT],
    response: Response,
) -> ProjectInfo:
    """Open a project: fix its mechanism, prices and budget, and reserve them under the cap."""
    record = operations.open_project(services.ledger, request)
    response.headers["Location"] = f"/projects/{record.name}"
    return views.project(record, services.available(record.ensemble))


@router.get("/projects", responses=openapi.problems())
def projects(
    services: ServicesDep,
    _: Auditor,
    after: Annotated[Name | None, Query(description="Names after this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ensemble: Annotated[Name | None, Query()] = None,
    status: Annotated[ProjectStatus | None, Query()] = None,
) -> list[ProjectInfo]:
    """List projects' terms, by name."""
    found = services.ledger.projects(after, limit, ensemble=ensemble, status=status)
    available = {
        record.name: services.available(record)
        for record in {p.ensemble.name: p.ensemble for p in found}.values()
    }
    return [views.project(record, available[record.ensemble.name]) for record in found]


@router.get("/projects/{name}", responses=openapi.problems("not-found"))
def project(services: ServicesDep, holder: Anyone, name: Name) -> ProjectInfo:
    """Return a project's terms; a student may read those of its own."""
    if holder.role is Role.STUDENT and holder.project != name:
        raise Forbidden("This token belongs to another project.")
    record = services.ledger.project(name)
    return views.project(record, services.available(record.ensemble))


@router.get("/projects/{name}/secret-spend", responses=openapi.problems("not-found", "conflict"))
def secret_spend(services: ServicesDep, _: Admin, name: Name) -> SecretSpend:
    """Return what a data-dependent project's queries cost at their votes.

    Secret: for the data owner alone. Whoever else sees it learns of the private data, outside
    every budget.
    """
    return views.secret_spend(name, services.ledger.secret_spend(name))


@router.patch("/projects/{name}", responses=openapi.problems("not-found", "conflict"))
def update_project(
    services: ServicesDep, _: Admin, name: Name, request: ProjectUpdate
) -> ProjectInfo:
    """Pause, resume or close a project. Closing is final and returns what was not spent."""
    record = services.ledger.set_status(name, request.status)
    return views.project(record, services.available(record.ensemble))


@router.post("/tokens", status_code=201, responses=openapi.problems("not-found"))
def create_token(
    services: ServicesDep, _: Admin, request: Annotated[TokenCreate, openapi.EXAMPLE_TOKEN]
) -> TokenCreated:
    """Make a token. Its secret is in this reply and nowhere else."""
    return services.tokens.create(request)


@router.get("/tokens", responses=openapi.problems())
def tokens(services: ServicesDep, _: Admin) -> list[TokenInfo]:
    """List all tokens, without their secrets."""
    return [views.token(record) for record in services.ledger.list_tokens()]


@router.delete("/tokens/{token_id}", responses=openapi.problems("not-found"))
def revoke_token(
    services: ServicesDep, _: Admin, token_id: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
) -> TokenInfo:
    """Revoke a token, at once and for good."""
    return views.token(services.ledger.revoke_token(token_id))
