"""Who may see a page, and whose form is accepted.

Two cookies, both `__Host-`: a browser takes them over TLS or from this machine itself, sends them
to this host alone, never to a script, and never with a request that another site caused. One holds
the session (`owner.sign_in`). The other, before there is a session, ties the sign-in form to the
browser that fetched it. A third is kept while somebody is at an issuer to sign in, and is sent with
the link that leads back from there. Such cookies are of the whole host, so below a path prefix
their names have it: of two services of one host, none takes the other's.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request
from starlette.requests import cookie_parser
from starlette.responses import Response

from terrine_protocol import Role
from terrine_server.api.callers import PRINCIPAL_KEY
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import (
    Forbidden,
    InvalidQuery,
    ServiceError,
    Unauthorized,
    UnsupportedMediaType,
)
from terrine_server.owner.sign_in import MAX_FLOW_LIFE, Principal, Session

SESSION_COOKIE = "__Host-terrine-session"
VISIT_COOKIE = "__Host-terrine-visit"
FLOW_COOKIE = "__Host-terrine-flow"
# The field of every form that proves that it comes from one of our pages.
FORM_KEY_FIELD = "form_key"
VISIT_PATTERN = re.compile(r"[0-9a-f]{32}")
MAX_FORM_FIELDS = 64
FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"

Fields = Mapping[str, str]


def session_check(
    services: Services, headers: Mapping[bytes, bytes]
) -> Callable[[], Principal] | None:
    """Return a check of the session that the cookies name; None if they name none."""
    cookies = cookie_parser(headers.get(b"cookie", b"").decode("latin-1"))
    given = cookies.get(_cookie_name(SESSION_COOKIE, services))
    return None if given is None else partial(services.sessions.resume, given)


async def require_session(request: Request, services: ServicesDep) -> Session:
    """Return the session of a request. Raises `Unauthorized`, which leads to the sign-in page."""
    found = getattr(request.state, PRINCIPAL_KEY, None)
    if isinstance(found, ServiceError):
        raise found
    if not isinstance(found, Session):
        raise Unauthorized("Sign in first.")
    request.state.left = services.requests.take(found.token_id)
    return replace(found, request_id=request.state.request_id)


Reader = Annotated[Session, Depends(require_session)]


@dataclass(frozen=True)
class SubmittedForm:
    """A form that was sent from one of our pages: its fields, and by whom."""

    session: Session
    fields: Fields


async def require_form(request: Request, services: ServicesDep, reader: Reader) -> SubmittedForm:
    """Return a form of anybody who is signed in. Raises `Forbidden` unless it is from our page."""
    return SubmittedForm(reader, await read_form(request, services.sessions.form_key(reader.id)))


async def require_admin_form(
    sent: Annotated[SubmittedForm, Depends(require_form)],
) -> SubmittedForm:
    """Return a form of an admin. Raises `Forbidden`."""
    if sent.session.role is not Role.ADMIN:
        raise Forbidden("An auditor sees everything here and changes nothing.")
    return sent


Checked = Annotated[SubmittedForm, Depends(require_form)]
ByAdmin = Annotated[SubmittedForm, Depends(require_admin_form)]


async def require_admin(reader: Reader) -> Session:
    """Return an admin's session. Raises `Forbidden`."""
    if reader.role is not Role.ADMIN:
        raise Forbidden("An auditor sees everything here and changes nothing.")
    return reader


Admin = Annotated[Session, Depends(require_admin)]


async def read_form(request: Request, key: str) -> dict[str, str]:
    """Return the fields of a form. Raises `Forbidden` unless it has this key and is from here."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    if not host or urlsplit(origin).netloc != host:
        raise Forbidden(
            "This form was not sent from a page of this server. If a proxy stands in front, it "
            "must pass on the header Host."
        )
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_MEDIA_TYPE:
        raise UnsupportedMediaType(f"A form is sent as {FORM_MEDIA_TYPE}.")
    try:
        text = (await request.body()).decode("ascii")
        pairs = parse_qsl(
            text, True, True, encoding="utf-8", errors="strict", max_num_fields=MAX_FORM_FIELDS
        )
    except ValueError:
        raise InvalidQuery("The form cannot be read.") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidQuery("The form has a field twice.")
    if not hmac.compare_digest(given.pop(FORM_KEY_FIELD, "").encode(), key.encode()):
        raise Forbidden("This form is of another session. Go back, load the page again, and retry.")
    return given


def read_visit(request: Request, services: Services) -> str | None:
    """Return what the sign-in form is tied to; None if the browser did not send it."""
    given = request.cookies.get(_cookie_name(VISIT_COOKIE, services), "")
    return given if VISIT_PATTERN.fullmatch(given) else None


def keep_visit(response: Response, services: Services, tie: str) -> None:
    """Set the cookie that the sign-in form is tied to."""
    _set_cookie(response, _cookie_name(VISIT_COOKIE, services), tie)


def keep_session(response: Response, services: Services, found: Session) -> None:
    """Set the session's cookie, as used now."""
    _set_cookie(response, _cookie_name(SESSION_COOKIE, services), services.sessions.cookie(found))


def forget_session(response: Response, services: Services) -> None:
    """Delete the session's cookie."""
    name = _cookie_name(SESSION_COOKIE, services)
    response.delete_cookie(name, secure=True, httponly=True, samesite="strict")


def read_flow(request: Request, services: Services) -> str | None:
    """Return the cookie of an attempt to sign in through an issuer, if the browser sent it."""
    return request.cookies.get(_cookie_name(FLOW_COOKIE, services))


def keep_flow(response: Response, services: Services, cookie: str) -> None:
    """Set the attempt's cookie."""
    name, most = _cookie_name(FLOW_COOKIE, services), int(MAX_FLOW_LIFE.total_seconds())
    response.set_cookie(name, cookie, most, secure=True, httponly=True, samesite="lax")


def forget_flow(response: Response, services: Services) -> None:
    """Delete the attempt's cookie."""
    name = _cookie_name(FLOW_COOKIE, services)
    response.delete_cookie(name, secure=True, httponly=True, samesite="lax")


def _cookie_name(name: str, services: Services) -> str:
    return name + services.settings.path_prefix.replace("/", ".")


def _set_cookie(response: Response, name: str, value: str) -> None:
    response.set_cookie(name, value, path="/", secure=True, httponly=True, samesite="strict")
