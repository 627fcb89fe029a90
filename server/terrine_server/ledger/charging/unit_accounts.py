"""The accounts of a project's units (`neighbours`): read before a vote, written with its charge.

What each unit has spent is a function of private records. It leaves the database for the vote
alone: no answer, export, page, log, metric or error has anything of it. The whole vector is one row
of fixed size, whose seal binds it to the entry that it stands after, so accounts of an earlier
moment, or of another project, are not believed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection, insert, select, update

from terrine_server.errors import ConcurrentUpdate, Conflict, LedgerCorrupted
from terrine_server.ledger.records import Edition, ProjectRecord, SpentAccounts
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import editions
from terrine_server.ledger.store.database import write
from terrine_server.ledger.store.soundness import UNREADABLE, check_types
from terrine_server.ledger.store.tables import projects, unit_accounts
from terrine_server.ledger.store.transaction import Transaction
from terrine_server.privacy import Accounts

_STORED = np.dtype("<u4")

# One statement, which reads both rows as of one moment.
_AS_OF = select(
    unit_accounts,
    projects.c.charges.label("now_charges"),
    projects.c.head.label("now_head"),
).select_from(projects.outerjoin(unit_accounts, unit_accounts.c.project_id == projects.c.id))


def open_accounts(tx: Transaction, project: ProjectRecord) -> None:
    """Store empty accounts for a project that was just opened; of those who left, full ones."""
    edition = _edition_of(project)
    empty = _erased(np.zeros(edition.slots, dtype=_STORED), project, edition)
    row = {"project_id": project.id, **_row(project, empty, filled=0)}
    write(tx.connection, insert(unit_accounts).values(tx.seals.sealed("unit_accounts", row)))


def as_of(connection: Connection, seals: Seals, project: ProjectRecord) -> Accounts:
    """Return the accounts of a project as it was looked up.

    Raises ConcurrentUpdate if it has moved since, or people left or came, and LedgerCorrupted.
    """
    row = _fetch(connection, project)
    _check_edition(connection, seals, project)
    return _read(seals, project, row)


def load(connection: Connection, seals: Seals, project: ProjectRecord) -> Accounts:
    """Return the accounts of a project that is locked, or read in one snapshot with them."""
    try:
        return as_of(connection, seals, project)
    except ConcurrentUpdate:
        raise LedgerCorrupted("The project is not as it was read.", project.name) from None


def check_cast(project: ProjectRecord, entries: int, cast: SpentAccounts | None) -> None:
    """Raise unless new entries are exactly the queries that were cast, after the same entry.

    ConcurrentUpdate if others came first, or not all of them are paid: then the accounts are not
    those of the answers. ValueError for entries without accounts: nothing is told uncounted.
    """
    if cast is None:
        raise ValueError("a project whose units have accounts is charged with its accounts")
    if (cast.charges, cast.head, cast.queries) != (project.charges, project.head, entries):
        raise ConcurrentUpdate("Another request came first. Send the queries again.")


def save(tx: Transaction, after: ProjectRecord, accounts: Accounts) -> None:
    """Store the accounts of a project as it is `after` a charge in the same transaction.

    Accounts that were filled stay so. Raises ConcurrentUpdate if people left or came since they
    were read: who left must not have voted, and who came has an account, too.
    """
    _check_edition(tx.connection, tx.seals, after)
    stored = tx.connection.execute(
        select(unit_accounts.c.filled).where(unit_accounts.c.project_id == after.id)
    ).scalar_one_or_none()
    _update(tx, after, accounts, filled=1 if stored else 0)


def fill(tx: Transaction, project: ProjectRecord) -> None:
    """Count every unit of a locked project as spent. Needs no account as it was."""
    most = project.terms.allowance.most if project.terms.allowance else 0
    spent = np.full(_edition_of(project).slots, most, dtype=_STORED)
    _update(tx, project, spent, filled=1)


def move(tx: Transaction, project: ProjectRecord, edition: Edition) -> bool:
    """Take the accounts of a locked project over to the next edition of its ensemble.

    Those who came have empty ones, or full ones if all count as spent; those who left, full ones.
    Returns whether who comes has an empty one.
    """
    row = _fetch(tx.connection, project)
    before = _read(tx.seals, project, row)
    if project.terms.allowance is None:
        raise ValueError("units have accounts only where they are allowed something")
    new = project.terms.allowance.most if row.filled else 0
    accounts = np.full(edition.slots, new, dtype=_STORED)
    accounts[: len(before)] = before
    _update(tx, project, _erased(accounts, project, edition), filled=row.filled)
    return not row.filled


def check_closing(tx: Transaction, project: ProjectRecord) -> None:
    """Raise Conflict if a project's accounts were filled: nobody knows what it has spent."""
    if project.terms.allowance is None:
        return
    row = _fetch(tx.connection, project)
    _read(tx.seals, project, row)
    if row.filled:
        raise Conflict(
            f"The accounts of {project.name} were counted as spent after a restore. Closing it "
            "would give back to the cap what may be spent: leave it paused."
        )


