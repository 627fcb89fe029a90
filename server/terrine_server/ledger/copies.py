"""A whole ledger, of this version or an earlier one: what it holds, copies of it, and its place.

    revision = copy_to_file(engine, path)             # from any database to a new SQLite file
    replace_ledger(engine, path, "before_restore_1")  # from such a file to PostgreSQL

Rows are copied as they are, with their hashes and seals, between databases of one revision. Tables
are those that the migrations of that revision make, so that nothing here names one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Row, inspect, text
from sqlalchemy.engine import URL

from terrine_server.errors import Conflict, DatabaseUnavailable
from terrine_server.ledger import revisions
from terrine_server.ledger.chain import iso
from terrine_server.ledger.database import connect, migrating_alone, reading, snapshot, sqlite_path
from terrine_server.ledger.migrating import grant_rights

# ruff: noqa: S608 - statements are made of names from the schema, quoted


# How long PostgreSQL may take for a statement of whoever copies a whole ledger.
COPY_SECONDS = 24 * 3600.0
_REVISION = "alembic_version"
_CHUNK = 1000
# Tables that are empty in a ledger that `terrine init` has just made.
_IN_USE = ("charges", "ensembles", "tokens", "projects")


@dataclass(frozen=True)
class Registration:
    """Where a registered ensemble is, in its newest edition, and what it must be."""

    name: str
    path: str
    manifest_sha256: str
    in_use: bool
    """Whether a project on it is not closed."""


def file_engine(path: Path) -> Engine:
    """Return an engine for a SQLite file."""
    return connect(URL.create("sqlite", database=str(path)).render_as_string())


def registrations(engine: Engine) -> list[Registration]:
    """Return the registered ensembles, by name. Their seals are not checked."""
    with reading(engine) as connection:
        there = set(inspect(connection).get_table_names())
        if "ensembles" not in there:
            return []
        found = connection.execute(
            text("SELECT id, name, path, manifest_sha256 FROM ensembles ORDER BY name")
        ).all()
        in_use = "SELECT DISTINCT ensemble_id FROM projects WHERE status <> 'closed'"
        used = set(connection.execute(text(in_use)).scalars())
        newest: dict[int, Row[Any]] = {}
        if "editions" in there:
            made = "SELECT ensemble_id, number, manifest_sha256 FROM editions ORDER BY number"
            newest = {row.ensemble_id: row for row in connection.execute(text(made))}
    registered = []
    for row in found:
        edition = newest.get(row.id)
        path = row.path if edition is None else f"{row.path}/edition-{edition.number}"
        digest = row.manifest_sha256 if edition is None else edition.manifest_sha256
        registered.append(Registration(row.name, path, bytes(digest).hex(), row.id in used))
    return registered


def holds_entries(engine: Engine) -> bool:
    """Whether somebody would miss what the database holds, whichever version made it."""
    with reading(engine) as connection:
        there = set(inspect(connection).get_table_names())
        return any(
            connection.execute(text(f"SELECT 1 FROM {table} LIMIT 1")).first() is not None
            for table in _IN_USE
            if table in there
        )


def count_entries(engine: Engine) -> tuple[int, int, int]:
    """Return the number of all entries, of those that are charges, and of projects."""
    with reading(engine) as connection:
        log, charges, projects = (
            connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            for table in ("administrative_log", "charges", "projects")
        )
    return log + charges, charges, projects


def has_schema(engine: Engine, name: str) -> bool:
    """Whether PostgreSQL has a schema with this name."""
    with reading(engine) as connection:
        return inspect(connection).has_schema(name)


def log_end(engine: Engine) -> bytes | None:
    """Return the hash of the last entry of the administrative log; None without one."""
    with reading(engine) as connection:
        if not inspect(connection).has_table("log_head"):
            return None
        found = connection.execute(text("SELECT head FROM log_head")).scalar_one_or_none()
        return None if found is None else bytes(found)


def copy_to_file(engine: Engine, path: Path) -> str:
    """Copy a ledger, as it is at one moment, into a new SQLite file; return its revision.

    Servers may go on. The file needs no other beside it. Raises SchemaMismatch for a ledger that is
    not there or newer than this version, and DatabaseUnavailable.
    """
    with snapshot(engine) as source:
        found = revisions.read_known_revision(source)
        path.touch(mode=0o600)
        if sqlite_path(engine) is not None:
            with closing(sqlite3.connect(path)) as target:
                _driver(source).backup(target)
        else:
            source.execute(text("SET LOCAL enable_seqscan = on"))
            made = file_engine(path)
            with migrating_alone(made) as target:
                revisions.migrate(target, to=found)
                _copy_rows(source, target)
            made.dispose()
    settle(file_engine(path))
    return found


def settle(engine: Engine) -> None:
    """Make a SQLite file complete in itself, with no log beside it, and close it.

    Raises DatabaseUnavailable if another process uses it.
    """
    with engine.connect() as connection:
        driver = _driver(connection)
        try:
            (mode,) = driver.execute("PRAGMA journal_mode = DELETE").fetchone()
        except Exception as error:  # of the driver itself: no statement of SQLAlchemy's
            raise _in_use(str(error)) from None
    engine.dispose()
    if mode != "delete":
        raise _in_use()


def _in_use(cause: str = "") -> DatabaseUnavailable:
    fix = "Stop the servers and commands that use it first."
    return DatabaseUnavailable("The ledger's file is in use.", cause, fix=fix, reason="busy")


def others_connected(engine: Engine) -> list[str]:
    """Return which roles of PostgreSQL have sessions on the database beside this one."""
    with reading(engine) as connection:
        found = connection.execute(
            text(
                "SELECT usename FROM pg_stat_activity WHERE datname = current_database() "
                "AND usename IS NOT NULL AND pid <> pg_backend_pid() ORDER BY usename"
            )
        )
        return list(found.scalars())


def check_owner(engine: Engine) -> None:
    """Raise Conflict unless this account of PostgreSQL may put all tables in another place."""
    with reading(engine) as connection:
        foreign = connection.execute(
            text(
                "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
                "AND relkind IN ('r', 'p') AND NOT pg_has_role(relowner, 'USAGE') ORDER BY relname"
            )
        ).scalars()
        may = connection.execute(
            text(
                "SELECT has_schema_privilege(current_schema(), 'CREATE') "
                "AND has_database_privilege(current_database(), 'CREATE')"
            )
        ).scalar_one()
        if any(foreign) or not may:
            account = connection.execute(text("SELECT current_user")).scalar_one()
            raise Conflict(
                f"The account {account} does not own the ledger's tables and database, so it "
                "cannot replace them. Restore as their owner, with Docker: docker compose run --rm "
                "--no-deps migrate restore …"
            )


def replace_ledger(engine: Engine, path: Path, aside: str) -> str | None:
    """Put the ledger of a SQLite file, of this version, in the place of PostgreSQL's.

    In one transaction. What was there, of whichever version, is moved to the schema `aside`, whose
    name is returned; None if nothing was there that anybody would miss. Roles that could add
    charges get the rights that they need in the new tables.
    """
    missed = holds_entries(engine)
    with reading(file_engine(path)) as source, migrating_alone(engine) as target:
        roles = _who_serves(target)
        moved = _move_aside(target, aside)
        revisions.migrate(target)
        _copy_rows(source, target)
        for role in roles:
            grant_rights(target, role)
        if moved and not missed:
            target.execute(text(f"DROP SCHEMA {aside} CASCADE"))
    return aside if moved and missed else None


def _copy_rows(source: Connection, target: Connection) -> None:
    """Copy all rows into the empty tables of the same revision, in one transaction of each."""
    schema_of = inspect(target)
    quote = target.dialect.identifier_preparer.quote_identifier
    for table, _ in schema_of.get_sorted_table_and_fkc_names():
        if table is None or table == _REVISION:
            continue
        columns = [column["name"] for column in schema_of.get_columns(table)]
        listed = ", ".join(map(quote, columns))
        query = text(f"SELECT {listed} FROM {quote(table)}")
        streamed = source.execution_options(yield_per=_CHUNK)
        rows = (tuple(map(_plain, row)) for row in streamed.execute(query))
        if target.dialect.name == "sqlite":
            values = ", ".join("?" * len(columns))
            statement = f"INSERT INTO {quote(table)} ({listed}) VALUES ({values})"
            while page := list(islice(rows, _CHUNK)):
                target.exec_driver_sql(statement, page)
            continue
        with _driver(target).cursor().copy(f"COPY {quote(table)} ({listed}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        if "id" in columns:
            _continue_ids(target, quote(table))


def _continue_ids(target: Connection, table: str) -> None:
    """Let PostgreSQL give ids after those that were copied."""
    newest = target.execute(text(f"SELECT max(id) FROM {table}")).scalar_one()
    given_by = text("SELECT pg_get_serial_sequence(:table, 'id')")
    sequence = target.execute(given_by, {"table": table}).scalar_one()
    if sequence is not None and newest is not None:
        advance = text("SELECT setval(:sequence, :newest)")
        target.execute(advance, {"sequence": sequence, "newest": newest})


def _plain(value: Any) -> Any:
    """Return a value as it is in SQLite. PostgreSQL reads such text as a time, where it is one."""
    return iso(value) if isinstance(value, datetime) else value


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _who_serves(target: Connection) -> Sequence[str]:
    if not inspect(target).has_table("charges"):
        return []
    return (
        target.execute(
            text(
                "SELECT DISTINCT grantee FROM information_schema.role_table_grants WHERE "
                "table_schema = current_schema() AND table_name = 'charges' AND "
                "privilege_type = 'INSERT' AND grantee NOT IN (current_user, 'PUBLIC') "
                "AND grantee <> (SELECT tableowner FROM pg_tables WHERE tablename = 'charges' "
                "AND schemaname = current_schema())"
            )
        )
        .scalars()
        .all()
    )


def _move_aside(target: Connection, aside: str) -> bool:
    """Move all tables and functions except those of extensions; return whether there were any."""
    own = (
        "FROM {catalogue} WHERE {namespace} = current_schema()::regnamespace {more} AND NOT EXISTS "
        "(SELECT 1 FROM pg_depend WHERE objid = {catalogue}.oid AND deptype = 'e')"
    )
    tables = own.format(
        catalogue="pg_class", namespace="relnamespace", more="AND relkind IN ('r', 'p', 'v', 'm')"
    )
    functions = own.format(catalogue="pg_proc", namespace="pronamespace", more="")
    found = [
        *target.execute(text(f"SELECT 'TABLE ' || oid::regclass {tables}")).scalars(),
        *target.execute(text(f"SELECT 'ROUTINE ' || oid::regprocedure {functions}")).scalars(),
    ]
    if found:
        target.execute(text(f"CREATE SCHEMA {aside}"))
        for each in found:
            target.execute(text(f"ALTER {each} SET SCHEMA {aside}"))
    return bool(found)
