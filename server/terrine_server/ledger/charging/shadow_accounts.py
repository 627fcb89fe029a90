"""The shadow accounts of a project of `neighbours`: public points, charged as if they were private.

They show where the units of a project are being used up: a function of the queries and of public
points, so public, too. They are written with each charge, as the accounts of the units are, and a
row of fixed size comes with the first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection, insert, select, update

from terrine_server.errors import ConcurrentUpdate, LedgerCorrupted
from terrine_server.ledger.records import ProjectRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.database import write
from terrine_server.ledger.store.soundness import UNREADABLE, check_types
from terrine_server.ledger.store.tables import projects, shadow_accounts
from terrine_server.ledger.store.transaction import Transaction
from terrine_server.privacy import Accounts

_STORED = np.dtype("<u4")

# One statement, which reads both rows as of one moment.
_AS_OF = select(
    shadow_accounts,
    projects.c.charges.label("now_charges"),
    projects.c.head.label("now_head"),
).select_from(projects.outerjoin(shadow_accounts, shadow_accounts.c.project_id == projects.c.id))


def as_of(connection: Connection, seals: Seals, project: ProjectRecord, count: int) -> Accounts:
    """Return the shadow accounts of a project as it was looked up; `count` before any charge.

    Raises ConcurrentUpdate if it has moved since, and LedgerCorrupted.
    """
    row = connection.execute(_AS_OF.where(projects.c.id == project.id)).one_or_none()
    now = None if row is None else (row.now_charges, row.now_head)
    if row is None or now != (project.charges, bytes.fromhex(project.head)):
        raise ConcurrentUpdate("Another request came first. Send the queries again.")
    if row.project_id is None and project.charges == 0:
        return np.zeros(count, np.uint32)
    return _read(seals, project, row)


def load(connection: Connection, seals: Seals, project: ProjectRecord) -> Accounts:
    """Return those of a project that is locked, or read in one snapshot with them."""
    try:
        return as_of(connection, seals, project, 0)
    except ConcurrentUpdate:
        raise LedgerCorrupted("The project is not as it was read.", project.name) from None


def save(tx: Transaction, after: ProjectRecord, accounts: Accounts) -> None:
    """Store those of a project as it is `after` a charge in the same transaction."""
    values = {
        "charges": after.charges,
        "head": bytes.fromhex(after.head),
        "accounts": accounts.astype(_STORED).tobytes(),
    }
    here, row = shadow_accounts.c.project_id == after.id, {"project_id": after.id, **values}
    seal = tx.seals.of("shadow_accounts", row)
    if tx.connection.execute(select(shadow_accounts.c.project_id).where(here)).first() is None:
        write(tx.connection, insert(shadow_accounts).values(**row, seal=seal))
    else:  # whose it is stays, and the service has no right to change it
        write(tx.connection, update(shadow_accounts).where(here).values(**values, seal=seal))


def fill(tx: Transaction, project: ProjectRecord) -> None:
    """Count every shadow of a locked project as spent, as its units are after a restore."""
    _set(tx, project, project.terms.allowance.most if project.terms.allowance else 0)


def renew(tx: Transaction, project: ProjectRecord) -> None:
    """Empty the accounts of all shadows of a locked project with a new edition of its ensemble.

    How many people came is not public, so any region may be full of them.
    """
    _set(tx, project, 0)


def _set(tx: Transaction, project: ProjectRecord, spent: int) -> None:
    stored = select(shadow_accounts.c.accounts).where(shadow_accounts.c.project_id == project.id)
    accounts = tx.connection.execute(stored).scalar_one_or_none()
    if accounts is not None:
        save(tx, project, np.full(len(accounts) // _STORED.itemsize, spent, np.uint32))


def _read(seals: Seals, project: ProjectRecord, row: Any) -> Accounts:
    name, allowance = project.name, project.terms.allowance
    try:
        check_types(shadow_accounts.c, row._mapping)
        if allowance is None or len(row.accounts) % _STORED.itemsize:
            raise ValueError("not of whole accounts")
        seals.check("shadow_accounts", row._mapping)
    except UNREADABLE:
        found = f"The shadow accounts of project {name} are lost, damaged or edited."
        raise LedgerCorrupted(found, name) from None
    accounts = np.frombuffer(row.accounts, dtype=_STORED).astype(np.uint32)
    possible = (accounts <= allowance.used(project.charges)).all()
    filled = (accounts == allowance.most).all()
    if (row.charges, row.head) != (project.charges, bytes.fromhex(project.head)) or not (
        possible or filled
    ):
        found = f"The shadow accounts of project {name} are not those of its charges."
        raise LedgerCorrupted(found, name)
    return accounts
