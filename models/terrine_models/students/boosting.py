"""Gradient boosting of public labels of a table, by scikit-learn's histograms.

Where labels are exact it is what does best on most tables. Of noisy counts a forest is as good, in
a fraction of the time (`trees`), so no student of answers is trained by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from terrine_models.features.bases import prepare
from terrine_models.features.trees import MAX_DEPTH, boosting_arrays
from terrine_models.students.answers import Answers, Bools, Floats, Ints
from terrine_models.students.models import (
    Student,
    StudentMethod,
    Task,
    Training,
    TreePart,
    tree_student,
)
from terrine_models.students.trees import require_scikit_learn

# Numbers of rounds that are tried.
ROUNDS = (10, 20, 40, 70, 100, 150)
# Trees at most, of which each round has one for each class.
MAX_BOOSTED_TREES = 1_500
# Leaves of a tree at most, and rows in a leaf at least.
MAX_LEAVES, MIN_LEAF_ROWS = 15, 20
LEARNING_RATE = 0.1
# By which our scores of trees may differ from scikit-learn's.
MAX_DIFFERENCE = 1e-3
# How many labels a class is taken to have of which there are none.
UNSEEN_LABELS = 0.5


class Boosting(StudentMethod):
    """Boosted trees, for as many rounds as say most of labels that were held out."""

    wants = "tables"

    def __init__(self, training: Training, rounds: int | None = None) -> None:
        """rounds: those that were chosen before; None: they are chosen by the labels."""
        super().__init__(training)
        self.rounds = rounds

    @classmethod
    def can_learn(cls, task: Task) -> bool:
        """Rows of a table."""
        return task.is_table

    def fit(self, task: Task, answers: Answers) -> Student:
        """Raises ValueError on too few labels to choose a number of rounds by."""
        chosen, rounds = task.cached(_known_rounds), self.rounds
        if rounds is None:
            if answers not in chosen:
                folds = answers.folds(task.seed, task.inputs)
                if folds is None:
                    raise ValueError("there are too few labels to choose a number of rounds by")
                self.judge(task, answers, folds)
            rounds = chosen[answers]
        part = _Boosted.of(task, answers, rounds).part(task)
        how: dict[str, int | float | str] = {"method": "boosting", "rounds": rounds}
        return tree_student(task.spec, task.classes, how, part, task.encoding)

    def judge(self, task: Task, answers: Answers, folds: Ints) -> Floats:
        """The folds choose the number of rounds, too: a choice of six says next to nothing."""
        most = MAX_BOOSTED_TREES // max(1, len(task.classes) - 1)
        tried = [each for each in ROUNDS if each <= most] or [ROUNDS[0]]
        said = np.zeros((len(tried), *answers.shares.shape))
        for fold in np.unique(folds[folds >= 0]):
            rows = folds == fold
            boosted = _Boosted.of(task, answers.only(~rows), tried[-1])
            for place, scores in enumerate(boosted.staged(task, rows, tried)):
                said[place, rows] = softmax(scores, axis=1)
        judged = folds >= 0
        shares = answers.shares[judged]
        losses = [-(shares * np.log(np.maximum(each[judged], 1e-9))).sum() for each in said]
        best = int(np.argmin(losses))
        task.cached(_known_rounds)[answers] = tried[best]
        found: Floats = said[best]
        return found


def _known_rounds(task: Task) -> WeakKeyDictionary[Answers, int]:
    return WeakKeyDictionary()


def _one_thread() -> AbstractContextManager[Any]:
    """Threads that wait for each other, on a busy machine, take many times as long as one."""
    from threadpoolctl import threadpool_limits

    found: AbstractContextManager[Any] = threadpool_limits(limits=1, user_api="openmp")
    return found


@dataclass(frozen=True, eq=False)
class _Boosted:
    """A model of scikit-learn, of those classes of which there are labels."""

    fitted: Any
    rows: NDArray[np.float32]
    """Those that it learned from."""
    shown: Ints
    """The class of each of its scores."""
    classes: int
    lacking: float
    """The score of every other class."""

    @classmethod
    def of(cls, task: Task, answers: Answers, rounds: int) -> _Boosted:
        """Each row is in it once for each class that has a share, with that as its weight."""
        require_scikit_learn()
        from sklearn.ensemble import HistGradientBoostingClassifier

        known = answers.known
        prepared = prepare(np.asarray(task.x)[known], task.spec)
        shares = answers.shares[known]
        row, label = np.nonzero(shares > 0)
        shown = np.unique(label)
        rows = np.ascontiguousarray(prepared[row], dtype=np.float32)
        fitted: Any = None
        if len(shown) > 1:
            with _one_thread():
                fitted = HistGradientBoostingClassifier(
                    learning_rate=LEARNING_RATE,
                    max_iter=rounds,
                    max_leaf_nodes=MAX_LEAVES,
                    max_depth=MAX_DEPTH,
                    min_samples_leaf=MIN_LEAF_ROWS,
                    early_stopping=False,
                    random_state=task.seed,
                ).fit(rows, label, shares[row, label])
        lacking = float(np.log(UNSEEN_LABELS / len(prepared)))
        return cls(fitted, rows, shown, len(task.classes), lacking)

    def staged(self, task: Task, chosen: Bools, tried: Sequence[int]) -> list[Floats]:
        """Scores [K, m] of some of the inputs, after each number of rounds that is tried."""
        rows = prepare(np.asarray(task.x)[chosen], task.spec)
        if self.fitted is None:
            return [self._placed(np.zeros((len(rows), 1))) for _ in tried]
        with _one_thread():
            found = enumerate(self.fitted.staged_decision_function(rows), 1)
            return [self._placed(scores) for done, scores in found if done in tried]

    def _placed(self, scores: Floats) -> Floats:
        """Scores [B, m] of all classes: scikit-learn has one score of two classes."""
        found = np.full((len(scores), self.classes), self.lacking)
        own = scores.reshape(len(scores), -1)
        if own.shape[1] < len(self.shown):
            own = np.hstack([np.zeros_like(own), own])
        found[:, self.shown] = own
        return found

    def part(self, task: Task) -> TreePart:
        """The same scores, without scikit-learn. Raises RuntimeError if they are not the same."""
        arrays = boosting_arrays(self.fitted)
        scored = self.shown[1:] if len(self.shown) == 2 else self.shown
        tree = np.tile(scored, len(arrays.sizes) // len(scored))
        leaves_of = (np.asarray(arrays.sizes) + 1) // 2
        leaves = np.zeros((len(arrays.leaves), self.classes))
        leaves[np.arange(len(leaves)), np.repeat(tree, leaves_of)] = arrays.leaves
        start = self._placed(np.atleast_2d(self.fitted._baseline_prediction))[0]
        part = TreePart.of(arrays._replace(leaves=leaves), start, task.spec.shape[0])
        some = self.rows[:: max(1, len(self.rows) // 1000)]
        expected = self._placed(self.fitted.decision_function(some))
        if not np.allclose(part.scores(some), expected, atol=MAX_DIFFERENCE):
            raise RuntimeError(
                "The trees of this version of scikit-learn are laid out in another way than "
                "Terrine reads them. Install scikit-learn 1.6 to 1.9."
            )
        return part
