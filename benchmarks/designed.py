"""A schema alone beside a real public pool: the same private rows, ε and test rows, by commands.

    python benchmarks/designed.py adult=DIRECTORY nassCDS diamonds --epsilon 1,0.1 --seeds 5

The tables are those of `datasets.py`. Adult's schema is as its documentation has it
(benchmarks/adult-schema.json). That of a table out of a package is proposed from its public rows,
which a declared one would not need; nobody asks these.

For each, it prints AUC, of two classes, balanced accuracy, and the balanced accuracy of the best
threshold, of students that learn from `quickstart --public POOL` and from `quickstart --schema`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from commands import Predicted, Refused, check, open_project, run
from datasets import DealtFiles, TableSource, find_sources
from terrine_models.data.arrays import Dataset
from terrine_models.tables.loading import load_table, read_schema

CUTS = np.linspace(0.02, 0.98, 97)
"""Shares of the rows that are predicted as the first class, for the best threshold."""


@dataclass(frozen=True)
class Found:
    """Figures of one student."""

    auc: float
    balanced: float
    best: float
    """Balanced accuracy with the best threshold; of more than two classes, with its own."""


def main() -> None:
    """Compare, and print a line for each table, ε and way to ask."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("data", nargs="*", help="NAME or NAME=PATH, as datasets.py has them")
    parser.add_argument("--epsilon", default="1,0.3,0.1")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if not given.data:
        print("Skipped: no data were named. See the top of benchmarks/designed.py.")
    for name, source in find_sources(given.data).items():
        if not isinstance(source, TableSource):
            parser.error(f"{name} is not a table.")
        for epsilon in map(float, given.epsilon.split(",")):
            found: dict[str, list[Found]] = {}
            for seed in range(given.seeds):
                with tempfile.TemporaryDirectory(prefix="designed-") as place:
                    made = source.deal(np.random.default_rng(seed)).write(name, Path(place))
                    for way, student in compare(made, epsilon):
                        found.setdefault(way, []).append(student)
            for way, students in found.items():
                print(f"{name}, ε = {epsilon:g}, {way}: {summarize(students)}", flush=True)


def summarize(students: list[Found]) -> str:
    """Return means, and their standard errors, over the seeds."""
    said = []
    for name in ("auc", "balanced", "best"):
        values = np.array([getattr(each, name) for each in students])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        said.append(f"{name} {values.mean():.4f} ± {error:.4f}")
    return ", ".join(said)


def compare(made: DealtFiles, epsilon: float) -> Iterator[tuple[str, Found]]:
    """Yield what students are by a real pool, and by a schema alone."""
    place = made.private.parent
    schema = place / "schema.json"
    if made.private.stem == "adult":
        shutil.copy(Path(__file__).with_name("adult-schema.json"), schema)
    else:
        propose = ("ensemble", "schema", made.pool.name, *made.options, "--out", schema.name)
        check(run(place, {}, *propose))
    tested = load_table(made.tested, read_schema(schema), note=lambda text: None)
    asked = ("--public", made.pool.name, *made.options)
    yield "real pool", learn(made, "real", asked, epsilon, tested)
    yield "schema alone", learn(made, "alone", ("--schema", schema.name), epsilon, tested)


def learn(
    made: DealtFiles, data: str, asked: tuple[str, ...], epsilon: float, tested: Dataset
) -> Found:
    """Open a project, train a student of it, and judge it on the tested rows."""
    opened = open_project(made.private, *asked, "--epsilon", f"{epsilon:g}", data=data)
    if isinstance(opened, Refused):
        raise SystemExit(f"quickstart declined: {opened.said}")
    with opened.serve():
        opened.train_student()
    return judge(opened.predict(made.tested, tested.classes), tested)


def judge(found: Predicted, tested: Dataset) -> Found:
    """Return the figures of what a student said of the tested rows."""
    labels = tested.labels
    balanced = float(balanced_accuracy_score(labels, found.said))
    if found.shares is None:
        return Found(float("nan"), balanced, balanced)
    auc = float(roc_auc_score(labels, found.shares))
    return Found(auc, balanced, best_cut(found.shares, labels))


def best_cut(second: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the balanced accuracy of the best threshold."""
    return max(
        float(balanced_accuracy_score(labels, second > cut)) for cut in np.quantile(second, CUTS)
    )


if __name__ == "__main__":
    main()
