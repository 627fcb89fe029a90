"""Students of UCI Adult at ε = 0.5 and 1, beside what limits them. Worst-case ε, δ = 1e-5.

The training file is private. The rows of the test file, without their labels, are the public pool,
and they are asked once, in one project, through the mechanisms and prices of the server. They are
split into five folds: each is judged by a student that learned from the answers for the other
four, so an accuracy is over all test rows. `±` is the standard deviation over noise seeds.

    python benchmarks/adult.py [DIR] [--seeds 3] [--teachers 1000] [--tune]

DIR holds `adult.data` and `adult.test` (or .gz) of the UCI repository; by default adult in
TERRINE_SHARED_DATA, else in ../shared/data. `--tune` uses the training file alone: a third of it,
drawn at random, is the public pool. Every constant of the product was chosen so.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from datasets import SHARED
from terrine_experiments import sources
from terrine_models.data.arrays import Dataset
from terrine_models.features.maps import PublicData, public_features
from terrine_models.students.answers import Answers
from terrine_models.students.models import METHODS, MIN_FEATURES, Task, Training
from terrine_models.students.selection import asking_order
from terrine_models.students.selection import choose as learn_from
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.training import train_ensemble
from terrine_server.planning.first_project import sigma_for_rows
from terrine_server.planning.opening import choose, expected_pass_rate, quick_quote
from terrine_server.privacy import ParameterError, VoteOutcome
from terrine_server.privacy.budget import Account, Rule
from terrine_server.privacy.mechanisms import ConfidentGNMax, NoisyVotes
from terrine_server.privacy.parameters import MIN_SIGMA
from terrine_server.privacy.quoting import cap_order, quote

DELTA = 1e-5
FOLDS = 5
CLASSES = 2
BUDGETS = (0.5, 1.0)
TEACHERS_OF_LABELS = 250
"""Labels are bought from fewer teachers, who agree more."""
THRESHOLDS = (0.6, 0.7, 0.8, 0.9)
"""Of confident_gnmax, as shares of the teachers."""
SPREADS = (0.15, 0.2)
"""Of the noise of its test, as shares of the teachers."""
REPORTED = "reported by PATE's authors, 250 forests, data-dependent ε = 1.90: 83.7 %"

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AdultData:
    """Private records, the public pool, and its true labels, for the comparison alone."""

    private: Dataset
    pool: Dataset
    folds: Ints

    def by_folds(self, predict: Callable[[NDArray[np.bool_]], Ints]) -> float:
        """Return the accuracy over all rows of `predict`, which is told what to leave out [N]."""
        right = 0
        for fold in range(FOLDS):
            own = self.folds == fold
            right += int((predict(own) == self.pool.labels[own]).sum())
        return right / len(self.folds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", type=Path, default=SHARED / "adult")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--teachers", type=int, default=1000, help="of noisy votes")
    parser.add_argument("--tune", action="store_true", help="use the training file alone")
    options = parser.parse_args()
    started = time.perf_counter()
    material = load(options.data, tune=options.tune)
    private, pool = material.private, material.pool
    print(f"{len(private):,} private records, {len(pool):,} public rows.", took(started))
    print(f"{'the larger class':44} {1 - pool.labels.mean():7.2%}")
    without_privacy(material)
    votes = {n: voted(material, n) for n in dict.fromkeys((options.teachers, TEACHERS_OF_LABELS))}
    without_noise(material, votes[options.teachers])
    for epsilon in BUDGETS:
        counted(material, votes[options.teachers], epsilon, options.seeds)
    for epsilon in BUDGETS:
        bought(material, votes[TEACHERS_OF_LABELS], epsilon, options.seeds)
    print(REPORTED)


def load(directory: Path, *, tune: bool) -> AdultData:
    """Raises DataError if the files are missing."""
    source = sources.load("adult", directory)
    private, pool = source.private, source.test
    if tune:
        order = np.random.default_rng(0).permutation(len(private))
        third = len(private) // 3
        private, pool = part(private, order[third:]), part(private, order[:third])
    folds = np.random.default_rng(0).permutation(len(pool)) % FOLDS
    return AdultData(private, pool, folds)


def part(data: Dataset, rows: Ints) -> Dataset:
    return replace(data, inputs=data.inputs[rows], labels=data.labels[rows])


def without_privacy(material: AdultData) -> None:
    """Print models of the same kinds, trained on the true labels of the pool."""
    pool = material.pool
    inputs, labels = pool.inputs, pool.labels
    task = Task(inputs, pool.spec, pool.classes)

    def ridge(own: NDArray[np.bool_]) -> Ints:
        answers = Answers.of_labels(np.where(own, -1, labels), CLASSES)
        return METHODS["ridge"](Training()).fit(task, answers).predict(inputs[own])

    def logistic(own: NDArray[np.bool_]) -> Ints:
        public = PublicData.declare("pool", inputs[~own])
        known = public_features(pool.spec, public, MIN_FEATURES)
        x = known(inputs)
        model = LogisticRegression(C=0.1, max_iter=500).fit(x[~own], labels[~own])
        return np.asarray(model.predict(x[own]), dtype=np.int64)

    for name, train in (("ridge", ridge), ("logistic regression", logistic)):
        started = time.perf_counter()
        right = material.by_folds(train)
        print(f"{name + ', true labels of the pool':44} {right:7.2%}   {took(started)}", flush=True)


def voted(material: AdultData, teachers: int) -> Ints:
    """Train teachers on the private records, and return their counts [N, 2] on the pool."""
    public = PublicData.declare("pool", material.pool.inputs)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "adult"
        train_ensemble(material.private, directory, name="adult", teachers=teachers, public=public)
        trained = took(started)
        started = time.perf_counter()
        counts = Ensemble.load(directory).votes(material.pool.inputs)
    right = (counts.argmax(axis=1) == material.pool.labels).mean()
    name = f"plurality of {teachers:,} teachers"
    print(f"{name:44} {right:7.2%}   training {trained} voting {took(started)}", flush=True)
    return counts


def counted(material: AdultData, counts: Ints, epsilon: float, seeds: int) -> None:
    """Print the accuracy of students from noisy counts of every row."""
    pool, teachers = material.pool, int(counts[0].sum())
    sigma = sigma_for_rows(len(pool), teachers, CLASSES, epsilon, DELTA)
    mechanism = NoisyVotes(teachers, CLASSES, sigma)
    assert quote(mechanism, epsilon, DELTA).affordable(Account()) >= len(pool)
    found, started = [], time.perf_counter()
    for seed in range(seeds):
        noisy = mechanism.release(counts, entropy=np.random.default_rng(seed).bytes).counts
        assert noisy is not None
        right, why = of_counts(material, noisy, teachers, sigma)
        found.append(right)
    each = (time.perf_counter() - started) / seeds / FOLDS
    report("noisy_votes student", epsilon, found, f"σ = {sigma:g} votes; {each:.1f} s a student")
    print(f"    the last: {why}", flush=True)


def without_noise(material: AdultData, counts: Ints) -> None:
    """Print what the same student learns from exact counts, which is not private."""
    started = time.perf_counter()
    right, _ = of_counts(material, counts, int(counts[0].sum()), MIN_SIGMA)
    print(f"{'the student of counts without noise':44} {right:7.2%}   {took(started)}", flush=True)


def of_counts(material: AdultData, counts: Ints, teachers: int, sigma: float) -> tuple[float, str]:
    """Return the accuracy of students of counts [N, 2], and why the last is as it is."""
    pool, reasons = material.pool, []

    def learn(own: NDArray[np.bool_]) -> Ints:
        answers = Answers.of_counts(
            counts[~own], teachers=teachers, sigma=sigma, matches_prior=True
        )
        made = learn_from(Task(pool.inputs[~own], pool.spec, pool.classes), answers)
        reasons.append(made.choice.why)
        return made.student.predict(pool.inputs[own])

    right = material.by_folds(learn)
    return right, reasons[-1]


def bought(material: AdultData, counts: Ints, epsilon: float, seeds: int) -> None:
    """Print the accuracy of students from labels that confident_gnmax sells for as much."""
    pool, teachers = material.pool, int(counts[0].sum())
    mechanism = most_answers(teachers, epsilon)
    quoted = choose(mechanism, epsilon, DELTA, cap_rule=Rule("rdp", cap_order(epsilon, DELTA)))
    found, labels_bought, started, chosen = [], [], time.perf_counter(), ""
    for seed in range(seeds):
        order = asking_order(pool.inputs, pool.spec, seed)
        released = quoted.mechanism.release(
            counts[order], entropy=np.random.default_rng(seed).bytes
        )
        labels, account = np.full(len(pool), -1), Account()
        for row, outcome, label in zip(order, released.outcomes, released.labels, strict=True):
            if not quoted.terms.admits(account):
                break
            account = account.plus(quoted.terms.price(VoteOutcome(outcome)))
            if outcome == VoteOutcome.ANSWERED:
                labels[row] = label
        labels_bought.append(int((labels >= 0).sum()))

        def learn(own: NDArray[np.bool_], labels: Ints = labels) -> Ints:
            nonlocal chosen
            known = np.where(own, -1, labels)[~own]
            if (known < 0).all():
                chosen = "nothing was answered: the larger class"
                return np.zeros(int(own.sum()), dtype=np.int64)
            task = Task(pool.inputs[~own], pool.spec, pool.classes)
            made = learn_from(task, Answers.of_labels(known, CLASSES))
            chosen = made.choice.chosen
            return made.student.predict(pool.inputs[own])

        found.append(material.by_folds(learn))
    each = (time.perf_counter() - started) / seeds / FOLDS
    answers = ", ".join(map(str, labels_bought))
    report(
        "confident_gnmax student",
        epsilon,
        found,
        f"{answers} labels; the last is {chosen}; {each:.1f} s a student",
    )


def most_answers(teachers: int, epsilon: float) -> ConfidentGNMax:
    """Return what is expected to sell most labels, if teachers agree as they mostly do."""
    best: tuple[float, ConfidentGNMax] | None = None
    for share in THRESHOLDS:
        for spread in SPREADS:
            sigma = spread * teachers
            tried = ConfidentGNMax(teachers, CLASSES, round(share * teachers), sigma, sigma)
            try:
                quoted = quick_quote(tried, epsilon, DELTA, expected_pass_rate(tried))
            except ParameterError:
                continue
            if best is None or quoted.answers > best[0]:
                best = quoted.answers, tried
    if best is None:
        raise SystemExit(f"ε = {epsilon:g} does not pay for one label of {teachers} teachers.")
    return best[1]


def report(name: str, epsilon: float, found: list[float], details: str) -> None:
    spread = np.std(found, ddof=1) if len(found) > 1 else float("nan")
    print(
        f"{f'{name}, ε = {epsilon:g}':44} {np.mean(found):7.2%} ± {spread:.2%}   {details}",
        flush=True,
    )


def took(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"


if __name__ == "__main__":
    main()
