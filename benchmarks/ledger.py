"""Speed of the ledger: of verifying it, and of charging once it is long.

`verify` is shown beside SHA-256 alone over the same bytes, which no verification can beat, and
beside fetching the entries alone. A charge to a ledger of so many entries is shown beside one to
an empty ledger. All are measured in one run, on SQLite and on PostgreSQL.

    python benchmarks/ledger.py [--entries 300000] [--database sqlite|postgresql|both]
"""

from __future__ import annotations

import hashlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, islice
from resource import RUSAGE_SELF, getrusage
from typing import Any, Literal

import psycopg
import typer
from sqlalchemy import select, update
from sqlalchemy.engine import make_url

from serving import in_turn, seconds
from support.databases import SECRET_KEY, running_postgres
from support.ledgers import answered, charge_one, open_ledger, open_project
from terrine_server.ledger import Ledger, ProjectRecord, connect
from terrine_server.ledger.chain import (
    CHARGE_FIELDS,
    KIND_FIELDS,
    canonical_json,
    frame,
    hasher,
    iso,
)
from terrine_server.ledger.database import snapshot
from terrine_server.ledger.schema import projects
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.verifying import load_stored_pages
from terrine_server.privacy import VoteOutcome

# Noise so large that the budget pays for tens of millions of queries.
MECHANISM = {"name": "confident_gnmax", "threshold": 200, "sigma1": 10000.0, "sigma2": 10000.0}
COLUMNS = (*CHARGE_FIELDS, "hash")
Database = Literal["sqlite", "postgresql", "both"]
CHARGES = 300
HASHED = 100_000
TARGET = 200_000
SLOWDOWN = 1.2
APART = timedelta(seconds=2)
"""Between two charges, so that a million are of 24 days."""


def main(
    entries: int = 300_000, database: Literal["sqlite", "postgresql", "both"] = "both"
) -> None:
    """Measure on one database, or on both; ten million entries take long."""
    met = True
    for kind in ["sqlite", "postgresql"] if database == "both" else [database]:
        with databases(kind) as (url, empty):
            met = measure(kind, url, empty, entries) and met
    if not met:
        raise typer.Exit(1)


