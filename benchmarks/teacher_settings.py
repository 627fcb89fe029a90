"""Which settings of teachers suit MNIST, judged on its training images alone.

Teachers learn from the first 50,000 training images, about thirty each as in `make reproduce
mnist`; the last 10,000 are asked, of which 9,000 without labels fitted the teachers' map. Settings
are changed one at a time. Each line has the share of the teachers that is right in the mean, the
plurality, and what is decided by: how many images the default regression of the student has right,
each without its own counts, from noisy counts at ε (seeded here, unlike a service's). `better` is
by how much that is more than with the defaults, and `±` three times its standard error over images:
of a dozen settings, one is better by two of them by chance.

    python benchmarks/teacher_settings.py DIR_WITH_MNIST [--epsilon 0.3]
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from terrine_experiments.sources import load
from terrine_models.data.arrays import Dataset
from terrine_models.features.augment import ELASTIC, ROTATION
from terrine_models.features.maps import PublicData
from terrine_models.students.answers import FOLDS, Answers
from terrine_models.students.ridge import Ridge
from terrine_models.students.settings import Training
from terrine_models.students.task import Task
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.kinds import Heads
from terrine_models.teachers.training import train_ensemble
from terrine_server.planning.counts import sigma_for_rows
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes

PRIVATE, MAP, NOISES, DELTA = 50_000, 9_000, 3, 1e-5
TEACHERS = 1_667
USUAL = Heads()
SETTINGS: dict[str, tuple[int, Heads]] = {
    "the defaults": (TEACHERS, USUAL),
    "no copies": (TEACHERS, replace(USUAL, augmentations=0)),
    "one copy": (TEACHERS, replace(USUAL, augmentations=1)),
    "four copies": (TEACHERS, replace(USUAL, augmentations=4)),
    "half the rotation": (TEACHERS, replace(USUAL, rotation=ROTATION / 2)),
    "half the elastic": (TEACHERS, replace(USUAL, elastic=ELASTIC / 2)),
    "width 100": (TEACHERS, replace(USUAL, width=100)),
    "width 200": (TEACHERS, replace(USUAL, width=200)),
    "penalty 0.03": (TEACHERS, replace(USUAL, ridge=0.03)),
    "penalty 0.3": (TEACHERS, replace(USUAL, ridge=0.3)),
    "penalty 1": (TEACHERS, replace(USUAL, ridge=1.0)),
    "half the teachers": (TEACHERS // 2, USUAL),
    "twice the teachers": (2 * TEACHERS, USUAL),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="directory with MNIST")
    parser.add_argument("--epsilon", type=float, default=0.3)
    options = parser.parse_args()
    everything = load("mnist", options.directory).private  # the test images are not looked at
    private = part(everything, slice(None, PRIVATE))
    asked = part(everything, slice(PRIVATE, None))
    public = PublicData.declare("MNIST's last training images", asked.inputs[:MAP])
    task = Task(asked.inputs, asked.spec, asked.classes)
    fold, training = np.arange(len(asked)) % FOLDS, Training("ridge")
    usual: NDArray[np.float64] | None = None
    print(f"{'':20} {'mean':>7} {'plurality':>10} {'student':>8} {'better':>8}")
    for name, (teachers, config) in SETTINGS.items():
        with TemporaryDirectory() as folder:
            out = Path(folder) / "teachers"
            train_ensemble(private, out, name="t", teachers=teachers, config=config, public=public)
            counts = Ensemble.load(out).votes(asked.inputs)
        classes = len(asked.classes)
        sigma = sigma_for_rows(len(asked), teachers, classes, options.epsilon, DELTA)
        mechanism, right = NoisyVotes(teachers, classes, sigma), np.zeros(len(asked))
        for seed in range(NOISES):
            noisy = mechanism.release(counts, entropy=np.random.default_rng(seed).bytes).counts
            assert noisy is not None
            answers = Answers.of_counts(noisy, teachers=teachers, sigma=sigma)
            held_out = Ridge(training).judge(task, answers, fold)
            right += (held_out.argmax(axis=1) == asked.labels) / NOISES
        usual = right if usual is None else usual
        better = right - usual
        doubt = 3 * better.std() / np.sqrt(len(better))
        share = counts[np.arange(len(asked)), asked.labels].mean() / teachers
        plurality = float((counts.argmax(axis=1) == asked.labels).mean())
        print(
            f"{name:20} {share:7.2%} {plurality:10.2%} {right.mean():8.2%} {better.mean():+8.3%} "
            f"± {doubt:.3%}",
            flush=True,
        )


def part(data: Dataset, rows: slice) -> Dataset:
    return replace(data, inputs=data.inputs[rows], labels=data.labels[rows])


if __name__ == "__main__":
    main()
