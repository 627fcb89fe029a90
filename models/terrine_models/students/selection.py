"""Which student to return, and what it is worth: judged by answers that it was trained without.

    task = Task(x, spec, classes)
    made = choose(task, Answers.of_labels(labels, len(classes)))
    made.student, made.choice.why

Answers that were paid for are held out in turn (cross-validation). That uses bought answers and
public inputs only, so it costs no privacy (post-processing), however often it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.features.bases import BLOCK_IMAGES, base_features, base_of
from terrine_models.students.answers import (
    Answers,
    Estimate,
    EstimatedMetrics,
    Floats,
    Ints,
    estimate_auc_lead,
    estimate_lead,
    estimate_metrics,
)
from terrine_models.students.calibration import (
    Calibration,
    Cut,
    CutSource,
    calibrate,
    choose_threshold,
    confine_rarer_class,
)
from terrine_models.students.methods import METHODS, check_method
from terrine_models.students.models import Student, Task, Training

Tell = Callable[[str], None]
# What every student is compared with.
PLAIN_METHOD = "ridge"
# By which a student must be ahead, or where its method is usually better may be behind, to be taken
# instead of the plain one. Where labels are mostly noise that one loses least: of 400 of digits, a
# quarter right, a regression was right on 59 % of new ones, and a kernel that was 1.6 standard
# errors behind it on 36 %.
MIN_LEAD_STANDARD_ERRORS = 1.0
# By which a student must fit less than is allowed to have collapsed.
COLLAPSE_STANDARD_ERRORS = 2.0
# Share of the answers by which a student may fit fewer than the plain one predicts unseen before
# that counts as a collapse.
MAX_AGREEMENT_LOSS = 0.02
# Share of the held-out answers by which methods are compared with the plain one: those of which it
# is surest. It smooths votes over all inputs, so there they are clear. Where they are not, many
# voters are wrong, and a student that is better than they disagrees with them: of noisy counts of
# MNIST's training images, students that were right on up to one percent more agreed with half a
# percent less of the votes. Of a table's two classes, AUC compares them: where one is rare, who
# says it less often agrees with more.
CLEAR_SHARE = 0.75
# Public inputs of which the plain student predicts a class that counts as lost.
MIN_INPUTS_OF_LOST_CLASS = 10
# A class is lost if the plain student predicts it for more than so many times as many inputs.
LOST_CLASS_FACTOR = 4
# Share of the public inputs and of the classes that may be lost: of many, rare ones vary.
MAX_LOST_SHARE = 0.02


@dataclass(frozen=True)
class JudgedMethod:
    """A method, and how its students agree with answers that they did not see."""

    method: str
    figures: EstimatedMetrics


@dataclass(frozen=True)
class Choice:
    """What was tried, what was returned, and why."""

    asked: str
    chosen: str
    why: str
    judged: tuple[JudgedMethod, ...]
    """The plain student first. Empty if there were too few answers to judge by."""
    answers: int
    folds: int
    """0 without cross-validation."""
    noisy: bool
    """Whether answers are votes with noise; metrics are then shares of the teachers."""
    threshold: float | None
    """Probability from which the second of two classes is said; None: the likelier class."""
    largest: float | None = None
    """Share of the answers for their largest class: with what always saying it would agree."""
    cut: Cut | None = None
    """On which rows it was placed how often each class is said, by shares of classes."""

    @property
    def figures(self) -> EstimatedMetrics | None:
        """Those of the student that is returned; None if it was not judged."""
        return next((each.figures for each in self.judged if each.method == self.chosen), None)


@dataclass(frozen=True, eq=False)
class TrainedStudent:
    """A finished student, the plain one of the same answers, and how it was chosen."""

    student: Student
    plain: Student
    choice: Choice


@dataclass(frozen=True, eq=False)
class _Trial:
    """What students of one method say of the answers that they did not see."""

    judged: JudgedMethod
    predicted: Ints
    """[K], of each answer."""
    probabilities: Floats
    """[K, m]."""
    margins: Floats
    """[K], by how much the most probable class is ahead."""
    calibration: Calibration
    fewer: float
    """Of two classes: how often the rarer is said, relative to its prior, if
    `confine_rarer_class` confines it."""


def choose(
    task: Task,
    answers: Answers,
    training: Training | None = None,
    *,
    tell: Tell = lambda line: None,
) -> TrainedStudent:
    """Train the student that suits a task and the answers to it.

    `auto` takes, of the other methods that suit, the one whose students agree with most answers
    that they did not see, if it is ahead of the plain student by a standard error, or on pictures,
    whose methods are usually better, not behind it by one (`_estimate_lead`). A method that
    was asked for is kept, unless its student is much worse than the plain one, or lost classes.
    tell: called as each stage begins. Raises ValueError for what `check` refuses.
    """
    training = training or Training()
    asked = training.method
    check_method(asked, task)
    if answers.shares.shape != (len(task.x), len(task.classes)):
        raise ValueError(
            f"answers have shape {answers.shares.shape}, expected one row for each of the "
            f"{len(task.x)} inputs and {len(task.classes)} classes"
        )
    task = task.with_best_view(answers)
    different = len(np.unique(task.inputs[answers.known]))
    suited = [
        name
        for name, method in METHODS.items()
        if method.suits(task)
        # Labels are on inputs that teachers agree on, and do not tell who is better on others.
        and (method.is_usually_better or answers.noise > 0)
        and different >= method.min_answers
    ]
    tried = suited if asked == "auto" else [asked]
    folds = answers.folds(task.seed, task.inputs)
    trials: dict[str, _Trial] = {}
    if folds is not None:
        for name in dict.fromkeys((PLAIN_METHOD, *tried)):
            tell(f"Judging {name} by answers that were held out …")
            trials[name] = _judge(name, task, answers, folds, training)

    def agreement(name: str) -> float:
        return trials[name].judged.figures.accuracy.value if trials else 0.0

    def train(name: str) -> Student:
        tell(f"Training {name} …")
        student = METHODS[name](training).fit(task, answers)
        if name in trials:
            student = student.with_model(calibration=trials[name].calibration)
            return place_cut(student, task, answers, training, trials[name].fewer)
        if task.designed is not None:
            student = student.with_model(prior=tuple(task.designed.prior.tolist()))
        return student

    others = [name for name in tried if name != PLAIN_METHOD]
    wanted = max(others, key=agreement, default=PLAIN_METHOD)
    plain = train(PLAIN_METHOD)
    student, chosen = plain, PLAIN_METHOD
    if folds is None:
        why = (
            f"{answers.known.sum()} answers for {len(task.classes)} classes are too few to compare "
            "methods by: the plain student is used."
        )
    elif wanted == PLAIN_METHOD:
        why = "It is the plain student" + (", as asked." if asked != "auto" else ", which suits.")
    else:
        ahead = _estimate_lead(trials[wanted], trials[PLAIN_METHOD], task, answers)
        gap = f"{ahead.value:+.2%} (± {ahead.error:.2%}) against {PLAIN_METHOD}"
        if _is_ranked(task):
            gap = f"of AUC, by held-out answers, it has {gap}"
        else:
            gap = f"of the clearest {CLEAR_SHARE:.0%} of the held-out answers it has {gap}"
        preferred = METHODS[wanted].is_usually_better
        least = (-1 if preferred else 1) * MIN_LEAD_STANDARD_ERRORS * ahead.error
        if asked == "auto" and ahead.value < least:
            better = "better" if ahead.value < 0 else "as good, as far as that shows"
            why = f"{wanted}: {gap}. The plain student is {better}."
        else:
            trained = train(wanted)
            fault = _collapse(trained, plain, task, answers, trials[PLAIN_METHOD].predicted)
            if fault is None:
                student, chosen, why = trained, wanted, f"{gap[0].upper()}{gap[1:]}."
            else:
                why = f"The student trained with {wanted} collapsed: {fault}"
    choice = Choice(
        asked=asked,
        chosen=chosen,
        why=why,
        judged=tuple(trial.judged for trial in trials.values()),
        answers=int(answers.known.sum()),
        folds=0 if folds is None else int(folds.max()) + 1,
        noisy=answers.noise > 0,
        threshold=student.model.threshold,
        largest=min(1.0, float(answers.prior.max())),
        cut=student.model.cut,
    )
    return TrainedStudent(student, plain, choice)


def place_cut(
    student: Student, task: Task, answers: Answers, training: Training, fewer: float
) -> Student:
    """The student, calibrated before, with its threshold: of designed inputs by natural rows."""
    threshold = choose_threshold(training.threshold, student.probabilities(task.x), answers, fewer)
    by_shares = threshold is not None and training.threshold == "prior"
    cut = Cut("public", len(task.x)) if by_shares else None
    student = student.with_model(threshold=threshold, cut=cut)
    if task.designed is None:
        return student
    student = student.with_model(prior=tuple(task.designed.prior.tolist()))
    if training.threshold != "prior":
        return student
    source: CutSource = "public" if task.designed.of_public else "drawn"
    return student.with_cut(task.designed.natural, source)


def _judge(name: str, task: Task, answers: Answers, folds: Ints, training: Training) -> _Trial:
    known = answers.known
    shares = answers.shares[known]
    held_out = METHODS[name](training).judge(task, answers, folds)[known]
    calibration = calibrate(held_out, shares)
    probabilities = calibration.probabilities(np.log(np.maximum(held_out, 1e-12)))
    fewer = confine_rarer_class(probabilities, answers)
    threshold = choose_threshold(training.threshold, probabilities, answers, fewer)
    predicted = probabilities.argmax(axis=1)
    if threshold is not None:
        predicted = (probabilities[:, 1] >= threshold).astype(np.int64)
    found = estimate_metrics(shares, predicted, probabilities, task.inputs[known])
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    judged = JudgedMethod(name, found)
    return _Trial(judged, predicted, probabilities, first - second, calibration, fewer)


def _is_ranked(task: Task) -> bool:
    return task.is_table and len(task.classes) == 2


def _estimate_lead(trial: _Trial, plain: _Trial, task: Task, answers: Answers) -> Estimate:
    """By how much one method is better than the plain one, by answers that both did not see.

    Of two classes of a table, in AUC; else in how many of the answers it agrees with of which the
    plain one is sure.
    """
    if _is_ranked(task):
        one, other = (each.probabilities[:, 1] for each in (trial, plain))
        known = answers.known
        return estimate_auc_lead(answers.shares[known], one, other, task.inputs[known])
    clear = plain.margins >= np.quantile(plain.margins, 1 - CLEAR_SHARE)
    shares, inputs = answers.shares[answers.known][clear], task.inputs[answers.known][clear]
    return estimate_lead(shares, trial.predicted[clear], plain.predicted[clear], inputs)


def _collapse(
    student: Student, plain: Student, task: Task, answers: Answers, unseen_by_plain: Ints
) -> str | None:
    """What is wrong with a student that was trained on all answers; None if nothing is.

    Losses on unlabelled inputs reward confident and constant predictions, so a student may give up
    classes as training goes on, which no loss shows. It should fit the answers that it was trained
    on about as well as the plain student predicts them unseen.
    """
    own, usual = student.predict_indices(task.x), plain.predict_indices(task.x)
    says, said = (np.bincount(each, minlength=len(task.classes)) for each in (own, usual))
    lost = np.flatnonzero((said >= MIN_INPUTS_OF_LOST_CLASS) & (LOST_CLASS_FACTOR * says < said))
    if len(lost) and (
        len(lost) > MAX_LOST_SHARE * len(task.classes)
        or said[lost].sum() > MAX_LOST_SHARE * len(own)
    ):
        names = ", ".join(task.classes[k] for k in lost)
        return f"it hardly ever says {names}, which the plain student says of {said[lost].sum():,}."
    known = answers.known
    ahead: Estimate = estimate_lead(
        answers.shares[known], own[known], unseen_by_plain, task.inputs[known]
    )
    if ahead.value < -MAX_AGREEMENT_LOSS - COLLAPSE_STANDARD_ERRORS * ahead.error:
        return (
            f"of the answers that it was trained on, it fits {-ahead.value:.1%} fewer than the "
            "plain student predicts unseen."
        )
    return None


ORDER_COMPONENTS = 60
# Number of inputs that are spread out; the others follow in random order.
MAX_SPREAD_INPUTS = 2048


def asking_order(x: NDArray[np.generic], inputs: InputSpec, seed: int) -> NDArray[np.int64]:
    """An order [N] of inputs [N, *shape] of which any beginning represents the whole.

    Each next input is drawn with a probability proportional to its distance from the nearest one
    before it, so that rare kinds of input come early and near copies late. After Arthur and
    Vassilvitskii, "k-means++", SODA 2007, who square the distance; that would draw too many
    outliers, on which teachers disagree.
    """
    random = np.random.default_rng(seed)
    points = _points(x, inputs)
    squares = (points * points).sum(1)
    nearest = np.full(len(points), np.inf)
    chosen: list[int] = []
    free = np.ones(len(points), dtype=bool)
    following = int(random.integers(len(points)))
    while len(chosen) < min(MAX_SPREAD_INPUTS, len(points)):
        chosen.append(following)
        free[following] = False
        distances = squares + squares[following] - 2 * (points @ points[following])
        nearest = np.minimum(nearest, np.maximum(distances, 0))
        weights = np.sqrt(nearest) * free
        if not weights.any():  # only copies of what was chosen are left
            break
        following = int(random.choice(len(points), p=weights / weights.sum()))
    return np.concatenate([np.array(chosen), random.permutation(np.flatnonzero(free))])


def _points(x: NDArray[np.generic], inputs: InputSpec) -> NDArray[np.float64]:
    """[N, at most ORDER_COMPONENTS]: principal components of the features of inputs [N, *shape]."""
    blocks = [x[at : at + BLOCK_IMAGES] for at in range(0, len(x), BLOCK_IMAGES)]
    base = base_of(inputs)
    found = side_by_side(lambda block: base_features(base, block, inputs), blocks)
    features = np.concatenate(found)
    centred = features - features.mean(axis=0)
    width = min(ORDER_COMPONENTS, *centred.shape)
    random = np.random.default_rng(0).standard_normal((centred.shape[1], width), dtype=np.float32)
    for _ in range(3):  # subspace iteration
        random, _ = np.linalg.qr(centred.T @ (centred @ random))
    points: NDArray[np.float64] = (centred @ random).astype(np.float64)
    return points
