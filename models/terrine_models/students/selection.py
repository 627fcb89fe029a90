"""Which student to return: candidates are judged on the bought labels, and a collapse is caught.

    made = choose_student(x, labels, inputs=spec, classes=names)     # labels: -1 where unknown
    made.student, made.choice.why

Labels that were paid for are held out in turn (cross-validation): a candidate is judged by how many
it predicts of those that it was not trained on. That uses bought answers and public inputs only, so
it costs no privacy (post-processing), however often it is done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from terrine_models.data.arrays import InputSpec
from terrine_models.data.workers import side_by_side
from terrine_models.students.collapse import Evidence, collapse
from terrine_models.students.methods import MODELS, Model, Task, check
from terrine_models.students.models import Student
from terrine_models.students.networks import NETWORKS, Training, train_student
from terrine_models.students.ridge import RidgeFit, RidgeStudents
from terrine_protocol.tables import TableSchema

Tell = Callable[[str], None]
OnStep = Callable[[int, int], None]
Ints = NDArray[np.int64]

FOLDS = 5
FEWEST_PER_CLASS = 2
"""With fewer labels than this per class on average, there is nothing to judge by."""
LARGE = 20
"""Side in pixels from which distorted images teach more than small perturbations."""
FIXMATCH_LABELS = 100
"""Labels from which `auto` tries `fixmatch` on large images."""
OF_IMAGES, OF_ASKED = 4, 3
"""To be judged, networks for images are trained for a quarter of the steps, and for a third of what
they are otherwise where a method was asked for, as less depends on it. Tables train fast: for them
`auto` judges after all steps."""
LEAST_OF_AUTO, LEAST_OF_ASKED = 100, 25
"""Steps below which that is not shortened."""
FIXMATCH_REASON = (
    "On images of this size, with this many labels, it learns most from unlabelled ones; it did "
    "not collapse."
)
SAMPLE = 2000
"""Public inputs on which the finished student is compared with the plain ones."""


@dataclass(frozen=True)
class Judged:
    """A candidate, and the share of held-out labels that it predicted."""

    method: str
    agreement: float


@dataclass(frozen=True)
class Choice:
    """What was tried, what was returned, and why."""

    asked: str
    chosen: str
    why: str
    judged: tuple[Judged, ...]
    """In the order of the candidates; empty if there were too few labels to judge by. `auto` does
    not judge `fixmatch`."""
    labels: int
    folds: int
    """0 without cross-validation."""
    steps: int
    """Steps for which networks were trained to be judged."""
    students: int = 1
    """How many networks were averaged; 1 for any other model."""

    @property
    def agreement(self) -> float | None:
        """The share of held-out labels that the chosen one predicted; None if it was not judged."""
        return next((each.agreement for each in self.judged if each.method == self.chosen), None)


@dataclass(frozen=True, eq=False)
class Made:
    """A finished student, and how it was chosen."""

    student: Student
    choice: Choice


def candidates(method: str, inputs: InputSpec, labels: int) -> tuple[str, ...]:
    """What is tried, by public facts alone: the kind of input, and the number of labels.

    The plain models always. `auto` adds one that learns from unlabelled inputs, on images: small
    ones, `vat`; large ones with hundreds of labels, `fixmatch`. None on tables: their classes are
    not separated by gaps, and the entropy loss then moves everything into the larger class; nor a
    forest: it agrees with more of the labels that teachers agree on, and is right no more often.
    """
    plain: tuple[str, ...] = ("ridge", "supervised")
    match method:
        case _ if method not in ("auto", *plain):
            return (*plain, method)
        case "auto" if len(inputs.shape) > 1 and min(inputs.shape[:2]) < LARGE:
            return (*plain, "vat")
        case "auto" if len(inputs.shape) > 1 and labels >= FIXMATCH_LABELS:
            return (*plain, "fixmatch")
        case _:
            return plain


def choose_student(
    x: NDArray[np.generic],
    labels: Ints,
    *,
    inputs: InputSpec,
    classes: tuple[str, ...],
    encoding: TableSchema | None = None,
    training: Training | None = None,
    tell: Tell = lambda line: None,
    on_step: OnStep = lambda done, steps: None,
) -> Made:
    """Train the student that suits inputs [N, *shape] and `labels` [N], -1 where there is none.

    With the method `auto`, the candidate with the best cross-validated agreement, but `fixmatch`
    wherever it is one: short trainings do not show what it gains. That, and any other method,
    is kept unless its student collapses (`collapse.py`), and then the better plain model is
    returned. tell: called as each stage begins. Raises ValueError when no input has a label, and
    for what `methods.check` refuses.
    """
    training = training or Training()
    known = np.flatnonzero(labels >= 0)
    if x.shape != (len(labels), *inputs.shape):
        raise ValueError(f"inputs have shape {x.shape}, expected {(len(labels), *inputs.shape)}")
    if len(known) == 0:
        raise ValueError("there is nothing to learn from: no input has a label")
    check(training, inputs)
    task = Task(x, labels, inputs, classes, encoding, training.seed)
    trial = _Trial(task, known, training, on_step)
    folds = assign_folds(labels[known], len(classes), training.seed)
    if folds is None:
        return trial.fallback(tell)
    return trial.run(folds, tell)


def assign_folds(labels: Ints, classes: int, seed: int) -> Ints | None:
    """The fold of each of `labels` [K]: FOLDS, fewer if labels are few, each with all classes.

    None if there are fewer than FEWEST_PER_CLASS labels per class on average.
    """
    count = min(FOLDS, len(labels) // classes)
    if count < FEWEST_PER_CLASS:
        return None
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    folds = np.empty(len(labels), dtype=np.int64)
    folds[by_class] = np.arange(len(labels)) % count
    return folds


@dataclass(frozen=True, eq=False)
class _Trial:
    task: Task
    known: Ints
    training: Training
    on_step: OnStep

    def fallback(self, tell: Tell) -> Made:
        """The plain model, where nothing can be judged."""
        chosen: str = "supervised" if self.training.method == "supervised" else "ridge"
        tell(f"Training {chosen} …")
        student = self._network("supervised") if chosen == "supervised" else self._ridge(RidgeFit())
        why = (
            f"{len(self.known)} labels of {len(self.task.classes)} classes are fewer than "
            f"{FEWEST_PER_CLASS} per class, too few to compare methods by: a plain model is used."
        )
        return Made(student, self._choice(chosen, why, {}, 0, 0))

    def run(self, folds: Ints, tell: Tell) -> Made:
        """Judge the candidates, train one, and check it."""
        asked = self.training.method
        tried = candidates(asked, self.task.inputs, len(self.known))
        tell(f"Comparing {', '.join(tried)} …")
        ridges = self._ridges()
        fit = ridges.judge(folds)
        steps = self._judging_steps()
        sure = asked == "auto" and "fixmatch" in tried
        networks = [
            name for name in tried if name in NETWORKS and not (sure and name == "fixmatch")
        ]
        agreements, plain_pool = self._judge(networks, folds, steps)
        models = {name: self._model(name) for name in tried if name in MODELS}
        agreements |= {name: model.judge(folds) for name, model in models.items()}
        agreements = {"ridge": fit.agreement or 0.0, **agreements}
        plain: str = "ridge"
        if agreements["supervised"] > agreements["ridge"]:
            plain = "supervised"
        best = max(agreements, key=lambda name: agreements[name])  # the first of equals
        wanted: str = best if asked == "auto" else asked
        if sure:
            wanted = "fixmatch"
        number = int(folds.max()) + 1
        why = FIXMATCH_REASON if sure else _reason(asked, plain, agreements)

        def train(name: str) -> Student:
            tell(f"Training {name} …")
            if name == "ridge":
                return ridges.train(fit)
            if name in models:
                return models[name].train()
            if len(self.task.inputs.shape) > 1:
                return self._network(name)
            # The products of a table's small network are slower on several threads than on one.
            return side_by_side(self._network, [name])[0]

        student = train(wanted)
        if wanted in NETWORKS and NETWORKS[wanted].unlabelled:
            pools = {"ridge": ridges.train(fit).predict(self._sample()), "supervised": plain_pool}
            other = "supervised" if plain == "ridge" else "ridge"
            fault = collapse(
                Evidence(
                    labels=self.task.labels[self.known],
                    own=student.predict(self.task.x[self.known]),
                    plain_agreement=agreements[plain],
                    pool=student.predict(self._sample()),
                    plain_pool=pools[plain],
                    other_pool=pools[other],
                ),
                self.task.classes,
            )
            if fault is not None:
                why = (
                    f"The student trained with {wanted} collapsed: {fault} So the better plain "
                    f"model, {plain}, is returned."
                )
                return Made(train(plain), self._choice(plain, why, agreements, number, steps))
        return Made(student, self._choice(wanted, why, agreements, number, steps))

    def _judge(self, networks: list[str], folds: Ints, steps: int) -> tuple[dict[str, float], Ints]:
        """The agreement of each method, and what supervised ones together predict of the sample."""
        jobs = [(name, fold) for fold in range(int(folds.max()) + 1) for name in networks]
        training = replace(self.training, steps=steps, students=1)
        total, done = len(jobs) * steps, 0
        lock, halt = threading.Lock(), threading.Event()
        sample = self._sample()

        def on_step(_done: int, _steps: int) -> None:
            nonlocal done
            if halt.is_set():
                raise InterruptedError("the training was interrupted")
            with lock:
                done += 1
                self.on_step(done, total)

        def judge(job: tuple[str, int]) -> tuple[int, NDArray[np.float64] | None]:
            name, fold = job
            hidden = self.known[folds == fold]
            labels = self.task.labels.copy()
            labels[hidden] = -1
            student = self._network(name, labels, training, on_step)
            right = int((student.predict(self.task.x[hidden]) == self.task.labels[hidden]).sum())
            return right, student.probabilities(sample) if name == "supervised" else None

        try:
            found = list(zip(jobs, side_by_side(judge, jobs), strict=True))
        except BaseException:  # Ctrl-C, too; whatever it is, it is raised again
            halt.set()  # otherwise the program would wait for every training to finish
            raise
        agreements: dict[str, float] = {
            name: sum(right for (tried, _), (right, _) in found if tried == name) / len(self.known)
            for name in networks
        }
        beliefs = np.sum([guess for _, (_, guess) in found if guess is not None], 0)
        return agreements, beliefs.argmax(1)

    def _judging_steps(self) -> int:
        steps = self.training.steps
        share = 1 if len(self.task.inputs.shape) == 1 else OF_IMAGES
        if self.training.method == "auto":
            return min(steps, max(LEAST_OF_AUTO, steps // share))
        return min(steps, max(LEAST_OF_ASKED, steps // (share * OF_ASKED)))

    def _sample(self) -> NDArray[np.generic]:
        return self.task.x[:: -(-len(self.task.x) // SAMPLE)]

    def _model(self, name: str) -> Model:
        return MODELS[name](self.task)

    def _ridges(self) -> RidgeStudents:
        return RidgeStudents(
            self.task.x,
            self.task.labels,
            inputs=self.task.inputs,
            classes=self.task.classes,
            encoding=self.task.encoding,
            balance=self.training.balance,
        )

    def _ridge(self, fit: RidgeFit) -> Student:
        return self._ridges().train(fit)

    def _network(
        self,
        method: str,
        labels: Ints | None = None,
        training: Training | None = None,
        on_step: OnStep | None = None,
    ) -> Student:
        return train_student(
            self.task.x,
            self.task.labels if labels is None else labels,
            inputs=self.task.inputs,
            classes=self.task.classes,
            encoding=self.task.encoding,
            training=replace(training or self.training, method=method),
            on_step=on_step or self.on_step,
        )

    def _choice(
        self,
        chosen: str,
        why: str,
        agreements: dict[str, float],
        folds: int,
        steps: int,
    ) -> Choice:
        network = chosen in NETWORKS
        return Choice(
            students=self.training.students if network else 1,
            asked=self.training.method,
            chosen=chosen,
            why=why,
            judged=tuple(Judged(name, share) for name, share in agreements.items()),
            labels=len(self.known),
            folds=folds,
            steps=steps,
        )


def _reason(asked: str, plain: str, agreements: dict[str, float]) -> str:
    """Why a student is returned that did not collapse."""
    if asked == "auto":
        return "No other agrees with more of the held-out labels; of equals, it is the plainest."
    if agreements[plain] > agreements[asked]:
        return (
            f"{asked} was asked for"
            + (", and did not collapse" if asked not in ("ridge", "supervised") else "")
            + f". But the plain model {plain} agrees with more of the held-out labels: "
            f"{agreements[plain]:.1%}, against {agreements[asked]:.1%}."
        )
    return f"{asked} was asked for, and no plain model agrees with more of the held-out labels."
