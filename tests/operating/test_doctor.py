"""`terrine doctor` finds real problems, says how to fix each, and prints no secret."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import make_url, text

from support.databases import SERVICE, SQLITE_BY_DAY, Postgres, as_owner
from support.disks import fill, small_disk
from support.documents import ROOT
from support.ledgers import answered, charge_one, unguarded
from support.processes import Terrine
from support.servers import Machine
from support.wording import holds, says
from terrine_server.doctor import (
    FULL_DISK_BYTES,
    POSTGRESQL_SETTINGS,
    Finding,
    check_disk,
    check_newest_charge,
    check_postgresql,
    compare_clocks,
)
from terrine_server.ledger import connect, database
from terrine_server.settings import LOW_DISK_BYTES, settings_classes, variable_names

POSTGRES = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def beside_schema(machine: Machine) -> list[tuple[str, str, str, str]]:
    """What is wrong beside the triggers and constraints that a forger had to remove first."""
    return [finding for finding in machine.wrong() if finding[0] != "schema"]


def charge(machine: Machine, *queries: object) -> None:
    ledger = machine.ledger
    charge_one(ledger, ledger.projects.get("study").id, [answered(query) for query in queries])


@pytest.mark.usefixtures("each_database_url")
def test_no_problem_is_found_on_a_sound_machine(served_machine: Machine) -> None:
    charge(served_machine, 1, 2)
    report = served_machine.doctor()
    assert report["ok"]
    assert served_machine.wrong() == []
    checked = {finding["check"] for finding in report["findings"]}
    assert checked >= {
        "settings", "device", "data directory", "secret key", "database", "schema",
        "ensemble digits", "ledger", "clock",
    }  # fmt: skip
    assert ("disk" if served_machine.database_url.startswith("sqlite") else "durability") in checked
    done = served_machine.run("doctor")
    assert (done.code, done.err) == (0, "")
    holds(done.out, "problems", "found")


def test_a_bare_machine_needs_init(machine: Machine) -> None:
    found = machine.wrong()
    assert {check for check, *_ in found} == {"data directory", "secret key", "schema"}
    for _, state, _, fix in found:
        assert (state, fix) == ("problem", "terrine init")
    assert not machine.data.exists(), "the doctor changes nothing"
    done = machine.run("doctor")
    assert done.code == 1
    holds(done.out, 3)
    assert machine.run("init").code == 0
    assert machine.wrong() == []


@SQLITE_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_a_database_of_a_newer_version_is_found_and_not_served(
    served_machine: Machine,
) -> None:
    with connect(as_owner(served_machine.database_url)).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    ((check, state, found, fix),) = served_machine.wrong()
    assert (check, state) == ("schema", "problem")
    holds(found, "newer")
    assert "Install" in fix
    for sql, words in (
        ("UPDATE alembic_version SET version_num = '9999'", ("newer", "Install")),
        ("DELETE FROM alembic_version", ("`terrine", "init`")),
    ):
        with connect(as_owner(served_machine.database_url)).begin() as connection:
            connection.execute(text(sql))
        holds(served_machine.run("serve", "--port", "0").refused, *words)


def test_invalid_settings_are_named_without_their_values(machine: Machine) -> None:
    machine.run("init")
    ((check, state, found, fix),) = machine.wrong(TERRINE_GREETING="hush-hush")
    assert (check, state, fix) == ("settings", "warning", "unset TERRINE_GREETING")
    assert "TERRINE_GREETING" in found
    ((check, state, found, fix),) = machine.wrong(TERRINE_PORT="hush-hush")
    assert (check, state) == ("settings", "problem")
    page = re.search(r"docs/\S+\.md", fix)
    assert page is not None, fix
    assert "`TERRINE_PORT`" in (ROOT / page[0]).read_text()
    assert found.startswith("TERRINE_PORT: ")
    for kind in settings_classes():
        name = f"TERRINE_{[*kind.model_fields][-1].upper()}"
        misspelt = machine.wrong(**{f"{name}S": "7"})
        holds(misspelt[0][2], f"{name}?")
    for name in ("TERRINE_VOTERS", "TERRINE_RAY_ACTORS", "TERRINE_OIDC_ISSUER"):
        if name in variable_names():
            ((check, state, found, _),) = machine.wrong(**{name: "hush-hush"})
            assert (check, state) == ("settings", "problem")
            assert name in found
    ((check, _, found, _),) = machine.wrong(TERRINE_DEVICE="quantum")
    assert check == "device"
    assert "quantum" in found


@pytest.mark.parametrize(
    ("mode", "state"), [(0o604, "problem"), (0o640, "warning"), (0o602, "problem")]
)
def test_files_that_other_accounts_may_use_are_found(
    machine: Machine, mode: int, state: str
) -> None:
    machine.run("init")
    for name, check in (("secret.key", "secret key"), ("terrine.sqlite", "database")):
        path = (
            machine.data / name
            if name == "secret.key"
            else Path(str(make_url(machine.database_url).database))
        )
        path.chmod(mode)
        assert machine.wrong()[0][:2] == (check, state)
        assert machine.wrong()[0][3] == f"chmod 600 '{path}'"
        path.chmod(0o600)
    machine.data.chmod(0o755)
    assert machine.wrong()[0][3] == f"chmod 700 '{machine.data}'"
    machine.data.chmod(0o700)
    assert machine.wrong() == []


def test_a_path_that_cannot_be_read_ends_no_other_check(served_machine: Machine) -> None:
    """Links in a circle, which no account can follow, not even the one that tests run as."""
    checked = {finding["check"] for finding in served_machine.doctor()["findings"]}
    circles = {
        "checkpoint key": served_machine.data / "checkpoint.key",
        "key of the records": served_machine.data / "records.key",
    }
    for path in circles.values():
        path.unlink(missing_ok=True)
        path.symlink_to(path.name)
    found = {finding["check"]: finding for finding in served_machine.doctor()["findings"]}
    assert set(found) >= {*checked, *circles}
    for check, path in circles.items():
        assert found[check]["state"] == "problem"
        holds(found[check]["found"], path.name)


def test_a_secret_key_that_is_too_short_is_found_and_not_printed(machine: Machine) -> None:
    machine.run("init")
    key = machine.data / "secret.key"
    key.write_text("hush-hush")
    ((check, state, _, fix),) = machine.wrong()
    assert (check, state) == ("secret key", "problem")
    holds(fix, "back", key)


@SQLITE_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_a_secret_key_that_is_gone_is_put_back_and_no_other_is_made(machine: Machine) -> None:
    made = machine.init()
    assert made.code == 0
    key = machine.data / "secret.key"
    copy = key.read_bytes()
    for left in (None, b"", b"hush-hush"):
        key.unlink()
        if left is not None:
            key.write_bytes(left)
        for command in (("init",), ("serve",), ("ledger", "verify", "all")):
            refused = machine.run(*command)
            assert refused.code != 0
            holds(refused.err, "Put", "back", "void", "backup")
            assert "openssl" not in refused.err
        assert (key.read_bytes() if key.exists() else None) == left, "nothing is made"
        holds(machine.wrong()[0][3], "back", key)
        key.write_bytes(copy)
        key.chmod(0o600)
        assert machine.wrong() == [], "to put it back is enough"
    key.write_text("0" * 64)
    holds(machine.run("serve").err, "--old-key", "--accept")
    machine.run("ledger", "seal", "--accept").fine  # noqa: B018
    assert machine.wrong() == [], "without a copy"


@SQLITE_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_no_secret_is_printed(served_machine: Machine, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(secrets.token_hex(8))
    password.chmod(0o644)
    nowhere = "postgresql+psycopg://nobody:hush-hush@127.0.0.1:1/nothing"
    for variables in (
        {},
        {"TERRINE_DATABASE_URL": nowhere},
        {"TERRINE_DATABASE_URL": "mysql://root:hush-hush@host/x"},
        {"TERRINE_DATABASE_URL": nowhere, "TERRINE_DATABASE_PASSWORD_FILE": str(password)},
    ):
        for options in ((), ("--json",)):
            done = served_machine.run(*options, "doctor", **variables)
            assert done.err == ""
            for secret in (
                (served_machine.data / "secret.key").read_text(),
                password.read_text(),
                "hush-hush",
            ):
                assert secret not in done.out


def test_a_database_out_of_reach_is_found(machine: Machine, tmp_path: Path) -> None:
    machine.run("init")
    nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/nothing"
    ((check, state, found, fix),) = machine.wrong(TERRINE_DATABASE_URL=nowhere)
    assert (check, state) == ("database", "problem")
    assert "127.0.0.1" in found
    assert "TERRINE_DATABASE_URL" in fix
    gone = str(tmp_path / "gone")
    ((check, _, found, _),) = machine.wrong(TERRINE_DATABASE_PASSWORD_FILE=gone)
    assert check == "password"
    assert gone in found
    junk = tmp_path / "junk.sqlite"
    junk.write_bytes(bytes(range(256)) * 16)
    ((check, _, found, _),) = machine.wrong(TERRINE_DATABASE_URL=f"sqlite:///{junk}")
    assert check == "database"
    holds(found, "database")


def test_a_ledger_without_its_write_ahead_log_is_found(machine: Machine, tmp_path: Path) -> None:
    machine.run("init")
    copy = tmp_path / "copy.sqlite"
    copy.touch(mode=0o600)
    with closing(sqlite3.connect(str(make_url(machine.database_url).database))) as ledger:
        ledger.execute(f"VACUUM INTO '{copy}'")  # a copy has none
    other = {"TERRINE_DATABASE_URL": f"sqlite:///{copy}"}
    ((check, state, found, fix),) = machine.wrong(**other)
    assert (check, state, fix) == ("database", "problem", "terrine init")
    assert "delete" in found
    assert machine.run("init", **other).code == 0
    assert machine.wrong(**other) == []


def test_altered_missing_replaced_and_unregistered_ensembles_are_found(
    served_machine: Machine,
) -> None:
    kept = served_machine.ensemble.with_name("kept")
    shutil.copytree(served_machine.ensemble, kept)
    ((check, state, _, fix),) = served_machine.wrong()
    assert (check, state) == ("ensemble kept", "warning")
    assert fix.startswith("terrine ensemble register kept")

    weights = next(served_machine.ensemble.glob("teachers-*"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (check, state, found, fix), _ = served_machine.wrong()
    assert (check, state) == ("ensemble digits", "problem")
    assert str(weights) in found
    assert "Restore" in fix

    shutil.rmtree(served_machine.ensemble)
    assert served_machine.wrong()[0][:2] == ("ensemble digits", "problem")

    kept.rename(served_machine.ensemble)
    assert served_machine.wrong() == []
    manifest = served_machine.ensemble / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"units": 1200', '"units": 1201'))
    ((check, state, found, _),) = served_machine.wrong()
    assert (check, state) == ("ensemble digits", "problem")
    holds(found, "different")


@pytest.mark.usefixtures("each_database_url")
def test_what_the_tables_lack_is_found_and_init_restores_it(served_machine: Machine) -> None:
    charge(served_machine, 1)
    on_sqlite = served_machine.database_url.startswith("sqlite")
    on = " ON charges" * (not on_sqlite)
    with connect(as_owner(served_machine.database_url)).begin() as connection:
        connection.execute(text(f"DROP TRIGGER charges_no_update{on}"))
        connection.execute(text("DROP INDEX uq_charges_answered_input"))
    ((check, state, found, fix),) = served_machine.wrong()
    assert (check, state) == ("schema", "problem")
    holds(found, "missing", "trigger", "charges_no_update", "charges")
    holds(found, "missing", *(() if on_sqlite else ("unique",)), "uq_charges_answered_input")
    assert fix == "terrine init && terrine ledger verify all"
    printed = served_machine.init().fine
    holds(printed, "charges_no_update", "charges")
    assert "terrine ledger verify all" in printed
    assert served_machine.wrong() == []
    assert "Restored" not in served_machine.init().fine


@SQLITE_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_what_no_statement_restores_needs_a_backup(served_machine: Machine) -> None:
    with connect(as_owner(served_machine.database_url)).begin() as connection:
        connection.execute(text("ALTER TABLE tokens RENAME COLUMN label TO marked"))
    check, state, found, fix = next(
        each for each in served_machine.wrong() if says(each[2], "cannot", "restored")
    )
    assert (check, state) == ("schema", "problem")
    on_sqlite = served_machine.database_url.startswith("sqlite")
    assert ("changed: table tokens" if on_sqlite else "missing: column label of tokens") in found
    assert "backup" in fix


@pytest.mark.parametrize(
    "forgery",
    [
        "UPDATE projects SET head = genesis",
        "UPDATE projects SET charges = charges - 1",
        "DELETE FROM charges WHERE seq = 2",
    ],
)
def test_a_last_entry_that_does_not_match_the_balance_is_found(
    served_machine: Machine, forgery: str
) -> None:
    charge(served_machine, 1, 2)
    with unguarded(served_machine.database_url) as connection:
        connection.execute(text(forgery))
    (_, state, found, fix), *others = beside_schema(served_machine)
    assert others == []
    assert state == "problem"
    assert "study" in found
    assert fix == "terrine ledger verify study"
    assert served_machine.run("ledger", "verify").code == 1


def test_a_charge_from_the_future_is_found(
    served_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    with monkeypatch.context() as ahead:
        ahead.setattr("terrine_server.ledger.database.now", lambda: later)
        charge(served_machine, 1)
    ((check, state, found, fix),) = served_machine.wrong()
    assert (check, state) == ("clock", "problem")
    assert f"{later:%Y-%m-%d}" in found
    assert "set-ntp" in fix


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("finding", "state"),
    [
        (check_newest_charge(NOW, None), "ok"),
        *(
            (check_newest_charge(NOW, NOW + timedelta(seconds=seconds)), state)
            for seconds, state in ((0.5, "ok"), (2, "problem"))
        ),
        *(
            (compare_clocks(NOW, NOW + timedelta(seconds=seconds)), state)
            for seconds, state in (
                (0.2, "ok"),
                (-0.2, "ok"),
                (5, "warning"),
                (-5, "warning"),
                (90, "problem"),
            )
        ),
        *(
            (check_disk(Path("/var/lib/terrine"), free), state)
            for free, state in (
                (LOW_DISK_BYTES, "ok"),
                (LOW_DISK_BYTES - 1, "warning"),
                (FULL_DISK_BYTES, "warning"),
                (0, "problem"),
            )
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else each.check,
)
def test_clocks_and_disks_are_judged_by_how_far_they_are_off(finding: Finding, state: str) -> None:
    assert finding.state == state


def sound() -> dict[str, str]:
    right = {name: min(values) for name, (values, _) in POSTGRESQL_SETTINGS.items()}
    return {"server_version": "16.4 (Debian)", "server_version_num": "160004", **right}


def test_a_postgresql_that_may_lose_charges_is_found() -> None:
    assert {finding.state for finding in check_postgresql(sound(), standby=False)} == {"ok"}
    for name in POSTGRESQL_SETTINGS:
        (_, found) = check_postgresql(sound() | {name: "sideways"}, standby=False)
        assert (found.check, found.state) == ("durability", "problem")
        assert found.fix
    (_, found, _) = check_postgresql(sound(), standby=True)
    assert "standby" in found.found
    (found, _) = check_postgresql(sound() | {"server_version_num": "130020"}, standby=False)
    assert found.state == "warning"


@contextmanager
def altered(url: str, alter: str, restore: str) -> Iterator[None]:
    """Change a setting of a real PostgreSQL for the duration of the context."""
    plain = (
        make_url(as_owner(url)).set(drivername="postgresql").render_as_string(hide_password=False)
    )
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(alter)
        connection.execute("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            connection.execute(restore)
            connection.execute("SELECT pg_reload_conf()")


@POSTGRES
def test_a_real_postgresql_with_unsafe_settings_is_found(served_machine: Machine) -> None:
    url = served_machine.database_url
    database = f'ALTER DATABASE "{make_url(url).database}"'
    with altered(
        url, "ALTER SYSTEM SET full_page_writes = off", "ALTER SYSTEM RESET full_page_writes"
    ):
        ((check, state, _, fix),) = served_machine.wrong()
        assert (check, state) == ("durability", "problem")
        assert fix == "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf();"
    only = "default_transaction_read_only"
    with altered(url, f"{database} SET {only} = on", f"{database} RESET {only}"):
        assert "read_only" in served_machine.wrong()[0][2]
    assert served_machine.wrong() == []


@contextmanager
def without_room(disk: Path) -> Iterator[None]:
    """Fill a disk, and free it again."""
    filler = fill(disk)
    yield
    filler.unlink()


@contextmanager
def mounted_read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


@contextmanager
def held_file(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def another_in_its_place(path: Path, content: bytes | None) -> Iterator[None]:
    """Other bytes, or a directory, where the ledger's file was."""
    kept = path.rename(path.with_name("kept"))
    if content is None:
        path.mkdir()
    else:
        path.touch(mode=0o600)
        path.write_bytes(content)
    yield
    path.rmdir() if content is None else path.unlink()
    kept.rename(path)


