"""Whatever of the schema is gone, changed or added is named, and restored where it can be."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from support.databases import SECRET_KEY, as_owner
from support.ledgers import answered, charge_one, open_ledger, open_project
from support.wording import holds, refuses, says
from terrine_server.errors import LedgerCorrupted, SchemaMismatch
from terrine_server.ledger import Ledger, check_definitions, check_schema, connect, upgrade
from terrine_server.ledger.definitions import schema_differences
from terrine_server.ledger.schema import metadata
from terrine_server.owner.operations import verify_log, verify_project

SQLITE = pytest.mark.parametrize("each_database_url", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)


@pytest.fixture
def engine(each_database_url: str) -> Iterator[Engine]:
    ledger = open_ledger(each_database_url)
    charge_one(ledger, open_project(ledger, 5).id, [answered(1)])
    engine = connect(as_owner(each_database_url))
    yield engine
    engine.dispose()


def differing(engine: Engine) -> list[str]:
    return [str(each) for each in schema_differences(engine)]


def break_and_restore(engine: Engine, what: str, parts: set[str], *statements: str) -> None:
    run(engine, *statements)
    assert set(differing(engine)) == {f"{what}: {part}" for part in parts}
    assert set(upgrade(engine, SECRET_KEY)) == parts
    assert differing(engine) == []


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


def drop_trigger(engine: Engine, name: str, table: str) -> str:
    return f"DROP TRIGGER {name}" + (f" ON {table}" if engine.dialect.name == "postgresql" else "")


def test_a_migrated_schema_is_as_it_should_be_and_nothing_is_restored(engine: Engine) -> None:
    assert differing(engine) == []
    assert upgrade(engine, SECRET_KEY) == []
    check_definitions(engine)


def test_every_trigger_that_is_gone_is_named_and_restored(engine: Engine) -> None:
    known = triggers(engine)
    assert len(known) == (28 if engine.dialect.name == "sqlite" else 31)
    parts = [f"trigger {name} of {table}" for name, table in known]
    drop = [drop_trigger(engine, *each) for each in known]
    break_and_restore(engine, "missing", {parts[0]}, drop[0])
    more = "DROP INDEX uq_charges_answered_input"
    break_and_restore(engine, "missing", {*parts, ANSWERED_INPUT[engine.name]}, *drop, more)
    assert triggers(engine) == known
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE charges SET label = 4")
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE projects SET terms = '{}'")


ANSWERED_INPUT = {
    "sqlite": "index uq_charges_answered_input of charges",
    "postgresql": "unique index uq_charges_answered_input of charges",
}


def weaker_trigger(engine: Engine, name: str, table: str) -> list[str]:
    """Statements that leave a trigger in place which never refuses anything."""
    if engine.dialect.name == "sqlite":
        return [
            f"DROP TRIGGER {name}",
            f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} WHEN 0 "
            "BEGIN SELECT RAISE(ABORT, 'never'); END",
        ]
    return [
        f"DROP TRIGGER {name} ON {table}",
        f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW WHEN (false) "
        "EXECUTE FUNCTION terrine_refuse('never')",
    ]


def test_every_trigger_that_no_longer_refuses_is_named_and_restored(engine: Engine) -> None:
    known = triggers(engine)
    parts = {f"trigger {name} of {table}" for name, table in known}
    weaker = [each for name, table in known for each in weaker_trigger(engine, name, table)]
    break_and_restore(engine, "changed", parts, *weaker)
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE charges SET label = 4")


SILENT = {
    "sqlite": [
        "CREATE TRIGGER quiet BEFORE UPDATE ON {table} BEGIN SELECT RAISE(IGNORE); END",
    ],
    "postgresql": [
        "CREATE FUNCTION quiet() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER quiet BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION quiet()",
    ],
}


def test_a_trigger_that_was_added_to_any_table_is_named_and_never_removed(engine: Engine) -> None:
    for table in metadata.tables:
        run(engine, *(each.format(table=table) for each in SILENT[engine.name]))
        added = [f"added: trigger quiet of {table}"]
        if engine.dialect.name == "postgresql":
            added.insert(0, "added: function quiet()")
        assert differing(engine) == added
        assert upgrade(engine, SECRET_KEY) == []
        assert differing(engine) == added
        run(engine, drop_trigger(engine, "quiet", table))
        if engine.dialect.name == "postgresql":
            run(engine, "DROP FUNCTION quiet()")
    assert differing(engine) == []


def test_no_book_is_intact_and_no_server_ready_with_a_schema_of_somebody_else(
    engine: Engine,
) -> None:
    ledger = Ledger(engine, SECRET_KEY)
    assert verify_project(ledger, "study").ok
    assert verify_log(ledger).ok
    run(engine, *(each.format(table="projects") for each in SILENT[engine.name]))
    for found in (verify_project(ledger, "study"), verify_log(ledger)):
        assert found.problems[-1] == "schema: added: trigger quiet of projects"
    check_schema(engine)
    with refuses(SchemaMismatch, "doctor") as refused:
        check_definitions(engine)
    assert "quiet" not in refused.value.detail, "whoever added it chose its name"
    holds(refused.value.cause, "quiet", "projects")


ADDED = {
    "CREATE TABLE notes (id INTEGER)": ["table notes"],
    "CREATE VIEW latest AS SELECT max(seq) AS seq FROM charges": ["view latest"],
    "CREATE INDEX more ON charges (cost)": ["index more of charges"],
    "CREATE INDEX most ON charges (abs(cost)) WHERE cost > 0": ["index most of charges"],
}
ADDED_TO_POSTGRESQL = {
    "CREATE RULE deaf AS ON UPDATE TO projects DO INSTEAD NOTHING": ["rule deaf of projects"],
    "CREATE POLICY mine ON projects USING (true)": ["row-level policy mine of projects"],
    "CREATE FUNCTION unnest(text[]) RETURNS SETOF text LANGUAGE sql AS 'SELECT NULL'": [
        "function unnest(text[])"
    ],
    "CREATE SEQUENCE counter": ["sequence counter"],
    "CREATE MATERIALIZED VIEW kept AS SELECT 1 AS one": ["materialized view kept"],
    "CREATE TYPE mood AS ENUM ('bad')": ["type mood"],
    "CREATE DOMAIN small AS integer CHECK (VALUE < 9)": ["type small"],
    "CREATE SCHEMA other CREATE TABLE more () INHERITS (public.charges)": [
        "inheritance other.more of charges"
    ],
    "ALTER TABLE charges ADD CONSTRAINT cheap CHECK (cost < 1000000000000000000)": [
        "check cheap of charges"
    ],
    "ALTER TABLE projects ADD CONSTRAINT once UNIQUE (budget, id)": [
        "unique constraint once of projects"
    ],
    "ALTER TABLE tokens ADD CONSTRAINT own FOREIGN KEY (id) REFERENCES tokens (id)": [
        "foreign key own of tokens"
    ],
    "ALTER TABLE projects ADD COLUMN more TEXT NOT NULL DEFAULT ''": ["column more of projects"],
}


def test_whatever_else_was_added_is_named(engine: Engine) -> None:
    postgresql = engine.dialect.name == "postgresql"
    named = set[str]()
    for statement, parts in (ADDED | ADDED_TO_POSTGRESQL if postgresql else ADDED).items():
        run(engine, statement)
        named |= {f"added: {part}" for part in parts}
        assert set(differing(engine)) == named, statement


CHANGED_IN_POSTGRESQL = {
    "ALTER TABLE projects ENABLE ROW LEVEL SECURITY": "table projects",
    "ALTER TABLE log_head SET UNLOGGED": "table log_head",
    "ALTER TABLE projects ALTER spent SET DEFAULT 0": "column spent of projects",
    "ALTER TABLE tokens ALTER label TYPE varchar(90)": "column label of tokens",
    'ALTER TABLE tokens ALTER label TYPE varchar(100) COLLATE "C"': "column label of tokens",
    "ALTER SEQUENCE projects_id_seq INCREMENT 2": "sequence projects_id_seq",
    "ALTER FUNCTION terrine_refuse() SECURITY DEFINER": "function terrine_refuse()",
}


@POSTGRES
def test_whatever_was_changed_in_postgresql_is_named(engine: Engine) -> None:
    named = set[str]()
    for statement, part in CHANGED_IN_POSTGRESQL.items():
        run(engine, statement)
        named.add(f"changed: {part}")
        assert set(differing(engine)) == named, statement


@POSTGRES
def test_a_table_in_the_schema_of_the_account_hides_none_of_ours(engine: Engine) -> None:
    run(engine, "CREATE SCHEMA postgres CREATE TABLE tokens (id TEXT)")
    try:
        with engine.connect() as connection:
            meant = connection.execute(
                text("SELECT 'tokens'::regclass = 'public.tokens'::regclass")
            )
            assert meant.scalar_one()
        assert differing(engine) == []
    finally:
        run(engine, "DROP SCHEMA postgres CASCADE")


@POSTGRES
def test_triggers_that_are_switched_off_are_named_and_switched_on(engine: Engine) -> None:
    for table in ("charges", "projects", "ensembles"):
        for who in ("USER", "ALL"):  # all: foreign keys, too
            run(engine, f"ALTER TABLE {table} DISABLE TRIGGER {who}")
            parts = {str(each.part) for each in schema_differences(engine)}
            assert {part for part in parts if part.startswith("trigger")} == {
                f"trigger {name} of {on}" for name, on in triggers(engine) if on == table
            }
            assert any(part.startswith("foreign") for part in parts) == (who == "ALL")
            assert set(upgrade(engine, SECRET_KEY)) == parts
            assert differing(engine) == []
    run(engine, "ALTER TABLE charges ENABLE REPLICA TRIGGER charges_no_delete")
    assert differing(engine) == ["changed: trigger charges_no_delete of charges"]
    run(engine, "ALTER TABLE charges ENABLE ALWAYS TRIGGER charges_no_delete")
    assert differing(engine) == [], "which guards more"


@POSTGRES
def test_the_function_that_triggers_call_is_looked_at(engine: Engine) -> None:
    weaker = (
        "CREATE OR REPLACE FUNCTION terrine_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RETURN NEW; END $$"
    )
    edit = "UPDATE charges SET label = 4"
    break_and_restore(engine, "changed", {"function terrine_refuse()"}, weaker, edit)
    with pytest.raises(DBAPIError):
        run(engine, "UPDATE charges SET label = 5")


def test_every_index_that_is_gone_or_another_is_named_and_restored(engine: Engine) -> None:
    indexes = [(table, index) for table in metadata.sorted_tables for index in table.indexes]
    assert len(indexes) == 5
    drop = [f"DROP INDEX {index.name}" for _, index in indexes]
    names, others = set[str](), list[str]()
    for table, index in indexes:
        unique = index.unique and engine.dialect.name == "postgresql"
        names.add(f"{'unique index' if unique else 'index'} {index.name} of {table.name}")
        others.append(
            f"CREATE {'UNIQUE ' if unique else ''}INDEX {index.name} "
            f"ON {table.name} ({', '.join(c.name for c in list(table.c)[::-1])})"
        )
    break_and_restore(engine, "missing", names, *drop)
    break_and_restore(engine, "changed", names, *drop, *others)
    run(
        engine,
        "DROP INDEX uq_charges_answered_input",
        "CREATE UNIQUE INDEX uq_charges_answered_input ON charges (project_id, input_digest) "
        "WHERE outcome = 'abstained'",
    )
    assert differing(engine) == [f"changed: {ANSWERED_INPUT[engine.name]}"], "of other entries"


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


@POSTGRES
def test_every_constraint_of_postgresql_is_named_and_restored(engine: Engine) -> None:
    assert len(CONSTRAINTS) > 30
    drop = [f"ALTER TABLE {t} DROP CONSTRAINT IF EXISTS {name} CASCADE" for t, name in CONSTRAINTS]
    nullable = [f"ALTER TABLE {table} ALTER {column} DROP NOT NULL" for table, column in NOT_NULL]
    parts = {f"{KINDS[name[:2]]} {name} of {table}" for table, name in CONSTRAINTS}
    parts |= {f"NOT NULL {column} of {table}" for table, column in NOT_NULL}
    break_and_restore(engine, "missing", parts, *drop, *nullable)


@POSTGRES
def test_every_check_of_postgresql_that_lets_anything_pass_is_named_and_restored(
    engine: Engine,
) -> None:
    checks = [(table, name) for table, name in CONSTRAINTS if name.startswith("ck")]
    for weaker in ("CHECK (1 = 1)", "CHECK (1 = 1) NOT VALID"):
        parts = {f"check {name} of {table}" for table, name in checks}
        edits = [
            f"ALTER TABLE {table} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {weaker}"
            for table, name in checks
        ]
        break_and_restore(engine, "changed", parts, *edits)


@POSTGRES
def test_a_schema_that_was_dumped_and_restored_is_as_it_should_be(engine: Engine) -> None:
    """PostgreSQL does not print every CHECK as it does before it was made of what is printed."""
    query = text(
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE contype = 'c' AND connamespace = 'public'::regnamespace"
    )
    with engine.connect() as connection:
        printed = [tuple(row) for row in connection.execute(query)]
    for table, name, made in printed:
        run(engine, f"ALTER TABLE {table} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} {made}")
    with engine.connect() as connection:
        again = [tuple(row) for row in connection.execute(query)]
    assert set(again) != set(printed)
    assert differing(engine) == []


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


def weakened(sql: str, name: str) -> str:
    """A CREATE TABLE in which one CHECK lets anything pass."""
    start = re.search(rf"CONSTRAINT {name} CHECK \(", sql)
    assert start is not None, name
    depth, end = 1, start.end()
    while depth:
        depth += {"(": 1, ")": -1}.get(sql[end], 0)
        end += 1
    return f"{sql[: start.end()]}1=1{sql[end - 1 :]}"


def rewrite(connection: Connection, table: str, sql: str) -> None:
    """Change what SQLite thinks that a table is: its rows are not looked at."""
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql(
        "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?", (sql, table)
    )
    connection.exec_driver_sql("PRAGMA writable_schema = RESET")


@SQLITE
def test_every_constraint_of_sqlite_that_is_gone_or_weaker_is_found(engine: Engine) -> None:
    for table, name in CONSTRAINTS:
        kind = KINDS[name[:2]]
        if kind in ("primary key", "unique constraint"):
            continue  # an index of the table's own: below
        made = definition(engine, table)
        less = [without(made, name)] + ([weakened(made, name)] if kind == "check" else [])
        for sql in less:
            with engine.begin() as connection:
                rewrite(connection, table, sql)
            assert differing(engine) == [f"changed: table {table}"]
        if kind == "foreign key":
            assert upgrade(engine, SECRET_KEY) == [], "only a backup has it"
        with engine.begin() as connection:
            rewrite(connection, table, made)
    assert differing(engine) == []


@SQLITE
def test_an_index_of_sqlite_that_is_stored_where_another_is_is_found(engine: Engine) -> None:
    """It is defined as it should be, and finds no entry."""
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA writable_schema = ON")
        connection.exec_driver_sql(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master "
            "WHERE name = 'ix_tokens_project_id') WHERE name = 'uq_charges_answered_input'"
        )
    assert set(differing(engine)) == {
        "changed: index ix_tokens_project_id of tokens",
        "changed: index uq_charges_answered_input of charges",
    }


@SQLITE
@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("charges", "uq_charges_project_id_query_digest"),
        ("projects", "uq_projects_name"),
        ("ensembles", "uq_ensembles_manifest_sha256"),
    ],
)
def test_a_table_of_sqlite_made_anew_without_its_own_index_is_found(
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
    holds(differing(engine), "changed", table)


def definition(engine: Engine, table: str) -> str:
    query = text("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :table")
    with engine.connect() as connection:
        return str(connection.execute(query, {"table": table}).scalar_one())


def test_white_space_and_statistics_are_no_difference(engine: Engine) -> None:
    run(engine, "ANALYZE")
    if engine.dialect.name == "sqlite":
        made = definition(engine, "tokens")
        with engine.begin() as connection:
            rewrite(connection, "tokens", made.replace("\n\t", "  "))
        assert definition(engine, "tokens") != made
    assert differing(engine) == []


def test_tables_and_columns_that_are_gone_are_named(engine: Engine) -> None:
    run(engine, "ALTER TABLE tokens RENAME COLUMN label TO marked")
    if engine.dialect.name == "sqlite":
        assert differing(engine) == ["changed: table tokens"]
    else:
        assert {"missing: column label of tokens", "added: column marked of tokens"} <= set(
            differing(engine)
        )
    cascade = "CASCADE" if engine.dialect.name == "postgresql" else ""
    run(engine, f"DROP TABLE secret_spends {cascade}")
    of_it = [each for each in differing(engine) if says(each, "secret_spends")]
    assert of_it == ["missing: table secret_spends"], "and nothing that it had"


def test_what_contradicts_a_guard_keeps_it_from_being_restored(engine: Engine) -> None:
    """Two answers to one input, once nothing forbade it: there is nothing to restore quietly."""
    run(engine, "DROP INDEX uq_charges_answered_input")
    for name, table in triggers(engine):
        run(engine, drop_trigger(engine, name, table))
    columns = ", ".join(c.name for c in metadata.tables["charges"].c)
    values = columns.replace("seq", "2").replace("query_digest", "hash")
    run(engine, f"INSERT INTO charges ({columns}) SELECT {values} FROM charges")
    before = differing(engine)
    with refuses(LedgerCorrupted, "verify"):
        upgrade(engine, SECRET_KEY)
    assert differing(engine) == before, "all or nothing"
