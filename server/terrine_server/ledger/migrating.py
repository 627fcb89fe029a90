"""Migrates a database to this version's schema, and refuses to run on any other."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text

from terrine_server.errors import DatabaseStarting, DatabaseUnavailable, NotFound, SchemaMismatch
from terrine_server.ledger.database import (
    appending,
    check_guarded,
    migrating_alone,
    reading,
    sqlite_path,
    use_write_ahead_log,
    write,
    writing,
)
from terrine_server.ledger.log import initialise
from terrine_server.ledger.seals import Seals


@dataclass(frozen=True)
class SchemaDifference:
    """A part of the schema that is not as the migrations make it.

    `restore`: the statements that make it so, if any do. Nothing that was added is ever removed.
    """

    change: Literal["missing", "changed", "added"]
    part: str
    restore: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.change}: {self.part}"


@dataclass(frozen=True)
class _SchemaPart:
    """A table or view, or a part of one. `of`: its table, or what it is itself."""

    kind: str
    name: str
    of: str
    definition: str

    @property
    def described(self) -> str:
        on = "" if self.of == self.name or not self.of else f" of {self.of}"
        return f"{self.kind} {self.name}{on}"

    @property
    def parent(self) -> str | None:
        """How the part that this one belongs to is described: its column, or its table."""
        if self.kind == "NOT NULL":
            return f"column {self.name} of {self.of}"
        return f"table {self.of}" if self.of and self.of != self.name else None


_Parts = dict[str, list[_SchemaPart]]
_expected_of: WeakKeyDictionary[Engine, _Parts] = WeakKeyDictionary()


def schema_differences(engine: Engine) -> list[SchemaDifference]:
    """Compare the whole schema with the one that this version's migrations make.

    The doctor, `terrine ledger verify` and the server's readiness all ask this. On PostgreSQL it
    needs no right but to connect and to make temporary tables, as everybody may unless it was
    revoked. Raises DatabaseUnavailable, also where a setting of the session keeps guards from what
    they do.
    """
    with (reading if engine.dialect.name == "sqlite" else writing)(engine) as connection:
        check_guarded(connection)
        return list(_compare(connection))


def _compare(connection: Connection) -> Iterator[SchemaDifference]:
    """Yield the differences, by a connection that may make temporary tables."""
    expected, found = _read_expected_parts(connection), _read_found_parts(connection)
    dialect = connection.dialect.name
    missing, added = _only_in_first(expected, found), _only_in_first(found, expected)
    for described, (part,) in missing.items():
        if part.parent not in missing:
            yield SchemaDifference("missing", described, _restore(dialect, part, False))
    for described, (part,) in expected.items():
        definitions = [each.definition for each in found.get(described, [])]
        if definitions and definitions != [part.definition]:
            yield SchemaDifference("changed", described, _restore(dialect, part, True))
    for described, parts in added.items():
        if parts[0].parent not in added:
            yield SchemaDifference("added", described)


def _only_in_first(first: _Parts, second: _Parts) -> _Parts:
    return {described: parts for described, parts in first.items() if described not in second}


def _read_expected_parts(connection: Connection) -> _Parts:
    if connection.dialect.name == "sqlite":
        return _read_expected_parts_of_sqlite()
    engine = connection.engine
    if engine not in _expected_of:
        _expected_of[engine] = _read_expected_parts_of_postgresql(connection)
    return _expected_of[engine]


def _read_found_parts(connection: Connection) -> _Parts:
    if connection.dialect.name == "sqlite":
        return _parts(_of_sqlite(connection))
    query = "SELECT relnamespace FROM pg_class WHERE oid = to_regclass('alembic_version')"
    return _parts(_of_postgresql(connection, connection.execute(text(query)).scalar_one_or_none()))


def _parts(parts: Iterator[_SchemaPart]) -> _Parts:
    found: _Parts = {}
    for part in parts:
        found.setdefault(part.described, []).append(part)
    return found


# ------------------------------------------------------------------------------------ SQLite


@cache
def _read_expected_parts_of_sqlite() -> _Parts:
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            migrate(connection)
            return _parts(_of_sqlite(connection))
    finally:
        engine.dispose()


def _of_sqlite(connection: Connection) -> Iterator[_SchemaPart]:
    # A table that is stored where another is: its definition is right, its rows are the other's.
    query = (
        "SELECT type, name, tbl_name, sql, rootpage > 0 AND EXISTS (SELECT 1 FROM sqlite_master "
        "AS o WHERE o.rootpage = m.rootpage AND o.rowid <> m.rowid) AS shared "
        "FROM sqlite_master AS m ORDER BY type = 'trigger', type = 'index', name"
    )
    for kind, name, table, sql, shared in connection.exec_driver_sql(query):
        if kind == "table" and name in ("sqlite_stat1", "sqlite_stat4"):
            continue
        definition = _normalize_spaces(str(sql)) + (" stored where another is" if shared else "")
        yield _SchemaPart(str(kind), str(name), str(table), definition)


def _normalize_spaces(sql: str) -> str:
    """Write any white space as one space, except in quotes."""
    return re.sub(r"('(?:[^']|'')*'|\"[^\"]*\")|\s+", lambda found: found[1] or " ", sql).strip()


# -------------------------------------------------------------------------------- PostgreSQL

_FUNCTION = re.compile(r"EXECUTE FUNCTION (terrine_\w+)")


def _read_expected_parts_of_postgresql(connection: Connection) -> _Parts:
    def of_this_schema(
        _: Any, __: Any, statement: str, parameters: Any, ___: Any, ____: Any
    ) -> tuple[str, Any]:
        # PostgreSQL never looks for a function in the temporary schema unless told to.
        return _FUNCTION.sub(r"EXECUTE FUNCTION pg_temp.\1", statement), parameters

    attempt = connection.begin_nested()
    try:
        event.listen(connection, "before_cursor_execute", of_this_schema, retval=True)
        connection.execute(text("SET LOCAL search_path = pg_temp"))
        migrate(connection)
        schema = connection.execute(text("SELECT pg_my_temp_schema()")).scalar_one()
        return _parts(_of_postgresql(connection, schema))
    finally:
        event.remove(connection, "before_cursor_execute", of_this_schema)
        attempt.rollback()


_NO_EXTENSION = (
    "NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_{catalog}'::regclass "
    "AND d.objid = {alias}.oid AND d.deptype = 'e')"
)
_OF_EXTENSION = {
    alias: _NO_EXTENSION.format(catalog=catalog, alias=alias)
    for alias, catalog in {"c": "class", "p": "proc", "y": "type", "o": "operator"}.items()
}

_POSTGRESQL = f"""
WITH ours AS (
    SELECT c.oid, c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity
    FROM pg_class c WHERE c.relnamespace = CAST(:schema AS oid) AND c.relkind NOT IN ('i', 'I', 't')
    AND {_OF_EXTENSION["c"]}
)
SELECT 1, CASE relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view'
        WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence' WHEN 'f' THEN 'foreign table'
        ELSE 'type' END,
    relname, relname,
    concat_ws(' ', CASE relpersistence WHEN 'u' THEN 'unlogged' END, CASE WHEN relrowsecurity THEN
        'row security' END, CASE WHEN relforcerowsecurity THEN 'forced' END,
        (SELECT concat_ws(' ', seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcycle)
         FROM pg_sequence WHERE seqrelid = ours.oid))
    FROM ours
