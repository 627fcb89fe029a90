"""A ledger of an earlier schema, with entries in it, is migrated, and stays what it was."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from books import COUNTED, counted, digest, terms
from migrated import SECRET_KEY
from sqlalchemy import Engine, insert, text

from terrine_server.errors import DatabaseUnavailable, NotSealed, SchemaMismatch
from terrine_server.ledger import Ledger, check_schema, connect, seal, upgrade
from terrine_server.ledger.store import schema
from terrine_server.ledger.store.schema import differences
from terrine_server.ledger.store.tables import Timestamp, metadata

BEFORE = Path(__file__).resolve().parents[1] / "fixtures" / "version-0.1"
PROJECTS = sorted(file.stem for file in BEFORE.glob("*.jsonl"))


def at_version(engine: Engine, revision: str) -> None:
    """Make the tables as they were at a revision."""
    if engine.dialect.name == "sqlite":
        Path(engine.url.database or "").touch()
    config = schema._config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def fill(engine: Engine) -> None:
    """Copy every row of the earlier version's ledger, which has none of the later columns."""
    with closing(sqlite3.connect(BEFORE / "ledger.db")) as source, engine.begin() as connection:
        source.row_factory = sqlite3.Row
        known = {row[0] for row in source.execute("SELECT name FROM sqlite_master")}
        for table in metadata.sorted_tables:
            if table.name not in known:
                continue
            found = source.execute(f"SELECT * FROM {table.name}")
            rows = [dict(row) for row in found]
            for row in rows:
                for name, value in row.items():
                    if isinstance(table.c[name].type, Timestamp) and value is not None:
                        row[name] = datetime.fromisoformat(value)
            if rows:
                assert "counts" not in rows[0]
                connection.execute(insert(table), rows)


@pytest.fixture
def engine(database_url: str) -> Any:
    engine = connect(database_url)
    yield engine
    engine.dispose()


def test_entries_of_the_first_schema_verify_after_every_migration(engine: Engine) -> None:
    at_version(engine, "0001")
    fill(engine)
    with pytest.raises(SchemaMismatch, match=r"older Terrine\. Run `terrine init`"):
        check_schema(engine)
    assert upgrade(engine, SECRET_KEY) == [], "nothing had to be restored"
    check_schema(engine)
    assert differences(engine) == []
    ledger = Ledger(engine, SECRET_KEY)
    for refused in (ledger.check_sealed, ledger.ensembles, lambda: ledger.project(PROJECTS[0])):
        with pytest.raises(DatabaseUnavailable):
            refused()
    with pytest.raises(NotSealed, match="run `terrine ledger seal`"):
        ledger.check_sealed()
    seal(engine, SECRET_KEY)
    assert ledger.project_names() == PROJECTS
    assert ledger.verify_log().ok
    for project in PROJECTS:
        assert ledger.verify(project).problems == []
        written = (BEFORE / f"{project}.jsonl").read_text(encoding="utf-8").splitlines()
        exported = [json.dumps(line) for line in ledger.export(project)]
        assert exported[1:] == written[1:], "the first line names the version that wrote it"
    with engine.connect() as connection:
        held = connection.execute(text("SELECT count(counts) FROM charges")).scalar_one()
    assert held == 0


def test_a_migrated_ledger_keeps_noisy_counts(engine: Engine) -> None:
    at_version(engine, "0001")
    fill(engine)
    upgrade(engine, SECRET_KEY)
    seal(engine, SECRET_KEY)
    ledger = Ledger(engine, SECRET_KEY)
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":  # rows were copied with their numbers
            connection.execute(text("SELECT setval('projects_id_seq', 1000)"))
    ensemble = next(e for e in ledger.ensembles() if e.rdp_order is None)
    info = dict(ensemble.info)
    assert len(info["classes"]) == 10
    project = ledger.open_project("later", ensemble.name, COUNTED, terms(3, COUNTED, epsilon=0.5))
    ledger.charge(project.id, [counted(1), counted(2)], ("key", digest("body")))
    assert [entry.counts for entry in ledger.charges("later")] == [
        counted(1).counts,
        counted(2).counts,
    ]
    assert all(ledger.verify(name).ok for name in ledger.project_names())
