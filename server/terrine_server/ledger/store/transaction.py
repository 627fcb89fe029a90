"""One writing transaction: its connection, the key's seals, its time, and who acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, insert, select, update

from terrine_server.ledger.administration import Actor
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.database import write

UNSEALED = bytes(32)
"""In the seal of a row whose id is not known yet: no seal is this."""


@dataclass(frozen=True)
class Transaction:
    """What is done in it is committed as a whole. `by`: None for this process's account."""

    connection: Connection
    seals: Seals
    now: datetime
    by: Actor | None

    def insert(self, table: Table, row: Mapping[str, Any]) -> None:
        """Insert a row, sealed. Raises IntegrityError if its key is taken."""
        write(self.connection, insert(table).values(self.seals.sealed(table.name, row)))

    def insert_named(self, table: Table, row: Mapping[str, Any]) -> None:
        """Insert a row whose id the database chooses, and seal it as it was meant to be.

        Raises IntegrityError if its name is taken.
        """
        write(self.connection, insert(table).values({**row, "seal": UNSEALED}))
        query = select(table.c.id).where(table.c.name == row["name"])
        id = self.connection.execute(query).scalar_one()
        seal = self.seals.of(table.name, {**row, "id": id})
        write(self.connection, update(table).where(table.c.id == id).values(seal=seal))

    def change(self, table: Table, id: int | str, changed: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change a locked row, sealed as it is meant to be afterwards, and return it."""
        row = self.connection.execute(select(table).where(table.c.id == id)).one()._mapping
        sealed = self.seals.sealed(table.name, {**row, **changed})
        new = {**changed, "seal": sealed["seal"]}
        write(self.connection, update(table).where(table.c.id == id).values(new))
        return sealed
