"""How a project's budget was spent: sums over its entries, made by the database.

Entries are only appended, so those that an account counts are the same whenever they are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, String, case, func, literal, select, type_coerce
from sqlalchemy.sql.elements import ColumnElement

from terrine_protocol import Outcome
from terrine_server.errors import BrokenBooks
from terrine_server.ledger.records import History, ProjectRecord, Reached
from terrine_server.ledger.store import rows
from terrine_server.ledger.store.tables import charges

POINTS = 48
"""About how many points a history has, at equal numbers of entries."""
DAYS = 60
"""How many days before its last entry a history reaches back."""


def of(connection: Connection, project: ProjectRecord) -> History:
    """Return the history of a project. Raises BrokenBooks unless it ends at the balance."""
    with rows.readable(f"An entry of project {project.name!r}", project.name):
        reached = tuple(_reached(connection, project))
        if (reached[-1].spent if reached else 0) != project.spent:
            raise BrokenBooks(
                f"The entries of project {project.name} do not add up to its balance.", project.name
            )
        days = _days(connection, project, reached[-1].at) if reached else {}
    return History(reached, days)


def _reached(connection: Connection, project: ProjectRecord) -> Iterator[Reached]:
    """Yield where the account stood after every so many entries, and after each publication.

    A published figure replaces what its queries had cost at their worst case.
    """
    entry = charges.c
    size = -(-project.charges // POINTS) or 1
    part = (entry.seq - 1) // size
    since: ColumnElement[Any] = literal(0)
    for publication in project.published:
        since = since + case((entry.seq >= publication.seq, 1), else_=0)
    paid = case((entry.outcome == Outcome.PUBLISHED, 0), else_=entry.cost)
    query = (
        select(
            since.label("published"),
            func.max(entry.seq).label("seq"),
            func.max(entry.created_at, type_=entry.created_at.type).label("at"),
            func.sum(paid).label("cost"),
        )
        .where(entry.project_id == project.id, entry.seq <= project.charges)
        .group_by(part, since)
        .order_by(func.max(entry.seq))
    )
    schedule, spent, published = project.terms.schedule, 0, 0
    for row in connection.execute(query):
        if row.published != published and schedule is not None:
            published = row.published
            spent = project.published[published - 1].figure + published * schedule.price.cost
        spent += int(row.cost)
        if not isinstance(row.at, datetime):
            raise TypeError("a time is no time")
        yield Reached(row.seq, row.at, spent)


def _days(
    connection: Connection, project: ProjectRecord, last: datetime
) -> dict[date, dict[Outcome, int]]:
    entry = charges.c
    if connection.dialect.name == "sqlite":  # where an instant is ISO 8601 text in UTC
        day: ColumnElement[Any] = func.substr(type_coerce(entry.created_at, String), 1, 10)
    else:
        day = func.to_char(func.timezone("UTC", entry.created_at), "YYYY-MM-DD")
    start = last.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS - 1)
    query = (
        select(day.label("day"), entry.outcome, func.count().label("entries"))
        .where(
            entry.project_id == project.id,
            entry.seq <= project.charges,
            entry.created_at >= start,
        )
        .group_by(day, entry.outcome)
        .order_by(day)
    )
    found: dict[date, dict[Outcome, int]] = {}
    for row in connection.execute(query):
        found.setdefault(date.fromisoformat(row.day), {})[Outcome(row.outcome)] = row.entries
    return found
