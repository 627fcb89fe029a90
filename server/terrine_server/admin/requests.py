"""Requests for projects: what approving one would mean, and deciding it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from terrine_protocol import ProjectOpen, RequestApprove, RequestRefuse, RequestStatus
from terrine_server.admin.access import ByAdmin, Reader
from terrine_server.admin.forms import lines, number, spoken
from terrine_server.admin.opening import RefusedForm, terms_form, tried
from terrine_server.admin.rendering import ROOT, page, see_other
from terrine_server.api.paging import RequestId, TokenCursor
from terrine_server.api.services import Services, ServicesDep
from terrine_server.ledger import RequestRecord
from terrine_server.owner import requests
from terrine_server.owner.sessions import Session

router = APIRouter(prefix=f"{ROOT}/requests")

ROWS = 40
"""Requests on a page."""
DAYS = 90
"""How long a token lasts that is made with an approval, unless the form says otherwise."""


@router.get("")
def list_requests(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    cursor: TokenCursor = None,
    status: Annotated[RequestStatus, Query()] = RequestStatus.OPEN,
) -> Response:
    """Show what waits for a decision, or what was decided."""
    found = services.ledger.list_requests(None, status, cursor or None, ROWS + 1)
    return page(
        request,
        "requests.html",
        reader,
        requests=found[:ROWS],
        labels=services.ledger.token_labels({each.token for each in found}),
        next=found[ROWS - 1].id if len(found) > ROWS else None,
        first=not cursor,
        only=status,
        statuses=list(RequestStatus),
    )


@router.get("/{request_id}")
def show(
    request: Request,
    services: ServicesDep,
    reader: Reader,
    request_id: RequestId,
) -> Response:
    """Show a request and, while it is open, what approving it as it was made would mean."""
    record = services.ledger.find_request(request_id)
    given = _asked(record, reader)
    done = RefusedForm(given)
    if record.status is RequestStatus.OPEN:
        # A price needs a name, which decides nothing about it.
        priced = {**given, "name": given["name"] or record.id, "action": "price"}
        found = tried(services, priced, lambda _: Response())
        if isinstance(found, RefusedForm):
            done = RefusedForm(given, found.preview, found.problems)
    return _page(request, services, reader, record, done)


@router.post("/{request_id}")
def decide(
    request: Request, services: ServicesDep, sent: ByAdmin, request_id: RequestId
) -> Response:
    """Propose parameters, show what the terms would mean, or approve the request."""
    record = services.ledger.find_request(request_id)
    given = {**sent.fields, "ensemble": record.ensemble}

    def approve(wanted: ProjectOpen) -> Response:
        text = given.get("days", "")
        days = RequestApprove.model_validate(
            {"name": wanted.name, "token_expires_in_days": number(text) if text else None}
        ).token_expires_in_days
        session = sent.session
        done = requests.approve(
            services.ledger,
            services.tokens,
            request_id,
            wanted,
            days,
            by=session.actor,
            until=session.expires_at,
        )
        if done.token is None:
            return see_other(request, f"/projects/{done.project.name}", session)
        url = str(request.base_url).rstrip("/")
        return page(request, "token.html", session, made=done.token, url=url)

    found = tried(services, given, approve)
    if isinstance(found, Response):
        return found
    record = services.ledger.find_request(request_id)  # somebody else may have decided it
    return _page(request, services, sent.session, record, found)


@router.post("/{request_id}/refuse")
def refuse(
    request: Request, services: ServicesDep, sent: ByAdmin, request_id: RequestId
) -> Response:
    """Refuse a request, with a reason."""
    reason = lines(sent.fields.get("reason", ""))
    try:
        refusal = RequestRefuse(reason=reason)
    except ValidationError as error:
        record = services.ledger.find_request(request_id)
        done = RefusedForm(_asked(record, sent.session), None, spoken(error), 422)
        return _page(request, services, sent.session, record, done, reason)
    services.ledger.refuse_request(request_id, refusal.reason, sent.session.actor)
    return see_other(request, f"/requests/{request_id}", sent.session)


def _page(
    request: Request,
    services: Services,
    reader: Session,
    record: RequestRecord,
    done: RefusedForm,
    reason: str = "",
) -> Response:
    return page(
        request,
        "request.html",
        reader,
        status=done.status,
        record=record,
        holder=services.ledger.find_token(record.token),
        reason=reason,
        **terms_form(services.ledger, done),
    )


def _asked(record: RequestRecord, reader: Session) -> dict[str, str]:
    """Return what the form says at first: what was asked for, and a name made of the title."""
    mechanism = {key: str(value) for key, value in record.asked["mechanism"].items()}
    name = re.sub(r"[^a-z0-9]+", "-", record.title.lower())[:64].strip("-")
    days = min(DAYS, (reader.expires_at - datetime.now(UTC)).days)
    return {
        **mechanism,
        "mechanism": mechanism["name"],
        "name": name,
        "ensemble": record.ensemble,
        "title": record.title,
        "purpose": record.purpose,
        "epsilon": str(record.asked["epsilon"]),
        "delta": str(record.asked["delta"]),
        "days": str(days) if days > 0 else "",
    }
