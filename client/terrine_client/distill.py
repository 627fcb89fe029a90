"""Distill a student: buy labels in rounds, train on them, and report.

    with Client(url, token) as client:
        made = distill(client, x, Path("student"), held_out=(x_own, y_own))
    made.student.predict(x_new)                       # names of classes

Needs the student extra (in a checkout: pip install '.[student]'). The student's process holds a
URL, a token and public inputs; the only private information that reaches it is the answers it pays
for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from terrine_client._answer_file import AnswerFile
from terrine_client._privacy import (
    CARD_FILE,
    RECEIPTS_FILE,
    PapersError,
    PapersReport,
    PrivacyStatement,
    keep_earlier_receipts,
    verify_papers,
    write_privacy,
)
from terrine_client._report import (
    ClassMetrics,
    Report,
    Round,
    append_round,
    draw,
    format_choice,
    format_round,
    write_card,
)
from terrine_client.client import Client
from terrine_client.errors import BudgetExhausted, ClientError
from terrine_protocol import ProjectInfo
from terrine_protocol.files import write_atomically
from terrine_tables.columns import index_classes

if TYPE_CHECKING:
    from terrine_models.students.answers import Answers, Estimate
    from terrine_models.students.labels import PublicLabels
    from terrine_models.students.models import Student, Task, Training
    from terrine_models.students.selection import Choice, TrainedStudent
    from terrine_models.sums import ReleasedSums
    from terrine_models.tables.designed import DesignedPool


__all__ = [
    "DistillError",
    "Distilled",
    "Examples",
    "PapersError",
    "PapersReport",
    "PrivacyStatement",
    "Report",
    "Round",
    "distill",
    "verify_papers",
]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
# Inputs [N, …] and their labels [N], which name classes (`terrine_tables.columns.index_classes`).
Examples = tuple[Array, Any]
# Queries after which the answers are saved and the budget is checked.
QUERIES_PER_SAVE = 128
# Of this many times as many inputs, in representative order, those are asked that a student is
# least sure of. Of all inputs, they would be near copies of each other.
CANDIDATES_PER_QUERY = 4
REPORT_FILE = "report.json"
# What a student of released sums asks.
NOTHING = "nothing"
# With a larger share of the labels in one class there is a warning.
MAX_CLASS_SHARE = 0.9


class DistillError(ClientError):
    """The data do not fit the project, or nothing was learned; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Distilled:
    """A trained student, the labels it learned from, and the report on both."""

    student: Student
    labels: npt.NDArray[np.int64]
    """[N], one for each public input; -1 where none was bought."""
    outcomes: npt.NDArray[np.str_]
    """[N], the outcome of each; empty where it was not sent, or was refused."""
    report: Report
    learned: Answers | None
    """`answers`; None of released sums."""

    @property
    def answers(self) -> Answers:
        """What it learned from, to train another student: these labels, or noisy counts.

        Raises DistillError for a student of released sums: `fetch_sums` has these.
        """
        if self.learned is None:
            raise DistillError("This student learned from released sums, not from answers.")
        return self.learned

    def __repr__(self) -> str:
        return f"<Distilled {self.report.choice.chosen} student: {self.report!r}>"


