"""`terrine ledger`: people read it, programs read it, and forgeries end with exit code 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import update
from typer.testing import CliRunner, Result

from support.databases import SECRET_KEY
from support.ledgers import (
    CONFIDENT,
    FACTS,
    GNMAX,
    abstained,
    answered,
    charge_one,
    open_ledger,
    open_project,
    register,
    unguarded,
)
from support.wording import holds
from terrine_server.cli import app
from terrine_server.errors import NotFound, SchemaMismatch
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.ledger.schema import charges


@pytest.fixture
def ledger(database_url: str, secret_key: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """`study` with five charges, `other` with two."""
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")
    ledger = open_ledger(database_url)
    study = open_project(ledger, 10, CONFIDENT)
    charge_one(ledger, study.id, [abstained(0), *[answered(i, i) for i in range(1, 5)]])
    other = open_project(ledger, 10, GNMAX, name="other")
    charge_one(ledger, other.id, [answered(1), answered(2)])
    return ledger


def terrine(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["ledger", *arguments])


def as_json(*arguments: str) -> str:
    return CliRunner().invoke(app, ["--json", "ledger", *arguments]).output


def test_names_of_classes_do_not_act_on_the_terminal_that_shows_the_ledger(
    ledger: Ledger,
) -> None:
    """Of an ensemble that was registered before such names were refused."""
    names = ["a\x1b]0;owned\x07", "d\n| forged row |", "b\u202ec", *FACTS.classes[3:]]
    register(ledger, "old", facts=FACTS.model_copy(update={"classes": names}))
    project = open_project(ledger, 10, GNMAX, name="of-old", ensemble="old")
    charge_one(ledger, project.id, [answered(i, i) for i in range(3)])
    shown = terrine("show", "of-old").output
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert {"a<U+001B>]0;owned<U+0007>", "d<U+000A>|", "b<U+202E>c"} <= set(shown.split())
    assert not [line for line in shown.splitlines() if line.lstrip().startswith("| forged")]
    assert not {"\x1b", "\x07", "\u202e"} & set(as_json("show", "of-old"))


def test_show_gives_a_project_and_its_last_entries(ledger: Ledger) -> None:
    shown = terrine("show", "study", "--last", "2").output
    assert ledger.projects.get("study").head in shown
    entries = [line for line in shown.splitlines() if "answered" in line]
    assert [line.split("│")[1].strip() for line in entries] == ["4", "5"]
    account = json.loads(as_json("show", "study", "--last", "2"))
    assert account["head"] == ledger.projects.get("study").head
    holds(shown, "log", "checkpoint")
    assert account["log"] is None
    assert [entry["seq"] for entry in account["last_charges"]] == [4, 5]


def test_verify_prints_the_head_and_succeeds(ledger: Ledger) -> None:
    result = terrine("verify")
    assert result.exit_code == 0
    for name in ("study", "other"):
        holds(result.output, name, "intact")
        assert ledger.projects.get(name).head in result.output


def test_verify_fails_on_any_finding(ledger: Ledger, database_url: str) -> None:
    with unguarded(database_url) as connection:
        connection.execute(
            update(charges).where(charges.c.project_id == 1, charges.c.seq == 2).values(label=9)
        )
    upgrade(connect(database_url), SECRET_KEY)  # a careful forger puts the guards back
    for arguments in (["verify"], ["verify", "all"], ["verify", "study"]):
        result = terrine(*arguments)
        assert result.exit_code == 1
        holds(result.output, "study", "NOT", "INTACT")
        assert "entry 2: altered" in result.output
    assert terrine("verify", "other").exit_code == 0


def test_an_unknown_project_is_refused_and_leaves_no_file(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "nobody.json"
    for arguments in (["show", "nobody"], ["verify", "nobody"], ["export", "nobody"]):
        result = terrine(*arguments, *(["--output", str(file)] if "export" in arguments else []))
        assert isinstance(result.exception, NotFound)
    assert not file.exists()


def test_without_a_ledger_it_names_the_command_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRINE_DATABASE_URL", f"sqlite:///{tmp_path / 'none.sqlite'}")
    result = terrine("verify")
    assert isinstance(result.exception, SchemaMismatch)
    assert "terrine init" in str(result.exception)
