"""How a project's budget was spent: sums over its entries, which a process remembers.

Entries are only appended, so each is summed once, and a later view reads those that came since.
What is remembered draws pictures: nothing is charged or verified by it, and an edit of an entry
that was summed before is found by `verify`, not here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Date, String, case, cast, func, literal, select, type_coerce
from sqlalchemy.sql.elements import ColumnElement

from terrine_protocol import Outcome
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger.records import History, ProjectPosition, ProjectRecord
from terrine_server.ledger.schema import charges
from terrine_server.ledger.seals import readable

# The most points of a history at equal numbers of entries.
MAX_POINTS = 64
# How many days before its last entry a history reaches back.
MAX_DAYS = 60
# How many projects a process remembers, a few kilobytes each.
MAX_PROJECTS = 256


@dataclass(frozen=True, slots=True)
class _Part:
    """Sums over entries that follow each other, up to number `seq`, the last of them at `at`.

    `paid`: their cost, without publications.
    """

    seq: int
    at: datetime
    paid: int

    def joined(self, other: _Part | None) -> _Part:
        if other is None:
            return self
        return _Part(max(self.seq, other.seq), max(self.at, other.at), self.paid + other.paid)


@dataclass(frozen=True, slots=True)
class _Sums:
    """What a project's first entries add up to. `head`: the hash of the last, number `charges`.

    `parts`: by number of publications before them, and number of the part of `length` entries.
    """

    charges: int
    head: str
    length: int = 1
    parts: Mapping[tuple[int, int], _Part] = field(default_factory=dict)
    days: Mapping[date, Mapping[Outcome, int]] = field(default_factory=dict)
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)


class Histories:
    """The histories of projects, as one process remembers them. Thread-safe."""

    def __init__(self) -> None:
        self._remembered: OrderedDict[int, _Sums] = OrderedDict()
        self._lock = Lock()

    def load(self, connection: Connection, project: ProjectRecord) -> History:
        """Return the history of a project. Raises LedgerCorrupted unless it ends at the balance."""
        start = _Sums(0, project.genesis)
        with self._lock:
            known = self._remembered.get(project.id, start)
        with readable(f"An entry of project {project.name!r}", project.name):
            if _hash_of(connection, project, known.charges) != known.head:
                known = start  # an older state of the account, or another ledger in its place
            sums = _extend(connection, project, known)
        history = _history(project, sums)
        with self._lock:
            self._remembered[project.id] = sums
            self._remembered.move_to_end(project.id)
            while len(self._remembered) > MAX_PROJECTS:
                self._remembered.popitem(last=False)
        return history


def _hash_of(connection: Connection, project: ProjectRecord, seq: int) -> str | None:
    """Return the hash of an entry that the account counts, or None; of number 0, the genesis."""
    if seq == project.charges:
        return project.head
    if seq == 0:
        return project.genesis
    entry = charges.c
    this = (entry.project_id == project.id) & (entry.seq == seq) & (entry.seq <= project.charges)
    found: bytes | None = connection.execute(select(entry.hash).where(this)).scalar()
    return None if found is None else found.hex()


def _extend(connection: Connection, project: ProjectRecord, known: _Sums) -> _Sums:
    """Return the sums over all entries that the account counts, of which some are known.

    Parts have equal length, a power of two: as a project grows, points go, and none moves.
    """
    if known.charges == project.charges:
        return known
    length = 1 << (-(-project.charges // MAX_POINTS) - 1).bit_length()
    parts: dict[tuple[int, int], _Part] = {}
    for (published, number), part in known.parts.items():
        key = published, number * known.length // length
        parts[key] = part.joined(parts.get(key))
    days = {day: dict(counted) for day, counted in known.days.items()}
    outcomes = dict(known.outcomes)
    for row in connection.execute(_select_sums(connection, project, known.charges, length)):
        if not isinstance(row.last, datetime):
            raise TypeError("a time is not an instant")
        key, outcome = (row.published, row.part), Outcome(row.outcome)
        parts[key] = _Part(row.seq, row.last, int(row.paid)).joined(parts.get(key))
        day = days.setdefault(date.fromisoformat(str(row.day)), {})
        day[outcome] = day.get(outcome, 0) + row.entries
        outcomes[outcome] = outcomes.get(outcome, 0) + row.entries
    recent = max(days, default=date.max) - timedelta(days=MAX_DAYS - 1)
    kept = {day: days[day] for day in sorted(days) if day >= recent}
    return _Sums(project.charges, project.head, length, parts, kept, outcomes)


def _select_sums(connection: Connection, project: ProjectRecord, after: int, length: int) -> Any:
    """Select sums by publication, part, day and outcome, over the entries above number `after`."""
    entry = charges.c
    published: ColumnElement[Any] = literal(0)
    for publication in project.published:
        published = published + case((entry.seq >= publication.seq, 1), else_=0)
    part: ColumnElement[Any] = (entry.seq - 1) // length
    day: ColumnElement[Any]
    if connection.dialect.name == "sqlite":  # where an instant is ISO 8601 text in UTC
        day = func.substr(type_coerce(entry.created_at, String), 1, 10)
    else:
        day = cast(func.timezone("UTC", entry.created_at), Date)
    return (
        select(
            published.label("published"),
            part.label("part"),
            day.label("day"),
            entry.outcome,
            func.max(entry.seq).label("seq"),
            func.max(entry.created_at, type_=entry.created_at.type).label("last"),
            func.sum(case((entry.outcome == Outcome.PUBLISHED, 0), else_=entry.cost)).label("paid"),
            func.count().label("entries"),
        )
        .where(entry.project_id == project.id, entry.seq > after, entry.seq <= project.charges)
        .group_by(published, part, day, entry.outcome)
    )


def _history(project: ProjectRecord, sums: _Sums) -> History:
    """Return the history that these sums are. Raises LedgerCorrupted unless it ends at the balance.

    A point is the last entry of so many, or before a publication: a figure that is published
    replaces what its queries had cost at their worst case.
    """
    found, before, spent = [], 0, 0
    for (published, _), part in sorted(sums.parts.items()):
        if published != before and project.terms.schedule is not None:
            price = project.terms.schedule.price.cost
            before, spent = published, project.published[published - 1].figure + published * price
            spent += project.terms.start.spent
        spent += part.paid
        found.append(ProjectPosition(part.seq, part.at, spent))
    if spent != project.spent:
        raise LedgerCorrupted(
            f"The entries of project {project.name} do not add up to its balance.", project.name
        )
    return History(
        tuple(found),
        sums.days,
        {each: sums.outcomes[each] for each in Outcome if each in sums.outcomes},
    )
