"""Ledgers that were edited by hand, and ledgers kept from earlier versions."""

from __future__ import annotations

import copy
import gzip
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from alembic import command
from sqlalchemy import Connection, DateTime, Engine, MetaData, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from support.databases import SECRET_KEY, migrated
from support.ledgers import (
    CONFIDENT,
    COUNTED,
    GNMAX,
    LNMAX,
    PEOPLE,
    People,
    TheirVoters,
    abstained,
    answered,
    charge_one,
    counted,
    digest,
    many,
    open_project,
    open_published,
    open_study,
    published_terms,
    register,
    register_people,
    register_thousand,
    reseal,
    terms,
    unguarded,
    voted,
)
from support.servers import publisher
from terrine_protocol import ProjectStatus, Role, TokenCreate
from terrine_server.labeling.pipeline import Labeling
from terrine_server.ledger import Actor, Ledger, NewProject, ProjectRecord, connect
from terrine_server.ledger.chain import charge_hash, iso
from terrine_server.ledger.exports import ArchiveError
from terrine_server.ledger.revisions import _config
from terrine_server.ledger.schema import charges, metadata, projects
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.verifying import verify_export
from terrine_server.metrics import Metrics
from terrine_server.owner.sign_in import Tokens


def altered(value: Any) -> Any:
    """Return the value with the smallest possible change."""
    match value:
        case None:
            return 0
        case int():
            return value ^ 1
        case float():
            return value * (1 + 2**-52)
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case datetime():
            return value + timedelta(microseconds=1)
        case str():
            middle = len(value) // 2
            return value[:middle] + ("1" if value[middle] == "0" else "0") + value[middle + 1 :]
    raise TypeError(type(value))


def rows_of(connection: Connection) -> list[dict[str, Any]]:
    """The charges of `study`."""
    query = select(charges).where(charges.c.project_id == 1).order_by(charges.c.seq)
    return [dict(row._mapping) for row in connection.execute(query)]


def write(connection: Connection, seq: int, values: Mapping[str, Any]) -> None:
    connection.execute(
        update(charges).where(charges.c.project_id == 1, charges.c.seq == seq).values(values)
    )


def remove(connection: Connection, *seqs: int) -> None:
    connection.execute(charges.delete().where(charges.c.project_id == 1, charges.c.seq.in_(seqs)))


def swap(connection: Connection) -> None:
    write(connection, 2, {"seq": 99})
    write(connection, 3, {"seq": 2})
    write(connection, 99, {"seq": 3})


def add(connection: Connection, seq: int, entries: list[dict[str, Any]]) -> None:
    """A well-made extra charge, chained to its predecessor."""
    previous = entries[seq - 2]
    new = digest("forged")
    extra = {**previous, "seq": seq, "query_digest": new, "input_digest": new}
    extra["hash"] = charge_hash(previous["hash"], extra)
    connection.execute(insert(charges), extra)


def rehash(connection: Connection, seq: int, **changes: Any) -> None:
    """Alter one charge and recompute its own hash."""
    entries = rows_of(connection)
    previous = entries[seq - 2]["hash"]
    forged = {**entries[seq - 1], **changes}
    write(connection, seq, {**changes, "hash": charge_hash(previous, forged)})


def rewrite(connection: Connection, seq: int, **changes: Any) -> None:
    """Alter one charge and recompute every later hash and the head."""
    entries = rows_of(connection)
    head = entries[seq - 2]["hash"]
    for entry in entries[seq - 1 :]:
        forged = {**entry, **(changes if entry["seq"] == seq else {})}
        head = charge_hash(head, forged)
        write(connection, entry["seq"], {**forged, "hash": head})
    connection.execute(update(projects).where(projects.c.id == 1).values(head=head))


def account(**changes: Any) -> Callable[[Connection], object]:
    return lambda connection: connection.execute(
        update(projects).where(projects.c.id == 1).values(changes)
    )


