"""What binned columns and matched priors do for teachers of tables, beside the columns as they are.

A third of each table is public, the rest is partitioned among the teachers; the plurality is
measured on the public third. Adult's training file is read from TERRINE_SHARED_DATA, else from
../shared/data; the other tables are drawn by scikit-learn, or by formulas.

    python benchmarks/table_features.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification, make_hastie_10_2

from datasets import SHARED
from terrine_experiments.sources import load
from terrine_models.data.arrays import Dataset, InputSpec, row_digests
from terrine_models.features.maps import PublicData
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads
from terrine_models.teachers.training import train_ensemble

ROWS = 12_000
Table = tuple[NDArray[Any], NDArray[np.int64]]


def main() -> None:
    print(f"{'':44} teachers   columns      bins")
    for name, (x, y) in tables():
        for teachers in (250, 1000) if name == "Adult" else (100, 400):
            columns, bins = (plurality(x, y, teachers, Heads(bins=b)) for b in (False, True))
            print(f"{name:44} {teachers:8}   {columns:7.2%}   {bins:7.2%}", flush=True)


def tables() -> Iterator[tuple[str, Table]]:
    home = SHARED / "adult"
    if home.is_dir():
        data = load("adult", home).private
        yield "Adult", (data.inputs, data.labels)
    else:
        print(f"{home} is missing: no Adult")
    x, y = make_hastie_10_2(ROWS, random_state=1)
    yield "a circle in ten dimensions", (x, (y > 0).astype(np.int64))
    about = {"n_informative": 8, "n_redundant": 4, "class_sep": 0.8, "random_state": 1}
    yield "two classes", make_classification(ROWS, 20, weights=[0.75], **about)
    yield "four classes", make_classification(ROWS, 20, n_classes=4, **about)
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 12))
    odds = np.exp(0.7 * x @ random.normal(size=12) - 1.5)
    y = (random.random(ROWS) < odds / (1 + odds)).astype(np.int64)
    yield "logistic model of the columns", (x, y)
    yield "logistic model of their logarithms", (np.exp(1.5 * x), y)


def plurality(x: NDArray[Any], y: NDArray[np.int64], teachers: int, config: Heads) -> float:
    """Return the accuracy of the plurality on a public third of a table."""
    order = np.random.default_rng(0).permutation(len(x))
    low, high = x.min(axis=0), x.max(axis=0)
    unit = ((x - low) / np.maximum(high - low, 1e-9)).astype(np.float32)
    public, private = np.split(order, [len(x) // 3])
    known = np.isin(row_digests(unit[private]), row_digests(unit[public]))
    private = private[~known]
    spec = InputSpec(shape=(x.shape[1],), dtype="float32", low=0, high=1)
    names = tuple(map(str, range(int(y.max()) + 1)))
    data = Dataset(unit[private], y[private].astype(np.int64), names, spec, name="private")
    pool = PublicData.declare("pool", unit[public])
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "table"
        train_ensemble(data, directory, name="table", teachers=teachers, config=config, public=pool)
        winners = Ensemble.load(directory).votes(unit[public]).argmax(axis=1)
    return float((winners == y[public]).mean())


if __name__ == "__main__":
    main()