UNION ALL
SELECT 2, 'column', attname, relname,
    concat_ws(' ', format_type(atttypid, atttypmod), CASE WHEN attcollation <> typcollation THEN
        attcollation::regcollation::text END, pg_get_expr(adbin, adrelid), attidentity::text,
        attgenerated::text)
    FROM pg_attribute JOIN ours ON ours.oid = attrelid JOIN pg_type ON pg_type.oid = atttypid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND NOT attisdropped AND relkind IN ('r', 'p')
UNION ALL
SELECT 3, 'NOT NULL', attname, relname, ''
    FROM pg_attribute JOIN ours ON ours.oid = attrelid
    WHERE attnum > 0 AND attnotnull AND NOT attisdropped AND relkind IN ('r', 'p')
UNION ALL
SELECT CASE contype WHEN 'p' THEN 4 WHEN 'u' THEN 5 WHEN 'c' THEN 6 ELSE 7 END,
    CASE contype WHEN 'p' THEN 'primary key' WHEN 'u' THEN 'unique constraint' WHEN 'c' THEN 'check'
        WHEN 'f' THEN 'foreign key' ELSE 'constraint' END,
    conname, relname,
    concat_ws(' ', pg_get_constraintdef(k.oid), (
        SELECT string_agg(tgfoid::regproc::text || CASE WHEN tgenabled IN ('D', 'R') THEN
            ' switched off' ELSE '' END, ', ' ORDER BY tgfoid::regproc::text)
        FROM pg_trigger WHERE tgconstraint = k.oid AND tgisinternal))
    FROM pg_constraint k JOIN ours ON ours.oid = conrelid WHERE contype NOT IN ('n', 't')
