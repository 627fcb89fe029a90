"""SIGKILL during a start, or another command of the owner: the next run does the rest.

It finds nothing half-done and no stale lock, and the books are right whenever one was killed.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.data import (
    KEY,
    PEOPLE,
    DigitsEnsemble,
    build_leaving_people,
    digits_of_people,
    holding,
    in_one_month,
    points,
    save,
)
from support.databases import SECRET_KEY, Database
from support.ledgers import answered, charge_one, open_ledger
from support.ledgers import open_project as open_plain
from support.processes import (
    PATIENCE_SECONDS,
    Terrine,
    command,
    command_of_few_designed,
    die_before_call,
    in_processes,
    run_program,
    start,
)
from support.servers import Machine, installed
from terrine_models.teachers.neighbours import NeighbourEnsemble
from terrine_protocol import ProjectOpen
from terrine_protocol.files import write_secret
from terrine_server.errors import ServiceError
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import Ledger
from terrine_server.metrics import Metrics
from terrine_server.owner.operations import open_project
from terrine_server.owner.sign_in import load_secret_key

OF_STARTS = 0.05
"""Kills of each test and database, as a share of those under load."""
MORE = 30
"""Further kills, if all so far came too late; about one in three does."""


@pytest.mark.parametrize(
    "fresh_database",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)],
    indirect=True,
)
@pytest.mark.slow
def test_init_completes_after_an_init_that_was_killed(
    fresh_database: Callable[[Path], AbstractContextManager[Database]],
    terrine: Terrine,
    kills: Callable[[float], int],
    seed: int,
    tally: Callable[[str], None],
    tmp_path: Path,
) -> None:
    rng, count, starts, interrupted, usual = random.Random(seed), kills(OF_STARTS), 0, 0, 0.0
    in_processes(time.sleep, (0,))  # now all shared imports are done
    while starts <= count or (not interrupted and starts <= count + MORE):
        home = tmp_path / str(starts)
        home.mkdir()
        with fresh_database(home) as database:
            place = {
                "TERRINE_DATA_DIR": str(home / "data"),
                "TERRINE_DATABASE_URL": database.url,
            }
            began = time.monotonic()
            process = start(command, ("init",), place, str(home / "log"))
            process.join(rng.uniform(0, usual) if starts else None)  # the first one lives
            took = time.monotonic() - began
            process.kill()
            process.join()
            starts += 1
            if process.exitcode == -signal.SIGKILL:
                interrupted += 1
            else:
                assert process.exitcode == 0, (home / "log").read_text()
                usual = min(usual or took, took)
            terrine("init", **place).fine  # noqa: B018 - asserts
            assert json.loads(terrine("--json", "doctor", **place).out)["ok"]
            ledger = open_ledger(database.url, key=load_secret_key(home / "data" / "secret.key"))
            charge_one(ledger, open_plain(ledger, queries=10).id, [answered(1)])
            assert ledger.verifier.verify_project("study").ok
            kind = database.url.partition(":")[0]
    tally(f"{kind}, init: {starts - 1} kills, {interrupted} within the {usual:.1f} s it takes")
    assert interrupted, "every kill came too late"


@pytest.mark.slow
def test_a_secret_key_is_complete_or_missing(tmp_path: Path) -> None:
    path, call, ended = tmp_path / "secret.key", 0, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        path.unlink(missing_ok=True)
        [process] = in_processes(die_before_call, (call, write_secret, path, "ab" * 32))
        assert not path.exists() or len(load_secret_key(path)) == 64
        assert process.exitcode is not None
        ended, call = process.exitcode, call + 1
    assert ended == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert call > 10, "it consists of more calls"


# ------------------------------------------------------------------- the owner's other commands

CHECKER = Path(__file__).resolve().parents[2] / "docs" / "check_chain.py"
OF_ACTS = 0.1
"""Kills of each act and database, as a share of those under load."""
TOGETHER = 4
"""Kills of one act before it may end."""
SPEC = {"name": "neighbours", "sigma": 30.0, "queries": 300}
WITH_ROWS = ("--public", "survey.csv", "--label", "ill", "--anyway")
BY_SCHEMA = ("--schema", "schema.json")


@dataclass
class Owner:
    """Whose commands are killed at random: what they work with, and what came of them."""

    terrine: Terrine
    home: Path
    place: dict[str, str]
    random: random.Random
    usual: float = 0.0
    """Seconds that the last command took that was not killed."""
    kills: int = 0
    told: dict[tuple[str, str], Any] = field(default_factory=dict)
    """What was charged for each input of a project, as it was exported first."""

    def run(self, *words: str) -> str:
        return self.terrine(*words, **self.place).fine

    def finish(self, *words: str) -> None:
        """Run a command to its end, after it was killed some times."""
        for _ in range(TOGETHER if self.usual else 0):
            self._start(words, self.random.uniform(0, self.usual))
        self._start(words, None)
        Path(self.place["TERRINE_DATA_DIR"]).chmod(0o700)  # what the fixture made it with is wider
        findings = json.loads(self.terrine("--json", "doctor", **self.place).out)["findings"]
        problems = [each for each in findings if each["state"] == "problem"]
        assert problems == []

    def _start(self, words: Sequence[str], seconds: float | None) -> None:
        log, began = self.home / "log", time.monotonic()
        log.unlink(missing_ok=True)
        process = start(command_of_few_designed, self.home, words, self.place, str(log))
        process.join(PATIENCE_SECONDS if seconds is None else seconds)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            assert seconds is not None, log.read_text()
            self.kills += 1
        else:
            assert process.exitcode == 0, log.read_text()
            self.usual = self.usual or time.monotonic() - began
        self.check()

    def check(self) -> None:
        """By documents alone: nothing is overspent, charged twice, or told with other noise."""
        assert "NOT" not in self.run("ledger", "verify", "all")
        exports = [self.home / "administrative.jsonl"]
        self.run("ledger", "export", "--output", str(exports[0]))
        for each in json.loads(self.run("--json", "project", "show")):
            exports.append(self.home / f"{each['name']}.jsonl")
            self.run("ledger", "export", each["name"], "--output", str(exports[-1]))
        run_program(sys.executable, CHECKER, *exports, check=True)
        for path in exports[1:]:
            entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
            assert len({entry["input_digest"] for entry in entries}) == len(entries)
            for entry in entries:
                place = path.name, entry["input_digest"]
                assert self.told.setdefault(place, entry) == entry


@pytest.fixture
def owner(
    terrine: Terrine,
    tmp_path: Path,
    seed: int,
    each_database_url: str,
    tally: Callable[[str], None],
) -> Iterator[Owner]:
    place = {"TERRINE_DATA_DIR": str(tmp_path / "data"), "TERRINE_DATABASE_URL": each_database_url}
    in_processes(time.sleep, (0,))  # now all shared imports are done
    made = Owner(terrine, tmp_path, place, random.Random(seed))
    yield made
    kind = each_database_url.partition(":")[0]
    tally(f"{kind}, {tmp_path.name}: {made.kills} kills in the {made.usual:.1f} s it takes")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("each_database_url")
@pytest.mark.parametrize("leaves", [True, False], ids=["forget", "add"])
def test_people_leave_and_come_however_often_it_is_killed(
    owner: Owner,
    leaves: bool,
    digits_ensemble: DigitsEnsemble,
    kills: Callable[[float], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_one_month(monkeypatch)
    built = build_leaving_people(tmp_path / "people", digits_ensemble)
    url, data = owner.place["TERRINE_DATABASE_URL"], tmp_path / "data"
    settings, engine = installed(data, url, built)
    settings.records_key_path.write_bytes(KEY)
    settings.records_key_path.chmod(0o600)
    ledger = Ledger(engine, SECRET_KEY)
    terms = {"name": "study", "ensemble": "people", "mechanism": SPEC}
    open_project(ledger, ProjectOpen.model_validate({**terms, "epsilon": 0.5, "delta": 1e-5}))
    labeling = Labeling(ledger, AnyVoters(settings, settings.voters), Metrics(), 100)
    places = points(settings.ensembles_dir / "people")
    for turn in count():
        asked = labeling.check("study", built.public[2 * turn : 2 * turn + 2])
        (found,) = labeling.answer("study", [asked])
        assert not isinstance(found, ServiceError)
        some = [2 * turn, 2 * turn + 1] if leaves else [PEOPLE + 2 * turn, PEOPLE + 2 * turn + 1]
        file = str(save(tmp_path / "some.npz", digits_of_people(some)))
        words = ("forget", "--who", file, "--yes") if leaves else ("add", "people", file)
        owner.finish("ensemble", *words)
        if leaves:
            assert holding(data, *(places[person].tobytes() for person in some)) == []
        else:
            now = settings.data_dir / ledger.ensembles.get("people").current.path
            assert len(NeighbourEnsemble.load(now).labels) == PEOPLE + 2 * turn + 2
        assert len(list((settings.ensembles_dir / "people").iterdir())) == 1
        if owner.kills >= kills(OF_ACTS):
            break
    assert ledger.projects.get("study").charges == 2 * turn + 2


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("each_database_url")
@pytest.mark.parametrize("options", [WITH_ROWS, BY_SCHEMA], ids=["rows", "designed"])
def test_quickstart_opens_one_project_however_often_it_is_killed(
    owner: Owner,
    options: Sequence[str],
    each_database_url: str,
    kills: Callable[[float], int],
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path / "data", each_database_url, owner.terrine)
    machine.run("init", **owner.place) if each_database_url.startswith("sqlite") else machine.init()
    generator = np.random.default_rng(0)
    for name, rows in (("patients", 600), ("survey", 100)):
        age, weight = generator.integers(20, 90, rows), generator.integers(40, 120, rows)
        ill = np.where(age + weight > 135, "yes", "no")
        lines = [",".join(map(str, row)) for row in zip(age, weight, ill, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,weight,ill", *lines, ""]))
    columns = [
        {"name": "age", "role": "numeric", "low": 0, "high": 100},
        {"name": "weight", "role": "numeric", "low": 30, "high": 150},
        {"name": "ill", "role": "label", "values": ["no", "yes"]},
    ]
    (tmp_path / "schema.json").write_text(json.dumps({"columns": columns}))
    for turn in count(1):
        apart = ("--name", f"r{turn}", "--population", f"r{turn}", "--disjoint")
        owner.finish("quickstart", "patients.csv", *options, *apart, "--epsilon", "4", "--yes")
        made = json.loads(owner.run("--json", "project", "show"))
        assert len(made) == turn
        if owner.kills >= kills(OF_ACTS):
            break
