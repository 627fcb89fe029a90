"""Small worlds in which people leave and come, asked by the real service: nobody tells more."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sqlalchemy import select

from support.databases import SECRET_KEY, migrated
from support.processes import PATIENCE_SECONDS, seed_noise
from support.wording import refuses
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import (
    IDENTITIES_FILE,
    Partition,
    save_tensors,
    versions,
)
from terrine_models.teachers import editions as saving
from terrine_models.teachers.manifests import Manifest, save_manifest
from terrine_models.teachers.margins import ANSWERS_FILE, MarginTeachers
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.people import People, name_digests
from terrine_protocol import EnsembleRegister, ProjectOpen, Role, TokenCreate
from terrine_protocol.files import new_directory
from terrine_server.app import serving
from terrine_server.errors import LedgerCorrupted
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import Ledger, NewProject, accounts
from terrine_server.ledger.charging import Charging
from terrine_server.ledger.schema import unit_accounts as accounts_table
from terrine_server.metrics import Metrics
from terrine_server.owner import editions
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens
from terrine_server.privacy import BoundRelease, build_mechanism, quote
from terrine_server.settings import Settings

KEY = b"key of the records" * 3
SPEC = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
MECHANISM = {"name": "neighbours", "sigma": 0.7, "norm": 2, "queries": 40}
CAP: dict[str, Any] = {"epsilon": 40.0, "delta": 1e-4}
EPSILON, DELTA = 30.0, 1e-5
"""A budget that allows every person four in squared votes."""
LEFT, RIGHT, FAR = 0.2, 0.8, 0.5
"""Both columns of the records. Nothing is asked near `FAR`."""
Record = tuple[float, int]
"""A place, and a class."""
Table = dict[str, tuple[Record, ...]]
OTHERS: Table = {
    "bob": ((LEFT, 0),),
    "cyd": ((LEFT, 1), (RIGHT, 0)),
    "dan": ((LEFT, 0),),  # as Ada in some worlds
}
COMING: Table = {"eve": ((RIGHT, 1),), "cyd": ((LEFT, 0),), "fay": ((LEFT, 0),)}
FIRST: list[tuple[Record, ...]] = [
    ((FAR, 0),),
    ((LEFT, 0),),
    ((LEFT, 1), (LEFT, 1)),
    ((LEFT, 0), (RIGHT, 1)),
]
MORE: list[tuple[tuple[Record, ...], tuple[Record, ...]]] = [
    ((), ()),
    (((LEFT, 0),), ((LEFT, 0),)),
    (((RIGHT, 1), (RIGHT, 1)), ((LEFT, 1),)),
]
"""Her records in the second file, and where it is given again; none: she is not in it."""
ADA = [(first, *more) for first, more in product(FIRST, MORE)]
SOME = [ADA[0], ADA[2], ADA[7]]
Ada = tuple[tuple[Record, ...], tuple[Record, ...], tuple[Record, ...]]
Plant = Callable[[pytest.MonkeyPatch], None]


def dataset(table: Table) -> Dataset:
    rows = [(person, *record) for person, own in enumerate(table.values()) for record in own]
    return Dataset(
        np.array([[place, place] for _, place, _ in rows], np.float32),
        np.array([label for *_, label in rows]),
        ("low", "high"),
        SPEC,
        groups=np.array([person for person, *_ in rows]),
        group_column="name",
        people=tuple(table),
    )


@dataclass(frozen=True)
class Told:
    """What was answered, int64[queries, classes], and what people have spent in the end."""

    before: NDArray[np.int64]
    after: NDArray[np.int64]
    """Since Ada was forgotten."""
    accounts: NDArray[np.uint32]
    allowance: int


@dataclass
class Service:
    """The service of one world."""

    settings: Settings
    ledger: Ledger
    labeling: Labeling
    asked: int = 0

    def ask(self) -> NDArray[np.int64]:
        """Ask on both sides, in one request, what was not asked before."""
        self.asked += 1
        jitter = 0.001 * self.asked
        x = np.array([[LEFT + jitter] * 2, [RIGHT + jitter] * 2], np.float32)
        (answer,) = self.labeling.answer("study", [self.labeling.check("study", x)])
        assert not isinstance(answer, Exception), answer
        return np.array([result.counts for result in answer.results])

    def forget(self, name: str) -> None:
        editions.forget(self.ledger, self.settings, None, name_digests([name], KEY))

    def add(self, table: Table) -> None:
        editions.add(self.ledger, self.settings, "people", dataset(table))

    def ask_while(self, act: Callable[[], None], patch: pytest.MonkeyPatch) -> NDArray[np.int64]:
        """Ask, and let an edition come between the vote and its charge."""
        usual = Charging.charge

        def overtaken(payments: Charging, *given: Any) -> Any:
            patch.setattr(Charging, "charge", usual)
            act()
            return usual(payments, *given)

        patch.setattr(Charging, "charge", overtaken)
        return self.ask()

    def accounts(self) -> NDArray[np.uint32]:
        with self.ledger._access.engine.connect() as connection:
            stored = connection.execute(select(accounts_table.c.accounts)).scalar_one()
        return np.frombuffer(stored, "<u4")


def prepare(directory: Path) -> Settings:
    """Return the settings of a machine without ensembles."""
    settings = Settings(data_dir=directory, database_url=f"sqlite:///{directory / 'ledger.sqlite'}")
    settings.ensembles_dir.mkdir(parents=True)
    for path, key in ((settings.secret_key_path, SECRET_KEY), (settings.records_key_path, KEY)):
        path.write_bytes(key)
        path.chmod(0o600)
    return settings


def place(settings: Settings, table: Table, near: int = 1) -> None:
    """Build an ensemble of people, on a public grid."""
    side = (np.arange(20, dtype=np.float32) + 0.5) / 20
    pool = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    build(
        dataset(table),
        settings.ensembles_dir / "people",
        name="people",
        public=PublicData.declare("a grid", pool),
        settings=NeighbourSettings(near=near, width=3),
        key=KEY,
    )


def told(directory: Path, ada: Ada, patch: pytest.MonkeyPatch) -> Told:
    """What the service of a world tells, from its first answer to its last."""
    first, more, again = ada
    settings = prepare(directory)
    place(settings, {"ada": first, **OTHERS})
    ledger = Ledger(migrated(settings.database), SECRET_KEY)
    register_ensemble(ledger, settings, EnsembleRegister(name="people", **CAP))
    opening = {"name": "study", "ensemble": "people", "mechanism": MECHANISM}
    budget = {"epsilon": EPSILON, "delta": DELTA}
    project = open_project(ledger, ProjectOpen.model_validate(opening | budget))
    assert project.terms.allowance is not None
    labeling = Labeling(ledger, AnyVoters(settings), Metrics(), max_batch=10)
    service = Service(settings, ledger, labeling)

    def add(hers: tuple[Record, ...]) -> None:
        service.add(COMING | ({"ada": hers} if hers else {}))

    seed_noise(patch)
    before = [service.ask()]
    add(more)
    before += [service.ask()]
    add(again)
    service.forget("bob")
    before += [service.ask(), service.ask()]
    after = [service.ask_while(lambda: service.forget("ada"), patch), service.ask()]
    add(again)
    after += [service.ask()]
    return Told(
        np.concatenate(before),
        np.concatenate(after),
        service.accounts(),
        project.terms.allowance.most,
    )


def worlds(directory: Path, some: Sequence[Ada], plant: Plant | None = None) -> list[Told]:
    found = []
    for number, ada in enumerate(some):
        with pytest.MonkeyPatch.context() as patch:
            if plant is not None:
                plant(patch)
            found.append(told(directory / f"{number}", ada, patch))
        shutil.rmtree(directory / f"{number}")
    return found


def loss(one: Told, other: Told) -> float:
    """Of all answers together, in those of the largest loss that is promised: 1 at most."""
    moved = np.concatenate([one.before - other.before, one.after - other.after])
    return float((moved.astype(float) ** 2).sum()) / (2 * one.allowance)


def of_others(told: Told) -> list[int]:
    return [int(each) for each in told.accounts[1:]]


@pytest.mark.slow
def test_nobody_tells_more_of_ada_whatever_editions_come_and_nothing_once_she_left(
    tmp_path: Path,
) -> None:
    found = worlds(tmp_path, ADA)
    losses = [loss(one, other) for one in found for other in found]
    assert 0.5 < max(losses) <= 1
    assert found[0].allowance == 4
    for other in found[1:]:
        assert np.array_equal(found[0].after, other.after)
        assert of_others(found[0]) == of_others(other)


def empties_accounts(patch: pytest.MonkeyPatch) -> None:
    """A new edition is a new ensemble, whose people have spent nothing."""
    usual = accounts.follow_edition

    def empty(tx: Any, project: Any, edition: Any) -> None:
        usual(tx, project, edition)
        none = accounts._with_erased(np.zeros(edition.slots, "<u4"), project, edition)
        accounts._save(accounts_table, tx, project, none, filled=0)

    patch.setattr(accounts, "follow_edition", empty)


def adds_a_file_whole_or_not(patch: pytest.MonkeyPatch) -> None:
    """A file that brings anything new is added again, with the records that are there already."""
    usual = saving._find_repeated

    def repeated(new: Any, records: Any) -> NDArray[np.bool_]:
        each = usual(new, records)
        return np.full(len(each), bool(each.all()))

    patch.setattr(saving, "_find_repeated", repeated)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [empties_accounts, adds_a_file_whole_or_not])
def test_planted_defects_show(tmp_path: Path, plant: Plant) -> None:
    found = worlds(tmp_path, SOME, plant)
    most = max(loss(one, other) for one in found for other in found)
    kept = all(of_others(found[0]) == of_others(other) for other in found)
    assert not (most <= 1 and kept)


def test_accounts_that_survive_an_edition_without_a_check_show(tmp_path: Path) -> None:
    """What was voted on the edition before is charged, with the accounts of then: the next reader
    finds them, and nothing further is answered."""
    with refuses(LedgerCorrupted, "study", "accounts"):
        worlds(tmp_path, SOME, lambda patch: patch.setattr(accounts, "_check_edition", skip))


def skip(*_: Any) -> None:
    """Check nothing."""


@dataclass
class Student:
    """Asks one project of a running service."""

    http: httpx.Client
    headers: dict[str, str]

    def ask(self, row: Sequence[float], **more: Sequence[float]) -> httpx.Response:
        """Ask about one input."""
        body = {"inputs": [list(row)]} | {name: [list(each)] for name, each in more.items()}
        return self.http.post("/label", json=body, headers=self.headers)


@dataclass
class Reachable:
    """A service that is asked over HTTP, and its owner's machine."""

    settings: Settings
    ledger: Ledger
    http: httpx.Client

    def student(self, name: str, ensemble: str, **terms: Any) -> Student:
        """Open a project, and return a student of it."""
        opening = {"name": name, "ensemble": ensemble, "delta": 1e-3, **terms}
        open_project(self.ledger, ProjectOpen.model_validate(opening))
        return self.student_of(name)

    def secretly(self, name: str, spec: dict[str, Any]) -> Student:
        """The same of a project whose spend is secret, and published after every third query."""
        rule = self.ledger.ensembles.get("told").population.rule
        assert rule.order is not None
        figure = BoundRelease(rule.order, 0.1 / rule.order, sigma=9.0, z=5.0)
        mechanism = build_mechanism(spec, teachers=TEACHERS, classes=3)
        publishing = figure, (3, 6, 9)
        terms = quote(mechanism, 6.0, 1e-3, cap_rule=rule, publishing=publishing)
        self.ledger.projects.open(NewProject(name, "told", spec, terms))
        return self.student_of(name)

    def student_of(self, name: str) -> Student:
        """Return a student of a project."""
        wanted = TokenCreate(role=Role.STUDENT, project=name)
        token = Tokens(self.ledger, SECRET_KEY).create(wanted).token
        return Student(self.http, {"Authorization": f"Bearer {token}"})

    def add(self, table: Table) -> None:
        editions.add(self.ledger, self.settings, "people", dataset(table))

    def forget(self, *names: str) -> None:
        editions.forget(self.ledger, self.settings, None, name_digests(list(names), KEY))

    def charged(self, project: str) -> set[tuple[Any, ...]]:
        """What each outcome was charged."""
        lines = [line for line in self.ledger.exports.export_project(project) if "outcome" in line]
        return {(line["outcome"], line["cost"], line["delta"]) for line in lines}


