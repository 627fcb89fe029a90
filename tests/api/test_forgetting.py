"""Who is forgotten leaves every ensemble of the population, and comes back in none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from support.data import KEY, PAIRS, digits_of_people, pairs
from support.databases import SECRET_KEY, migrated
from support.wording import refuses
from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import IDENTITIES_FILE, load_tensors
from terrine_models.teachers.heads import Heads
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.people import name_digests
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister
from terrine_server.errors import Conflict, NotFound
from terrine_server.ledger import Ledger
from terrine_server.owner import editions
from terrine_server.owner.editions import Retraining
from terrine_server.owner.operations import register_ensemble
from terrine_server.settings import Settings

CAP = {"epsilon": 50.0, "delta": 5e-4}


@dataclass(frozen=True)
class House:
    settings: Settings
    ledger: Ledger

    def place(self, name: str, data: Dataset, key: bytes = KEY) -> None:
        public = PublicData.declare("digits", digits_of_people(slice(1200, 1400)).inputs)
        build(
            data,
            self.settings.ensembles_dir / name,
            name=name,
            public=public,
            settings=NeighbourSettings(near=20),
            key=key,
        )

    def train(self, name: str, data: Dataset) -> None:
        config = Heads(width=20, augmentations=0)
        out = self.settings.ensembles_dir / name
        train_ensemble(data, out, name=name, teachers=20, config=config, key=KEY)

    def register(self, name: str, **given: Any) -> None:
        register_ensemble(self.ledger, self.settings, EnsembleRegister(name=name, **given))

    def forget(
        self, *names: str, population: str | None = None, **records: Dataset
    ) -> dict[str, tuple[int, int, bool]]:
        given = {name: Retraining(data) for name, data in records.items()}
        who = name_digests(names, KEY)
        done = editions.forget(self.ledger, self.settings, population, who, given)
        return {name: (each.edition, each.people, each.new) for name, each in done.items()}

    def present(self, name: str) -> list[bool]:
        directory = self.settings.data_dir / self.ledger.ensembles.get(name).current.path
        manifest = load_manifest(directory)
        who = load_tensors(directory, IDENTITIES_FILE, manifest.files[IDENTITIES_FILE])
        return [bool(each.any()) for each in who["present"].numpy()]


@pytest.fixture
def house(tmp_path: Path, database_url: str) -> House:
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url)
    settings.ensembles_dir.mkdir(parents=True)
    for path, key in ((settings.secret_key_path, SECRET_KEY), (settings.records_key_path, KEY)):
        path.write_bytes(key)
        path.chmod(0o600)
    return House(settings, Ledger(migrated(database_url), SECRET_KEY))


def some(data: Dataset, people: range) -> Dataset:
    """The two records of each of these people alone."""
    assert data.people is not None
    rows = slice(2 * people.start, 2 * people.stop)
    groups = data.groups[rows] - people.start if data.groups is not None else None
    names = data.people[people.start : people.stop]
    return replace(
        data, inputs=data.inputs[rows], labels=data.labels[rows], groups=groups, people=names
    )


def test_a_person_leaves_every_ensemble_of_the_population(house: House) -> None:
    everybody = pairs()
    house.place("near", everybody)
    house.train("taught", everybody)
    house.place("half", some(everybody, range(PAIRS // 2)))
    house.place("apart", everybody)
    house.register("near", **CAP)
    house.register("taught")
    house.register("half")
    house.register("apart", population="others", disjoint=True, **CAP)
    with refuses(Conflict, "others", "people"):
        house.forget("person 3")
    with refuses(NotFound, "nobody"):
        house.forget("person 3", population="nobody")
    with refuses(DataError, "taught", "--records"):
        house.forget("person 3", population="people")
    with refuses(DataError, 1, 2):
        house.forget("person 3", "a stranger", population="people", taught=everybody)
    assert [
        len(house.ledger.ensembles.list_editions(name)) for name in ("near", "taught", "half")
    ] == [1] * 3
    done = house.forget("person 3", f"person {PAIRS - 1}", population="people", taught=everybody)
    assert done == {"taught": (2, 2, True), "half": (2, 1, True), "near": (2, 2, True)}
    gone = {3, PAIRS - 1}
    for name, people in (("near", PAIRS), ("taught", PAIRS), ("half", PAIRS // 2)):
        assert house.present(name) == [person not in gone for person in range(people)]
    assert all(house.present("apart"))
    assert house.ledger.ensembles.list_editions("apart")[-1].number == 1
    again = house.forget("person 3", population="people")
    assert {new for _, _, new in again.values()} == {False}, "whoever is interrupted runs it again"
    came = editions.add(
        house.ledger, house.settings, "half", some(everybody, range(PAIRS - 2, PAIRS))
    )
    assert (came.people, came.left_out) == (1, 1), "who was forgotten elsewhere stays out, too"
    assert house.ledger.verifier.verify_log().ok


def test_an_ensemble_of_people_who_were_forgotten_is_not_registered(house: House) -> None:
    everybody = pairs()
    house.place("first", everybody)
    house.register("first", **CAP)
    house.forget("person 3")
    house.place("again", everybody)
    with refuses(Conflict, 1, "again", "people"):
        house.register("again")
    house.place("foreign", some(everybody, range(10, 20)), key=b"another key" * 4)
    with refuses(Conflict, "foreign", "first", "records.key"):
        house.register("foreign")
    house.register("again", population="others", disjoint=True, **CAP)
    house.place("clean", some(everybody, range(10, 20)))
    house.register("clean", population="people")
    assert house.ledger.ensembles.get("clean").population.name == "people"


def test_a_newer_ensemble_of_the_cleaned_file_does_not_keep_anybody_from_leaving(
    house: House,
) -> None:
    everybody = pairs()
    house.place("aa", everybody)
    house.register("aa", **CAP)
    house.place("bb", some(everybody, range(1, PAIRS)))
    house.register("bb")
    done = house.forget("person 0")
    assert done == {"aa": (2, 1, True), "bb": (2, 0, True)}
