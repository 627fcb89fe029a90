"""Neighbours whose votes weigh less, the more public inputs they are near; and as they are.

A record that is near n of the public inputs casts a vote of about 1/√n, in whole numbers up to
STEPS, so that records in crowded places last as long as others. Same radii, noise and allowance
by the product's rule, product's students on five folds; the same noise for both, but for its size.

    python benchmarks/hubs.py fashion DIR --epsilon 0.3 [--runs 3]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from terrine_experiments.neighbours import BLOCK, near, replace_records
from terrine_experiments.setup import parts, public_part
from terrine_experiments.sources import Name, Source, load
from terrine_models.students.answers import Answers
from terrine_models.students.models import Task
from terrine_models.students.selection import choose
from terrine_models.teachers.neighbours import NeighbourEnsemble, NeighbourSettings, build
from terrine_server.planning.first_project import plan_neighbours
from terrine_server.privacy import Units
from terrine_server.privacy.mechanisms import Neighbours as Mechanism

STEPS, FULL = 8, 0.1
"""The largest weight, and the share of the public inputs that would have it. Chosen on training
images of MNIST, of which 50,000 voted on the others."""
Ints = NDArray[np.int64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", choices=get_args(Name))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    source, epsilon = load(options.data, options.directory), options.epsilon
    with tempfile.TemporaryDirectory() as scratch:
        out, settings = Path(scratch) / source.name, NeighbourSettings(near(source.name, epsilon))
        build(source.private, out, name=source.name, public=public_part(source), settings=settings)
        ensemble = NeighbourEnsemble.load(out)
    public = near_to(replace_records(ensemble, ensemble.public), ensemble.public) - 1
    private = near_to(ensemble, ensemble.public)
    tasks = [
        Task(source.test.inputs[part.seen], source.test.spec, source.test.classes)
        for part in parts("folds", source)
    ]
    for steps in (1, STEPS):
        measure(source, ensemble, tasks, public, private, steps, epsilon, options.runs)


def near_to(ensemble: NeighbourEnsemble, public: NDArray[np.int16]) -> Ints:
    """Return of how many public inputs each record is near."""
    found = np.zeros(len(ensemble.labels), np.int64)
    for start in range(0, len(public), BLOCK):
        found += ensemble.near(public[start : start + BLOCK]).sum(0, dtype=np.int64)
    return found


def weighted(count: Ints, public: Ints, steps: int) -> NDArray[np.uint8]:
    """Return the weight, 1 to `steps`, of a record that is near so many public inputs."""
    full = max(1.0, float(np.quantile(public, FULL)))
    weights: NDArray[np.float64] = np.rint(steps * np.sqrt(full / np.maximum(count, 1)))
    return weights.clip(1, steps).astype(np.uint8)


def measure(
    source: Source,
    ensemble: NeighbourEnsemble,
    tasks: list[Task],
    public: Ints,
    private: Ints,
    steps: int,
    epsilon: float,
    runs: int,
) -> None:
    """Ask everything, teach students, and print how often answers and students are right."""
    inputs, truth, rows = source.test.inputs, source.test.labels, len(source.test)
    weights, stand_ins = weighted(private, public, steps), weighted(public, public, steps)
    spent = stand_ins.astype(np.float64) ** 2 * public / len(public)
    units = Units.of(ensemble.units, ensemble.labels, ensemble.manifest.units)
    plan = plan_neighbours(
        spent,
        units=units.count,
        near=near(source.name, epsilon),
        queries=rows,
        epsilon=epsilon,
        delta=source.delta,
        norm=steps,
    )
    votes = (np.minimum(spent, plan.allowance / rows) / stand_ins).mean() * units.count
    mechanism = Mechanism(units.count, len(source.private.classes), plan.sigma, rows, steps)
    accounts, cast = np.zeros(units.count, np.uint32), []
    for start in range(0, rows, BLOCK):
        own = ensemble.weights(inputs[start : start + BLOCK]) * weights
        counts, accounts = mechanism.cast(own, units, accounts, plan.allowance)
        cast.append(counts)
    exact = np.concatenate(cast)
    answers, students = [], []
    for run in range(runs):
        noise = np.random.default_rng(run).standard_normal(exact.shape)  # of public data
        noisy = exact + np.rint(plan.sigma * noise).astype(np.int64)
        answers.append((noisy.argmax(1) == truth).mean())
        shares = Answers.of_counts(
            noisy, teachers=max(1, round(votes)), sigma=plan.sigma, matches_prior=True
        )
        right = 0
        for task, part in zip(tasks, parts("folds", source), strict=True):
            student = choose(task, shares.of(part.seen)).student
            right += int((student.predict(inputs[part.tested]) == truth[part.tested]).sum())
        students.append(right / rows)
    print(
        f"{source.title}, ε = {epsilon:g}, weights 1 to {steps}: A = {plan.allowance}, "
        f"σ = {plan.sigma:g}; {np.mean(answers):.1%} of single answers right; students "
        f"{np.mean(students):.2%} ({', '.join(f'{each:.2%}' for each in students)})",
        flush=True,
    )


if __name__ == "__main__":
    main()
