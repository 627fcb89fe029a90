"""What every domain of the ledger stands on: a database, and the key that it is sealed with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import Connection, Engine

from terrine_server.ledger.administration import Actor
from terrine_server.ledger.records import ProjectRecord
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.database import appending, reading, writing
from terrine_server.ledger.store.transaction import Transaction


class DatabaseHandle:
    """A database and its key, thread-safe. `key`: the server's secret key.

    What is not sealed with it is not believed.
    """

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine = engine
        self._seals = Seals(key)
        self._accounts = rows.KnownProjects(self._seals)
        # By project: its number of charges after the last one made here. Older records are stale.
        self._charged: dict[int, int] = {}
        self._check_history: Callable[[], None] | None = None

    def guard(self, check_history: Callable[[], None]) -> None:
        """Let nothing be spent from now on unless this check passes."""
        self._check_history = check_history

    def check_history(self) -> None:
        """Raise LedgerRestored or LogNotSigned if nothing may be spent, as found by its guard."""
        if self._check_history is not None:
            self._check_history()

    @contextmanager
    def _writing(self, by: Actor | None) -> Iterator[Transaction]:
        with writing(self._engine) as connection:
            yield Transaction(connection, self._seals, now(), by)

    @contextmanager
    def _appending(self) -> Iterator[Transaction]:
        """A transaction of a single statement, by which the service charges."""
        with appending(self._engine) as connection:
            yield Transaction(connection, self._seals, now(), None)

    @contextmanager
    def _reading(self) -> Iterator[Transaction]:
        """A transaction that writes nothing."""
        with reading(self._engine) as connection:
            yield Transaction(connection, self._seals, now(), None)

    def _named(self, connection: Connection, project: str) -> ProjectRecord:
        """Return the project with this name. Raises NotFound."""
        return rows.fetch_project(connection, self._seals, f"called {project}", name=project)


def now() -> datetime:
    """Return the time of what is written from now on, in UTC."""
    return datetime.now(UTC)
