"""Checks of a row each time it is read, so that an edit by hand does no harm until it is found.

`verify` recomputes a project's ledger from all of its entries. These checks look at one row and
take microseconds: do its values have the types that are written, and is its balance possible for
its number of entries? Every check raises ValueError or TypeError, which `rows` turns into
LedgerCorrupted. No message here quotes a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Column, LargeBinary

from terrine_protocol import ProjectStatus
from terrine_server.ledger.records import PopulationRecord, ProjectRecord

UNREADABLE = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)
"""The errors that reading an altered or damaged value may raise."""


def check_types(columns: Iterable[Column[Any]], row: Mapping[Any, Any]) -> None:
    """Check each value's type. SQLite stores a value of any type in any column."""
    for column in columns:
        value = row[column.name]
        if value is None and column.nullable:
            continue
        if type(value) is not column.type.python_type:
            raise TypeError(f"{column.name} is not of its type")
        if isinstance(column.type, LargeBinary) and len(value) != (
            column.type.length or len(value)
        ):
            raise ValueError(f"{column.name} is not of its length")


def check_population(population: PopulationRecord) -> None:
    """Check that what is reserved of a population's cap is within it."""
    if not 0 <= population.reserved <= population.cap:
        raise ValueError("reserved is not within the cap")
    if not 0 <= population.delta_reserved <= population.delta_cap:
        raise ValueError("delta_reserved is not within the cap")


def check_account(project: ProjectRecord) -> None:
    """Check a project's status, and that its balance is possible for its number of entries.

    Each entry debits one of a few prices, which bounds the balance from below and above. If every
    query has the same price, the bounds are equal.
    """
    if (project.status is ProjectStatus.CLOSED) != (project.closed_at is not None):
        raise ValueError("status and closed_at contradict each other")
    _check_publications(project)
    terms, account = project.terms, project.account
    last = project.published[-1] if project.published else None
    figure = last.figure if last else 0
    since = account.queries - last.queries if last else account.queries
    # A figure replaces the cost of the queries before it; additive δ is never given back.
    for name, budget, price, queries, settled in [
        ("spent", terms.budget, "cost", since, figure),
        ("cap_spent", terms.cap_budget, "cap_cost", since, figure),
        ("delta_spent", terms.delta_budget, "delta", account.queries, 0),
    ]:
        if terms.schedule is not None:
            settled += account.published * getattr(terms.schedule.price, price)
        least = settled + queries * getattr(terms.least, price)
        most = settled + queries * getattr(terms.worst, price)
        if name == "cap_spent" and terms.allowance is not None:
            least = min(least, budget)  # which no number of queries exceeds
        if not 0 <= least <= getattr(account, name) <= min(most, budget):
            raise ValueError(f"{name} is not what so many entries debit")


def _check_publications(project: ProjectRecord) -> None:
    """Check that each covers more queries than the last, and that no more exist than scheduled."""
    schedule = project.terms.schedule
    if len(project.published) > (len(schedule.counts) if schedule else 0):
        raise ValueError("published: more figures than are scheduled")
    last = 0
    for publication in project.published:
        if type(publication.seq) is not int or type(publication.figure) is not int:
            raise TypeError("published: not of whole numbers")
        if not last + 1 < publication.seq <= project.charges or publication.figure < 0:
            raise ValueError("published: not what was published")
        last = publication.seq
    if project.charges < 0:
        raise ValueError("charges is negative")
