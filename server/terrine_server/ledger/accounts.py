"""The accounts of a project's units (`neighbours`): read before a vote, written with its charge.

What each unit has spent is a function of private records. It leaves the database for the vote
alone: no answer, export, page, log, metric or error has anything of it. The whole vector is one row
of fixed size, whose seal binds it to the entry that it follows, so accounts of an earlier
moment, or of another project, are not trusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sqlalchemy import Connection, Table, select, update

from terrine_server.errors import ConcurrentUpdate, Conflict, LedgerCorrupted
from terrine_server.ledger import rows
from terrine_server.ledger.database import Transaction, write
from terrine_server.ledger.records import Edition, ProjectRecord, SpentAccounts
from terrine_server.ledger.schema import projects, shadow_accounts, unit_accounts
from terrine_server.ledger.seals import READ_ERRORS, Seals, check_types
from terrine_server.privacy import Accounts
from terrine_server.privacy.allowance import Allowance

_STORED = np.dtype("<u4")

# By table: one statement, which reads both rows as of one moment.
_WITH_PROJECT = {
    table.name: select(
        table, projects.c.charges.label("now_charges"), projects.c.head.label("now_head")
    ).select_from(projects.outerjoin(table, table.c.project_id == projects.c.id))
    for table in (unit_accounts, shadow_accounts)
}


def open_accounts(tx: Transaction, project: ProjectRecord) -> None:
    """Store empty accounts for a project that was just opened; of those who left, full ones."""
    edition = _edition_of(project)
    empty = _with_erased(np.zeros(edition.slots, _STORED), project, edition)
    _save(unit_accounts, tx, project, empty, new=True, filled=0)


def load_unit_accounts(connection: Connection, seals: Seals, project: ProjectRecord) -> Accounts:
    """Return the accounts of a project as it was read.

    Raises ConcurrentUpdate if it has moved since, or people left or came, and LedgerCorrupted.
    """
    row = _fetch(unit_accounts, connection, project)
    _check_edition(connection, seals, project)
    return _read(unit_accounts, seals, project, row)


def load_shadow_accounts(
    connection: Connection, seals: Seals, project: ProjectRecord, count: int = 0
) -> Accounts:
    """Return the shadow accounts of a project as it was read; `count` before any charge.

    Raises ConcurrentUpdate if it has moved since, and LedgerCorrupted.
    """
    row = _fetch(shadow_accounts, connection, project)
    if row.project_id is None and project.charges == 0:
        return np.zeros(count, np.uint32)
    return _read(shadow_accounts, seals, project, row)


def check_cast(project: ProjectRecord, entries: int, cast: SpentAccounts | None) -> None:
    """Raise unless new entries are exactly the queries that were cast, after the same entry.

    ConcurrentUpdate if others came first, or not all of them are paid: then the accounts are not
    those of the answers. ValueError for entries without accounts: nothing is released uncounted.
    """
    if cast is None:
        raise ValueError("a project whose units have accounts is charged with its accounts")
    if (cast.charges, cast.head, cast.queries) != (project.charges, project.head, entries):
        raise ConcurrentUpdate()


def save_unit_accounts(tx: Transaction, after: ProjectRecord, accounts: Accounts) -> None:
    """Store the accounts of a project as it is `after` a charge in the same transaction.

    Accounts that were filled stay so. Raises ConcurrentUpdate if people left or came since they
    were read: who left must not have voted, and who came has an account, too.
    """
    _check_edition(tx.connection, tx.seals, after)
    stored = tx.connection.execute(
        select(unit_accounts.c.filled).where(unit_accounts.c.project_id == after.id)
    ).scalar_one_or_none()
    _save(unit_accounts, tx, after, accounts, filled=1 if stored else 0)


def save_shadow_accounts(tx: Transaction, after: ProjectRecord, accounts: Accounts) -> None:
    """Store the shadow accounts of a project as it is `after` a charge in the same transaction."""
    new = _count_shadows(tx, after) is None
    _save(shadow_accounts, tx, after, accounts, new=new)


def fill_accounts(tx: Transaction, project: ProjectRecord) -> None:
    """Count every unit and shadow of a locked project as spent, whatever its accounts were."""
    most = _allowance_of(project).most
    spent = np.full(_edition_of(project).slots, most, _STORED)
    _save(unit_accounts, tx, project, spent, filled=1)
    _reset_shadows(tx, project, most)


def follow_edition(tx: Transaction, project: ProjectRecord, edition: Edition) -> None:
    """Carry the accounts of a locked project over to the next edition of its ensemble.

    Who came has an empty one, or a full one if all count as spent; who left, a full one. Unless all
    count as spent, the shadows start anew: how many people came is not public, so any region may
    be full of them.
    """
    row = _fetch(unit_accounts, tx.connection, project)
    before = _read(unit_accounts, tx.seals, project, row)
    accounts = np.full(edition.slots, _allowance_of(project).most if row.filled else 0, _STORED)
    accounts[: len(before)] = before
    accounts = _with_erased(accounts, project, edition)
    _save(unit_accounts, tx, project, accounts, filled=row.filled)
    if not row.filled:
        _reset_shadows(tx, project, 0)


def check_closing(tx: Transaction, project: ProjectRecord) -> None:
    """Raise Conflict if a project's accounts were filled: nobody knows what it has spent."""
    if project.terms.allowance is None:
        return
    row = _fetch(unit_accounts, tx.connection, project)
    _read(unit_accounts, tx.seals, project, row)
    if row.filled:
        raise Conflict(
            f"The accounts of {project.name} were counted as spent after a restore. Closing it "
            "would give back to the cap what may be spent: leave it paused."
        )


