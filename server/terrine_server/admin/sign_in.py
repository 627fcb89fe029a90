"""Signing in and out, and what every page loads."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from terrine_server.admin import access
from terrine_server.admin.access import ByAdmin, Checked
from terrine_server.admin.rendering import STATIC, page, see_other, serve_static
from terrine_server.api.callers import PRINCIPAL_KEY
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import Forbidden, NotFound, Unauthorized
from terrine_server.owner.sign_in import MAX_IDLE, MAX_SESSION_LIFE, Session
from terrine_server.serving.slots import client_network

router = APIRouter(prefix=PAGES_PATH)

COOKIE_MISSING = (
    "Your browser did not send back the cookie that this page gave it. It takes such a cookie only "
    "over https, or from this machine itself (http://127.0.0.1 or http://localhost; Safari: https "
    "alone). Cookies must be allowed."
)


@router.get("/sign-in")
def sign_in_page(request: Request, services: ServicesDep) -> Response:
    """Show the form that takes a token, and why a session has ended."""
    found = getattr(request.state, PRINCIPAL_KEY, None)
    if isinstance(found, Session):
        return see_other(request, "", found)
    why = found.detail if isinstance(found, Unauthorized) else None
    return form(request, services, why)


@router.post("/sign-in")
async def sign_in(request: Request, services: ServicesDep) -> Response:
    """Exchange a token for a session."""
    visit = access.read_visit(request, services)
    if visit is None:
        return form(request, services, COOKIE_MISSING, 403)
    fields = await access.read_form(request, services.sessions.form_key(visit))
    try:
        made = await run_in_threadpool(
            services.sessions.sign_in, fields.get("token", ""), request.state.request_id
        )
    except (Unauthorized, Forbidden) as error:
        services.failed_logins.take(client_network(request.client.host) if request.client else "")
        request.state.problem = error.problem
        return form(request, services, error.detail, 403)
    response = see_other(request, "")
    access.keep_session(response, services, made)
    return response


@router.post("/sign-out")
def sign_out(request: Request, services: ServicesDep, sent: Checked) -> Response:
    """End the session."""
    services.sessions.sign_out(sent.session)
    response = see_other(request, "/sign-in")
    access.forget_session(response, services)
    return response


@router.post("/sessions/{session_id}/end")
def end(request: Request, services: ServicesDep, sent: ByAdmin, session_id: str) -> Response:
    """End anyone's session, on every replica."""
    services.sessions.end(session_id, sent.session.actor)
    return see_other(request, "/tokens", sent.session)


@router.get("/static/{name}")
async def static_file(name: str) -> Response:
    """Return the stylesheet or the icon."""
    if name not in STATIC:
        raise NotFound(f"There is no file {name}.")
    return serve_static(name)


def form(
    request: Request, services: Services, why: str | None = None, status: int = 200
) -> Response:
    """Return the sign-in page. `why`: what was wrong."""
    tie = access.read_visit(request, services) or secrets.token_hex(16)
    response = page(
        request,
        "sign-in.html",
        status=status,
        why=why,
        issuer=services.sessions.issuer,
        idle=MAX_IDLE,
        longest=MAX_SESSION_LIFE,
        form_key=services.sessions.form_key(tie),
    )
    access.keep_visit(response, services, tie)
    return response
