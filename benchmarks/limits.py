"""What limits a student of noisy votes: the teachers, the noise, or what it learns with.

Data, teachers and students are those of `make reproduce`, and its folds and runs: each
partitions the private records anew and trains its own teachers. They vote; then the server's
mechanism draws noise for each ε (seeded here, unlike a service's). Students learn from true labels
and from the winners of the votes, as if these were counts without noise; from the counts without
noise; and from noisy counts. Where they are kernel students, which learn from what a regression
makes of counts, the same model without the regression stands beside them; beside those that go by
neighbours, the same of labels as they are. Each fold is judged by a student that has not seen it.
`±` is the interval of a new run, as in `make reproduce`; true labels are the same in every run.

    python benchmarks/limits.py DATA DIR [--epsilon 0.3 1 3] [--runs 3] [--out DIR]

`--out` is where `make reproduce` keeps teachers: those that are there are not trained again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from terrine_experiments.interval import shown
from terrine_experiments.owner import trained
from terrine_experiments.setup import Part, numbered, parts, public_part
from terrine_experiments.sources import Name, Source, load
from terrine_models.students.answers import CERTAIN, true_counts
from terrine_models.students.models import Student
from terrine_models.students.neighbours import suits
from terrine_models.students.noisy_counts import CountedStudents
from terrine_models.teachers.ensemble import Ensemble
from terrine_server.planning.counts import sigma_for_rows
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.parameters import MIN_SIGMA

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Fold:
    """The students that are judged by one fold; what the inputs alone say is computed once."""

    source: Source
    part: Part
    students: CountedStudents

    def right(self, counts: Ints, teachers: int, sigma: float) -> int:
        """How many of the fold a student of counts [N, m] has right."""
        made = self.students.train(
            counts[self.part.seen],
            teachers=teachers,
            sigma=sigma,
            matches_prior=self.source.test.encoding is not None,
            training=self.source.training,
        )
        return self._right(made.student)

    def right_by_kernel(self, labels: Ints) -> int:
        """How many a kernel student of labels [N] has right, without the regression."""
        return self._right(self.students.kernels.train(labels[self.part.seen], again=False))

    def right_by_neighbours(self, labels: Ints) -> int:
        """How many a student has right that goes by neighbours with labels [N]."""
        return self._right(self.students.neighbours.train(labels[self.part.seen]))

    def _right(self, student: Student) -> int:
        test, tested = self.source.test, self.part.tested
        return int((student.predict(test.inputs[tested]) == test.labels[tested]).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=get_args(Name))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[0.3, 1.0, 3.0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    source = load(options.data, options.directory)
    test = source.test
    name = f"{source.name}-{numbered(source.config.kind, source.teachers)}"
    home = (options.out or Path(f"reproduce-{source.name}")) / "ensembles" / name
    votes = [voted(source, home / f"run-{run}", run) for run in range(options.runs)]
    n, classes = source.teachers, len(test.classes)
    rows = np.arange(len(test))
    winners = [counts.argmax(axis=1) for counts in votes]

    def show(what: str, *found: float) -> None:
        figure = shown(found, len(test)) if len(found) > 1 else f"{found[0]:.2%}"
        print(f"{what:50} {figure}", flush=True)

    means = [float(counts[rows, test.labels].mean()) / n for counts in votes]
    show(f"one of {n:,} teachers, in the mean", *means)
    show("plurality", *(float((won == test.labels).mean()) for won in winners))

    def learn(part: Part) -> CountedStudents:
        x = test.inputs[part.seen]
        return CountedStudents(x, inputs=test.spec, classes=test.classes, encoding=test.encoding)

    folds = [Fold(source, part, learn(part)) for part in parts("folds", source)]

    def accuracy(counts: Ints, teachers: int, sigma: float) -> float:
        return sum(fold.right(counts, teachers, sigma) for fold in folds) / len(test)

    auto = source.training.method == "auto"
    by_neighbours = auto and suits(test.spec, classes, min(len(fold.part.seen) for fold in folds))

    for what, taught in (("true labels", [test.labels]), ("plurality", winners)):
        if by_neighbours:
            right = [sum(fold.right_by_neighbours(labels) for fold in folds) for labels in taught]
            show(f"neighbours of the {what}, not averaged", *(r / len(test) for r in right))
        elif auto and len(test.spec.shape) > 1:
            right = [sum(fold.right_by_kernel(labels) for fold in folds) for labels in taught]
            show(f"kernel student of the {what}, no regression", *(r / len(test) for r in right))
        counts_of = (true_counts(labels, classes) for labels in taught)
        show(f"student of the {what}", *(accuracy(counts, 1, CERTAIN) for counts in counts_of))
    show("student of counts without noise", *(accuracy(counts, n, MIN_SIGMA) for counts in votes))
    for epsilon in options.epsilon:
        sigma = sigma_for_rows(len(test), n, classes, epsilon, source.delta)
        mechanism, found = NoisyVotes(n, classes, sigma), []
        for run, counts in enumerate(votes):
            noisy = mechanism.release(counts, entropy=np.random.default_rng(run).bytes).counts
            assert noisy is not None
            found.append(accuracy(noisy, n, sigma))
        show(f"student, ε = {epsilon:g}, noise of {sigma / n:.2f} shares", *found)


def voted(source: Source, teachers: Path, run: int) -> Ints:
    """Return the counts [N, m] of a run's teachers on all test inputs; train them if need be."""
    trained(source, public_part(source), teachers, run, Console(stderr=True))
    return Ensemble.load(teachers).votes(source.test.inputs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
