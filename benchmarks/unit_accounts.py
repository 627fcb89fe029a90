"""What accounts of every person cost: time of a charge, and PostgreSQL's write-ahead log.

A project of `neighbours` and, as its peer, one of `noisy_votes` with the same number of classes are
asked the same number of new queries, so many in a request, through the pipeline of the service.
Votes are drawn at random and take no time to speak of. What a charge takes beside its peer's is
the reading, the casting and the writing of all accounts, which are rewritten in place.

    python benchmarks/unit_accounts.py [--units 60000] [--queries 3000] [--together 100]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import typer
from sqlalchemy import text

from serving import seconds
from support.databases import SECRET_KEY, migrated, running_postgres
from support.ledgers import register
from terrine_models.teachers.neighbours import ShadowPoints
from terrine_protocol import EnsembleFacts, InputSpec
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.ledger import EnsembleRecord, Ledger, NewProject, connect
from terrine_server.metrics import Metrics
from terrine_server.privacy import Units, build_mechanism, quote

CLASSES = 10
WIDTH = 16
LOGGED = "SELECT pg_current_wal_lsn() - '0/0'"
LENGTH = "SELECT octet_length(accounts) FROM unit_accounts"


@dataclass
class Crowd(Voters):
    """Units with a record each, a hundredth of which are near a query; and votes of as many."""

    size: int

    def __post_init__(self) -> None:
        draw = np.random.default_rng(0)
        self.rows = (draw.random((64, self.size)) < 0.01).astype(np.uint8)
        self.since = np.ones(self.size, dtype=np.int32)
        numbers = np.arange(self.size, dtype=np.int32)
        self.units = Units.of(numbers, (numbers % CLASSES).astype(np.int16), self.size)

    def check(self, record: EnsembleRecord) -> None:
        return

    @property
    def shadows(self) -> int:
        return min(10_000, self.size)

    def to_points(self, x: np.ndarray) -> np.ndarray:
        return x

    def near(self, points: np.ndarray) -> np.ndarray:
        return self.rows[np.arange(len(points)) % len(self.rows)]

    def public_neighbours(self, points: np.ndarray) -> ShadowPoints:
        found = self.near(points)[:, : self.shadows]
        return ShadowPoints(found, np.ones_like(found))  # so that no query is exhausted

    def neighbourhood(self, record: EnsembleRecord) -> Neighbourhood:
        return Neighbourhood(self, self.units)

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        each = self.size // CLASSES
        return np.tile(np.array([self.size - 9 * each, *[each] * 9]), (len(inputs), 1))


def main(units: int = 60_000, queries: int = 3000, together: int = 100) -> None:
    """Ask so many queries of so many units."""
    print(f"{units:,} units, {queries:,} queries, {together} in a request")
    casting(units)
    with running_postgres() as server, server.database() as name:
        measure(server.url(name), units, queries, together)


def casting(units: int) -> None:
    """The mechanism alone, by how many units are near: it should make no difference."""
    crowd = Crowd(units)
    mechanism = build_mechanism(
        {"name": "neighbours", "sigma": 272.0, "queries": 1000}, teachers=units, classes=CLASSES
    )
    for title, share, spent in (("1 % near", 0.01, 0), ("all near", 1, 0), ("all spent", 1, 39)):
        draw = np.random.default_rng(1).random((20, units)) < share
        accounts = np.full(units, spent, np.uint32)
        took = []
        for row in draw.astype(np.uint8):
            started = time.process_time()
            mechanism.cast(row[None], crowd.units, accounts, 39)  # type: ignore[attr-defined]
            took.append(time.process_time() - started)
        print(f"  casting a query, {title:>9}: {1000 * median(took):6.2f} ms of a processor")


def measure(url: str, units: int, queries: int, together: int) -> None:
    written = []
    ledger = Ledger(migrated(url), SECRET_KEY)
    for kind, mechanism in (
        ("heads", {"name": "noisy_votes", "sigma": 9000.0}),
        ("neighbours", {"name": "neighbours", "sigma": 272.0, "queries": queries}),
    ):
        facts = EnsembleFacts(
            kind=kind,
            input=InputSpec(shape=(WIDTH,), dtype="uint8", low=0, high=255),
            classes=[str(digit) for digit in range(CLASSES)],
            teachers=units,
        )
        register(ledger, kind, 9.0, facts, units=units)
        built = build_mechanism(mechanism, teachers=units, classes=CLASSES)
        epsilon = 0.1 if kind == "neighbours" else 5.0
        ledger.projects.open(NewProject(kind, kind, mechanism, quote(built, epsilon, 1e-6)))
        labeling = Labeling(ledger, Crowd(units), Metrics(), max_batch=10_000)
        logged = number(url, LOGGED)
        started = time.process_time()
        took = ask(labeling, kind, queries, together)
        worked = (time.process_time() - started) / len(took)
        written.append((number(url, LOGGED) - logged) / queries)
        print(
            f"  {mechanism['name']:>11}: {1000 * median(took):6.1f} ms a request, "
            f"{1000 * worked:6.1f} of them worked here, "
            f"{written[-1] / 1e4:.2f} GB of write-ahead log in 100,000 queries"
        )
    print(
        f"  {written[1] / written[0]:.1f} times the log; "
        f"a row of accounts has {number(url, LENGTH) / 1e3:.0f} kB"
    )


def ask(labeling: Labeling, project: str, queries: int, together: int) -> Sequence[float]:
    draw, took = np.random.default_rng(2), []
    for _ in range(0, queries, together):
        inputs = draw.integers(0, 256, (together, WIDTH), dtype=np.uint8)
        checked = [labeling.check(project, inputs)]
        took.append(seconds(partial(labeling.answer, project, checked)))
    return took


def number(url: str, query: str) -> int:
    with connect(url).connect() as connection:
        return int(connection.execute(text(query)).scalar_one())


if __name__ == "__main__":
    typer.run(main)
