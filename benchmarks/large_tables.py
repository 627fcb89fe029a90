"""What reading a table takes of memory, as it gets longer, beside pandas, which holds it whole.

Each figure is the peak of a process of its own (Linux), less what it had before it read. The table
has 20 columns of numbers, 8 of categories, people and a label, and is drawn by a seed.

    python benchmarks/large_tables.py [ROWS ...]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

WORDS = np.array([f"category {i}" for i in range(12)])
NAMES = [*(f"n{i}" for i in range(20)), *(f"c{i}" for i in range(8)), "patient", "ill"]
BLOCK = 50_000
MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="*", default=[50_000, 200_000])
    parser.add_argument("--measure", nargs=3, metavar=("WHAT", "TABLE", "FOLDER"))
    given = parser.parse_args()
    if given.measure:
        measure(given.measure[0], Path(given.measure[1]), Path(given.measure[2]))
        return
    print("rows        text   encoded    " + "  ".join(f"{what:>10}" for what in WORK) + "   (MiB)")
    for rows in given.rows:
        with tempfile.TemporaryDirectory() as home:
            figures(rows, Path(home))


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

    import terrine_models.tables.roles
    import terrine_models.teachers.splitting
    import terrine_models.teachers.training  # noqa: F401

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
    from terrine_models.tables.loading import open_table, read_schema
    from terrine_models.teachers.splitting import split

    split(open_table(table, read_schema(home / "schema.json")), home / "shards", 250)


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
