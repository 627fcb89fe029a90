"""`terrine backup` and `terrine restore`: whole or not at all, and never believed too much."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import Engine, create_engine, text

from support import processes
from support.data import KEPT, RECORDS_KEY
from support.databases import POSTGRESQL_BY_DAY, SECRET_KEY, SERVICE, Copies, as_owner
from support.ledgers import answered, charge_one
from support.processes import Done, Terrine, at_once
from support.servers import Machine, question, serving_process
from support.wording import holds
from support.workers import restore_but_die
from terrine_protocol import ProjectStatus
from terrine_server.ledger import Ledger, connect, copies, database, definitions
from terrine_server.owner import backup as backups
from terrine_server.owner import checkpoints
from terrine_server.owner.editions import records_key
from terrine_server.owner.sign_in import keep_token_key
from terrine_server.settings import Settings


class Service:
    """A machine, its owner's commands, and the sessions that its databases have."""

    def __init__(self, machine: Machine, engines: list[Engine], out: Path) -> None:
        self.machine, self.data, self.out = machine, machine.data, out
        self._engines = engines

    @property
    def owners_url(self) -> str:
        return as_owner(self.machine.database_url)

    @property
    def file(self) -> Path:
        """The ledger's file, on SQLite."""
        return Path(self.machine.database_url.removeprefix("sqlite:///"))

    @property
    def settings(self) -> Settings:
        return Settings(data_dir=self.data, database_url=self.owners_url)

    @property
    def ledger(self) -> Ledger:
        return self.machine.ledger

    def run(self, *words: object) -> str:
        """Run a command, which must succeed, and return what it said."""
        return self.machine.run(*words).fine

    def backup(self, name: str = "one") -> Path:
        """Make a backup as the tables' owner, who may read all of them."""
        self.back_up(name).fine  # noqa: B018 - it must have succeeded
        return self.out / name

    def back_up(self, name: str = "one") -> Done:
        return self.machine.run("backup", self.out / name, TERRINE_DATABASE_URL=self.owners_url)

    def replace(self, backup: Path) -> str:
        """Restore in the place of what is there, and return what was said."""
        return self.restore(backup, "--replace").fine

    def restore(self, backup: Path, *options: str) -> Done:
        """Restore as the tables' owner; sessions of earlier commands have ended with them."""
        self.disconnect()
        return self.machine.run("restore", backup, *options, TERRINE_DATABASE_URL=self.owners_url)

    def disconnect(self) -> None:
        for engine in self._engines:
            engine.dispose()

    def charge(self, count: int) -> None:
        """Let a student of its own spend something, without a server."""
        name = f"spent-{len(self.ledger.projects.list_names())}"
        self.machine.student(name, count)
        ledger = self.ledger
        charge_one(ledger, ledger.projects.get(name).id, [answered(i) for i in range(count)])

    def state(self) -> dict[str, Any]:
        """What its ledger and its files are."""
        ledger = self.ledger
        return {
            "heads": {
                name: ledger.projects.get(name).head for name in ledger.projects.list_names()
            },
            "log": [entry.action for entry in ledger.log.list(limit=1000)],
            "files": {
                str(path.relative_to(self.data)): path.read_bytes()
                for path in sorted((self.data / "ensembles").rglob("*"))
                if path.is_file()
            },
        }


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Engine]]:
    """All that connect to databases; in the end their sessions are closed."""
    found: list[Engine] = []

    def remembered(*given: Any, **named: Any) -> Engine:
        found.append(create_engine(*given, **named))
        return found[-1]

    monkeypatch.setattr(database, "create_engine", remembered)
    yield found
    for engine in found:
        engine.dispose()


@pytest.fixture
def service(engines: list[Engine], served_machine: Machine, tmp_path: Path) -> Service:
    checkpoints.make_checkpoint_key(served_machine.data / "checkpoint.key")
    return Service(served_machine, engines, tmp_path / "backups")


