"""How long a table takes to be read and encoded, beside pyarrow alone; and what it takes of memory.

    python benchmarks/tables.py                      # time, reads, functions on the way of a row
    python benchmarks/tables.py --memory [ROWS ...]  # beside pandas, which holds the table whole

Of time: 500,000 rows of two columns of numbers, a category and a label; the quickest of some runs
by turns. Of memory: the peak of a process of its own (Linux), less what it had before it read, of
20 columns of numbers, 8 of categories, people and a label. All are drawn by a seed.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow.csv

WORDS = np.array([f"category {i}" for i in range(12)])
NAMES = [*(f"n{i}" for i in range(20)), *(f"c{i}" for i in range(8)), "patient", "ill"]
BLOCK = 50_000
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int, nargs="*", metavar="ROWS")
    parser.add_argument("--measure", nargs=3, metavar=("WHAT", "TABLE", "FOLDER"))
    given = parser.parse_args()
    if given.measure:
        measure(given.measure[0], Path(given.measure[1]), Path(given.measure[2]))
        return
    with tempfile.TemporaryDirectory() as home:
        if given.memory is None:
            timed(Path(home))
            return
    print("rows        text   encoded    " + "  ".join(f"{what:>10}" for what in WORK) + "   (MiB)")
    for rows in given.memory or [50_000, 200_000]:
        with tempfile.TemporaryDirectory() as home:
            figures(rows, Path(home))


def timed(home: Path, rows: int = 500_000, runs: int = 9) -> None:
    """Print how long the same file takes pyarrow, and Terrine; and how that comes."""
    from terrine_models.tables.loading import load_table
    from terrine_models.tables.roles import propose_schema
    from terrine_protocol.tables.encoding import encode_table

    random, table = np.random.default_rng(0), home / "flights.csv"
    columns: tuple[Any, ...] = (
        random.normal(50, 20, rows).round(3).tolist(),
        random.integers(0, 24, rows).tolist(),
        random.choice(["AA", "B6", "DL", "UA"], rows).tolist(),
        random.choice(["no", "yes"], rows).tolist(),
    )
    with table.open("w") as file:
        file.write("wind,hour,carrier,late\n")
        file.writelines(",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))
    schema = propose_schema(table, label="late").schema
    work: dict[str, Callable[[], object]] = {
        "pyarrow.csv.read_csv": lambda: pyarrow.csv.read_csv(table),
        "encode_table": lambda: encode_table(table, schema),
        "load_table, with labels and digest": lambda: load_table(table, schema),
        "propose_schema": lambda: propose_schema(table, label="late"),
    }
    seconds = {what: min(times) for what, times in by_turns(work, runs).items()}
    peer = seconds["pyarrow.csv.read_csv"]
    print(f"{rows:,} rows of {len(columns)} columns, {table.stat().st_size / MIB:.1f} MiB")
    for what, found in seconds.items():
        print(f"{what:36} {found:6.3f} s  {found / peer:5.1f} times pyarrow's")
    for what in list(work)[1:]:
        opened, share = reads(work[what], table)
        print(f"{what:36} opens the file {opened} times and reads {share:.2f} of it")
    every, of_rows = functions(lambda: load_table(table, schema))
    print(f"load_table calls {every} functions of terrine_models, {of_rows} of them for each block")


def by_turns(work: dict[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {what: [] for what in work}
    for _ in range(runs):
        for what, do in work.items():
            start = time.perf_counter()
            do()
            found[what].append(time.perf_counter() - start)
    return found


def reads(work: Callable[[], object], table: Path) -> tuple[int, float]:
    """How often the file is opened, and what share of its bytes is read."""
    from terrine_protocol.files import open_regular_file as usual
    from terrine_protocol.tables import files

    found = [0, 0]

    class Counted(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            count = super().readinto(buffer) or 0
            found[1] += count
            return count

    def opened(path: Path) -> io.BufferedReader:
        found[0] += 1
        return io.BufferedReader(Counted(path))

    for module in (files, files):
        setattr(module, "opened", opened)  # noqa: B010 - no name that they export
    try:
        work()
    finally:
        for module in (files, files):
            setattr(module, "opened", usual)  # noqa: B010
    return found[0], found[1] / table.stat().st_size


def functions(work: Callable[[], object]) -> tuple[int, int]:
    """How many functions of Terrine are called at all, and for each block (comprehensions
    and lambdas left out). pyarrow reads in a thread of its own, which is followed, too."""
    from terrine_protocol.tables import files

    calls: dict[str, int] = {}

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        ours = "/terrine_models/" in code.co_filename or "/terrine_protocol/" in code.co_filename
        if event == "call" and ours and "<" not in code.co_name:
            name = f"{code.co_filename} {code.co_qualname}"
            calls[name] = calls.get(name, 0) + 1

    def read(self: files.TextFile, size: int = -1) -> bytes:
        sys.setprofile(count)
        return before(self, size)

    before, block = files.TextFile.read, files.BLOCK_BYTES
    files.TextFile.read = read  # type: ignore[method-assign]
    try:
        found = []
        for size in (block, block // 4):
            calls.clear()
            files.BLOCK_BYTES = size
            sys.setprofile(count)
            work()
            sys.setprofile(None)
            found.append(dict(calls))
    finally:
        files.TextFile.read, files.BLOCK_BYTES = before, block  # type: ignore[method-assign]
    few, many = found
    return len(many), sum(many[name] > few.get(name, 0) for name in many)


def figures(rows: int, home: Path) -> None:
    """Print the peaks of all work on a table of some rows."""
    table = home / "table.csv"
    draw(table, rows)
    found = {}
    for what in WORK:
        command = [sys.executable, __file__, "--measure", what, str(table), str(home)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[what] = int(out)
    width = 20 + 8 * (len(WORDS) + 1)
    sizes = (table.stat().st_size // MIB, rows * width * 4 // MIB)
    peaks = "  ".join(f"{found[what]:10,}" for what in WORK)
    print(f"{rows:9,}  {sizes[0]:5,}   {sizes[1]:7,}    {peaks}", flush=True)


def draw(path: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join(NAMES) + "\n")
        for start in range(0, rows, BLOCK):
            some = min(BLOCK, rows - start)
            columns = [column.tolist() for column in random.normal(50, 20, (20, some)).round(4)]
            columns += [column.tolist() for column in WORDS[random.integers(0, 12, (8, some))]]
            columns.append([f"P{i:08d}" for i in random.integers(0, rows // 3, some)])
            columns.append(["no" if i else "yes" for i in random.integers(0, 2, some)])
            file.writelines(",".join(map(str, row)) + "\n" for row in zip(*columns, strict=True))


def measure(what: str, table: Path, home: Path) -> None:
    import pandas  # noqa: F401 - before it is measured
    import torch  # noqa: F401

    import terrine_protocol.tables.files  # noqa: F401

    before = memory("VmRSS")
    WORK[what](table, home)
    print((memory("VmHWM") - before) // 1024)


def memory(name: str) -> int:
    """In KiB, by the kernel."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise SystemExit("memory is measured on Linux alone")
    return int(found[1])


def propose(table: Path, home: Path) -> None:
    from terrine_models.tables.roles import propose_schema

    schema = propose_schema(table, label="ill").schema.model_copy(update={"fitted_on": None})
    (home / "schema.json").write_text(schema.model_dump_json())


def deal(table: Path, home: Path) -> None:
    from terrine_models.tables.loading import Table, read_schema
    from terrine_models.teachers.shards import split

    split(Table(table, read_schema(home / "schema.json")), home / "shards", 250)


def train(table: Path, home: Path) -> None:
    from terrine_models.tables.loading import load_table, read_schema
    from terrine_models.teachers.training import train_ensemble

    private = load_table(table, read_schema(home / "schema.json"))
    train_ensemble(private, home / "ensemble", name="large", teachers=250)


def hold(table: Path, home: Path) -> None:
    import pandas as pd

    pd.read_csv(table, dtype=str)


WORK: dict[str, Callable[[Path, Path], None]] = {
    "schema": propose,
    "split": deal,
    "train": train,
    "pandas": hold,
}

if __name__ == "__main__":
    main()
