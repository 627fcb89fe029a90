"""The administrative log: what the data owner did, noted, read, exported and verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select

from terrine_protocol import LogEntry, LogVerification
from terrine_server.ledger.administration import Action, Actor
from terrine_server.ledger.handle import DatabaseHandle
from terrine_server.ledger.store import log
from terrine_server.ledger.store.database import reading, snapshot
from terrine_server.ledger.store.schema import differences
from terrine_server.ledger.store.tables import administrative_log
from terrine_server.ledger.verifying import archive
from terrine_server.ledger.verifying.administration import verify_log

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
        yield archive.log_line(end.entries, end.head)
        after = 0
        while after < end.entries:
            page = self.log(after, min(_PAGE, end.entries - after))
            yield from map(archive.log_entry_line, page)
            after = page[-1].seq

    def verify_log(self) -> LogVerification:
        """Recompute the administrative log, and hold the rows of today against it."""
        with snapshot(self._engine) as connection:
            return verify_log(connection, self._seals)

    def verify_schema(self) -> list[str]:
        """Return in what the whole schema is not as this version's migrations make it."""
        return [f"schema: {found}" for found in differences(self._engine)]
