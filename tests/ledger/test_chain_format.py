"""The format of hashes, as docs/ledger.md states it, and the checker that was written from it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.documents import MECHANISMS as EXAMPLES
from support.ledgers import (
    CLASSES,
    charge_one,
    images,
    many,
    one,
    open_ledger,
    open_people,
    open_project,
    open_published,
    published_terms,
    publishing_ledger,
    seqs,
    study,
    voted,
)
from support.processes import Terrine
from support.wording import holds
from terrine_protocol import ProjectStatus, Role
from terrine_server.ledger import connect
from terrine_server.ledger.chain import LOG_START, charge_hash, frame, log_hash
from terrine_server.ledger.migrating import RIGHTS
from terrine_server.ledger.schema import metadata
from terrine_server.privacy.mechanisms import MECHANISMS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
CHECKER = ROOT / "docs" / "check_chain.py"


def vector(name: str) -> str:
    found = re.findall(rf"^{name} +([0-9a-f]{{64}})", PAGE, re.MULTILINE)
    assert found, name
    return str(found[0])


def digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


NOON = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
CHARGE: dict[str, Any] = {
    "project_id": 1,
    "seq": 1,
    "created_at": NOON,
    "query_digest": digest(b"query"),
    "input_digest": digest(b"input"),
    "outcome": "answered",
    "label": 3,
    "figure": None,
    "cost": 1250000500,
    "delta": 1,
    "cap_cost": 1250000500,
    "mechanism": '{"name":"gnmax","sigma":40.0}',
    "event": '{"event":"gaussian_noisy_max","shift":1,"sigma":40.0}',
}
DETAIL = {
    "created_at": "2026-01-01T00:00:00.000000Z",
    "expires_at": "2026-04-01T00:00:00.000000Z",
    "label": "",
    "project": "study",
    "revoked_at": "2026-01-31T23:59:59.000000Z",
    "role": "student",
}
LOGGED: dict[str, Any] = {
    "seq": 1,
    "created_at": NOON,
    "actor": "local:owner",
    "request_id": None,
    "action": "token-revoked",
    "subject": "0123456789abcdef",
    "detail": json.dumps(DETAIL, sort_keys=True, separators=(",", ":")),
}


def test_the_vectors_on_the_page_are_those_of_the_ledger() -> None:
    before = digest(b"genesis")
    assert vector("hash before") == before.hex()
    hashes = re.findall(r"^its hash +([0-9a-f]{64})", PAGE, re.MULTILINE)
    assert hashes[0] == charge_hash(before, CHARGE).hex()
    assert vector("with counts") == charge_hash(before, {**CHARGE, "counts": "[3,-1,41]"}).hex()
    assert vector("log start") == LOG_START.hex()
    assert hashes[1] == log_hash(LOG_START, LOGGED).hex()
    for value in (None, "hé", -7, 0.1, b"\x01\x02", NOON):
        assert f"`{frame(value).hex()}`" in PAGE, value


def table_below(heading: str) -> dict[str, str]:
    """The table below a heading of the page: the last cell, by each name in the first."""
    below = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in below.splitlines() if line.startswith("| `")]
    return {name: row[-1].rstrip(" |") for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def test_the_page_names_every_table_what_may_change_and_the_rights_of_the_service(
    tmp_path: Path,
) -> None:
    stored, guarded = table_below("What is stored"), set(metadata.tables)
    assert set(stored) == set(metadata.tables)
    sealed_alone = re.search(r"not of (.*?), which have\s+\[seals\]", PAGE, re.DOTALL)
    assert sealed_alone is not None
    guarded -= set(re.findall(r"`(\w+)`", sealed_alone[1]))
    url = f"sqlite:///{tmp_path / 'terrine.sqlite'}"
    open_ledger(url)
    with connect(url).connect() as connection:
        query = "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'"
        assert set(connection.exec_driver_sql(query).scalars()) == guarded
    said = {
        table: ", ".join(
            f"{right} of {', '.join(f'`{column}`' for column in columns)}" if columns else right
            for right, columns in rights.items()
        )
        for table, rights in RIGHTS.items()
    }
    assert table_below("A role with fewer rights") == said


def test_the_checker_is_short_and_needs_nothing_but_python() -> None:
    lines = CHECKER.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 160
    imported = {line.split()[1] for line in lines if re.match(r"(import|from) ", line)}
    assert imported == {"hashlib", "json", "sys"}


def run(*files: Path) -> tuple[int, str]:
    command = [sys.executable, "-I", str(CHECKER), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def exported(directory: Path, name: str, lines: Any) -> Path:
    path = directory / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_it_verifies_closed_and_empty_projects_and_the_log(
    database_url: str, tmp_path: Path
) -> None:
    ledger = open_ledger(database_url)
    open_project(ledger, 10)
    ledger.projects.set_status("study", ProjectStatus.CLOSED)
    open_project(ledger, 2, name="empty")
    files = [
        exported(tmp_path, name, ledger.exports.export_project(name)) for name in ("study", "empty")
    ]
    files.append(exported(tmp_path, "log", ledger.exports.export_log()))
    code, said = run(*files)
    assert code == 0, said
    holds(said, "log", len(ledger.log.list()), ledger.log.list(newest=True)[-1].hash)


def test_every_mechanism_is_among_those_whose_used_projects_it_verifies() -> None:
    assert {spec["name"] for spec in EXAMPLES} == set(MECHANISMS)


@pytest.mark.parametrize(
    "spec", [spec for spec in EXAMPLES if spec["name"] not in ("neighbours", "sums")], ids=str
)
def test_it_verifies_a_used_project_of_every_mechanism_of_teachers(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    if "delta_per_query" in spec:  # so that ten queries fit, and unanimous ones are answered
        fitting = {"delta_per_query": 1e-11, "sigma": 8.0}
        spec = {name: fitting.get(name, value) for name, value in spec.items()}
    service, _, ledger = study(tmp_path, spec, 12)
    inputs = images(*((each % CLASSES, each) for each in range(8)), (99, 8), (99, 9))
    ask: tuple[Any, ...] = (inputs,)
    if spec["name"] == "interactive_gnmax":
        ask = (inputs, np.full((len(inputs), CLASSES), 1 / CLASSES))
    answer = one(service, service.check("study", *ask))
    assert seqs(answer) == list(range(1, 11))
    code, said = run(exported(tmp_path, "study", ledger.exports.export_project("study")))
    assert code == 0, said


@pytest.mark.parametrize("queries", [1, 40])
def test_it_verifies_a_project_of_neighbours_before_and_after_the_cap_is_charged_in_full(
    database_url: str, tmp_path: Path, queries: int
) -> None:
    opened = open_people(database_url, spare=True)
    opened.ask(many(opened.people, queries))
    project = opened.ledger.projects.get("study")
    in_full = queries * project.terms.worst.cap_cost > project.terms.cap_budget
    assert in_full == (queries == 40)
    assert (project.cap_spent == project.terms.cap_budget) == in_full
    code, said = run(exported(tmp_path, "study", opened.ledger.exports.export_project("study")))
    assert code == 0, said


@pytest.mark.slow
def test_it_adds_up_what_is_paid_after_a_publication(database_url: str, tmp_path: Path) -> None:
    ledger = publishing_ledger(database_url)
    project, schedule = open_published(ledger), published_terms().schedule
    assert schedule is not None
    charge_one(ledger, project.id, voted(project, range(schedule.counts[0] + 5)))
    code, said = run(exported(tmp_path, "study", ledger.exports.export_project("study")))
    assert code == 0, said
    [entry] = [entry for entry in ledger.log.list() if entry.action == "figure-published"]
    assert entry.actor == "service"
    assert entry.detail["charge"] == schedule.counts[0] + 1


def test_the_commands_write_what_it_verifies(terrine: Terrine, tmp_path: Path) -> None:
    assert terrine("init").code == 0
    assert terrine("token", "create", "--role", "admin", "--label", "the first").code == 0
    shown = terrine("--json", "ledger", "show")
    actions = [entry["action"] for entry in json.loads(shown.out)]
    assert actions == ["ledger-initialised", "token-created"]
    assert all(entry["actor"].startswith("local:") for entry in json.loads(shown.out))
    assert "token-created" in terrine("ledger", "show", COLUMNS="200").out
    log = tmp_path / "log.jsonl"
    assert terrine("ledger", "export", "--output", str(log)).code == 0
    code, said = run(log)
    assert code == 0, said
    assert "2 entries" in terrine("ledger", "verify").out
    assert Role.ADMIN in log.read_text()
