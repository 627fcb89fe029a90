"""Labels of public inputs that a student may use beside private answers, or released sums.

    labels = PublicLabels(x, classes)                                # [L, *shape], [L]
    made = choose_with_labels(task, answers, labels)

They cost no privacy and have none: a student of them tells what they are. A public model of them
comes first. What the private records add corrects its scores, where that agrees with more of the
answers that were held out; else the student is the model alone, or one of the answers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from terrine_models.data.arrays import number_distinct_rows
from terrine_models.students.answers import (
    MIN_ANSWERS_PER_CLASS,
    Answers,
    Bools,
    Floats,
    Ints,
    estimate_metrics,
    usual_spread,
)
from terrine_models.students.boosting import Boosting
from terrine_models.students.calibration import (
    Calibration,
    calibrate,
    confine_rarer_class,
)
from terrine_models.students.methods import METHODS
from terrine_models.students.models import (
    LinearPart,
    Regression,
    RidgeModel,
    Student,
    StudentMethod,
    Task,
    Training,
    TreeModel,
    TreePart,
    choose_spread,
    is_answered_nearby,
    linear_student,
    tree_student,
)
from terrine_models.students.selection import (
    JudgedMethod,
    Tell,
    TrainedStudent,
    choose,
    place_cut,
)
from terrine_models.students.trees import Trees, require_scikit_learn

# What a choice calls a student of the public labels alone, and one of both.
LABELS_ALONE, CORRECTED = "labels", "labels+answers"
# How far a correction may spread, relative to a regression that stands alone: of a good model
# little is wrong.
CORRECTION_SPREADS = (1.0, 1 / 16)
# The least probability of which a score is made.
MIN_PROBABILITY = 1e-9


@dataclass(frozen=True, eq=False)
class PublicLabels:
    """Public inputs x [L, *shape], and the class [L] of each, as an index."""

    x: NDArray[np.generic]
    classes: Ints


@dataclass(frozen=True, eq=False)
class HeldOutLabels:
    """Labelled inputs, and what models say of them that did not see their labels."""

    x: NDArray[np.generic]
    """[K, *shape]"""
    shares: Floats
    """[K, m]: of the labels of an input, how many are of each class."""
    scores: Floats
    """[K, m]"""


@dataclass(frozen=True, eq=False)
class PublicModel:
    """A model of public labels alone: scores that are those of its parts."""

    method: str
    rounds: int | None
    """Of boosting."""
    labels: int
    parts: tuple[LinearPart, ...]
    trees: TreePart | None
    unseen: Floats
    """[N, m]: scores of the task's inputs by models that did not see the label of that input."""
    held_out: HeldOutLabels

    def student(
        self, task: Task, further: Sequence[LinearPart] = (), scale: float = 1.0
    ) -> Student:
        """It as a student, with further scores added to `scale` times its own."""
        how: dict[str, int | float | str] = {
            "method": "labels",
            "public_model": self.method,
            "public_labels": self.labels,
        }
        parts = [*(_scaled_part(part, scale) for part in self.parts), *further]
        if self.trees is None:
            return linear_student(task.spec, task.classes, how, parts, task.encoding)
        trees = self.trees.scaled(scale)
        return tree_student(task.spec, task.classes, how, trees, task.encoding, parts=parts)


def check_public(task: Task, labels: PublicLabels) -> None:
    """Raise ValueError unless the labels are enough to choose a public model by.

    And ModuleNotFoundError where trees are tried and scikit-learn is not installed.
    """
    if len(np.unique(labels.classes)) < 2:
        raise ValueError(
            "All public labels are of one class, so they tell nothing apart. Add labels of "
            "another, or leave them out."
        )
    distinct = int(number_distinct_rows(np.asarray(labels.x)).max()) + 1
    least = MIN_ANSWERS_PER_CLASS * len(task.classes)
    if distinct < least:
        raise ValueError(
            f"{distinct} different inputs have public labels, and {len(task.classes)} classes "
            f"need at least {least}. Add labels, or leave them out."
        )
    if task.is_table:
        require_scikit_learn()