def cut(connection: Connection, keep: int) -> None:
    """Remove all charges after the first `keep`; set count, head and balances to match."""
    entries = rows_of(connection)
    gone = entries[keep:]
    remove(connection, *[entry["seq"] for entry in gone])
    account(
        head=entries[keep - 1]["hash"],
        charges=keep,
        spent=projects.c.spent - sum(entry["cost"] for entry in gone),
        delta_spent=projects.c.delta_spent - sum(entry["delta"] for entry in gone),
        cap_spent=projects.c.cap_spent - sum(entry["cap_cost"] for entry in gone),
    )(connection)


def rebuild(connection: Connection, entries: Sequence[Mapping[str, Any]]) -> None:
    """Replace all charges with `entries`, numbered and chained consistently."""
    connection.execute(charges.delete().where(charges.c.project_id == 1))
    query = select(projects.c.genesis).where(projects.c.id == 1)
    head = connection.execute(query).scalar_one()
    for seq, entry in enumerate(entries, start=1):
        new = {**entry, "seq": seq}
        head = charge_hash(head, new)
        connection.execute(insert(charges), {**new, "hash": head})
    account(head=head)(connection)


def kind(problem: str) -> str:
    """What a finding is about, and the first word of what is wrong with it."""
    about, _, what = problem.partition(": ")
    return about if about in ("terms", "head") else f"{about}: {what.split()[0].rstrip(',')}"


def first_finding(file: Path, lines: list[Any]) -> str:
    """What is found first in an export of these lines, written to a file; empty if all is well."""
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        problems = verify_export(file).problems
    except ArchiveError as error:
        return str(error)
    return problems[0] if problems else ""


DEEP = "[" * 100_000
"""JSON nested deeper than Python reads."""
GARBLED_JSON = ("", "null", "{}", "[[1]]", DEEP, b"\xff")
INSTANTS = {"opened_at", "closed_at", "registered_at", "created_at", "expires_at", "revoked_at"}


class Hand:
    """Edits a SQLite file whose guards are off.

    With the secret key, it seals what it edits, so that only other checks can find that.
    """

    def __init__(self, engine: Engine, url: str, with_key: bool = False) -> None:
        self._engine, self._with_key = engine, with_key
        self._kept: dict[str, list[dict[str, Any]]] = {}
        with unguarded(url, with_key=False):
            pass
        self.keep()

    def keep(self) -> None:
        """Remember all as it is now, for edits to be taken back to."""
        self._copy = sqlite3.connect(":memory:", check_same_thread=False)
        with self._file() as file:
            file.backup(self._copy)
        with self._writing() as connection:
            for name, key in KEYS.items():
                ordered = text(f"SELECT * FROM {name} ORDER BY {', '.join(key)}")
                self._kept[name] = [dict(row) for row in connection.execute(ordered).mappings()]

    def value(self, table: str, row: int, column: str) -> Any:
        """What was in a row, counted from 0, before any edit."""
        return self._kept[table][row][column]

    @contextmanager
    def edited(self, edit: str | Callable[[Connection], object], **values: Any) -> Iterator[bool]:
        """Do this; yields whether the database let it. Later all is as it was in the beginning."""
        done = True
        try:
            with self._writing() as connection:
                if callable(edit):
                    edit(connection)
                else:
                    connection.execute(text(edit), values)
                if self._with_key:
                    reseal(connection)
        except (DBAPIError, OverflowError, ValueError):
            done = False
        try:
            yield done
        finally:
            with self._file() as file:
                self._copy.backup(file)

    def set(self, table: str, row: int, column: str, value: Any) -> Any:
        """Change one value of a row, counted from 0; see `edited`."""
        key = {name: self._kept[table][row][name] for name in KEYS[table]}
        where = " AND ".join(f"{name} = :old_{name}" for name in key)
        given = {f"old_{name}": old for name, old in key.items()}
        return self.edited(f"UPDATE {table} SET {column} = :new WHERE {where}", new=value, **given)

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        with closing(self._engine.raw_connection()) as connection:
            file: Any = connection.driver_connection
            yield file

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute("PRAGMA foreign_keys = OFF")  # before a transaction begins
            driver.execute("PRAGMA synchronous = OFF")  # a hand need not wait for the disk
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            yield connection
            connection.commit()


