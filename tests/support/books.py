"""Small real ledgers: an ensemble, proposals, and projects for an exact number of queries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from migrated import SECRET_KEY, migrated
from postgres import as_owner
from sqlalchemy import Connection, Select, delete, insert, inspect, select, update
from sqlalchemy.exc import StatementError

from terrine_protocol import EnsembleFacts, InputSpec
from terrine_server.ledger import (
    EnsembleRecord,
    Ledger,
    NewProject,
    ProjectRecord,
    Proposal,
    connect,
    log,
)
from terrine_server.ledger.chain import ACTIONS_ABOUT, LOG_START, facts_text, log_hash
from terrine_server.ledger.log import READ_ERRORS
from terrine_server.ledger.schema import (
    SEALED,
    Seals,
    administrative_log,
    metadata,
)
from terrine_server.ledger.verifying import rows_of
from terrine_server.privacy import (
    GDP,
    Account,
    Rule,
    Terms,
    VoteOutcome,
    build_mechanism,
    cap,
    quote,
)

TEACHERS, CLASSES, RECORDS = 250, 10, 60_000
FACTS = EnsembleFacts(
    kind="heads",
    input=InputSpec(shape=(28, 28), dtype="uint8", low=0, high=255),
    classes=[str(digit) for digit in range(CLASSES)],
    teachers=TEACHERS,
)
GNMAX = {"name": "gnmax", "sigma": 40.0}
CONFIDENT = {"name": "confident_gnmax", "threshold": 200, "sigma1": 150.0, "sigma2": 40.0}
NOISY = {"name": "confident_gnmax", "threshold": 200, "sigma1": 1500.0, "sigma2": 400.0}
"""Queries so cheap that tens of thousands fit."""
COUNTED = {"name": "noisy_votes", "sigma": 400.0}
"""Noisy counts, tens of thousands of them."""
LNMAX = {"name": "lnmax", "gamma": 0.05}
STABLE = {"name": "stable", "sigma": 8.0, "delta_per_query": 1e-10}
IMMUTABLE = {"name": "immutable", "c": 1, "gamma": 0.05}


def digest(text: object) -> bytes:
    return hashlib.sha256(str(text).encode()).digest()


def answered(query: object, label: int = 3, given: object = None) -> Proposal:
    """A query that the teachers answered; `given` is its input, if the query has more than that."""
    whole = digest(query if given is None else given)
    return Proposal(digest(query), whole, VoteOutcome.ANSWERED, label)


def counted(query: object, draw: object = "") -> Proposal:
    """A query that was answered with noisy counts. Another `draw` has other counts."""
    counts = tuple(3 * byte - 300 for byte in digest(f"{query} {draw}")[:CLASSES])
    label = counts.index(max(counts))
    whole = digest(query)
    return Proposal(whole, whole, VoteOutcome.ANSWERED, label, counts=counts)


def abstained(query: object, given: object = None) -> Proposal:
    whole = digest(query if given is None else given)
    return Proposal(digest(query), whole, VoteOutcome.ABSTAINED, None)


def unvoted(query: object, given: object = None) -> Proposal:
    return Proposal(digest(query), digest(query if given is None else given), None, None)


def open_ledger(url: str, epsilon: float = 20.0, key: bytes = SECRET_KEY) -> Ledger:
    """A migrated database with one ensemble, `mnist`."""
    ledger = Ledger(migrated(url), key)
    register(ledger, "mnist", epsilon)
    return ledger


def register(
    ledger: Ledger,
    name: str,
    epsilon: float | None = 20.0,
    facts: EnsembleFacts = FACTS,
    population: str | None = None,
) -> EnsembleRecord:
    """Register an ensemble, in a population of its own unless one is named."""
    known = {each.name for each in ledger.populations()}
    return ledger.register_ensemble(
        name,
        f"ensembles/{name}",
        digest(name).hex(),
        facts,
        RECORDS,
        None if epsilon is None else cap(epsilon, 1e-5),
        population=population or name,
        disjoint=(population or name) not in known,
    )


@contextmanager
def unguarded(url: str, with_key: bool = True) -> Iterator[Connection]:
    """Open a transaction for a forger, with triggers and CHECK constraints removed for good.

    The forger has the secret key as well, unless told otherwise: only what follows from charges can
    then show what was forged.
    """
    engine = connect(as_owner(url))
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            names = connection.exec_driver_sql(
                "SELECT name FROM sqlite_master WHERE type='trigger'"
            )
            for name in names.scalars().all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            for table in (
                "charges",
                "projects",
                "populations",
                "ensembles",
                "requests",
                "administrative_log",
            ):
                connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
                for check in inspect(connection).get_check_constraints(table):
                    connection.exec_driver_sql(
                        f"ALTER TABLE {table} DROP CONSTRAINT {check['name']}"
                    )
        yield connection
        if with_key:
            reseal(connection)
        connection.commit()
    engine.dispose()


def reseal(connection: Connection) -> Seals:
    """Seal all rows as they are, and write the administrative log anew, as far as they allow."""
    seals = Seals(SECRET_KEY)
    for table in (metadata.tables[name] for name in SEALED if name != "log_head"):
        for row in _readable(connection, select(table)):
            with suppress(*READ_ERRORS):
                found = [column == row[column.name] for column in table.primary_key]
                if (seal := seals.of(table.name, row)) != row["seal"]:
                    connection.execute(update(table).where(*found).values(seal=seal))
    entries, head = list[dict[str, Any]](), LOG_START
    for kind, actions in ACTIONS_ABOUT.items():
        for row in _readable(connection, rows_of(kind)):
            if row["subject"] is None:  # of an edition whose ensemble is not there
                continue
            with suppress(*READ_ERRORS):
                entry = {
                    "seq": len(entries) + 1,
                    "created_at": datetime.now(UTC),
                    "actor": "forger",
                    "request_id": None,
                    "action": actions[0],
                    "subject": row["subject"],
                    "detail": facts_text(kind, row),
                }
                head = log_hash(head, entry)
                entries.append({**entry, "hash": head})
    connection.execute(delete(administrative_log))
    if entries:
        connection.execute(insert(administrative_log), entries)
    log.set_head(connection, seals, len(entries), head)
    return seals


def _readable(connection: Connection, query: Select[Any]) -> list[Any]:
    try:
        return [row._mapping for row in connection.execute(query)]
    except (StatementError, ValueError):  # no row of the table can be read
        return []


def terms(
    queries: int,
    mechanism: Mapping[str, Any] = GNMAX,
    cap_rule: Rule = GDP,
    *,
    epsilon: float = 8.0,
    delta: float = 1e-6,
) -> Terms:
    """Return terms whose budget pays for exactly `queries` at the worst-case price."""
    built = build_mechanism(mechanism, teachers=TEACHERS, classes=CLASSES)
    quoted = quote(built, epsilon, delta, cap_rule=cap_rule)
    assert quoted.affordable(Account()) >= queries, "ask for a larger epsilon"
    worst = quoted.worst
    return replace(quoted, budget=queries * worst.cost, cap_budget=queries * worst.cap_cost)


def open_project(
    ledger: Ledger,
    queries: int,
    mechanism: Mapping[str, Any] = GNMAX,
    name: str = "study",
    ensemble: str = "mnist",
) -> ProjectRecord:
    """Open a project whose budget pays for exactly `queries` at the worst-case price."""
    return ledger.open_project(NewProject(name, ensemble, mechanism, terms(queries, mechanism)))
