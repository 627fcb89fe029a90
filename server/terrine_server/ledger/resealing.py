"""Sealing a whole ledger: one of an earlier version, or with another key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, Table, bindparam, select, update

from terrine_server.errors import Conflict, LedgerCorrupted
from terrine_server.ledger import log
from terrine_server.ledger.chain import LOG_START, Action, Actor, canonical_json, facts
from terrine_server.ledger.database import Transaction, write, writing
from terrine_server.ledger.schema import (
    administrative_log,
    ensembles,
    log_head,
    metadata,
    populations,
    projects,
    tokens,
)
from terrine_server.ledger.seals import SEALED, Seals
from terrine_server.ledger.verifying import TABLE_OF_KIND, rows_of, verify_log, verify_project

_ADOPTED = {
    "population": Action.POPULATION_ADOPTED,
    "ensemble": Action.ENSEMBLE_ADOPTED,
    "edition": Action.EDITION_ADOPTED,
    "project": Action.PROJECT_ADOPTED,
    "token": Action.TOKEN_ADOPTED,
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

    Under `old_key` it must verify first. `accept` trusts its rows as they are, whatever their
    seals and the log say, as far as charges, balances and terms agree with each other. What the log
    did not say yet is recorded in it. Raises Conflict when neither is given and it is sealed with
    the `key` already, NotSealed for another key than `old_key`, and LedgerCorrupted, with nothing
    changed, if it does not verify.
    """
    seals = Seals(key)
    with writing(engine) as connection:
        tx = Transaction(connection, seals, datetime.now(UTC), by)
        # Nothing may come in between.
        for table in (populations, ensembles, projects, tokens, log_head):
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
    """Seal every row as it is, except the end of the log."""
    for name in SEALED.keys() - {log_head.name}:
        table = metadata.tables[name]
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
    return (0, LOG_START) if row is None else (row.seq, row.hash)


def _adopt(tx: Transaction) -> dict[str, list[str]]:
    """Seal every row, and record those about which the log says something else, or nothing."""
    seal_rows(tx.connection, tx.seals)
    adopted: dict[str, list[str]] = {}
    for kind in TABLE_OF_KIND:
        said = log.load_last_details(tx.connection, kind)
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
