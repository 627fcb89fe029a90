"""A ledger from before there were populations: its caps and what they reserve are carried over."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.databases import SECRET_KEY, as_owner
from support.forgeries import BEFORE, Edit, apart, double, old_ledger, share
from support.wording import refuses
from terrine_server.errors import LedgerCorrupted, NotSealed
from terrine_server.ledger import Ledger, upgrade
from terrine_server.ledger.migrating import schema_differences


def test_ensembles_that_shared_a_cap_become_one_population(
    each_database_url: str, tmp_path: Path
) -> None:
    engine = old_ledger(as_owner(each_database_url), tmp_path, share("mnist", "spare"))
    upgrade(engine, SECRET_KEY)
    assert schema_differences(engine) == []
    ledger = Ledger(engine, SECRET_KEY)
    found = {each.name: each.population for each in ledger.ensembles()}
    assert {name: each.name for name, each in found.items()} == {
        "mnist": "mnist",
        "spare": "mnist",
        "thousand": "thousand",
    }
    assert (found["mnist"].epsilon, found["mnist"].disjoint_from) == (80.0, None)
    assert ledger.verify_log().problems == []
    for name in ledger.project_names():
        assert ledger.verify(name).problems == []
    open_projects = [ledger.project(name) for name in ledger.project_names()]
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
    (found,) = Ledger(engine, SECRET_KEY).populations()
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