def fit_public(task: Task, labels: PublicLabels, tell: Tell = lambda line: None) -> PublicModel:
    """Train a public model, by the method that says most of labels that it did not see.

    Raises what `check_public` raises.
    """
    check_public(task, labels)
    both, known = _with_labels(task, labels)
    folds = known.folds(task.seed, both.inputs)
    assert folds is not None  # noqa: S101 - there are enough
    best, least = None, np.inf
    for name, method in _methods(both).items():
        tell(f"Judging {name} by public labels that were held out …")
        held_out = method.judge(both, known, folds)
        shares = known.shares[known.known]
        calibration = calibrate(held_out[known.known], shares)
        scores = _scores_of(held_out[known.known])
        error = float(((calibration.probabilities(scores) - shares) ** 2).mean())
        if error < least:
            best, least = (name, method, calibration, held_out), error
    assert best is not None  # noqa: S101 - the plain student suits everywhere
    name, method, calibration, held_out = best
    student = method.fit(both, known)
    said = student.probabilities(np.asarray(task.x))
    own = known.known[: len(task.x)]
    said[own] = held_out[: len(task.x)][own]

    def calibrated(said: Floats) -> Floats:
        return _scores_of(calibration.probabilities(_scores_of(said)))

    network, scale, shift = student.network, calibration.scale, calibration.shift
    trees = network.trees.scaled(scale, shift) if isinstance(network, TreeModel) else None
    parts: list[LinearPart] = []
    if isinstance(network, RidgeModel):
        parts = [_scaled_part(part, scale) for part in network.parts]
        parts[0] = _scaled_part(parts[0], 1.0, shift)
    rounds = student.model.training.get("rounds")
    return PublicModel(
        method=name,
        rounds=None if rounds is None else int(rounds),
        labels=len(labels.x),
        parts=tuple(parts),
        trees=trees,
        unseen=calibrated(said),
        held_out=HeldOutLabels(
            both.x[known.known], known.shares[known.known], calibrated(held_out[known.known])
        ),
    )


def _methods(task: Task, rounds: int | None = None) -> dict[str, StudentMethod]:
    """What is tried: of tables without texts, regression and trees; else what suits the inputs.

    rounds: of boosting, if they are chosen already.
    """
    training = Training()
    if task.is_table and task.spec.texts is None:
        return {
            "ridge": METHODS["ridge"](training),
            "trees": Trees(training),
            "boosting": Boosting(training, rounds),
        }
    return {name: method(training) for name, method in METHODS.items() if method.suits(task)}


def _with_labels(task: Task, labels: PublicLabels) -> tuple[Task, Answers]:
    """The task with labelled inputs that it has not, after its own; and the labels as answers.

    Of equal inputs the labels are averaged.
    """
    own = np.asarray(task.x)
    x = np.concatenate([own, np.asarray(labels.x).astype(own.dtype)])
    numbers, classes = number_distinct_rows(x), len(task.classes)
    sums = np.zeros((numbers.max() + 1, classes))
    np.add.at(sums, (numbers[len(own) :], labels.classes), 1.0)
    counts = sums.sum(axis=1, keepdims=True)
    kept = np.append(np.ones(len(own), bool), ~np.isin(numbers[len(own) :], numbers[: len(own)]))
    shares = (sums / np.maximum(counts, 1))[numbers[kept]]
    known = Answers(shares, counts[numbers[kept], 0] > 0)
    return (task if kept.sum() == len(own) else task.with_inputs(x[kept])), known


def _scores_of(probabilities: Floats) -> Floats:
    found: Floats = np.log(np.maximum(probabilities, MIN_PROBABILITY))
    return found


def _scaled_part(part: LinearPart, scale: float, shift: float = 0.0) -> LinearPart:
    biases = scale * part.biases
    biases[1] += shift
    return replace(part, weights=scale * part.weights, biases=biases)