UNION ALL
SELECT 8, CASE WHEN indisunique THEN 'unique index' ELSE 'index' END, i.relname, ours.relname,
    concat_ws(' ', pg_get_indexdef(indexrelid), CASE WHEN NOT (indisvalid AND indisready AND
        indislive) THEN 'not valid' END)
    FROM pg_index JOIN ours ON ours.oid = indrelid JOIN pg_class i ON i.oid = indexrelid
    WHERE NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid
        AND conrelid = indrelid)
UNION ALL
SELECT 9, 'function', proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', '',
    CASE WHEN prokind = 'a' THEN 'aggregate' ELSE pg_get_functiondef(p.oid) END
    FROM pg_proc p WHERE pronamespace = CAST(:schema AS oid) AND {_OF_EXTENSION["p"]}
UNION ALL
SELECT 10, 'trigger', tgname, relname,
    pg_get_triggerdef(t.oid, true) || CASE WHEN tgenabled IN ('D', 'R') THEN ' switched off' ELSE ''
        END
    FROM pg_trigger t JOIN ours ON ours.oid = tgrelid WHERE NOT tgisinternal
UNION ALL
SELECT 11, 'rule', rulename, relname, '' FROM pg_rewrite JOIN ours ON ours.oid = ev_class
    WHERE relkind NOT IN ('v', 'm')
UNION ALL
SELECT 11, 'row-level policy', polname, relname, '' FROM pg_policy JOIN ours ON ours.oid = polrelid
UNION ALL
SELECT 11, 'inheritance', (CASE WHEN parent.oid = inhparent THEN inhrelid ELSE inhparent END
    )::regclass::text, parent.relname, ''
    FROM pg_inherits JOIN ours parent ON parent.oid IN (inhparent, inhrelid)
UNION ALL
SELECT 11, 'type', typname, '', '' FROM pg_type y WHERE typnamespace = CAST(:schema AS oid)
    AND (typtype IN ('d', 'e', 'r', 'm') OR typtype = 'b' AND typcategory <> 'A')
    AND {_OF_EXTENSION["y"]}
UNION ALL
SELECT 11, 'operator', oprname, '', '' FROM pg_operator o WHERE oprnamespace = CAST(:schema AS oid)
    AND {_OF_EXTENSION["o"]}
UNION ALL
SELECT 11, 'table', n.nspname || '.' || c.relname, '', '' FROM pg_class c JOIN pg_namespace n ON
    n.oid = c.relnamespace WHERE relnamespace <> CAST(:schema AS oid) AND pg_table_is_visible(c.oid)
    AND n.nspname <> 'pg_catalog' AND c.relname IN (SELECT relname FROM ours)
ORDER BY 1, 4, 3
"""  # noqa: S608 - made of constants
"""Order, kind, name, table, definition. NOT NULL is a constraint, too, in PostgreSQL 18; here it is
a property of its column in every version."""

_NAME = text(
    "SELECT CASE WHEN oid = pg_my_temp_schema() THEN 'pg_temp' ELSE quote_ident(nspname) END "
    "FROM pg_namespace WHERE oid = CAST(:schema AS oid)"
)
"""A schema's name, as definitions are printed with it."""

_REWRITTEN = re.compile(r"\(ARRAY\[([^\]]*)\]\)::text\[\]")


