"""What limits a student of noisy votes: the teachers, the noise, or what it learns with.

Data, teachers and students are those of `terrine reproduce DATA DIR`, and its folds. The teachers
vote once; then the server's mechanism draws noise for each ε and seed (seeded here, unlike a
service's). Students learn from true labels and from the winners of the votes, as if these were
counts without noise; from the counts without noise; and from noisy counts. Where they are kernel
students, which learn from what a regression makes of counts, the same model without the regression
stands beside them; those that go by neighbours take labels as they are. Each fold is judged by a
student that has not seen it. `±` is the standard deviation over seeds.

    python benchmarks/limits.py DATA DIR [--epsilon 0.3 1 3] [--seeds 3] [--ensemble DIR]
                                         [--votes FILE]

`--ensemble` is where teachers are, or will be kept; `--votes`, a .npy file, where their counts are.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from terrine_models.counted import CountedStudents
from terrine_models.ensemble import Ensemble
from terrine_models.neighbours import suits
from terrine_models.students import Student
from terrine_server.planning.counts import sigma_for_rows
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.parameters import MIN_SIGMA
from terrine_server.reproduce.lesson import CERTAIN
from terrine_server.reproduce.owner import trained
from terrine_server.reproduce.setup import Part, parts, public_part
from terrine_server.reproduce.sources import Name, Source, load

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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ensemble", type=Path)
    parser.add_argument("--votes", type=Path)
    options = parser.parse_args()
    source = load(options.data, options.directory)
    test = source.test
    if options.votes is not None and options.votes.is_file():
        counts = np.load(options.votes)
    else:
        counts = voted(source, options.ensemble)
        if options.votes is not None:
            np.save(options.votes, counts)
    n, classes = int(counts[0].sum()), counts.shape[1]
    share = counts[np.arange(len(test)), test.labels].mean() / n
    winners = counts.argmax(axis=1)
    show(f"one of {n:,} teachers, in the mean", share)
    show("plurality", float((winners == test.labels).mean()))

    def learn(part: Part) -> CountedStudents:
        x = test.inputs[part.seen]
        return CountedStudents(x, inputs=test.spec, classes=test.classes, encoding=test.encoding)

    folds = [Fold(source, part, learn(part)) for part in parts("folds", source)]

    def accuracy(counts: Ints, teachers: int, sigma: float) -> float:
        return sum(fold.right(counts, teachers, sigma) for fold in folds) / len(test)

    certain, auto = np.eye(classes, dtype=np.int64), source.training.method == "auto"
    by_neighbours = auto and suits(test.spec, classes, min(len(fold.part.seen) for fold in folds))
    for name, labels in (("true labels", test.labels), ("plurality", winners)):
        if by_neighbours:
            right = sum(fold.right_by_neighbours(labels) for fold in folds)
            show(f"student of the {name}", right / len(test))
            continue
        if auto and len(test.spec.shape) > 1:
            right = sum(fold.right_by_kernel(labels) for fold in folds)
            show(f"kernel student of the {name}, no regression", right / len(test))
        show(f"student of the {name}", accuracy(certain[labels], 1, CERTAIN))
    show("student of counts without noise", accuracy(counts, n, MIN_SIGMA))
    for epsilon in options.epsilon:
        sigma = sigma_for_rows(len(test), n, classes, epsilon, source.delta)
        mechanism, found = NoisyVotes(n, classes, sigma), []
        for seed in range(options.seeds):
            noisy = mechanism.release(counts, entropy=np.random.default_rng(seed).bytes).counts
            assert noisy is not None
            found.append(accuracy(noisy, n, sigma))
        show(f"student, ε = {epsilon:g}, noise of {sigma / n:.2f} shares", *found)


def voted(source: Source, ensemble: Path | None) -> Ints:
    """Return the counts [N, m] of the teachers on all test inputs; train them if there are none."""
    with TemporaryDirectory() as folder:
        teachers = ensemble or Path(folder) / "teachers"
        trained(source, public_part(source), teachers, Console(stderr=True))
        return Ensemble.load(teachers).votes(source.test.inputs)


def show(what: str, *found: float) -> None:
    spread = f" ± {np.std(found, ddof=1):.2%}" if len(found) > 1 else ""
    print(f"{what:50} {np.mean(found):7.2%}{spread}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