def choose_with_labels(
    task: Task,
    answers: Answers,
    labels: PublicLabels,
    training: Training | None = None,
    *,
    tell: Tell = lambda line: None,
) -> TrainedStudent:
    """Train the student that suits a task, the answers to it and public labels.

    Of a student of the answers alone (`choose`), one of the labels alone and one of both, the one
    that agrees best with answers that none of them saw: of two classes by AUC, else by accuracy.
    Where answers are too few to judge by, the labels alone. Raises ValueError for what `choose` and
    `fit_public` refuse.
    """
    training = training or Training()
    made = choose(task, answers, training, tell=tell)
    task = task.with_best_view(answers)
    public = fit_public(task, labels, tell)
    folds, known = answers.folds(task.seed, task.inputs), answers.known
    if folds is None:
        student = public.student(task)
        why = f"{known.sum()} answers are too few to judge by: it learned of public labels alone."
        choice = replace(made.choice, chosen=LABELS_ALONE, why=why, threshold=None, cut=None)
        return TrainedStudent(student, made.plain, choice)
    tell("Judging what answers add to public labels …")
    held_out = {LABELS_ALONE: np.exp(public.unseen)}
    spread, held_out[CORRECTED] = _choose_correction(task, answers, public, labels, folds)
    shares, judged = answers.shares[known], {each.method: each for each in made.choice.judged}
    calibrations = dict[str, Calibration]()
    for name, said in held_out.items():
        calibrations[name] = calibrate(said[known], shares)
        fitted = calibrations[name].probabilities(_scores_of(said[known]))
        figures = estimate_metrics(shares, fitted.argmax(axis=1), fitted, task.inputs[known])
        judged[name] = JudgedMethod(name, figures)

    def merit(name: str) -> float:
        figures = judged[name].figures
        return (figures.auc or figures.accuracy).value

    tried = (CORRECTED, made.choice.chosen, LABELS_ALONE)
    chosen = max(tried, key=merit)  # of equals the first, which knows most
    measure = "AUC" if len(task.classes) == 2 else "accuracy"
    compared = ", ".join(f"{merit(name):.4f} of {name}" for name in tried)
    why = f"by {measure} on held-out answers: {compared}."
    choice = replace(made.choice, judged=tuple(judged.values()), why=why, chosen=chosen)
    if chosen == made.choice.chosen:
        return TrainedStudent(made.student, made.plain, choice)
    student = public.student(task)
    if chosen == CORRECTED:
        student = _Corrected.of(task, answers, public, labels, spread).student
    student = student.with_model(calibration=calibrations[chosen])
    of_known = calibrations[chosen].probabilities(_scores_of(held_out[chosen][known]))
    fewer = confine_rarer_class(of_known, answers)
    student = place_cut(student, task, answers, training, fewer)
    model = student.model
    choice = replace(choice, threshold=model.threshold, cut=model.cut)
    return TrainedStudent(student, made.plain, choice)


def _choose_correction(
    task: Task, answers: Answers, public: PublicModel, labels: PublicLabels, folds: Ints
) -> tuple[float, Floats]:
    """The spread with which a correction says most of answers that it did not see; what it says.

    Probabilities [N, m]. By squared errors, which noise does not bias.
    """
    known, best, least = answers.known, (1.0, answers.shares), np.inf
    for spread in CORRECTION_SPREADS if answers.noise else CORRECTION_SPREADS[:1]:
        said = np.zeros_like(answers.shares)
        for fold in range(int(folds.max()) + 1):
            rows = folds == fold
            said[rows] = _Corrected.of(task, answers, public, labels, spread, rows).said
        error = float(((said - answers.shares)[known] ** 2).mean())
        if error < least:
            best, least = (spread, said), error
    return best


@dataclass(frozen=True, eq=False)
class _Corrected:
    """A student of labels and answers, and what it says of the inputs that were held out."""

    student: Student
    said: Floats
    """[K, m] probabilities."""

    @classmethod
    def of(
        cls,
        task: Task,
        answers: Answers,
        public: PublicModel,
        labels: PublicLabels,
        spread: float,
        held_out: Bools | None = None,
    ) -> _Corrected:
        """Noisy counts correct the scores of the model; bought labels are more labels, for it."""
        rows = np.zeros(len(task.x), bool) if held_out is None else held_out
        if not answers.noise:
            return cls._of_labels(task, answers.only(~rows), public, labels, rows)
        if is_answered_nearby(task, answers):
            usual = choose_spread(task, answers)
        else:
            usual = usual_spread(len(task.classes))
        rest = answers.only(~rows)
        found = Regression.of(task, rest, spread * usual, base=public.unseen)
        scores = public.unseen[rows] + found.scores(found.features.as_new[rows])
        return cls(public.student(task, [found.part]), np.exp(log_softmax(scores, axis=1)))

    @classmethod
    def _of_labels(
        cls, task: Task, answers: Answers, public: PublicModel, labels: PublicLabels, rows: Bools
    ) -> _Corrected:
        both, shown = _with_labels(task, labels)
        added = len(both.x) - len(task.x)
        bought = np.append(answers.known, np.zeros(added, bool))
        shares, known = shown.shares.copy(), shown.known | bought
        shares[bought] = answers.shares[answers.known]
        known[: len(rows)] &= ~rows
        together = Answers(shares * known[:, None], known)
        student = _methods(both, public.rounds)[public.method].fit(both, together)
        how = {**student.model.training, "public_labels": public.labels}
        return cls(student.with_model(training=how), student.probabilities(task.x[rows]))
