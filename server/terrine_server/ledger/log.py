"""The administrative log in the database: its end, and new entries.

The one row of `log_head` names the last entry and the key that the ledger is sealed with. It is
locked while an entry is written, after all other rows that the transaction changes, so entries are
numbered without gaps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from sqlalchemy import Connection, Row, Select, insert, or_, select, update

from terrine_protocol import LogEntry
from terrine_server.errors import LedgerCorrupted, NotSealed
from terrine_server.ledger.chain import (
    ACTIONS_ABOUT,
    LOG_START,
    Action,
    Actor,
    canonical_json,
    facts,
    local_actor,
    log_hash,
)
from terrine_server.ledger.database import Access, Transaction, write
from terrine_server.ledger.schema import administrative_log, ensembles, log_head, tokens
from terrine_server.ledger.seals import READ_ERRORS, Seals, check_types, readable

_HEAD = select(log_head)
# The subject of entries about a maintenance, which pauses all projects at once.
MAINTENANCE = "projects"
# What an entry says of a subject that is not there any more, which was accepted.
GONE = canonical_json({"gone": True})


def select_log() -> Select[Any]:
    """Select all entries, in order."""
    return select(administrative_log).order_by(administrative_log.c.seq)


def last_detail(kind: str, subject: Any) -> Any:
    """Return a subquery for what the last entry about a subject says; NULL if there is none."""
    # Not IN, whose values SQLAlchemy writes into the statement anew at each execution.
    about = or_(*(administrative_log.c.action == action for action in ACTIONS_ABOUT[kind]))
    return (
        select(administrative_log.c.detail)
        .where(administrative_log.c.subject == subject, about)
        .order_by(administrative_log.c.seq.desc())
        .limit(1)
        .scalar_subquery()
    )


def load_last_details(connection: Connection, kind: str) -> dict[str, str]:
    """Return what the last entry about each subject of a kind says, except what is gone."""
    log = administrative_log.c
    query = (
        select(log.subject, log.detail).where(log.action.in_(ACTIONS_ABOUT[kind])).order_by(log.seq)
    )
    said = {row.subject: row.detail for row in connection.execute(query)}
    return {subject: detail for subject, detail in said.items() if detail != GONE}


def load_maintenance(connection: Connection) -> list[LogEntry]:
    """Return the entries since a maintenance began that are about it or about any project.

    In order; none if the last one has ended.
    """
    log, begun = administrative_log.c, 0
    about = select_log().where(log.subject == MAINTENANCE).order_by(None).order_by(log.seq.desc())
    for row in connection.execute(about):
        if row.action == Action.MAINTENANCE_ENDED:
            break
        if row.action == Action.MAINTENANCE_BEGUN:
            begun = row.seq
    if not begun:
        return []
    about_it = or_(log.action.in_(ACTIONS_ABOUT["project"]), log.subject == MAINTENANCE)
    since = select_log().where(log.seq >= begun, about_it)
    return [log_entry(row) for row in connection.execute(since)]


def check_head(connection: Connection, seals: Seals, lock: bool = False) -> Row[Any]:
    """Return the row of `log_head`.

    Raises NotSealed unless the ledger is sealed with this key, LedgerCorrupted if the row was
    edited or if the log does not end where it says.
    """
    row = connection.execute(_HEAD.with_for_update() if lock else _HEAD).one_or_none()
    if row is None or row.id != 1:
        raise LedgerCorrupted("The end of the administrative log is missing.")
    if row.key_check != seals.key_check:
        raise NotSealed(
            "The ledger is sealed with another secret key than this one. Put the key back that it "
            "had (secret.key, or what TERRINE_SECRET_KEY_FILE names); if it was replaced on "
            "purpose, run `terrine ledger seal --old-key FILE`, or with --accept if it is lost."
        )
    try:
        seals.check("log_head", row._mapping)
    except READ_ERRORS as error:
        raise LedgerCorrupted(
            "The end of the administrative log was edited.", cause=str(error)
        ) from None
    last = administrative_log.c
    query = select(last.seq, last.hash).order_by(last.seq.desc()).limit(1)
    end = connection.execute(query).one_or_none() or (0, LOG_START)
    if tuple(end) != (row.entries, row.head):
        raise LedgerCorrupted("The administrative log does not end where it should.")
    return row


def log_entry(row: Row[Any]) -> LogEntry:
    """Return the record of a row of `select_log`. Raises LedgerCorrupted if it cannot be read."""
    with readable(f"Entry {row.seq} of the administrative log"):
        check_types(administrative_log.c, row._mapping)
        fields = {**row._mapping, "detail": json.loads(row.detail), "hash": row.hash.hex()}
        return LogEntry(**fields)


def load_verified_entries(
    connection: Connection, seals: Seals, seq: int, hash: str | None
) -> list[LogEntry]:
    """Return the entries after one; see `AdministrativeLog.list_since`.

    The connection's transaction must read one snapshot throughout.
    """
    end, number = check_head(connection, seals), administrative_log.c.seq
    if hash is None and seq:
        stored = select(administrative_log.c.hash).where(number == seq)
        start = connection.execute(stored).scalar_one_or_none()
    else:
        start = bytes.fromhex(hash) if hash is not None else LOG_START
    found = []
    for row in connection.execute(select_log().where(number > seq)):
        found.append(log_entry(row))
        seq, start = seq + 1, start and log_hash(start, row._mapping)
        if (row.seq, row.hash) != (seq, start):
            break
    if (seq, start) != (end.entries, end.head):
        raise LedgerCorrupted("The administrative log was edited.")
    return found


def initialise(connection: Connection, seals: Seals) -> None:
    """Seal a ledger in which nothing is recorded yet; do nothing to any other."""
    for table in (log_head, administrative_log, ensembles, tokens):
        if connection.execute(select(table).limit(1)).first() is not None:
            return
    set_head(connection, seals, 0, LOG_START)
    detail = {"version": version("terrine")}
    tx = Transaction(connection, seals, datetime.now(UTC), None)
    record(tx, Action.LEDGER_INITIALISED, "ledger", detail)


def set_head(connection: Connection, seals: Seals, entries: int, head: bytes) -> None:
    """Make the log end there, sealed with this key."""
    row = {"key_check": seals.key_check, "entries": entries, "head": head}
    sealed = seals.sealed("log_head", row)
    if connection.execute(_HEAD).first() is None:
        write(connection, insert(log_head).values(id=1, **sealed))
    else:
        write(connection, update(log_head).values(sealed))


def record(
    tx: Transaction,
    action: Action,
    subject: str,
    detail: Mapping[str, Any],
) -> None:
    """Append an entry in the transaction of what it records. Raises the same as `check_head`."""
    head = check_head(tx.connection, tx.seals, lock=True)
    by = tx.by or local_actor()
    made = {
        "seq": head.entries + 1,
        "created_at": tx.now,
        "actor": by.who,
        "request_id": by.request_id,
        "action": str(action),
        "subject": subject,
        "detail": canonical_json(dict(detail)),
    }
    made["hash"] = log_hash(head.head, made)
    write(tx.connection, insert(administrative_log).values(made))
    set_head(tx.connection, tx.seals, made["seq"], made["hash"])


def record_row(tx: Transaction, action: Action, subject: str, row: Mapping[Any, Any]) -> None:
    """Append an entry about one of the `FACTS`' subjects, as its row is now."""
    kind = action.partition("-")[0]
    record(tx, action, subject, facts(kind, row))


