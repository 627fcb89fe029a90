"""A ledger from before there were populations: its caps and what they reserve are carried over."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from kept_ledger import DATABASE
from migrated import SECRET_KEY
from postgres import as_owner
from refusals import refuses
from sqlalchemy import Connection, DateTime, Engine, MetaData, insert, select

from terrine_server.errors import LedgerCorrupted, NotSealed
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.schema import _config, differences

BEFORE = "0006"
CAP = ("epsilon", "delta", "rdp_order", "cap", "delta_cap")
ENSEMBLES = (
    *("id", "name", "path", "manifest_sha256", "info", "units"),
    *(*CAP, "reserved", "delta_reserved", "registered_at"),
)
DATA = ("ensemble_id", "cap_id", "edition", "key_check", "digests")
Edit = Callable[[Connection, MetaData], None]


def migrate_to_before(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, BEFORE)


def sealed(table: str, columns: tuple[str, ...], row: dict[str, Any]) -> dict[str, Any]:
    values = [row[name] for name in columns]
    return {**row, "seal": Seals(SECRET_KEY).over(table, values)}


def share(*names: str) -> Edit:
    """Let ensembles have the cap of the first, as they had who were of the same data."""

    def edit(connection: Connection, tables: MetaData) -> None:
        ensembles, data = tables.tables["ensembles"], tables.tables["private_data"]
        rows = {row.name: dict(row._mapping) for row in connection.execute(select(ensembles))}
        head = rows[names[0]]
        for name in names:
            row = rows[name] | {column: head[column] for column in CAP}
            changed = sealed("ensembles", ENSEMBLES, row)
            if name != names[0]:
                of_it = ensembles.c.id == row["id"]
                connection.execute(ensembles.update().where(of_it).values(changed))
            values = row["id"], head["id"], 1, bytes(32), json.dumps(["ab" * 32])
            shared = dict(zip(DATA, values, strict=True))
            connection.execute(insert(data).values(sealed("private_data", DATA, shared)))

    return edit


def double(connection: Connection, tables: MetaData) -> None:
    ensembles = tables.tables["ensembles"]
    connection.execute(ensembles.update().values(cap=ensembles.c.cap * 2))


def apart(connection: Connection, tables: MetaData) -> None:
    data = tables.tables["private_data"]
    connection.execute(data.update().values(cap_id=data.c.ensemble_id))


def old_ledger(url: str, directory: Path, *edits: Edit) -> Engine:
    """The ledger of the first release, as the version before populations had it."""
    path = directory / "before.sqlite"
    path.write_bytes(gzip.decompress(DATABASE.read_bytes()))
    source, tables = connect(f"sqlite:///{path}"), MetaData()
    with source.begin() as connection:
        migrate_to_before(connection)
        # Triggers keep what is fixed; whoever edits has removed them.
        for (name,) in connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name LIKE '%_fixed'"
        ).all():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        tables.reflect(connection)
        for edit in edits:
            edit(connection, tables)
        rows = {
            name: [dict(row._mapping) for row in connection.execute(select(table))]
            for name, table in tables.tables.items()
            if name != "alembic_version"
        }
    if url.startswith("sqlite"):
        Path(url.removeprefix("sqlite:///")).touch(0o600)
    engine, there = connect(url), MetaData()
    with engine.begin() as connection:
        migrate_to_before(connection)
        there.reflect(connection)
        for table in there.sorted_tables:
            for row in rows.get(table.name, ()):
                for column in table.columns:
                    if isinstance(column.type, DateTime) and row[column.name] is not None:
                        row[column.name] = datetime.fromisoformat(row[column.name])
                connection.execute(insert(table).values(row))
    return engine


def test_ensembles_that_shared_a_cap_become_one_population(
    each_database_url: str, tmp_path: Path
) -> None:
    engine = old_ledger(as_owner(each_database_url), tmp_path, share("mnist", "spare"))
    upgrade(engine, SECRET_KEY)
    assert differences(engine) == []
    ledger = Ledger(engine, SECRET_KEY)
    found = {each.name: each.population for each in ledger.ensembles()}
    assert {name: each.name for name, each in found.items()} == {
        "mnist": "mnist",
        "spare": "mnist",
        "thousand": "thousand",
    }
    assert (found["mnist"].epsilon, found["mnist"].disjoint_from) == (80.0, None)
    assert ledger.verify_log().problems == []
    for name in ledger.project_names():
        assert ledger.verify(name).problems == []
    open_projects = [ledger.project(name) for name in ledger.project_names()]
    assert (
        sum(
            each.cap_spent if each.closed_at else each.terms.cap_budget
            for each in open_projects
            if each.ensemble.population.name == "mnist"
        )
        == found["mnist"].reserved
    )
    assert upgrade(engine, SECRET_KEY) == [], "once"


def test_a_single_cap_is_that_of_the_default_population(database_url: str, tmp_path: Path) -> None:
    engine = old_ledger(database_url, tmp_path, share("mnist", "spare", "thousand"))
    upgrade(engine, SECRET_KEY)
    (found,) = Ledger(engine, SECRET_KEY).populations()
    assert (found.name, found.disjoint_from) == ("people", ())


@pytest.mark.parametrize(
    "edits", [[double], [share("mnist", "spare"), apart]], ids=["a larger cap", "caps apart"]
)
def test_rows_that_were_edited_are_not_sealed_anew(
    database_url: str, tmp_path: Path, edits: list[Edit]
) -> None:
    """Else whoever edits a ledger would only have to wait for the next version."""
    engine = old_ledger(database_url, tmp_path, *edits)
    with refuses(LedgerCorrupted, "migrated"):
        upgrade(engine, SECRET_KEY)
    with engine.connect() as connection:
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert revision == BEFORE, "nothing was half-migrated"


def test_rows_are_not_sealed_with_another_key(database_url: str, tmp_path: Path) -> None:
    engine = old_ledger(database_url, tmp_path)
    with refuses(NotSealed, "--old-key"):
        upgrade(engine, b"o" * 64)