KEYS = {table.name: [c.name for c in table.primary_key] for table in metadata.sorted_tables}


def other_values(column: str, value: Any) -> Iterator[Any]:
    """Values that are not this one: near it, far from it, and of other types."""
    if column in INSTANTS:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        later = (instant or datetime.fromisoformat("2026-01-01T00:00:00Z")) + timedelta(seconds=1)
        yield from (iso(later), "yesterday", "infinity", 7, None)
    elif isinstance(value, str) and value[:1] in ("{", "["):
        yield from (*GARBLED_JSON, 7, None)
    elif isinstance(value, str):
        yield from (f"{value}x", "", 7, None)
    elif isinstance(value, bytes):
        yield from (bytes([value[0] ^ 1]) + value[1:], b"", "text", None)
    elif isinstance(value, float):
        yield from (value * 2, float("inf"), "text", None)
    else:
        number = value or 0
        yield from (number + 1, number - 1, 2**62, 1.5, "text", None)


def edited_json(document: Any) -> Iterator[str]:
    """The same JSON with one part at a time removed, made null, or another number or text."""
    for path in _paths(document):
        changes: tuple[Any, ...] = ("remove", None, 0)
        for change in changes:
            edited = copy.deepcopy(document)
            parent = edited
            for step in path[:-1]:
                parent = parent[step]
            if change == "remove":
                del parent[path[-1]]
            elif type(parent[path[-1]]) is type(change) and parent[path[-1]] == change:
                continue
            else:
                parent[path[-1]] = change
            yield json.dumps(edited, sort_keys=True, separators=(",", ":"))


def _paths(document: Any) -> Iterator[list[Any]]:
    steps = document if isinstance(document, Mapping) else range(len(document))
    for step in steps:
        yield [step]
        if isinstance(document[step], Mapping | list):
            yield from ([step, *rest] for rest in _paths(document[step]))


Row = dict[str, Any]
TREE = ("tree_leaves", "tree_nodes", "tree_head")
"""They repeat what the others hold, and are believed by nobody who does not check them against a
policy: tests/transparency/test_verify.py edits them."""
TABLES = {name: table for name, table in metadata.tables.items() if name not in TREE}
ENTRIES = 8
"""Charges of `study`."""


