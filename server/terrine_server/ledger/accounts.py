"""The accounts of a project's units (`neighbours`): read before a vote, written with its charge.

What each unit has spent is a function of private records. It leaves the database for the vote
alone: no answer, export, page, log, metric or error has anything of it. The whole vector is one row
of fixed size, whose seal binds it to the entry that it stands after, so accounts of an earlier
moment, or of another project, are not believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert, select, update

from terrine_protocol import SecretSpend
from terrine_server.errors import ConcurrentUpdate, Conflict, LedgerCorrupted
from terrine_server.ledger import rows
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.database import Transaction, write
from terrine_server.ledger.log import UNREADABLE, check_types
from terrine_server.ledger.records import Edition, ProjectRecord, SpentAccounts
from terrine_server.ledger.schema import (
    Seals,
    projects,
    secret_spends,
    shadow_accounts,
    unit_accounts,
)
from terrine_server.privacy import (
    Accounts,
    BoundRelease,
    PublishedBound,
    VoteOutcome,
    event_from_json,
)
from terrine_server.privacy.published import ActualCost, Meter, Tally

_STORED = np.dtype("<u4")

# One statement, which reads both rows as of one moment.
_UNITS_AS_OF = select(
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


def load_unit_accounts_as_of(
    connection: Connection, seals: Seals, project: ProjectRecord
) -> Accounts:
    """Return the accounts of a project as it was looked up.

    Raises ConcurrentUpdate if it has moved since, or people left or came, and LedgerCorrupted.
    """
    row = _fetch(connection, project)
    _check_edition(connection, seals, project)
    return _read_unit_accounts(seals, project, row)


def load_unit_accounts(connection: Connection, seals: Seals, project: ProjectRecord) -> Accounts:
    """Return the accounts of a project that is locked, or read in one snapshot with them."""
    try:
        return load_unit_accounts_as_of(connection, seals, project)
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


def save_unit_accounts(tx: Transaction, after: ProjectRecord, accounts: Accounts) -> None:
    """Store the accounts of a project as it is `after` a charge in the same transaction.

    Accounts that were filled stay so. Raises ConcurrentUpdate if people left or came since they
    were read: who left must not have voted, and who came has an account, too.
    """
    _check_edition(tx.connection, tx.seals, after)
    stored = tx.connection.execute(
        select(unit_accounts.c.filled).where(unit_accounts.c.project_id == after.id)
    ).scalar_one_or_none()
    _update(tx, after, accounts, filled=1 if stored else 0)


def fill_unit_accounts(tx: Transaction, project: ProjectRecord) -> None:
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
    before = _read_unit_accounts(tx.seals, project, row)
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
    _read_unit_accounts(tx.seals, project, row)
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
    now = rows.load_newest_edition(connection, seals, project.ensemble).edition
    if now != _edition_of(project):
        raise ConcurrentUpdate("People left or came meanwhile. Send the queries again.")


def _fetch(connection: Connection, project: ProjectRecord) -> Any:
    row = connection.execute(_UNITS_AS_OF.where(projects.c.id == project.id)).one_or_none()
    if row is None or (row.now_charges, row.now_head) != (
        project.charges,
        bytes.fromhex(project.head),
    ):
        raise ConcurrentUpdate("Another request came first. Send the queries again.")
    return row


def _read_unit_accounts(seals: Seals, project: ProjectRecord, row: Any) -> Accounts:
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
    most = allowance.most if row.filled else allowance.most_spent(project.charges)
    bounds = _erased(np.full(len(accounts), most, dtype=_STORED), project, edition)
    left = list(edition.erased)
    if (row.charges, row.head) != (project.charges, bytes.fromhex(project.head)) or bool(
        (accounts > bounds).any() or (accounts[left] != allowance.most).any()
    ):
        found = f"The accounts of project {name} are not those of its charges."
        raise LedgerCorrupted(found, name)
    return accounts.astype(np.uint32)


# One statement, which reads both rows as of one moment.
_SHADOWS_AS_OF = select(
    shadow_accounts,
    projects.c.charges.label("now_charges"),
    projects.c.head.label("now_head"),
).select_from(projects.outerjoin(shadow_accounts, shadow_accounts.c.project_id == projects.c.id))


def load_shadow_accounts_as_of(
    connection: Connection, seals: Seals, project: ProjectRecord, count: int
) -> Accounts:
    """Return the shadow accounts of a project as it was looked up; `count` before any charge.

    Raises ConcurrentUpdate if it has moved since, and LedgerCorrupted.
    """
    row = connection.execute(_SHADOWS_AS_OF.where(projects.c.id == project.id)).one_or_none()
    now = None if row is None else (row.now_charges, row.now_head)
    if row is None or now != (project.charges, bytes.fromhex(project.head)):
        raise ConcurrentUpdate("Another request came first. Send the queries again.")
    if row.project_id is None and project.charges == 0:
        return np.zeros(count, np.uint32)
    return _read_shadow_accounts(seals, project, row)


def load_shadow_accounts(connection: Connection, seals: Seals, project: ProjectRecord) -> Accounts:
    """Return those of a project that is locked, or read in one snapshot with them."""
    try:
        return load_shadow_accounts_as_of(connection, seals, project, 0)
    except ConcurrentUpdate:
        raise LedgerCorrupted("The project is not as it was read.", project.name) from None


def save_shadow_accounts(tx: Transaction, after: ProjectRecord, accounts: Accounts) -> None:
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


def fill_shadow_accounts(tx: Transaction, project: ProjectRecord) -> None:
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
        save_shadow_accounts(
            tx, project, np.full(len(accounts) // _STORED.itemsize, spent, np.uint32)
        )


def _read_shadow_accounts(seals: Seals, project: ProjectRecord, row: Any) -> Accounts:
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
    possible = (accounts <= allowance.most_spent(project.charges)).all()
    filled = (accounts == allowance.most).all()
    if (row.charges, row.head) != (project.charges, bytes.fromhex(project.head)) or not (
        possible or filled
    ):
        found = f"The shadow accounts of project {name} are not those of its charges."
        raise LedgerCorrupted(found, name)
    return accounts


_COUNTS = np.dtype("<u4")


class SecretTally:
    """How many queries of one project had each cost. Not thread-safe."""

    def __init__(self, meter: Meter, publication: BoundRelease, tally: Tally) -> None:
        self._meter, self._publication, self.tally = meter, publication, tally

    def add(self, places: tuple[int, ...]) -> None:
        """Count one paid query."""
        if not places:
            raise ValueError("a data-dependent project counts every query that it charges")
        for place in places:
            self.tally[place] += 1

    def counts(self, outcomes: Mapping[VoteOutcome, int]) -> bool:
        """Whether it counts as many queries as had these outcomes, which are public."""
        return self._meter.queries(self.tally) == self._meter.expected_queries(outcomes)

    def publish(self, bound: int) -> int:
        """Draw a figure from the spend (except with a probability that δ covers) up to `bound`."""
        return self._publication.release(self.spend(), bound)

    def spend(self) -> ActualCost:
        """Return the actual cost of the counted queries, given their votes."""
        return self._meter.spend(self.tally, self._publication.beta)


def meter_of(project: ProjectRecord) -> Meter:
    """Return the meter of a data-dependent project's votes. Raises ValueError for any other."""
    if project.terms.schedule is None:
        raise ValueError("a project that is priced at the worst case has no secret spend")
    facts = project.ensemble.facts
    return _meter(
        canonical_json(dict(project.events)),
        facts.teachers,
        len(facts.classes),
        project.terms.schedule.publication.order,
    )


