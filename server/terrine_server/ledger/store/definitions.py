"""The whole schema, compared with the one that this version's migrations make.

What is expected is made by the migrations themselves, on the same kind of database: in memory on
SQLite, in the session's temporary schema on PostgreSQL, in a transaction that is rolled back. The
same queries of the same server describe both, so its version does not matter. Everything in the
ledger's schema is looked at, also what somebody added: a trigger can make a write do nothing, and
a rewritten CHECK can let anything pass.

Not looked at: what belongs to an extension of PostgreSQL, the statistics of SQLite's ANALYZE,
storage parameters, owners, and rights (`roles`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event, text

from terrine_server.ledger.store.database import reading, writing

Migrate = Callable[[Connection], None]
"""Runs all migrations on a connection whose schema is empty."""


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
    def within(self) -> str | None:
        """How the part that this one goes with is described: its column, or its table."""
        if self.kind == "NOT NULL":
            return f"column {self.name} of {self.of}"
        return f"table {self.of}" if self.of and self.of != self.name else None


_Parts = dict[str, list[_SchemaPart]]
_expected_of: WeakKeyDictionary[Engine, _Parts] = WeakKeyDictionary()


def differences(engine: Engine, migrate: Migrate) -> list[SchemaDifference]:
    """Compare the schema of a migrated database with the one that `migrate` makes.

    On PostgreSQL it needs no right but to connect and to make temporary tables, as everybody may
    unless it was revoked. Raises DatabaseUnavailable.
    """
    enter = reading if engine.dialect.name == "sqlite" else writing
    with enter(engine) as connection:
        return list(compare(connection, migrate))


def compare(connection: Connection, migrate: Migrate) -> Iterator[SchemaDifference]:
    """As `differences`, on a connection that may make temporary tables."""
    expected, found = _expected(connection, migrate), _found(connection)
    dialect = connection.dialect.name
    gone, come = _beside(expected, found), _beside(found, expected)
    for described, (part,) in gone.items():
        if part.within not in gone:  # else it is gone with that
            yield SchemaDifference("missing", described, _restore(dialect, part, False))
    for described, (part,) in expected.items():
        there = [each.definition for each in found.get(described, [])]
        if there and there != [part.definition]:
            yield SchemaDifference("changed", described, _restore(dialect, part, True))
    for described, parts in come.items():
        if parts[0].within not in come:
            yield SchemaDifference("added", described)


def _beside(these: _Parts, those: _Parts) -> _Parts:
    return {described: parts for described, parts in these.items() if described not in those}


def _expected(connection: Connection, migrate: Migrate) -> _Parts:
    if connection.dialect.name == "sqlite":
        return _expected_of_sqlite(migrate)
    engine = connection.engine
    if engine not in _expected_of:
        _expected_of[engine] = _expected_of_postgresql(connection, migrate)
    return _expected_of[engine]


def _found(connection: Connection) -> _Parts:
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
def _expected_of_sqlite(migrate: Migrate) -> _Parts:
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
        definition = _spaced(str(sql)) + (" stored where another is" if shared else "")
        yield _SchemaPart(str(kind), str(name), str(table), definition)


def _spaced(sql: str) -> str:
    """Write any white space as one space, but for what is quoted."""
    return re.sub(r"('(?:[^']|'')*'|\"[^\"]*\")|\s+", lambda found: found[1] or " ", sql).strip()


# -------------------------------------------------------------------------------- PostgreSQL

_FUNCTION = re.compile(r"EXECUTE FUNCTION (terrine_\w+)")


def _expected_of_postgresql(connection: Connection, migrate: Migrate) -> _Parts:
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
    """Return the statements that make a part as it is expected; `there`: it is, but otherwise."""
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