FILE_FAILURES: dict[str, tuple[Callable[[Path], AbstractContextManager[None]], str]] = {
    "a full disk": (lambda path: without_room(path.parent), "space"),
    "mounted read-only": (lambda path: mounted_read_only(path.parent), "TERRINE_DATABASE_URL"),
    "locked": (held_file, "ended"),
    "no database": (lambda path: another_in_its_place(path, b"no database" * 500), "restore"),
    "a directory": (lambda path: another_in_its_place(path, None), "TERRINE_DATABASE_URL"),
}


def test_the_remedy_for_a_file_follows_the_cause(
    served_machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once what it says is done, nothing is wrong any more."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    with small_disk("1m") as disk:
        path = disk / "terrine.sqlite"
        path.touch(mode=0o600)
        with closing(sqlite3.connect(str(make_url(served_machine.database_url).database))) as made:
            made.execute(f"VACUUM INTO '{path}'")
        with closing(sqlite3.connect(path)) as copy:
            copy.execute("PRAGMA journal_mode = WAL")

        def wrong() -> list[tuple[str, str, str, str]]:
            found = served_machine.wrong(TERRINE_DATABASE_URL=f"sqlite:///{path}")
            return [finding for finding in found if finding[0] != "disk"]

        assert wrong() == []
        for failure, (breaking, remedy) in FILE_FAILURES.items():
            with breaking(path):
                found = wrong()
            assert {finding[:2] for finding in found} == {("database", "problem")}, failure
            holds(found[-1][3], remedy)
            assert ("TERRINE_DATABASE_URL" in found[-1][3]) == (remedy == "TERRINE_DATABASE_URL")
            assert wrong() == [], failure


@contextmanager
def done_and_undone(server: Postgres, database: str, do: str, undo: str) -> Iterator[None]:
    with server.connect(database) as connection:
        for statement in do.split(";"):
            connection.execute(statement)
        try:
            yield
        finally:
            for statement in undo.split(";"):
                connection.execute(statement)


@contextmanager
def admitted_otherwise(server: Postgres, line: str) -> Iterator[None]:
    """With another first line in pg_hba.conf."""
    with server.connect() as connection:
        ((file,),) = connection.execute("SHOW hba_file").fetchall()
        kept = Path(file).read_text()
        try:
            Path(file).write_text(f"{line}\n{kept}")
            connection.execute("SELECT pg_reload_conf()")
            yield
        finally:
            Path(file).write_text(kept)
            connection.execute("SELECT pg_reload_conf()")


SERVER_FAILURES: dict[str, tuple[str, str, str]] = {
    "locked": ("BEGIN; LOCK TABLE tokens", "ROLLBACK", "pg_stat_activity"),
    "no connection left": (
        f"ALTER ROLE {SERVICE} CONNECTION LIMIT 0",
        f"ALTER ROLE {SERVICE} CONNECTION LIMIT -1",
        "LIMIT",
    ),
    "no login": (f"ALTER ROLE {SERVICE} NOLOGIN", f"ALTER ROLE {SERVICE} LOGIN", "LOGIN"),
    "read-only": (
        f"ALTER ROLE {SERVICE} SET default_transaction_read_only = on",
        f"ALTER ROLE {SERVICE} RESET default_transaction_read_only",
        "default_transaction_read_only",
    ),
    "no temporary tables": (
        "REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC",
        "GRANT TEMPORARY ON DATABASE {database} TO PUBLIC",
        "TEMPORARY",
    ),
}


ADDRESSES: list[tuple[dict[str, Any], str]] = [
    ({"database": "nothing"}, "DATABASE"),
    ({"username": "nobody_here"}, "ROLE"),
    ({"host": "127.0.0.1", "port": 1, "query": {}}, "port"),
    ({"host": "no-such-host.invalid", "query": {}}, "container"),
    ({"query": {"host": "/nowhere"}}, "host"),
    ({"drivername": "mysql"}, "TERRINE_DATABASE_URL"),
]


@POSTGRES
def test_the_remedy_for_a_server_follows_the_cause(
    served_machine: Machine,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    url = make_url(served_machine.database_url)
    name = str(url.database)
    for failure, (do, undo, remedy) in SERVER_FAILURES.items():
        with done_and_undone(postgres, name, do.format(database=name), undo.format(database=name)):
            found = served_machine.wrong()
        assert {state for _, state, *_ in found} == {"problem"}, failure
        holds(found[-1][3], remedy)
        assert served_machine.wrong() == [], failure
    for change, remedy in ADDRESSES:
        other = url.set(**change).render_as_string(hide_password=False)
        ((check, state, _, fix),) = served_machine.wrong(TERRINE_DATABASE_URL=other)
        assert (check, state) == ("database", "problem")
        holds(fix, remedy, "TERRINE_DATABASE_URL")
    password = tmp_path / "password"
    password.write_text("another")
    password.chmod(0o600)
    given = {"TERRINE_DATABASE_PASSWORD_FILE": str(password)}
    for method, remedy in (("reject", "pg_hba.conf"), ("scram-sha-256", "password")):
        with admitted_otherwise(postgres, f"local all {SERVICE} {method}"):
            ((check, state, _, fix),) = served_machine.wrong(**given)
            assert (check, state) == ("database", "problem")
            holds(fix, remedy)
    with admitted_otherwise(postgres, f"local all {SERVICE} scram-sha-256"):
        with postgres.connect() as connection:
            connection.execute(f"ALTER ROLE {SERVICE} PASSWORD 'another'".encode())
        assert served_machine.wrong(**given) == []


@POSTGRES
@pytest.mark.nightly
def test_a_full_disk_of_postgresql_and_a_damaged_page_are_told_apart(
    served_machine: Machine, postgres: Postgres
) -> None:
    name = str(make_url(served_machine.database_url).database)
    with small_disk("1m") as disk, postgres.connect(name) as connection:
        ((data,),) = connection.execute("SHOW data_directory").fetchall()
        owner = Path(data).stat()
        small = disk / "small"
        small.mkdir()
        os.chown(small, owner.st_uid, owner.st_gid)
        connection.execute(f"CREATE TABLESPACE small LOCATION '{small}'".encode())
        try:
            connection.execute("GRANT CREATE ON TABLESPACE small TO PUBLIC")
            connection.execute(f"ALTER DATABASE {name} SET temp_tablespaces = small".encode())
            assert served_machine.wrong() == []
            with without_room(disk):
                ((check, state, _, fix),) = served_machine.wrong()
                assert (check, state) == ("database", "problem")
                holds(fix, "space")
            assert served_machine.wrong() == []
        finally:
            connection.execute(f"ALTER DATABASE {name} RESET temp_tablespaces".encode())
            connection.execute("DROP TABLESPACE small")
    with postgres.connect(name) as connection:
        found = connection.execute("SELECT pg_relation_filepath('projects')").fetchone()
        assert found is not None
        connection.execute("CHECKPOINT")
    page = Path(data, found[0])
    kept = page.read_bytes()
    for content, problems in ((b"\xff" * len(kept), 1), (kept, 0)):
        postgres.kill()
        page.write_bytes(content)
        postgres.start()
        wrong = served_machine.wrong()
        assert len(wrong) == problems
        for _, _, _, fix in wrong:
            holds(fix, "restore")


# ------------------------------------------------------- files that other accounts may use


def open_to_others(directory: Path) -> dict[str, str]:
    """The files and directories that other accounts may use, with their modes."""
    return {
        str(path.relative_to(directory.parent)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in (directory, *directory.rglob("*"))
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    }


def test_teachers_trained_before_init_and_all_that_follows_are_private(
    terrine: Terrine, database_url: str, tmp_path: Path
) -> None:
    data, records = tmp_path / "data", tmp_path / "private.npz"
    draws = np.random.default_rng(0)
    inputs = draws.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    np.savez(records, x=inputs, y=np.arange(60) % 3, classes=["a", "b", "c"])
    train = ("--name", "digits", "--teachers", 5, "--kind", "heads:augmentations=1")
    trained = terrine("ensemble", "train", records, *train)
    assert trained.code == 0, trained.err
    assert open_to_others(data) == {}
    assert terrine("init").code == 0
    cap = ("--epsilon", "20", "--delta", "1e-3")
    assert terrine("ensemble", "register", "digits", *cap).code == 0
    log = tmp_path / "log.jsonl"
    assert terrine("ledger", "export", "--output", log).code == 0
    assert open_to_others(data) == {}
    assert log.stat().st_mode & 0o077 == 0


def test_the_doctor_closes_what_is_open_only_when_it_is_told_to(
    terrine: Terrine, database_url: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    assert terrine("init").code == 0
    opened = [data, data / "secret.key", data / "terrine.sqlite"]
    for path in opened:
        path.chmod(path.stat().st_mode | 0o055)
    assert terrine("doctor").code == 1
    assert len(open_to_others(data)) == 3
    done = terrine("doctor", "--fix")
    assert done.code == 0, done.out
    assert [says(done.err, "Closed", path) for path in opened] == [True] * 3
    assert open_to_others(data) == {}
    assert terrine("doctor", "--fix").err == ""
