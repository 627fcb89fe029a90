"""The tallies of data-dependent projects: how many queries had each cost. Secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from sqlalchemy import Connection, select, update

from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger.chain import canonical_json
from terrine_server.ledger.database import Transaction, write
from terrine_server.ledger.records import ProjectRecord
from terrine_server.ledger.schema import secret_spends
from terrine_server.ledger.seals import READ_ERRORS, Seals
from terrine_server.privacy import (
    BoundRelease,
    PublishedBound,
    ReleasedCounts,
    VoteOutcome,
    event_from_json,
)
from terrine_server.privacy.published import ActualCost, Meter, Tally

_COUNTS = np.dtype("<u4")


class SecretTally:
    """How many queries of one project had each cost. Not thread-safe."""

    def __init__(self, meter: Meter, publication: BoundRelease, tally: Tally) -> None:
        self._meter, self._publication, self.tally = meter, publication, tally

    def add(self, places: tuple[int, ...]) -> None:
        """Count one paid query."""
        if not places:
            raise ValueError("a data-dependent project counts every query that it charges")
        for place in places:
            self.tally[place] += 1

    def counts(self, outcomes: Mapping[VoteOutcome, int]) -> bool:
        """Whether it counts as many queries as had these outcomes, which are public."""
        return self._meter.queries(self.tally) == self._meter.expected_queries(outcomes)

    def publish(self, bound: int) -> int:
        """Draw a figure from the spend (except with a probability that δ covers) up to `bound`."""
        return self._publication.release(self.spend(), bound)

    def spend(self) -> ActualCost:
        """Return the actual cost of the counted queries, given their votes."""
        return self._meter.spend(self.tally, self._publication.beta)


def meter_of(project: ProjectRecord) -> Meter:
    """Return the meter of a data-dependent project's votes. Raises ValueError for any other."""
    if project.terms.schedule is None:
        raise ValueError("a project that is priced at the worst case has no secret spend")
    facts = project.ensemble.facts
    return _meter(
        canonical_json(dict(project.events)),
        facts.teachers,
        len(facts.classes),
        project.terms.schedule.publication.order,
    )


@lru_cache(maxsize=64)
def _meter(events: str, teachers: int, classes: int, order: float) -> Meter:
    known = {}
    for outcome, event in json.loads(events).items():
        charged = event_from_json(event)
        if isinstance(charged, PublishedBound | ReleasedCounts):
            raise TypeError("no query is charged for a publication or a release")
        known[VoteOutcome(outcome)] = charged
    return Meter(known, teachers=teachers, classes=classes, order=order)


def open_tally(tx: Transaction, project: ProjectRecord) -> None:
    """Store an empty tally for a project that was just opened."""
    empty = np.zeros(meter_of(project).size, dtype=_COUNTS)
    row = {"project_id": project.id, "charges": project.terms.start.charges}
    tx.insert(secret_spends, {**row, "tally": empty.tobytes()})


def load_tally(connection: Connection, seals: Seals, project: ProjectRecord) -> SecretTally | None:
    """Return a project's tally, or None if it has none. Raises LedgerCorrupted."""
    schedule = project.terms.schedule
    if schedule is None:
        return None
    meter = meter_of(project)
    row = connection.execute(
        select(secret_spends).where(secret_spends.c.project_id == project.id)
    ).one_or_none()
    size = meter.size * _COUNTS.itemsize
    if row is None or type(row.tally) is not bytes or len(row.tally) != size:
        raise LedgerCorrupted(
            f"The tally of project {project.name} is lost or damaged.", project.name
        )
    try:
        seals.check("secret_spends", row._mapping)
    except READ_ERRORS as error:
        raise LedgerCorrupted(
            f"The tally of project {project.name} was edited.", project.name, str(error)
        ) from None
    if row.charges != project.charges:
        raise LedgerCorrupted(
            f"The tally of project {project.name} is not that of its charges.", project.name
        )
    counts = np.frombuffer(row.tally, dtype=_COUNTS).astype(np.int64)
    return SecretTally(meter, schedule.publication, counts)


def save_tally(tx: Transaction, after: ProjectRecord, tally: SecretTally) -> None:
    """Store the tally of a project as it is `after` a charge in the same transaction."""
    changed = {"charges": after.charges, "tally": tally.tally.astype(_COUNTS).tobytes()}
    seal = tx.seals.of("secret_spends", {"project_id": after.id, **changed})
    here = secret_spends.c.project_id == after.id
    write(tx.connection, update(secret_spends).where(here).values(**changed, seal=seal))
