"""A schema alone beside a real public pool: the same private rows, ε and test rows, by commands.

    python benchmarks/designed.py adult=DIRECTORY nassCDS diamonds --epsilon 1,0.1 --seeds 5
    python benchmarks/designed.py adult=DIRECTORY --in-process --epsilon 1,0.3,0.1,0.03

The tables are those of `datasets.py`. Adult's schema is as its documentation has it
(benchmarks/adult-schema.json). That of a table out of a package is proposed from its public rows,
which a declared one would not need; nobody asks these.

For each, it prints AUC, of two classes, balanced accuracy, and that of the best threshold, of
students that learn from `quickstart --public POOL` and from `quickstart --schema`. With
--in-process, the functions behind these commands are called, and both ways have trained teachers,
as many as quickstart tries at most. Where all public rows would need more noise than can be drawn,
fewer are asked.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score

from commands import Predicted, Refused, check, open_project, run
from datasets import DealtFiles, TableSource, find_sources
from students import ask_teachers
from terrine_models.data.arrays import Dataset, number_distinct_rows
from terrine_models.features.public import PublicData
from terrine_models.students.models import Task
from terrine_models.students.selection import choose
from terrine_models.tables.designed import (
    DesignedPool,
    Margins,
    Question,
    count_cells,
    design_pool,
    digest_schema,
    margin_questions,
)
from terrine_models.tables.loading import read_schema
from terrine_models.teachers.shards import unit_count
from terrine_server.planning.first_project import (
    DESIGNED_ROWS,
    DesignedProject,
    FirstProject,
    Setting,
)
from terrine_server.privacy import ParameterError

CUTS = np.linspace(0.02, 0.98, 97)
"""Shares of the rows that are predicted as the first class, for the best threshold."""


Found = dict[str, float]
"""Figures of one student: balanced accuracy, and of two classes AUC, and balanced accuracy with the
best threshold."""


def main(
    data: Annotated[list[str] | None, typer.Argument(help="of datasets.py")] = None,
    epsilon: str = "1,0.3,0.1",
    seeds: int = 5,
    in_process: bool = False,
) -> None:
    """Compare, and print a line for each table, ε and way to ask."""
    compare = compare_in_process if in_process else compare_by_commands
    if not data:
        print("Skipped: no data were named. See the top of benchmarks/designed.py.")
    for name, source in find_sources(data or []).items():
        if not isinstance(source, TableSource):
            raise SystemExit(f"{name} is not a table.")
        for budget in map(float, epsilon.split(",")):
            found: dict[str, list[Found]] = {}
            for seed in range(seeds):
                with tempfile.TemporaryDirectory(prefix="designed-") as place:
                    made = source.deal(np.random.default_rng(seed)).write(name, Path(place))
                    for way, student in compare(made, budget, seed):
                        found.setdefault(way, []).append(student)
            for way, students in found.items():
                print(f"{name}, ε = {budget:g}, {way}: {summarize(students)}", flush=True)


def summarize(students: Sequence[Found]) -> str:
    """Return means, and their standard errors, over the seeds."""
    said = []
    for name in students[0]:
        values = np.array([each[name] for each in students])
        error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        said.append(f"{name} {values.mean():.4f} ± {error:.4f}")
    return ", ".join(said)


def find_schema(made: DealtFiles) -> Path:
    """Write the schema that is known without private rows."""
    place = made.private.parent
    schema = place / "schema.json"
    if made.private.stem == "adult":
        shutil.copy(Path(__file__).with_name("adult-schema.json"), schema)
    else:
        propose = ("ensemble", "schema", made.pool.name, *made.options, "--out", schema.name)
        check(run(place, {}, *propose))
    return schema


def compare_by_commands(made: DealtFiles, epsilon: float, seed: int) -> Iterator[tuple[str, Found]]:
    """Yield what students are by a real pool, and by a schema alone."""
    schema = find_schema(made)
    tested = made.read(read_schema(schema))[2]
    asked = ("--public", made.pool.name, *made.options)
    yield "real pool", learn(made, "real", asked, epsilon, tested)
    yield "schema alone", learn(made, "alone", ("--schema", schema.name), epsilon, tested)


def compare_in_process(made: DealtFiles, epsilon: float, seed: int) -> Iterator[tuple[str, Found]]:
    """Yield the same, of trained teachers both times."""
    schema = read_schema(find_schema(made))
    private, public, tested = made.read(schema)
    setting = Setting.of(
        units=unit_count(private),
        rows=DESIGNED_ROWS[0],
        classes=len(private.classes),
        epsilon=epsilon,
    )
    real, first = first_of_pool(public, setting)
    yield "real pool", teach(private, first, real, tested, seed)
    questions = margin_questions(schema)
    cells = [each.cells for each in questions]
    first = setting.of_designed(cells=cells, schema_sha256=digest_schema(schema))
    designed = design_pool(
        schema, release_margins(private, questions, first, seed), first.rows, seed
    )
    yield "schema alone", teach(private, first, designed, tested, seed)


def first_of_pool(public: Dataset, setting: Setting) -> tuple[PublicData, FirstProject]:
    """Return what is asked of a pool, all of it if so much noise can be drawn, and the project."""
    for most in (len(public), *DESIGNED_ROWS):
        asked = public.inputs[:most]
        rows = int(number_distinct_rows(asked).max()) + 1
        teachers = setting.numbers_of_teachers[-1]
        try:
            first = replace(setting, rows=rows).of_teachers(teachers)
        except ParameterError as error:
            why = error
        else:
            return PublicData.declare("pool", asked, labels=public.labels[:most]), first
    raise why


def release_margins(
    private: Dataset, questions: Sequence[Question], first: DesignedProject, seed: int
) -> Margins:
    """Release the histograms of the columns, as a project of them does."""
    plan = first.release
    counts = count_cells(questions, private, seed)
    noisy = plan.add_noise(counts, np.random.default_rng(seed).bytes)
    return Margins.of_counts(questions, noisy, sigma=plan.sigma, units=first.units)


def teach(
    private: Dataset,
    first: FirstProject,
    asked: PublicData | DesignedPool,
    tested: Dataset,
    seed: int,
) -> Found:
    """Train teachers, ask them all that is to be asked, and judge a student of the answers."""
    if isinstance(asked, DesignedPool):
        inputs, pool = asked.rows, asked
        answers = ask_teachers(private, first, inputs, seed, pool=pool)
    else:
        inputs, pool = asked.inputs, None
        answers = ask_teachers(private, first, inputs, seed, public=asked)
    task = Task(inputs, private.spec, private.classes, private.encoding, designed=pool)
    student = choose(task, answers).student
    shares = student.probabilities(tested.inputs)[:, 1] if len(private.classes) == 2 else None
    return judge(Predicted(student.predict_indices(tested.inputs), shares), tested)


def learn(
    made: DealtFiles, data: str, asked: tuple[str, ...], epsilon: float, tested: Dataset
) -> Found:
    """Open a project, train a student of it, and judge it on the tested rows."""
    budget = ("--epsilon", f"{epsilon:g}")
    opened = open_project(made.private, *asked, *budget, data=data, anyway=True)
    if isinstance(opened, Refused):
        raise SystemExit(f"quickstart declined: {opened.said}")
    with opened.serve():
        opened.train_student()
    return judge(opened.predict(made.tested, tested.classes), tested)


def judge(found: Predicted, tested: Dataset) -> Found:
    """Return the figures of what a student said of the tested rows."""
    scores, shares = found.scores(tested.labels), found.shares
    if scores.auc is None or shares is None:
        return {"balanced": scores.balanced}
    best = best_cut(shares, tested.labels)
    return {"auc": scores.auc, "balanced": scores.balanced, "best": best}


def best_cut(second: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Return the balanced accuracy of the best threshold."""
    return max(
        float(balanced_accuracy_score(labels, second > cut)) for cut in np.quantile(second, CUTS)
    )


if __name__ == "__main__":
    typer.run(main)
