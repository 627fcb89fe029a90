"""What of the schema somebody took away is named, and restored where a statement can restore it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from books import answered, open_ledger, open_project
from migrated import SECRET_KEY
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from terrine_server.errors import BrokenBooks
from terrine_server.ledger import connect, upgrade
from terrine_server.ledger.store.schema import missing_parts
from terrine_server.ledger.store.tables import metadata

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    ledger = open_ledger(database_url)
    ledger.charge(open_project(ledger, 5).id, [answered(1)])
    engine = connect(database_url)
    yield engine
    engine.dispose()


def lacking(engine: Engine) -> list[str]:
    return [part.name for part in missing_parts(engine)]


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def triggers(engine: Engine) -> list[tuple[str, str]]:
    """Name and table of each, as the database knows them."""
    if engine.dialect.name == "sqlite":
        query = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
    else:
        query = (
            "SELECT tgname, relname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
            "WHERE NOT tgisinternal ORDER BY tgname"
        )
    with engine.connect() as connection:
        return [(name, table) for name, table in connection.execute(text(query))]


def drop_trigger(engine: Engine, name: str, table: str) -> None:
    on = f" ON {table}" if engine.dialect.name == "postgresql" else ""
    run(engine, f"DROP TRIGGER {name}{on}")


def test_a_migrated_schema_lacks_nothing_and_nothing_is_restored(engine: Engine) -> None:
    assert lacking(engine) == []
    assert upgrade(engine, SECRET_KEY) == []


def test_every_trigger_that_is_gone_is_named_and_restored(engine: Engine) -> None:
    known = triggers(engine)
    assert len(known) == (15 if engine.dialect.name == "sqlite" else 18)
    for name, table in known:
        drop_trigger(engine, name, table)
        assert lacking(engine) == [f"trigger {name} on {table}"]
        assert upgrade(engine, SECRET_KEY) == [f"trigger {name} on {table}"]
        assert lacking(engine) == []
    assert triggers(engine) == known
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE charges SET label = 4")
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE projects SET terms = '{}'")


def test_all_that_is_gone_is_named_at_once(engine: Engine) -> None:
    known = triggers(engine)
    for name, table in known:
        drop_trigger(engine, name, table)
    run(engine, "DROP INDEX uq_charges_answered_input")
    expected = {f"trigger {name} on {table}" for name, table in known}
    expected |= {"unique index uq_charges_answered_input of charges"}
    assert set(lacking(engine)) == expected
    assert set(upgrade(engine, SECRET_KEY)) == expected
    assert lacking(engine) == []


def test_a_trigger_that_no_longer_refuses_is_not_as_it_was_made(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        weaker = (
            "DROP TRIGGER charges_no_update",
            "CREATE TRIGGER charges_no_update BEFORE UPDATE ON charges WHEN 0 "
            "BEGIN SELECT RAISE(ABORT, 'never'); END",
        )
    else:
        weaker = (
            "DROP TRIGGER charges_no_update ON charges",
            "CREATE TRIGGER charges_no_update BEFORE UPDATE ON charges FOR EACH ROW WHEN (false) "
            "EXECUTE FUNCTION terrine_refuse('never')",
        )
    run(engine, *weaker)
    assert lacking(engine) == ["trigger charges_no_update on charges"]
    assert upgrade(engine, SECRET_KEY) == ["trigger charges_no_update on charges"]
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE charges SET label = 4")
    assert lacking(engine) == []


@POSTGRES
def test_triggers_that_are_switched_off_are_named_and_switched_on(engine: Engine) -> None:
    for table in ("charges", "projects", "ensembles"):
        for who in ("USER", "ALL"):  # all: foreign keys, too
            run(engine, f"ALTER TABLE {table} DISABLE TRIGGER {who}")
            assert lacking(engine) == [f"triggers of {table}, which are switched off"]
            assert upgrade(engine, SECRET_KEY) == [f"triggers of {table}, which are switched off"]
            assert lacking(engine) == []
    run(engine, "ALTER TABLE charges ENABLE REPLICA TRIGGER charges_no_delete")
    assert lacking(engine) == ["triggers of charges, which are switched off"]


@POSTGRES
def test_the_function_that_triggers_call_is_looked_at(engine: Engine) -> None:
    run(
        engine,
        "CREATE OR REPLACE FUNCTION terrine_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NEW; END $$",
        "UPDATE charges SET label = 4",
    )
    assert lacking(engine) == ["function terrine_refuse"]
    assert upgrade(engine, SECRET_KEY) == ["function terrine_refuse"]
    assert lacking(engine) == []
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE charges SET label = 5")


def test_every_index_that_is_gone_or_another_is_named_and_restored(engine: Engine) -> None:
    indexes = [(table, index) for table in metadata.sorted_tables for index in table.indexes]
    assert len(indexes) == 7
    for table, index in indexes:
        kind = "unique index" if index.unique else "index"
        name = f"{kind} {index.name} of {table.name}"
        run(engine, f"DROP INDEX {index.name}")
        assert lacking(engine) == [name]
        assert upgrade(engine, SECRET_KEY) == [name]
        run(
            engine,
            f"DROP INDEX {index.name}",
            f"CREATE INDEX {index.name} ON {table.name} ({list(table.c)[-1].name})",
        )
        assert lacking(engine) == [name]
        assert upgrade(engine, SECRET_KEY) == [name]
        assert lacking(engine) == []
    name = "unique index uq_charges_answered_input of charges"
    run(
        engine,
        "DROP INDEX uq_charges_answered_input",
        "CREATE UNIQUE INDEX uq_charges_answered_input ON charges (project_id, input_digest) "
        "WHERE outcome = 'abstained'",
    )
    assert lacking(engine) == [name], "of other entries"


CONSTRAINTS = [
    (table.name, str(constraint.name))
    for table in metadata.sorted_tables
    for constraint in sorted(table.constraints, key=lambda made: str(made.name))
]
NOT_NULL = [
    (table.name, column.name)
    for table in metadata.sorted_tables
    for column in table.c
    if not column.nullable and not column.primary_key
]
KINDS = {"ck": "check", "uq": "unique constraint", "fk": "foreign key", "pk": "primary key"}


def described(table: str, name: str) -> str:
    kind = KINDS[name[:2]]
    return f"{kind} of {table}" if kind == "primary key" else f"{kind} {name} of {table}"


@POSTGRES
def test_every_constraint_of_postgresql_is_named_and_restored(engine: Engine) -> None:
    assert len(CONSTRAINTS) > 30
    drop = [f"ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {name} CASCADE" for t, name in CONSTRAINTS]
    nullable = [f"ALTER TABLE {table} ALTER {column} DROP NOT NULL" for table, column in NOT_NULL]
    expected = {described(table, name) for table, name in CONSTRAINTS}
    expected |= {f"NOT NULL of {column} of {table}" for table, column in NOT_NULL}
    run(engine, *drop, *nullable)
    assert set(lacking(engine)) == expected
    assert set(upgrade(engine, SECRET_KEY)) == expected
    assert lacking(engine) == []
    run(engine, "ALTER TABLE charges DROP CONSTRAINT ck_charges_label")
    assert lacking(engine) == ["check ck_charges_label of charges"]


def without(sql: str, name: str) -> str:
    """A CREATE TABLE without one named constraint, which may be one of a column."""
    start = re.search(rf",?\s*CONSTRAINT {name} ", sql)
    assert start is not None, name
    depth = 0
    for position in range(start.end(), len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[position], 0)
        if depth < 0 or (depth == 0 and sql[position] == ","):
            return sql[: start.start()] + sql[position:]
    raise AssertionError(sql)


def rewrite(connection: Connection, table: str, sql: str) -> None:
    """Change what SQLite thinks that a table is: its rows are not looked at."""
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql(
        "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?", (sql, table)
    )
    connection.exec_driver_sql("PRAGMA writable_schema = RESET")


@SQLITE
def test_every_constraint_of_sqlite_is_named(engine: Engine) -> None:
    for table, name in CONSTRAINTS:
        if KINDS[name[:2]] in ("primary key", "unique constraint"):
            continue  # an index of the table's own: below
        made = definition(engine, table)
        with engine.begin() as connection:
            rewrite(connection, table, without(made, name))
        assert lacking(engine) == [described(table, name)]
        assert upgrade(engine, SECRET_KEY) == [], "only a backup has it"
        with engine.begin() as connection:
            rewrite(connection, table, made)
        assert lacking(engine) == []


@SQLITE
@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("charges", "uq_charges_project_id_query_digest"),
        ("projects", "uq_projects_name"),
        ("ensembles", "uq_ensembles_manifest_sha256"),
        ("idempotency", "pk_idempotency"),
    ],
)
def test_a_table_of_sqlite_made_anew_without_its_own_index_is_named(
    engine: Engine, table: str, name: str
) -> None:
    less = without(definition(engine, table), name).replace(table, "anew", 1)
    driver = engine.raw_connection()
    driver.executescript(
        f"PRAGMA foreign_keys = OFF; PRAGMA legacy_alter_table = ON; {less}; "
        f"INSERT INTO anew SELECT * FROM {table}; DROP TABLE {table}; "
        f"ALTER TABLE anew RENAME TO {table};"
    )
    driver.close()
    assert described(table, name) in lacking(engine)


def definition(engine: Engine, table: str) -> str:
    query = text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :table")
    with engine.connect() as connection:
        return str(connection.execute(query, {"table": table}).scalar_one())


def test_tables_and_columns_that_are_gone_are_named(engine: Engine) -> None:
    run(engine, "ALTER TABLE tokens RENAME COLUMN label TO marked")
    assert "column label of tokens" in lacking(engine)
    cascade = "CASCADE" if engine.dialect.name == "postgresql" else ""
    run(engine, f"DROP TABLE secret_spends {cascade}")
    assert "table secret_spends" in lacking(engine)
    assert upgrade(engine, SECRET_KEY) == []


def test_what_contradicts_a_guard_keeps_it_from_being_restored(engine: Engine) -> None:
    """Two answers to one input, once nothing forbade it: there is nothing to restore quietly."""
    run(engine, "DROP INDEX uq_charges_answered_input")
    for name, table in triggers(engine):
        drop_trigger(engine, name, table)
    columns = ", ".join(c.name for c in metadata.tables["charges"].c)
    values = columns.replace("seq", "2").replace("query_digest", "hash")
    run(engine, f"INSERT INTO charges ({columns}) SELECT {values} FROM charges")
    before = lacking(engine)
    with pytest.raises(BrokenBooks, match="terrine ledger verify"):
        upgrade(engine, SECRET_KEY)
    assert lacking(engine) == before, "all or nothing"
