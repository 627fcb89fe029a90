"""Turns that server processes take: one of them at a time does something for a project.

For what costs elsewhere before it is charged, and would cost twice if two processes did it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from terrine_server.errors import DatabaseUnavailable
from terrine_server.ledger.store.database import BUSY_SECONDS, reading, sqlite_path, writing

MOST_SECONDS = 300
"""How long PostgreSQL lets a process that hangs hold a turn."""
TURNS = 0x7E221E
"""The first of the two numbers of these advisory locks; the second is the project's."""
_TAKE = text(
    "SELECT set_config('idle_in_transaction_session_timeout', :most, true), "
    "pg_advisory_xact_lock(:turns, :project)"
)
_ONE = 0
"""The second number where only one process may act for the whole ledger. No project has it."""
_GROWING = text("SELECT pg_advisory_xact_lock(:turns, -1)")
_TRY = text("SELECT pg_try_advisory_lock(:turns, :one)")
_LEAVE = text("SELECT pg_advisory_unlock(:turns, :one)")
_POLL_SECONDS = 0.02


@contextmanager
def turn(engine: Engine, project_id: int) -> Iterator[None]:
    """Hold a project's turn. It ends with the block, or with the process, however that ends.

    On PostgreSQL it is an advisory lock, in a transaction on a connection of its own; on SQLite,
    whose processes share a machine, a locked file beside the database. Raises DatabaseUnavailable
    when others hold it for too long, or there is no database. What goes wrong at its end is not
    raised: what was done meanwhile is done.
    """
    path = sqlite_path(engine)
    stack = ExitStack()
    try:
        if path is None:
            stack.enter_context(_in_database(engine, project_id))
        else:
            stack.enter_context(_of_file(path.with_name(f"{path.name}-turn-{project_id}")))
        yield
    finally:
        with suppress(DatabaseUnavailable):
            stack.close()


@contextmanager
def only_one(engine: Engine) -> Iterator[bool]:
    """Whether no other process is here: nobody waits. It ends as a project's turn does.

    On PostgreSQL nothing else waits for its connection, so it may take long.
    """
    path = sqlite_path(engine)
    if path is not None:
        with _opened(path.with_name(f"{path.name}-turn-{_ONE}")) as file:
            yield _taken(file)
        return
    given = {"turns": TURNS, "one": _ONE}
    with reading(engine) as connection:
        taken = bool(connection.execute(_TRY, given).scalar_one())
        try:
            yield taken
        finally:
            if taken:
                with suppress(SQLAlchemyError):  # the lock ends with its connection, too
                    connection.execute(_LEAVE, given)


def exclude_others(connection: Connection) -> None:
    """Wait until no other transaction that called this is under way; on SQLite, none is."""
    if connection.dialect.name != "sqlite":
        connection.execute(_GROWING, {"turns": TURNS})


@contextmanager
def _in_database(engine: Engine, project_id: int) -> Iterator[None]:
    with writing(engine) as connection:
        most = f"{MOST_SECONDS}s"
        connection.execute(_TAKE, {"most": most, "turns": TURNS, "project": project_id})
        yield


@contextmanager
def _of_file(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + BUSY_SECONDS
    with _opened(path) as file:
        while not _taken(file):
            if time.monotonic() > deadline:
                raise DatabaseUnavailable("The ledger is busy. Retry.")
            time.sleep(_POLL_SECONDS)
        yield


def _opened(path: Path) -> IO[str]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600))


def _taken(file: IO[str]) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
