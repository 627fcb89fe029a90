"""Make something happen during a charge."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from patience import PATIENCE_SECONDS
from sqlalchemy import Connection, Engine, event, text

from terrine_server.ledger.database import BEGIN_STATEMENT


def come_between(engine: Engine, act: Callable[[], object]) -> None:
    """Act once: after the next charge has read, just before it writes."""
    acted = False

    def act_once() -> None:
        nonlocal acted
        if not acted:
            acted = True
            act()

    @event.listens_for(engine, "begin")
    def before_sqlite_writes(connection: Connection) -> None:
        if connection.info.get(BEGIN_STATEMENT) == "BEGIN IMMEDIATE":
            act_once()

    @event.listens_for(engine, "before_cursor_execute")
    def before_postgresql_writes(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("WITH moved"):
            act_once()


def come_first(engine: Engine, act: Callable[[], object], then: Callable[[], object]) -> None:
    """Run `act`, and `then` so that it waits for what `act` has written but not yet committed.

    PostgreSQL only. Each update of a project waits at its end for a lock that is held here.
    """
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER wait_here AFTER UPDATE ON projects "
                "FOR EACH ROW EXECUTE FUNCTION wait_here()"
            )
        )
    with ThreadPoolExecutor(2) as pool:
        with engine.begin() as holder:
            holder.execute(text("SELECT pg_advisory_xact_lock(1)"))
            first = pool.submit(act)
            _until_waiting(engine, 1)
            second = pool.submit(then)
            _until_waiting(engine, 2)
        first.result()
        second.result()


def _until_waiting(engine: Engine, sessions: int) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with engine.connect() as connection:
            if connection.execute(waiting).scalar_one() == sessions:
                return
        assert time.monotonic() < deadline, "it did not wait"
        time.sleep(0.01)
