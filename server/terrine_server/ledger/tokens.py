"""Tokens as they are stored: made, found, listed and revoked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from terrine_protocol import Role
from terrine_server.errors import Conflict, LedgerCorrupted, NotFound, TokenChanged
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.records import TokenRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import log, rows
from terrine_server.ledger.store.database import write
from terrine_server.ledger.store.tables import projects, tokens


@dataclass(frozen=True)
class NewToken:
    """A student's token that is to be made. `hash`: a keyed hash of its secret, 32 bytes."""

    id: str
    hash: bytes
    label: str
    expires_at: datetime


def create_token(
    connection: Connection,
    seals: Seals,
    now: datetime,
    by: Actor | None,
    *,
    id: str,
    hash: bytes,
    role: Role,
    project: str | None,
    label: str,
    expires_at: datetime,
) -> TokenRecord:
    """See `Ledger.create_token`."""
    owner = project and rows.fetch_project(
        connection, seals, projects.c.name == project, f"called {project}"
    )
    if (role is Role.STUDENT) != bool(owner):
        raise Conflict("A student's token belongs to one project, any other to none.")
    row = {
        "id": id,
        "role": str(role),
        "project_id": owner.id if owner else None,
        "label": label,
        "hash": hash,
        "created_at": now,
        "expires_at": expires_at,
        "revoked_at": None,
    }
    try:
        write(connection, insert(tokens).values(seals.sealed("tokens", row)))
    except IntegrityError as error:
        raise Conflict(f"The token id {id} is taken.") from error
    log.record_row(
        *(connection, seals, now, by, Action.TOKEN_CREATED, id), {**row, "project": project}
    )
    return rows.token_record(connection.execute(rows.TOKEN, {"id": id}).one(), seals)


def find_token(connection: Connection, seals: Seals, id: str) -> TokenRecord | None:
    """See `Books.find_token`."""
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


def list_tokens(
    connection: Connection, seals: Seals, project: str | None, after: str | None, limit: int | None
) -> list[TokenRecord]:
    """See `Books.list_tokens`."""
    query = rows.select_tokens().limit(limit)
    if project is not None:
        query = query.where(projects.c.name == project)
    if after is not None:
        last = find_token(connection, seals, after)
        if last is None:
            raise NotFound(f"There is no token {after}.")
        later = tokens.c.created_at > last.created_at
        same = tokens.c.created_at == last.created_at
        query = query.where(later | (same & (tokens.c.id > after)))
    return [rows.token_record(row, seals) for row in connection.execute(query)]


def revoke_token(
    connection: Connection, seals: Seals, now: datetime, by: Actor | None, id: str
) -> TokenRecord:
    """See `Ledger.revoke_token`."""
    connection.execute(select(tokens.c.id).where(tokens.c.id == id).with_for_update())
    row = connection.execute(rows.TOKEN, {"id": id}).one_or_none()
    if row is None:
        raise NotFound(f"There is no token {id}.")
    found = rows.token_record(row, seals)
    if found.revoked_at is not None:
        return found
    revoked = seals.sealed("tokens", {**row._mapping, "revoked_at": now})
    changed = {name: revoked[name] for name in ("revoked_at", "seal")}
    write(connection, update(tokens).where(tokens.c.id == id).values(changed))
    log.record_row(connection, seals, now, by, Action.TOKEN_REVOKED, id, revoked)
    return rows.token_record(connection.execute(rows.TOKEN, {"id": id}).one(), seals)
