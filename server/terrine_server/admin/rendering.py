"""Pages from templates, in which every value is escaped; values of forms; and failures as pages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from terrine_models.addons import addons
from terrine_protocol import PROBLEMS, Role
from terrine_protocol.base import explain_error
from terrine_server.admin import access, charts
from terrine_server.api.paths import PAGES_PATH, is_page, public_path, route_path
from terrine_server.api.problems import problem
from terrine_server.api.services import Services
from terrine_server.errors import ServiceError
from terrine_server.formats import FILTERS, format_share, show_value
from terrine_server.owner.sign_in import Session

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'none'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    # Not no-referrer, with which browsers send forms without their origin.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
STATIC = {"style.css": "text/css; charset=utf-8", "icon.svg": "image/svg+xml"}
# A session's cookie is renewed when it is older than this.
REFRESH_SECONDS = 60


def page(
    request: Request,
    template: str,
    reader: Session | None = None,
    *,
    status: int = 200,
    **values: Any,
) -> Response:
    """Return a page; for somebody who is signed in, with what its forms need."""
    services: Services = request.app.state.services
    if reader is not None:
        values["form_key"] = services.sessions.form_key(reader.id)
        with suppress(ServiceError):  # the page's own work meets whatever else is wrong
            services.ledger.check_history()
        values["refusing"] = services.history.found
    response = render(request.scope, template, reader=reader, status=status, **values)
    _refresh_session(services, response, reader)
    return response


def render(
    scope: Scope, template: str, *, status: int, reader: Session | None, **values: Any
) -> HTMLResponse:
    """Return a page that needs nothing but where it is."""
    known = {
        "reader": reader,
        "is_admin": reader is not None and reader.role is Role.ADMIN,
        "path": public_path(scope, route_path(scope)),
        "top": public_path(scope, ""),
        "root": public_path(scope, PAGES_PATH),
        "refusing": None,
    }
    text = _TEMPLATES.get_template(template).render(known | values)
    return HTMLResponse(text, status, HEADERS)


def see_other(request: Request, path: str, reader: Session | None = None) -> Response:
    """Send the browser to another page after a form has been acted on."""
    response = RedirectResponse(public_path(request.scope, PAGES_PATH + path), 303, HEADERS)
    _refresh_session(request.app.state.services, response, reader)
    return response


def serve_static(name: str) -> Response:
    """Return one of the `STATIC` files."""
    kept = HEADERS | {"Cache-Control": "max-age=300"}
    return Response(_FILES[name], media_type=STATIC[name], headers=kept)


def _refresh_session(services: Services, response: Response, reader: Session | None) -> None:
    if reader and (datetime.now(UTC) - reader.seen).total_seconds() > REFRESH_SECONDS:
        access.keep_session(response, services, reader)


_TEMPLATES = Environment(
    loader=ChoiceLoader(
        [
            PackageLoader("terrine_server.admin"),
            *(PackageLoader(addon.templates) for addon in addons().values() if addon.templates),
        ]
    ),
    autoescape=True,
    finalize=show_value,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= FILTERS
_TEMPLATES.globals |= {
    "share": format_share,
    "charts": charts,
    "project_buttons": {
        path: words for addon in addons().values() for path, words in addon.project_buttons.items()
    },
}
_FILES = {name: (files("terrine_server.admin") / "static" / name).read_bytes() for name in STATIC}


def parse_number(text: str) -> int | float | str:
    """Return the number in a text; any other text as it is, for validation to refuse."""
    text = text.strip().replace(",", "")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def normalize_newlines(text: str) -> str:
    """Return the text of a field of several lines, without the carriage returns of browsers."""
    return text.replace("\r\n", "\n")


def explain_errors(error: ValidationError) -> list[str]:
    """Return a sentence for each field that is wrong."""
    found = [(item["loc"], explain_error(item)) for item in error.errors(include_url=False)]
    return [
        f"{_name_field(place)}{text.removeprefix('Value error, ').removesuffix('.')}."
        for place, text in found
    ]


def _name_field(place: tuple[int | str, ...]) -> str:
    return f"{str(place[-1]).replace('_', ' ').capitalize()}: " if place else ""


# Details of these problems on a page, where the API's are about paths and headers.
PAGE_DETAILS = {
    "not-found": "There is nothing at this address.",
    "database-unavailable": "The ledger cannot be reached. Nothing was changed. The server's "
    "operator finds the cause in its log, or with the command below.",
    "ensemble-unavailable": "The ensemble cannot vote: its files do not verify, or those who vote "
    "elsewhere do not answer. The server's operator finds the reason in its log, or with the "
    "command below.",
    "method-not-allowed": "This address does not take such a request.",
}
# Commands that the server's operator runs.
OPERATOR_COMMANDS = {
    "ledger-corrupted": "terrine ledger verify",
    "ledger-restored": "terrine ledger restored",
    "log-not-signed": "terrine doctor",
    "database-unavailable": "terrine doctor",
    "ensemble-unavailable": "terrine doctor",
}
# Beginning of a `not-found` that names what was not found.
NAMED_NOT_FOUND = "There is no "


def answer_failure(
    scope: Scope,
    slug: str,
    detail: str,
    extras: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response to a request that failed: a page at a page's path, else a problem."""
    document = problem(scope, slug, detail, extras, headers)
    if not is_page(route_path(scope)):
        return document
    if slug == "unauthorized":
        return RedirectResponse(public_path(scope, f"{PAGES_PATH}/sign-in"), 303, HEADERS)
    named = slug == "not-found" and detail.startswith(NAMED_NOT_FOUND)
    response = render(
        scope,
        "refusal.html",
        status=document.status_code,
        reader=None,
        title=PROBLEMS[slug].title,
        detail=detail if named else PAGE_DETAILS.get(slug, detail),
        command=OPERATOR_COMMANDS.get(slug),
        request_id=scope["state"]["request_id"],
    )
    for name in ("Retry-After", "Allow", "Connection"):
        if name in document.headers:
            response.headers[name] = document.headers[name]
    return response
