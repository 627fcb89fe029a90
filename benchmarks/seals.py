"""What seals cost: charges with them, beside the same charges of the same run without.

Two ledgers on the same kind of database are charged in turn. One makes and checks every seal; for
the other, a seal is 32 zero bytes that nobody checks. The target is 5 % more time for a charge at
most, by the medians. Every commit is on disk, which takes most of the time on a slow one; so the
processor time of this process is shown as well, in which a charge has nothing to wait for.

    python benchmarks/seals.py [--charges 400] [--database sqlite|postgresql]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from books import answered, digest, open_ledger, open_project
from migrated import SECRET_KEY
from postgres import running_postgres

from terrine_server.ledger import Ledger
from terrine_server.ledger.seals import Seals
from terrine_server.ledger.store.rows import KnownProjects

# Noise so large that the budget pays for tens of thousands of queries.
MECHANISM = {"name": "confident_gnmax", "threshold": 200, "sigma1": 10000.0, "sigma2": 10000.0}
TARGET = 1.05


class NoSeals(Seals):
    """Seals that cost nothing and are worth nothing."""

    def of(self, table: str, row: Mapping[Any, Any]) -> bytes:
        return bytes(32)

    def check(self, table: str, row: Mapping[Any, Any]) -> None:
        pass


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--charges", type=int, default=400, help="of each kind")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="only this one")
    options = parser.parse_args()
    kinds = [options.database] if options.database else ["sqlite", "postgresql"]
    met = [measure(kind, options.charges) for kind in kinds]
    return all(met)


def measure(kind: str, charges: int) -> bool:
    print(f"{kind:<34}{'sealed':>12}{'without':>12}{'ratio':>9}{'processor':>12}")
    met = True
    with databases(kind) as urls:
        ledgers = [open_ledger(url) for url in urls]
        unsealed(ledgers[1])
        projects = [open_project(ledger, 60_000, MECHANISM).id for ledger in ledgers]
        for what, queries, key in [
            ("one new query", 1, False),
            ("one new query, with a key", 1, True),
            ("64 new queries, with a key", 64, True),
        ]:
            seconds: list[list[float]] = [[], []]
            busy: list[list[float]] = [[], []]
            for number in range(charges):
                batch = [answered(f"{what} {number} {query}") for query in range(queries)]
                used = (f"{what} {number}".replace(" ", "-"), digest(number)) if key else None
                for side in (0, 1) if number % 2 else (1, 0):
                    started, used_before = time.perf_counter(), time.process_time()
                    ledgers[side].charge(projects[side], batch, used)
                    seconds[side].append(time.perf_counter() - started)
                    busy[side].append(time.process_time() - used_before)
            with_seals, without = map(statistics.median, seconds)
            ratio = with_seals / without
            of_processor = statistics.median(busy[0]) / statistics.median(busy[1])
            met = met and ratio <= TARGET
            print(
                f"  {what:<32}{with_seals * 1e3:>9.2f} ms{without * 1e3:>9.2f} ms{ratio:>9.3f}"
                f"{of_processor:>12.3f}"
            )
    print(f"  target: {TARGET} at most: {'met' if met else 'NOT MET'}")
    return met


def unsealed(ledger: Ledger) -> None:
    seals = NoSeals(SECRET_KEY)
    ledger._seals, ledger._accounts = seals, KnownProjects(seals)


@contextmanager
def databases(kind: str) -> Iterator[tuple[str, str]]:
    """Two databases of that kind."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite:///{directory}/sealed.sqlite", f"sqlite:///{directory}/without.sqlite"
    else:
        with running_postgres() as server, server.database() as one, server.database() as other:
            yield server.url(one), server.url(other)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
