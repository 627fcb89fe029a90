"""Speed of the transparency log: growing it, its tiles and proofs, and what it takes from charging.

Growing is shown beside pymerkle's tree in memory, which keeps nothing, and beside SHA-256 alone,
which nothing can beat. Charging with a process that grows and signs the tree each second is shown
beside charging without. All are measured in one run, on SQLite and on PostgreSQL.

    python benchmarks/transparency.py [--entries 1000000] [--database sqlite|postgresql]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from books import answered, open_ledger, open_project
from logged import publisher, signed
from pymerkle import InmemoryTree

from ledger import MECHANISM, databases, fill
from terrine_protocol.transparency import trees
from terrine_protocol.transparency.checkpoints import Checkpoint
from terrine_protocol.transparency.notes import Note
from terrine_protocol.transparency.tiles import Tile, Tiles
from terrine_server.ledger import Ledger

SLICES, SLICE_SECONDS, STUDENTS = 6, 3.0, 8
SHARE = 0.95
"""Charging with the log must reach this share of charging without."""


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="only this one")
    options = parser.parse_args()
    peers(options.entries)
    met = True
    for kind in [options.database] if options.database else ["sqlite", "postgresql"]:
        with databases(kind) as (url, empty):
            grow(kind, url, options.entries)
            met = charging(kind, empty) and met
    return met


def peers(entries: int) -> None:
    given = [hashlib.sha256(b"%d" % n).digest() for n in range(entries)]
    hashes = seconds(lambda: [hashlib.sha256(b"\0" + e).digest() for e in given + given])
    ours = seconds(lambda: trees.root_of(map(trees.leaf_hash, given)))
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
    path = trees.prove_inclusion(size // 2, size, tiles.perfect)
    note = signed(size, root)
    print(
        f"  an inclusion proof: {len(path)} hashes, {32 * len(path):,} bytes, with its checkpoint "
        f"{len(note) + 45 * len(path):,}; from {len(fetched)} tiles, "
        f"{sum(length for _, length in fetched):,} bytes"
    )
    one = statistics.median(seconds(lambda: ledger.tile(Tile(0, 7))) for _ in range(50))
    print(f"  a full tile from the database: {one * 1e3:.2f} ms")

    def from_early() -> None:
        proof = trees.prove_consistency(early, size, Tiles(size, ledger.tile).perfect)
        trees.check_consistency(early, size, before, root, proof)
        assert Checkpoint.parse(Note.parse(note).text).root == root

    print(f"  verified from a checkpoint of {early:,} leaves in {seconds(from_early) * 1e3:.1f} ms")
    ledger._engine.dispose()


def charging(kind: str, url: str) -> bool:
    ledger = open_ledger(url)
    project = open_project(ledger, 5_000_000, MECHANISM).id
    rates: dict[bool, list[float]] = {False: [], True: []}
    for slice in range(2 * SLICES):
        rates[slice % 2 == 1].append(rate(ledger, project, f"{slice}", logged=slice % 2 == 1))
    without, with_log = (statistics.median(rates[logged]) for logged in (False, True))
    pairs = sorted(b / a for a, b in zip(rates[False], rates[True], strict=True))
    print(
        f"  charges per second, {STUDENTS} students: {without:,.0f} without the log, "
        f"{with_log:,.0f} with it: {with_log / without:.2f} x (target: {SHARE} x at least; "
        f"pairs {pairs[0]:.2f} to {pairs[-1]:.2f})"
    )
    ledger._engine.dispose()
    return with_log >= SHARE * without


def rate(ledger: Ledger, project: int, name: str, logged: bool) -> float:
    """Charges per second of students who ask at the same time."""
    stop, counts = threading.Event(), [0] * STUDENTS

    def student(number: int) -> None:
        while not stop.is_set():
            ledger.charge(project, [answered(f"{name} {number} {counts[number]}")])
            counts[number] += 1

    def owner() -> None:
        signs = publisher(ledger)
        while not stop.wait(1.0):
            signs.round()

    threads = [threading.Thread(target=student, args=(n,)) for n in range(STUDENTS)]
    threads += [threading.Thread(target=owner)] if logged else []
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(SLICE_SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
