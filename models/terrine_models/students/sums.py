"""A student of released sums: it asks nothing, and needs no more than unlabelled rows.

    student = fit_sums(released, Task(pool, spec, classes))

It is a regression on public features, as other students are, and leaves as they do.
"""

from __future__ import annotations

import numpy as np
from scipy.special import softmax
from scipy.stats import chi2

from terrine_models.students.answers import Floats
from terrine_models.students.calibration import Cut, Threshold, calibrate
from terrine_models.students.labels import MIN_PROBABILITY, PublicModel
from terrine_models.students.models import LinearPart, Student, Task, linear_student
from terrine_models.students.selection import MIN_LEAD_STANDARD_ERRORS
from terrine_models.sums import ReleasedSums, SumScores, find_cut, fit_scores

# Probability of sums that are as far from what public labels say, if these are right, below which
# they refute the labels alone.
REFUTED = 0.01
# By which a public model must say more of held-out labels than their shares do, to go without one.
MIN_KNOWN_STANDARD_ERRORS = 3.0
# How much of a correction is added that public labels neither confirm nor refute.
DOUBTED_SHARE = 0.5


def fit_sums(
    released: ReleasedSums,
    task: Task,
    threshold: Threshold = "prior",
    public: PublicModel | None = None,
) -> Student:
    """Return a student that has the released sums on the rows of the task. Raises DataError.

    threshold: as for other students; `prior` is the released share of the second of two classes,
    among the task's rows as they are tilted. public: a model of public labels, whose scores are
    corrected as far as both the sums and labels that were held out speak for it.
    """
    found = fit_scores(released, task.x)
    share = None
    if public is not None:
        corrected = fit_scores(released, task.x, base=public.unseen)
        share = _choose_share(released, task, found, corrected, public)
    if public is None or share is None:
        parts = [linear_part(released, found)]
        student = linear_student(task.spec, task.classes, {"method": "sums"}, parts, task.encoding)
    else:
        found = corrected
        parts = [linear_part(released, found, share)] if share else []
        student = public.student(task, parts)
        if share:
            how = {**student.model.training, "method": "sums", "correction": share}
            student = student.with_model(training=how)
    cut = cut_of(released, found, student.probabilities(np.asarray(task.x)), threshold)
    by_shares = threshold == "prior" and cut is not None
    return student.with_model(
        threshold=cut,
        prior=tuple(released.prior.tolist()),
        cut=Cut("public", len(task.x)) if by_shares else None,
    )


def _choose_share(
    released: ReleasedSums,
    task: Task,
    alone: SumScores,
    corrected: SumScores,
    public: PublicModel,
) -> float | None:
    """Return how much of the correction is added to the public scores; None: the sums stand alone.

    These do if they are likelier without the labels, or say more of held-out labels by a standard
    error. Else held-out labels say whether the correction helps. But they may be wrong, or other
    people's: where little of them can be said, or the sums refute what is, it is added in full.
    """
    if corrected.evidence <= alone.evidence:
        return None
    labels = public.held_out
    places, prior = released.map.places(labels.x), labels.shares.mean(axis=0, keepdims=True)
    constant = np.log(np.maximum(prior, MIN_PROBABILITY)).repeat(len(places), axis=0)
    of_sums, of_both, of_labels, of_none = (
        _measure_errors(scores, labels.shares)
        for scores in (
            alone.scores(places),
            labels.scores + corrected.scores(places),
            labels.scores,
            constant,
        )
    )
    if _measure_lead(of_sums, of_both) > MIN_LEAD_STANDARD_ERRORS:
        return None
    lead = _measure_lead(of_both, of_labels)
    if (
        lead > MIN_LEAD_STANDARD_ERRORS
        or _measure_lead(of_labels, of_none) < MIN_KNOWN_STANDARD_ERRORS
        or _is_refuted(released, task, corrected.tilt, public)
    ):
        return 1.0
    return DOUBTED_SHARE if lead > -MIN_LEAD_STANDARD_ERRORS else 0.0


def _measure_errors(scores: Floats, shares: Floats) -> Floats:
    """How far scores [K, m], as well calibrated as can be, are from shares [K, m]: squared, [K]."""
    found = calibrate(softmax(scores, axis=1), shares).probabilities(scores.copy())
    errors: Floats = ((found - shares) ** 2).sum(axis=1)
    return errors


def _measure_lead(errors: Floats, others: Floats) -> float:
    """By how many standard errors the errors [K] are smaller than others [K] of the same rows."""
    ahead = others - errors
    error = float(ahead.std()) / len(ahead) ** 0.5
    return float(ahead.mean()) / error if error else 0.0


def _is_refuted(released: ReleasedSums, task: Task, tilt: Floats, public: PublicModel) -> bool:
    """Whether the public scores, not corrected, are too far from the sums to be right.

    By χ² of what is missed of the means of features, about their centre. Its covariance is that of
    their noise, and of what the private people and the pool leave open.
    """
    rows, known = tilt > 0, released.map
    tilt, points = tilt[rows], known(task.x[rows]) / known.norm
    centre = tilt @ points
    points -= centre
    shares = softmax(public.unseen[rows], axis=1)
    weighed = shares * tilt[:, None]
    means = released.means
    missed = points.T @ weighed - (means[:-1] - np.outer(centre, means[-1]))
    left = np.diag(released.prior) / released.units + weighed.T @ shares * (tilt**2).sum()
    errors = released.errors + (tilt @ points**2)[:, None, None] * left
    told = np.linalg.solve(errors, missed[:, :, None])[:, :, 0]
    return bool(chi2.sf((missed * told).sum(), missed.size) < REFUTED)


def linear_part(released: ReleasedSums, found: SumScores, share: float = 1.0) -> LinearPart:
    """`share` times the same scores on the public features as they are.

    Centre and basis are in the weights.
    """
    known = released.map
    weights = known.basis @ (share * found.weights)
    biases = share * found.biases - known.centre @ weights
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
