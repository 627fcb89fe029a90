"""New databases with tables, made in a fraction of a migration's time.

On SQLite they are copies. On PostgreSQL the statements of the first migration are sent again.
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from postgres import SERVICE, as_owner
from sqlalchemy import Engine, event, inspect

from terrine_server.ledger import connect, upgrade
from terrine_server.ledger.database import sqlite_path
from terrine_server.ledger.migrating import grant

SECRET_KEY = b"k" * 64
"""The secret key that the ledgers of the tests are sealed with."""
_statements: list[tuple[str, Any]] = []
"""What the first migration of PostgreSQL executed, with its parameters."""


def migrated(url: str) -> Engine:
    """Return an engine on the database of this URL, which now has tables."""
    engine = connect(url)
    path = sqlite_path(engine)
    if path is None:
        owner = connect(as_owner(url))
        _migrate_postgresql(owner)
        owner.dispose()
    elif path.exists():
        upgrade(engine, SECRET_KEY)
    else:
        path.touch(mode=0o600)
        path.write_bytes(_new_file())
    return engine


def _migrate_postgresql(engine: Engine) -> None:
    if inspect(engine).get_table_names():
        upgrade(engine, SECRET_KEY)
        grant(engine, SERVICE)
    elif _statements:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            with driver.pipeline():
                for statement, parameters in _statements:
                    driver.execute(statement, parameters)
            driver.commit()
    else:
        executed: list[tuple[str, Any]] = []

        def keep(_: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool) -> None:
            assert not many
            if not statement.lstrip().startswith("SELECT"):
                executed.append((statement, parameters))

        event.listen(engine, "before_cursor_execute", keep)
        upgrade(engine, SECRET_KEY)
        grant(engine, SERVICE)
        event.remove(engine, "before_cursor_execute", keep)
        _statements.extend(executed)


@cache
def _new_file() -> bytes:
    """A SQLite file as a migration leaves it, with nothing in its write-ahead log."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "terrine.sqlite")
        engine = connect(f"sqlite:///{path}")
        upgrade(engine, SECRET_KEY)
        engine.dispose()
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        return path.read_bytes()
