"""Locks among all processes of a ledger: of a project, of the whole ledger, and of its tree."""

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
from terrine_server.ledger.database import BUSY_SECONDS, reading, writing
from terrine_server.ledger.failures import BUSY

# How long PostgreSQL lets a process that hangs keep a project's lock.
MAX_LOCK_SECONDS = 300
# The first of the two numbers of these advisory locks; the second is the project's.
LOCK_NAMESPACE = 0x7E221E
# The second number where only one process may act for the whole ledger. No project has it.
_LEDGER_LOCK = 0
_LOCK_PROJECT = text(
    "SELECT set_config('idle_in_transaction_session_timeout', :most, true), "
    "pg_advisory_xact_lock(:locks, :project)"
)
_LOCK_TREE = text(f"SELECT pg_advisory_xact_lock({LOCK_NAMESPACE}, -1)")
_TRY_LOCK = text(f"SELECT pg_try_advisory_lock({LOCK_NAMESPACE}, {_LEDGER_LOCK})")
_UNLOCK = text(f"SELECT pg_advisory_unlock({LOCK_NAMESPACE}, {_LEDGER_LOCK})")
_POLL_SECONDS = 0.02


@contextmanager
def project_lock(engine: Engine, project_id: int) -> Iterator[None]:
    """Lock a project. The lock ends with the block, or with the process, however that ends.

    On PostgreSQL it is an advisory lock, in a transaction on a connection of its own; on SQLite,
    whose processes share a machine, a locked file beside the database. Raises DatabaseUnavailable
    when others keep it for too long, or there is no database. What goes wrong at its end is not
    raised: what was done meanwhile is done.
    """
    lock = _lock_in_file if engine.dialect.name == "sqlite" else _lock_in_postgresql
    stack = ExitStack()
    try:
        stack.enter_context(lock(engine, project_id))
        yield
    finally:
        with suppress(DatabaseUnavailable):
            stack.close()


@contextmanager
def _lock_in_postgresql(engine: Engine, project_id: int) -> Iterator[None]:
    given = {"most": f"{MAX_LOCK_SECONDS}s", "locks": LOCK_NAMESPACE, "project": project_id}
    with writing(engine) as connection:
        connection.execute(_LOCK_PROJECT, given)
        yield


@contextmanager
def _lock_in_file(engine: Engine, project_id: int) -> Iterator[None]:
    deadline = time.monotonic() + BUSY_SECONDS
    with _open_lock_file(engine, project_id) as file:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise BUSY.explain()
            time.sleep(_POLL_SECONDS)
        yield


@contextmanager
def try_lock_ledger(engine: Engine) -> Iterator[bool]:
    """Yield whether this process has the lock of the ledger, which nobody waits for.

    It ends as a project's lock does. On PostgreSQL nothing else waits for its connection, so it may
    take long.
    """
    if engine.dialect.name == "sqlite":
        with _open_lock_file(engine, _LEDGER_LOCK) as file:
            yield _try_lock(file)
        return
    with reading(engine) as connection:
        locked = bool(connection.execute(_TRY_LOCK).scalar_one())
        try:
            yield locked
        finally:
            if locked:
                with suppress(SQLAlchemyError):  # the lock ends with its connection, too
                    connection.execute(_UNLOCK)


def lock_tree(connection: Connection) -> None:
    """Wait until no other transaction that called this is under way; on SQLite, none is."""
    if connection.dialect.name != "sqlite":
        connection.execute(_LOCK_TREE)


def _open_lock_file(engine: Engine, number: int) -> IO[str]:
    path = Path(engine.url.database or "")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path.with_name(f"{path.name}-turn-{number}"), flags, 0o600))


def _try_lock(file: IO[str]) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