@lru_cache(maxsize=64)
def _meter(events: str, teachers: int, classes: int, order: float) -> Meter:
    known = {}
    for outcome, event in json.loads(events).items():
        charged = event_from_json(event)
        if isinstance(charged, PublishedBound):
            raise TypeError("no query is charged for a publication")
        known[VoteOutcome(outcome)] = charged
    return Meter(known, teachers=teachers, classes=classes, order=order)


def open_tally(connection: Connection, seals: Seals, project: ProjectRecord) -> None:
    """Store an empty tally for a project that was just opened."""
    empty = np.zeros(meter_of(project).size, dtype=_COUNTS)
    row = {"project_id": project.id, "charges": 0, "tally": empty.tobytes()}
    write(connection, insert(secret_spends).values(seals.sealed("secret_spends", row)))


def load_tally(connection: Connection, seals: Seals, project: ProjectRecord) -> SecretTally | None:
    """Return a project's tally, or None if it has none. Raises LedgerCorrupted."""
    schedule = project.terms.schedule
    if schedule is None:
        return None
    meter = meter_of(project)
    row = connection.execute(
        select(secret_spends).where(secret_spends.c.project_id == project.id)
    ).one_or_none()
    size = meter.size * _COUNTS.itemsize
    if row is None or type(row.tally) is not bytes or len(row.tally) != size:
        raise LedgerCorrupted(
            f"The tally of project {project.name} is lost or damaged.", project.name
        )
    try:
        seals.check("secret_spends", row._mapping)
    except UNREADABLE as error:
        raise LedgerCorrupted(
            f"The tally of project {project.name} was edited.", project.name, str(error)
        ) from None
    if row.charges != project.charges:
        raise LedgerCorrupted(
            f"The tally of project {project.name} is not that of its charges.", project.name
        )
    counts = np.frombuffer(row.tally, dtype=_COUNTS).astype(np.int64)
    return SecretTally(meter, schedule.publication, counts)


def save_tally(
    connection: Connection,
    seals: Seals,
    project: ProjectRecord,
    tally: SecretTally,
    charges: int,
) -> None:
    """Store a tally that covers the first `charges` charges."""
    changed = {"charges": charges, "tally": tally.tally.astype(_COUNTS).tobytes()}
    seal = seals.of("secret_spends", {"project_id": project.id, **changed})
    write(
        connection,
        update(secret_spends)
        .where(secret_spends.c.project_id == project.id)
        .values(**changed, seal=seal),
    )


def secret_spend(connection: Connection, seals: Seals, project: ProjectRecord) -> SecretSpend:
    """See `Ledger.secret_spend`."""
    tally = load_tally(connection, seals, project)
    if tally is None:
        raise Conflict(
            f"The project {project.name} is priced at the worst case; it has no secret spend."
        )
    spend = tally.spend()
    return SecretSpend(
        project=project.name,
        queries=project.account.queries,
        order=meter_of(project).order,
        cost=spend.cost,
        smooth_sensitivity=spend.smooth_sensitivity,
    )
