"""Migrates a database to this version's schema, and refuses to run on any other."""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from terrine_server.errors import DatabaseStarting, DatabaseUnavailable, SchemaMismatch
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store import definitions
from terrine_server.ledger.store.database import (
    appending,
    migrating,
    reading,
    sqlite_path,
    use_write_ahead_log,
    write,
)
from terrine_server.ledger.store.definitions import SchemaDifference
from terrine_server.ledger.store.log import initialise

# Names the lock under which migrations run. Any number that nobody else uses will do.
_MIGRATION_LOCK = 0x7E221E
_REWRITE = text("UPDATE alembic_version SET version_num = version_num")
_TEMPORARY = text("CREATE TEMPORARY TABLE terrine_ready ON COMMIT DROP AS SELECT 1 AS one")
_MIGRATING = threading.Lock()
"""Alembic keeps what it migrates in a variable of its module."""
START_SECONDS = 60.0
"""Longest wait for a PostgreSQL that does not accept connections yet."""


def upgrade(engine: Engine, key: bytes) -> list[str]:
    """Create the tables, or migrate them to this version. A new ledger is sealed with the `key`.

    If they are of this version, restore the parts that somebody removed, as far as SQL can, and
    return their names: what was written meanwhile was not checked by them. Several processes may do
    this at once: one migrates, the others wait for it. Raises SchemaMismatch when the database is
    newer than this version, NotSealed when its rows are sealed with another key, LedgerCorrupted
    when they violate a part or their seals, and DatabaseUnavailable when it cannot be reached;
    nothing is half-migrated then.
    """
    path = sqlite_path(engine)
    if path is not None:
        _create_file(path)
        use_write_ahead_log(engine)
    with migrating(engine) as connection:
        if path is None:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
            )
        state = _state(connection)
        if state == "newer":
            raise _newer()
        seals = Seals(key)
        migrate(connection, seals)
        initialise(connection, seals)
        return _restore(connection) if state == "current" else []


@cache
def schema_revision() -> str:
    """Return the revision of this version's tables: the last of its migrations."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None  # noqa: S101 - there are migrations
    return head


def check_schema(engine: Engine) -> None:
    """Raise SchemaMismatch, with the command to run, unless the tables are this version's."""
    with reading(engine) as connection:
        state = _state(connection)
    if state == "newer":
        raise _newer()
    if state != "current":
        raise SchemaMismatch(
            "The ledger has no tables yet. Run `terrine init`."
            if state == "empty"
            else "The ledger's tables are of an older Terrine. Run `terrine init` to migrate them."
        )


def check_writable(engine: Engine) -> None:
    """Raise DatabaseUnavailable unless something can be made durable now. It leaves nothing behind.

    SQLite: a row is written as it is. PostgreSQL: a temporary table with one row is made and
    dropped, which needs room on the disk, a flush of the write-ahead log, and the right that
    everybody has unless it was revoked (TEMPORARY).
    """
    with appending(engine) as connection:
        if connection.dialect.name == "sqlite":
            write(connection, _REWRITE)
        else:
            connection.execute(_TEMPORARY)


def check_schema_once_started(engine: Engine) -> None:
    """Like `check_schema`, but wait up to a minute for a PostgreSQL that starts or recovers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return check_schema(engine)
        except DatabaseStarting:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def differences(engine: Engine) -> list[SchemaDifference]:
    """Return in what the whole schema is not as this version's migrations make it.

    The doctor, `terrine ledger verify` and the server's readiness all ask this. Raises
    DatabaseUnavailable.
    """
    return definitions.differences(engine, migrate)


def check_definitions(engine: Engine) -> None:
    """Raise SchemaMismatch unless the whole schema is as this version's migrations make it."""
    found = differences(engine)
    if found:
        raise SchemaMismatch(
            "The ledger's schema is not as this Terrine made it: something was removed, changed or "
            "added. The server's operator should run `terrine doctor`.",
            "; ".join(map(str, found)),
        )


def known_revision(connection: Connection) -> str:
    """Return the revision of a ledger of this version or an earlier one. Raises SchemaMismatch."""
    state = _state(connection)
    if state == "newer":
        raise _newer()
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None:
        raise SchemaMismatch("The ledger has no tables yet. Run `terrine init`.")
    return revision


def missing_migrations(connection: Connection) -> int:
    """Return how many migrations would bring a ledger to this version. Raises SchemaMismatch."""
    found = known_revision(connection)
    scripts = ScriptDirectory.from_config(_config())
    return sum(1 for _ in scripts.iterate_revisions("head", found))


def migrate(connection: Connection, seals: Seals | None = None, to: str = "head") -> None:
    """Run all migrations that are missing. `seals`: of the rows, if there are any."""
    config = _config()
    config.attributes["connection"] = connection
    config.attributes["seals"] = seals
    with _MIGRATING:
        command.upgrade(config, to)


def _restore(connection: Connection) -> list[str]:
    restored = [each for each in definitions.compare(connection, migrate) if each.restore]
    for each in restored:
        for statement in each.restore:
            connection.execute(text(statement))
    return [each.part for each in restored]


def _state(connection: Connection) -> str:
    scripts = ScriptDirectory.from_config(_config())
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision is None:
        return "empty"
    if revision == schema_revision():
        return "current"
    return "older" if revision in {s.revision for s in scripts.walk_revisions()} else "newer"


def _newer() -> SchemaMismatch:
    return SchemaMismatch(
        "This database is newer than this Terrine. Install the version that migrated it, or newer."
    )


def _create_file(path: Path) -> None:
    try:
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise DatabaseUnavailable(
            f"The ledger's file {path} cannot be created: {error.strerror}. "
            "Create its directory, or check who may write there."
        ) from error


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
    return config


def _migrations() -> Path:
    """`terrine_server/migrations` when installed, the repository's `migrations/` in a checkout."""
    here = Path(__file__).resolve()
    installed = here.parents[2] / "migrations"
    return installed if installed.is_dir() else here.parents[4] / "migrations"
