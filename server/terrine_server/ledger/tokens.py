"""Tokens as they are stored: made, found, listed and revoked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import RequestStatus, Role
from terrine_server.errors import Conflict, LedgerCorrupted, NotFound, TokenChanged
from terrine_server.ledger import log, rows
from terrine_server.ledger.chain import Action, Actor, canonical_json
from terrine_server.ledger.database import Transaction, reading
from terrine_server.ledger.projects import NewProject, open_project
from terrine_server.ledger.records import ProjectRecord, RequestRecord, TokenRecord
from terrine_server.ledger.rows import DatabaseHandle
from terrine_server.ledger.schema import Seals, projects, requests, tokens


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


class StoredTokens(DatabaseHandle):
    """The tokens of a ledger."""

    def find_token(self, id: str) -> TokenRecord | None:
        """Return the token with this id, even if revoked or expired, or None."""
        with reading(self._engine) as connection:
            return find_token(connection, self._seals, id)

    def list_tokens(
        self, project: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[TokenRecord]:
        """Return up to `limit` tokens, oldest first: all, or those of one project.

        `after`: a token's id; only later tokens are returned. Raises NotFound for an unknown id.
        """
        query = rows.select_tokens().limit(limit)
        if project is not None:
            query = query.where(projects.c.name == project)
        with reading(self._engine) as connection:
            if after is not None:
                last = find_token(connection, self._seals, after)
                if last is None:
                    raise NotFound(f"There is no token {after}.")
                later = tokens.c.created_at > last.created_at
                same = tokens.c.created_at == last.created_at
                query = query.where(later | (same & (tokens.c.id > after)))
            return [rows.token_record(row, self._seals) for row in connection.execute(query)]

    def token_labels(self, ids: Collection[str]) -> dict[str, str]:
        """Return the labels of tokens by their ids. Who has none, or was altered, is left out."""
        labels: dict[str, str] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(rows.select_tokens().where(tokens.c.id.in_(ids))):
                with suppress(LedgerCorrupted):
                    token = rows.token_record(row, self._seals)
                    if token.label:
                        labels[token.id] = token.label
        return labels

    def create_token(self, new: NewToken, by: Actor | None = None) -> TokenRecord:
        """Store a token. Raises NotFound for an unknown project, Conflict when the id is taken."""
        with self._writing(by) as tx:
            return create_token(tx, new)

    def revoke_token(self, id: str, by: Actor | None = None) -> TokenRecord:
        """Revoke a token, from now on. Doing it again changes nothing. Raises NotFound."""
        with self._writing(by) as tx:
            locked = select(tokens.c.id).where(tokens.c.id == id).with_for_update()
            tx.connection.execute(locked)
            found = find_token(tx.connection, tx.seals, id)
            if found is None:
                raise NotFound(f"There is no token {id}.")
            if found.revoked_at is not None:
                return found
            revoked = tx.change(tokens, id, {"revoked_at": tx.now})
            log.record_row(tx, Action.TOKEN_REVOKED, id, {**revoked, "project": found.project})
            return rows.token_record(tx.connection.execute(rows.TOKEN, {"id": id}).one(), tx.seals)


def create_token(tx: Transaction, new: NewToken) -> TokenRecord:
    """Do what `StoredTokens.create_token` does, in a transaction that does more."""
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
    return rows.token_record(tx.connection.execute(rows.TOKEN, {"id": new.id}).one(), tx.seals)


def find_token(connection: Connection, seals: Seals, id: str) -> TokenRecord | None:
    """Return the token with this id, or None."""
    row = connection.execute(rows.TOKEN, {"id": id}).one_or_none()
    return None if row is None else rows.token_record(row, seals)


def check_unchanged(connection: Connection, seals: Seals, held: Collection[TokenRecord]) -> None:
    """Raise TokenChanged unless each of these tokens is exactly as it is stored."""

    def unchanged(token: TokenRecord) -> bool:
        try:
            return find_token(connection, seals, token.id) == token
        except LedgerCorrupted:
            return False

    changed = {token.id for token in held if not unchanged(token)}
    if changed:
        raise TokenChanged(changed)


MOST_OPEN = 3
"""Requests of one token that may wait for a decision, so that nobody floods the log."""


class Requests(DatabaseHandle):
    """What students ask the data owner for."""

    def find_request(self, id: str, token: str | None = None) -> RequestRecord:
        """Return a request; with the id of a `token`, only if that made it. Raises NotFound."""
        with reading(self._engine) as connection:
            return _find(connection, self._seals, id, token)

    def list_requests(
        self,
        token: str | None = None,
        status: RequestStatus | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[RequestRecord]:
        """Return up to `limit` requests, oldest first: all, or those of one token or status.

        `after`: a request's id; only later ones are returned. Raises NotFound for an unknown id.
        """
        with reading(self._engine) as connection:
            return _listed(
                connection, self._seals, token=token, status=status, after=after, limit=limit
            )

    def make_request(
        self,
        *,
        id: str,
        token: str,
        title: str,
        purpose: str,
        asked: Mapping[str, Any],
        by: Actor | None = None,
    ) -> RequestRecord:
        """Store what the holder of a student's token asks for, on the ensemble of its project.

        `asked`: mechanism, epsilon and delta. If the same is open already, that one is returned.
        Raises NotFound for an unknown token, Conflict when too many of its requests are open.
        """
        with self._writing(by) as tx:
            # Not two at a time with one token; key_share: a row that refers to the token need not
            # wait.
            holding = (
                select(tokens.c.id).where(tokens.c.id == token).with_for_update(key_share=True)
            )
            tx.connection.execute(holding)
            holder = find_token(tx.connection, tx.seals, token)
            if holder is None or holder.role is not Role.STUDENT:
                raise NotFound(f"There is no student's token {token}.")
            waiting = _listed(
                tx.connection, tx.seals, token=token, status=RequestStatus.OPEN, limit=MOST_OPEN
            )
            for request in waiting:
                if (request.title, request.purpose, request.asked) == (title, purpose, asked):
                    return request
            if len(waiting) >= MOST_OPEN:
                raise Conflict(
                    f"{MOST_OPEN} requests of this token wait for a decision already. Make "
                    "another once the data owner has decided one of them."
                )
            of = rows.fetch_project(
                tx.connection, tx.seals, f"called {holder.project}", name=holder.project
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
                "created_at": tx.now,
                "decided_at": None,
            }
            tx.insert(requests, row)
            return _recorded(tx, Action.REQUEST_MADE, id)

    def approve_request(
        self,
        id: str,
        project: NewProject,
        token: NewToken | None = None,
        by: Actor | None = None,
    ) -> tuple[RequestRecord, ProjectRecord, TokenRecord | None]:
        """Open the project that was asked for, and make a `token` of it if one is given.

        All of it, and what the log says of it, is one transaction. Raises NotFound, Conflict when
        it was decided already or is for another ensemble, and what `open_project` raises.
        """
        self.check_history()
        with self._writing(by) as tx:
            request = _hold(tx, id)
            if project.ensemble != request.ensemble:
                raise Conflict(f"This request is for the ensemble {request.ensemble}.")
            opened = open_project(tx, project)
            made = None if token is None else create_token(tx, token)
            approved = {"status": str(RequestStatus.APPROVED), "project_id": opened.id}
            return _decide(tx, id, approved), opened, made

    def refuse_request(self, id: str, reason: str, by: Actor | None = None) -> RequestRecord:
        """Refuse a request. Raises NotFound, and Conflict when it was decided already."""
        with self._writing(by) as tx:
            _hold(tx, id)
            return _decide(tx, id, {"status": str(RequestStatus.REFUSED), "reason": reason})


def _listed(
    connection: Connection,
    seals: Seals,
    *,
    token: str | None = None,
    status: RequestStatus | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[RequestRecord]:
    query = rows.select_requests().limit(limit)
    if token is not None:
        query = query.where(requests.c.token_id == token)
    if status is not None:
        query = query.where(requests.c.status == status)
    if after is not None:
        last = _find(connection, seals, after, token)
        later = requests.c.created_at > last.created_at
        same = requests.c.created_at == last.created_at
        query = query.where(later | (same & (requests.c.id > after)))
    return [rows.request_record(row, seals) for row in connection.execute(query)]


def _find(connection: Connection, seals: Seals, id: str, token: str | None = None) -> RequestRecord:
    query = rows.select_requests().where(requests.c.id == id)
    row = connection.execute(query).one_or_none()
    found = None if row is None else rows.request_record(row, seals)
    if found is None or (token is not None and found.token != token):
        raise NotFound(f"There is no request {id}.")
    return found


def _hold(tx: Transaction, id: str) -> RequestRecord:
    """Lock an open request until the transaction ends, before any ensemble is locked."""
    tx.connection.execute(select(requests.c.id).where(requests.c.id == id).with_for_update())
    request = _find(tx.connection, tx.seals, id)
    if request.status is RequestStatus.APPROVED:
        raise Conflict(f"The request {id} was approved already: {request.project} is open.")
    if request.status is RequestStatus.REFUSED:
        raise Conflict(f"The request {id} was refused already. Whoever made it may ask again.")
    return request


def _decide(tx: Transaction, id: str, decision: Mapping[str, Any]) -> RequestRecord:
    tx.change(requests, id, {**decision, "decided_at": tx.now})
    return _recorded(tx, Action(f"request-{decision['status']}"), id)


def _recorded(tx: Transaction, action: Action, id: str) -> RequestRecord:
    """Record in the log what a request is now, and return it."""
    row = tx.connection.execute(rows.select_requests().where(requests.c.id == id)).one()
    log.record_row(tx, action, id, row._mapping)
    return _find(tx.connection, tx.seals, id)
