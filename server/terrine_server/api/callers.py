"""Who asks, and which routes their role may call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from terrine_protocol import Role
from terrine_server.api.paths import METRICS_PATH, is_page
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import (
    Forbidden,
    Unauthorized,
)
from terrine_server.owner.sign_in import Principal
from terrine_server.serving.slots import client_network

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    bearerFormat="terrine_<id>_<secret>",
    description="A token from the data owner: of a student, an auditor, an admin, or for metrics.",
)


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]

# In the state of a request with a token: its `Principal`, or the error that says why not.
PRINCIPAL_KEY = "principal"
# Finds out who asks. It takes time. Raises `ServiceError`.
Check = Callable[[], Principal]


def caller_check(
    services: Services,
    session_check: Callable[[Services, Mapping[bytes, bytes]], Check | None],
    path: str,
    headers: Mapping[bytes, bytes],
) -> Check | None:
    """Return a check of who sends these headers to this path; None if they do not say.

    `session_check`: what checks a browser's session. Pages have that, all else a bearer token.
    """
    if is_page(path):
        return session_check(services, headers)
    given = headers.get(b"authorization", b"").decode("latin-1")
    scheme, token = get_authorization_scheme_param(given)
    if scheme.lower() != "bearer":
        return None
    if path == METRICS_PATH:
        return partial(services.tokens.authenticate_scraper, token)
    return partial(services.tokens.authenticate, token)


def authenticated_caller(request: Request, services: Services) -> Principal:
    """Return the caller, whom the middleware has authenticated.

    Raises `Unauthorized`, `RateLimited`. Failures are counted per address and never block a valid
    token: unauthenticated clients behind one proxy or router share an address.
    """
    found = getattr(request.state, PRINCIPAL_KEY, None)
    if isinstance(found, Principal):
        return replace(found, request_id=request.state.request_id)
    error = found or Unauthorized("Send the header 'Authorization: Bearer <token>'.")
    if isinstance(error, Unauthorized):
        services.failed_logins.take(client_network(request.client.host) if request.client else "")
    raise error


def allow(*roles: Role) -> Callable[[Request, Services, Bearer], Awaitable[Principal]]:
    """Return a dependency that accepts tokens of these roles."""

    async def check(request: Request, services: ServicesDep, _: Bearer) -> Principal:
        holder = authenticated_caller(request, services)
        request.state.left = services.requests.take(holder.token_id)
        if holder.role not in roles:
            needed = " or ".join(roles)
            raise Forbidden(f"This needs a token of role {needed}; yours is {holder.role}.")
        return holder

    return check


_student = allow(Role.STUDENT)


async def own_project(request: Request, services: ServicesDep, credentials: Bearer) -> str:
    """Return the project that the student's token belongs to."""
    # A call: FastAPI takes longer to resolve a dependency than this takes to run.
    holder = await _student(request, services, credentials)
    if holder.project is None:
        raise Forbidden("This token belongs to no project.")
    return holder.project


Anyone = Annotated[Principal, Depends(allow(Role.STUDENT, Role.AUDITOR, Role.ADMIN))]
Admin = Annotated[Principal, Depends(allow(Role.ADMIN))]
Auditor = Annotated[Principal, Depends(allow(Role.ADMIN, Role.AUDITOR))]
Scraper = Annotated[Principal, Depends(allow(Role.ADMIN, Role.AUDITOR, Role.METRICS))]
OwnProject = Annotated[str, Depends(own_project)]
