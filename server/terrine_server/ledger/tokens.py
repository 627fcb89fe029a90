"""Tokens as they are stored: made, found, listed and revoked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import RequestStatus, Role
from terrine_server.errors import Conflict, NotFound
from terrine_server.ledger import log, rows
from terrine_server.ledger.chain import Action
from terrine_server.ledger.database import Transaction
from terrine_server.ledger.records import RequestRecord, TokenRecord
from terrine_server.ledger.schema import Seals, requests, tokens


@dataclass(frozen=True)
class NewToken:
    """A token that is to be made. `hash`: a keyed hash of its secret, 32 bytes.

    `project`: that of a student's token, which belongs to one; any other belongs to none.
    """

    id: str
    hash: bytes
    role: Role
    project: str | None
    label: str
    expires_at: datetime


def insert_token(tx: Transaction, new: NewToken) -> TokenRecord:
    """Store a token; see `Ledger.create_token`."""
    owner = new.project and rows.fetch_project(
        tx.connection, tx.seals, f"called {new.project}", name=new.project
    )
    if (new.role is Role.STUDENT) != bool(owner):
        raise Conflict("A student's token belongs to one project, any other to none.")
    row = {
        "id": new.id,
        "role": str(new.role),
        "project_id": owner.id if owner else None,
        "label": new.label,
        "hash": new.hash,
        "created_at": tx.now,
        "expires_at": new.expires_at,
        "revoked_at": None,
    }
    try:
        tx.insert(tokens, row)
    except IntegrityError as error:
        raise Conflict(f"The token id {new.id} is taken.") from error
    log.record_row(tx, Action.TOKEN_CREATED, new.id, {**row, "project": new.project})
    return rows.token_record(
        tx.connection.execute(rows.SELECT_TOKEN, {"id": new.id}).one(), tx.seals
    )


MAX_OPEN_REQUESTS = 3
"""Requests of one token that may wait for a decision, so that nobody floods the log."""


def fetch_requests(
    connection: Connection,
    seals: Seals,
    *,
    token: str | None = None,
    status: RequestStatus | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[RequestRecord]:
    """Return up to `limit` requests, oldest first; see `Ledger.list_requests`."""
    query = rows.select_requests().limit(limit)
    if token is not None:
        query = query.where(requests.c.token_id == token)
    if status is not None:
        query = query.where(requests.c.status == status)
    if after is not None:
        last = fetch_request(connection, seals, after, token)
        query = query.where(rows.later_than(requests, last))
    return [rows.request_record(row, seals) for row in connection.execute(query)]


def fetch_request(
    connection: Connection, seals: Seals, id: str, token: str | None = None
) -> RequestRecord:
    """Return a request; with the id of a `token`, only if that made it. Raises NotFound."""
    query = rows.select_requests().where(requests.c.id == id)
    row = connection.execute(query).one_or_none()
    found = None if row is None else rows.request_record(row, seals)
    if found is None or (token is not None and found.token != token):
        raise NotFound(f"There is no request {id}.")
    return found


def lock_open_request(tx: Transaction, id: str) -> RequestRecord:
    """Lock an open request until the transaction ends, before any ensemble is locked."""
    tx.connection.execute(select(requests.c.id).where(requests.c.id == id).with_for_update())
    request = fetch_request(tx.connection, tx.seals, id)
    if request.status is RequestStatus.APPROVED:
        raise Conflict(f"The request {id} was approved already: {request.project} is open.")
    if request.status is RequestStatus.REFUSED:
        raise Conflict(f"The request {id} was refused already. Whoever made it may ask again.")
    return request


def decide_request(tx: Transaction, id: str, decision: Mapping[str, Any]) -> RequestRecord:
    """Store the decision on a locked request, record it in the log, and return the request."""
    tx.change(requests, id, {**decision, "decided_at": tx.now})
    return record_request(tx, Action(f"request-{decision['status']}"), id)


def record_request(tx: Transaction, action: Action, id: str) -> RequestRecord:
    """Record in the log what a request is now, and return it."""
    row = tx.connection.execute(rows.select_requests().where(requests.c.id == id)).one()
    log.record_row(tx, action, id, row._mapping)
    return fetch_request(tx.connection, tx.seals, id)
