"""Notices that PostgreSQL has stopped answering, from this side of the connection.

A stopped process, or a machine that hangs, keeps its connections open: the system at the other end
acknowledges every byte, so no time-out of TCP ever passes, and the server's own time-outs do not
run. So each wait for a reply is limited here. While the database is silent, one caller at a time
waits for it; all others are refused at once, so that they do not use up threads and connections.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import psycopg

from terrine_server.errors import DatabaseUnavailable

GRACE_SECONDS = 2.0
"""What PostgreSQL has beyond its own time-out to say that it has passed."""
T = TypeVar("T")


class NoReply(psycopg.OperationalError):
    """No reply in time. What was asked may still be done, also a COMMIT."""


class StalledDatabase:
    """Whether a database is silent. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds + GRACE_SECONDS
        self._since: float | None = None
        self._asking = Lock()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Around a transaction. Raises DatabaseUnavailable if another already waits in vain."""
        if self._since is None:
            yield
        elif self._asking.acquire(blocking=False):
            try:
                yield
            finally:
                self._asking.release()
        else:
            silent = time.monotonic() - self._since
            raise DatabaseUnavailable("The ledger does not answer.", f"silent for {silent:.0f} s")

    def begins(self) -> None:
        """Note that a reply did not come in time."""
        if self._since is None:
            self._since = time.monotonic()

    def ends(self) -> None:
        """Note that the database has answered."""
        self._since = None

    def limited(self) -> type[psycopg.Connection[Any]]:
        """Return a class of connections that wait for no reply longer than this allows."""
        silence = self

        class Limited(psycopg.Connection[Any]):
            """A connection whose every wait is limited."""

            @classmethod
            def connect(cls, *given: Any, **more: Any) -> Any:
                """Connect within `connect_timeout`."""
                try:
                    return super().connect(*given, **more)
                except psycopg.errors.ConnectionTimeout:
                    silence.begins()
                    raise

            def wait(self, gen: Generator[Any, Any, T], *given: Any, **more: Any) -> T:
                """Wait for a reply; close the connection if none comes in time."""
                due = time.monotonic() + silence.seconds
                try:
                    result = super().wait(_until(due, gen), *given, **more)
                except NoReply:
                    silence.begins()
                    self.pgconn.finish()  # a late reply would be taken for that of another question
                    raise
                silence.ends()
                return result

        return Limited


def _until(due: float, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Go through psycopg's `steps`; at each it wakes up, with nothing if no data has come."""
    ready = None
    try:
        while True:
            ready = yield steps.send(ready)
            if not ready and time.monotonic() > due:
                raise NoReply("no reply in time; the connection was closed")
    except StopIteration as end:
        result: T = end.value
        return result