class World:
    """A small ledger with something in every column, and what it was before its last acts.

    `study` has eight charges: three that were asked for under one key, then an abstention, two
    answers and an abstention under another, and an answer.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        ledger = self.prepared()
        register(ledger, "mnist", population="digits")
        register_thousand(ledger)
        register(ledger, "spare", population="digits")
        study = self.open_study()
        self.prices = {str(outcome): p.cost for outcome, p in study.terms.prices.items()}
        for name in ("other", "done", "resting"):
            open_project(ledger, 3, LNMAX, name=name)
        noisy = open_project(ledger, 10, COUNTED, name="counted")
        crowd = self.open_crowd(ledger)
        ledger.projects.open(NewProject("unused", "mnist", GNMAX, terms(3), "Unused", "To learn"))
        secret, schedule = open_published(ledger, "secret"), published_terms().schedule
        assert schedule is not None
        self.tokens = self._tokens(ledger)
        self.ask_first(study)
        last = [abstained("a"), answered("b", 4), answered("c", 5), abstained("d")]
        charge_one(ledger, study.id, last)
        charge_one(ledger, noisy.id, [counted(1), counted(2), counted(3)])
        charge_one(ledger, ledger.projects.get("other").id, [answered("other")])
        charge_one(ledger, secret.id, voted(secret, range(schedule.counts[0] + 1)))
        self.ask_crowd(ledger, crowd)
        ledger.ensembles.make_edition("people", 2, digest("two").hex(), PEOPLE, [3])
        self.before = self.rows()
        self.ask_crowd(ledger, crowd, last=4)
        charge_one(ledger, study.id, [answered("last")])
        charge_one(ledger, secret.id, voted(secret, ["last"]))
        ledger.projects.set_status("resting", ProjectStatus.PAUSED)
        ledger.projects.set_status("done", ProjectStatus.CLOSED)
        ledger.tokens.revoke(self.id_of("revoked"), Actor("token:0", "trace"))
        self.names = set(ledger.projects.list_names())
        publisher(ledger).round()
        self.kept = {"kept": ledger.tree.checkpoint() or ""}

    def prepared(self) -> Ledger:
        self.engine = migrated(self.url)
        return self.ledger()

    def open_study(self) -> ProjectRecord:
        return open_project(self.ledger(), 20, CONFIDENT)

    def open_crowd(self, ledger: Ledger) -> People:
        """A project whose units have accounts."""
        register_people(ledger)
        open_study(ledger, name="crowd")
        return People()

    def ask_crowd(self, ledger: Ledger, people: People, last: int = 3) -> None:
        labeling = Labeling(ledger, TheirVoters(people), Metrics(), max_batch=100)
        inputs = np.stack(many(people, last))
        labeling.answer("crowd", [labeling.check("crowd", inputs)])

    def ask_first(self, study: ProjectRecord) -> None:
        batch = [answered(1, 1), answered(2, 2), answered(3, 3)]
        self.ledger().charging.charge(study.id, [batch], payers=[self.id_of("student")])

    def ledger(self, key: bytes = SECRET_KEY) -> Ledger:
        """As a server has it that has read nothing yet."""
        return Ledger(self.engine, key)

    def _tokens(self, ledger: Ledger) -> dict[str, str]:
        made = {
            label: TokenCreate(role=Role.STUDENT, project="study", label=label)
            for label in ("student", "moved", "revoked")
        }
        made["other"] = TokenCreate(role=Role.STUDENT, project="other")
        made |= {str(role): TokenCreate(role=role) for role in (Role.AUDITOR, Role.ADMIN)}
        tokens = Tokens(ledger, SECRET_KEY)
        return {label: tokens.create(request).token for label, request in made.items()}

    def id_of(self, label: str) -> str:
        return self.tokens[label].split("_")[1]

    def rows(self) -> dict[str, list[Row]]:
        with self.engine.connect() as connection:
            return {
                name: [dict(row._mapping) for row in connection.execute(in_order(name))]
                for name in TABLES
            }

    def row(self, table: str, **where: Any) -> Row:
        (row,) = (row for row in self.rows()[table] if row.items() >= where.items())
        return row


def in_order(table: str) -> Any:
    made = TABLES[table]
    return select(made).order_by(*made.primary_key)


FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
DATABASE = FIXTURES / "ledger-1.0.0.database.gz"
EXPORTS = FIXTURES / "ledger-1.0.0.json"


def main() -> None:
    """Write the ledger, and what its exports were."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "terrine.sqlite"
        world = World(f"sqlite:///{path}")
        ledger = world.ledger()
        kept = {
            "projects": {
                name: {
                    "head": ledger.projects.get(name).head,
                    "export": list(ledger.exports.export_project(name)),
                }
                for name in ledger.projects.list_names()
            },
            "log": list(ledger.exports.export_log()),
        }
        world.engine.dispose()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        DATABASE.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        EXPORTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


BEFORE = "0006"
CAP_COLUMNS = ("epsilon", "delta", "rdp_order", "cap", "delta_cap")
ENSEMBLES = (
    *("id", "name", "path", "manifest_sha256", "info", "units"),
    *(*CAP_COLUMNS, "reserved", "delta_reserved", "registered_at"),
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
            row = rows[name] | {column: head[column] for column in CAP_COLUMNS}
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
        for name, manifest in digests.items():
            of_it = ensembles.c.name == name
            row = dict(connection.execute(select(ensembles).where(of_it)).one()._mapping)
            changed = sealed(
                "ensembles", ENSEMBLES, row | {"manifest_sha256": bytes.fromhex(manifest)}
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


if __name__ == "__main__":
    main()
