"""A ledger that is older than what was signed of it: nothing is spent until an owner has acted."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from support.clients import slug
from support.databases import SQLITE_BY_DAY, as_owner, tools_of
from support.ledgers import answered, charge_one, register
from support.processes import until
from support.servers import Machine, Serving, question, serving_process
from support.wording import holds, refuses, says
from terrine_protocol.transparency import Checkpoint, Note
from terrine_server.errors import Conflict
from terrine_server.ledger import connect
from terrine_server.ledger.database import sqlite_path
from terrine_server.privacy import cap, cap_share

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
    charge_one(ledger, ledger.projects.get("study").id, [answered(query)])


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
    assert machine.ledger.projects.get("study").charges == 2
    assert signed(machine) == after, "it is the evidence"

    holds(machine.run("ledger", "restored").refused, "people", "--spent", after.size)
    done = machine.run("ledger", "restored", "--spent", "people=0").fine
    line = next(line for line in done.splitlines() if line.startswith("log "))
    holds(done, "study")
    assert line.startswith(f"log {after.origin}/2+")
    kept = [path.name for path in machine.data.glob("checkpoint.*")]
    assert len(kept) == 3, kept
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
    for act in ("resume", "close"):
        yes = ("--yes",) if act == "close" else ()
        holds(machine.run("project", act, "study", *yes).refused, "study", "lost")
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
    machine.run("ledger", "restored", "--spent", "people=0").fine  # noqa: B018 - asserts
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
    spent = ("--spent", "people=1,1e-6")
    refused = machine.run("ledger", "restored", *spent, "--origin", "labels.example.org").refused
    holds(refused, "labels.example.org", "--origin")
    holds(machine.run("ledger", "restored", *spent).fine, "labels.example.org/2")
    (told,) = [e for e in machine.ledger.log.list() if e.action == "ledger-lost"]
    assert told.detail["spent"] == {"people": [1.0, 1e-6]}, "told twice, it counts once"
    (key,) = machine.data.glob("checkpoint.key.*")
    (note,) = machine.data.glob("checkpoint.signed.*")
    assert (key.read_text(), note.read_text()) == (old_key, old_note)
    assert key.stat().st_mode & 0o777 == 0o600


def lose(machine: Machine) -> None:
    """Lose the database, with all that is in it."""
    path = sqlite_path(connect(machine.database_url))
    if path is not None:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        return
    with connect(as_owner(machine.database_url)).begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
        connection.execute(text("GRANT USAGE ON SCHEMA public TO PUBLIC"))


REGISTER = (
    *("ensemble", "register", "digits", "--rule", "gdp"),
    *("--epsilon", "20", "--delta", "1e-4"),
)


@pytest.mark.parametrize("new_key", [False, True])
def test_after_a_lost_database_no_budget_is_there_a_second_time(
    served_machine: Machine, each_database_url: str, new_key: bool
) -> None:
    machine, owner = served_machine, {"TERRINE_DATABASE_URL": as_owner(each_database_url)}
    machine.init().fine  # noqa: B018 - asserts
    charge(machine, 1)
    before = sign_all(machine)
    lose(machine)
    if new_key:  # whoever is told that the key is damaged makes another
        (machine.data / "checkpoint.key").unlink()

    for said in (machine.wrong()[-1][2:], (machine.init().refused,)):
        holds(" ".join(said), before.size, "restore")
    (finding,) = [each for each in machine.wrong() if each[0] == "signed"]
    holds(finding[3], "restore", "restored")
    refused = machine.run("ledger", "restored", **owner).refused
    holds(refused, before.size, "people", "--spent")
    assert machine.init().code != 0, "asking made nothing"
    for wrong in ("people", "people=", "people=-1,1e-5", "people=4", "people=nan,1e-5", "=1,1e-5"):
        holds(machine.run("ledger", "restored", "--spent", wrong, **owner).refused, wrong)

    spent = ("--spent", "people=18,1e-5")
    done = machine.run("ledger", "restored", *spent, **owner).fine
    assert new_key or says(done, f"{before.origin}/2")
    machine.init().fine  # noqa: B018 - asserts
    machine.run(*REGISTER).fine  # noqa: B018 - asserts
    population = machine.ledger.ensembles.list_populations()[0]
    assert population.limit.budget - population.reserved <= cap(2, 9e-5).budget
    machine.run(*OPEN, *BUDGET).refused  # noqa: B018 - asserts
    machine.run(*OPEN, "--epsilon", "1.9", "--delta", "1e-5").fine  # noqa: B018 - asserts
    assert problems(machine) == []
    with refuses(Conflict, "others", "--spent"):
        register(machine.ledger, "other", population="others")
    machine.run("ledger", "restored", "--spent", "others=0").fine  # noqa: B018 - asserts
    assert register(machine.ledger, "other", population="others").population.reserved == 0
    taken = []
    for amounts in ("1,1e-6", "1,1e-6", "2,1e-6"):  # who told too little says more
        machine.run("ledger", "restored", "--spent", f"others={amounts}").fine  # noqa: B018
        taken.append(machine.ledger.ensembles.list_populations()[0].reserved)
    assert 0 < taken[0] == taken[1] < taken[2]
    machine.run("ledger", "verify").fine  # noqa: B018 - asserts


def test_nothing_grants_a_budget_before_a_loss_is_told(
    served_machine: Machine, tmp_path: Path
) -> None:
    machine, (backup, restore) = served_machine, tools_of(served_machine.database_url)
    machine.init().fine  # noqa: B018 - asserts
    backup(machine.database_url, tmp_path / "backup")
    charge(machine, 1)
    sign_all(machine)
    restore(machine.database_url, tmp_path / "backup")
    shutil.copytree(machine.ensemble, machine.data / "ensembles" / "more")
    for command in (
        (*OPEN, *BUDGET),
        ("project", "close", "study", "--yes"),
        ("ensemble", "register", "more", *REGISTER[3:]),
    ):
        holds(machine.run(*command).refused, "signed")
    machine.run("project", "pause", "study").fine  # noqa: B018 - asserts
    holds(machine.run("project", "resume", "study").refused, "signed")


@pytest.mark.parametrize("rule", [None, 20.0])
def test_what_is_lost_of_a_cap_and_what_is_left_are_within_it(rule: float | None) -> None:
    whole = cap(5, 1e-5, rule)
    assert cap_share(whole, 0, 0) == (0, 0)
    for epsilon, delta in ((4, 1e-6), (1, 5e-6), (0.001, 1e-9)):
        cost, delta_cost = cap_share(whole, epsilon, delta)
        left = cap(5 - epsilon, 1e-5 - delta, rule)
        assert (whole.budget - cost, whole.delta_budget - delta_cost) == (
            left.budget,
            left.delta_budget,
        )
    for nothing_left in ((5, 1e-6), (6, 1e-6), (1, 1e-5), (4.9999999, 1e-6)):
        assert cap_share(whole, *nothing_left) == (whole.budget, whole.delta_budget)