def _fetch(table: Table, connection: Connection, project: ProjectRecord) -> Any:
    here = _WITH_PROJECT[table.name].where(projects.c.id == project.id)
    row = connection.execute(here).one_or_none()
    now = None if row is None else (row.now_charges, row.now_head)
    if now != (project.charges, bytes.fromhex(project.head)):
        raise ConcurrentUpdate()
    return row


def _read(table: Table, seals: Seals, project: ProjectRecord, row: Any) -> Accounts:
    """Return the accounts in a row. Raises LedgerCorrupted, and quotes nothing of it."""
    allowance, of_units = project.terms.allowance, table is unit_accounts
    what = f"The {'' if of_units else 'shadow '}accounts of project {project.name} are"
    slots, erased = None, list[int]()
    if of_units:
        edition = _edition_of(project)
        slots, erased = edition.slots, list(edition.erased)
    try:
        check_types(table.c, row._mapping)
        accounts = np.frombuffer(row.accounts, _STORED).astype(np.uint32)
        if allowance is None or slots not in (None, len(accounts)):
            raise ValueError("not of the project's size")
        seals.check(table.name, row._mapping)
    except READ_ERRORS:
        raise LedgerCorrupted(f"{what} lost, damaged or edited.", project.name) from None
    # After a restore every account counts as A, whatever the charges are.
    filled = row.filled if of_units else (accounts == allowance.most).all()
    bounds = np.full(
        len(accounts), allowance.most if filled else allowance.most_spent(project.charges)
    )
    bounds[erased] = allowance.most
    if (row.charges, row.head) != (project.charges, bytes.fromhex(project.head)) or bool(
        (accounts > bounds).any() or (accounts[erased] != allowance.most).any()
    ):
        raise LedgerCorrupted(f"{what} not those of its charges.", project.name)
    return accounts


def _save(
    table: Table,
    tx: Transaction,
    project: ProjectRecord,
    accounts: Accounts,
    new: bool = False,
    **filled: int,
) -> None:
    values = {
        "charges": project.charges,
        "head": bytes.fromhex(project.head),
        **filled,
        "accounts": accounts.astype(_STORED).tobytes(),
    }
    row = {"project_id": project.id, **values}
    if new:
        tx.insert(table, row)
    else:  # whose it is stays, and the service has no right to change it
        here, seal = table.c.project_id == project.id, tx.seals.of(table.name, row)
        write(tx.connection, update(table).where(here).values(**values, seal=seal))


def _count_shadows(tx: Transaction, project: ProjectRecord) -> int | None:
    stored = select(shadow_accounts.c.accounts).where(shadow_accounts.c.project_id == project.id)
    accounts = tx.connection.execute(stored).scalar_one_or_none()
    return None if accounts is None else len(accounts) // _STORED.itemsize


def _reset_shadows(tx: Transaction, project: ProjectRecord, spent: int) -> None:
    count = _count_shadows(tx, project)
    if count is not None:
        _save(shadow_accounts, tx, project, np.full(count, spent, _STORED))


def _with_erased(accounts: Accounts, project: ProjectRecord, edition: Edition) -> Accounts:
    """Count those who left as spent."""
    accounts[list(edition.erased)] = _allowance_of(project).most
    return accounts


def _allowance_of(project: ProjectRecord) -> Allowance:
    if project.terms.allowance is None:
        raise ValueError("units have accounts only where they are allowed something")
    return project.terms.allowance


def _edition_of(project: ProjectRecord) -> Edition:
    if project.ensemble.edition is None:
        raise ValueError("a project whose units have accounts was read without its edition")
    return project.ensemble.edition


def _check_edition(connection: Connection, seals: Seals, project: ProjectRecord) -> None:
    """Raise ConcurrentUpdate if there is a newer edition than when a project was looked up."""
    now = rows.load_newest_edition(connection, seals, project.ensemble).edition
    if now != _edition_of(project):
        raise ConcurrentUpdate("People left or came meanwhile. Send the queries again.")
