"""`terrine upgrade`: what this version could not serve is not migrated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sqlalchemy import text

from support.data import KEPT
from support.databases import SECRET_KEY, as_owner
from support.forgeries import BEFORE, old_ledger, with_manifests
from support.processes import Done
from support.servers import Machine
from support.wording import holds
from terrine_models.storage.manifests import manifest_digest
from terrine_server.ledger import connect

KINDS = {"mnist": "heads", "spare": "forests", "thousand": "people"}
"""The ensembles of the old ledger, and what their files are."""


def place(machine: Machine, manifest: str | None = None) -> None:
    """Make an old ledger, and the files of its ensembles; `manifest`: another text of mnist's."""
    for name, kept in KINDS.items():
        shutil.copytree(KEPT / kept, machine.data / "ensembles" / name)
    if manifest is not None:
        (machine.data / "ensembles" / "mnist" / "manifest.json").write_text(manifest)
    digests = {name: manifest_digest(machine.data / "ensembles" / name) for name in KINDS}
    url = as_owner(machine.database_url)
    old_ledger(url, machine.data, with_manifests(**digests)).dispose()
    (machine.data / "before.sqlite").unlink()
    (machine.data / "secret.key").write_bytes(SECRET_KEY)
    (machine.data / "secret.key").chmod(0o600)
    machine.data.chmod(0o700)


def unreadable() -> str:
    document = json.loads((KEPT / "heads" / "manifest.json").read_text())
    document["teacher"]["kind"] = "oracle"
    document["versions"]["terrine"] = "0.9.1"
    return json.dumps(document)


def revision(machine: Machine) -> str:
    with connect(as_owner(machine.database_url)).connect() as connection:
        found: str = connection.execute(
            text("SELECT version_num FROM alembic_version")
        ).scalar_one()
    return found


def as_owner_of(machine: Machine, *words: str) -> Done:
    """Run a command as the tables' owner."""
    return machine.run(*words, TERRINE_DATABASE_URL=as_owner(machine.database_url))


def findings(machine: Machine) -> dict[str, tuple[str, str, str]]:
    """Return what `upgrade --check` finds, by what it looked at: state, finding and fix."""
    done = as_owner_of(machine, "--json", "upgrade", "--check")
    report = json.loads(done.out)
    assert done.code == (0 if report["ok"] else 1)
    return {
        each["check"]: (each["state"], each["found"], each["fix"]) for each in report["findings"]
    }


def all_files(machine: Machine) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in machine.data.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("each_database_url")
def test_what_will_be_served_is_said_and_then_migrated(machine: Machine) -> None:
    place(machine)
    before = all_files(machine)
    found = findings(machine)
    assert all_files(machine) == before, "the check changes nothing"
    assert {state for state, _, _ in found.values()} == {"ok"}
    holds(found["ledger"][1], "Migrations")
    assert {f"ensemble {name}" for name in KINDS} <= found.keys()
    assert revision(machine) == BEFORE
    assert as_owner_of(machine, "upgrade").code == 0
    assert revision(machine) > BEFORE
    assert findings(machine)["ledger"][0] == "ok"


@pytest.mark.usefixtures("each_database_url")
def test_nothing_is_migrated_for_a_version_that_cannot_read_an_ensemble(machine: Machine) -> None:
    place(machine, unreadable())
    state, said, fix = findings(machine)["ensemble mnist"]
    assert state == "problem"
    holds(said, "0.9.1", "'oracle'")
    holds(fix, "version")
    for words in (("upgrade",), ("init",)):
        done = as_owner_of(machine, *words)
        assert done.code == 1
        holds(done.out + done.err, "mnist", "0.9.1")
    assert revision(machine) == BEFORE


def test_an_altered_file_is_a_problem_and_so_is_a_missing_one(machine: Machine) -> None:
    place(machine)
    weights = machine.data / "ensembles" / "mnist" / "teachers-00000.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + b"\0")
    holds(findings(machine)["ensemble mnist"][1], weights.name)
    assert machine.run("init").code == 1
    assert revision(machine) == BEFORE
    shutil.rmtree(weights.parent)
    holds(findings(machine)["ensemble mnist"][1], weights.parent)
    # On a machine without the ensembles, a database is migrated all the same.
    assert machine.run("init").code == 0
    assert revision(machine) > BEFORE


def test_files_that_do_not_load_are_a_problem(machine: Machine) -> None:
    document = json.loads((KEPT / "heads" / "manifest.json").read_text())
    place(machine, json.dumps({**document, "teachers": 5}))
    holds(findings(machine)["ensemble mnist"][1], 4, 5)


def test_without_migrations_doctor_says_that_another_version_made_an_ensemble(
    machine: Machine,
) -> None:
    place(machine, unreadable())
    directory, elsewhere = machine.data / "ensembles" / "mnist", machine.data / "elsewhere"
    shutil.move(directory, elsewhere)
    assert machine.run("init").code == 0
    shutil.move(elsewhere, directory)
    assert machine.run("init").code == 0, "nothing is left to migrate"
    found = {each["check"]: each for each in machine.doctor()["findings"]}["ensemble mnist"]
    holds(found["found"], "0.9.1")
    holds(found["fix"], "version")
    assert "backup" not in found["fix"]


def test_a_newer_ledger_another_key_and_no_ledger_are_problems(machine: Machine) -> None:
    assert machine.run("upgrade").code == 1
    assert not machine.data.exists(), "it never makes a new ledger"
    place(machine)
    (machine.data / "secret.key").write_bytes(b"x" * 64)
    holds(findings(machine)["ledger"][1], "key")
    (machine.data / "secret.key").write_bytes(SECRET_KEY)
    with connect(machine.database_url).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    holds(findings(machine)["ledger"][1], "newer")
    (machine.data / "secret.key").unlink()
    holds(findings(machine)["keys"][1], "secret.key")


def test_a_policy_that_is_none_is_a_problem(machine: Machine) -> None:
    place(machine)
    (machine.data / "policy").write_text("nothing\n")
    holds(findings(machine)["keys"][1], "policy")
