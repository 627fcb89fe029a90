"""How a project's budget was spent: sums over its entries, made by the database and remembered.

Entries are only appended, so what they add up to is summed once, and a view reads those that came
since. What is remembered belongs to one process and is lost with it. It draws pictures and says
where to look for entries; nothing is charged or verified by it. An edit of an entry that was summed
before is found by `verify`, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Date, String, case, cast, func, literal, select, type_coerce
from sqlalchemy.sql.elements import ColumnElement

from terrine_protocol import Outcome
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger.records import History, ProjectRecord, Reached
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.tables import charges

POINTS = 64
"""The most points of a history at equal numbers of entries; half as many at the least."""
DAYS = 60
"""How many days before its last entry a history reaches back."""
MOST_PARTS = 512
"""The most parts of equal length that a project's entries are summed in."""
NEAR = 1024
"""Entries between two ranges that are faster read than left out."""
AT_ONCE = 1 << 18
"""The most entries that one statement sums, so that none takes as long as a statement may."""
MOST_REMEMBERED = 256
"""How many projects a process remembers. One takes some 150 kB at the most."""

Days = Mapping[date, Mapping[Outcome, int]]


@dataclass(frozen=True, slots=True)
class Segment:
    """Sums over entries that follow each other. `seq`: the number of the last of them.

    `first`, `last`: the earliest and the latest of their times. `paid`: their cost, but of
    publications. `published`: how many publications there are up to its end. `outcomes`: how many
    entries there are of each, in the order of `Outcome`.
    """

    seq: int
    first: datetime
    last: datetime
    paid: int
    published: int
    outcomes: tuple[int, ...]


@dataclass(frozen=True)
class Sums:
    """What a project's first `entries` entries add up to. `head`: the hash of the last of them."""

    head: bytes
    parts: Sequence[Segment] = ()
    days: Days | None = None

    @property
    def entries(self) -> int:
        """How many entries are summed."""
        return self.parts[-1].seq if self.parts else 0

    def history(self, project: ProjectRecord) -> History:
        """Return the history of the project. Raises LedgerCorrupted unless it ends at the
        balance."""
        reached = tuple(_reached(_merged(self.parts, _length(self.entries, POINTS)), project))
        if (reached[-1].spent if reached else 0) != project.spent:
            raise LedgerCorrupted(
                f"The entries of project {project.name} do not add up to its balance.", project.name
            )
        sums = (sum(part.outcomes[place] for part in self.parts) for place in range(len(Outcome)))
        counted = {outcome: many for outcome, many in zip(Outcome, sums, strict=True) if many}
        return History(reached, self.days or {}, counted)

    def ranges(
        self, outcome: Outcome | None, since: datetime | None, until: datetime | None
    ) -> list[tuple[int, int]]:
        """Return where there may be entries with this outcome and times, in order.

        Each range is the number before its first entry, and that of its last. Times of different
        servers need not be in order, so parts are looked through one by one.
        """
        kind = None if outcome is None else list(Outcome).index(outcome)
        found: list[tuple[int, int]] = []
        before = 0
        for part in self.parts:
            if (
                (kind is None or part.outcomes[kind])
                and (since is None or part.last >= since)
                and (until is None or part.first < until)
            ):
                start = found.pop()[0] if found and before - found[-1][1] <= NEAR else before
                found.append((start, part.seq))
            before = part.seq
        return found


class Histories:
    """What a process remembers of projects' entries. Thread-safe."""

    def __init__(self) -> None:
        self._remembered: dict[str, Sums] = {}

    def known(self, name: str) -> Sums | None:
        """Return what is remembered of a project: to be asked before its account is read.

        Otherwise another thread may have summed entries by then that the account does not count.
        """
        return self._remembered.get(name)

    def sums(self, connection: Connection, project: ProjectRecord, known: Sums | None) -> Sums:
        """Return the sums over all entries that the account counts. Raises LedgerCorrupted."""
        start = Sums(bytes.fromhex(project.genesis))
        with rows.readable(f"An entry of project {project.name!r}", project.name):
            found = known or start
            if _hash(connection, project, found.entries) != found.head:
                found = start  # another ledger was put in the place of the one that was summed
            while found.entries < project.charges:
                found = _extended(connection, project, found)
                self._remember(project.name, found)
        return found

    def _remember(self, name: str, found: Sums) -> None:
        others = [(key, each) for key, each in self._remembered.items() if key != name]
        self._remembered = dict([*others[1 - MOST_REMEMBERED :], (name, found)])


