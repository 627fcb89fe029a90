"""Signing in through an issuer: to it by a link, back with its answer.

A link, since our policy lets no form lead to another site. The browser keeps the attempt in a
cookie of its own, which is `SameSite=Lax`: the answer comes from the issuer's site. For the same
reason the way on to the overview is a page, not a redirect: the session's is `SameSite=Strict`.

Anybody may begin, and an issuer may take its time: whoever waits for it waits in threads that serve
nothing else, and a failure counts as a failed sign-in.
"""

from __future__ import annotations

import structlog
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from terrine_addons.oidc.issuer import CALLBACK, IssuerError
from terrine_server.admin import access
from terrine_server.admin.rendering import HEADERS, page
from terrine_server.admin.sign_in import form
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import Forbidden, InvalidQuery, NotFound, Unauthorized
from terrine_server.owner.sign_in import Issuer
from terrine_server.serving.refusals import RETRY_SECONDS
from terrine_server.serving.slots import client_network

log = structlog.get_logger("terrine")

router = APIRouter(prefix=PAGES_PATH)
# Not checked for unknown parameters: issuers add some (OpenID Connect Core, 3.1.2.5).
callbacks = APIRouter(include_in_schema=False)

ANSWER = ("state", "code", "iss")
# Threads that find out where browsers are sent: what one has fetched, the next one finds.
_BEGINNING = CapacityLimiter(1)
# Threads that exchange codes, each of which may wait for the issuer.
_ENDING = CapacityLimiter(4)


@router.get("/oidc/start")
async def start(request: Request, services: ServicesDep) -> Response:
    """Send the browser to the issuer."""
    issuer = _issuer(services)
    services.failed_logins.check(_network(request))
    cookie, flow = services.sessions.begin_flow()
    try:
        address = await to_thread.run_sync(issuer.address, flow, limiter=_BEGINNING)
    except IssuerError as error:
        return _unavailable(request, services, error)
    response = RedirectResponse(address, 303, HEADERS)
    access.keep_flow(response, services, cookie)
    return response


@callbacks.get(CALLBACK)
async def sign_in_by_answer(request: Request, services: ServicesDep) -> Response:
    """Begin a session for whom the issuer's answer is about."""
    issuer = _issuer(services)
    services.failed_logins.check(_network(request))
    given = request.query_params
    if any(len(given.getlist(name)) > 1 for name in ANSWER):
        raise InvalidQuery("The issuer's answer has a parameter twice.")
    answer = {name: given[name] for name in ANSWER if name in given}
    try:
        made = await to_thread.run_sync(
            services.sessions.sign_in_through_issuer,
            issuer,
            access.read_flow(request, services),
            answer,
            request.state.request_id,
            limiter=_ENDING,
        )
    except IssuerError as error:
        response = _unavailable(request, services, error)
    except (Unauthorized, Forbidden) as error:
        services.failed_logins.take(_network(request))
        request.state.problem = error.problem
        response = form(request, services, error.detail, 403)
    else:
        response = page(request, "signed-in.html", who=made.who, role=made.role)
        access.keep_session(response, services, made)
    access.forget_flow(response, services)
    return response


def _unavailable(request: Request, services: Services, error: IssuerError) -> Response:
    services.failed_logins.take(_network(request))
    log.error("issuer unavailable", cause=str(error))
    response = form(request, services, f"{error} With a token you still can.", 503)
    response.headers["Retry-After"] = str(RETRY_SECONDS)
    return response


def _network(request: Request) -> str:
    """Return whose sign-ins are counted."""
    return client_network(request.client.host) if request.client else ""


def _issuer(services: Services) -> Issuer:
    if services.sessions.issuer is None:
        raise NotFound("There is no issuer to sign in through; it is set with TERRINE_OIDC_ISSUER.")
    return services.sessions.issuer
