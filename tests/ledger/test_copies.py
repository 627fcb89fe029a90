"""Whole ledgers, copied between databases: the same entries, hashes, seals and times."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.databases import SECRET_KEY, as_owner, migrated
from support.ledgers import answered, charge_one, open_ledger, open_project
from support.wording import refuses
from terrine_server.errors import SchemaMismatch
from terrine_server.ledger import Ledger, connect, copies
from terrine_server.ledger.definitions import schema_differences


def exported(ledger: Ledger) -> list[object]:
    return [list(ledger.exports.export_project(name)) for name in ledger.projects.list_names()] + [
        list(ledger.exports.export_log())
    ]


def test_a_copy_of_either_database_is_the_same_ledger(
    each_database_url: str, tmp_path: Path
) -> None:
    ledger = open_ledger(each_database_url)
    project = open_project(ledger, 8)
    charge_one(ledger, project.id, [answered(i) for i in range(5)])
    copies.copy_to_file(connect(as_owner(each_database_url)), tmp_path / "copy")
    assert [path.name for path in tmp_path.glob("copy*")] == ["copy"]
    copy = Ledger(copies.file_engine(tmp_path / "copy"), SECRET_KEY)
    assert exported(copy) == exported(ledger)
    assert (
        copy.verifier.verify_project("study").problems == copy.verifier.verify_log().problems == []
    )
    assert copies.count_entries(copies.file_engine(tmp_path / "copy"))[1:] == (5, 1)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_file_replaces_the_ledger_of_postgresql_and_ids_go_on(
    database_url: str, tmp_path: Path
) -> None:
    source = open_ledger(f"sqlite:///{tmp_path / 'source.sqlite'}")
    project = open_project(source, 8)
    charge_one(source, project.id, [answered(i) for i in range(5)])
    copies.copy_to_file(source._access.engine, tmp_path / "copy")
    there = open_ledger(database_url)
    there._access.engine.dispose()
    owner = connect(as_owner(database_url))
    assert copies.replace_ledger(owner, tmp_path / "copy", "aside") == "aside"
    ledger = Ledger(connect(database_url), SECRET_KEY)
    assert exported(ledger) == exported(source)
    assert schema_differences(owner) == []
    assert open_project(ledger, 3, name="next").id == project.id + 1
    assert ledger.verifier.verify_project("study").problems == []
    # What is as `terrine init` makes it is not kept.
    assert copies.has_schema(owner, "aside")


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_ledger_without_entries_is_not_kept_aside(database_url: str, tmp_path: Path) -> None:
    source = open_ledger(f"sqlite:///{tmp_path / 'source.sqlite'}")
    copies.copy_to_file(source._access.engine, tmp_path / "copy")
    migrated(database_url).dispose()
    owner = connect(as_owner(database_url))
    assert copies.replace_ledger(owner, tmp_path / "copy", "aside") is None
    assert not copies.has_schema(owner, "aside")


def test_there_is_no_copy_of_a_database_without_tables(tmp_path: Path) -> None:
    with refuses(SchemaMismatch, "init"):
        copies.copy_to_file(connect(f"sqlite:///{tmp_path / 'none'}"), tmp_path / "copy")
    assert not list(tmp_path.iterdir())
