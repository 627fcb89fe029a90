"""A student of released sums: it asks nothing, and needs no more than unlabelled rows.

    student = fit_sums(released, Task(pool, spec, classes))

It is a regression on public features, as other students are, and leaves as they do.
"""

from __future__ import annotations

import numpy as np

from terrine_models.students.answers import Floats
from terrine_models.students.calibration import Cut, Threshold
from terrine_models.students.labels import PublicModel
from terrine_models.students.models import LinearPart, Student, Task, linear_student
from terrine_models.sums import ReleasedSums, SumScores, find_cut, fit_scores


def fit_sums(
    released: ReleasedSums,
    task: Task,
    threshold: Threshold = "prior",
    public: PublicModel | None = None,
) -> Student:
    """Return a student that has the released sums on the rows of the task. Raises DataError.

    threshold: as for other students; `prior` is the released share of the second of two classes,
    among the task's rows as they are tilted. public: a model of public labels, whose scores are
    corrected if the sums are likelier so than without it.
    """
    found = fit_scores(released, task.x)
    corrected = None if public is None else fit_scores(released, task.x, base=public.unseen)
    if public is not None and corrected is not None and corrected.evidence > found.evidence:
        found = corrected
        student = public.student(task, [linear_part(released, found)])
        student = student.with_model(training={**student.model.training, "method": "sums"})
    else:
        parts = [linear_part(released, found)]
        student = linear_student(task.spec, task.classes, {"method": "sums"}, parts, task.encoding)
    cut = cut_of(released, found, student.probabilities(np.asarray(task.x)), threshold)
    by_shares = threshold == "prior" and cut is not None
    return student.with_model(
        threshold=cut,
        prior=tuple(released.prior.tolist()),
        cut=Cut("public", len(task.x)) if by_shares else None,
    )


def linear_part(released: ReleasedSums, found: SumScores) -> LinearPart:
    """The same scores on the public features as they are: centre and basis are in the weights."""
    known = released.map
    weights = known.basis @ found.weights
    biases = found.biases - known.centre @ weights
    return LinearPart(known.features, weights.astype(np.float32), biases.astype(np.float32))


def cut_of(
    released: ReleasedSums, found: SumScores, probabilities: Floats, threshold: Threshold
) -> float | None:
    """Return from which probability the second of two classes is predicted; None: the likelier.

    `prior`: as `find_cut` has it.
    """
    if threshold == "prior":
        return find_cut(released, found, probabilities)
    return None if threshold == "accuracy" or probabilities.shape[1] != 2 else threshold
