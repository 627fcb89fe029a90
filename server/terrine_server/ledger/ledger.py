"""The ledger: its domains together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, select, update

from terrine_protocol import LogEntry, LogVerification
from terrine_server.errors import Conflict, LedgerCorrupted
from terrine_server.ledger import log, verifying
from terrine_server.ledger.chain import START, Action, Actor, canonical_json, facts
from terrine_server.ledger.database import Transaction, reading, snapshot, write, writing
from terrine_server.ledger.ensembles import Ensembles
from terrine_server.ledger.migrating import differences
from terrine_server.ledger.payments import Payments
from terrine_server.ledger.projects import Entries, Projects
from terrine_server.ledger.rows import DatabaseHandle
from terrine_server.ledger.schema import (
    Seals,
    administrative_log,
    editions,
    ensembles,
    log_head,
    payments,
    populations,
    projects,
    requests,
    secret_spends,
    shadow_accounts,
    tokens,
    unit_accounts,
)
from terrine_server.ledger.tokens import Requests, StoredTokens
from terrine_server.ledger.transparency import Transparency
from terrine_server.ledger.verifying import TABLES, rows_of, verify_log, verify_project

_ADOPTED = {
    "population": Action.POPULATION_ADOPTED,
    "ensemble": Action.ENSEMBLE_ADOPTED,
    "edition": Action.EDITION_ADOPTED,
    "project": Action.PROJECT_ADOPTED,
    "token": Action.TOKEN_ADOPTED,
    "request": Action.REQUEST_ADOPTED,
}
_CHUNK = 1000


@dataclass(frozen=True)
class Sealing:
    """What was sealed. `adopted`: subjects whose rows the log did not yet say so, by kind."""

    projects: int
    adopted: Mapping[str, list[str]]


def seal(
    engine: Engine,
    key: bytes,
    *,
    old_key: bytes | None = None,
    accept: bool = False,
    by: Actor | None = None,
) -> Sealing:
    """Verify the ledger, and seal all of its rows with the `key`, in one transaction.

    Under `old_key` it must verify first. `accept` believes its rows as they are, whatever their
    seals and the log say, as far as charges, balances and terms agree with each other. What the log
    did not say yet is recorded in it. Raises Conflict when neither is given and it is sealed with
    the `key` already, NotSealed for another key than `old_key`, and LedgerCorrupted, with nothing
    changed, if it does not verify.
    """
    seals = Seals(key)
    with writing(engine) as connection:
        tx = Transaction(connection, seals, datetime.now(UTC), by)
        # Nothing may come in between.
        for table in (requests, populations, ensembles, projects, tokens, log_head):
            connection.execute(select(*table.primary_key).with_for_update())
        names = list(connection.execute(select(projects.c.name).order_by(projects.c.id)).scalars())
        action = Action.LEDGER_SEALED if old_key is None else Action.KEY_CHANGED
        if old_key is not None and not accept:
            _verify(connection, Seals(old_key), names)
        elif not accept:
            log.check_head(connection, seals)
            raise Conflict(
                "The ledger is sealed with this key already. `terrine ledger verify` checks it."
            )
        log.set_head(connection, seals, *_end(connection))
        adopted = _adopt(tx)
        detail = {
            "version": version("terrine"),
            "accepted": accept,
            "adopted": {kind: len(subjects) for kind, subjects in adopted.items()},
        }
        log.record(tx, action, "ledger", detail)
        _verify(connection, seals, names)
    return Sealing(len(names), adopted)


def seal_rows(connection: Connection, seals: Seals) -> None:
    """Seal every row as it is, but for the end of the log."""
    for table in (
        populations,
        ensembles,
        projects,
        tokens,
        requests,
        secret_spends,
        unit_accounts,
        shadow_accounts,
        editions,
        payments,
    ):
        keys = [column.name for column in table.primary_key]
        statement = (
            update(table)
            .where(*(table.c[name] == bindparam(f"of_{name}") for name in keys))
            .values(seal=bindparam("new"))
        )
        for page in _pages(_rows(connection, table)):
            new = [
                {"new": seals.of(table.name, row), **{f"of_{name}": row[name] for name in keys}}
                for row in page
            ]
            write(connection, statement, new, len(new))


def _end(connection: Connection) -> tuple[int, bytes]:
    last = administrative_log.c
    query = select(last.seq, last.hash).order_by(last.seq.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return (0, START) if row is None else (row.seq, row.hash)


def _adopt(tx: Transaction) -> dict[str, list[str]]:
    """Seal every row, and record those about which the log says something else, or nothing."""
    seal_rows(tx.connection, tx.seals)
    adopted: dict[str, list[str]] = {}
    for kind in TABLES:
        said = log.last_said(tx.connection, kind)
        changed = [
            row._mapping
            for row in tx.connection.execute(rows_of(kind))
            if said.pop(row.subject, None) != canonical_json(facts(kind, row._mapping))
        ]
        for row in changed:
            log.record_row(tx, _ADOPTED[kind], row["subject"], row)
        for subject in said:  # the log says it is there, and it is gone
            log.record(tx, _ADOPTED[kind], subject, {"gone": True})
        adopted[kind] = [*(row["subject"] for row in changed), *said]
    return adopted


def _verify(connection: Connection, seals: Seals, names: Iterable[str]) -> None:
    found = verify_log(connection, seals).problems
    if found:
        raise LedgerCorrupted(f"The ledger was not sealed: {'; '.join(found)}.")
    for name in names:
        found = verify_project(connection, seals, name).problems
        if found:
            raise LedgerCorrupted(
                f"The ledger was not sealed: project {name}: {'; '.join(found)}.", name
            )


def _rows(connection: Connection, table: Table) -> Iterator[Mapping[Any, Any]]:
    query = select(table).order_by(*table.primary_key)
    return (row._mapping for row in connection.execute(query))


def _pages(rows: Iterator[Mapping[Any, Any]]) -> Iterator[list[Mapping[Any, Any]]]:
    while page := list(islice(rows, _CHUNK)):
        yield page


_PAGE = 1000


class Log(DatabaseHandle):
    """The administrative log of a ledger, and whether the ledger is sealed."""

    def check_sealed(self) -> None:
        """Raise NotSealed, with the command to run, unless the ledger is sealed with this key."""
        with snapshot(self._engine) as connection:
            log.check_head(connection, self._seals)

    def note(
        self,
        action: Action,
        subject: str,
        detail: Mapping[str, Any] | None = None,
        by: Actor | None = None,
    ) -> None:
        """Append an entry to the administrative log about something that changes no row."""
        with self._writing(by) as tx:
            log.record(tx, action, subject, detail or {})

    def log(
        self,
        after_seq: int = 0,
        limit: int = 100,
        newest: bool = False,
        before_seq: int | None = None,
    ) -> list[LogEntry]:
        """Return up to `limit` entries of the administrative log numbered above `after_seq`.

        And below `before_seq`, if given. In order: the first of them, or the `newest`.
        """
        seq = administrative_log.c.seq
        query = log.select_log().where(seq > after_seq).limit(limit)
        if before_seq is not None:
            query = query.where(seq < before_seq)
        if newest:
            query = query.order_by(None).order_by(seq.desc())
        with reading(self._engine) as connection:
            found = [log.entry(row) for row in connection.execute(query)]
        return found[::-1] if newest else found

    def log_before(self, time: datetime) -> int:
        """Return the number of the last entry of the administrative log before a time, or 0."""
        entries = administrative_log.c
        query = select(entries.seq).where(entries.created_at < time)
        with reading(self._engine) as connection:
            last = query.order_by(entries.seq.desc()).limit(1)
            return connection.execute(last).scalar_one_or_none() or 0

    def log_since(self, seq: int, hash: str | None = None) -> list[LogEntry]:
        """Return all entries of the administrative log after the one with this number.

        They are believed because their hashes lead from that entry's to the log's sealed end, so
        that an edit of any of them raises LedgerCorrupted. `hash`: that of the entry, if it is
        known.
        """
        with snapshot(self._engine) as connection:
            return log.followed(connection, self._seals, seq, hash)

    def export_log(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the administrative log, then its entries, in the format of `archive`.

        In constant memory. Raises LedgerCorrupted if the log does not end where it should.
        """
        with snapshot(self._engine) as connection:
            end = log.check_head(connection, self._seals)
        yield verifying.log_line(end.entries, end.head)
        after = 0
        while after < end.entries:
            page = self.log(after, min(_PAGE, end.entries - after))
            yield from map(verifying.log_entry_line, page)
            after = page[-1].seq

    def verify_log(self) -> LogVerification:
        """Recompute the administrative log, and hold the rows of today against it."""
        with snapshot(self._engine) as connection:
            return verify_log(connection, self._seals)

    def verify_schema(self) -> list[str]:
        """Return in what the whole schema is not as this version's migrations make it."""
        return [f"schema: {found}" for found in differences(self._engine)]


class Ledger(Ensembles, Projects, Payments, Entries, StoredTokens, Requests, Log, Transparency):
    """Ensembles, projects, charges, tokens and requests in one database. Thread-safe.

    Each write is one transaction. It locks the rows that it changes, a request first, the ensemble
    before the project and the end of the administrative log last, and a charge is written only if
    the account has not changed since it was looked up. So no interleaving of threads, processes or
    machines overspends a budget or a cap. Any method raises DatabaseUnavailable when the database
    cannot be reached or is busy for too long, and LedgerCorrupted when its contents contradict each
    other or were edited by somebody without the key; nothing is half-written then.

    What the data owner does is recorded in the administrative log, in the same transaction. `by`:
    who does it; by default the account that this process runs as.
    """
