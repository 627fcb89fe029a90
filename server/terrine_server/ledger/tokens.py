"""Tokens as they are stored: made, found, listed and revoked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.exc import IntegrityError

from terrine_protocol import Role
from terrine_server.errors import Conflict
from terrine_server.ledger import log, rows
from terrine_server.ledger.chain import Action
from terrine_server.ledger.database import Transaction
from terrine_server.ledger.records import TokenRecord
from terrine_server.ledger.schema import tokens


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
