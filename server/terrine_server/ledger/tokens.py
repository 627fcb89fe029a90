"""Tokens as they are stored: made, found, listed and revoked."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from terrine_protocol import Role
from terrine_server.errors import Conflict, LedgerCorrupted, NotFound, TokenChanged
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.handle import DatabaseHandle
from terrine_server.ledger.records import TokenRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import log, rows
from terrine_server.ledger.store.database import reading
from terrine_server.ledger.store.tables import projects, tokens
from terrine_server.ledger.store.transaction import Transaction


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
