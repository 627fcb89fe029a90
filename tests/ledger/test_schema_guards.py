"""What guards the rows in the database cannot be removed or switched off unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from books import open_ledger
from sqlalchemy import Connection, Engine, text

from terrine_server.ledger import connect, upgrade
from terrine_server.ledger.store.guards import POSTGRESQL_TRIGGERS, missing_guards
from terrine_server.ledger.store.tables import metadata

TRIGGERS = [(table, name) for table, names in POSTGRESQL_TRIGGERS.items() for name in names]


@pytest.fixture
def engine(database_url: str) -> Engine:
    open_ledger(database_url)
    return connect(database_url)


def lacking(engine: Engine, statement: str) -> list[str]:
    """What is missing after this statement."""
    with engine.connect() as connection:
        connection.execute(text(statement))
        connection.commit()
    return missing_guards(engine)


def names(connection: Connection, query: str) -> list[str]:
    return list(connection.execute(text(query)).scalars())


def test_a_migrated_database_lacks_nothing(engine: Engine) -> None:
    assert missing_guards(engine) == []


def test_each_trigger_index_and_table_of_sqlite_is_missed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    engine = connect(url)
    upgrade(engine)
    with engine.connect() as connection:
        kinds = "SELECT type || ' ' || name FROM sqlite_master WHERE sql IS NOT NULL"
        parts = [part for part in names(connection, kinds) if not part.endswith("alembic_version")]
    assert len(parts) > 15
    for part in parts:
        kind, name = part.split()
        if kind == "table":
            continue  # which takes its triggers and indexes with it
        with engine.begin() as connection:
            definition = names(connection, f"SELECT sql FROM sqlite_master WHERE name = '{name}'")
            connection.execute(text(f"DROP {kind.upper()} {name}"))
        assert missing_guards(engine) == [f"the {kind} {name}"]
        with engine.begin() as connection:
            connection.exec_driver_sql(definition[0])
        assert missing_guards(engine) == []
    assert "the table secret_spends" in lacking(engine, "DROP TABLE secret_spends")


def test_a_trigger_of_sqlite_that_does_nothing_is_missed(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'terrine.sqlite'}")
    upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP TRIGGER charges_no_update"))
        connection.execute(
            text("CREATE TRIGGER charges_no_update BEFORE UPDATE ON charges BEGIN SELECT 1; END")
        )
    assert missing_guards(engine) == ["the trigger charges_no_update"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_each_guard_of_postgresql_is_missed(engine: Engine) -> None:
    with engine.connect() as connection:
        found = names(connection, "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")
    assert sorted(found) == sorted(name for _, name in TRIGGERS)
    for table, name in TRIGGERS:
        assert lacking(engine, f"ALTER TABLE {table} DISABLE TRIGGER {name}") == [
            f"the trigger {name}"
        ]
        assert lacking(engine, f"ALTER TABLE {table} ENABLE TRIGGER {name}") == []
    assert lacking(engine, "DROP TRIGGER charges_no_update ON charges") == [
        "the trigger charges_no_update"
    ]
    format_name = engine.dialect.identifier_preparer.format_constraint
    missed = {"the trigger charges_no_update"}
    for table in reversed(metadata.sorted_tables):
        for index in table.indexes:
            missed.add(f"the index {index.name}")
            assert set(lacking(engine, f"DROP INDEX {index.name}")) == missed
        for constraint in sorted(
            (str(format_name(c)) for c in table.constraints), key=lambda n: n.startswith("pk")
        ):
            missed.add(f"the constraint {constraint}")
            with engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE {table.name} DROP CONSTRAINT {constraint}"))
        assert missed <= set(missing_guards(engine))
    idle = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
    replaced = f"CREATE OR REPLACE FUNCTION terrine_refuse() {idle}"
    assert "the function terrine_refuse" in lacking(engine, replaced)