def distill(
    client: Client,
    public: Array | None,
    out: Path,
    *,
    held_out: Examples | None = None,
    labels: Examples | None = None,
    rounds: int = 3,
    queries: int | None = None,
    training: Training | None = None,
    designed: DesignedPool | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> Distilled:
    """Buy labels of `public` [N, …] in rounds and train a student into the directory `out`.

    public: the student's own inputs, without labels. A project of sums needs none: then its student
        is made on the public rows that come with them (`Client.sums`).
    held_out: the student's own labelled data (`Examples`), to measure its accuracy; never trained
        on.
    labels: public inputs with their labels (`Examples`), of `public` or beside it, that the student
        may learn from too. They cost nothing, and nothing protects them: the student may tell them.
    queries: the most in total; by default until the budget is spent or all inputs are sent.
    designed: the pool that `public` is of, if the owner designed it (`Client.pool`).
    seed: of the order of the queries, and of the training. The server draws the noise.
    tell: called with each line of progress.

    With noisy counts all inputs are asked in one round, and the student learns from the counts.
    With `interactive_gnmax`, the first round sends uniform probabilities, which makes it
    Confident-GNMax; later rounds send the student's predictions.

    The student that is returned is compared with a plain one by answers that both did not see
    (`terrine_models.students.selection`); the report says what was tried and why.

    Answers that the project has paid for are fetched first, free, once its budget is spent: so to
    train again, in another way or with another threshold, costs nothing.

    In a project of sums nothing is asked, and nothing charged: the student is one that has the
    released sums on the public inputs, whosever these are (`terrine_models.students.sums`). It has
    no rounds.

    After an interruption or a failure, the same call continues where it stopped: answers are saved
    in `answers.npz`, and the server repeats those that were paid for but not saved, at no cost.

    Raises DistillError, and what `Client.label` raises except BudgetExhausted.
    """
    from terrine_models.students.labels import choose_with_labels
    from terrine_models.students.models import Training
    from terrine_models.students.selection import asking_order, choose

    training = training or Training()
    if rounds < 1 or (queries is not None and queries < 1):
        raise DistillError("Rounds and queries must be at least 1.")
    project = client.project()
    if project.mechanism.free:
        if queries is not None:
            raise DistillError(
                f"In the project {project.name} nothing is asked, so there are no queries to "
                "limit: its students follow from the sums that it released."
            )
        return _learn_from_sums(
            client, project, public, out, held_out, labels, training, seed, tell
        )
    if public is None:
        raise DistillError(f"The project {project.name} needs public inputs to ask about.")
    measured = check_data(public, project, held_out)
    task = make_task(public, project, seed, designed)
    check_training(training, task)
    public_labels = None if labels is None else check_labels(labels, task, project, held_out)
    if project.mechanism.counted:
        rounds = 1  # every count helps every other row, so there is nothing to wait for
    answer_file = AnswerFile.open(out, project, public)
    keep_earlier_receipts(client.receipts, out)
    distillation = Distillation(client, project, measured, task, training, answer_file)
    if fetched := distillation.fetch_paid():
        tell(f"The budget is spent. {fetched:,} inputs were answered before: fetched, free.")
    limit = len(public) if queries is None else min(queries, len(public))
    history = [Round(**entry) for entry in json.loads(answer_file.rounds)]
    order = asking_order(public, task.spec, seed)
    made, refused, ended, quick = None, False, "", None
    while not ended:
        number = min(len(history) + 1, rounds)
        left, affordable = limit - int(answer_file.asked.sum()), client.budget().affordable
        share = max(1, affordable // (rounds - number + 1))
        if quick is None and number > 1 and distillation.bought > 0 and distillation.asks_uncertain:
            quick = distillation.quick_student()
        count = min(left, share) if number < rounds else left
        refused = distillation.ask(*distillation.choose_queries(order, count, share, quick))
        if refused:
            ended = "The budget is spent."
        elif int(answer_file.asked.sum()) >= limit:
            ended = "All inputs were asked." if limit == len(public) else "Enough was asked."
        elif number == rounds:
            ended = "The last round is over."
        if distillation.bought == 0 and ended:
            raise DistillError(_explain_nothing_learned(answer_file, refused))
        if distillation.bought > 0:
            tell(f"Round {number}: training on {distillation.bought:,} answers …")
            if ended:
                answers = distillation.answers
                if public_labels is None:
                    made = choose(task, answers, training, tell=tell)
                else:
                    made = choose_with_labels(task, answers, public_labels, training, tell=tell)
            else:
                quick = distillation.quick_student()
        latest = distillation.make_round(history, made.student if made else quick)
        history = append_round(history, latest)
        answer_file.save_rounds(json.dumps([asdict(entry) for entry in history]))
        tell(format_round(number, history[-1]))
    assert made is not None  # noqa: S101 - the last round trained on what was bought
    for line in format_choice(made.choice):
        tell(line)
    warnings = (distillation.warn_if_one_sided(), distillation.warn_if_below_majority(made.student))
    notes = [note for note in warnings if note is not None]
    report = distillation.make_report(history, refused, ended, notes, made)
    student = _save(client, project, out, made.student, report, tell)
    return Distilled(
        student,
        answer_file.labels,
        answer_file.outcomes,
        report,
        distillation.answers,
    )


def _save(
    client: Client,
    project: ProjectInfo,
    out: Path,
    made: Student,
    report: Report,
    tell: Callable[[str], None],
) -> Student:
    """Save a student with its report and its papers, and return it as it was saved."""
    from terrine_models.students.models import MODEL_FILE, WEIGHTS_FILE

    student = made.with_model(image=project.ensemble.image)
    student.save(out)
    (out / REPORT_FILE).write_text(json.dumps(asdict(report), indent=2) + "\n")
    statement = write_privacy(client, project, out, (MODEL_FILE, WEIGHTS_FILE, REPORT_FILE))
    card = write_card(report, project, statement, student.model)
    write_atomically(out / CARD_FILE, card.encode())
    if not draw(report, out / "accuracy.png"):
        tell(
            "There is no accuracy.png: matplotlib is not installed. In a checkout: pip install "
            "'.[student]'"
        )
    return student


def _learn_from_sums(
    client: Client,
    project: ProjectInfo,
    public: Array | None,
    out: Path,
    held_out: Examples | None,
    labels: Examples | None,
    training: Training,
    seed: int,
    tell: Callable[[str], None],
) -> Distilled:
    """Make a student of what a project of sums released. Nothing is asked; see `distill`."""
    released = fetch_sums(client, project)
    x = released.natural if public is None else public
    measured = check_data(x, project, held_out)
    if public is None:
        tell(f"Training on {len(x):,} public rows that came with the sums …")
    task = make_task(x, project, seed)
    known = None if labels is None else check_labels(labels, task, project, held_out)
    student, choice = train_on_sums(released, task, training, known)
    accuracy = None if measured is None else _share_right(student, *measured)
    budget = client.budget()
    report = Report(
        project=project.name,
        mechanism=project.mechanism.model_dump(mode="json", exclude_none=True),
        protects=budget.protects,
        epsilon=budget.epsilon,
        delta=budget.delta,
        epsilon_spent=budget.epsilon_spent,
        charges=budget.charges,
        classes=list(project.ensemble.classes),
        public_inputs=len(x),
        outcomes={},
        reinforced=None,
        asking=NOTHING,
        refused=False,
        ended="Nothing was asked.",
        queries_left=0,
        rounds=[Round(0, {}, budget.charges, budget.epsilon_spent, accuracy)],
        held_out=0 if measured is None else len(measured[0]),
        accuracy=accuracy,
        plain=None,
        majority=None if measured is None else _share_of_largest(measured[1]),
        by_class=[] if measured is None else _class_metrics(student, *measured),
        notes=[],
        training=asdict(training),
        choice=choice,
        spending=[(budget.charges, budget.epsilon_spent)],
        public_labels=int(student.model.training.get("public_labels", 0)),
    )
    note = None
    if measured is not None:
        note = _warn_if_below_majority(student, measured, training)
    report = replace(report, notes=[] if note is None else [note])
    student = _save(client, project, out, student, report, tell)
    nothing = np.full(len(x), -1), np.full(len(x), "", dtype=np.str_)
    return Distilled(student, *nothing, report, None)


def fetch_sums(client: Client, project: ProjectInfo) -> ReleasedSums:
    """Return what a project of sums released. Raises DistillError for other sums than its terms
    say."""
    from terrine_models.data.arrays import DataError, InputSpec
    from terrine_models.sums import ReleasedSums

    facts = project.ensemble
    try:
        found = ReleasedSums.of_bytes(client.sums())
    except DataError as error:
        raise DistillError(f"What {project.name} released cannot be used: {error}") from None
    inputs = InputSpec.model_validate(facts.input.model_dump())
    if (found.release, found.units, found.map.features.inputs) != (
        facts.release,
        facts.units,
        inputs,
    ):
        raise DistillError(
            f"The server sent other sums than the project {project.name} says that it released."
        )
    return found


def train_on_sums(
    released: ReleasedSums, task: Task, training: Training, labels: PublicLabels | None = None
) -> tuple[Student, Choice]:
    """Return the student of released sums and of public labels, if these help. Raises DistillError.

    There is no other choice.
    """
    from terrine_models.students.labels import LABELS_ALONE, fit_public
    from terrine_models.students.selection import Choice
    from terrine_models.students.sums import fit_sums

    if training.method != "auto":
        raise DistillError(
            f"{training.method} learns from answers, and a project of sums has none: its students "
            "follow from the sums. Use auto."
        )
    if labels is not None and not task.is_table:
        # Of 300 labelled digits the model alone was right on 94 %, and corrected by sums on 86 %.
        raise DistillError(
            "Public labels join released sums where inputs are rows of a table, and these are "
            "pictures. Leave the labels out."
        )
    public = None if labels is None else fit_public(task, labels)
    student = fit_sums(released, task, training.threshold, public)
    how = student.model.training
    chosen, why = "sums", "It follows from the sums that the project released when it was opened."
    if how["method"] == LABELS_ALONE:
        chosen, why = LABELS_ALONE, "What the released sums add to the public labels does not help."
    elif "public_labels" in how:
        chosen = "labels+sums"
        why = f"The released sums correct what public labels say, times {how['correction']:g}."
    elif public is not None:
        why += " The public labels do not help."
    return student, Choice(
        asked=training.method,
        chosen=chosen,
        why=why,
        judged=(),
        answers=0,
        folds=0,
        noisy=True,
        threshold=student.model.threshold,
    )


@dataclass(frozen=True)
class Distillation:
    """One distillation: what is the same in every round, and the answers so far."""

    client: Client
    project: ProjectInfo
    held_out: tuple[Array, Ints] | None
    task: Task
    training: Training
    answer_file: AnswerFile

    @property
    def is_interactive(self) -> bool:
        """Whether queries carry the student's probabilities."""
        return self.project.mechanism.needs_probabilities

    @property
    def asks_uncertain(self) -> bool:
        """Whether later rounds prefer inputs that a student is unsure of; see docs/student.md."""
        return self.is_interactive or self.task.is_table

    @property
    def bought(self) -> int:
        """Number of labels that were bought."""
        return int((self.answer_file.labels >= 0).sum())

    @property
    def answers(self) -> Answers:
        """What a student learns from, so far."""
        kept = self.answer_file
        return make_answers(self.project, kept.labels, kept.noisy_counts, kept.noise_sigma)

    def quick_student(self) -> Student:
        """Train the plain student on what was bought so far: it takes seconds."""
        from terrine_models.students.models import Training
        from terrine_models.students.selection import PLAIN_METHOD, choose

        return choose(self.task, self.answers, Training(method=PLAIN_METHOD)).student

    def fetch_paid(self) -> int:
        """Fetch the paid answers to these inputs, if the project has no budget for others.

        Repeated answers are free, and with nothing left to spend no other query is answered: so
        every input may be sent. Returns the number of answers.
        """
        budget = self.client.budget()
        if self.answer_file.asked.any() or not budget.charges or budget.affordable:
            return 0
        rows = np.arange(len(self.task.x))
        probabilities = first_probabilities(self.project, len(rows))
        try:
            self.answer_file.save_answers(rows, self.client.label(self.task.x, probabilities))
        except BudgetExhausted:
            return 0
        return int(self.answer_file.asked.sum())

    def choose_queries(
        self, order: Ints, count: int, expected: int, quick: Student | None
    ) -> tuple[Ints, Array | None]:
        """Choose the next `count` rows to send, and the probabilities to send with them.

        Rows that were planned before an interruption come first, with their planned probabilities.
        expected: about how many of the rows the budget will cover.
        """
        answer_file = self.answer_file
        planned = np.flatnonzero(answer_file.planned & ~answer_file.asked)
        fresh = order[~answer_file.asked[order] & ~answer_file.planned[order]]
        count = max(0, count - len(planned))
        if quick is not None and self.asks_uncertain:
            unsure = 1 - quick.probabilities(self.task.x[fresh]).max(axis=1)
            window = np.arange(len(fresh)) // (CANDIDATES_PER_QUERY * max(1, expected))
            fresh = fresh[np.lexsort((-unsure, window))]
        fresh = fresh[:count]
        rows = np.concatenate([planned, fresh])
        probabilities = first_probabilities(self.project, len(fresh))
        if probabilities is None:
            return rows, None
        if quick is not None:
            probabilities = quick.probabilities(self.task.x[fresh])
        return rows, np.concatenate([answer_file.probabilities[planned], probabilities])

    def ask(self, rows: Ints, probabilities: Array | None) -> bool:
        """Send queries and save the answers. Return True once the budget is spent."""
        try:
            return self._ask(rows, probabilities)
        finally:
            self.client.receipts.save(self.answer_file.path.with_name(RECEIPTS_FILE))

    def _ask(self, rows: Ints, probabilities: Array | None) -> bool:
        for at in range(0, len(rows), QUERIES_PER_SAVE):
            chunk = rows[at : at + QUERIES_PER_SAVE]
            sent = None if probabilities is None else probabilities[at : at + QUERIES_PER_SAVE]
            self.answer_file.save_planned(chunk, sent)
            try:
                answers = self.client.label(self.task.x[chunk], sent)
            except BudgetExhausted:
                return True
            except ClientError as error:
                if error.partial is not None:
                    self.answer_file.save_answers(chunk[: len(error.partial)], error.partial)
                raise
            self.answer_file.save_answers(chunk, answers)
            if (answers.outcomes == "refused").any():
                return True
        return False

    def make_round(self, history: list[Round], student: Student | None) -> Round:
        """Return the round after `history`, of what was asked since, even after an interruption."""
        budget = self.client.budget()
        new = Counter(self.answer_file.outcomes[self.answer_file.asked].tolist())
        for earlier in history:
            new.subtract(earlier.outcomes)
        return Round(
            asked=new.total(),
            outcomes={outcome: count for outcome, count in new.items() if count},
            charges=budget.charges,
            epsilon_spent=budget.epsilon_spent,
            accuracy=_share_right(student, *self.held_out) if student and self.held_out else None,
        )

    def make_report(
        self,
        history: list[Round],
        refused: bool,
        ended: str,
        notes: list[str],
        made: TrainedStudent,
    ) -> Report:
        """Return everything that `report.json` holds."""
        budget = self.client.budget()
        outcomes = Counter(self.answer_file.outcomes[self.answer_file.asked].tolist())
        figures = [] if self.held_out is None else _class_metrics(made.student, *self.held_out)
        return Report(
            project=self.project.name,
            mechanism=self.project.mechanism.model_dump(mode="json", exclude_none=True),
            protects=budget.protects,
            epsilon=budget.epsilon,
            delta=budget.delta,
            epsilon_spent=budget.epsilon_spent,
            charges=budget.charges,
            classes=list(self.task.classes),
            public_inputs=len(self.task.x),
            outcomes=dict(outcomes),
            reinforced=outcomes["reinforced"] / self.bought if self.is_interactive else None,
            asking="uncertain" if self.asks_uncertain else "representative",
            refused=refused,
            ended=ended,
            queries_left=budget.affordable,
            rounds=history,
            held_out=0 if self.held_out is None else len(self.held_out[0]),
            accuracy=history[-1].accuracy,
            plain=_share_right(made.plain, *self.held_out) if self.held_out else None,
            majority=_share_of_largest(self.held_out[1]) if self.held_out is not None else None,
            by_class=figures,
            auc=_auc_of(made.student, *self.held_out) if self.held_out else None,
            notes=notes,
            training=asdict(self.training),
            choice=made.choice,
            spending=[
                (int(charges), spent) for charges, spent in self.answer_file.spending.tolist()
            ],
            public_labels=int(made.student.model.training.get("public_labels", 0)),
        )

    def warn_if_one_sided(self) -> str | None:
        """Return a warning if nearly all bought labels are of one class.

        A student of noisy counts learns from the votes for every class, not from the winners.
        """
        if self.project.mechanism.counted:
            return None
        bought = self.answer_file.labels[self.answer_file.labels >= 0]
        share = _share_of_largest(bought)
        if len(bought) < 2 or share < MAX_CLASS_SHARE:
            return None
        name = self.task.classes[int(np.bincount(bought).argmax())]
        return (
            f"{share:.1%} of the {len(bought):,} labels are {name}: teachers agree most there. "
            "A student of such labels tends to predict it too often: look at the accuracy by "
            "class. Noisy counts of all inputs (`noisy_votes`) are not one-sided."
        )

    def warn_if_below_majority(self, student: Student) -> str | None:
        """Return a warning if always predicting the largest class beats the student."""
        if self.held_out is None:
            return None
        return _warn_if_below_majority(student, self.held_out, self.training)


def _warn_if_below_majority(
    student: Student, held_out: tuple[Array, Ints], training: Training
) -> str | None:
    accuracy, majority = _share_right(student, *held_out), _share_of_largest(held_out[1])
    if accuracy >= majority:
        return None
    said = (
        f"Always predicting the largest class would be right on {majority:.2%} of the held-out "
        f"inputs; the student is right on {accuracy:.2%}. It finds more of the rarer classes, "
        "or learned little: the accuracy by class shows which."
    )
    if len(student.model.classes) > 2 or training.threshold == "accuracy":
        return said
    return (
        f"{said} The probability from which the second class is predicted decides that "
        f"(--threshold {training.threshold}); --threshold accuracy predicts the likelier class."
    )


def _class_metrics(student: Student, x: Array, truth: Ints) -> list[ClassMetrics]:
    predicted = student.predict_indices(x)
    return [
        ClassMetrics(
            name=name,
            inputs=int((truth == k).sum()),
            recall=_mean_or_none(predicted[truth == k] == k),
            precision=_mean_or_none(truth[predicted == k] == k),
        )
        for k, name in enumerate(student.model.classes)
    ]


def make_answers(
    project: ProjectInfo, labels: Ints, noisy_counts: Ints | None, noise_sigma: float | None
) -> Answers:
    """Return what a student learns from: labels [N], -1 where there is none, or noisy counts."""
    from terrine_models.students.answers import Answers

    ensemble = project.ensemble
    if noisy_counts is None or noise_sigma is None:
        return Answers.of_labels(labels, len(ensemble.classes))
    known, teachers = labels >= 0, ensemble.teachers
    by_units = project.mechanism.name == "neighbours"
    if by_units:
        # Few units are near a query: shares are of those that vote, on average over the queries.
        teachers = max(1, round(float(noisy_counts[known].sum(axis=1).mean())))
    return Answers.of_counts(
        noisy_counts,
        teachers=teachers,
        sigma=noise_sigma,
        known=known,
        # Units vote for what their records say, so each class has the votes of its share.
        matches_prior=ensemble.matches_prior or by_units,
        voting=min(1.0, teachers / ensemble.teachers),
    )


def first_probabilities(project: ProjectInfo, rows: int) -> Array | None:
    """Return uniform probabilities [rows, m] for interactive projects; None for others."""
    if not project.mechanism.needs_probabilities:
        return None
    classes = len(project.ensemble.classes)
    return np.full((rows, classes), 1 / classes)


def check_data(
    public: Array, project: ProjectInfo, held_out: Examples | None
) -> tuple[Array, Ints] | None:
    """Check inputs against what the project's ensemble takes. Raises DistillError.

    Returns what is held out, with the index of each label's class.
    """
    _check_inputs(public, project, "The public inputs")
    if held_out is None:
        return None
    x, labels = held_out
    _check_inputs(x, project, "The held-out inputs")
    truth = _check_labels(x, labels, project, "held-out")
    _check_separate(public, x)
    return x, truth


def check_labels(
    labels: Examples, task: Task, project: ProjectInfo, held_out: Examples | None
) -> PublicLabels:
    """Check public labels, before anything is bought. Raises DistillError."""
    from terrine_models.students.labels import PublicLabels, check_public

    x, names = labels
    _check_inputs(x, project, "The inputs with public labels")
    found = PublicLabels(x, _check_labels(x, names, project, "public"))
    if held_out is not None:
        _check_separate(x, held_out[0])
    try:
        check_public(task, found)
    except (ValueError, ModuleNotFoundError) as error:
        raise DistillError(f"{error} Nothing was asked.") from None
    return found


def _check_inputs(x: Array, project: ProjectInfo, what: str) -> None:
    spec = project.ensemble.input
    if x.ndim < 1 or x.shape[1:] != spec.shape or len(x) == 0:
        raise DistillError(
            f"{what} have shape {list(x.shape)}; the project {project.name} takes "
            f"[N, {', '.join(map(str, spec.shape))}]."
        )


def _check_labels(x: Array, labels: Any, project: ProjectInfo, what: str) -> Ints:
    try:
        truth = index_classes(labels, project.ensemble.classes)
    except ValueError as error:
        raise DistillError(f"The {what} {error}.") from None
    if len(truth) != len(x):
        raise DistillError(
            f"There are {len(truth)} {what} labels; expected {len(x)}: one for each of their "
            "inputs."
        )
    return truth


def make_task(
    public: Array,
    project: ProjectInfo,
    seed: int = 0,
    designed: DesignedPool | None = None,
) -> Task:
    """Return the task of a student of this project, on public inputs [N, …]."""
    from terrine_models.students.models import Task

    facts = project.ensemble
    classes = tuple(facts.classes)
    return Task(public, facts.input, classes, facts.encoding, seed, designed=designed)


def check_training(training: Training, task: Task) -> None:
    """Check that such a student can be trained, before anything is bought. Raises DistillError."""
    from terrine_models.students.methods import check_method

    try:
        check_method(training.method, task)
    except (ValueError, ModuleNotFoundError) as error:
        raise DistillError(f"{error} Nothing was asked.") from None


def _check_separate(public: Array, held_out: Array) -> None:
    """Accuracy on training inputs would mean nothing."""
    from terrine_models.data.arrays import row_digests

    held = np.ascontiguousarray(held_out, dtype=public.dtype)
    shared = int(np.isin(row_digests(held), row_digests(np.ascontiguousarray(public))).sum())
    if shared > len(held) // 100:  # rows of a table may coincide by chance
        raise DistillError(
            f"{shared} of {len(held)} held-out inputs are also public inputs, so the accuracy "
            "would mean nothing. Hold out data that the student is not trained on."
        )


def _explain_nothing_learned(answer_file: AnswerFile, refused: bool) -> str:
    if answer_file.asked.any() and (answer_file.outcomes[answer_file.asked] == "exhausted").all():
        return (
            f"{int(answer_file.asked.sum())} inputs were sent and none was answered: near all of "
            "them people are exhausted. Nothing was charged. Send other inputs, or ask the data "
            "owner for a new project."
        )
    if refused and not answer_file.asked.any():
        return (
            "The project's budget is spent and none of these inputs was sent before, so there is "
            "nothing to learn from. Ask the data owner for a new project."
        )
    return (
        f"{int(answer_file.asked.sum())} inputs were sent and none was labelled: the teachers "
        "disagree on them. Are they like the data that the teachers were trained on?"
    )


def _share_right(student: Student, x: Array, truth: Ints) -> float:
    return float((student.predict_indices(x) == truth).mean())


def _auc_of(student: Student, x: Array, truth: Ints) -> Estimate | None:
    from terrine_models.students.answers import estimate_metrics

    probabilities = student.probabilities(x)
    shares = np.eye(probabilities.shape[1])[truth]
    return estimate_metrics(shares, truth, probabilities, np.arange(len(x))).auc


def _share_of_largest(labels: Ints) -> float:
    return float(np.bincount(labels).max() / len(labels)) if len(labels) else 0.0


def _mean_or_none(right: npt.NDArray[np.bool_]) -> float | None:
    return float(right.mean()) if len(right) else None
