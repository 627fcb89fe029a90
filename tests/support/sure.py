"""`make test-sure`: show that no test fails by chance, run by run, until one does.

Pieces, as `PIECE=RUNS`: `statistical` are the tests of the operating system's randomness, `idle` is
`make test`, and `busy` is `make test` beside two processes that do nothing but compute. The log of
a run that fails is kept, with the seeds that it says; its name is printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LOGS = REPOSITORY / "build" / "sure"
USUAL = ["statistical=200", "idle=10", "busy=5"]
BY_DAY = "not nightly"
MARKED = {"statistical": f"statistical and {BY_DAY}", "idle": BY_DAY, "busy": BY_DAY}
PYTEST = [sys.executable, "-m", "pytest", "-q", "-n", "4", "--dist", "worksteal"]
BUSY = 2
COMPUTE = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""Until whoever started it has ended, in whatever way."""


def piece(text: str) -> tuple[str, int]:
    """Parse PIECE=RUNS."""
    name, _, runs = text.partition("=")
    if name not in MARKED or not runs.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected {'|'.join(MARKED)}=RUNS")
    return name, int(runs)


def files(name: str) -> list[str]:
    """Return the files of a piece: all, or the few with a statistical test; no others are read."""
    if name != "statistical":
        return []
    tests = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    return [str(path) for path in tests if "mark.statistical" in path.read_text()]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processors busy."""
    command = [sys.executable, "-c", COMPUTE, str(os.getpid())]
    started = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(name: str, number: int, runs: int) -> int:
    """Run the tests of a piece once, and say how it went. Returns pytest's exit code."""
    log = LOGS / f"{name}-{number}.log"
    command = [*PYTEST, "-m", MARKED[name], *files(name)]
    began = time.monotonic()
    with log.open("w") as output, busy(BUSY if name == "busy" else 0):
        code = subprocess.run(command, cwd=REPOSITORY, stdout=output, stderr=output).returncode
    last = (log.read_text().splitlines() or ["no output"])[-1]
    took = time.monotonic() - began
    print(f"{name} {number} of {runs}: exit code {code}, {took:.0f} s: {last}", flush=True)
    if code == 0:
        log.unlink()
    else:
        print(f"failed; what it said is in {log.relative_to(REPOSITORY)}", flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "pieces", nargs="*", type=piece, help=f"PIECE=RUNS; otherwise {' '.join(USUAL)}"
    )
    given = parser.parse_args().pieces
    LOGS.mkdir(parents=True, exist_ok=True)
    for name, runs in given or map(piece, USUAL):
        for number in range(1, runs + 1):
            if code := run(name, number, runs):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
