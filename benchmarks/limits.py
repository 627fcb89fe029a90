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
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.models import Student
from terrine_models.students.selection import choose
from terrine_models.students.settings import Training
from terrine_models.students.task import Task
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
    task: Task

    def right(self, counts: Ints, teachers: int, sigma: float) -> int:
        """How many of the fold a student of counts [N, m] has right."""
        answers = Answers.of_counts(
            counts[self.part.seen],
            teachers=teachers,
            sigma=sigma,
            matches_prior=self.source.test.encoding is not None,
        )
        return self._right(choose(self.task, answers, self.source.training).student)

    def right_by(self, method: str, labels: Ints) -> int:
        """How many a student of one method has right that learned from labels [N]."""
        answers = Answers.of_labels(labels[self.part.seen], len(self.task.classes))
        return self._right(METHODS[method](Training()).fit(self.task, answers))

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

    def learn(part: Part) -> Task:
        return Task(test.inputs[part.seen], test.spec, test.classes, test.encoding)

    folds = [Fold(source, part, learn(part)) for part in parts("folds", source)]

    def accuracy(counts: Ints, teachers: int, sigma: float) -> float:
        return sum(fold.right(counts, teachers, sigma) for fold in folds) / len(test)

    task = folds[0].task
    method = [name for name, each in METHODS.items() if each.suits(task)][-1]
    if source.training.method == "auto":
        for what, taught in (("true labels", [test.labels]), ("plurality", winners)):
            right = [sum(fold.right_by(method, labels) for fold in folds) for labels in taught]
            show(f"{method} student of the {what}", *(r / len(test) for r in right))
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
