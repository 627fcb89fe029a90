"""Noisy counts are paid for with their label, kept as they were told, and every edit is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.databases import SECRET_KEY, SQLITE_BY_DAY
from support.forgeries import first_finding, kind, rehash, rewrite
from support.ledgers import (
    COUNTED,
    GNMAX,
    answered,
    charge_one,
    counted,
    digest,
    open_ledger,
    open_project,
    terms,
    unguarded,
)
from support.wording import holds, refuses
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger import ChargedBatch, Ledger, NewProject, ProjectRecord, Proposal, connect
from terrine_server.privacy import cap

BATCH = [counted(1), counted(2), counted(3)]
SQLITE = pytest.mark.parametrize("each_database_url", ["sqlite"], indirect=True)
"""Of what Python decides, from the same rows of either database."""


@pytest.fixture
def ledger(each_database_url: str) -> Ledger:
    return open_ledger(each_database_url)


@pytest.fixture
def project(ledger: Ledger) -> ProjectRecord:
    """Three answers with noisy counts."""
    opened = open_project(ledger, 10, COUNTED)
    return charge_one(ledger, opened.id, BATCH).project


def fresh(url: str) -> Ledger:
    """As another server, which has read nothing yet."""
    return Ledger(connect(url), SECRET_KEY)


def told(receipt: ChargedBatch) -> list[Any]:
    return [result.counts for result in receipt.results]


PAID = [proposal.counts for proposal in BATCH]


def test_counts_are_told_again_as_they_were(
    project: ProjectRecord, ledger: Ledger, each_database_url: str
) -> None:
    """To the same query, in one batch, and by another server: whatever was drawn
    anew is thrown away."""
    again = [counted(query, "drawn anew") for query in (1, 2, 3)]
    assert not set(PAID) & {proposal.counts for proposal in again}
    for server in (ledger, fresh(each_database_url)):
        for batch in (again, BATCH):
            receipt = charge_one(server, project.id, batch)
            assert told(receipt) == PAID
            assert [result.label for result in receipt.results] == [p.label for p in BATCH]
            assert receipt.project.spent == project.spent
    twice = charge_one(ledger, project.id, [counted(4), counted(4, "drawn anew")])
    assert told(twice) == [counted(4).counts] * 2
    assert [result.replayed for result in twice.results] == [False, True]
    assert [entry.counts for entry in ledger.entries.list("study")] == [*PAID, counted(4).counts]
    assert ledger.verifier.verify_project("study").ok


@SQLITE_BY_DAY
def test_a_refused_query_has_no_counts(ledger: Ledger) -> None:
    project = open_project(ledger, 2, COUNTED)
    receipt = charge_one(ledger, project.id, BATCH)
    assert told(receipt) == [*PAID[:2], None]
    assert ledger.projects.get("study").charges == 2


@SQLITE_BY_DAY
@pytest.mark.parametrize("classes", [2, 1000])
def test_there_are_as_many_counts_as_classes(classes: int, each_database_url: str) -> None:
    """Negative, and beyond the teachers and beyond 32 bits."""
    ledger = open_ledger(each_database_url)
    info = ledger.ensembles.get("mnist").facts.model_copy(
        update={"classes": [str(j) for j in range(classes)]}
    )
    limit = cap(20, 1e-5)
    ledger.ensembles.register("wide", "ensembles/wide", digest("w").hex(), info, 60_000, limit)
    project = ledger.projects.open(NewProject("broad", "wide", COUNTED, terms(5, COUNTED)))
    counts = (-(2**40), *range(-classes + 3, 1), 2**40)
    assert len(counts) == classes
    batch = [replace(counted(1), counts=counts, label=classes - 1)]
    charge_one(ledger, project.id, batch)
    assert told(charge_one(ledger, project.id, [counted(1)])) == [counts]
    assert [entry.counts for entry in ledger.entries.list("broad")] == [counts]
    assert ledger.verifier.verify_project("broad").ok


def with_counts(counts: tuple[int, ...] | None, label: int = 3) -> Proposal:
    return replace(answered("new", label), counts=counts)


@SQLITE
@pytest.mark.parametrize(
    ("mechanism", "proposal"),
    [
        (GNMAX, counted("new")),
        (COUNTED, answered("new")),
        (COUNTED, with_counts((0, 0, 0, 9))),
        (COUNTED, with_counts((*[0] * 10, 9), 10)),
        (COUNTED, with_counts((0, 9, *[0] * 8))),
        (COUNTED, with_counts((*[0] * 3, 9, 9, *[0] * 5), 4)),
    ],
    ids=["unpaid", "missing", "too few", "too many", "another label", "a tie's second class"],
)
def test_counts_that_were_not_charged_for_are_never_written(
    mechanism: dict[str, Any], proposal: Proposal, ledger: Ledger
) -> None:
    project = open_project(ledger, 10, mechanism)
    with refuses(ValueError, "counts"):
        charge_one(ledger, project.id, [proposal])
    assert ledger.projects.get("study").charges == 0


# ---------------------------------------------------------------------------------- edits are found


CONSISTENT: dict[str, dict[str, Any]] = {
    "gone": {"counts": None},
    "too few": {"counts": "[0,9]", "label": 1},
    "another label's": {"counts": "[0,0,0,9,0,0,0,0,0,0]", "label": 2},
    "no numbers": {"counts": '["9"]'},
    "no list": {"counts": "9"},
}


@SQLITE
@pytest.mark.parametrize("changes", CONSISTENT.values(), ids=CONSISTENT)
@pytest.mark.parametrize("forge", [rehash, rewrite])
def test_counts_that_nobody_was_told_are_found_in_a_chain_that_was_made_to_fit(
    forge: Callable[..., None],
    changes: dict[str, Any],
    project: ProjectRecord,
    ledger: Ledger,
    each_database_url: str,
) -> None:
    with unguarded(each_database_url) as connection:
        forge(connection, 2, **changes)
    problems = ledger.verifier.verify_project("study").problems
    assert any(kind(found) == "entry 2: its" for found in problems)
    with pytest.raises(LedgerCorrupted):
        charge_one(fresh(each_database_url), project.id, [counted(2)])


def export(ledger: Ledger, file: Path) -> list[Any]:
    lines = list(ledger.exports.export_project("study"))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


@SQLITE_BY_DAY
def test_an_export_holds_the_counts_and_verifies_without_its_database(
    project: ProjectRecord, ledger: Ledger, tmp_path: Path
) -> None:
    file = tmp_path / "export.jsonl"
    lines = export(ledger, file)
    assert [tuple(line["counts"]) for line in lines[1:]] == PAID
    assert first_finding(file, lines) == ""
    for counts in ([*lines[2]["counts"][:-1], 7], lines[1]["counts"], []):
        edited = [*lines[:2], lines[2] | {"counts": counts}, *lines[3:]]
        assert kind(first_finding(file, edited)) == "entry 2: altered"
    without = {name: value for name, value in lines[2].items() if name != "counts"}
    assert kind(first_finding(file, [*lines[:2], without, *lines[3:]])) == "entry 2: altered"
    values: tuple[Any, ...] = (None, "[1]", [1.0], [True], {}, 7)
    for value in values:
        edited = [*lines[:2], lines[2] | {"counts": value}, *lines[3:]]
        holds(first_finding(file, edited), 3, "entry")
