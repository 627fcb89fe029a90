"""A write that the database ignores, because somebody told it to, is an error, never a success."""

from __future__ import annotations

import ast
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

import terrine_server
from support.databases import SECRET_KEY, as_owner
from support.ledgers import answered, charge_one, digest, open_ledger, open_project, register
from terrine_protocol import ProjectStatus, Role
from terrine_server.errors import DatabaseUnavailable, LedgerCorrupted
from terrine_server.ledger import Ledger, NewToken, check_writable, connect
from terrine_server.ledger.resealing import seal_rows
from terrine_server.ledger.seals import Seals

PROJECT = 1


def ignore(engine: Engine, table: str, command: str) -> None:
    """Have the database swallow each row of a command, as if it had not been sent."""
    run(
        engine,
        [f"CREATE TRIGGER quiet BEFORE {command} ON {table} BEGIN SELECT RAISE(IGNORE); END"]
        if engine.dialect.name == "sqlite"
        else [
            "CREATE FUNCTION quiet() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            f"CREATE TRIGGER aaa BEFORE {command} ON {table} FOR EACH ROW EXECUTE FUNCTION quiet()",
        ],
    )


def heed(engine: Engine, table: str) -> None:
    if engine.dialect.name == "sqlite":
        run(engine, ["DROP TRIGGER quiet"])
    else:
        run(engine, ["DROP FUNCTION quiet() CASCADE"])


def run(engine: Engine, statements: list[str]) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture
def ledger(each_database_url: str) -> Ledger:
    ledger = open_ledger(each_database_url)
    charge_one(ledger, open_project(ledger, 20).id, [answered(1)])
    student(ledger, "t1")
    return ledger


def student(ledger: Ledger, id: str) -> None:
    ledger.tokens.create(
        NewToken(
            id=id,
            hash=digest(id),
            role=Role.STUDENT,
            project="study",
            label="lab",
            expires_at=datetime.now(UTC) + timedelta(days=1),
        )
    )


ACTS: dict[tuple[str, str], Callable[[Ledger], object]] = {
    ("projects", "INSERT"): lambda ledger: open_project(ledger, 3, name="other"),
    ("ensembles", "INSERT"): lambda ledger: register(ledger, "other"),
    ("tokens", "INSERT"): lambda ledger: student(ledger, "t2"),
    ("tokens", "UPDATE"): lambda ledger: ledger.tokens.revoke("t2"),
    ("administrative_log", "INSERT"): lambda ledger: student(ledger, "t3"),
    ("log_head", "UPDATE"): lambda ledger: student(ledger, "t4"),
    ("projects", "UPDATE"): lambda ledger: ledger.projects.set_status(
        "study", ProjectStatus.PAUSED
    ),
    ("populations", "INSERT"): lambda ledger: register(ledger, "third"),
    ("populations", "UPDATE"): lambda ledger: ledger.projects.set_status(
        "study", ProjectStatus.CLOSED
    ),
}
"""Each can be done after those before it."""


def test_an_act_that_is_ignored_fails_and_changes_nothing(
    ledger: Ledger, each_database_url: str
) -> None:
    engine = connect(as_owner(each_database_url))
    for (table, command), act in ACTS.items():
        entries = ledger.verifier.verify_log().entries
        ignore(engine, table, command)
        with pytest.raises(DatabaseUnavailable):
            act(ledger)
        heed(engine, table)
        assert ledger.verifier.verify_project("study").ok, (table, command)
        assert ledger.verifier.verify_log().ok, (table, command)
        assert ledger.verifier.verify_log().entries == entries, (table, command)
        act(ledger)
        assert ledger.verifier.verify_log().entries > entries, (table, command)
    engine.dispose()


@pytest.mark.parametrize(
    ("table", "command"),
    [("projects", "UPDATE"), ("charges", "INSERT"), ("payments", "INSERT")],
    ids=["projects UPDATE", "charges INSERT", "payments INSERT"],
)
def test_nothing_is_told_whose_charge_is_ignored(
    ledger: Ledger, each_database_url: str, table: str, command: str
) -> None:
    """The answer would be out, and its charge not on record."""
    engine = connect(as_owner(each_database_url))
    for queries in (1, 2):
        before = ledger.projects.get("study")
        batch = [answered(f"new {queries} {number}") for number in range(queries)]
        ignore(engine, table, command)
        with pytest.raises(LedgerCorrupted):
            ledger.charging.charge(PROJECT, [batch], payers=["t1"])
        heed(engine, table)
        assert ledger.projects.get("study") == before
        assert ledger.verifier.verify_project("study").ok
        (receipt,) = ledger.charging.charge(PROJECT, [batch], payers=["t1"])
        assert not isinstance(receipt, Exception)
        assert receipt.project.charges == before.charges + queries
    engine.dispose()


@pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)
def test_a_pause_that_a_trigger_undoes_is_an_error(ledger: Ledger, each_database_url: str) -> None:
    """The row is written, and counted, but it is not what was meant: its seal shows that."""
    engine = connect(as_owner(each_database_url))
    run(
        engine,
        [
            "CREATE FUNCTION quiet() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN NEW.status := OLD.status; RETURN NEW; END'",
            "CREATE TRIGGER aaa BEFORE UPDATE ON projects FOR EACH ROW EXECUTE FUNCTION quiet()",
        ],
    )
    with pytest.raises(LedgerCorrupted):
        ledger.projects.set_status("study", ProjectStatus.PAUSED)
    heed(engine, "projects")
    assert ledger.projects.get("study").status is ProjectStatus.ACTIVE
    engine.dispose()


@pytest.mark.parametrize("each_database_url", ["postgresql"], indirect=True)
def test_a_rule_that_does_nothing_instead_is_an_error(
    ledger: Ledger, each_database_url: str
) -> None:
    engine = connect(as_owner(each_database_url))
    for table in ("projects", "charges"):
        command = "UPDATE" if table == "projects" else "INSERT"
        run(engine, [f"CREATE RULE deaf AS ON {command} TO {table} DO INSTEAD NOTHING"])
        with pytest.raises(DatabaseUnavailable):
            charge_one(ledger, PROJECT, [answered("new")])
        run(engine, [f"DROP RULE deaf ON {table}"])
    run(engine, ["CREATE RULE deaf AS ON UPDATE TO projects DO INSTEAD NOTHING"])
    with pytest.raises(DatabaseUnavailable):
        ledger.projects.set_status("study", ProjectStatus.PAUSED)
    engine.dispose()


def test_sealing_and_readiness_notice_that_nothing_is_written(
    ledger: Ledger, each_database_url: str
) -> None:
    engine = connect(as_owner(each_database_url))
    ignore(engine, "tokens", "UPDATE")
    with pytest.raises(LedgerCorrupted), engine.begin() as connection:
        seal_rows(connection, Seals(SECRET_KEY))
    heed(engine, "tokens")
    if engine.dialect.name == "sqlite":
        ignore(engine, "alembic_version", "UPDATE")
        with pytest.raises(LedgerCorrupted):
            check_writable(engine)
    engine.dispose()


def test_every_write_is_counted() -> None:
    """No statement that writes is executed but by `write`, or where its rows are counted."""
    uncounted = []
    for path in Path(terrine_server.__file__).parent.joinpath("ledger").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("execute", "exec_driver_sql")
                and node.args
                and {"insert", "update", "delete"}
                & {each.id for each in ast.walk(node.args[0]) if isinstance(each, ast.Name)}
            ):
                uncounted.append(f"{path.name}:{node.lineno}")
    assert uncounted == []
