"""Small worlds in which people leave and come, asked by the real service: nobody tells more."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from support.databases import SECRET_KEY, migrated
from support.processes import seed_noise
from support.wording import refuses
from terrine_models.data.arrays import Dataset, InputSpec
from terrine_models.features.maps import PublicData
from terrine_models.teachers import editions as saving
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.people import name_digests
from terrine_protocol import EnsembleRegister, ProjectOpen
from terrine_server.errors import LedgerCorrupted
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import Ledger, accounts
from terrine_server.ledger.schema import unit_accounts as accounts_table
from terrine_server.metrics import Metrics
from terrine_server.owner import editions
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.settings import Settings

KEY = b"key of the records" * 3
SPEC = InputSpec(shape=(2,), dtype="float32", low=0, high=1)
MECHANISM = {"name": "neighbours", "sigma": 0.7, "norm": 2, "queries": 40}
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
        usual = Ledger.charge_group

        def overtaken(payments: Ledger, *given: Any) -> Any:
            patch.setattr(Ledger, "charge_group", usual)
            act()
            return usual(payments, *given)

        patch.setattr(Ledger, "charge_group", overtaken)
        return self.ask()

    def accounts(self) -> NDArray[np.uint32]:
        with self.ledger._engine.connect() as connection:
            stored = connection.execute(select(accounts_table.c.accounts)).scalar_one()
        return np.frombuffer(stored, "<u4")


def told(directory: Path, ada: Ada, patch: pytest.MonkeyPatch) -> Told:
    """What the service of a world tells, from its first answer to its last."""
    first, more, again = ada
    settings = Settings(data_dir=directory, database_url=f"sqlite:///{directory / 'ledger.sqlite'}")
    settings.ensembles_dir.mkdir(parents=True)
    for path, key in ((settings.secret_key_path, SECRET_KEY), (settings.records_key_path, KEY)):
        path.write_bytes(key)
        path.chmod(0o600)
    side = (np.arange(20, dtype=np.float32) + 0.5) / 20
    pool = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    build(
        dataset({"ada": first, **OTHERS}),
        settings.ensembles_dir / "people",
        name="people",
        public=PublicData.declare("a grid", pool),
        settings=NeighbourSettings(near=1, width=3),
        key=KEY,
    )
    ledger = Ledger(migrated(settings.database), SECRET_KEY)
    register_ensemble(ledger, settings, EnsembleRegister(name="people", epsilon=40.0, delta=1e-4))
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
