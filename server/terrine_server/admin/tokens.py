"""The page of tokens and sessions: made, shown once, and revoked."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import Response

from terrine_protocol import (
    Role,
    TokenCreate,
    TokenInfo,
)
from terrine_server import views
from terrine_server.admin.access import Admin, ByAdmin, Fields, Reader
from terrine_server.admin.rendering import explain_errors, page, parse_number, see_other
from terrine_server.api.paging import TokenCursor, TokenId
from terrine_server.api.paths import PAGES_PATH
from terrine_server.api.services import Services, ServicesDep
from terrine_server.errors import Conflict, NotFound, ServiceError
from terrine_server.ledger import TokenRecord
from terrine_server.owner.sign_in import MAX_SESSION_LIFE, Session

router = APIRouter(prefix=f"{PAGES_PATH}/tokens")

# Tokens on a page.
TOKENS_ON_A_PAGE = 50
DEFAULT_DAYS = "90"
FORM_SENT_BEFORE = (
    "This form was sent before, and made the token {}, which was shown then. If that page is lost, "
    "revoke the token and create another."
)
# The form lists no more projects; the name of any other one is typed.
MAX_LISTED_PROJECTS = 200


@router.get("")
def tokens(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    cursor: TokenCursor = None,
    project: str = "",
) -> Response:
    """List tokens, oldest first, and offer to create one."""
    return _tokens_page(request, services, reader, {"project": project}, cursor or None)


@router.post("")
def create(request: Request, services: ServicesDep, sent: ByAdmin) -> Response:
    """Create a token. Its secret is on this one page and nowhere else."""
    given, id = (
        sent.fields,
        services.sessions.idempotency_id(sent.session, sent.fields.get("once", "")),
    )
    try:
        wanted = TokenCreate.model_validate(
            {
                "role": given.get("role", ""),
                "project": given.get("project") or None,
                "label": given.get("label", ""),
                "expires_in_days": parse_number(given.get("expires_in_days", "")),
            }
        )
        made = services.tokens.create(wanted, sent.session.actor, sent.session.expires_at, id)
    except ValidationError as error:
        return _tokens_page(
            request, services, sent.session, given, problems=explain_errors(error), status=422
        )
    except Conflict as error:
        sent_before = services.ledger.tokens.find(id) is not None
        why = FORM_SENT_BEFORE.format(id) if sent_before else error.detail
        return _tokens_page(request, services, sent.session, given, problems=[why], status=409)
    except ServiceError as error:
        return _tokens_page(
            request, services, sent.session, given, problems=[error.detail], status=422
        )
    return page(
        request, "token.html", sent.session, made=made, url=str(request.base_url).rstrip("/")
    )


@router.get("/{token_id}/revoke")
def confirm_revoke(
    request: Request, services: ServicesDep, reader: Admin, token_id: TokenId
) -> Response:
    """Explain what revoking a token means, and ask for confirmation."""
    record = services.ledger.tokens.find(token_id)
    if record is None:
        raise NotFound(f"There is no token {token_id}.")
    return page(request, "revoke.html", reader, token=TokenInfo.model_validate(record))


@router.post("/{token_id}/revoke")
def revoke(request: Request, services: ServicesDep, sent: ByAdmin, token_id: TokenId) -> Response:
    """Revoke a token, and end its sessions."""
    services.ledger.tokens.revoke(token_id, sent.session.actor)
    return see_other(request, "/tokens", sent.session)


def _tokens_page(
    request: Request,
    services: Services,
    reader: Session,
    given: Fields,
    cursor: str | None = None,
    problems: tuple[str, ...] | list[str] = (),
    status: int = 200,
) -> Response:
    found: Sequence[TokenRecord] = services.ledger.tokens.list(
        after=cursor, limit=TOKENS_ON_A_PAGE + 1
    )
    sessions = services.sessions.open_sessions()
    return page(
        request,
        "tokens.html",
        reader,
        status=status,
        tokens=[TokenInfo.model_validate(each) for each in found[:TOKENS_ON_A_PAGE]],
        next=found[TOKENS_ON_A_PAGE - 1].id if len(found) > TOKENS_ON_A_PAGE else None,
        first=cursor is None,
        projects=services.ledger.projects.list_names()[:MAX_LISTED_PROJECTS],
        roles=list(Role),
        given={"role": "student", "label": "", "expires_in_days": DEFAULT_DAYS, "project": ""}
        | dict(given),
        problems=problems,
        once=secrets.token_hex(16),
        sessions=sessions,
        actors=views.actors(services.ledger, (each.who for each in sessions)),
        longest=MAX_SESSION_LIFE,
    )