@contextmanager
def reachable(settings: Settings, ensemble: str, **cap: float) -> Iterator[Reachable]:
    ledger = Ledger(migrated(settings.database), SECRET_KEY)
    wanted = {"name": ensemble, "epsilon": 100.0, "delta": 0.02, **cap}
    register_ensemble(ledger, settings, EnsembleRegister.model_validate(wanted))
    with serving(settings) as url, httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http:
        yield Reachable(settings, ledger, http)


VALUES = (
    rb'[0-9a-f]{64}|-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?|"label_name":"[a-z]+"|"publications":\[[^]]*\]'
)


def shape_of(reply: httpx.Response) -> bytes:
    """A reply's bytes with one character in place of each value: labels and noisy counts are paid
    for, and balances follow from outcomes."""
    return re.sub(VALUES, b"0", reply.content)


CROWD: Table = {f"p{number}": ((LEFT, number % 2),) for number in range(20)}
Act = tuple[str, Table]
"""What the owner does, and to whom."""
OUTGROWN: list[Act] = [
    ("add", {"eve": ((LEFT, 0),), "fay": ((LEFT, 1),)}),
    ("add", CROWD),
    ("add", dict.fromkeys(CROWD, ((LEFT, 0), (RIGHT, 1)))),
    ("forget", dict.fromkeys(["ada", "bob", "cyd", "dan", *list(CROWD)[1:]], ())),
    ("forget", dict.fromkeys(["eve", "fay"], ())),
]
"""Many more than the four who were registered come; one of them stays."""


