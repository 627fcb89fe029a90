"""People leave trained teachers while these serve: over HTTP, by a command, and killed."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.clients import Caller
from support.data import (
    KEY,
    PAIRS,
    DigitsEnsemble,
    forget_taught_but_die,
    holding,
    in_one_month,
    pairs,
    save,
)
from support.processes import Done, Terrine, in_processes
from support.servers import RunningServer, running_server
from support.wording import holds
from terrine_models.data.arrays import Dataset
from terrine_models.storage.manifests import IDENTITIES_FILE, load_tensors
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.people import name_digests
from terrine_models.teachers.training import train_ensemble
from terrine_server.owner import editions as owner

TEACHERS = 20
GONE = ["person 3", "person 17"]
COUNTS = {"name": "noisy_votes", "sigma": 1.0}


@dataclass(frozen=True)
class World:
    server: RunningServer
    url: str
    terrine: Terrine
    tmp_path: Path

    def run(self, *words: object) -> Done:
        return self.terrine(*words, **self.server.variables)

    def forget(self, data: Dataset, *names: str) -> Done:
        given = save(self.tmp_path / "private.npz", data)
        who = self.tmp_path / "who.npz"
        np.savez(who, group=np.array(names))
        records = f"taught={given}"
        return self.run("ensemble", "forget", "--who", who, "--records", records, "--yes")

    @property
    def directory(self) -> Path:
        return self.server.settings.ensembles_dir / "taught"


def decided(directory: Path, of: DigitsEnsemble) -> dict[int, int]:
    """The label of each public input of which 12 more teachers say so than any other.

    Noise of σ = 1 in each count changes it less often than once in 10¹⁵ times.
    """
    votes = Ensemble.load(directory, "cpu").votes(of.public)
    second, most = np.sort(votes, axis=1)[:, -2:].T
    return {int(i): int(votes[i].argmax()) for i in np.flatnonzero(most - second >= 12)}


def labels(student: Caller, inputs: NDArray[np.uint8]) -> list[int]:
    return [each["label"] for each in student.label(inputs).json()["results"]]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble) -> Any:
    out = tmp_path_factory.mktemp("taught") / "taught"
    config = Heads(width=20, augmentations=0)
    manifest = train_ensemble(
        pairs(), out, name="taught", teachers=TEACHERS, config=config, key=KEY
    )
    return replace(digits_ensemble, directory=out, manifest=manifest)


@pytest.fixture
def world(
    tmp_path: Path,
    database_url: str,
    taught: DigitsEnsemble,
    terrine: Terrine,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    in_one_month(monkeypatch)
    with running_server(tmp_path / "data", database_url, taught) as server:
        server.settings.records_key_path.write_bytes(KEY)
        server.settings.records_key_path.chmod(0o600)
        server.open_project(mechanism=COUNTS, epsilon=40.0)
        yield World(server, database_url, terrine, tmp_path)


@pytest.mark.parametrize(
    "each_database_url",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)],
    indirect=True,
)
@pytest.mark.usefixtures("each_database_url")
def test_people_leave_trained_teachers_while_these_serve(
    world: World, taught: DigitsEnsemble
) -> None:
    """What is trained anew follows from what is given: here labels that are one class on, which
    shows who votes."""
    student, old = Caller(world.server, world.server.token()), decided(taught.directory, taught)
    first = taught.public[list(old)[:4]]
    assert labels(student, first) == list(old.values())[:4]
    before = student.http.get("/budget").json()
    assert [path.name for path in world.directory.iterdir() if path.is_dir()] == []
    done = world.forget(pairs(shift=1), *GONE)
    holds(done.fine, "Edition", 2, "taught", "People")
    assert [path.name for path in world.directory.iterdir()] == ["edition-2"]
    manifest = load_manifest(world.directory / "edition-2")
    who = load_tensors(
        world.directory / "edition-2", IDENTITIES_FILE, manifest.files[IDENTITIES_FILE]
    )
    assert np.flatnonzero(~who["present"].numpy().any(1)).tolist() == [3, 17]
    gone = sorted(map(bytes, name_digests(GONE, KEY)))
    assert sorted(map(bytes, who["erased"].numpy())) == gone

    assert labels(student, first) == list(old.values())[:4]
    assert student.http.get("/budget").json() == before, "what was answered is repeated for free"
    new = decided(world.directory / "edition-2", taught)
    asked = [query for query in list(old)[4:] if new.get(query, old[query]) != old[query]][:4]
    assert asked, "which tell the editions apart"
    assert labels(student, taught.public[asked]) == [new[query] for query in asked]

    holds(world.forget(pairs(), *GONE).fine, "forgotten", "taught", 2)
    assert "stay" not in world.forget(pairs(), "person 4").fine
    assert world.server.ledger.ensembles.get("taught").units == PAIRS
    assert world.run("ledger", "verify", "all").code == 0
    assert "person 3" not in world.run("ledger", "export").out
    found = world.run("doctor").out
    assert "serve" not in found
    assert world.run("ensemble", "show", "taught", "--verify").code == 0


def test_what_cannot_be_forgotten_is_said_and_nothing_changes(world: World) -> None:
    holds(world.forget(pairs(), "nobody").err, 1, "forgotten")
    few = pairs()
    stays = few.groups != 9 if few.groups is not None else None
    assert stays is not None
    assert few.people is not None
    assert few.groups is not None
    groups = few.groups[stays] - (few.groups[stays] > 9)
    names = (*few.people[:9], *few.people[10:])
    less = replace(
        few, inputs=few.inputs[stays], labels=few.labels[stays], groups=groups, people=names
    )
    holds(world.forget(less, *GONE).err, 1, "stay")
    who = world.tmp_path / "who.npz"
    refused = world.run("ensemble", "forget", "--who", who, "--yes").refused
    holds(refused, "taught", "--records")
    refused = world.run("ensemble", "forget", "--who", who, "--records", "taught", "--yes").refused
    holds(refused, "ENSEMBLE=FILE")
    given = f"others={who}"
    refused = world.run("ensemble", "forget", "--who", who, "--records", given, "--yes").refused
    holds(refused, "others")
    assert len(world.server.ledger.ensembles.list_editions("taught")) == 1
    assert not list(world.directory.glob("*edition*"))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("each_database_url")
def test_killed_at_any_step_it_is_the_old_edition_or_the_new(world: World) -> None:
    """Before each file, rename, removal, statement and COMMIT; and the next run does the rest.

    The service answers all the while, and nothing stays of teachers that saw who left.
    """
    ledger, settings = world.server.ledger, world.server.settings
    world.server.open_project("watch", COUNTS | {"sigma": 400.0}, epsilon=1.0)
    student, data = Caller(world.server, world.server.token(project="watch")), pairs()
    for step in count():
        before, name = ledger.ensembles.get("taught").current, f"person {step}"
        number = before.edition.number if before.edition else 0
        known = load_manifest(settings.data_dir / before.path)
        given = str(settings.data_dir), world.url, name, step
        [process] = in_processes(forget_taught_but_die, given)
        after = ledger.ensembles.get("taught").current
        assert after.edition is not None
        assert after.edition.number in (number, number + 1)
        Ensemble.load(settings.data_dir / after.path, "cpu")
        asked = student.label(world.server.ensemble.public[step : step + 1])
        assert asked.status_code == 200, asked.text
        who = name_digests([name], KEY)
        owner.forget(ledger, settings, None, who, {"taught": owner.Retraining(data)})
        done = ledger.ensembles.get("taught").current
        assert ledger.ensembles.list_editions("taught")[-1].number == number + 1
        assert {path.name for path in world.directory.iterdir()} == {f"edition-{number + 1}"}
        new = load_manifest(settings.data_dir / done.path)
        saw = {known.files[each] for each in known.teacher_files} - {*new.files.values()}
        assert saw, "teachers were trained anew"
        files = [path for path in settings.data_dir.rglob("*") if path.is_file()]
        assert not saw & {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        theirs = data.inputs[2 * step : 2 * step + 2]
        assert holding(settings.data_dir, *(each.tobytes() for each in theirs)) == []
        left = load_tensors(
            settings.data_dir / done.path, IDENTITIES_FILE, new.files[IDENTITIES_FILE]
        )
        assert not left["present"].numpy()[step].any()
        assert ledger.verifier.verify_log().problems == []
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert step >= 20
    assert ledger.verifier.verify_project("watch").problems == []
