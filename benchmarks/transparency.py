"""Speed of the transparency log: growing it, its tiles and proofs, and what it takes from charging.

Growing is shown beside pymerkle's tree in memory, which keeps nothing, and beside SHA-256 alone,
which nothing can beat. Charging while the tree is grown and signed each second is shown beside
charging without. All are measured in one run, on SQLite and on PostgreSQL.

    python benchmarks/transparency.py [--entries 1000000] [--pairs 60] [--database NAME]
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from books import answered, open_ledger, open_project
from logged import publisher, signed
from pymerkle import InmemoryTree
from sqlalchemy import text

from ledger import MECHANISM, databases, fill
from terrine_protocol import transparency
from terrine_protocol.transparency import WIDTH, Checkpoint, Note, Tile, Tiles
from terrine_server.ledger import Ledger
from terrine_server.owner.checkpoints import Publisher

STUDENTS, ROUNDS, SECONDS = 8, 1, 1.0
"""A slice has so many rounds of the publisher, one after each second; a server waits for five."""
SHARE = 0.95
"""Charging with the log must reach this share of charging without."""


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=60, help="slices without the log, and with it")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="only this one")
    options = parser.parse_args()
    if options.entries < WIDTH:
        parser.error(f"--entries must be at least {WIDTH}, one full tile")
    peers(options.entries)
    met = True
    for kind in [options.database] if options.database else ["sqlite", "postgresql"]:
        with databases(kind) as (url, empty):
            grow(kind, url, options.entries)
            met = charging(kind, empty, options.pairs) and met
    return met


def peers(entries: int) -> None:
    given = [hashlib.sha256(b"%d" % n).digest() for n in range(entries)]
    hashes = seconds(lambda: [hashlib.sha256(b"\0" + e).digest() for e in given + given])
    ours = seconds(lambda: transparency.root_of(map(transparency.leaf_hash, given)))
    tree = InmemoryTree(algorithm="sha256")
    theirs = seconds(lambda: (tree.append_entries(given), tree.get_root()))
    print(f"{entries:,} entries in memory, no database")
    for name, taken in (("SHA-256 alone", hashes), ("this tree", ours), ("pymerkle", theirs)):
        print(f"  {name:<16}{taken:8.2f} s   {entries / taken:>12,.0f} per second")


def grow(kind: str, url: str, entries: int) -> None:
    ledger = open_ledger(url)
    fill(url, open_project(ledger, entries + 10_000, MECHANISM), entries)
    early = entries // 3
    size = 0

    def grown() -> None:
        nonlocal size
        size = ledger.grow_tree()

    began = time.process_time()
    taken = seconds(grown)
    worked = time.process_time() - began
    print(
        f"{kind}: {size:,} leaves grown in {taken:.1f} s, {size / taken:,.0f} per second; in "
        f"{worked:.1f} s of this process's, {size / worked:,.0f} per second"
    )
    root, before = ledger.tree_root(size), ledger.tree_root(early)
    signing = seconds(lambda: publisher(ledger).round())
    print(f"  a round that finds nothing new, and signs: {signing * 1e3:.1f} ms")
    full = sum(-(-size // 256**level) for level in range(1, 4) if size >= 256 ** (level - 1))
    print(
        f"  tiles: {32 * sum(size // 256**level for level in range(4)):,} bytes of hashes in "
        f"{full:,}, and {34 * size:,} of entries"
    )
    fetched: list[tuple[Tile, int]] = []

    def fetch(tile: Tile) -> bytes:
        data = ledger.tile(tile)
        fetched.append((tile, len(data)))
        return data

    tiles = Tiles(size, fetch)
    path = transparency.prove_inclusion(size // 2, size, tiles.perfect)
    note = signed(size, root)
    print(
        f"  an inclusion proof: {len(path)} hashes, {32 * len(path):,} bytes, with its checkpoint "
        f"{len(note) + 45 * len(path):,}; from {len(fetched)} tiles, "
        f"{sum(length for _, length in fetched):,} bytes"
    )
    middle = Tile(0, (size // WIDTH - 1) // 2)
    one = statistics.median(seconds(lambda: ledger.tile(middle)) for _ in range(50))
    print(f"  a full tile from the database: {one * 1e3:.2f} ms")

    def from_early() -> None:
        proof = transparency.prove_consistency(early, size, Tiles(size, ledger.tile).perfect)
        transparency.check_consistency(early, size, before, root, proof)
        assert Checkpoint.parse(Note.parse(note).text).root == root

    print(f"  verified from a checkpoint of {early:,} leaves in {seconds(from_early) * 1e3:.1f} ms")
    ledger._engine.dispose()


def charging(kind: str, url: str, pairs: int) -> bool:
    """Charge with the log and without, in many short slices: others may use the machine, too."""
    ledger = open_ledger(url)
    project = open_project(ledger, 5_000_000, MECHANISM).id
    signs, processor = publisher(ledger), Processor(ledger)
    charge_for(ledger, project, "warm", processor, signs)
    rates, costs = [], []
    for pair in range(pairs):
        slices: dict[bool, Slice] = {}
        for logged in (False, True) if pair % 2 == 0 else (True, False):
            name = f"{pair} {logged}"
            slices[logged] = charge_for(ledger, project, name, processor, signs if logged else None)
            signs.round()  # what a slice leaves is not the next one's to log
        rates.append((slices[False].rate, slices[True].rate))
        costs.append((slices[False].processor, slices[True].processor))
    print(f"  charging, {STUDENTS} students, {pairs} pairs of {ROUNDS * SECONDS:g} s:")
    ratio = compared("charges per second", rates)
    compared("microseconds of processor for a charge", costs)
    print(f"    target: {SHARE} x of the charges at least, with the log")
    ledger._engine.dispose()
    return ratio >= SHARE


def compared(what: str, pairs: Sequence[tuple[float, float]]) -> float:
    """Print medians, and the median ratio with an interval that misses it in 5 % of cases at most.

    The interval is between two pairs' ratios: how many are below the median is binomial.
    """
    ratios = sorted(logged / without for without, logged in pairs)
    count = len(ratios)
    below = 0
    while 2 * sum(math.comb(count, k) for k in range(below + 1)) <= 0.05 * 2**count:
        below += 1
    low, high = ratios[max(below - 1, 0)], ratios[count - max(below, 1)]
    without, logged = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(ratios)
    print(
        f"    {what}: {without:,.0f} without the log, {logged:,.0f} with it; "
        f"{ratio:.3f} x ({low:.3f} to {high:.3f})"
    )
    return ratio


@dataclass(frozen=True)
class Slice:
    """What was measured: charges per second, and microseconds of processor for each."""

    rate: float
    processor: float


def charge_for(
    ledger: Ledger, project: int, name: str, processor: Processor, signs: Publisher | None
) -> Slice:
    """Let students ask at the same time; with `signs`, a round after each second, the last, too."""
    stop, counts = threading.Event(), [0] * STUDENTS

    def student(number: int) -> None:
        while not stop.is_set():
            ledger.charge(project, [answered(f"{name} {number} {counts[number]}")])
            counts[number] += 1

    threads = [threading.Thread(target=student, args=(n,)) for n in range(STUDENTS)]
    used, start = processor.seconds(), time.perf_counter()
    for thread in threads:
        thread.start()
    for _ in range(ROUNDS):
        time.sleep(SECONDS)
        if signs is not None:
            signs.round()
    stop.set()
    for thread in threads:
        thread.join()
    taken, used = time.perf_counter() - start, processor.seconds() - used
    return Slice(sum(counts) / taken, used / sum(counts) * 1e6)


class Processor:
    """Processor time that this process and the database's server have used, in seconds."""

    def __init__(self, ledger: Ledger) -> None:
        self._server: str | None = None
        if ledger._engine.dialect.name != "sqlite":
            with ledger._engine.connect() as connection:
                backend = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            self._server = _status(str(backend))[1]

    def seconds(self) -> float:
        used = time.process_time()
        if self._server is None:
            return used
        ticks = 0
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit():
                    status = _status(path.name)
                    if self._server in (path.name, status[1]):
                        ticks += sum(map(int, status[11:13]))
                    if self._server == path.name:
                        ticks += sum(map(int, status[13:15]))  # of its children that have ended
        return used + ticks / os.sysconf("SC_CLK_TCK")


def _status(process: str) -> list[str]:
    """The fields of /proc/PID/stat after the name: the first is the state, then the parent."""
    return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