def some_acts(seed: int) -> list[Act]:
    """Return acts in any order. Bob stays."""
    random, acts = np.random.default_rng(seed), list[Act]()
    away, there = [*CROWD, "eve", "fay"], ["ada", "cyd", "dan"]
    for _ in range(8):
        if random.random() < 0.6 or not there:
            coming = random.permutation([*away, *there])[: random.integers(1, 12)].tolist()
            places = random.choice([LEFT, RIGHT], (len(coming), 3))
            records = zip(coming, places.tolist(), strict=True)
            acts.append(("add", {who: tuple((at, seed % 2) for at in own) for who, own in records}))
            away, there = [who for who in away if who not in coming], [*{*there, *coming}]
        else:
            gone = random.permutation(sorted(there))[: random.integers(1, 6)].tolist()
            acts.append(("forget", dict.fromkeys(gone, ())))
            there = [who for who in there if who not in gone]
    return acts


@pytest.mark.parametrize(
    "acts",
    [OUTGROWN, *(pytest.param(some_acts(i), marks=pytest.mark.nightly) for i in range(20))],
    ids=lambda acts: f"{len(acts)} acts",
)
@pytest.mark.parametrize("hers", [(LEFT, 0), (LEFT, 1)], ids=str)
def test_people_answer_whatever_they_vote_when_there_are_more_or_fewer_than_were_registered(
    hers: Record, acts: list[Act], tmp_path: Path
) -> None:
    """Two worlds, of which one has one vote more for a class than people were registered."""
    settings = prepare(tmp_path)
    place(settings, {"ada": (hers,), **OTHERS, "cyd": ((LEFT, 0),)})
    spec = {"name": "neighbours", "sigma": 30.0, "queries": 90}
    with reachable(settings, "people") as service:
        asked, replies = count(1), []
        student = service.student("study", "people", mechanism=spec, epsilon=20)
        for act, whom in [("", {}), *acts]:
            if act == "add":
                service.add(whom)
            elif act == "forget":
                service.forget(*whom)
            for side in (LEFT, RIGHT, LEFT, RIGHT):
                at = side + 0.0005 * next(asked)
                replies.append(student.ask((at, at)))
        assert {reply.status_code for reply in replies} == {200}
        assert len({shape_of(reply) for reply in replies}) == 1
        assert len(service.charged("study")) == 1


