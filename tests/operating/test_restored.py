"""A ledger that is older than what was signed of it: nothing is spent until an owner has acted."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from support.clients import slug
from support.databases import SQLITE_BY_DAY, tools_of
from support.ledgers import answered
from support.processes import until
from support.servers import Machine, Serving, question, serving_process
from support.wording import holds
from terrine_protocol.transparency import Checkpoint, Note

OPEN = ("project", "open", "next", "--ensemble", "digits", "--mechanism", "gnmax:sigma=4")
BUDGET = ("--epsilon", "5", "--delta", "1e-5")


def signed(machine: Machine) -> Checkpoint:
    """What the data directory says was signed last."""
    return Checkpoint.parse(Note.parse((machine.data / "checkpoint.signed").read_bytes()).text)


def ask(server: Serving, student: dict[str, str], *numbers: int) -> httpx.Response:
    inputs = [image for number in numbers for image in question(number)["inputs"]]
    return httpx.post(f"{server.url}/label", json={"inputs": inputs}, headers=student)


def charge(machine: Machine, query: int) -> None:
    """Pay for a query, without a server."""
    ledger = machine.ledger
    ledger.charge(ledger.project("study").id, [answered(query)])


def sign_all(machine: Machine) -> Checkpoint:
    machine.run("ledger", "checkpoint").fine  # noqa: B018 - asserts
    return signed(machine)


def problems(machine: Machine) -> list[str]:
    return [check for check, state, _, _ in machine.wrong() if state == "problem"]


@SQLITE_BY_DAY
@pytest.mark.usefixtures("each_database_url")
def test_a_ledger_that_went_back_answers_what_is_paid_and_spends_nothing(
    served_machine: Machine, tmp_path: Path
) -> None:
    machine, (backup, restore) = served_machine, tools_of(served_machine.database_url)
    machine.init().fine  # noqa: B018 - asserts; it makes the log's key
    student = machine.bearer("student", "study")
    auditor, admin = machine.bearer("auditor"), machine.bearer("admin")
    with serving_process(machine) as server:
        paid = ask(server, student, 1, 2)
        assert paid.status_code == 200, paid.text
        before = sign_all(machine)
        backup(machine.database_url, tmp_path / "backup")
        assert ask(server, student, 3, 4).status_code == 200
        server.stop()
    after = sign_all(machine)
    assert after.size > before.size
    assert problems(machine) == []
    restore(machine.database_url, tmp_path / "backup")

    assert problems(machine) == ["signed"]
    found = machine.run("ledger", "verify")
    assert found.code == 1
    holds(found.out, "CONTINUED")
    holds(found.out, after.size, "checkpoint.signed")
    holds(machine.run(*OPEN, *BUDGET).refused, "restored")
    with serving_process(machine) as server:
        replayed = ask(server, student, 1, 2)
        assert replayed.status_code == 200, replayed.text
        labels = [each["label"] for each in paid.json()["results"]]
        assert [each["label"] for each in replayed.json()["results"]] == labels
        for numbers in ((5,), (1, 5), (3,)):
            refused = ask(server, student, *numbers)
            assert (refused.status_code, slug(refused)) == (503, "ledger-restored")
            assert "retry-after" not in refused.headers
            holds(refused.json()["detail"], "restored")
            assert str(machine.data) not in refused.text
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, slug(ready)) == (503, "ledger-restored")
        metrics = httpx.get(f"{server.url}/metrics", headers=auditor).text
        assert "terrine_ledger_restored 1.0" in metrics
        opened = httpx.post(
            f"{server.url}/projects",
            headers=admin,
            json={
                "name": "next",
                "ensemble": "digits",
                "mechanism": {"name": "gnmax", "sigma": 4},
                "epsilon": 5,
                "delta": 1e-5,
            },
        )
        assert (opened.status_code, slug(opened)) == (503, "ledger-restored")
        until(lambda: server.entries("no checkpoint was signed"))
        server.stop()
    assert machine.ledger.project("study").charges == 2
    assert signed(machine) == after, "it is the evidence"

    done = machine.run("ledger", "restored").fine
    line = next(line for line in done.splitlines() if line.startswith("log "))
    holds(done, "study")
    assert line.startswith(f"log {after.origin}/2+")
    kept = [path.name for path in machine.data.glob("checkpoint.*")]
    assert len(kept) == 4, kept
    assert (machine.data / "checkpoint.key").stat().st_mode & 0o777 == 0o600
    assert problems(machine) == []
    machine.run(*OPEN, *BUDGET).fine  # noqa: B018 - asserts
    other = machine.bearer("student", "next")
    with serving_process(machine, checkpoint_seconds=0.1) as server:
        assert slug(ask(server, student, 1)) == "project-paused"
        assert ask(server, other, 5).status_code == 200
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        metrics = httpx.get(f"{server.url}/metrics", headers=auditor).text
        assert "terrine_ledger_restored 0.0" in metrics
        until(lambda: signed(machine).origin != after.origin)
    again = machine.run("ledger", "restored").fine
    assert "+" not in again, "the new log goes on"
    machine.run("ledger", "verify").fine  # noqa: B018 - asserts


def test_a_checkpoint_that_cannot_be_read_stops_new_queries(served_machine: Machine) -> None:
    machine = served_machine
    machine.init().fine  # noqa: B018 - asserts
    student, file = machine.bearer("student", "study"), machine.data / "checkpoint.signed"
    sign_all(machine)
    whole = file.read_bytes()
    with serving_process(machine, checkpoint_seconds=0.1) as server:
        assert ask(server, student, 1).status_code == 200
        file.write_bytes(whole[: len(whole) // 2])
        ready = until(lambda: httpx.get(f"{server.url}/readyz"), lambda reply: reply.is_error)
        assert slug(ready) == "log-not-signed"
        refused = ask(server, student, 2)
        assert slug(refused) == "log-not-signed"
        assert str(file) not in refused.text
        assert ask(server, student, 1).status_code == 200
        assert problems(machine) == ["signed"]
        file.write_bytes(whole)
        until(lambda: httpx.get(f"{server.url}/readyz"), lambda reply: reply.is_success)
        assert ask(server, student, 3).status_code == 200


def test_without_the_key_what_was_signed_is_believed_and_put_aside(
    served_machine: Machine, tmp_path: Path
) -> None:
    machine, (backup, restore) = served_machine, tools_of(served_machine.database_url)
    machine.init().fine  # noqa: B018 - asserts
    key, file = machine.data / "checkpoint.key", machine.data / "checkpoint.signed"
    sign_all(machine)
    backup(machine.database_url, tmp_path / "backup")
    charge(machine, 1)
    sign_all(machine)
    restore(machine.database_url, tmp_path / "backup")
    key.rename(tmp_path / "key")
    assert problems(machine) == ["signed"], "the file is believed as it is"
    machine.run("ledger", "restored").fine  # noqa: B018 - asserts
    assert not file.exists()
    assert file.with_name("checkpoint.signed.ended").exists()
    assert problems(machine) == []


def test_a_log_that_ends_keeps_its_key_and_what_it_signed(
    served_machine: Machine, tmp_path: Path
) -> None:
    machine, (backup, restore) = served_machine, tools_of(served_machine.database_url)
    (machine.data / "checkpoint.key").unlink(missing_ok=True)  # of a machine that was set up here
    holds(machine.run("init", "--origin", "labels.example.org").fine, "labels.example.org")
    old_key = (machine.data / "checkpoint.key").read_text()
    charge(machine, 1)
    backup(machine.database_url, tmp_path / "backup")
    charge(machine, 2)
    sign_all(machine)
    old_note = (machine.data / "checkpoint.signed").read_text()
    restore(machine.database_url, tmp_path / "backup")
    refused = machine.run("ledger", "restored", "--origin", "labels.example.org").refused
    holds(refused, "labels.example.org", "--origin")
    holds(machine.run("ledger", "restored").fine, "labels.example.org/2")
    (key,) = machine.data.glob("checkpoint.key.*")
    (note,) = machine.data.glob("checkpoint.signed.*")
    assert (key.read_text(), note.read_text()) == (old_key, old_note)
    assert key.stat().st_mode & 0o777 == 0o600
