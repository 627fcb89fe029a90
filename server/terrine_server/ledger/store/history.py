"""How a project's budget was spent: sums over its entries, made by the database.

It draws pictures; nothing is charged or verified by it.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Date, String, case, cast, func, literal, select, type_coerce
from sqlalchemy.sql.elements import ColumnElement

from terrine_protocol import Outcome
from terrine_server.errors import LedgerCorrupted
from terrine_server.ledger.records import History, ProjectPosition, ProjectRecord
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.tables import charges

POINTS = 64
"""The most points of a history at equal numbers of entries."""
DAYS = 60
"""How many days before its last entry a history reaches back."""


def history(connection: Connection, project: ProjectRecord) -> History:
    """Return the history of a project. Raises LedgerCorrupted unless it ends at the balance.

    A point is the last entry of so many, or before a publication: a figure that is published
    replaces what its queries had cost at their worst case.
    """
    parts: dict[tuple[int, int], list[Any]] = {}
    days: dict[date, dict[Outcome, int]] = {}
    outcomes: dict[Outcome, int] = {}
    with rows.readable(f"An entry of project {project.name!r}", project.name):
        for row in connection.execute(_summed(project, connection.dialect.name == "sqlite")):
            if not isinstance(row.last, datetime):
                raise TypeError("a time is no time")
            seq, at, paid = parts.get((row.published, row.part), (0, row.last, 0))
            reached = [max(seq, row.seq), max(at, row.last), paid + int(row.paid)]
            parts[row.published, row.part] = reached
            day, outcome = (
                days.setdefault(date.fromisoformat(str(row.day)), {}),
                Outcome(row.outcome),
            )
            day[outcome] = day.get(outcome, 0) + row.entries
            outcomes[outcome] = outcomes.get(outcome, 0) + row.entries
    found, before, spent = [], 0, 0
    for (published, _), (seq, at, paid) in sorted(parts.items()):
        if published != before and project.terms.schedule is not None:
            price = project.terms.schedule.price.cost
            before, spent = published, project.published[published - 1].figure + published * price
        spent += paid
        found.append(ProjectPosition(seq, at, spent))
    if spent != project.spent:
        raise LedgerCorrupted(
            f"The entries of project {project.name} do not add up to its balance.", project.name
        )
    recent = max(days, default=date.max) - timedelta(days=DAYS - 1)
    kept = {day: days[day] for day in sorted(days) if day >= recent}
    return History(
        tuple(found), kept, {each: outcomes[each] for each in Outcome if each in outcomes}
    )


def _summed(project: ProjectRecord, sqlite: bool) -> Any:
    """Select sums by publication, part, day and outcome, over the entries that the account counts.

    Parts have equal length, a power of two: as a project grows, points go, and none moves.
    """
    length = 1 << (max(-(-project.charges // POINTS), 1) - 1).bit_length()
    entry = charges.c
    published: ColumnElement[Any] = literal(0)
    for publication in project.published:
        published = published + case((entry.seq >= publication.seq, 1), else_=0)
    part: ColumnElement[Any] = (entry.seq - 1) // length
    day: ColumnElement[Any]
    if sqlite:  # where an instant is ISO 8601 text in UTC
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
        .where(entry.project_id == project.id, entry.seq <= project.charges)
        .group_by(published, part, day, entry.outcome)
    )
