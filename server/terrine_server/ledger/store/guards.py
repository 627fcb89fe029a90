"""The tables, constraints, indexes and triggers that the ledger relies on: are they there?

A migrated database has all of it. Whoever administers the database can remove any of it by hand,
and nothing else would notice: `terrine doctor` looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlalchemy import Connection, Engine, StaticPool, create_engine, text

from terrine_server.ledger.store.database import reading, sqlite_path
from terrine_server.ledger.store.schema import migrate
from terrine_server.ledger.store.tables import metadata

POSTGRESQL_TRIGGERS = {
    "charges": ("charges_no_update", "charges_no_delete", "charges_no_truncate"),
    "ensembles": ("ensembles_fixed", "ensembles_no_delete", "ensembles_no_truncate"),
    "projects": (
        *("projects_fixed", "projects_one_way"),
        *("projects_no_delete", "projects_no_truncate"),
    ),
}
"""Triggers that the migrations create, by table. Each calls `terrine_refuse`."""


def missing_guards(engine: Engine) -> list[str]:
    """Return what is missing, altered or switched off, such as "the trigger charges_no_update".

    Needs no rights beyond those of the service. Raises DatabaseUnavailable.
    """
    with reading(engine) as connection:
        if sqlite_path(engine) is not None:
            return list(_altered(_sqlite_objects(connection)))
        return sorted(_postgresql_wanted(connection) - _postgresql_found(connection))


def _altered(found: dict[str, str]) -> Iterator[str]:
    """Compare with what the migrations create in an empty database, definition by definition."""
    fresh = create_engine("sqlite://", poolclass=StaticPool)
    with fresh.begin() as connection:
        migrate(connection)
        wanted = _sqlite_objects(connection)
    fresh.dispose()
    for described, definition in wanted.items():
        if found.get(described) != definition:
            yield described


def _sqlite_objects(connection: Connection) -> dict[str, str]:
    rows = connection.execute(
        text("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
    )
    return {f"the {kind} {name}": " ".join(sql.split()) for kind, name, sql in rows}


def _postgresql_wanted(connection: Connection) -> set[str]:
    name_of = connection.dialect.identifier_preparer.format_constraint
    wanted = {"the function terrine_refuse"}
    for table in metadata.sorted_tables:
        wanted |= {f"the column {table.name}.{column.name}" for column in table.columns}
        wanted |= {f"the constraint {name_of(constraint)}" for constraint in table.constraints}
        wanted |= {f"the index {index.name}" for index in table.indexes}
        triggers = POSTGRESQL_TRIGGERS.get(table.name, ())
        wanted |= {f"the trigger {trigger}" for trigger in triggers}
    return wanted


def _postgresql_found(connection: Connection) -> set[str]:
    """What is there and works: a disabled trigger or an invalid index is not."""

    def names(kind: str, query: str) -> Iterable[str]:
        return (f"the {kind} {name}" for name in connection.execute(text(query)).scalars())

    return {
        *names("column", _COLUMNS),
        *names("constraint", _CONSTRAINTS),
        *names("index", _INDEXES),
        *names("trigger", _TRIGGERS),
        *names("function", _FUNCTIONS),
    }


_OURS = "relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
_COLUMNS = f"""
    SELECT relname || '.' || attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE {_OURS} AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
"""  # noqa: S608 - made of constants, as those below
_CONSTRAINTS = f"""
    SELECT conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
    WHERE {_OURS} AND convalidated
"""  # noqa: S608
_INDEXES = f"""
    SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE {_OURS} AND indisvalid AND (indisunique OR relname NOT LIKE 'uq%')
"""  # noqa: S608
_TRIGGERS = f"""
    SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    JOIN pg_proc ON pg_proc.oid = tgfoid
    WHERE {_OURS} AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND proname = 'terrine_refuse'
"""  # noqa: S608
_FUNCTIONS = "SELECT proname FROM pg_proc WHERE prosrc LIKE '%RAISE EXCEPTION%'"
