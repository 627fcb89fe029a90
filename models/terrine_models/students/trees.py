"""A random forest as a student of tables: where answers jump with a column, or with several.

    Trees(training).fit(task, answers)

scikit-learn grows it, on the shares of all classes at once. Noise of mean 0 leaves a leaf's mean
unbiased, so noisy shares, which may be negative, are taken as they are; how many rows a leaf must
have is chosen by what trees say of rows that they did not see. To use the student scikit-learn is
not needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import softmax

from terrine_models.features.bases import prepare
from terrine_models.features.trees import MAX_DEPTH, forest_arrays
from terrine_models.students.answers import Answers, Floats, Ints
from terrine_models.students.calibration import calibrate
from terrine_models.students.models import (
    LINEAR_SHARE_FACTOR,
    Student,
    StudentMethod,
    Task,
    TreePart,
    tree_student,
)

TREES = 100
# Share of the columns among which each question is chosen.
COLUMN_SHARE = 0.3
# Rows that a leaf has at least, the fewer the less noise there is.
LEAF_ROWS = (300, 100, 30, 10, 3, 1)
# Leaves below which a forest says next to nothing.
MIN_LEAVES = 3
# Distinct rows with an answer, at least.
MIN_ROWS = 10
# The same, for `auto` to try: of fewer, a regression is as good.
MIN_JUDGED_ROWS = 200


@dataclass(frozen=True, eq=False)
class Forest:
    """A forest of distinct rows, and what its trees say of those that they did not see."""

    part: TreePart
    leaf_rows: int
    unseen: Floats
    """[N, m], shares of the task's inputs that are known; 0 of others."""

    @classmethod
    def of(cls, task: Task, answers: Answers) -> Forest:
        """Grow it, once for each set of answers. Raises ValueError where there is too little."""
        known = task.cached(_forests)
        if answers not in known:
            known[answers] = _grow(task, answers)
        return known[answers]


def _forests(task: Task) -> WeakKeyDictionary[Answers, Forest]:
    return WeakKeyDictionary()


def _grow(task: Task, answers: Answers) -> Forest:
    """The forest, of several sizes of leaves, whose calibrated shares are nearest to unseen ones.

    By squared errors, which noise does not bias. From large leaves to small ones, until that is
    worse.
    """
    require_scikit_learn()
    from sklearn.ensemble import RandomForestRegressor

    # Equal inputs have one answer, with one draw of noise: a tree sees all of them, or none.
    _, first, place, count = np.unique(
        task.inputs[answers.known], return_index=True, return_inverse=True, return_counts=True
    )
    if len(first) < MIN_ROWS:
        raise ValueError(
            f"{len(first)} different inputs have an answer; a forest needs at least {MIN_ROWS}."
        )
    rows = prepare(np.asarray(task.x)[answers.known][first], task.spec)
    shares = answers.shares[answers.known][first]
    best: Any = None
    least, unseen, chosen = np.inf, shares, 0
    for leaf_rows in LEAF_ROWS:
        if leaf_rows > 1 and MIN_LEAVES * leaf_rows > len(rows):
            continue
        forest = RandomForestRegressor(
            TREES,
            max_depth=MAX_DEPTH,
            max_features=COLUMN_SHARE,
            min_samples_leaf=leaf_rows,
            oob_score=True,
            n_jobs=os.cpu_count(),
            random_state=task.seed,
        ).fit(rows, shares, count)
        said = LINEAR_SHARE_FACTOR * forest.oob_prediction_.reshape(shares.shape)
        fitted = calibrate(softmax(said, axis=1), shares).probabilities(said)
        error = float(count @ ((fitted - shares) ** 2).sum(axis=1))
        if error > least:
            break
        best, least, unseen, chosen = forest, error, forest.oob_prediction_, leaf_rows
    arrays = forest_arrays(best.estimators_)
    leaves = LINEAR_SHARE_FACTOR / TREES * arrays.leaves.reshape(-1, shares.shape[1])
    part = TreePart.of(arrays._replace(leaves=leaves), np.zeros(shares.shape[1]), rows.shape[1])
    held_out = np.zeros(answers.shares.shape)
    held_out[answers.known] = unseen.reshape(shares.shape)[place]
    return Forest(part, chosen, held_out)


class Trees(StudentMethod):
    """A random forest of the shares: it needs no map of inputs to features, and no other input."""

    wants = "tables"
    is_usually_better = False
    min_answers = MIN_JUDGED_ROWS

    @classmethod
    def can_learn(cls, task: Task) -> bool:
        """Rows of a table."""
        return task.is_table

    @classmethod
    def suits(cls, task: Task) -> bool:
        """Tables without texts: of a text's many n-grams a tree asks about a few alone."""
        return task.is_table and task.spec.texts is None and find_spec("sklearn") is not None

    def fit(self, task: Task, answers: Answers) -> Student:
        """Raises ValueError on too few answers."""
        forest = Forest.of(task, answers)
        how: dict[str, int | float | str] = {
            "method": "trees",
            "trees": TREES,
            "leaf_rows": forest.leaf_rows,
        }
        return tree_student(task.spec, task.classes, how, forest.part, task.encoding)

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """Each tree was grown on some of the rows: those that did not see a row speak of it."""
        shares = Forest.of(task, answers).unseen
        found: Floats = softmax(LINEAR_SHARE_FACTOR * shares, axis=1)
        found[folds < 0] = 0
        return found


def require_scikit_learn() -> None:
    """Raise ModuleNotFoundError if scikit-learn is not installed, saying what to do."""
    if find_spec("sklearn") is None:
        raise ModuleNotFoundError(
            "Trees are grown by scikit-learn, which is not installed. In a checkout: "
            "pip install '.[student]'. To use a trained student it is not needed.",
            name="sklearn",
        )
