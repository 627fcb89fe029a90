"""The ledger of the first release verifies, byte by byte, with the code of today."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.databases import SECRET_KEY
from support.documents import REPOSITORY
from support.forgeries import DATABASE, EXPORTS
from terrine_server.ledger import Ledger, check_definitions, check_schema, connect, upgrade
from terrine_server.ledger.verifying import verify_export

KEPT = json.loads(EXPORTS.read_text())


def lasting(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return an export without the version of Terrine that wrote it."""
    return [{name: line[name] for name in line.keys() - {"version"}} for line in lines]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    path = tmp_path_factory.mktemp("kept") / "terrine.sqlite"
    path.write_bytes(gzip.decompress(DATABASE.read_bytes()))
    engine = connect(f"sqlite:///{path}")
    upgrade(engine, SECRET_KEY)
    check_schema(engine)
    check_definitions(engine)
    return Ledger(engine, SECRET_KEY)


@pytest.mark.parametrize("name", sorted(KEPT["projects"]))
def test_every_project_verifies_and_is_exported_as_it_was(ledger: Ledger, name: str) -> None:
    found = ledger.verifier.verify_project(name)
    assert (found.problems, found.head) == ([], KEPT["projects"][name]["head"])
    assert lasting(ledger.exports.export_project(name)) == lasting(KEPT["projects"][name]["export"])


def test_the_log_verifies_and_is_exported_as_it_was(ledger: Ledger) -> None:
    ledger.log.check_sealed()
    assert ledger.verifier.verify_log().problems == []
    _, *entries = lasting(ledger.exports.export_log())
    _, *kept = lasting(KEPT["log"])
    assert entries[: len(kept)] == kept
    since = [(entry["action"], entry["subject"]) for entry in entries[len(kept) :]]
    ensembles = ["mnist", "spare", "thousand"]
    declared = [("population-declared", name) for name in ensembles]
    assert since == [*declared, *(("ensemble-adopted", name) for name in ensembles)]


def test_each_cap_of_then_is_one_of_a_population(ledger: Ledger) -> None:
    """Nobody can say today whether the people of three ensembles were the same."""
    found = {each.name: each.population for each in ledger.ensembles.list()}
    assert {name: each.name for name, each in found.items()} == {name: name for name in found}
    registered = [
        each["detail"] for each in KEPT["log"] if each.get("action") == "ensemble-registered"
    ]
    assert [each["cap"] for each in registered] == [each.cap for each in found.values()]
    assert {each.disjoint_from for each in found.values()} == {None}


@pytest.mark.parametrize("name", sorted(KEPT["projects"]))
def test_exports_of_then_verify_today(tmp_path: Path, name: str) -> None:
    path = tmp_path / "export.json"
    lines = (json.dumps(line) + "\n" for line in KEPT["projects"][name]["export"])
    path.write_text("".join(lines))
    assert verify_export(path).problems == []
    checker = [sys.executable, str(REPOSITORY / "docs" / "check_chain.py"), str(path)]
    assert subprocess.run(checker, capture_output=True, check=False).returncode == 0
