"""The schema that migrations make is the one the code expects, and it defends itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, insert, inspect, text
from sqlalchemy.exc import DBAPIError

from support.databases import SECRET_KEY, as_owner
from support.forgeries import World
from support.ledgers import NOISY, answered, charge_one, digest, open_ledger, open_project
from support.processes import in_processes
from support.wording import refuses
from support.workers import migrate
from terrine_server.errors import DatabaseUnavailable, SchemaMismatch
from terrine_server.ledger import Ledger, check_schema, connect, upgrade
from terrine_server.ledger.schema import charges, metadata


@pytest.fixture
def engine(each_database_url: str) -> Iterator[Engine]:
    engine = connect(as_owner(each_database_url))
    yield engine
    engine.dispose()


def test_the_migrated_schema_is_the_one_in_the_code(engine: Engine) -> None:
    upgrade(engine, SECRET_KEY)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_migrated_checks_are_the_ones_in_the_code(engine: Engine) -> None:
    """Alembic does not compare CHECK constraints, so compare them with a schema made at once."""

    def checks() -> dict[str, Any]:
        reflected = inspect(engine)
        return {
            table: sorted((c["name"], c["sqltext"]) for c in reflected.get_check_constraints(table))
            for table in metadata.tables
        }

    upgrade(engine, SECRET_KEY)
    migrated = checks()
    with engine.begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    assert migrated == checks()
    assert all(migrated.values())


@pytest.mark.slow
def test_processes_that_migrate_at_once_all_succeed(each_database_url: str) -> None:
    processes = in_processes(migrate, *[(as_owner(each_database_url),)] * 2)
    assert [process.exitcode for process in processes] == [0] * 2


def test_an_unmigrated_database_names_the_command_to_run(engine: Engine) -> None:
    with refuses(SchemaMismatch, "init"):
        check_schema(engine)
    with refuses(SchemaMismatch, "init"):
        Ledger(engine, SECRET_KEY).ensembles.list()


def test_a_newer_database_is_refused(engine: Engine) -> None:
    upgrade(engine, SECRET_KEY)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with refuses(SchemaMismatch, "newer"):
        check_schema(engine)
    with refuses(SchemaMismatch, "newer"):
        upgrade(engine, SECRET_KEY)


def test_looking_at_a_missing_sqlite_file_does_not_create_it(tmp_path: Path) -> None:
    engine = connect(f"sqlite:///{tmp_path / 'missing.sqlite'}")
    with refuses(SchemaMismatch, "init"):
        Ledger(engine, SECRET_KEY).ensembles.list()
    with refuses(SchemaMismatch, "init"):
        check_schema(engine)
    assert list(tmp_path.iterdir()) == []


def test_a_sqlite_file_is_private_and_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger 100% #1?.sqlite"
    engine = connect(f"sqlite:///{path}".replace("?", "%3F"))
    path = Path(engine.url.database or "")
    upgrade(engine, SECRET_KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL


def test_a_sqlite_file_in_a_missing_directory_is_a_clear_error(tmp_path: Path) -> None:
    with refuses(DatabaseUnavailable, "directory"):
        upgrade(connect(f"sqlite:///{tmp_path / 'nowhere' / 'terrine.sqlite'}"), SECRET_KEY)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://root:secret@host/x"]
)
def test_other_databases_are_refused_without_repeating_the_url(url: str) -> None:
    with refuses(DatabaseUnavailable, "TERRINE_DATABASE_URL") as refusal:
        connect(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)
def test_waits_are_limited_and_commits_durable_on_postgresql(engine: Engine) -> None:
    with engine.connect() as connection:
        for setting, value in {
            "synchronous_commit": "on",
            "lock_timeout": "20s",
            "statement_timeout": "1min",
            "idle_in_transaction_session_timeout": "1min",
            "TimeZone": "UTC",
        }.items():
            assert connection.execute(text(f"SHOW {setting}")).scalar() == value


REFUSED = [
    "UPDATE charges SET label = 4 WHERE seq = 1",
    "UPDATE charges SET counts = '[1,0]' WHERE seq = 1",
    "DELETE FROM charges WHERE seq = 2",
    "DELETE FROM charges",
    "UPDATE projects SET budget = budget + 1",
    "UPDATE projects SET mechanism = '{{}}'",
    "UPDATE projects SET terms = '{{}}'",
    "UPDATE projects SET spent = spent - 1",
    "UPDATE projects SET charges = charges - 1",
    "UPDATE projects SET spent = budget + 1",
    "UPDATE projects SET status = 'open'",
    "UPDATE projects SET title = 'Less'",
    "UPDATE projects SET purpose = 'Less'",
    "DELETE FROM projects",
    "UPDATE ensembles SET cap = cap + 1",
    "UPDATE ensembles SET reserved = cap + 1",
    "DELETE FROM ensembles",
    "UPDATE payments SET token_id = 'x'",
    "UPDATE payments SET last_seq = last_seq + 1",
    "DELETE FROM payments",
    "INSERT INTO payments SELECT project_id, first_seq, last_seq, 'x', seal FROM payments",
    "INSERT INTO payments VALUES (1, 0, 1, 'x', {seal})",
    "INSERT INTO payments VALUES (1, 9, 8, 'x', {seal})",
    "UPDATE tree_leaves SET position = position + 1000",
    "DELETE FROM tree_leaves",
    "UPDATE tree_nodes SET position = position + 1000",
    "DELETE FROM tree_nodes",
    "UPDATE tree_head SET blinding = {seal}",
    "DELETE FROM tree_head",
]
TRUNCATED = ["charges", "projects", "ensembles", "payments"]


def test_the_database_itself_refuses_to_forget_or_to_raise(each_database_url: str) -> None:
    """Its owner, too, who has not removed the triggers."""
    world = World(each_database_url)
    noisy = open_project(world.ledger(), 1000, NOISY, "noisy")
    charge_one(world.ledger(), noisy.id, [answered(i) for i in range(300)])
    world.ledger().tree.grow()  # of more leaves than one node has
    engine = connect(as_owner(each_database_url))
    if engine.dialect.name == "sqlite":
        seal, more = "zeroblob(32)", ["INSERT OR REPLACE INTO payments SELECT * FROM payments"]
    else:
        seal, more = "decode(repeat('00', 32), 'hex')", [f"TRUNCATE {t} CASCADE" for t in TRUNCATED]
    for attempt in REFUSED + more:
        with engine.connect() as connection:
            try:
                connection.execute(text(attempt.format(seal=seal)))
                connection.commit()
            except DBAPIError:
                continue
        pytest.fail(f"it let somebody {attempt}")
    ledger = world.ledger()
    assert all(ledger.verifier.verify_project(name).ok for name in ledger.projects.list_names())
    engine.dispose()


FORGED_CHARGES: dict[str, dict[str, Any]] = {
    "over another": {"seq": 1},
    "numbered 0": {"seq": 0},
    "for a paid query": {"query_digest": digest(0)},
    "for an answered input": {"input_digest": digest(0)},
    "with a short hash": {"hash": b"short"},
    "of no project": {"project_id": 9},
    "of no outcome": {"outcome": "refused"},
    "that abstains with a label": {"outcome": "abstained"},
    "that answers without one": {"label": None},
    "that confirms with noisy counts": {"outcome": "reinforced", "counts": "[1,0]"},
    "of negative cost": {"cost": -1},
}


def test_the_database_itself_refuses_a_charge(each_database_url: str) -> None:
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, queries=5)
    charge_one(ledger, project.id, [answered(i) for i in range(3)])
    engine = connect(as_owner(each_database_url))
    with engine.connect() as connection:
        last = dict(
            connection.execute(charges.select().order_by(charges.c.seq.desc())).first()._mapping  # type: ignore[union-attr]
        )
    new = {"seq": 4, "query_digest": digest("new"), "input_digest": digest("new")}
    command = insert(charges)
    if engine.dialect.name == "sqlite":
        command = command.prefix_with("OR REPLACE")
    for what, changes in FORGED_CHARGES.items():
        with engine.connect() as connection:
            try:
                connection.execute(command, {**last, **new, **changes})
                connection.commit()
            except DBAPIError:
                continue
        pytest.fail(f"it let somebody add a charge {what}")
    assert ledger.verifier.verify_project("study").ok
