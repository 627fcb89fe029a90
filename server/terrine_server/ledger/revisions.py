"""Of which version a database's tables are, and the migrations from one to the next."""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from terrine_server.errors import DatabaseStarting, SchemaMismatch
from terrine_server.ledger.database import reading, sqlite_path
from terrine_server.ledger.seals import Seals

# Alembic keeps what it migrates in a variable of its module.
_MIGRATING = threading.Lock()
# Longest wait for a PostgreSQL that does not accept connections yet.
START_SECONDS = 60.0


@cache
def schema_revision() -> str:
    """Return the revision of this version's tables: the last of its migrations."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None  # noqa: S101 - there are migrations
    return head


def has_tables(engine: Engine) -> bool:
    """Return whether there is a ledger, of whichever version. Raises DatabaseUnavailable."""
    path = sqlite_path(engine)
    if path is not None and not path.exists():
        return False
    with reading(engine) as connection:
        return MigrationContext.configure(connection).get_current_revision() is not None


def check_schema(engine: Engine) -> None:
    """Raise SchemaMismatch, with the command to run, unless the tables are this version's."""
    with reading(engine) as connection:
        if read_known_revision(connection) != schema_revision():
            raise SchemaMismatch(
                "The ledger's tables are of an older Terrine. Run `terrine init` to migrate them."
            )


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


def read_known_revision(connection: Connection) -> str:
    """Return the revision of a ledger of this version or an earlier one. Raises SchemaMismatch."""
    revision = read_revision(connection)
    if revision is None:
        raise SchemaMismatch("The ledger has no tables yet. Run `terrine init`.")
    return revision


def missing_migrations(connection: Connection) -> int:
    """Return how many migrations would bring a ledger to this version. Raises SchemaMismatch."""
    found = read_known_revision(connection)
    scripts = ScriptDirectory.from_config(_config())
    return sum(1 for _ in scripts.iterate_revisions("head", found))


def migrate(connection: Connection, seals: Seals | None = None, to: str = "head") -> None:
    """Run all migrations that are missing. `seals`: of the rows, if there are any."""
    config = _config()
    config.attributes["connection"] = connection
    config.attributes["seals"] = seals
    with _MIGRATING:
        command.upgrade(config, to)


def read_revision(connection: Connection) -> str | None:
    """Return a ledger's revision; None without tables. Raises SchemaMismatch if it is newer."""
    revision = MigrationContext.configure(connection).get_current_revision()
    if revision in (None, schema_revision()):
        return revision
    scripts = ScriptDirectory.from_config(_config())
    if revision not in {script.revision for script in scripts.walk_revisions()}:
        raise SchemaMismatch(
            "This database is newer than this Terrine. Install the version that migrated it, or "
            "newer."
        )
    return revision


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
    return config


def _migrations() -> Path:
    """`terrine_server/migrations` when installed, the repository's `migrations/` in a checkout."""
    here = Path(__file__).resolve()
    installed = here.parents[1] / "migrations"
    return installed if installed.is_dir() else here.parents[3] / "migrations"
