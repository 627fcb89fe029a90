"""Tokens as they are stored: made, found, listed and revoked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, literal, select, tuple_
from sqlalchemy.exc import IntegrityError

from terrine_protocol import Role
from terrine_server.errors import Conflict, LedgerCorrupted, NotFound, TokenChanged
from terrine_server.ledger import log, rows
from terrine_server.ledger.chain import Action, Actor
from terrine_server.ledger.database import Access
from terrine_server.ledger.log import last_detail
from terrine_server.ledger.records import TokenRecord
from terrine_server.ledger.rows import check_logged
from terrine_server.ledger.schema import projects, tokens
from terrine_server.ledger.seals import Seals, check_types, readable


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


_token_logged = last_detail("token", tokens.c.id).label("logged")


def select_tokens() -> Select[Any]:
    """Select all tokens with the name of their project, oldest first."""
    return (
        select(tokens, projects.c.name.label("project"), _token_logged)
        .outerjoin(projects, tokens.c.project_id == projects.c.id)
        .order_by(tokens.c.created_at, tokens.c.id)
    )


# Selects one token. Built once, since every request needs it.
SELECT_TOKEN = select_tokens().where(tokens.c.id == bindparam("id")).order_by(None)


def token_record(row: Row[Any], seals: Seals) -> TokenRecord:
    """Return the record of a row of `select_tokens`.

    Raises LedgerCorrupted unless its seal is right and the administrative log says the same.
    """
    return _token_record(seals, row._fields, *row)


# Every request needs it. What it says follows from the values alone, and from their types.
@lru_cache(maxsize=1024, typed=True)
def _token_record(seals: Seals, names: tuple[str, ...], *values: Any) -> TokenRecord:
    fields = dict(zip(names, values, strict=True))
    with readable(f"The token {fields['id']!r}"):
        check_types(tokens.c, fields)
        seals.check("tokens", fields)
        check_logged("token", fields)
        del fields["seal"], fields["logged"]
        return TokenRecord(**fields | {"role": Role(fields["role"])})


def fetch_token(connection: Connection, seals: Seals, id: str) -> TokenRecord | None:
    """Return the token with this id, or None."""
    row = connection.execute(SELECT_TOKEN, {"id": id}).one_or_none()
    return None if row is None else token_record(row, seals)


def check_unchanged(connection: Connection, seals: Seals, held: Collection[TokenRecord]) -> None:
    """Raise TokenChanged unless each of these tokens is exactly as it is stored."""
    changed = set()
    for token in held:
        try:
            if fetch_token(connection, seals, token.id) != token:
                changed.add(token.id)
        except LedgerCorrupted:
            changed.add(token.id)
    if changed:
        raise TokenChanged(changed)


class Tokens:
    """The tokens of a ledger. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def find(self, id: str) -> TokenRecord | None:
        """Return the token with this id, even if revoked or expired, or None."""
        with self._access.reading() as connection:
            return fetch_token(connection, self._access.seals, id)

    def list(
        self, project: str | None = None, after: str | None = None, limit: int | None = None
    ) -> Sequence[TokenRecord]:
        """Return up to `limit` tokens, oldest first: all, or those of one project.

        `after`: a token's id; only later tokens are returned. Raises NotFound for an unknown id.
        """
        query = select_tokens().limit(limit)
        if project is not None:
            query = query.where(projects.c.name == project)
        with self._access.reading() as connection:
            if after is not None:
                last = fetch_token(connection, self._access.seals, after)
                if last is None:
                    raise NotFound(f"There is no token {after}.")
                at = literal(last.created_at, tokens.c.created_at.type)
                later = tuple_(tokens.c.created_at, tokens.c.id) > tuple_(at, literal(last.id))
                query = query.where(later)
            return [token_record(row, self._access.seals) for row in connection.execute(query)]

    def list_labels(self, ids: Collection[str]) -> dict[str, str]:
        """Return the labels of tokens by their ids. Who has none, or was altered, is left out."""
        labels: dict[str, str] = {}
        with self._access.reading() as connection:
            for row in connection.execute(select_tokens().where(tokens.c.id.in_(ids))):
                with suppress(LedgerCorrupted):
                    token = token_record(row, self._access.seals)
                    if token.label:
                        labels[token.id] = token.label
        return labels

    def create(self, new: NewToken, by: Actor | None = None) -> TokenRecord:
        """Store a token. Raises NotFound for an unknown project, Conflict when the id is taken."""
        with self._access.writing(by) as tx:
            owner = new.project and rows.fetch_project(tx.connection, tx.seals, new.project)
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
            return token_record(tx.connection.execute(SELECT_TOKEN, {"id": new.id}).one(), tx.seals)

    def revoke(self, id: str, by: Actor | None = None) -> TokenRecord:
        """Revoke a token, from now on. Doing it again changes nothing. Raises NotFound."""
        with self._access.writing(by) as tx:
            locked = select(tokens.c.id).where(tokens.c.id == id).with_for_update()
            tx.connection.execute(locked)
            found = fetch_token(tx.connection, tx.seals, id)
            if found is None:
                raise NotFound(f"There is no token {id}.")
            if found.revoked_at is not None:
                return found
            revoked = tx.change(tokens, id, {"revoked_at": tx.now})
            log.record_row(tx, Action.TOKEN_REVOKED, id, {**revoked, "project": found.project})
            return token_record(tx.connection.execute(SELECT_TOKEN, {"id": id}).one(), tx.seals)
