"""Checks of the database: reachable, durable, with timeouts, its clock in step with ours."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import disk_usage

from sqlalchemy import Connection, Engine, text

from terrine_server.doctor.files import disk, private
from terrine_server.doctor.finding import Finding, Severity
from terrine_server.ledger.store.database import reading, sqlite_path
from terrine_server.ledger.store.roles import missing, over_history
from terrine_server.ledger.store.schema import differences

OLDEST_POSTGRESQL = 14
CLOCK_SKEW, CLOCK_BROKEN = timedelta(seconds=1), timedelta(minutes=1)


def look(engine: Engine) -> Iterator[Finding]:
    """Connect and yield findings. Raises DatabaseUnavailable."""
    path = sqlite_path(engine)
    if path is not None:
        yield from _sqlite(engine, path)
        return
    with reading(engine) as connection:
        names = ("server_version", "server_version_num", *POSTGRESQL, *POSTGRESQL_WAITS)
        found = {name: str(_value(connection, f"SHOW {name}")) for name in names}
        standby = bool(_value(connection, "SELECT pg_is_in_recovery()"))
        before = datetime.now(UTC)
        there = _value(connection, "SELECT clock_timestamp()")
        here = before + (datetime.now(UTC) - before) / 2
    yield from postgresql(found, standby)
    assert isinstance(there, datetime)  # noqa: S101 - as PostgreSQL documents it
    yield skew(here, there)


def rights(engine: Engine) -> Iterator[Finding]:
    """Check this account's rights on the tables; nothing on SQLite or without tables."""
    if sqlite_path(engine) is not None:
        return
    with reading(engine) as connection:
        if _value(connection, "SELECT to_regclass('charges')") is None:
            return
        account = _value(connection, "SELECT current_user")
        lacking, excess = missing(connection), over_history(connection)
    if lacking:
        found = f"The account {account} may not {', '.join(lacking)}."
        fix = f"terrine init --service-role {account}   (as the owner of the tables)"
        yield Finding("rights", Severity.PROBLEM, found, fix)
    elif excess:
        found = f"The account {account} may {', '.join(excess)} charges: only triggers prevent it."
        fix = "Serve with another role: docs/ledger.md, A role with fewer rights"
        yield Finding("rights", Severity.WARNING, found, fix)
    else:
        found = f"The account {account} may add charges, but not change them."
        yield Finding("rights", Severity.OK, found)


def schema(engine: Engine) -> Iterator[Finding]:
    """Check that the whole schema is as this version's migrations make it."""
    parts = differences(engine)
    added = [part.part for part in parts if part.change == "added"]
    lost = [str(part) for part in parts if part.change != "added" and not part.restore]
    restorable = [str(part) for part in parts if part.restore]
    if added:
        found = f"The schema has what is not Terrine's: {'; '.join(added)}."
        fix = "Find out who added it, then DROP it; terrine ledger verify all"
        yield Finding("schema", Severity.PROBLEM, found, fix)
    if restorable:
        found = f"The schema is not as Terrine made it: {'; '.join(restorable)}."
        fix = "terrine init && terrine ledger verify all"
        yield Finding("schema", Severity.PROBLEM, found, fix)
    if lost:
        found = f"The schema is not as Terrine made it, and cannot be restored: {'; '.join(lost)}."
        fix = "Restore a backup of the database; terrine ledger verify all"
        yield Finding("schema", Severity.PROBLEM, found, fix)
    if not parts:
        found = "The whole schema is as this version of Terrine makes it."
        yield Finding("schema", Severity.OK, found)


def _sqlite(engine: Engine, path: Path) -> Iterator[Finding]:
    with reading(engine) as connection:
        version = _value(connection, "SELECT sqlite_version()")
        journal = _value(connection, "PRAGMA journal_mode")
    yield Finding("database", Severity.OK, f"SQLite {version}, {path}.")
    if journal != "wal":
        found = f"The journal mode of {path} is {journal}; expected wal (write-ahead log)."
        yield Finding("database", Severity.PROBLEM, found, "terrine init")
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        found = f"This account may not write to {path} and its directory."
        fix = f"chown \"$(id -u)\" '{path.parent}' '{path}'*"
        yield Finding("database", Severity.PROBLEM, found, fix)
    yield private("database", path)
    yield disk(path, disk_usage(path.parent).free)


POSTGRESQL = {
    "fsync": ({"on"}, "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();"),
    "full_page_writes": (
        {"on"},
        "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf();",
    ),
    "synchronous_commit": (
        {"on", "remote_apply"},
        "Connect to PostgreSQL itself, or to a pooler that passes on startup options",
    ),
    "default_transaction_isolation": (
        {"read committed"},
        "ALTER DATABASE … SET default_transaction_isolation = 'read committed';",
    ),
    "default_transaction_read_only": (
        {"off"},
        "ALTER DATABASE … SET default_transaction_read_only = off;",
    ),
}
"""Without these, a charge is not durable or fails. Accepted values, and how to set them."""
POSTGRESQL_WAITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


def postgresql(settings: Mapping[str, str], standby: bool) -> Iterator[Finding]:
    """Check a PostgreSQL server's settings, as our session sees them."""
    version = settings["server_version"].partition(" ")[0]
    if int(settings["server_version_num"]) // 10_000 < OLDEST_POSTGRESQL:
        found = f"PostgreSQL {version} is no longer supported by its developers."
        fix = f"Upgrade to PostgreSQL {OLDEST_POSTGRESQL} or newer"
        yield Finding("database", Severity.WARNING, found, fix)
    else:
        yield Finding("database", Severity.OK, f"PostgreSQL {version}.")
    if standby:
        found = "This PostgreSQL server is a standby, which accepts no charges."
        yield Finding(
            "database", Severity.PROBLEM, found, "Point TERRINE_DATABASE_URL at the primary"
        )
    wrong = False
    for name, (right, fix) in POSTGRESQL.items():
        if settings[name] not in right:
            wrong = True
            found = f"PostgreSQL's {name} is {settings[name]}; expected {' or '.join(right)}."
            yield Finding("durability", Severity.PROBLEM, found, fix)
    for name in POSTGRESQL_WAITS:
        if settings[name] == "0":
            wrong = True
            found = f"PostgreSQL's {name} is off: one stuck connection could block a project."
            _, fix = POSTGRESQL["synchronous_commit"]
            yield Finding("durability", Severity.PROBLEM, found, fix)
    if not wrong:
        yield Finding(
            "durability", Severity.OK, "Commits are on disk, and every wait has a timeout."
        )


def skew(here: datetime, there: datetime) -> Finding:
    """Compare this machine's clock with the database's."""
    apart = abs(here - there)
    found = (
        f"The clocks of this machine and of the database are {apart.total_seconds():.1f} s apart."
    )
    if apart < CLOCK_SKEW:
        return Finding("clock", Severity.OK, found)
    state = Severity.WARNING if apart < CLOCK_BROKEN else Severity.PROBLEM
    return Finding("clock", state, found, "timedatectl set-ntp true")


def _value(connection: Connection, query: str) -> object:
    return connection.execute(text(query)).scalar_one()
