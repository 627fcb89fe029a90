"""Requests as they are stored: made by students, found, listed, approved and refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from terrine_protocol import RequestStatus, Role
from terrine_server.errors import Conflict, NotFound
from terrine_server.ledger import accounts
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.records import ProjectRecord, RequestRecord, TokenRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import log, rows
from terrine_server.ledger.store.database import write
from terrine_server.ledger.store.tables import projects, requests, tokens
from terrine_server.ledger.tokens import NewToken, create_token, find_token
from terrine_server.privacy import Terms

MOST_OPEN = 3
"""Requests of one token that may wait for a decision, so that nobody floods the log."""


def make_request(
    connection: Connection,
    seals: Seals,
    now: datetime,
    by: Actor | None,
    *,
    id: str,
    token: str,
    title: str,
    purpose: str,
    asked: Mapping[str, Any],
) -> RequestRecord:
    """See `Ledger.make_request`."""
    # Not two at a time with one token; key_share: a row that refers to the token need not wait.
    holding = select(tokens.c.id).where(tokens.c.id == token).with_for_update(key_share=True)
    connection.execute(holding)
    holder = find_token(connection, seals, token)
    if holder is None or holder.role is not Role.STUDENT:
        raise NotFound(f"There is no student's token {token}.")
    waiting = list_requests(connection, seals, token, RequestStatus.OPEN, None, MOST_OPEN)
    for request in waiting:
        if (request.title, request.purpose, request.asked) == (title, purpose, asked):
            return request
    if len(waiting) >= MOST_OPEN:
        raise Conflict(
            f"{MOST_OPEN} requests of this token wait for a decision already. Make another once "
            "the data owner has decided one of them."
        )
    of = rows.fetch_project(
        *(connection, seals, projects.c.name == holder.project, f"called {holder.project}")
    )
    row = {
        "id": id,
        "token_id": token,
        "ensemble_id": of.ensemble.id,
        "title": title,
        "purpose": purpose,
        "asked": canonical_json(dict(asked)),
        "status": str(RequestStatus.OPEN),
        "project_id": None,
        "reason": None,
        "created_at": now,
        "decided_at": None,
    }
    write(connection, insert(requests).values(seals.sealed("requests", row)))
    _log(connection, seals, now, by, Action.REQUEST_MADE, id)
    return _fetch(connection, seals, id)


def find_request(
    connection: Connection, seals: Seals, id: str, token: str | None = None
) -> RequestRecord:
    """See `Books.find_request`."""
    found = _fetch(connection, seals, id)
    if token is not None and found.token != token:
        raise _unknown(id)
    return found


def list_requests(
    connection: Connection,
    seals: Seals,
    token: str | None,
    status: RequestStatus | None,
    after: str | None,
    limit: int | None,
) -> list[RequestRecord]:
    """See `Books.list_requests`."""
    query = rows.select_requests().limit(limit)
    if token is not None:
        query = query.where(requests.c.token_id == token)
    if status is not None:
        query = query.where(requests.c.status == status)
    if after is not None:
        last = find_request(connection, seals, after, token)
        later = requests.c.created_at > last.created_at
        same = requests.c.created_at == last.created_at
        query = query.where(later | (same & (requests.c.id > after)))
    return [rows.request_record(row, seals) for row in connection.execute(query)]


def approve_request(
    connection: Connection,
    seals: Seals,
    now: datetime,
    by: Actor | None,
    id: str,
    *,
    name: str,
    mechanism: Mapping[str, Any],
    terms: Terms,
    title: str,
    purpose: str,
    token: NewToken | None,
) -> tuple[RequestRecord, ProjectRecord, TokenRecord | None]:
    """See `Ledger.approve_request`."""
    request = _hold(connection, seals, id)
    opened = accounts.open_project(
        *(connection, seals, now, by, name, request.ensemble, mechanism, terms, title, purpose)
    )
    made = None
    if token is not None:
        made = create_token(
            *(connection, seals, now, by),
            id=token.id,
            hash=token.hash,
            role=Role.STUDENT,
            project=name,
            label=token.label,
            expires_at=token.expires_at,
        )
    approved = {"status": str(RequestStatus.APPROVED), "project_id": opened.id}
    return _decide(connection, seals, now, by, id, approved), opened, made


def refuse_request(
    connection: Connection, seals: Seals, now: datetime, by: Actor | None, id: str, reason: str
) -> RequestRecord:
    """See `Ledger.refuse_request`."""
    _hold(connection, seals, id)
    refused = {"status": str(RequestStatus.REFUSED), "reason": reason}
    return _decide(connection, seals, now, by, id, refused)


def _hold(connection: Connection, seals: Seals, id: str) -> RequestRecord:
    """Lock an open request until the transaction ends, before any ensemble is locked."""
    connection.execute(select(requests.c.id).where(requests.c.id == id).with_for_update())
    request = _fetch(connection, seals, id)
    if request.status is RequestStatus.APPROVED:
        raise Conflict(f"The request {id} was approved already: {request.project} is open.")
    if request.status is RequestStatus.REFUSED:
        raise Conflict(f"The request {id} was refused already. Whoever made it may ask again.")
    return request


def _decide(
    connection: Connection,
    seals: Seals,
    now: datetime,
    by: Actor | None,
    id: str,
    decision: Mapping[str, Any],
) -> RequestRecord:
    row = connection.execute(select(requests).where(requests.c.id == id)).one()._mapping
    decided = seals.sealed("requests", {**row, **decision, "decided_at": now})
    changed = {name: decided[name] for name in (*decision, "decided_at", "seal")}
    write(connection, update(requests).where(requests.c.id == id).values(changed))
    _log(connection, seals, now, by, Action(f"request-{decision['status']}"), id)
    return _fetch(connection, seals, id)


def _log(
    connection: Connection, seals: Seals, now: datetime, by: Actor | None, action: Action, id: str
) -> None:
    row = connection.execute(rows.select_requests().where(requests.c.id == id)).one()
    log.record_row(connection, seals, now, by, action, id, row._mapping)


def _fetch(connection: Connection, seals: Seals, id: str) -> RequestRecord:
    query = rows.select_requests().where(requests.c.id == id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise _unknown(id)
    return rows.request_record(row, seals)


def _unknown(id: str) -> NotFound:
    return NotFound(f"There is no request {id}.")
