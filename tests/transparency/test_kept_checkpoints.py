"""A checkpoint that was kept elsewhere tells what no look at the books alone can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, update
from typer.testing import CliRunner, Result

from support.databases import SECRET_KEY
from support.forgeries import cut, rebuild, remove, rewrite, rows_of
from support.ledgers import (
    CONFIDENT,
    answered,
    charge_one,
    open_ledger,
    open_project,
    reseal,
    unguarded,
)
from support.servers import LOG, policy_of, policy_text, publisher
from support.wording import holds, says
from terrine_protocol import ProjectStatus
from terrine_protocol.transparency import Note
from terrine_server.cli.console import CommandError
from terrine_server.cli.ledger import app
from terrine_server.ledger import Ledger
from terrine_server.ledger.schema import populations, projects
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.transparency import check
from terrine_server.ledger.verifying import verify_project
from terrine_server.owner import checkpoints
from terrine_server.owner.checkpoints import CheckpointError

ENTRIES = 6


@pytest.fixture
def ledger(
    database_url: str, secret_key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """One project of six charges, and the log's key."""
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path))
    key = tmp_path / "checkpoint.key"
    key.write_text(LOG.secret)
    monkeypatch.setenv("TERRINE_CHECKPOINT_KEY_FILE", str(key))
    ledger = open_ledger(database_url)
    project = open_project(ledger, 20, CONFIDENT)
    charge_one(ledger, project.id, [answered(i, i) for i in range(ENTRIES)])
    yield ledger
    ledger._access.engine.dispose()


def ask(ledger: Ledger, *queries: object) -> None:
    charge_one(ledger, ledger.projects.get("study").id, [answered(query) for query in queries])


def kept(ledger: Ledger) -> dict[str, str]:
    """A checkpoint of now, as somebody else keeps it."""
    publisher(ledger).round()
    return {"kept": ledger.tree.checkpoint() or ""}


def problems(ledger: Ledger, earlier: dict[str, str]) -> list[str]:
    return ledger.tree.check(policy_of(), earlier).problems


def terrine(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_checkpoint_holds_while_the_ledger_grows(ledger: Ledger) -> None:
    earlier = kept(ledger)
    assert problems(ledger, earlier) == []
    ask(ledger, *range(100, 105))
    ledger.projects.set_status("study", ProjectStatus.PAUSED)
    assert problems(ledger, earlier) == [], "before it is logged"
    kept(ledger)
    assert problems(ledger, earlier) == [], "and after"


CHANGED, GONE = "entry {} of study, not the ledger", "entry {} of study, ledger any more"
REWRITTEN: dict[str, tuple[Callable[[Connection], object], str]] = {
    "cut tail with balances to match": (lambda c: cut(c, 4), GONE.format(5)),
    "all cut but the first": (lambda c: cut(c, 1), GONE.format(2)),
    "label altered, chain rewritten": (
        lambda c: rewrite(c, 3, label=9),
        CHANGED.format(3),
    ),
    "swapped, chain rewritten": (
        lambda c: rebuild(c, [rows_of(c)[i] for i in (0, 2, 1, 3, 4, 5)]),
        CHANGED.format(2),
    ),
    "last label altered, chain rewritten": (
        lambda c: rewrite(c, 6, label=9),
        CHANGED.format(6),
    ),
}


def test_books_that_are_consistent_and_wrong_are_found(ledger: Ledger, database_url: str) -> None:
    earlier, seals = kept(ledger), Seals(SECRET_KEY)
    with unguarded(database_url) as forger:
        forger.commit()
        for forgery, (forge, finding) in REWRITTEN.items():
            forge(forger)
            reseal(forger)
            assert verify_project(forger, seals, "study").ok, "by themselves nobody can tell"
            found = check(forger, policy_of(), earlier["kept"], earlier).problems
            assert says(found, *finding.split()), forgery
            forger.rollback()


def test_a_project_that_was_opened_anew_under_its_name_is_found(
    ledger: Ledger, database_url: str
) -> None:
    earlier = kept(ledger)
    with unguarded(database_url) as connection:
        remove(connection, *range(1, ENTRIES + 1))
        connection.execute(delete(projects))
        connection.execute(update(populations).values(reserved=0, delta_reserved=0))
    project = open_project(ledger, 20, CONFIDENT)
    charge_one(ledger, project.id, [answered(i, i) for i in range(ENTRIES)])
    assert ledger.verifier.verify_project("study").ok
    assert problems(ledger, earlier)


def test_the_commands_from_checkpoint_to_finding(
    ledger: Ledger, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "today.checkpoint"
    made = terrine("checkpoint", "--output", file)
    size = ENTRIES + len(ledger.log.list(0, 1000))
    holds(made.output, "checkpoint", size)
    assert terrine("checkpoint").stdout == file.read_text(), "nothing is new"
    ask(ledger, 100)
    open_project(ledger, 3, name="newer")
    verified = terrine("verify", "--checkpoint", file)
    assert verified.exit_code == 0, verified.output
    holds(verified.output, "newer", "intact")
    holds(verified.output, "intact", size, "nobody")
    with unguarded(database_url) as connection:
        cut(connection, 4)
    policy = tmp_path / "policy"
    policy.write_text(policy_text())
    for arguments in (("--checkpoint", file), ("all", "--checkpoint", file, "--policy", policy)):
        found = terrine("verify", *arguments)
        assert found.exit_code == 1
        holds(found.output, "log", "NOT", "INTACT")
        holds(found.output, *GONE.format(5).split())


def test_a_checkpoint_is_of_everything_that_is_there(ledger: Ledger) -> None:
    """It is made by whoever has the turn, however long others have it."""
    Note.parse(terrine("checkpoint").stdout)
    with ledger.tree.try_lock() as mine:
        assert mine
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoints, "SIGNING_WAIT_SECONDS", 0.0)
            refused = terrine("checkpoint").exception
        assert isinstance(refused, CheckpointError)
        holds(str(refused), "again")


def test_what_cannot_be_compared_is_refused(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept"
    file.write_text(terrine("checkpoint").stdout)
    for arguments, refusal in [
        (("study", "--checkpoint", file), "leave project out"),
        (("--file", file, "--checkpoint", file), "check_log.py"),
    ]:
        refused = terrine("verify", *arguments).exception
        assert isinstance(refused, CommandError)
        holds(" ".join(str(refused).split()), *refusal.split())
    monkeypatch.setenv("TERRINE_CHECKPOINT_KEY_FILE", str(tmp_path / "none"))
    refused = terrine("verify", "--checkpoint", file).exception
    assert isinstance(refused, CommandError)
    assert "give --policy" in str(refused)
    without = terrine("checkpoint").exception
    assert isinstance(without, CheckpointError)
    assert "terrine init" in str(without)


@pytest.mark.parametrize("text", ["", "[]", "\0", "log.example/1\n1\n"])
def test_what_is_no_checkpoint_is_named(text: str, ledger: Ledger, tmp_path: Path) -> None:
    publisher(ledger).round()
    file = tmp_path / "kept"
    file.write_text(text)
    found = terrine("verify", "--checkpoint", file)
    assert found.exit_code == 1
    holds(found.output, "checkpoint", file)
