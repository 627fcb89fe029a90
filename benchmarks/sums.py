"""Students of noisy sums, by ε, in process: the functions behind `quickstart` and `student train`.

    python benchmarks/sums.py adult=DIRECTORY nassCDS letter [--epsilon 0.03,0.1,0.3,1] [--seeds 3]
                              [--draws 1] [--labels 300,100000]

`datasets.py` says what can be named. For each, it prints AUC, or of several classes accuracy, of a
student of sums: its mean over the seeds, and the standard error of that. Each seed deals anew, and
for each deal noise is drawn --draws times. With --labels, for as many labels of the pool, or all
that it has: the public model of these alone, which costs nothing; the student of both; and its
lead over that of the two which is better on average, with how often labels were taken, and what
share of the correction by sums on average.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from sklearn.metrics import roc_auc_score

from datasets import TableSource, find_sources, read_parts
from terrine_models.data.arrays import Dataset
from terrine_models.features.public import PublicData
from terrine_models.students.labels import PublicLabels, fit_public
from terrine_models.students.models import Student, Task
from terrine_models.students.sums import fit_sums
from terrine_models.sums import ReleasedSums
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.sums import add_up_records, fit_sum_map, natural_rows
from terrine_server.planning.first_project import default_delta, plan_map, plan_sums

# Of each thing measured, a value for each draw.
Found = dict[str, list[float]]


def main(
    data: Annotated[list[str] | None, typer.Argument(help="of datasets.py")] = None,
    epsilon: str = "0.03,0.1,0.3,1",
    seeds: int = 3,
    draws: int = 1,
    labels: str = "",
) -> None:
    """Release sums, fit students, and print a line for each data set, ε and number of labels."""
    if not data:
        print("Skipped: no data were named. See the top of benchmarks/sums.py.")
    budgets = [float(each) for each in epsilon.split(",")]
    counts = [int(each) for each in labels.split(",")] if labels else []
    for name, source in find_sources(data or []).items():
        found: dict[str, Found] = {}
        for seed in range(seeds):
            with tempfile.TemporaryDirectory(prefix="sums-") as place:
                dealt = source.deal(np.random.default_rng(seed)).write(name, Path(place))
                parts = read_parts(dealt, table=isinstance(source, TableSource))
            for what, value in learn(parts, budgets, seed, draws, counts):
                for measured, one in value.items():
                    found.setdefault(what, {}).setdefault(measured, []).append(one)
        for what, values in found.items():
            print(f"{name}, {what}: {summarize(values)}", flush=True)


def summarize(found: Found) -> str:
    """Return means, and their standard errors, over all draws; and how often each was chosen."""
    said = []
    for name, values in found.items():
        error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        said.append(f"{name} {np.mean(values):.4f} ± {error:.4f}")
    if "both" in found:
        better = max(("sums", "labels"), key=lambda name: np.mean(found[name]))
        leads = np.subtract(found["both"], found[better])
        error = np.std(leads, ddof=1) / len(leads) ** 0.5 if len(leads) > 1 else 0.0
        said.append(f"lead over {better} {np.mean(leads):+.4f} ± {error:.4f}")
    return ", ".join(said)


def learn(
    parts: tuple[Dataset, Dataset, Dataset],
    budgets: Sequence[float],
    seed: int,
    draws: int,
    counts: Sequence[int],
) -> Iterator[tuple[str, dict[str, float]]]:
    """Release sums of the private rows, and judge what follows from them on the tested ones.

    Yields of what, and what was measured.
    """
    private, pool, tested = parts
    task = Task(pool.inputs, private.spec, private.classes, private.encoding, seed=seed)
    order, known = np.random.default_rng(seed).permutation(len(pool)), {}
    for count in counts:
        rows = order[:count]
        known[count] = fit_public(task, PublicLabels(pool.inputs[rows], pool.labels[rows]))
    for budget, draw in itertools.product(budgets, range(draws)):
        began = time.process_time()
        released = release(private, pool, budget, seed + len(order) * draw)
        student = fit_sums(released, task)
        seconds = time.process_time() - began
        alone = judge(student, tested)
        right = float((student.predict_indices(tested.inputs) == tested.labels).mean())
        yield f"ε = {budget:g}", {"sums": alone, "right": right, "seconds": seconds}
        for count, public in known.items():
            both = fit_sums(released, task, public=public)
            how = both.model.training
            took = float("public_labels" in how)
            said = f"{count:,}" if count < len(order) else "all"
            yield (
                f"ε = {budget:g}, {said} labels",
                {
                    "sums": alone,
                    "labels": judge(public.student(task), tested),
                    "both": judge(both, tested),
                    "took labels": took,
                    "corrected by": float(how.get("correction", 0.0)),
                },
            )


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


def judge(student: Student, tested: Dataset) -> float:
    """Return the AUC of two classes, or how often the likeliest of more is right."""
    shares = student.probabilities(tested.inputs)
    if shares.shape[1] == 2:
        return float(roc_auc_score(tested.labels, shares[:, 1]))
    return float((shares.argmax(axis=1) == tested.labels).mean())


if __name__ == "__main__":
    typer.run(main)