def _of_postgresql(connection: Connection, schema: int | None) -> Iterator[_SchemaPart]:
    given = {"schema": schema}
    prefix = f"{connection.execute(_NAME, given).scalar_one_or_none()}."
    for _, kind, name, of, definition in connection.execute(text(_POSTGRESQL), given):
        yield _SchemaPart(kind, name, of, _as_restored(str(definition).replace(prefix, "")))


def _as_restored(definition: str) -> str:
    """Write `IN (…)` as PostgreSQL prints it once it was dumped and restored."""

    def rewritten(found: re.Match[str]) -> str:
        return f"ARRAY[{', '.join(f'({each})::text' for each in found[1].split(', '))}]"

    return _REWRITTEN.sub(rewritten, definition)


# ------------------------------------------------------------------------------ what restores


def _restore(dialect: str, part: _SchemaPart, there: bool) -> tuple[str, ...]:
    """Return the statements that make a part as expected; `there`: it exists, but differs."""
    kind, name, table, made = part.kind, part.name, part.of, part.definition
    constraint = f"ALTER TABLE {table} DROP CONSTRAINT {name}"
    match dialect, kind:
        case ("sqlite", "trigger" | "index") if made != "None":
            return (*([f"DROP {kind.upper()} {name}"] if there else []), made)
        case ("postgresql", "trigger"):
            return (*([f"DROP TRIGGER {name} ON {table}"] if there else []), made)
        case ("postgresql", "index" | "unique index"):
            return (*([f"DROP INDEX {name}"] if there else []), made)
        case ("postgresql", "function"):
            return (made,)
        case ("postgresql", "NOT NULL"):
            return (f"ALTER TABLE {table} ALTER {name} SET NOT NULL",)
        case ("postgresql", "check" | "unique constraint" | "primary key" | "foreign key"):
            made = re.sub(r' "RI_FKey_.*', "", made)
            add = f"ALTER TABLE {table} ADD CONSTRAINT {name} {made}"
            return (*([constraint] if there else []), add)
        case _:
            return ()


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
    with migrating_alone(engine) as connection:
        if path is None:
            connection.execute(
                text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK}
            )
        current = _revision(connection) == schema_revision()
        seals = Seals(key)
        migrate(connection, seals)
        initialise(connection, seals)
        removed = [each for each in _compare(connection) if each.restore] if current else []
        for each in removed:
            for statement in each.restore:
                connection.execute(text(statement))
        return [each.part for each in removed]


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


def check_definitions(engine: Engine) -> None:
    """Raise SchemaMismatch unless the whole schema is as this version's migrations make it."""
    found = schema_differences(engine)
    if found:
        raise SchemaMismatch(
            "The ledger's schema is not as this Terrine made it: something was removed, changed or "
            "added. The server's operator should run `terrine doctor`.",
            "; ".join(map(str, found)),
        )


def read_known_revision(connection: Connection) -> str:
    """Return the revision of a ledger of this version or an earlier one. Raises SchemaMismatch."""
    revision = _revision(connection)
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


def _revision(connection: Connection) -> str | None:
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


def _create_file(path: Path) -> None:
    try:
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise DatabaseUnavailable(
            f"The ledger's file {path} cannot be created: {error.strerror}.",
            fix="Create its directory, or check who may write there.",
            reason="misconfigured",
        ) from error


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
    return config


def _migrations() -> Path:
    """`terrine_server/migrations` when installed, the repository's `migrations/` in a checkout."""
    here = Path(__file__).resolve()
    installed = here.parents[1] / "migrations"
    return installed if installed.is_dir() else here.parents[3] / "migrations"


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
"""By table: the columns that the service changes. It reads all of them, and adds rows to them."""


RIGHTS: dict[str, dict[str, tuple[str, ...]]] = {
    "alembic_version": {"SELECT": ()},
    **{
        table: {"SELECT": (), "INSERT": ()} | ({"UPDATE": changes} if changes else {})
        for table, changes in CHANGED_COLUMNS.items()
    },
}
"""By table and right: the columns, or () for all of them."""
SEQUENCES = ("populations_id_seq", "ensembles_id_seq", "projects_id_seq")
HISTORY_RIGHTS = ("UPDATE", "DELETE", "TRUNCATE", "TRIGGER")
"""With any of these rights on charges, one can change what was paid, or disable its protection."""


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
