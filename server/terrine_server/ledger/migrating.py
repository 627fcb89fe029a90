"""Brings a database to this version's schema, and gives the service its rights there."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, text

from terrine_server.errors import DatabaseUnavailable, NotFound
from terrine_server.ledger.database import (
    appending,
    migrating_alone,
    reading,
    sqlite_path,
    use_write_ahead_log,
    write,
    writing,
)
from terrine_server.ledger.definitions import compare
from terrine_server.ledger.log import initialise
from terrine_server.ledger.revisions import migrate, read_revision, schema_revision
from terrine_server.ledger.seals import Seals

# Names the lock under which migrations run. Any number that nobody else uses will do.
_MIGRATION_LOCK = 0x7E221E
_REWRITE = text("UPDATE alembic_version SET version_num = version_num")
_TEMPORARY = text("CREATE TEMPORARY TABLE terrine_ready ON COMMIT DROP AS SELECT 1 AS one")


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
    with migrating_alone(engine) as connection:
        if path is None:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
            )
        current = read_revision(connection) == schema_revision()
        seals = Seals(key)
        migrate(connection, seals)
        initialise(connection, seals)
        removed = [each for each in compare(connection) if each.restore] if current else []
        for each in removed:
            for statement in each.restore:
                connection.execute(text(statement))
        return [each.part for each in removed]


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


def _create_file(path: Path) -> None:
    try:
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise DatabaseUnavailable(
            f"The ledger's file {path} cannot be created: {error.strerror}.",
            fix="Create its directory, or check who may write there.",
            reason="misconfigured",
        ) from error


# By table: the columns that the service changes. It reads all of them, and adds rows to them.
CHANGED_COLUMNS: dict[str, tuple[str, ...]] = {
    "administrative_log": (),
    "charges": (),
    "populations": ("reserved", "delta_reserved", "seal"),
    "ensembles": ("seal",),
    "editions": ("seal",),
    "log_head": ("key_check", "entries", "head", "seal"),
    "payments": ("seal",),
    "projects": (
        "status",
        "closed_at",
        "spent",
        "delta_spent",
        "cap_spent",
        "charges",
        "published",
        "head",
        "seal",
    ),
    "secret_spends": ("charges", "tally", "seal"),
    "unit_accounts": ("charges", "head", "filled", "accounts", "seal"),
    "shadow_accounts": ("charges", "head", "accounts", "seal"),
    "tokens": ("revoked_at", "seal"),
    "tree_head": ("checkpoint",),
    "tree_leaves": (),
    "tree_nodes": (),
}


# By table and right: the columns, or () for all of them.
RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "alembic_version": {"SELECT": ()},
    **{
        table: {"SELECT": (), "INSERT": ()} | ({"UPDATE": changes} if changes else {})
        for table, changes in CHANGED_COLUMNS.items()
    },
}
SEQUENCES = ("populations_id_seq", "ensembles_id_seq", "projects_id_seq")
# With any of these rights on charges, one can change what was paid, or disable its protection.
HISTORY_RIGHTS = ("UPDATE", "DELETE", "TRUNCATE", "TRIGGER")


def grant(engine: Engine, role: str) -> None:
    """Grant a role these rights, and revoke all others that it has on the ledger.

    PostgreSQL only, as the tables' owner. Raises NotFound when there is no such role.
    """
    with writing(engine) as connection:
        known = text("SELECT 1 FROM pg_roles WHERE rolname = :role")
        if connection.execute(known, {"role": role}).first() is None:
            raise NotFound(
                f"PostgreSQL has no role {role}. Make it: CREATE ROLE {role} LOGIN PASSWORD '…';"
            )
        grant_rights(connection, role)


def grant_rights(connection: Connection, role: str) -> None:
    """Grant an existing role these rights, and revoke all others."""
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    for table, rights in RIGHTS.items():
        connection.execute(text(f"REVOKE ALL ON {table} FROM {quoted}"))
        listed = ", ".join(
            f"{right} ({', '.join(columns)})" if columns else right
            for right, columns in rights.items()
        )
        connection.execute(text(f"GRANT {listed} ON {table} TO {quoted}"))
    connection.execute(text(f"GRANT USAGE ON SEQUENCE {', '.join(SEQUENCES)} TO {quoted}"))


_MISSING = text(
    "SELECT DISTINCT wanted.privilege || ' on ' || wanted.tablename AS lacking "
    "FROM unnest(CAST(:tables AS text[]), CAST(:rights AS text[]), CAST(:columns AS text[])) "
    "AS wanted (tablename, privilege, columnname) WHERE NOT CASE WHEN columnname = '' "
    "THEN has_table_privilege(tablename, privilege) "
    "ELSE has_column_privilege(tablename, columnname, privilege) END ORDER BY lacking"
)


def missing_rights(connection: Connection) -> list[str]:
    """Return the rights that this database account lacks, such as "INSERT on charges"."""
    wanted = [
        (table, right, column)
        for table, rights in RIGHTS.items()
        for right, columns in rights.items()
        for column in columns or ("",)
    ]
    tables, rights, columns = (list(each) for each in zip(*wanted, strict=True))
    given = {"tables": tables, "rights": rights, "columns": columns}
    return list(connection.execute(_MISSING, given).scalars())


def check_rights(engine: Engine) -> None:
    """Raise DatabaseUnavailable unless this account may do all that the service does."""
    if engine.dialect.name == "sqlite":
        return
    with reading(engine) as connection:
        lacking = missing_rights(connection)
    if lacking:
        raise DatabaseUnavailable(
            f"The account that this service has in PostgreSQL may not {', '.join(lacking)}.",
            fix="Run `terrine init --service-role ACCOUNT` as the owner of the tables.",
            reason="misconfigured",
        )


def excess_rights(connection: Connection) -> list[str]:
    """Return the rights of this database account that could change what was charged."""
    query = text("SELECT has_table_privilege('charges', :right)")
    return [
        right
        for right in HISTORY_RIGHTS
        if connection.execute(query, {"right": right}).scalar_one()
    ]
