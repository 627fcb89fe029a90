"""Whether a database's whole schema is as the migrations make it, and what restores it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, create_engine, event, text

from terrine_server.errors import SchemaMismatch
from terrine_server.ledger.database import check_guarded, reading, writing
from terrine_server.ledger.revisions import migrate

# ruff: noqa: S608 - statements are made of constants


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
        return list(compare(connection))


def check_definitions(engine: Engine) -> None:
    """Raise SchemaMismatch unless the whole schema is as this version's migrations make it."""
    found = schema_differences(engine)
    if found:
        raise SchemaMismatch(
            "The ledger's schema is not as this Terrine made it: something was removed, changed or "
            "added. The server's operator should run `terrine doctor`.",
            "; ".join(map(str, found)),
        )


def compare(connection: Connection) -> Iterator[SchemaDifference]:
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
_OURS = f"""
    SELECT c.oid, c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relforcerowsecurity
    FROM pg_class c WHERE c.relnamespace = CAST(:schema AS oid) AND c.relkind NOT IN ('i', 'I', 't')
    AND {_OF_EXTENSION["c"]}
"""
# Each selects order, kind, name, table and definition of one kind of part.
_PARTS_OF_POSTGRESQL = (
    # Tables, views and sequences.
    """
    SELECT 1,
    CASE relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'partitioned table' WHEN 'v' THEN 'view'
        WHEN 'm' THEN 'materialized view' WHEN 'S' THEN 'sequence' WHEN 'f' THEN 'foreign table'
        ELSE 'type' END,
    relname, relname,
    concat_ws(' ', CASE relpersistence WHEN 'u' THEN 'unlogged' END, CASE WHEN relrowsecurity THEN
        'row security' END, CASE WHEN relforcerowsecurity THEN 'forced' END,
        (SELECT concat_ws(' ', seqtypid::regtype, seqstart, seqincrement, seqmin, seqmax, seqcycle)
         FROM pg_sequence WHERE seqrelid = ours.oid))
    FROM ours""",
    # Columns.
    """
    SELECT 2, 'column', attname, relname,
    concat_ws(' ', format_type(atttypid, atttypmod), CASE WHEN attcollation <> typcollation THEN
        attcollation::regcollation::text END, pg_get_expr(adbin, adrelid), attidentity::text,
        attgenerated::text)
    FROM pg_attribute JOIN ours ON ours.oid = attrelid JOIN pg_type ON pg_type.oid = atttypid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE attnum > 0 AND NOT attisdropped AND relkind IN ('r', 'p')""",
    # A constraint, too, in PostgreSQL 18; here a property of its column in every version.
    """
    SELECT 3, 'NOT NULL', attname, relname, ''
    FROM pg_attribute JOIN ours ON ours.oid = attrelid
    WHERE attnum > 0 AND attnotnull AND NOT attisdropped AND relkind IN ('r', 'p')""",
    # Constraints, each with the triggers that keep it.
    """
    SELECT CASE contype WHEN 'p' THEN 4 WHEN 'u' THEN 5 WHEN 'c' THEN 6 ELSE 7 END,
    CASE contype WHEN 'p' THEN 'primary key' WHEN 'u' THEN 'unique constraint' WHEN 'c' THEN 'check'
        WHEN 'f' THEN 'foreign key' ELSE 'constraint' END,
    conname, relname,
    concat_ws(' ', pg_get_constraintdef(k.oid), (
        SELECT string_agg(tgfoid::regproc::text || CASE WHEN tgenabled IN ('D', 'R') THEN
            ' switched off' ELSE '' END, ', ' ORDER BY tgfoid::regproc::text)
        FROM pg_trigger WHERE tgconstraint = k.oid AND tgisinternal))
    FROM pg_constraint k JOIN ours ON ours.oid = conrelid WHERE contype NOT IN ('n', 't')""",
    # Indexes, but those of constraints.
    """
    SELECT 8, CASE WHEN indisunique THEN 'unique index' ELSE 'index' END, i.relname, ours.relname,
    concat_ws(' ', pg_get_indexdef(indexrelid), CASE WHEN NOT (indisvalid AND indisready AND
        indislive) THEN 'not valid' END)
    FROM pg_index JOIN ours ON ours.oid = indrelid JOIN pg_class i ON i.oid = indexrelid
    WHERE NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid
        AND conrelid = indrelid)""",
    # Functions.
    f"""
    SELECT 9, 'function', proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', '',
    CASE WHEN prokind = 'a' THEN 'aggregate' ELSE pg_get_functiondef(p.oid) END
    FROM pg_proc p WHERE pronamespace = CAST(:schema AS oid) AND {_OF_EXTENSION["p"]}""",
    # Triggers.
    """
    SELECT 10, 'trigger', tgname, relname,
    pg_get_triggerdef(t.oid, true) || CASE WHEN tgenabled IN ('D', 'R') THEN ' switched off' ELSE ''
        END
    FROM pg_trigger t JOIN ours ON ours.oid = tgrelid WHERE NOT tgisinternal""",
    # What is never made here, and would change what a statement does: rules, policies, inheritance,
    # types, operators, and tables of the same names that are found first.
    """
    SELECT 11, 'rule', rulename, relname, '' FROM pg_rewrite JOIN ours ON ours.oid = ev_class
    WHERE relkind NOT IN ('v', 'm')""",
    """
    SELECT 11, 'row-level policy', polname, relname, ''
    FROM pg_policy JOIN ours ON ours.oid = polrelid""",
    """
    SELECT 11, 'inheritance', (CASE WHEN parent.oid = inhparent THEN inhrelid ELSE inhparent END
    )::regclass::text, parent.relname, ''
    FROM pg_inherits JOIN ours parent ON parent.oid IN (inhparent, inhrelid)""",
    f"""
    SELECT 11, 'type', typname, '', '' FROM pg_type y WHERE typnamespace = CAST(:schema AS oid)
    AND (typtype IN ('d', 'e', 'r', 'm') OR typtype = 'b' AND typcategory <> 'A')
    AND {_OF_EXTENSION["y"]}""",
    f"""
    SELECT 11, 'operator', oprname, '', ''
    FROM pg_operator o WHERE oprnamespace = CAST(:schema AS oid)
    AND {_OF_EXTENSION["o"]}""",
    """
    SELECT 11, 'table', n.nspname || '.' || c.relname, '', '' FROM pg_class c JOIN pg_namespace n ON
    n.oid = c.relnamespace WHERE relnamespace <> CAST(:schema AS oid) AND pg_table_is_visible(c.oid)
    AND n.nspname <> 'pg_catalog' AND c.relname IN (SELECT relname FROM ours)""",
)
_POSTGRESQL = text(
    f"WITH ours AS ({_OURS}) {' UNION ALL '.join(_PARTS_OF_POSTGRESQL)} ORDER BY 1, 4, 3"
)

# A schema's name, as definitions are printed with it.
_NAME = text(
    "SELECT CASE WHEN oid = pg_my_temp_schema() THEN 'pg_temp' ELSE quote_ident(nspname) END "
    "FROM pg_namespace WHERE oid = CAST(:schema AS oid)"
)
_REWRITTEN = re.compile(r"\(ARRAY\[([^\]]*)\]\)::text\[\]")


def _of_postgresql(connection: Connection, schema: int | None) -> Iterator[_SchemaPart]:
    given = {"schema": schema}
    prefix = f"{connection.execute(_NAME, given).scalar_one_or_none()}."
    for _, kind, name, of, definition in connection.execute(_POSTGRESQL, given):
        yield _SchemaPart(kind, name, of, _as_restored(str(definition).replace(prefix, "")))


def _as_restored(definition: str) -> str:
    """Write `IN (…)` as PostgreSQL prints it once it was dumped and restored."""

    def rewritten(found: re.Match[str]) -> str:
        return f"ARRAY[{', '.join(f'({each})::text' for each in found[1].split(', '))}]"

    return _REWRITTEN.sub(rewritten, definition)


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