def test_old_backups_go_once_a_new_one_is_good(service: Service) -> None:
    """All but the newest good ones, of those that were made so."""
    place = {"TERRINE_DATABASE_URL": service.owners_url}

    def keep(most: int) -> Done:
        return service.machine.run("backup", service.out, "--keep", most, **place)

    by_hand = service.backup("by-hand")
    names = [f"2026-01-0{day}T03-00-00Z" for day in range(1, 5)]
    for name in names:
        shutil.copytree(by_hand, service.out / name)
    first, second, damaged, newest = (service.out / name for name in names)
    (damaged / backups.LEDGER).unlink()
    (service.out / "2026-01-05T03-00-00Z").write_text("no directory")

    manifest = next(service.data.glob("ensembles/*/manifest.json"))
    as_it_was = manifest.read_bytes()
    manifest.write_bytes(as_it_was + b" ")
    assert keep(1).code == 1
    assert all(each.exists() for each in (first, second, newest)), "the new one is not good"
    manifest.write_bytes(as_it_was)

    said = keep(2).fine
    last = max(each for each in service.out.glob("2*Z") if each.is_dir())
    assert last > newest
    assert backups.check(last, SECRET_KEY).files == backups.check(newest, SECRET_KEY).files
    assert not first.exists()
    assert not second.exists()
    assert damaged.exists()
    assert by_hand.exists()
    for each in (last, first, second):
        holds(said, each.name)


@dataclass
class Elsewhere:
    """Another machine, on which there is nothing but the secret key."""

    data: Path
    terrine: Terrine
    key: bytes = SECRET_KEY

    def __post_init__(self) -> None:
        self.data.mkdir(mode=0o700)
        (self.data / "secret.key").write_bytes(self.key)
        (self.data / "secret.key").chmod(0o600)

    @property
    def machine(self) -> Machine:
        return Machine(self.data, f"sqlite:///{self.data / 'terrine.sqlite'}", self.terrine)

    @property
    def variables(self) -> dict[str, str]:
        url = self.machine.database_url
        return {"TERRINE_DATA_DIR": str(self.data), "TERRINE_DATABASE_URL": url}

    def run(self, *words: object) -> str:
        return self.terrine(*words, **self.variables).fine

    def refuse(self, *words: object) -> str:
        return self.terrine(*words, **self.variables).refused


@pytest.fixture
def new(service: Service, tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path / "new", service.machine.run)


@pytest.mark.usefixtures("each_database_url")
def test_a_backup_is_restored_on_another_machine_which_answers_and_verifies(
    service: Service, new: Elsewhere
) -> None:
    machine = service.machine
    headers = machine.student("paid", 20)
    with serving_process(machine) as server:
        first = httpx.post(f"{server.url}/label", json=question(1), headers=headers).json()
    made = service.back_up().fine
    holds(made, machine.data / "secret.key")
    modes = {
        stat.S_IMODE(path.stat().st_mode)
        for path in (service.out / "one", *(service.out / "one").rglob("*"))
    }
    assert modes == {0o600, 0o700}
    holds(new.run("restore", service.out / "one"), "paid", "study")
    holds(new.run("ledger", "verify", "all"), "paid", "intact", 1)
    assert new.machine.wrong(**new.variables) == []
    new.run("project", "resume", "paid")
    with serving_process(new.machine) as server:
        replies = [
            httpx.post(f"{server.url}/label", json=question(n), headers=headers) for n in (1, 2)
        ]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].json()["results"] == [{**first["results"][0], "replayed": True}]
    holds(new.run("ledger", "verify", "all"), "paid", "intact", 2)
    assert "ledger-restored" in [entry.action for entry in new.machine.ledger.log.list()]


@POSTGRESQL_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_what_is_charged_while_a_backup_is_made_is_in_it_or_not_and_it_verifies(
    service: Service, new: Elsewhere
) -> None:
    machine = service.machine
    headers = machine.student("paid", 200)
    with serving_process(machine) as server, httpx.Client(headers=headers, timeout=60) as client:

        def work(thread: int) -> None:
            for number in range(2 if thread else 20):
                if thread:
                    backups.back_up(service.settings, service.out / str(number))
                else:
                    client.post(f"{server.url}/label", json=question(number)).raise_for_status()

        at_once(2, work)
    found = [backups.check(service.out / str(number), SECRET_KEY) for number in range(2)]
    assert [each.charges for each in found] == sorted(each.charges for each in found)
    new.run("restore", service.out / "1")
    holds(new.run("ledger", "verify", "all"), "paid", "intact")