@contextmanager
def databases(kind: str) -> Iterator[tuple[str, str]]:
    """Two databases of that kind: one to fill, one that stays nearly empty."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite:///{directory}/long.sqlite", f"sqlite:///{directory}/empty.sqlite"
    else:
        with running_postgres() as server, server.database() as long, server.database() as empty:
            yield server.url(long), server.url(empty)


def measure(kind: str, url: str, empty_url: str, entries: int) -> bool:
    ledger, empty = open_ledger(url), open_ledger(empty_url)
    project = open_project(ledger, entries + 10_000, MECHANISM)
    open_project(empty, 10_000, MECHANISM)
    written = seconds(lambda: fill(url, project, entries))
    print(f"{kind}: {entries:,} entries, written in {written:.0f} s")

    before, after = charging(empty, ledger)
    print(
        f"  one charge takes {before * 1e3:.2f} ms on an empty ledger and {after * 1e3:.2f} ms "
        f"here: {after / before:.2f} x (target: {SLOWDOWN} x at most)"
    )
    peak = getrusage(RUSAGE_SELF).ru_maxrss
    verified = rate(lambda: verify(ledger), entries + CHARGES)
    grown = getrusage(RUSAGE_SELF).ru_maxrss - peak
    bodies = [
        frame("terrine/charge/1", charge["hash"], *(charge[name] for name in CHARGE_FIELDS))
        for charge in islice(new_charges(project), HASHED)
    ]
    size = sum(map(len, bodies)) / len(bodies)
    rows = [
        (f"SHA-256 of {size:.0f} bytes each", *rate(lambda: hash_all(bodies), len(bodies))),
        ("fetching", *rate(lambda: fetch(url, project), entries + CHARGES)),
        ("verify", *verified),
    ]
    print(f"  {'entries per second':<28}{'of a core':>12}{'of the clock':>14}")
    for name, core, clock in rows:
        print(f"  {name:<28}{core:>12,.0f}{clock:>14,.0f}")
    share = verified[0] / rows[0][1]
    print(
        f"  verify reaches {share:.0%} of the hash's limit (target: {TARGET:,} per second) "
        f"and raised the peak of this process's memory by {grown / 1024:.0f} MiB"
    )
    return verified[0] >= TARGET and after <= SLOWDOWN * before


def rate(work: Callable[[], object], entries: int) -> tuple[float, float]:
    """Entries per second of processor time and of wall-clock time; the best of a few runs."""
    core, clock = [], []
    for _ in range(3 if entries < 1_000_000 else 1):
        started, began = time.process_time(), time.perf_counter()
        work()
        core.append(entries / (time.process_time() - started))
        clock.append(entries / (time.perf_counter() - began))
    return max(core), max(clock)


def hash_all(bodies: list[bytes]) -> None:
    for body in bodies:
        hashlib.sha256(body).digest()


def fetch(url: str, project: ProjectRecord) -> None:
    with snapshot(connect(url)) as connection:
        for _ in load_stored_pages(connection, project.id):
            pass


def verify(ledger: Ledger) -> None:
    found = ledger.verifier.verify_project("study")
    assert found.ok, found.problems


def charging(*ledgers: Ledger) -> list[float]:
    """Median seconds of a charge of one new query on each ledger, measured in turn."""

    def charge(ledger: Ledger) -> float:
        project, query = ledger.projects.get("study").id, answered(f"new {next(fresh)}")
        return seconds(lambda: charge_one(ledger, project, [query]))

    fresh = count()
    lines = {str(number): partial(charge, each) for number, each in enumerate(ledgers)}
    return [statistics.median(taken) for taken in in_turn(lines, CHARGES).values()]


def new_charges(project: ProjectRecord) -> Iterator[dict[str, Any]]:
    """An endless series of charges for new queries, hashed and chained as the ledger does."""
    price, hashed = project.terms.prices[VoteOutcome.ANSWERED], hasher(project.id)
    charge: dict[str, Any] = {
        "project_id": project.id,
        "outcome": "answered",
        "figure": None,
        "cost": price.cost,
        "delta": price.delta,
        "cap_cost": price.cap_cost,
        "mechanism": canonical_json(dict(project.mechanism)),
        "event": canonical_json(project.events["answered"]),
    }
    kinds = [
        frame(*((charge | {"label": label})[name] for name in KIND_FIELDS)) for label in range(10)
    ]
    head, first = bytes.fromhex(project.genesis), datetime(2025, 1, 1, tzinfo=UTC)
    for seq in count(1):
        query, at = hashlib.sha256(b"%d" % seq).digest(), first + seq * APART
        head = hashed(head, seq, iso(at), query, query, kinds[seq % 10])
        yield charge | {
            "seq": seq,
            "created_at": at,
            "query_digest": query,
            "input_digest": query,
            "label": seq % 10,
            "hash": head,
        }


def fill(url: str, project: ProjectRecord, entries: int) -> None:
    """Insert charges directly, because the ledger would take hours; then set the balance."""
    head = b""

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal head
        for charge in islice(new_charges(project), entries):
            head = charge["hash"]
            yield tuple(charge[name] for name in COLUMNS)

    fill_sqlite(url, rows()) if url.startswith("sqlite") else fill_postgresql(url, rows())
    price = project.terms.prices[VoteOutcome.ANSWERED]
    balance = {
        "spent": entries * price.cost,
        "delta_spent": entries * price.delta,
        "cap_spent": entries * price.cap_cost,
        "charges": entries,
        "head": head,
    }
    this, seals, engine = projects.c.id == project.id, Seals(SECRET_KEY), connect(url)
    with engine.begin() as connection:
        row = dict(connection.execute(select(projects).where(this)).one()._mapping) | balance
        sealed = balance | {"seal": seals.of("projects", row)}
        connection.execute(update(projects).where(this).values(sealed))
    engine.dispose()


def fill_sqlite(url: str, rows: Iterator[tuple[Any, ...]]) -> None:
    at = COLUMNS.index("created_at")
    with closing(sqlite3.connect(make_url(url).database or "")) as file:
        file.execute("PRAGMA cache_size = -4000000")
        named = "SELECT sql FROM sqlite_master WHERE name = 'charges_no_replace'"
        (trigger,) = file.execute(named).fetchone()
        file.execute("DROP TRIGGER charges_no_replace")
        file.executemany(
            f"INSERT INTO charges ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})",
            ((*row[:at], iso(row[at]), *row[at + 1 :]) for row in rows),
        )
        file.execute(trigger)
        file.commit()


def fill_postgresql(url: str, rows: Iterator[tuple[Any, ...]]) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    unique = "uq_charges_project_id_query_digest"
    with psycopg.connect(plain) as server:
        server.execute("SET maintenance_work_mem = '1GB'")
        server.execute(f"ALTER TABLE charges DROP CONSTRAINT {unique}")
        server.execute("DROP INDEX uq_charges_answered_input")
        with server.cursor().copy(f"COPY charges ({', '.join(COLUMNS)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        server.execute(
            f"ALTER TABLE charges ADD CONSTRAINT {unique} UNIQUE (project_id, query_digest)"
        )
        server.execute(
            "CREATE UNIQUE INDEX uq_charges_answered_input ON charges (project_id, input_digest) "
            "WHERE outcome = 'answered'"
        )
        server.execute("ANALYZE charges")


if __name__ == "__main__":
    typer.run(main)
