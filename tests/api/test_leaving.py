"""People leave and come while the service runs: over HTTP, by the owner's commands, and killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from support.clients import Caller
from support.data import (
    KEY,
    PEOPLE,
    DigitsEnsemble,
    build_leaving_people,
    digits_of_people,
    holding,
    in_one_month,
    make_next,
    next_but_die,
    points,
)
from support.data import save as saved
from support.databases import SECRET_KEY
from support.processes import Terrine, in_processes
from support.servers import RunningServer, installed, running_server
from support.wording import holds, refuses
from terrine_models.teachers import editions as saving
from terrine_models.teachers.neighbours import NeighbourEnsemble
from terrine_server.errors import Conflict, InvalidTerms
from terrine_server.ledger import Ledger, connect
from terrine_server.ledger.ensembles import Ensembles
from terrine_server.ledger.schema import projects, unit_accounts
from terrine_server.owner import editions as owner
from terrine_server.privacy import Neighbours as Mechanism
from terrine_server.privacy import Units

SPEC = {"name": "neighbours", "sigma": 30.0, "queries": 300}
GONE, MORE = [3, 17, 200], list(range(PEOPLE, PEOPLE + 60))


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> DigitsEnsemble:
    return build_leaving_people(tmp_path_factory.mktemp("leaving") / "people", digits_ensemble)


@dataclass(frozen=True)
class World:
    """A running service, and what its owner types."""

    server: RunningServer
    url: str
    terrine: Terrine
    tmp_path: Path

    @property
    def directory(self) -> Path:
        return self.server.settings.ensembles_dir / "people"

    def run(self, *words: object) -> Any:
        return self.terrine(*words, **self.server.variables)

    def ask(self, rows: NDArray[np.uint8]) -> None:
        reply = Caller(self.server, self.server.token()).label(rows)
        assert reply.status_code == 200, reply.text

    def accounts(self, project: str = "study") -> NDArray[np.uint32]:
        query = (
            select(unit_accounts.c.accounts)
            .join(projects, projects.c.id == unit_accounts.c.project_id)
            .where(projects.c.name == project)
        )
        with connect(self.url).connect() as connection:
            return np.frombuffer(connection.execute(query).scalar_one(), "<u4")

    @property
    def most(self) -> int:
        found = self.server.ledger.projects.get("study").terms.allowance
        assert found is not None
        return found.most

    def cast(
        self, rows: NDArray[np.uint8], spent: NDArray[np.uint32], there: NDArray[np.bool_]
    ) -> NDArray[np.uint32]:
        """The accounts after some queries, of the people who are `there` in the newest edition."""
        record = self.server.ledger.ensembles.get("people").current
        found = NeighbourEnsemble.load(self.server.settings.data_dir / record.path)
        units = Units.of(found.units, found.labels, found.manifest.units)
        weights = found.weights(rows) * there[found.units]
        mechanism = Mechanism(found.manifest.units, 10, 30.0, 300)
        return mechanism.cast(weights, units, spent, self.most)[1]


@pytest.fixture
def world(
    tmp_path: Path,
    database_url: str,
    built: DigitsEnsemble,
    terrine: Terrine,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    in_one_month(monkeypatch)
    with running_server(tmp_path / "data", database_url, built) as server:
        server.settings.records_key_path.write_bytes(KEY)
        server.settings.records_key_path.chmod(0o600)
        server.open_project(mechanism=SPEC, epsilon=0.5)
        yield World(server, database_url, terrine, tmp_path)


@pytest.mark.parametrize(
    "each_database_url",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.nightly)],
    indirect=True,
)
@pytest.mark.usefixtures("each_database_url")
def test_people_leave_and_come_while_it_serves(world: World, built: DigitsEnsemble) -> None:
    queries, student = built.public, Caller(world.server, world.server.token())
    told = student.http.get("/project").json()
    places = points(world.directory)
    rows = [places[person].tobytes() for person in GONE]
    assert holding(world.server.settings.data_dir, *rows)

    world.ask(queries[:40])
    before = world.accounts()
    leaving = saved(world.tmp_path / "leaving.npz", digits_of_people(GONE))
    done = world.run("ensemble", "forget", "--who", leaving, "--yes")
    holds(done.fine, "Edition", 2, "people", 3)
    # The ledger's own row is of the digest, and its database is elsewhere or in the directory.
    assert holding(world.server.settings.data_dir, *rows) == []
    here = np.ones(PEOPLE, dtype=bool)
    here[GONE] = False
    filled = before.copy()
    filled[GONE] = world.most
    assert world.accounts().tolist() == filled.tolist()

    world.ask(queries[40:80])  # it votes without them, and without a restart
    expected = world.cast(queries[40:80], filled, here)
    assert world.accounts().tolist() == expected.tolist()
    assert (expected != filled).sum() > 100

    coming = saved(world.tmp_path / "coming.npz", digits_of_people([*MORE, *GONE]))
    done = world.run("ensemble", "add", "people", coming)
    holds(done.fine, "Edition", 3, "people", 60)
    holds(done.fine, 3, "forgotten")
    longer = np.concatenate([expected, np.zeros(60, np.uint32)])
    assert world.accounts().tolist() == longer.tolist()
    assert holding(world.server.settings.data_dir, *rows) == []
    world.server.open_project("later", SPEC, epsilon=0.5)
    assert np.flatnonzero(world.accounts("later")).tolist() == GONE
    world.ask(queries[80:120])
    expected = world.cast(queries[80:120], longer, np.ones(PEOPLE + 60, dtype=bool))
    assert world.accounts().tolist() == expected.tolist()
    assert expected[PEOPLE:].max() > 0

    # Again: nobody is there twice, and no record.
    again = world.run("ensemble", "add", "people", coming)
    holds(again.fine, "Edition", 4, "New", 0)
    assert len(points(world.directory / "edition-4")) == PEOPLE - 3 + 60
    again = world.run("ensemble", "forget", "--who", leaving, "--yes")
    holds(again.fine, "forgotten", "before", 4)

    assert student.http.get("/project").json() == told
    pool = world.tmp_path / "pool.npy"
    np.save(pool, queries)
    verified = world.run("ledger", "verify", "study", "--accounts", pool)
    holds(verified.fine, 120, "queries")
    later = Caller(world.server, world.server.token(project="later"))
    assert later.label(queries[:50]).status_code == 200
    verified = world.run("ledger", "verify", "later", "--accounts", pool)
    holds(verified.fine, 50, "queries")
    assert world.run("ledger", "verify", "all").code == 0
    assert "3 who" not in world.run("ledger", "show").fine
    assert world.run("audit", "ledger").code == 0
    found = world.run("doctor").out
    holds(found, "registered")
    assert "serve" not in found
    assert world.run("ensemble", "show", "people", "--verify").code == 0
    planned = world.run("plan", "neighbours", "--ensemble", "people", "--rows", 300, "--epsilon", 1)
    holds(planned.fine, "neighbours", 300)


def test_the_log_says_that_an_edition_was_made_and_never_who_or_how_many(world: World) -> None:
    ledger = world.server.ledger
    make_next(GONE, [], ledger, world.server.settings)
    make_next([], MORE, ledger, world.server.settings)
    entries = [entry for entry in ledger.log.list(limit=100) if entry.action == "edition-made"]
    assert sorted(entry.subject for entry in entries) == ["people/2", "people/3"]
    for entry in entries:
        assert set(entry.detail) == {"manifest_sha256", "units", "made_at"}
        assert entry.detail["units"] == PEOPLE, "it is published once a month"
    told = json.dumps([*ledger.exports.export_project("study"), *ledger.exports.export_log()])
    assert "slots" not in told
    assert "erased" not in told


def test_how_many_there_are_is_published_as_the_month_began(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, settings = world.server.ledger, world.server.settings
    months = [(2031, 5, 2), (2031, 5, 30), (2031, 6, 1)]
    works = [([3], []), ([], MORE), ([17], [])]
    published = []
    for day, work in zip(months, works, strict=True):
        now = datetime(*day, tzinfo=UTC)
        monkeypatch.setattr("terrine_server.ledger.database.now", lambda now=now: now)
        make_next(*work, ledger, settings)
        newest = ledger.ensembles.get("people").edition
        assert newest is not None
        published.append(newest.units)
    assert published == [PEOPLE, PEOPLE, PEOPLE - 1 + 60]


def test_what_an_owner_gets_wrong_changes_nothing(world: World, built: DigitsEnsemble) -> None:
    files = world.server.settings.data_dir
    for data, words in [
        (digits_of_people([3, 1000]), "1 of 2 number 2"),
        (digits_of_people(slice(PEOPLE)), "Nobody left"),
    ]:
        who = saved(world.tmp_path / "who.npz", data)
        refused = world.run("ensemble", "forget", "--who", who, "--yes").refused
        holds(refused, *words.split())
    nameless = world.tmp_path / "nameless.npz"
    more = digits_of_people(MORE)
    np.savez(nameless, x=more.inputs, y=more.labels, classes=np.array(more.classes))
    holds(world.run("ensemble", "add", "people", nameless).refused, "group", "people")
    refused = world.run("ensemble", "forget", "--who", nameless, "--yes").refused
    holds(refused, "group")
    (files / "records.key").write_bytes(b"another key of somebody else's records")
    who = saved(world.tmp_path / "who.npz", digits_of_people(GONE))
    refused = world.run("ensemble", "forget", "--who", who, "--yes").refused
    holds(refused, "records.key", "backup")
    (files / "records.key").unlink()
    holds(world.run("ensemble", "add", "people", who).refused, "backup")
    assert world.server.ledger.ensembles.list_editions("people")[-1].number == 1
    assert holding(files, points(world.directory)[3].tobytes())


def test_nobody_leaves_or_joins_where_nobody_knows_whose_records_are(
    terrine_server: RunningServer, terrine: Terrine, tmp_path: Path
) -> None:
    """Records alone are of nobody: who has an equal one could not be told apart."""
    who = saved(tmp_path / "who.npz", digits_of_people(GONE))
    terrine_server.settings.records_key_path.write_bytes(KEY)
    for words in [
        ("ensemble", "forget", "--who", who, "--yes"),
        ("ensemble", "forget", "--who", who, "--records", f"digits={who}", "--yes"),
        ("ensemble", "add", "digits", who),
    ]:
        refused = terrine(*words, **terrine_server.variables).refused
        holds(refused, "column", "group")
    with refuses(Conflict, "digits"):
        terrine_server.ledger.ensembles.make_edition("digits", 2, "00" * 32, 40, [])


def test_an_edition_follows_the_newest_and_brings_nobody_back(world: World) -> None:
    ledger = world.server.ledger
    make_next(GONE, [], ledger, world.server.settings)
    with refuses(Conflict, "people", 2):
        ledger.ensembles.make_edition("people", 2, "11" * 32, PEOPLE, GONE)
    for slots, erased in [(PEOPLE - 1, GONE), (PEOPLE, GONE[1:]), (PEOPLE, [*GONE, PEOPLE])]:
        with refuses(InvalidTerms, "left"):
            ledger.ensembles.make_edition("people", 3, "11" * 32, slots, erased)


def test_after_a_restore_who_comes_has_a_full_account_too(world: World) -> None:
    ledger = world.server.ledger
    ledger.projects.fill_accounts()
    make_next([], MORE, ledger, world.server.settings)
    assert world.accounts().tolist() == [world.most] * (PEOPLE + 60)
    assert ledger.verifier.verify_project("study").problems == []


def test_a_ledger_older_than_the_files_removes_nothing(world: World) -> None:
    """Restored alone, it names an edition that is not there."""
    make_next(GONE, [], world.server.ledger, world.server.settings)
    world.directory.joinpath("edition-2").rename(world.tmp_path / "elsewhere")
    who = saved(world.tmp_path / "who.npz", digits_of_people(GONE))
    refused = world.run("ensemble", "forget", "--who", who, "--yes").refused
    assert "edition-2" in refused
    shutil.copytree(world.tmp_path / "elsewhere", world.directory / "edition-2")
    assert world.run("ensemble", "forget", "--who", who, "--yes").code == 0


class KilledError(BaseException):
    """Not an Exception: nothing catches it, as nothing catches SIGKILL."""


@pytest.mark.parametrize(
    ("module", "name", "made"),
    [
        (saving, "save_manifest", False),
        (Ensembles, "make_edition", False),
        (owner, "_remove_old_editions", True),
    ],
)
def test_whatever_dies_in_between_the_next_run_finishes(
    world: World, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, made: bool
) -> None:
    ledger, settings = world.server.ledger, world.server.settings
    queries = world.server.ensemble.public
    rows = [points(world.directory)[person].tobytes() for person in GONE]
    usual, calls = getattr(module, name), count()

    def die(*given: Any, **named: Any) -> Any:
        if next(calls) < made:  # the one before the edition is made
            return usual(*given, **named)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(module, name, die)
        with pytest.raises(KilledError):
            make_next(GONE, [], ledger, settings)
    assert len(ledger.ensembles.list_editions("people")) == 1 + made
    world.ask(queries[:20])
    left_over = "private records of an edition that does not serve"
    assert (left_over in world.run("doctor").out) is (name != "save_manifest")
    assert not made or world.accounts()[GONE].tolist() == [world.most] * 3
    assert make_next(GONE, [], ledger, settings).new is not made
    assert holding(settings.data_dir, *rows) == []
    assert [path.name for path in world.directory.iterdir()] == ["edition-2"]
    world.ask(queries[20:40])
    assert ledger.verifier.verify_project("study").problems == []


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("each_database_url")
@pytest.mark.parametrize("leaves", [True, False])
def test_killed_at_any_step_it_is_the_old_edition_or_the_new(
    tmp_path: Path, database_url: str, built: DigitsEnsemble, leaves: bool
) -> None:
    """Before each file, rename, removal, statement and COMMIT; and the next run does the rest."""
    settings, engine = installed(tmp_path / "data", database_url, built)
    settings.records_key_path.write_bytes(KEY)
    ledger = Ledger(engine, SECRET_KEY)
    directory = settings.ensembles_dir / "people"
    places = points(directory)
    for step in count():
        before = ledger.ensembles.get("people")
        number = before.edition.number if before.edition else 0
        some = [2 * step, 2 * step + 1] if leaves else []
        more = [] if leaves else [PEOPLE + step, PEOPLE + 500 + step]
        given = str(settings.data_dir), database_url, some, more, step
        [process] = in_processes(next_but_die, given)
        after = ledger.ensembles.get("people")
        assert after.edition is not None
        assert after.edition.number in (number, number + 1)
        NeighbourEnsemble.load(settings.data_dir / after.current.path)
        make_next(some, more, ledger, settings)
        done = ledger.ensembles.get("people").current
        made = ledger.ensembles.list_editions("people")[-1].number
        twice = not leaves and after.edition.number > number
        assert made == number + 1 + twice, "to add again makes an edition, and adds nothing"
        assert holding(settings.data_dir, *(places[person].tobytes() for person in some)) == []
        left = {path.name for path in directory.iterdir()}
        assert left == {f"edition-{made}"}
        NeighbourEnsemble.load(settings.data_dir / done.path)
        assert ledger.verifier.verify_log().problems == []
        if process.exitcode == 0:
            break
    assert step >= 20
