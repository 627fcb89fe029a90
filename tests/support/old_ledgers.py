"""Ledgers as the version before populations had them, in either database."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from alembic import command
from kept_ledger import DATABASE
from migrated import SECRET_KEY
from sqlalchemy import Connection, DateTime, Engine, MetaData, insert, select

from terrine_server.ledger import connect
from terrine_server.ledger.migrating import _config
from terrine_server.ledger.schema import Seals

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


def with_manifests(**digests: str) -> Edit:
    """Let ensembles have manifests that there are. Their projects do not verify any more."""

    def edit(connection: Connection, tables: MetaData) -> None:
        ensembles = tables.tables["ensembles"]
        for name, digest in digests.items():
            of_it = ensembles.c.name == name
            row = dict(connection.execute(select(ensembles).where(of_it)).one()._mapping)
            changed = sealed(
                "ensembles", ENSEMBLES, row | {"manifest_sha256": bytes.fromhex(digest)}
            )
            connection.execute(ensembles.update().where(of_it).values(changed))

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
