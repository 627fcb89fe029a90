"""What accounts of every person cost: time of a charge, and growth of the database, on both.

A project of `neighbours` and, as its peer, one of `noisy_votes` with the same number of classes are
asked the same number of new queries, so many in a request, through the pipeline of the service.
Votes are drawn at random and take no time to speak of. What a charge takes beside its peer's is
the reading, the casting and the writing of all accounts. Growth is measured and scaled to 100,000
queries; accounts are rewritten in place, and PostgreSQL's dead copies go at the next VACUUM.

    python benchmarks/unit_accounts.py [--units 60000] [--queries 3000] [--together 100]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from sqlalchemy import text

from terrine_models.teachers.neighbours import ShadowPoints
from terrine_protocol import EnsembleFacts, InputSpec
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import Neighbourhood, Voters
from terrine_server.ledger import EnsembleRecord, Ledger, NewProject, connect, upgrade
from terrine_server.metrics import Metrics
from terrine_server.privacy import Units, build_mechanism, cap, quote

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.databases import running_postgres

KEY = b"k" * 32
CLASSES = 10
WIDTH = 16


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--units", type=int, default=60_000)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--together", type=int, default=100, help="queries in a request")
    options = parser.parse_args()
    sizes = options.units, options.queries, options.together
    print(f"{options.units:,} units, {options.queries:,} queries, {options.together} in a request")
    casting(options.units)
    with tempfile.TemporaryDirectory() as directory:
        measure("SQLite", f"sqlite:///{directory}/terrine.sqlite", sizes)
    with running_postgres() as server, server.database() as name:
        measure("PostgreSQL", server.url(name), sizes)


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


def measure(title: str, url: str, sizes: tuple[int, int, int]) -> None:
    units, queries, together = sizes
    engine = connect(url)
    upgrade(engine, KEY)
    ledger = Ledger(engine, KEY)
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
        digest = bytes([len(kind)]) * 32
        ledger.register_ensemble(
            kind, f"ensembles/{kind}", digest.hex(), facts, units, cap(9, 1e-5)
        )
        built = build_mechanism(mechanism, teachers=units, classes=CLASSES)
        epsilon = 0.1 if kind == "neighbours" else 5.0
        ledger.open_project(NewProject(kind, kind, mechanism, quote(built, epsilon, 1e-6)))
        labeling = Labeling(ledger, Crowd(units), Metrics(), max_batch=10_000)
        before, logged = size(url), log_position(url)
        started = time.process_time()
        took = ask(labeling, kind, queries, together)
        worked = (time.process_time() - started) / len(took)
        grown = (size(url) - before) * 100_000 / queries
        line = f"  {title}, {mechanism['name']:>11}: {1000 * median(took):6.1f} ms a request, "
        line += f"{1000 * worked:6.1f} of them worked here, "
        print(line + f"grows by {grown / 1e6:6.1f} MB in 100,000 queries", end="")
        if logged is not None:
            written = (log_position(url) or 0) - logged
            print(f", {written * 100_000 / queries / 1e9:.2f} GB of write-ahead log", end="")
        print()
    print(f"    of it, accounts: {accounts_size(url)}")


def ask(labeling: Labeling, project: str, queries: int, together: int) -> Sequence[float]:
    draw, took = np.random.default_rng(2), []
    for _ in range(0, queries, together):
        inputs = draw.integers(0, 256, (together, WIDTH), dtype=np.uint8)
        started = time.perf_counter()
        labeling.answer(project, [labeling.check(project, inputs)])
        took.append(time.perf_counter() - started)
    return took


def size(url: str) -> int:
    """Bytes of the whole database, when what is dead has gone."""
    engine = connect(url)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(str(engine.url.database)).stat().st_size
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM FULL shadow_accounts"))
        connection.execute(text("VACUUM FULL unit_accounts"))
        return int(
            connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        )


def log_position(url: str) -> int | None:
    engine = connect(url)
    if engine.dialect.name == "sqlite":
        return None
    with engine.connect() as connection:
        query = text("SELECT pg_current_wal_lsn() - '0/0'")
        return int(connection.execute(query).scalar_one())


def accounts_size(url: str) -> str:
    engine = connect(url)
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            (length,) = connection.exec_driver_sql(
                "SELECT length(accounts) FROM unit_accounts"
            ).one()
        return f"{length / 1e3:.0f} kB, rewritten in place"
    query = text("SELECT pg_total_relation_size('unit_accounts')")
    with engine.connect() as connection:
        return f"{int(connection.execute(query).scalar_one()) / 1e3:.0f} kB after a VACUUM"


if __name__ == "__main__":
    main()
