"""Auditors: `terrine ledger verify --policy` at the database, and check_log.py from outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Connection, insert, select, update
from typer.testing import CliRunner

from support.forgeries import rebuild, rewrite, rows_of
from support.ledgers import NOISY, answered, charge_one, open_ledger, open_project, unguarded
from support.servers import (
    LOG,
    RunningWitness,
    log_settings,
    policy_of,
    publisher,
    signed,
    witness_key,
)
from support.wording import holds
from terrine_protocol.transparency import Note, Policy
from terrine_server.app import serving
from terrine_server.cli.ledger import app
from terrine_server.ledger import Ledger
from terrine_server.ledger.schema import projects, tree_head, tree_leaves, tree_nodes
from terrine_server.ledger.transparency import check
from terrine_server.owner import operations
from terrine_server.settings import Settings

Edit = Callable[[Connection], object]
CHECKER = Path(__file__).resolve().parents[2] / "docs" / "check_log.py"
ENTRIES = 600


@dataclass(frozen=True)
class World:
    """A ledger that was logged and cosigned, and what an auditor has."""

    url: str
    ledger: Ledger
    settings: Settings
    policy: Path
    early: Path
    directory: Path

    def verify(self, *more: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["verify", "--policy", str(self.policy), *map(str, more)])
        return found.exit_code, found.output

    def exported(self) -> list[Path]:
        files = {"study": operations.export(self.ledger, "study")}
        files["log"] = operations.export_log(self.ledger)
        for name, lines in files.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (self.directory / name).write_text(text)
        return [self.directory / name for name in files]


@pytest.fixture
def world(
    database_url: str, tmp_path: Path, witness: RunningWitness, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    policy, early = tmp_path / "policy", tmp_path / "early"
    settings = log_settings(tmp_path, database_url, witness)
    monkeypatch.setenv("TERRINE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TERRINE_DATABASE_URL", database_url)
    ledger = open_ledger(database_url)
    project = open_project(ledger, 5000, NOISY)
    owner = publisher(ledger, policy_of(witness))
    for step in range(3):
        charge_one(ledger, project.id, [answered(f"{step} {n}") for n in range(ENTRIES // 3)])
        owner.round()
        if step == 0:
            early.write_text(ledger.tree.checkpoint() or "")
    yield World(database_url, ledger, settings, policy, early, tmp_path)
    ledger._access.engine.dispose()


def test_an_honest_log_is_intact(world: World) -> None:
    code, said = world.verify("--checkpoint", world.early)
    assert code == 0, said
    size = ENTRIES + len(world.ledger.log.list(0, 1000))
    holds(said, "intact", size, "w")
    charge_one(world.ledger, world.ledger.projects.get("study").id, [answered("new")])
    code, said = world.verify()
    assert code == 0
    holds(said, 1, "entries")


def leaf(at: int, **values: object) -> Edit:
    where = tree_leaves.c.position == at
    return lambda connection: connection.execute(update(tree_leaves).where(where).values(**values))


def swap_leaves(connection: Connection) -> None:
    for old, new in ((300, 9999), (301, 300), (9999, 301)):
        leaf(old, position=new)(connection)


def drop_entry(connection: Connection) -> None:
    entries = rows_of(connection)
    rebuild(connection, entries[:99] + entries[100:])
    connection.execute(update(projects).values(charges=len(entries) - 1))


def remove_cosignature(connection: Connection) -> None:
    note = Note.parse(connection.execute(tree_head.select()).one().checkpoint)
    alone = str(Note(note.text, note.signatures[:1]))
    connection.execute(update(tree_head).values(checkpoint=alone))


NEW = {"position": 1000, "source": 1, "seq": 9999, "entry": b"n" * 32}
NOT_THE_ENTRY = "is not the entry that is in the ledger"
FORGERIES: dict[str, tuple[Edit, str]] = {
    "leaf forged": (
        leaf(300, entry=b"f" * 32),
        f"leaf 300, entry [0-9]+ of study, {NOT_THE_ENTRY}",
    ),
    "leaves swapped": (swap_leaves, "leaf 300, .* is out of order"),
    "node forged": (
        lambda c: c.execute(
            update(tree_nodes).where(tree_nodes.c.position == 0).values(hash=b"f" * 32)
        ),
        "node 0 of level 1 is not that of its leaves",
    ),
    "leaves cut off": (
        lambda c: c.execute(tree_leaves.delete().where(tree_leaves.c.position >= 400)),
        "leaves were removed, or an older backup was restored",
    ),
    "leaf added": (lambda c: c.execute(insert(tree_leaves), NEW), "leaf [0-9]+ is missing"),
    "head renumbered": (lambda c: c.execute(update(tree_head).values(id=2)), "the tree's head"),
    "blinding changed": (
        lambda c: c.execute(update(tree_head).values(blinding=b"b" * 32)),
        NOT_THE_ENTRY,
    ),
    "ledger rewritten": (
        lambda c: rewrite(c, 100, label=rows_of(c)[99]["label"] ^ 1),
        f"entry 100 of study, {NOT_THE_ENTRY}",
    ),
    "entry dropped": (drop_entry, f"entry 100 of study, {NOT_THE_ENTRY}"),
    "another root signed": (
        lambda c: c.execute(update(tree_head).values(checkpoint=signed(500, b"r" * 32))),
        "the quorum is witnesses",
    ),
    "cosignature removed": (
        remove_cosignature,
        "is cosigned by nobody; the quorum is witnesses",
    ),
}


def test_every_forgery_is_found(world: World) -> None:
    policy = Policy.parse(world.policy.read_bytes())
    with unguarded(world.url, with_key=False) as connection:
        connection.commit()
        for what, (forge, finding) in FORGERIES.items():
            forge(connection)
            current = connection.execute(select(tree_head.c.checkpoint)).scalar_one()
            found = check(connection, policy, current, {}).problems
            assert any(re.search(finding, problem) for problem in found), (what, found)
            connection.rollback()
        leaf(300, entry=b"f" * 32)(connection)
    code, said = world.verify()
    assert code == 1
    holds(said, "log", "NOT", "INTACT")


def test_a_checkpoint_of_another_history_is_found(world: World, tmp_path: Path) -> None:
    forked = tmp_path / "forked"
    forked.write_text(signed(300, b"o" * 32))
    code, said = world.verify("--checkpoint", forked)
    assert code == 1
    holds(said, "histories")
    later = tmp_path / "later"
    later.write_text(signed(9000, b"o" * 32))
    code, said = world.verify("--checkpoint", world.early, "--checkpoint", later)
    assert code == 1
    holds(said, 9000)
    stranger = tmp_path / "stranger"
    stranger.write_text(world.early.read_text().replace("log.example/1", "log.example/2"))
    assert world.verify("--checkpoint", stranger)[0] == 1


def cosign(note: str, when: datetime) -> str:
    parsed = Note.parse(note)
    mine = witness_key("w").sign(parsed.text, int(when.timestamp()))
    return str(Note(parsed.text, (parsed.signatures[0], mine)))


def test_an_entry_that_was_back_dated_is_found(world: World, tmp_path: Path) -> None:
    """It is dated before a checkpoint without it was cosigned; or after one with it."""
    now = datetime.now(UTC)
    for hours, expected in ((2, "back-dated"), (-2, "cosigned before")):
        kept = tmp_path / "kept"
        kept.write_text(cosign(world.early.read_text(), now + timedelta(hours=hours)))
        code, said = world.verify("--checkpoint", kept)
        assert code == 1
        holds(said, *expected.split())
    # The clocks differ a little, which is no forgery.
    kept.write_text(cosign(world.early.read_text(), now + timedelta(minutes=3)))
    assert world.verify("--checkpoint", kept)[0] == 0


def outside(world: World, url: str, *more: object) -> tuple[int, str]:
    """Run the checker as an auditor does, who has exports, a policy and the log's address."""
    command = [sys.executable, CHECKER, "--policy", world.policy, "--log", url, *more]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_checker_agrees_from_outside(world: World, tmp_path: Path) -> None:
    exports = world.exported()
    with serving(world.settings) as url:
        code, said = outside(world, url, "--checkpoint", world.early, *exports)
        assert code == 0, said
        holds(said, exports[0], ENTRIES, 0)
        found = re.search("([0-9]+) entries of the log are not of these exports", said)
        assert found is not None
        assert int(found[1]) == 0
        forked = tmp_path / "forked"
        forked.write_text(signed(300, b"o" * 32))
        code, said = outside(world, url, "--checkpoint", forked)
        assert code != 0
        holds(said, "HISTORIES")
        kept = tmp_path / "kept"
        kept.write_text(cosign(world.early.read_text(), datetime.now(UTC) + timedelta(hours=2)))
        code, said = outside(world, url, "--checkpoint", kept, *exports)
        assert code != 0
        assert "back-dated" in said
        lines = exports[0].read_text().splitlines(True)
        exports[0].write_text("".join([*lines[:50], lines[51], lines[50], *lines[52:]]))
        code, said = outside(world, url, *exports)
        assert code != 0
        holds(said, "order")


@pytest.mark.slow
def test_tiles_are_served_to_everybody_for_ever(world: World) -> None:
    with serving(world.settings) as url, httpx.Client(base_url=url) as http:
        answer = http.get("/checkpoint")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert "max-age=1" in answer.headers["cache-control"]
        assert Note.parse(answer.text).signers([LOG.verifier])
        for path, size in (("0/000", 8192), ("0/001.p/7", 224), ("1/000.p/2", 64)):
            answer = http.get(f"/tile/{path}")
            assert (answer.status_code, len(answer.content)) == (200, size)
            assert answer.headers["content-type"] == "application/octet-stream"
            assert "immutable" in answer.headers["cache-control"]
            assert http.get(f"/tile/{path}").content == answer.content
        assert len(http.get("/tile/entries/000").content) == 256 * 34
        for path in ("0/900", "0/000.p/0", "5/000", "x", "0/x001/000", "entries/000.p/999"):
            answer = http.get(f"/tile/{path}")
            assert answer.status_code == 404
            assert answer.headers["content-type"] == "application/problem+json"
            assert "immutable" not in answer.headers["cache-control"]
        assert http.get("/receipts").status_code == 401
