"""The parts of the schema that protect the ledger, and which of them a database lacks.

Tables, columns, constraints and indexes are those of `tables`. Triggers are those that the
migrations create: each migration lists its own in `sqlite_triggers` and `postgresql_triggers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from alembic.script import ScriptDirectory
from sqlalchemy import (
    CheckConstraint,
    Connection,
    Constraint,
    ForeignKeyConstraint,
    Index,
    Inspector,
    Table,
    UniqueConstraint,
    inspect,
    text,
)
from sqlalchemy.schema import CreateIndex

from terrine_server.ledger.store.tables import metadata

_MADE = re.compile(r"\s*CREATE (TRIGGER|FUNCTION) (\w+)")
_TRIGGER = re.compile(r"BEFORE \w+ ON (\w+)")
_BODY = re.compile(r"\$\$(.*)\$\$", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """A part that is missing or altered. `restore`: the SQL that restores it, if any."""

    name: str
    restore: tuple[str, ...] = ()


def missing(connection: Connection, scripts: ScriptDirectory) -> Iterator[Part]:
    """Yield the parts that a migrated database lacks. Needs only the right to connect."""
    inspector = inspect(connection)
    tables = set(inspector.get_table_names())
    for table in metadata.sorted_tables:
        if table.name in tables:
            yield from _columns(inspector, table)
            yield from _constraints(inspector, table)
            yield from _indexes(inspector, table)
        else:
            yield Part(f"table {table.name}")
    triggers = _triggers(connection)
    for statement in _statements(connection.dialect.name, scripts):
        yield from _trigger(connection.dialect.name, statement, triggers)
    yield from _switched_off(connection)


def _columns(inspector: Inspector, table: Table) -> Iterator[Part]:
    found = {column["name"]: column for column in inspector.get_columns(table.name)}
    for column in table.c:
        if column.name not in found:
            yield Part(f"column {column.name} of {table.name}")
        elif found[column.name]["nullable"] and not column.nullable:
            alter = f"ALTER TABLE {table.name} ALTER {column.name} SET NOT NULL"
            yield Part(
                f"NOT NULL of {column.name} of {table.name}", _on_postgresql(inspector, alter)
            )


def _constraints(inspector: Inspector, table: Table) -> Iterator[Part]:
    primary = inspector.get_pk_constraint(table.name)["constrained_columns"]
    if primary != [column.name for column in table.primary_key]:
        yield Part(f"primary key of {table.name}", _add_constraint(inspector, table.primary_key))
    checks = {check["name"] for check in inspector.get_check_constraints(table.name)}
    unique = {u["name"]: u["column_names"] for u in inspector.get_unique_constraints(table.name)}
    foreign = {f["name"]: f["referred_table"] for f in inspector.get_foreign_keys(table.name)}
    for constraint in sorted(table.constraints, key=lambda made: str(made.name)):
        name = str(constraint.name)
        match constraint:
            case CheckConstraint():
                kind, present = "check", name in checks
            case UniqueConstraint():
                columns = [column.name for column in constraint.columns]
                kind, present = "unique constraint", unique.get(name) == columns
            case ForeignKeyConstraint():
                to = constraint.referred_table.name
                kind, present = "foreign key", foreign.get(name) == to
            case _:
                continue
        if not present:
            yield Part(f"{kind} {name} of {table.name}", _add_constraint(inspector, constraint))


def _indexes(inspector: Inspector, table: Table) -> Iterator[Part]:
    dialect = inspector.dialect
    found = {index["name"]: index for index in inspector.get_indexes(table.name)}
    for index in sorted(table.indexes, key=lambda made: str(made.name)):
        name, made = str(index.name), found.get(index.name)
        if made is not None and _alike(dialect.name, index, made):
            continue
        kind = "unique index" if index.unique else "index"
        create = str(CreateIndex(index).compile(dialect=dialect))
        drop = () if made is None else (f"DROP INDEX {name}",)
        yield Part(f"{kind} {name} of {table.name}", (*drop, create))


def _alike(dialect: str, index: Index, made: Any) -> bool:
    where = index.dialect_options[dialect].get("where")
    found = made.get("dialect_options", {}).get(f"{dialect}_where")
    return (
        bool(made["unique"]) == bool(index.unique)
        and made["column_names"] == [column.name for column in index.columns]
        and _folded(where) == _folded(found)
    )


def _add_constraint(inspector: Inspector, constraint: Constraint) -> tuple[str, ...]:
    """Return the SQL that adds a constraint; none on SQLite, which has no such statement."""
    dialect = inspector.dialect
    compiler: Any = dialect.ddl_compiler  # compiles part of a statement
    made = compiler(dialect, None).process(constraint)
    return _on_postgresql(inspector, f"ALTER TABLE {constraint.table.name} ADD {made}")


def _on_postgresql(inspector: Inspector, statement: str) -> tuple[str, ...]:
    return (statement,) if inspector.dialect.name == "postgresql" else ()


def _statements(dialect: str, scripts: ScriptDirectory) -> Iterator[str]:
    """Yield the statements that the migrations list, oldest first."""
    for script in reversed(list(scripts.walk_revisions())):
        yield from getattr(script.module, f"{dialect}_triggers", list)()


def _trigger(dialect: str, statement: str, found: dict[str, str]) -> Iterator[Part]:
    """Yield the trigger or function that a statement creates, if it is missing or altered."""
    made = _MADE.match(statement)
    if made is None:
        return
    kind, name = made[1].lower(), made[2]
    if kind == "function":
        body = _BODY.search(statement)
        if body is None or _folded(found.get(name)) != _folded(body[1]):
            replace = statement.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
            yield Part(f"function {name}", (replace,))
        return
    on = _TRIGGER.search(statement)
    table = on[1] if on is not None else ""
    if _folded(found.get(name)) == _folded(statement):
        return
    of = f" ON {table}" if dialect == "postgresql" else ""
    drop = (f"DROP TRIGGER {name}{of}",) if name in found else ()
    yield Part(f"trigger {name} on {table}", (*drop, statement))


def _triggers(connection: Connection) -> dict[str, str]:
    """Return the definition of each trigger, and the body of each trigger function, by name."""
    if connection.dialect.name == "sqlite":
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    else:
        query = (
            "SELECT t.tgname, pg_get_triggerdef(t.oid, true) FROM pg_trigger t "
            "JOIN pg_class c ON c.oid = t.tgrelid "
            "WHERE NOT t.tgisinternal AND pg_table_is_visible(c.oid) "
            "UNION ALL SELECT proname, prosrc FROM pg_proc WHERE pg_function_is_visible(oid) "
            "AND prorettype = 'trigger'::regtype"
        )
    return {str(name): str(made) for name, made in connection.execute(text(query))}


def _switched_off(connection: Connection) -> Iterator[Part]:
    """PostgreSQL: yield the tables with a disabled trigger. Foreign keys are triggers, too."""
    if connection.dialect.name == "sqlite":
        return
    query = text(
        "SELECT DISTINCT c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "WHERE t.tgenabled NOT IN ('O', 'A') AND pg_table_is_visible(c.oid) ORDER BY c.relname"
    )
    for table in connection.execute(query).scalars():
        if table in metadata.tables:
            yield Part(
                f"triggers of {table}, which are switched off",
                (f"ALTER TABLE {table} ENABLE TRIGGER ALL",),
            )


def _folded(sql: str | None) -> str:
    """Remove what PostgreSQL changes in a condition: letter case, spaces, brackets and casts."""
    return re.sub(r"::(text|character varying|bytea)|[\s()]", "", str(sql).lower())
