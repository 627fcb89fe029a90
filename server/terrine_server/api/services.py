"""Dependencies of the routes: the app's services, and who may call which route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, NamedTuple

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy import Engine

from terrine_protocol import Role
from terrine_server.api.published import PublishedLog
from terrine_server.api.readiness import Readiness
from terrine_server.errors import Forbidden, TerrineError, Unauthorized, UnsupportedMediaType
from terrine_server.labeling.pipeline import CheckedRequest, Labeling
from terrine_server.labeling.queue import Queue
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import EnsembleRecord, Ledger
from terrine_server.metrics import Metrics
from terrine_server.owner.checkpoints import SignedHistory
from terrine_server.owner.sessions import Sessions
from terrine_server.owner.tokens import Principal, Tokens
from terrine_server.ratelimit import RateLimit
from terrine_server.serving.concurrency import network
from terrine_server.settings import Settings


class LabelReply(NamedTuple):
    """The answer to a request to label: its body, how many of its queries were replayed, and the
    numbers of the first and the last charge that it paid, if it paid any."""

    body: bytes
    replayed: int
    paid: tuple[int, int] | None


@dataclass(frozen=True)
class Services:
    """Made once by `create_app`, for all routes."""

    settings: Settings
    engine: Engine
    ledger: Ledger
    tokens: Tokens
    sessions: Sessions
    voters: Voters
    readiness: Readiness
    published_log: PublishedLog
    labeling: Labeling
    history: SignedHistory
    queue: Queue[CheckedRequest, LabelReply]
    requests: RateLimit
    replays: RateLimit
    failed_logins: RateLimit
    metrics: Metrics

    def available(self, ensemble: EnsembleRecord) -> bool:
        """Whether the ensemble's files verify."""
        return self.voters.available(ensemble)


async def get_services(request: Request) -> Services:
    """Return the app's services."""
    found: Services = request.app.state.services
    return found


ServicesDep = Annotated[Services, Depends(get_services)]


async def known_parameters(request: Request) -> None:
    """Refuse query parameters that are unknown to the route or given twice.

    A misspelt filter must not become no filter.
    """
    names = {field.alias for field in request.scope["route"].dependant.query_params}
    given = [name for name, _ in request.query_params.multi_items()]
    errors = [
        {"loc": ("query", name), "msg": "Given twice" if name in names else "No such parameter"}
        for name in dict.fromkeys(given)
        if name not in names or given.count(name) > 1
    ]
    if errors:
        raise RequestValidationError(errors)


async def json_only(request: Request) -> None:
    """Refuse a body that does not say that it is JSON. Raises `UnsupportedMediaType`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/json"):
        raise UnsupportedMediaType(f"The content type {kind!r} is not application/json.")


JsonBody = Annotated[None, Depends(json_only)]


_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    bearerFormat="terrine_<id>_<secret>",
    description="A token from the data owner: of a student, an auditor, an admin, or for metrics.",
)


Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]

PRINCIPAL = "principal"
"""In the state of a request with a token: its `Principal`, or the error that says why not."""
LABEL, USED_UP = "/label", "/label/used-up"
_CHECKING = CapacityLimiter(16)
"""Tokens checked at a time. Routes use other threads."""

Check = Callable[[], Principal]
"""Finds out who asks. It takes time. Raises `TerrineError`."""


def bearer(services: Services, headers: Mapping[bytes, bytes]) -> Check | None:
    """Return a check of the headers' bearer token; None if they have none."""
    given = headers.get(b"authorization", b"").decode("latin-1")
    scheme, token = get_authorization_scheme_param(given)
    if scheme.lower() != "bearer":
        return None
    return partial(services.tokens.authenticate, token)


async def checked(check: Check) -> Principal | TerrineError:
    """Return what a check finds, or its error."""
    try:
        return await to_thread.run_sync(check, limiter=_CHECKING)
    except TerrineError as error:
        return error


async def principal(request: Request, services: ServicesDep, _: Bearer) -> Principal:
    """Return the caller. Raises `Unauthorized`, `RateLimited`."""
    found = caller(request, services)
    request.state.left = services.requests.take(found.token_id)
    return found


def caller(request: Request, services: Services) -> Principal:
    """Return the caller, whom the envelope has authenticated. Raises `Unauthorized`, `RateLimited`.

    Failures are counted per address and never block a valid token: unauthenticated clients behind
    one proxy or router share an address.
    """
    found = getattr(request.state, PRINCIPAL, None)
    if isinstance(found, Principal):
        return replace(found, request_id=request.state.request_id)
    error = found or Unauthorized("Send the header 'Authorization: Bearer <token>'.")
    if isinstance(error, Unauthorized):
        services.failed_logins.take(network(request.client.host) if request.client else "")
    raise error


def allow(*roles: Role) -> Callable[[Request, Services, Bearer], Awaitable[Principal]]:
    """Return a dependency that accepts tokens of these roles."""

    # Calls `principal` instead of depending on it: FastAPI takes longer to resolve a dependency
    # than this takes to run, on every request.
    async def check(request: Request, services: ServicesDep, credentials: Bearer) -> Principal:
        holder = await principal(request, services, credentials)
        if holder.role not in roles:
            needed = " or ".join(roles)
            raise Forbidden(f"This needs a token of role {needed}; yours is {holder.role}.")
        return holder

    return check


_student = allow(Role.STUDENT)


async def own_project(request: Request, services: ServicesDep, credentials: Bearer) -> str:
    """Return the project that the student's token belongs to."""
    holder = await _student(request, services, credentials)
    if holder.project is None:
        raise Forbidden("This token belongs to no project.")
    return holder.project


Anyone = Annotated[Principal, Depends(allow(Role.STUDENT, Role.AUDITOR, Role.ADMIN))]
Student = Annotated[Principal, Depends(_student)]
Admin = Annotated[Principal, Depends(allow(Role.ADMIN))]
Auditor = Annotated[Principal, Depends(allow(Role.ADMIN, Role.AUDITOR))]
Scraper = Annotated[Principal, Depends(allow(Role.ADMIN, Role.AUDITOR, Role.METRICS))]
OwnProject = Annotated[str, Depends(own_project)]