TEACHERS = 40
MECHANISMS: dict[str, dict[str, Any]] = {
    "lnmax": {"name": "lnmax", "gamma": 0.1},
    "gnmax": {"name": "gnmax", "sigma": 10.0},
    "confident": {"name": "confident_gnmax", "threshold": 25, "sigma1": 12.0, "sigma2": 8.0},
    "interactive": {
        "name": "interactive_gnmax",
        "threshold": 8,
        "sigma1": 12.0,
        "sigma2": 8.0,
        "confidence": 0.6,
    },
    "laplace": {"name": "immutable", "c": 1, "gamma": 0.05},
    "immutable": {"name": "immutable", "c": 1, "sigma": 20.0},
    "counts": {"name": "noisy_votes", "sigma": 10.0},
    "stable": {"name": "stable", "sigma": 3.8, "delta_per_query": 1e-6},
}
SECRETLY_COUNTED = ("lnmax", "gnmax", "confident", "interactive", "stable")
"""Those that data-dependent accounting has an analysis of."""
STUDENTS_VIEW = (0.7, 0.2, 0.1)


def tallies(seed: int, some: int) -> NDArray[np.int64]:
    """Votes of 40 people on three classes: the corners, ties and near ties, and some others."""
    n = TEACHERS
    edges = [(n, 0, 0), (0, 0, n), (n // 2, n // 2, 0), (n - 1, 1, 0), (14, 13, 13), (13, 13, 14)]
    edges += [(0, n // 2, n // 2), (n // 2 + 1, n // 2 - 1, 0), (0, n, 0), (25, 15, 0), (24, 0, 16)]
    random = np.random.default_rng(seed)
    drawn = random.multinomial(n, [1 / 3] * 3, some)
    return random.permutation(np.concatenate([np.array(edges), drawn]))


def save_people_who_vote(settings: Settings, cast: NDArray[np.int64]) -> None:
    """Save people, each of whom answers a question for each of these tallies [Q, 3]."""
    table: Table = {f"p{number}": ((LEFT, 0),) for number in range(TEACHERS)}
    data, out = dataset(table), settings.ensembles_dir / "told"
    draw = np.random.default_rng(0)
    cells = np.array([draw.permutation(np.repeat(np.arange(3), each)) for each in cast]).T
    with new_directory(out) as work:
        answers = {"cells": torch.from_numpy(cells.astype(np.int16))}
        files = {ANSWERS_FILE: save_tensors(work / ANSWERS_FILE, answers)}
        files[IDENTITIES_FILE] = People.of(data, KEY).save(work, KEY)
        manifest = Manifest(
            name="told",
            teacher=MarginTeachers(cells=(3,) * len(cast), schema_sha256="ab" * 32),
            input=InputSpec(shape=(1,), dtype="uint8", low=0, high=len(cast) - 1),
            classes=("0", "1", "2"),
            teachers=TEACHERS,
            units=TEACHERS,
            partition=Partition(
                recipe="groups", seed=0, group_column="name", smallest=1, largest=1
            ),
            versions=versions(),
            files=files,
        )
        save_manifest(work, manifest)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 20))]
)
@pytest.mark.parametrize("secret", [False, True], ids=["worst case", "data dependent"])
def test_no_vote_is_an_error_after_any_acts_of_the_owner(
    secret: bool, seed: int, tmp_path: Path
) -> None:
    """By every mechanism, whatever 40 people vote: the same status, as many bytes for the same
    outcome, the same charge."""
    settings, cast = prepare(tmp_path), tallies(seed, 5)
    save_people_who_vote(settings, cast)
    with reachable(settings, "told", **({"order": 3.0} if secret else {})) as service:
        students = {
            name: service.secretly(name, MECHANISMS[name])
            if secret
            else service.student(name, "told", mechanism=MECHANISMS[name], epsilon=7.0)
            for name in (SECRETLY_COUNTED if secret else MECHANISMS)
        }
        told: dict[str, set[tuple[int, str, bytes]]] = {name: set() for name in students}

        def ask(questions: range) -> None:
            for name, student in students.items():
                more = {"probabilities": STUDENTS_VIEW} if "interactive" in name else {}
                for question in questions:
                    reply = student.ask([question], **more)
                    outcome = reply.json().get("results", [{"outcome": ""}])[0]["outcome"]
                    told[name].add((reply.status_code, outcome, shape_of(reply)))

        ask(range(8))
        service.forget("p0", "p7")
        service.forget(*(f"p{number}" for number in range(20, 39)))
        ask(range(8, 16))
        for name, seen in told.items():
            assert {status for status, *_ in seen} == {200}, name
            assert len({outcome for _, outcome, _ in seen}) == len(seen), name
            charged = service.charged(name)
            assert len({outcome for outcome, *_ in charged}) == len(charged), name