def _hash(connection: Connection, project: ProjectRecord, seq: int) -> bytes | None:
    """Return the hash of an entry that the account counts, or None. That of number 0 is genesis."""
    if seq in (0, project.charges):
        return bytes.fromhex(project.head if seq else project.genesis)
    entry = charges.c
    this = (entry.project_id == project.id) & (entry.seq == seq) & (seq < project.charges)
    found: bytes | None = connection.execute(select(entry.hash).where(this)).scalar()
    return found


def _extended(connection: Connection, project: ProjectRecord, known: Sums) -> Sums:
    """Return the sums over `AT_ONCE` entries more, or all that there are."""
    last = min(project.charges, known.entries + AT_ONCE)
    length = _length(last, MOST_PARTS)
    days = {day: dict(outcomes) for day, outcomes in (known.days or {}).items()}
    parts = list(known.parts)
    for row in connection.execute(_summed(connection, project, known.entries, last, length)):
        if not isinstance(row.first, datetime) or not isinstance(row.last, datetime):
            raise TypeError("a time is no time")
        outcome = Outcome(row.outcome)
        counts = tuple(row.entries if each is outcome else 0 for each in Outcome)
        parts.append(Segment(row.seq, row.first, row.last, int(row.paid), row.published, counts))
        day = days.setdefault(date.fromisoformat(str(row.day)), {})
        day[outcome] = day.get(outcome, 0) + row.entries
    parts.sort(key=lambda part: part.seq)
    head = _hash(connection, project, last)
    if head is None or not parts or parts[-1].seq != last:
        raise ValueError("entries are missing")
    recent = max(part.last for part in parts).date() - timedelta(days=DAYS - 1)
    kept = {day: days[day] for day in sorted(days) if day >= recent}
    return Sums(head, _merged(parts, length), kept)


def _summed(
    connection: Connection, project: ProjectRecord, after: int, last: int, length: int
) -> Any:
    """Select sums by part, day and outcome. A publication begins a part."""
    entry = charges.c
    since: ColumnElement[Any] = literal(0)
    for publication in project.published:
        since = since + case((entry.seq >= publication.seq, 1), else_=0)
    at: ColumnElement[Any]
    if connection.dialect.name == "sqlite":  # where an instant is ISO 8601 text in UTC
        at = func.substr(type_coerce(entry.created_at, String), 1, 10)
    else:
        at = cast(func.timezone("UTC", entry.created_at), Date)
    part, published, day = ((entry.seq - 1) // length, since.label("published"), at.label("day"))
    return (
        select(
            published,
            day,
            entry.outcome,
            func.max(entry.seq).label("seq"),
            func.min(entry.created_at, type_=entry.created_at.type).label("first"),
            func.max(entry.created_at, type_=entry.created_at.type).label("last"),
            func.sum(case((entry.outcome == Outcome.PUBLISHED, 0), else_=entry.cost)).label("paid"),
            func.count().label("entries"),
        )
        .where(entry.project_id == project.id, entry.seq > after, entry.seq <= last)
        .group_by(part, published, day, entry.outcome)
    )


def _length(entries: int, most: int) -> int:
    """Return the shortest power of two of which so many entries have at most `most`.

    Longer parts are always made of whole shorter ones, so it does not matter when they are summed.
    """
    return 1 << (max(-(-entries // most), 1) - 1).bit_length()


def _merged(parts: Iterable[Segment], length: int) -> list[Segment]:
    """Return parts of this many entries, or fewer before a publication and at the end."""

    def place(part: Segment) -> tuple[int, int]:
        return (part.seq - 1) // length, part.published

    return [_joined(list(group)) for _, group in groupby(parts, place)]


def _joined(parts: Sequence[Segment]) -> Segment:
    return Segment(
        parts[-1].seq,
        min(part.first for part in parts),
        max(part.last for part in parts),
        sum(part.paid for part in parts),
        parts[-1].published,
        tuple(map(sum, zip(*(part.outcomes for part in parts), strict=True))),
    )


def _reached(parts: Iterable[Segment], project: ProjectRecord) -> Iterator[Reached]:
    """Yield where the account stood after each part.

    A published figure replaces what its queries had cost at their worst case.
    """
    schedule, spent, published = project.terms.schedule, 0, 0
    for part in parts:
        if part.published != published and schedule is not None:
            published = part.published
            spent = project.published[published - 1].figure + published * schedule.price.cost
        spent += part.paid
        yield Reached(part.seq, part.last, spent)
