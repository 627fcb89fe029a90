"""The tally of a data-dependent project: stored with its project, checked when read, and counted
up to a secret spend that the data owner may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sqlalchemy import delete, select, update

from support.ledgers import (
    PUBLISHING_CAP,
    PUBLISHING_CLASSES,
    PUBLISHING_GNMAX,
    PUBLISHING_TEACHERS,
    publishing_ledger,
    unguarded,
    voted,
)
from terrine_protocol import SecretSpend
from terrine_server.errors import Conflict, LedgerCorrupted
from terrine_server.ledger import Ledger, NewProject, ProjectRecord, connect
from terrine_server.ledger.schema import secret_spends
from terrine_server.privacy import BoundRelease, Terms, VoteOutcome, build_mechanism, quote
from terrine_server.privacy.published import Meter

ORDER = PUBLISHING_CAP.rule.order or 0.0
RELEASE = BoundRelease(order=ORDER, beta=0.01, sigma=60.0, z=6.0)


def gnmax(publishing: bool = True) -> Terms:
    return quote(
        build_mechanism(PUBLISHING_GNMAX, teachers=PUBLISHING_TEACHERS, classes=PUBLISHING_CLASSES),
        2.0,
        1e-6,
        cap_rule=PUBLISHING_CAP.rule,
        publishing=(RELEASE, [50]) if publishing else None,
    )


@pytest.fixture
def ledger(database_url: str) -> Ledger:
    return publishing_ledger(database_url)


@pytest.fixture
def project(ledger: Ledger) -> ProjectRecord:
    """The second of its ensemble. The first has no tally, so numbers of both must not be mixed."""
    ledger.open_project(
        NewProject("worst-case", "thousand", PUBLISHING_GNMAX, gnmax(publishing=False))
    )
    return ledger.open_project(NewProject("study", "thousand", PUBLISHING_GNMAX, gnmax()))


def set_tally(url: str, values: Mapping[str, Any] | None) -> None:
    """Alter the row of the only tally; None removes it."""
    with unguarded(url) as connection:
        if values is None:
            connection.execute(delete(secret_spends))
        else:
            connection.execute(update(secret_spends).values(values))


def stored(url: str) -> Any:
    with connect(url).connect() as connection:
        return connection.execute(select(secret_spends)).one()


def test_a_tally_is_opened_empty_for_its_own_project(
    ledger: Ledger, project: ProjectRecord, database_url: str
) -> None:
    row = stored(database_url)
    assert (row.project_id, row.charges) == (project.id, 0)
    assert set(row.tally) == {0}
    ledger.charge(project.id, voted(project, range(3)))
    row = stored(database_url)
    assert (row.project_id, row.charges) == (project.id, 3)
    assert np.frombuffer(row.tally, "<u4").sum() >= 3


def test_the_secret_spend_is_what_the_counted_votes_cost(
    ledger: Ledger, project: ProjectRecord
) -> None:
    ledger.charge(project.id, voted(project, range(7)))
    ledger.charge(project.id, voted(project, range(7, 12), agreement=0.6))
    events = build_mechanism(
        PUBLISHING_GNMAX, teachers=PUBLISHING_TEACHERS, classes=PUBLISHING_CLASSES
    ).events()
    meter = Meter(events, teachers=PUBLISHING_TEACHERS, classes=PUBLISHING_CLASSES, order=ORDER)
    counted = np.zeros(meter.size, dtype=np.int64)
    for agreement, queries in [(0.95, 7), (0.6, 5)]:
        votes = np.zeros((1, PUBLISHING_CLASSES), dtype=np.int64)
        votes[0, :2] = (
            round(agreement * PUBLISHING_TEACHERS),
            round((1 - agreement) * PUBLISHING_TEACHERS),
        )
        (places,) = meter.places(VoteOutcome.ANSWERED, votes)
        for place in places:
            counted[place] += queries
    expected = meter.spend(counted, RELEASE.beta)
    assert ledger.secret_spend("study") == SecretSpend(
        project="study",
        queries=12,
        order=ORDER,
        cost=expected.cost,
        smooth_sensitivity=expected.smooth_sensitivity,
    )
    assert 0 < expected.cost * 1e12 < ledger.project("study").spent


def test_a_project_at_the_worst_case_has_no_secret_spend(
    ledger: Ledger, project: ProjectRecord
) -> None:
    ledger.charge(ledger.project("worst-case").id, voted(project, [1]))
    with pytest.raises(Conflict):
        ledger.secret_spend("worst-case")


@pytest.mark.parametrize("damage", ["lost", "empty", "shorter", "longer", "text"])
def test_a_tally_that_is_lost_or_damaged_is_not_counted_on(
    ledger: Ledger, project: ProjectRecord, database_url: str, damage: str
) -> None:
    ledger.charge(project.id, voted(project, range(3)))
    tally = stored(database_url).tally
    tallies = {"empty": b"", "shorter": tally[:-4], "longer": tally + bytes(4)}
    if damage == "text":
        with unguarded(database_url) as connection:
            connection.exec_driver_sql("UPDATE secret_spends SET tally = ?", ("x" * len(tally),))
    else:
        set_tally(database_url, None if damage == "lost" else {"tally": tallies[damage]})
    before = ledger.project("study").account
    for read in (
        lambda: ledger.secret_spend("study"),
        lambda: ledger.charge(project.id, voted(project, ["new"])),
    ):
        with pytest.raises(LedgerCorrupted):
            read()
    assert ledger.project("study").account == before


@pytest.mark.parametrize("charges", [2, 4])
def test_a_tally_of_other_charges_is_not_counted_on(
    ledger: Ledger, project: ProjectRecord, database_url: str, charges: int
) -> None:
    ledger.charge(project.id, voted(project, range(3)))
    set_tally(database_url, {"charges": charges})
    with pytest.raises(LedgerCorrupted):
        ledger.charge(project.id, voted(project, ["new"]))


def test_what_was_paid_is_repeated_without_the_tally(
    ledger: Ledger, project: ProjectRecord, database_url: str
) -> None:
    first = ledger.charge(project.id, voted(project, range(3)))
    set_tally(database_url, None)
    again = ledger.charge(project.id, voted(project, range(3)))
    assert [(r.seq, r.label) for r in again.results] == [(r.seq, r.label) for r in first.results]
