"""Simulate ledgers for as many operations as wanted, each world with a seed of its own.

    python tests/simulation/run.py --operations 1000000 --seed 0

Prints what happened, and ends with the first seed that fails; the same seed fails again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

WORLD = 5_000
"""Operations of one world."""


def world(seed: int, operations: int) -> tuple[int, Counter[str], float]:
    """Simulate one world; return its seed, what happened how often, and its hours."""
    from support.simulated import simulate

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        made = simulate(Path(directory, "terrine.sqlite"), seed, operations)
    hours = (made.now - made.began).total_seconds() / 3600
    return seed, Counter(made.counts) + Counter(made.judge.replies), hours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=1_000_000, help="in all worlds")
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    sizes = [WORLD] * (given.operations // WORLD) + [given.operations % WORLD]
    worlds = [(given.seed + i, size) for i, size in enumerate(sizes) if size]
    total, hours, began = Counter[str](), 0.0, time.monotonic()
    with ProcessPoolExecutor(given.processes) as pool:
        for done in as_completed([pool.submit(world, *each) for each in worlds]):
            try:
                _, counts, simulated = done.result()
            except AssertionError as failed:
                pool.shutdown(cancel_futures=True)
                sys.exit(f"FAILED: {failed}")
            total, hours = total + counts, hours + simulated
            print(f"\r{total['done']:,} of {given.operations:,} operations", end="", flush=True)
    minutes = (time.monotonic() - began) / 60
    happened = ", ".join(f"{count:,} {what}" for what, count in total.most_common())
    print(
        f"\n{hours:,.0f} simulated hours in {minutes:.1f} minutes: {happened}. Nothing was wrong."
    )


if __name__ == "__main__":
    main()
