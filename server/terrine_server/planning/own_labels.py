"""The owner's own labels: what plain models of labelled public rows alone are, without privacy.

    found = measure_own_labels(draws)
    found.model, found.rows, found.students.auc

No private row has a part in it. In each draw they are tested on the rows that test the simulated
students, so both can be compared row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import Dataset
from terrine_models.students.answers import Answers
from terrine_models.students.models import Task, Training
from terrine_models.students.selection import PLAIN_METHOD, choose
from terrine_models.sums import cut_at_share
from terrine_server.planning.students import Draw, MeasuredStudent, Students

# Of which models are trained. More changed AUCs by less than their errors.
MAX_ROWS = 12_000
# The same, of a regression on public features, whose memory grows with them.
MAX_REGRESSED_ROWS = 8_000
# Values of a row of numbers from which trees are not tried.
MAX_TREE_VALUES = 1_000
# Trees of a forest, and rounds of boosting, each of which grows one for every class.
TREES, ROUNDS, MAX_BOOSTED_TREES = 100, 60, 240

# Shares [T, m] of the classes of rows, by a model of labelled ones.
Predict = Callable[[Dataset, NDArray[np.int64], NDArray[np.generic]], NDArray[np.float64]]


@dataclass(frozen=True)
class OwnLabels:
    """What the best plain model of labelled public rows alone is."""

    model: str
    rows: int
    """How many there are, of which three in four teach, and the others test."""
    students: Students

    @property
    def figures(self) -> dict[str, object]:
        """All that is known of it, by name."""
        found = self.students
        measures = {name: getattr(found, name) for name in ("accuracy", "balanced_accuracy", "auc")}
        return {"model": self.model, "rows": self.rows, **measures}


def measure_own_labels(draws: Sequence[Draw]) -> OwnLabels:
    """Return the best of a few plain models, each of the rows that teach in every draw.

    In the range is what the rows that test would add, as a model of all would have them, too.
    """
    sample = draws[0].sample
    few = len(sample.spec.shape) == 1 and sample.inputs.shape[1] <= MAX_TREE_VALUES
    names = [name for name in MODELS if few or name == REGRESSION]
    tried = {name: [_measure(MODELS[name], draw) for draw in draws] for name in names}
    best = max(tried, key=lambda name: Students(tried[name]).merit)
    half = [_measure(MODELS[best], draw, one_in=2) for draw in draws]
    return OwnLabels(best, len(sample), Students(tried[best], half, len(sample)))


def _measure(predict: Predict, draw: Draw, one_in: int = 1) -> MeasuredStudent:
    sample, own = draw.sample, draw.own[: len(draw.own) // one_in]
    shares = predict(sample, own, sample.inputs[draw.tested])
    said, scores = shares.argmax(axis=1), None
    if len(sample.classes) == 2:  # the second is said as often as it occurs
        scores, second = shares[:, 1], sample.labels[own].mean()
        cut = cut_at_share(scores, second)
        said = said if cut is None else (scores >= cut).astype(np.int64)
    return MeasuredStudent(said, sample.labels[draw.tested], len(own), scores)


def _regress(
    sample: Dataset, own: NDArray[np.int64], asked: NDArray[np.generic]
) -> NDArray[np.float64]:
    """Fit the plain student, which regresses on public features, to true labels."""
    own = own[:MAX_REGRESSED_ROWS]
    task = Task(sample.inputs[own], sample.spec, sample.classes)
    answers = Answers.of_labels(sample.labels[own], len(sample.classes))
    student = choose(task, answers, Training(method=PLAIN_METHOD)).student
    shares: NDArray[np.float64] = student.probabilities(asked)
    return shares


def _grow_forest(
    sample: Dataset, own: NDArray[np.int64], asked: NDArray[np.generic]
) -> NDArray[np.float64]:
    from sklearn.ensemble import RandomForestClassifier  # takes a second

    leaf = 3 if len(sample.classes) == 2 else 1  # ranks are better by larger ones
    forest = RandomForestClassifier(TREES, min_samples_leaf=leaf, random_state=0)
    return _fit_trees(forest, sample, own, asked)


def _boost(
    sample: Dataset, own: NDArray[np.int64], asked: NDArray[np.generic]
) -> NDArray[np.float64]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    classes = len(sample.classes)
    rounds = ROUNDS if classes == 2 else max(1, min(ROUNDS, MAX_BOOSTED_TREES // classes))
    boosted = HistGradientBoostingClassifier(
        max_iter=rounds,
        max_leaf_nodes=15,
        min_samples_leaf=10,
        early_stopping=False,
        random_state=0,
    )
    return _fit_trees(boosted, sample, own, asked)


def _fit_trees(
    model: Any, sample: Dataset, own: NDArray[np.int64], asked: NDArray[np.generic]
) -> NDArray[np.float64]:
    """Fit trees in one thread: of so few rows, several wait for each other ten times as long."""
    from threadpoolctl import threadpool_limits

    own = own[:MAX_ROWS]
    shares = np.zeros((len(asked), len(sample.classes)))
    if len(np.unique(sample.labels[own])) == 1:
        shares[:, sample.labels[own[0]]] = 1
        return shares
    with threadpool_limits(1):
        model.fit(sample.inputs[own], sample.labels[own])
        shares[:, model.classes_] = model.predict_proba(asked)
    return shares


REGRESSION = "regression"
# What is tried, by the name that owners read.
MODELS: dict[str, Predict] = {REGRESSION: _regress, "forest": _grow_forest, "boosting": _boost}
