"""Tokens: created, shown once, and revoked."""

from __future__ import annotations

import secrets

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from terrine_protocol import Role, TokenCreate, TokenInfo
from terrine_server import views
from terrine_server.admin.access import Admin, ByAdmin, Fields, Reader
from terrine_server.admin.forms import number, spoken
from terrine_server.admin.rendering import ROOT, page, see_other
from terrine_server.api.paging import TokenCursor, TokenId
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import Conflict, NotFound, TerrineError
from terrine_server.ledger import TokenRecord
from terrine_server.owner.sessions import LONGEST, Session

router = APIRouter(prefix=f"{ROOT}/tokens")

ROWS = 50
"""Tokens on a page."""
DAYS = "90"
SENT_BEFORE = (
    "This form was sent before, and made the token {}, which was shown then. If that page is lost, "
    "revoke the token and create another."
)
CHOICES = 200
"""The most projects that the form lists; the name of any other is typed."""


@router.get("")
def tokens(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    cursor: TokenCursor = None,
    project: str = "",
) -> Response:
    """List tokens, oldest first, and offer to create one."""
    return _list(request, services, reader, {"project": project}, cursor or None)


@router.post("")
def create(request: Request, services: ServicesDep, sent: ByAdmin) -> Response:
    """Create a token. Its secret is on this one page and nowhere else."""
    given, id = sent.fields, services.sessions.made_by(sent.session, sent.fields.get("once", ""))
    try:
        wanted = TokenCreate.model_validate(
            {
                "role": given.get("role", ""),
                "project": given.get("project") or None,
                "label": given.get("label", ""),
                "expires_in_days": number(given.get("expires_in_days", "")),
            }
        )
        made = services.tokens.create(wanted, sent.session.actor, sent.session.expires_at, id)
    except ValidationError as error:
        return _list(request, services, sent.session, given, problems=spoken(error), status=422)
    except Conflict as error:
        sent_before = services.ledger.find_token(id) is not None
        why = SENT_BEFORE.format(id) if sent_before else error.detail
        return _list(request, services, sent.session, given, problems=[why], status=409)
    except TerrineError as error:
        return _list(request, services, sent.session, given, problems=[error.detail], status=422)
    return page(
        request, "token.html", sent.session, made=made, url=str(request.base_url).rstrip("/")
    )


@router.get("/{token_id}/revoke")
def revoking(request: Request, services: ServicesDep, reader: Admin, token_id: TokenId) -> Response:
    """Say what revoking a token will mean, and ask whether it is meant."""
    record = services.ledger.find_token(token_id)
    if record is None:
        raise NotFound(f"There is no token {token_id}.")
    return page(request, "revoke.html", reader, token=TokenInfo.model_validate(record))


@router.post("/{token_id}/revoke")
def revoke(request: Request, services: ServicesDep, sent: ByAdmin, token_id: TokenId) -> Response:
    """Revoke a token, and end its sessions."""
    services.ledger.revoke_token(token_id, sent.session.actor)
    return see_other(request, "/tokens", sent.session)


def _list(
    request: Request,
    services: Services,
    reader: Session,
    given: Fields,
    cursor: str | None = None,
    problems: tuple[str, ...] | list[str] = (),
    status: int = 200,
) -> Response:
    found: list[TokenRecord] = services.ledger.list_tokens(after=cursor, limit=ROWS + 1)
    sessions = services.sessions.begun()
    return page(
        request,
        "tokens.html",
        reader,
        status=status,
        tokens=[TokenInfo.model_validate(each) for each in found[:ROWS]],
        next=found[ROWS - 1].id if len(found) > ROWS else None,
        first=cursor is None,
        projects=services.ledger.project_names()[:CHOICES],
        roles=list(Role),
        given={"role": "student", "label": "", "expires_in_days": DAYS, "project": ""}
        | dict(given),
        problems=problems,
        once=secrets.token_hex(16),
        sessions=sessions,
        actors=views.actors(services.ledger, (each.who for each in sessions)),
        longest=LONGEST,
    )