class AdministrativeLog:
    """The administrative log of a ledger. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def check_sealed(self) -> None:
        """Raise NotSealed, with the command to run, unless the ledger is sealed with this key."""
        with self._access.snapshot() as connection:
            check_head(connection, self._access.seals)

    def record(
        self,
        action: Action,
        subject: str,
        detail: Mapping[str, Any] | None = None,
        by: Actor | None = None,
    ) -> None:
        """Append an entry to the administrative log about something that changes no row."""
        with self._access.writing(by) as tx:
            record(tx, action, subject, detail or {})

    def list(
        self,
        after_seq: int = 0,
        limit: int = 100,
        newest: bool = False,
        before_seq: int | None = None,
    ) -> Sequence[LogEntry]:
        """Return up to `limit` entries of the administrative log numbered above `after_seq`.

        And below `before_seq`, if given. In order: the first of them, or the `newest`.
        """
        seq = administrative_log.c.seq
        query = select_log().where(seq > after_seq).limit(limit)
        if before_seq is not None:
            query = query.where(seq < before_seq)
        if newest:
            query = query.order_by(None).order_by(seq.desc())
        with self._access.reading() as connection:
            found = [log_entry(row) for row in connection.execute(query)]
        return found[::-1] if newest else found

    def last_before(self, time: datetime) -> int:
        """Return the number of the last entry of the administrative log before a time, or 0."""
        entries = administrative_log.c
        query = select(entries.seq).where(entries.created_at < time)
        with self._access.reading() as connection:
            last = query.order_by(entries.seq.desc()).limit(1)
            return connection.execute(last).scalar_one_or_none() or 0

    def list_since(self, seq: int, hash: str | None = None) -> Sequence[LogEntry]:
        """Return all entries of the administrative log after the one with this number.

        They are trusted because their hashes lead from that entry's to the log's sealed end, so
        that an edit of any of them raises LedgerCorrupted. `hash`: that of the entry, if it is
        known.
        """
        with self._access.snapshot() as connection:
            return load_verified_entries(connection, self._access.seals, seq, hash)
