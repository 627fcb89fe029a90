"""Accuracy of students by method and seed, beside the plain model, and the time of each stage.

Labels are what recorded teachers would have given: their votes on MNIST's and Adult's test sets are
answered by Confident-GNMax with its real, exact noise, in the order in which a student would ask.
Then students are trained as `terrine student train` trains its last round. A line shows the method
that was asked for, the one that was returned, and its accuracy on held-out inputs, beside networks
trained by that method without any check, and on labels alone (the plain model).

`mnist-train` has true labels, on the first 10,000 training images: settings were tuned there.
`--students K` averages K networks. Data are read from TERRINE_SHARED_DATA, else from
../shared/data; what is missing there is left out.

    python benchmarks/students.py [--pool 4000] [--queries 500] [--seeds 3] [--data adult mnist]
                                  [--methods auto vat gan] [--steps 600] [--students 1]
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from teachers import SHARED
from terrine_models.data.arrays import Dataset, load_idx
from terrine_models.students.answers import Answers
from terrine_models.students.asking import asking_order
from terrine_models.students.methods import METHODS, methods
from terrine_models.students.selection import choose
from terrine_models.students.settings import Training
from terrine_models.students.task import Task
from terrine_models.tables.loading import load_table
from terrine_models.tables.roles import propose_schema
from terrine_server.privacy import VoteOutcome, build_mechanism

ADULT = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
)
AGREEMENT, SIGMA1, SIGMA2 = 0.7, 0.15, 0.1
"""Threshold and noise of Confident-GNMax, as shares of the teachers."""
HELD_OUT = 1000
DATA = {
    "adult": "adult_250_votes.npz",
    "mnist": "mnist_1000_votes.npz",
    "mnist-train": "mnist/train-images-idx3-ubyte.gz",
}
"""Where the votes are, or the images with true labels."""


@dataclass(frozen=True)
class Study:
    """Public inputs, what was bought for them, and inputs to measure accuracy on."""

    name: str
    public: NDArray[Any]
    labels: NDArray[np.int64]
    truth: NDArray[np.int64]
    test: Dataset
    """All inputs; the last HELD_OUT are held out."""

    def accuracy(self, predicted: NDArray[np.int64]) -> float:
        return float((predicted == self.test.labels[-HELD_OUT:]).mean())


class Stages:
    """Seconds between the lines that a training prints."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.times = [time.perf_counter()]

    def tell(self, line: str) -> None:
        self.names.append(line.partition(" ")[0].lower())
        self.times.append(time.perf_counter())

    def finish(self) -> str:
        self.times.append(time.perf_counter())
        spent = np.diff(self.times)[1:]
        return ", ".join(f"{n} {s:.1f} s" for n, s in zip(self.names, spent, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=int, default=4000, help="public inputs")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--unchecked", action="store_true", help="train networks without a check")
    parser.add_argument("--data", nargs="+", choices=DATA, default=["adult", "mnist"])
    parser.add_argument("--methods", nargs="+", choices=methods(), default=["auto", "vat"])
    options = parser.parse_args()
    home = Path(os.environ.get("TERRINE_SHARED_DATA", SHARED))
    for name in options.data:
        source = home / DATA[name]
        if not source.is_file():
            print(f"{name}: {source} is missing")
            continue
        if name == "mnist-train":
            everything = load_idx(source)
            inputs, labels = everything.inputs[:10_000], everything.labels[:10_000]
            data = replace(everything, inputs=inputs, labels=labels)
        else:
            data = adult(home) if name == "adult" else mnist(home)
        for seed in range(options.seeds):
            if name == "mnist-train":
                study = true_labels(name, data, options.pool, options.queries, seed)
            else:
                study = bought(name, data, source, options.pool, options.queries, seed)
            training = Training(steps=options.steps)
            report(study, options.methods, training, seed, checked_too=not options.unchecked)


def adult(home: Path) -> Dataset:
    path = home / "adult" / "adult.test.gz"
    return load_table(path, propose_schema(path, label="income", columns=ADULT).schema)


def mnist(home: Path) -> Dataset:
    return load_idx(home / "mnist" / "t10k-images-idx3-ubyte.gz")


def bought(name: str, data: Dataset, votes: Path, pool: int, queries: int, seed: int) -> Study:
    """Ask the first `queries` of `pool` inputs, and draw the answers."""
    with np.load(votes) as file:
        counts = file["counts"].astype(np.int64)
    teachers, classes = int(counts[0].sum()), len(data.classes)
    rule = build_mechanism(
        {
            "name": "confident_gnmax",
            "threshold": round(AGREEMENT * teachers),
            "sigma1": SIGMA1 * teachers,
            "sigma2": SIGMA2 * teachers,
        },
        teachers=teachers,
        classes=classes,
    )
    pool = min(pool, len(data) - HELD_OUT)
    rows = asking_order(data.inputs[:pool], data.spec, seed)[:queries]
    released = rule.release(counts[rows])
    answered = released.outcomes == VoteOutcome.ANSWERED
    labels = np.full(pool, -1)
    labels[rows[answered]] = released.labels[answered]
    return Study(name, data.inputs[:pool], labels, data.labels[:pool], data)


def true_labels(name: str, data: Dataset, pool: int, queries: int, seed: int) -> Study:
    """The true labels of the first `queries` of `pool` inputs."""
    pool = min(pool, len(data) - HELD_OUT)
    rows = asking_order(data.inputs[:pool], data.spec, seed)[:queries]
    labels = np.full(pool, -1)
    labels[rows] = data.labels[rows]
    return Study(name, data.inputs[:pool], labels, data.labels[:pool], data)


def report(
    study: Study, methods: list[str], training: Training, seed: int, *, checked_too: bool
) -> None:
    known = study.labels >= 0
    right = (study.labels == study.truth)[known].mean()
    most = np.bincount(study.labels[known]).max() / known.sum()
    print(
        f"{study.name}, seed {seed}: {known.sum():,} labels on {len(study.labels):,} "
        f"inputs, {right:.1%} right, {most:.1%} in one class"
    )
    task = Task(study.public, study.test.spec, study.test.classes, seed=seed)
    answers = Answers.of_labels(study.labels, len(task.classes))
    own = study.test.inputs[-HELD_OUT:]
    suited = [name for name in METHODS if METHODS[name].can(task)]
    for method in sorted({"ridge", "supervised", *methods}.intersection(suited)):
        began = time.perf_counter()
        student = METHODS[method](training).fit(task, answers)
        accuracy, seconds = study.accuracy(student.predict(own)), time.perf_counter() - began
        name = f"{method} alone, unchecked"
        print(f"  {name:34} {accuracy:7.2%}   {seconds:.1f} s", flush=True)
    for method in methods if checked_too else ():
        if method not in ("auto", *suited):
            continue
        stages = Stages()
        made = choose(task, answers, replace(training, method=method), tell=stages.tell)
        accuracy = study.accuracy(made.student.predict(own))
        tried = ", ".join(
            f"{each.method} {each.figures.accuracy.value:.1%}" for each in made.choice.judged
        )
        what = f"--method {method}: {made.choice.chosen}"
        print(f"  {what:34} {accuracy:7.2%}   {stages.finish()}; held-out labels: {tried}")


if __name__ == "__main__":
    main()