def _row(project: ProjectRecord, accounts: Accounts, filled: int) -> dict[str, Any]:
    return {
        "charges": project.charges,
        "head": bytes.fromhex(project.head),
        "filled": filled,
        "accounts": accounts.astype(_STORED).tobytes(),
    }


def _update(tx: Transaction, project: ProjectRecord, accounts: Accounts, filled: int) -> None:
    changed = _row(project, accounts, filled)
    seal = tx.seals.of("unit_accounts", {"project_id": project.id, **changed})
    statement = update(unit_accounts).where(unit_accounts.c.project_id == project.id)
    write(tx.connection, statement.values(**changed, seal=seal))


def _erased(accounts: Accounts, project: ProjectRecord, edition: Edition) -> Accounts:
    """Count those who left as spent."""
    most = project.terms.allowance.most if project.terms.allowance else 0
    accounts[list(edition.erased)] = most
    return accounts


def _edition_of(project: ProjectRecord) -> Edition:
    if project.ensemble.edition is None:
        raise ValueError("a project whose units have accounts was read without its edition")
    return project.ensemble.edition


def _check_edition(connection: Connection, seals: Seals, project: ProjectRecord) -> None:
    """Raise ConcurrentUpdate if there is a newer edition than when a project was looked up."""
    now = editions.living(connection, seals, project.ensemble).edition
    if now != _edition_of(project):
        raise ConcurrentUpdate("People left or came meanwhile. Send the queries again.")


def _fetch(connection: Connection, project: ProjectRecord) -> Any:
    row = connection.execute(_AS_OF.where(projects.c.id == project.id)).one_or_none()
    if row is None or (row.now_charges, row.now_head) != (
        project.charges,
        bytes.fromhex(project.head),
    ):
        raise ConcurrentUpdate("Another request came first. Send the queries again.")
    return row


def _read(seals: Seals, project: ProjectRecord, row: Any) -> Accounts:
    """Return the accounts in a row. Raises LedgerCorrupted, and quotes nothing of it."""
    name, allowance, edition = project.name, project.terms.allowance, _edition_of(project)
    size = edition.slots * _STORED.itemsize
    try:
        check_types(unit_accounts.c, row._mapping)
        if allowance is None or len(row.accounts) != size:
            raise ValueError("not of the project's size")
        seals.check("unit_accounts", row._mapping)
    except UNREADABLE:
        found = f"The accounts of project {name} are lost, damaged or edited."
        raise LedgerCorrupted(found, name) from None
    accounts = np.frombuffer(row.accounts, dtype=_STORED)
    # After a restore every account counts as A, whatever the charges are.
    most = allowance.most if row.filled else allowance.used(project.charges)
    bounds = _erased(np.full(len(accounts), most, dtype=_STORED), project, edition)
    left = list(edition.erased)
    if (row.charges, row.head) != (project.charges, bytes.fromhex(project.head)) or bool(
        (accounts > bounds).any() or (accounts[left] != allowance.most).any()
    ):
        found = f"The accounts of project {name} are not those of its charges."
        raise LedgerCorrupted(found, name)
    return accounts.astype(np.uint32)
