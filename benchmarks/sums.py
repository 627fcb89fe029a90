"""Students of noisy sums, by ε, in process: the functions behind `quickstart` and `student train`.

    python benchmarks/sums.py adult=DIRECTORY nassCDS letter [--epsilon 0.03,0.1,0.3,1] [--seeds 3]
                              [--labels 300]

`datasets.py` says what can be named. For each, it prints AUC, or of several classes accuracy, of a
student of sums: its mean over the seeds, and the standard error of that. Beside it stands a
regression on the same public features of the pool's own labels, which costs nothing; and with
--labels, of so many of them, that regression corrected by the sums. Whether the labels are taken
then follows from how likely the sums are with and without.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from datasets import DealtFiles, TableSource, find_sources
from terrine_models.data.arrays import Dataset
from terrine_models.features.public import PublicData
from terrine_models.students.models import Task
from terrine_models.students.sums import fit_sums
from terrine_models.sums import ReleasedSums, fit_scores
from terrine_models.tables.proposal import propose_schema
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.sums import add_up_records, fit_sum_map, natural_rows
from terrine_server.planning.first_project import default_delta, plan_map, plan_sums

Found = dict[str, float]
FOLDS = 5


def main(
    data: Annotated[list[str] | None, typer.Argument(help="of datasets.py")] = None,
    epsilon: str = "0.03,0.1,0.3,1",
    seeds: int = 3,
    labels: int = 0,
) -> None:
    """Release sums, fit students, and print a line for each data set and ε."""
    if not data:
        print("Skipped: no data were named. See the top of benchmarks/sums.py.")
    for name, source in find_sources(data or []).items():
        found: dict[float, list[Found]] = {}
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="sums-") as place:
                dealt = source.deal(np.random.default_rng(seed)).write(name, Path(place))
                private, public, tested = read(dealt, table=isinstance(source, TableSource))
            for budget in map(float, epsilon.split(",")):
                student = learn(private, public, tested, budget, seed, labels)
                found.setdefault(budget, []).append(student)
        for budget, students in found.items():
            print(f"{name}, ε = {budget:g}: {summarize(students)}", flush=True)


def read(dealt: DealtFiles, *, table: bool) -> tuple[Dataset, Dataset, Dataset]:
    """Read private, public and tested rows; tables by the schema that public rows suggest."""
    if not table:
        return dealt.read()
    _, label, *group = dealt.options
    found = propose_schema(dealt.pool, label=label, group=group[1] if group else None)
    return dealt.read(found.schema)


def summarize(students: list[Found]) -> str:
    """Return means, and their standard errors, over the seeds."""
    said = []
    for name in students[0]:
        values = np.array([each[name] for each in students])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        said.append(f"{name} {values.mean():.4f} ± {error:.4f}")
    return ", ".join(said)


def learn(
    private: Dataset, pool: Dataset, tested: Dataset, epsilon: float, seed: int, labels: int
) -> Found:
    """Release sums of the private rows, and judge what follows from them on the tested ones."""
    classes, began = len(private.classes), time.process_time()
    released = release(private, pool, epsilon, seed)
    known = released.map
    task = Task(pool.inputs, private.spec, private.classes, private.encoding)
    student = fit_sums(released, task)
    seconds = time.process_time() - began
    places = known.places(tested.inputs)
    alone = LogisticRegression(max_iter=500).fit(known.places(pool.inputs), pool.labels)
    found = {
        "sums": judge(np.log(student.probabilities(tested.inputs)), tested.labels),
        "right": float((student.predict_indices(tested.inputs) == tested.labels).mean()),
        "public labels alone": judge(_scores(alone, places, classes), tested.labels),
        "seconds": seconds,
    }
    return found | (correct(released, pool, places, tested, labels, seed) if labels else {})


def release(private: Dataset, pool: Dataset, epsilon: float, seed: int) -> ReleasedSums:
    """Release sums of the private rows, as a project of them does."""
    public, units = PublicData.declare("pool", pool.inputs), unit_count(private)
    delta, classes = default_delta(units), len(private.classes)
    norm, noise = plan_map(epsilon, delta, classes, units)
    known = fit_sum_map(private, public, norm, noise)
    plan = plan_sums(norm, known.width, classes, known.sha256, epsilon, delta)
    exact, entropy = add_up_records(known, private), np.random.default_rng(seed).bytes
    sums = plan.add_noise(exact, entropy)
    return ReleasedSums(known, sums, plan.sigma, units, natural_rows(public))


def correct(
    released: ReleasedSums,
    pool: Dataset,
    places: NDArray[np.float64],
    tested: Dataset,
    labels: int,
    seed: int,
) -> Found:
    """Judge a regression of some public labels, and what sums make of it."""
    known, classes = released.map, released.classes
    x = known.places(pool.inputs)
    rows = np.random.default_rng(seed).permutation(len(x))[:labels]
    model = LogisticRegression(max_iter=500)
    known_labels = pool.labels[rows]
    held_out = cross_val_predict(model, x[rows], known_labels, cv=FOLDS, method="predict_log_proba")
    model.fit(x[rows], known_labels)
    base = _scores(model, x, classes)
    base[np.ix_(rows, model.classes_)] = held_out
    own = _scores(model, places, classes)
    plain, corrected = fit_scores(released, pool.inputs), fit_scores(released, pool.inputs, base)
    of_both = own + corrected.scores(places)
    chosen = of_both if corrected.evidence > plain.evidence else plain.scores(places)
    return {
        f"{labels} labels": judge(own, tested.labels),
        "corrected": judge(of_both, tested.labels),
        "chosen": judge(chosen, tested.labels),
        "took labels": float(corrected.evidence > plain.evidence),
    }


def _scores(
    model: LogisticRegression, places: NDArray[np.float64], classes: int
) -> NDArray[np.float64]:
    """Scores [N, classes]; of a class that had no row, low ones."""
    found = np.full((len(places), classes), -20.0)
    found[:, model.classes_] = model.predict_log_proba(places)
    return found


def judge(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the AUC of scores [N, 2], or how often the largest of more is right."""
    if scores.shape[1] == 2:
        return float(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))
    return float((scores.argmax(axis=1) == labels).mean())


if __name__ == "__main__":
    typer.run(main)
