"""A ledger from before there were populations: its caps and what they reserve are carried over."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.databases import SECRET_KEY, as_owner
from support.forgeries import BEFORE, Edit, apart, double, old_ledger, share
from support.ledgers import COUNTED, FACTS, charge_one, counted, open_project, register
from support.wording import refuses
from terrine_protocol import ProjectStatus
from terrine_server.errors import LedgerCorrupted, NotSealed
from terrine_server.ledger import Ledger, connect, upgrade
from terrine_server.ledger.database import migrating_alone
from terrine_server.ledger.definitions import schema_differences
from terrine_server.ledger.log import initialise
from terrine_server.ledger.revisions import migrate
from terrine_server.ledger.seals import Seals


def test_ensembles_that_shared_a_cap_become_one_population(
    each_database_url: str, tmp_path: Path
) -> None:
    engine = old_ledger(as_owner(each_database_url), tmp_path, share("mnist", "spare"))
    upgrade(engine, SECRET_KEY)
    assert schema_differences(engine) == []
    ledger = Ledger(engine, SECRET_KEY)
    found = {each.name: each.population for each in ledger.ensembles.list()}
    assert {name: each.name for name, each in found.items()} == {
        "mnist": "mnist",
        "spare": "mnist",
        "thousand": "thousand",
    }
    assert (found["mnist"].epsilon, found["mnist"].disjoint_from) == (80.0, None)
    assert ledger.verifier.verify_log().problems == []
    for name in ledger.projects.list_names():
        assert ledger.verifier.verify_project(name).problems == []
    open_projects = [ledger.projects.get(name) for name in ledger.projects.list_names()]
    assert (
        sum(
            each.cap_spent if each.closed_at else each.terms.cap_budget
            for each in open_projects
            if each.ensemble.population.name == "mnist"
        )
        == found["mnist"].reserved
    )
    assert upgrade(engine, SECRET_KEY) == [], "once"


def test_a_single_cap_is_that_of_the_default_population(database_url: str, tmp_path: Path) -> None:
    engine = old_ledger(database_url, tmp_path, share("mnist", "spare", "thousand"))
    upgrade(engine, SECRET_KEY)
    (found,) = Ledger(engine, SECRET_KEY).ensembles.list_populations()
    assert (found.name, found.disjoint_from) == ("people", ())


@pytest.mark.parametrize(
    "edits", [[double], [share("mnist", "spare"), apart]], ids=["a larger cap", "caps apart"]
)
def test_rows_that_were_edited_are_not_sealed_anew(
    database_url: str, tmp_path: Path, edits: list[Edit]
) -> None:
    """Else whoever edits a ledger would only have to wait for the next version."""
    engine = old_ledger(database_url, tmp_path, *edits)
    with refuses(LedgerCorrupted, "migrated"):
        upgrade(engine, SECRET_KEY)
    with engine.connect() as connection:
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    assert revision == BEFORE, "nothing was half-migrated"


def test_rows_are_not_sealed_with_another_key(database_url: str, tmp_path: Path) -> None:
    engine = old_ledger(database_url, tmp_path)
    with refuses(NotSealed, "--old-key"):
        upgrade(engine, b"o" * 64)


def test_histograms_in_a_project_of_their_own_stay_as_they_were(each_database_url: str) -> None:
    """As before a project could begin with them: both verify, and that of the votes answers."""
    engine, seals = connect(as_owner(each_database_url)), Seals(SECRET_KEY)
    if engine.url.database is not None and engine.dialect.name == "sqlite":
        Path(engine.url.database).touch(0o600)
    with migrating_alone(engine) as connection:
        migrate(connection, seals, to="0008")
        initialise(connection, seals)
    ledger, name = Ledger(engine, SECRET_KEY), "visits-margins"
    register(ledger, name, facts=FACTS.model_copy(update={"kind": "margins"}), population="people")
    designed = FACTS.model_copy(update={"designed": True})
    register(ledger, "visits", None, designed, population="people")
    margins = open_project(ledger, 3, COUNTED, name, name)
    charge_one(ledger, margins.id, [counted(1), counted(2)])
    ledger.projects.set_status(name, ProjectStatus.CLOSED)
    votes = open_project(ledger, 5, COUNTED, "visits", "visits")
    charge_one(ledger, votes.id, [counted(1)])
    before = [ledger.entries.list(each) for each in ("visits", name)]
    upgrade(engine, SECRET_KEY)
    assert schema_differences(engine) == []
    ledger = Ledger(engine, SECRET_KEY)
    assert [ledger.entries.list(each) for each in ("visits", name)] == before
    assert [ledger.verifier.verify_project(each).problems for each in ("visits", name)] == [[], []]
    assert ledger.verifier.verify_log().problems == []
    answer = charge_one(ledger, votes.id, [counted(1), counted(3)])
    assert [(each.seq, each.replayed) for each in answer.results] == [(1, True), (2, False)]