@pytest.mark.usefixtures("each_database_url")
def test_an_older_backup_is_restored_into_a_newer_schema(service: Service) -> None:
    """With a table that the backup's version does not know, and that refers to one that it does."""
    before = service.state()
    made = service.backup()
    service.charge(3)
    engine = connect(service.owners_url)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE later (id INTEGER PRIMARY KEY, p INTEGER REFERENCES projects (id))")
        )
        connection.execute(text("INSERT INTO later VALUES (1, 1)"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    refused = service.restore(made).refused
    holds(refused, "--replace")
    said = service.replace(made)
    service.disconnect()
    after = service.state()
    assert after["heads"] == before["heads"]
    assert after["files"] == before["files"]
    assert after["log"][: len(before["log"])] == before["log"]
    assert after["log"][len(before["log"]) :] == ["project-paused", "ledger-restored"]
    assert definitions.schema_differences(connect(service.owners_url)) == []
    assert service.machine.wrong() == []
    # What gave way is whole.
    if engine.dialect.name == "sqlite":
        (kept,) = service.data.glob("before-restore-*/terrine.sqlite")
        holds(said, kept.parent)
        counted = copies.file_engine(kept)
        with counted.connect() as connection:
            assert connection.execute(text("SELECT count(*) FROM charges")).scalar() == 3
        return
    with engine.connect() as connection:
        (name,) = connection.execute(
            text("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'before_restore%'")
        ).scalars()
        holds(said, name)
        for table, count in (("charges", 3), ("later", 1)):
            query = text(f"SELECT count(*) FROM {name}.{table}")
            assert connection.execute(query).scalar() == count


@POSTGRESQL_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_after_a_restore_the_service_charges_opens_and_registers_with_its_own_role(
    service: Service,
) -> None:
    headers = service.machine.student("paid", 20)
    made = service.backup()
    service.replace(made)
    service.machine.ledger.projects.set_status("paid", ProjectStatus.ACTIVE)
    with serving_process(service.machine) as server:
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        reply = httpx.post(f"{server.url}/label", json=question(5), headers=headers)
        assert reply.status_code == 200
    service.machine.student("another", 5)  # with an id that is free
    assert service.machine.run("ledger", "verify", "all").code == 0


@pytest.mark.usefixtures("each_database_url")
def test_a_restore_waits_for_nobody_and_refuses_while_a_server_runs(service: Service) -> None:
    made = service.backup()
    with serving_process(service.machine):
        refused = service.restore(made, "--replace").refused
    holds(refused, SERVICE if service.owners_url.startswith("postgresql") else "terrine.sqlite")
    assert not list(service.data.glob("before-restore-*"))
    service.replace(made)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_who_does_not_own_the_tables_cannot_restore(service: Service) -> None:
    made = service.backup()
    service.disconnect()
    refused = service.machine.run("restore", made, "--replace").refused
    holds(refused, SERVICE, "migrate")


def test_a_backup_is_not_overwritten(service: Service) -> None:
    made = service.backup()
    holds(service.back_up().refused, made)


def test_every_file_that_is_altered_missing_or_added_is_refused(
    service: Service, new: Elsewhere, tmp_path: Path
) -> None:
    made = service.backup()
    names = [*json.loads((made / "backup.json").read_text())["files"], "backup.json"]
    assert {"ledger.sqlite", "checkpoint.key", "ensembles/digits/manifest.json"} <= set(names)
    for name in names:
        for edit in (altered, Path.unlink):
            copy = Path(shutil.copytree(made, tmp_path / "copy"))
            edit(copy / name)
            holds(new.refuse("restore", copy), copy / name)
            shutil.rmtree(copy)
    (made / "ensembles" / "digits" / "more").write_bytes(b"")
    holds(new.refuse("restore", made), made / "ensembles/digits/more")
    assert [path.name for path in new.data.iterdir()] == ["secret.key"]


def altered(path: Path) -> None:
    """Change one byte in the middle: of the manifest, one of a digest."""
    data = bytearray(path.read_bytes())
    place = data.index(b'"sha256": "') + 12 if path.name == "backup.json" else len(data) // 2
    data[place] = ord("0") if data[place] != ord("0") else ord("1")
    path.write_bytes(bytes(data))


def test_another_secret_key_is_refused(service: Service, tmp_path: Path) -> None:
    made = service.backup()
    other = Elsewhere(tmp_path / "other", service.machine.run, key=b"x" * 64)
    holds(other.refuse("restore", made), "key")
    (other.data / "secret.key").unlink()
    holds(other.refuse("restore", made), other.data / "secret.key")
    assert list(other.data.iterdir()) == []


def test_a_backup_of_a_newer_version_is_refused(service: Service, new: Elsewhere) -> None:
    made = service.backup()
    found = backups.check(made, SECRET_KEY)
    with closing(sqlite3.connect(made / "ledger.sqlite")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    files = {**found.files, "ledger.sqlite": backups._describe_file(made / "ledger.sqlite")}
    newer = found.model_copy(update={"files": files, "revision": "9999"}).sealed(SECRET_KEY)
    (made / "backup.json").write_text(newer.model_dump_json())
    holds(new.refuse("restore", made), "newer")
    assert not list(new.data.glob("*restor*"))


def test_a_ledger_that_does_not_verify_is_not_backed_up(service: Service) -> None:
    service.charge(2)
    service.disconnect()
    with closing(sqlite3.connect(service.file)) as connection, connection:
        for (trigger,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'charges'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("UPDATE charges SET cost = cost - 1")
    refused = service.back_up().refused
    holds(refused, "spent-1")
    assert list(service.out.iterdir()) == []


def test_files_that_are_not_those_registered_are_not_backed_up(service: Service) -> None:
    features = service.data / "ensembles" / "digits" / "features.safetensors"
    kept = features.read_bytes()
    features.write_bytes(kept[:-1] + b"\0")
    holds(service.back_up().refused, features.name)
    features.unlink()
    assert service.back_up().code == 1
    shutil.rmtree(features.parent)
    holds(service.back_up().refused, "digits")
    service.ledger.projects.set_status("study", ProjectStatus.CLOSED)
    holds(service.back_up().fine, "digits", "gone")


def test_a_damaged_ledger_gives_way_and_is_kept(service: Service) -> None:
    made, file = service.backup(), service.file
    service.disconnect()
    file.write_bytes(b"damaged" * 1000)
    holds(service.restore(made).refused, "--replace")
    service.replace(made)
    (aside,) = service.data.glob("before-restore-*")
    assert (aside / file.name).read_bytes() == b"damaged" * 1000
    assert service.machine.wrong() == []


def test_what_was_signed_after_the_backup_is_not_forgotten(service: Service) -> None:
    checkpoints.sign_now(service.ledger, service.settings)
    made = service.backup()
    service.charge(4)
    checkpoints.sign_now(service.ledger, service.settings)
    signed = service.data / "checkpoint.signed"
    kept, key = signed.read_bytes(), (service.data / "checkpoint.key").read_bytes()
    said = service.replace(made)
    assert signed.read_bytes() == kept
    holds(said, "checkpoint.signed")
    holds(said, "restored", 6)  # four charges, a project and a token
    # A log that has ended is not begun again.
    (service.data / "checkpoint.key.0001").write_bytes(key)
    (service.data / "checkpoint.key").unlink()
    checkpoints.make_checkpoint_key(service.data / "checkpoint.key", "another.example/log")
    another = (service.data / "checkpoint.key").read_bytes()
    service.replace(made)
    assert (service.data / "checkpoint.key").read_bytes() == another
    assert signed.read_bytes() == kept


def test_on_a_machine_with_another_log_that_of_the_backup_goes_on(
    service: Service, new: Elsewhere
) -> None:
    checkpoints.sign_now(service.ledger, service.settings)
    made = service.backup()
    new.run("init")
    other = (new.data / "checkpoint.key").read_bytes()
    service.disconnect()
    new.run("restore", made)
    for name in ("checkpoint.key", "checkpoint.signed"):
        assert (new.data / name).read_bytes() == (service.data / name).read_bytes()
    (aside,) = new.data.glob("before-restore-*")
    assert (aside / "checkpoint.key").read_bytes() == other


def test_every_file_that_the_product_writes_is_inside_or_named_as_left_out(
    service: Service,
) -> None:
    checkpoints.sign_now(service.ledger, service.settings)
    records_key(service.settings, make=True)
    keep_token_key(service.settings, SECRET_KEY)
    key = checkpoints.load_checkpoint_key(service.data / "checkpoint.key")
    assert key is not None
    (service.data / "policy").write_text(f"log {key.verifier}\nquorum none\n")
    shutil.copytree(KEPT / "heads", service.data / "ensembles" / "heads")  # not registered yet
    found = backups.check(service.backup(), SECRET_KEY)
    there = {
        str(path.relative_to(service.data)) for path in service.data.rglob("*") if path.is_file()
    }
    left_out = {name.removeprefix(f"{service.data}/") for name in found.left_out}
    ledger = {f"terrine.sqlite{suffix}" for suffix in ("", "-wal", "-shm")}
    there.remove("backup.last")  # which says when, and is of no use elsewhere
    assert there - ledger - left_out == found.files.keys() - {"ledger.sqlite"}
    assert {"records.key", "token.key", "policy", "checkpoint.signed"} <= found.files.keys()
    assert left_out == {"secret.key"}


def test_people_are_found_again_after_a_restore_and_their_accounts_are_spent(
    service: Service, tmp_path: Path
) -> None:
    (service.data / "records.key").write_bytes(RECORDS_KEY)
    (service.data / "records.key").chmod(0o600)
    shutil.copytree(KEPT / "people", service.data / "ensembles" / "people")
    run = service.run
    run(
        *("ensemble", "register", "people", "--population", "patients", "--disjoint"),
        *("--epsilon", 20, "--delta", "1e-3"),
    )
    run(
        *("project", "open", "near", "--ensemble", "people", "--mechanism"),
        *("neighbours:sigma=15,queries=40", "--epsilon", 10, "--delta", "1e-4"),
    )
    first = service.backup("first")
    who = tmp_path / "who.npz"
    np.savez(who, group=np.array(["person 3"]))
    run("ensemble", "forget", "--who", who, "--population", "patients", "--yes")
    second = service.backup("second")
    edition = service.data / "ensembles" / "people" / "edition-2"
    assert edition.is_dir()
    said = service.replace(first)
    holds(said, "near", "spent")
    assert not edition.exists()
    assert service.machine.wrong() == []
    run("ensemble", "forget", "--who", who, "--population", "patients", "--yes")
    assert edition.is_dir()
    # Back to the other history, whose second edition has other files.
    service.replace(second)
    assert service.machine.wrong() == []
    assert service.ledger.ensembles.get("people").current.manifest_sha256


@POSTGRESQL_BY_DAY
@pytest.mark.slow
@pytest.mark.usefixtures("each_database_url")
@pytest.mark.parametrize("finer", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_restore_that_is_killed_leaves_the_old_state_or_completes_the_new_one(
    service: Service, tmp_path: Path, finer: int
) -> None:
    made = service.backup()
    before = service.state()
    service.charge(3)
    extra = service.data / "ensembles" / "digits" / "note.safetensors"
    extra.write_bytes(b"makes the directory another one")
    old = service.state()
    service.disconnect()
    database_copy = Copies(service.machine.database_url, tmp_path)
    kept, files = database_copy.make(), tmp_path / "files"
    shutil.copytree(service.data, files)

    def reset() -> None:
        service.disconnect()
        shutil.rmtree(service.data)
        shutil.copytree(files, service.data)
        database_copy.restore(kept)

    def restore_until(step: int) -> int | None:
        """Return the exit code of a restore that is killed at this step."""
        given = (str(service.data), service.owners_url, str(made), step, str(tmp_path / "steps"))
        process = processes.start(restore_but_die, *given)
        process.join()
        return process.exitcode

    reset()
    assert restore_until(10**9) == 0
    steps = int((tmp_path / "steps").read_text())
    another, decided = service.backup("another"), 0
    reset()
    for step in [*range(0, steps, 60 // finer), *range(steps - 8, steps, 2 // finer)]:
        reset()
        assert restore_until(step) == -signal.SIGKILL
        if (service.data / "restoring").exists():
            decided += 1
            for words in (("serve", "--port", "0"), ("init",), ("project", "show")):
                holds(service.machine.run(*words).refused, "interrupted")
            holds(service.restore(another, "--replace").refused, "interrupted")
            assert service.machine.doctor()["ok"] is False
        else:
            assert service.state() == old or new_state(service, before)
        service.replace(made)
        assert new_state(service, before), step
        assert not list(service.data.glob("*restoring*"))
    assert decided >= 2 * finer


def new_state(service: Service, before: dict[str, Any]) -> bool:
    found = service.state()
    same = all(found[name] == before[name] for name in ("heads", "files"))
    paused = {service.ledger.projects.get(name).status for name in found["heads"]}
    return same and paused == {ProjectStatus.PAUSED} and "ledger-restored" in found["log"]
