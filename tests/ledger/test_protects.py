"""Whom the promise protects is said with the ensemble's own word, and what still fits in ε."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.databases import SECRET_KEY, migrated
from support.ledgers import CLASSES, FACTS
from support.wording import holds, refuses
from terrine_models.data.arrays import load_npz
from terrine_models.features.public import PublicData
from terrine_models.teachers.neighbours import build
from terrine_protocol import EnsembleRegister, ProjectOpen, SumRelease
from terrine_server import views
from terrine_server.errors import CapExceeded, InvalidTerms
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import (
    max_fitting_epsilon,
    open_project,
    register_ensemble,
)
from terrine_server.planning.first_project import FirstProject, Setting
from terrine_server.privacy import Cap, cap
from terrine_server.settings import Settings

MORE = {"ensemble": "flights", "mechanism": {"name": "noisy_votes", "sigma": 300.0}, "delta": 1e-6}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "one record, 3,990 of them"),
        ({"group_column": "tailnum"}, "one tailnum with all its records, 3,990 of them"),
        (
            {"disjoint_by": "one model per hospital"},
            "one record, or person with all their records, 3,990 of them",
        ),
    ],
)
def test_an_account_says_whom_it_protects(
    tmp_path: Path, changed: dict[str, str], words: str
) -> None:
    engine = migrated(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger = Ledger(engine, SECRET_KEY)
    facts = FACTS.model_copy(update=changed)
    ledger.ensembles.register("flights", "ensembles/f", "ab" * 32, facts, 3990, cap(3.0, 1e-5))
    wanted = ProjectOpen.model_validate({**MORE, "name": "first", "epsilon": 1.0})
    record = open_project(ledger, wanted)
    assert views.budget(record).protects == words
    assert views.project(record, True).ensemble.protects == words
    engine.dispose()


def test_people_of_an_archive_who_vote_themselves_are_protected(tmp_path: Path) -> None:
    engine = migrated(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger, settings = Ledger(engine, SECRET_KEY), Settings(data_dir=tmp_path)
    random = np.random.default_rng(0)
    x, who = random.random((600, 4), np.float32), random.permutation(600) % 90
    y = np.rint(x[:, 0]).astype(int)
    np.savez(tmp_path / "a.npz", x=x, y=y, group=who, classes=["no", "yes"], low=0.0, high=1.0)
    records = load_npz(tmp_path / "a.npz")
    pool = PublicData.declare("rows", random.random((200, 4), np.float32))
    build(records, settings.ensembles_dir / "wards", name="wards", public=pool)
    cap = EnsembleRegister(name="wards", epsilon=1.0, delta=1e-5)
    record = register_ensemble(ledger, settings, cap)
    assert record.protects == "one group with all its records, 90 of them"
    engine.dispose()


def test_a_full_cap_says_what_would_fit_and_that_fits(tmp_path: Path) -> None:
    engine = migrated(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger = Ledger(engine, SECRET_KEY)
    ledger.ensembles.register("flights", "ensembles/f", "ab" * 32, FACTS, 3990, cap(3.0, 1e-5))
    wanted = ProjectOpen.model_validate({**MORE, "name": "first", "epsilon": 2.5})
    open_project(ledger, wanted)
    with pytest.raises(CapExceeded) as refused:
        open_project(ledger, wanted.model_copy(update={"name": "second"}))
    said = refused.value.detail
    epsilon = float(said.partition("up to about ε = ")[2].partition(" ")[0])
    holds(said, "first", "0.0%")
    open_project(ledger, wanted.model_copy(update={"name": "second", "epsilon": epsilon}))
    found = max_fitting_epsilon(ledger.ensembles.get("flights"))
    assert found is None or found < 0.3 * epsilon
    engine.dispose()


def test_what_fits_beside_others_has_room_for_what_it_begins_with(tmp_path: Path) -> None:
    engine = migrated(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger = Ledger(engine, SECRET_KEY)
    ledger.ensembles.register("flights", "ensembles/f", "ab" * 32, FACTS, 3990, cap(3.0, 1e-5))
    open_project(ledger, ProjectOpen.model_validate({**MORE, "name": "first", "epsilon": 2.5}))
    record = ledger.ensembles.get("flights")
    population = record.population

    def design(epsilon: float, limit: Cap) -> FirstProject:
        about = Setting(3990, 8000, 2, epsilon, 1e-5, limit, joins=True)
        return about.of_designed(cells=[52] * 5, schema_sha256="ef" * 32)

    wanted = design(2.5, population.limit)
    found = max_fitting_epsilon(record, wanted.epsilon, wanted.price)
    assert found is not None
    fitting = design(found, population.limit).terms
    assert fitting.release is not None
    assert population.reserved + fitting.cap_budget <= population.cap
    assert population.reserved + wanted.price(1.1 * found).cap_budget > population.cap
    engine.dispose()


def test_sums_cost_a_cap_the_same_whatever_epsilon_is_asked(tmp_path: Path) -> None:
    engine = migrated(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    ledger = Ledger(engine, SECRET_KEY)
    sums = SumRelease(sigma=600.0, norm=100, features=6, classes=CLASSES, map_sha256="5d" * 32)
    facts = FACTS.model_copy(update={"kind": "sums", "teachers": 1, "release": sums})
    ledger.ensembles.register("flights", "ensembles/f", "ab" * 32, facts, 3990, cap(3.0, 1e-5))
    ledger.ensembles.register(
        "plain", "ensembles/p", "ac" * 32, FACTS, 3990, None, population="people"
    )
    wanted = ProjectOpen.model_validate(
        {**MORE, "mechanism": {"name": "sums"}, "name": "first", "epsilon": 2.0}
    )
    refused: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"epsilon": 1.0}, ("sums", "epsilon")),
        ({"mechanism": {"name": "gnmax", "sigma": 40.0}}, ("gnmax", "sums")),
        ({"mechanism": {"name": "neighbours", "sigma": 4.0, "queries": 9}}, ("neighbours", "sums")),
        ({"ensemble": "plain"}, ("sums",)),
        ({"accounting": "data_dependent"}, ("worst_case",)),
    ]
    for changed, words in refused:
        with refuses(InvalidTerms, *words):
            open_project(ledger, ProjectOpen.model_validate(wanted.model_dump() | changed))
    epsilons = [1.6, 2.0, 2.5, 3.0]
    for number, epsilon in enumerate(epsilons):
        assert max_fitting_epsilon(ledger.ensembles.get("flights")) == 3.0
        more = {"name": f"study-{number}", "epsilon": epsilon}
        opened = open_project(ledger, wanted.model_copy(update=more))
        taken = ledger.ensembles.get("flights").population.reserved
        assert taken == (number + 1) * opened.spent == (number + 1) * opened.terms.cap_budget
    assert max_fitting_epsilon(ledger.ensembles.get("flights")) is None
    with refuses(CapExceeded, "people"):
        open_project(ledger, wanted)
    engine.dispose()
