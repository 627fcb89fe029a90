"""Forests on UCI Adult: what 250 of them know, and how fast they vote beside scikit-learn.

The training file is private, the rows of the test file are asked, and every time is processor time
of one run, on the same forests: ours from the files of an ensemble, scikit-learn's
own `predict` on forests that it trained with the same seeds. Teachers that match their prior, and
heads, stand beside them.

    python benchmarks/forests.py [DIR] [--teachers 250] [--tune] [--compared 25]

It takes two to three minutes of one processor. DIR holds `adult.data` and `adult.test` (or .gz); by
default adult in TERRINE_SHARED_DATA, else in ../shared/data. `--tune` uses the training file alone,
as in adult.py.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier

from adult import Material, load
from terrine_models.features.maps import PublicData
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Forests, Heads
from terrine_models.teachers.manifests import Settings
from terrine_models.teachers.shards import partition_records
from terrine_models.teachers.training import train_ensemble
from terrine_models.teachers.trees import DEPTH

KINDS: dict[str, Settings] = {
    "forests": Forests(match_prior=False),
    "forests that match their prior": Forests(),
    "heads": Heads(),
}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    home = Path(os.environ.get("TERRINE_SHARED_DATA", default)) / "adult"
    parser.add_argument("data", nargs="?", type=Path, default=home)
    parser.add_argument("--teachers", type=int, default=250)
    parser.add_argument("--tune", action="store_true", help="use the training file alone")
    parser.add_argument("--compared", type=int, default=25, help="forests that scikit-learn asks")
    options = parser.parse_args()
    material = load(options.data, tune=options.tune)
    rows, teachers = len(material.pool), options.teachers
    print(f"{len(material.private):,} private records, {rows:,} rows asked, {teachers} teachers")
    took = {name: report(name, config, material, teachers) for name, config in KINDS.items()}
    compared = min(options.compared, teachers)
    peer = by_scikit_learn(material, teachers, compared)
    print(
        f"voting with all forests on all rows: {took['forests']:.0f} s; scikit-learn's predict: "
        f"{peer * teachers / compared:.0f} s, of {compared} of them in {peer:.1f} s"
    )


def report(name: str, config: Settings, material: Material, teachers: int) -> float:
    """Train, vote, and print how good and how fast it was. Returns the seconds of voting."""
    pool, public = material.pool, PublicData.declare("pool", material.pool.inputs)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "adult"
        started = time.process_time()
        train_ensemble(
            material.private,
            directory,
            name="adult",
            teachers=teachers,
            config=config,
            public=public,
        )
        trained = time.process_time() - started
        size = sum(file.stat().st_size for file in directory.iterdir()) / 2**20
        ensemble = Ensemble.load(directory)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    votes = ensemble.votes(pool.inputs)
    took = time.process_time() - started
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    started = time.process_time()
    ensemble.votes(pool.inputs[:1])
    one = time.process_time() - started
    right = votes[np.arange(len(votes)), pool.labels] / teachers
    print(
        f"{name:32} plurality {(votes.argmax(1) == pool.labels).mean():.2%}, a teacher "
        f"{right.mean():.2%}; training {trained:.0f} s, {size:.0f} MiB, voting {took:.1f} s, "
        f"one row {1000 * one:.0f} ms, {more:.0f} MiB more memory at the peak",
        flush=True,
    )
    return took


def by_scikit_learn(material: Material, teachers: int, compared: int) -> float:
    """Seconds in which scikit-learn's own forests vote on all rows."""
    data, x = material.private, np.asarray(material.pool.inputs, np.float32)
    shards, _ = partition_records(data, teachers, 0)
    took = 0.0
    for number, rows in enumerate(shards[:compared]):
        state = int(np.random.SeedSequence([0, number]).generate_state(1)[0])
        forest = RandomForestClassifier(Forests().trees, max_depth=DEPTH, random_state=state)
        forest.fit(data.inputs[rows], data.labels[rows])
        started = time.process_time()
        forest.predict(x)
        took += time.process_time() - started
    return took


if __name__ == "__main__":
    main()
