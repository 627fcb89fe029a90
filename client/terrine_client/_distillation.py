"""The rounds of a student: what is asked in each round, what is learned from it, and what is
reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from terrine_client._notebook import Notebook
from terrine_client._report import ClassFigures, Report, Round
from terrine_client.client import Client
from terrine_client.errors import BudgetExhausted, ClientError
from terrine_protocol import ProjectInfo
from terrine_protocol.mechanisms import COUNTED

if TYPE_CHECKING:
    from terrine_models.students.answers import Answers
    from terrine_models.students.models import Student, Task
    from terrine_models.students.selection import TrainedStudent
    from terrine_models.students.settings import Training

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Examples = tuple[Array, Ints]
"""Inputs [N, …] and their class indices [N]."""
CHUNK = 128
"""Queries after which the answers are saved and the budget is checked."""
SPREAD = 4
"""Of so many times the inputs that are asked, in representative order, those are asked that a
student is least sure of. Of all inputs, they would be near copies of each other."""


@dataclass(frozen=True)
class Distillation:
    """What stays the same from round to round, and the notebook."""

    client: Client
    project: ProjectInfo
    held_out: Examples | None
    task: Task
    training: Training
    notebook: Notebook

    @property
    def interactive(self) -> bool:
        """Whether queries carry the student's probabilities."""
        return self.project.mechanism.name == "interactive_gnmax"

    @property
    def asks_unsure(self) -> bool:
        """Whether later rounds ask what a student is unsure of; docs/student.md says why."""
        return self.interactive or self.task.is_table

    @property
    def known(self) -> int:
        """How many labels were bought."""
        return int((self.notebook.labels >= 0).sum())

    @property
    def answers(self) -> Answers:
        """What was bought so far, as a student learns from it."""
        kept = self.notebook
        return answers_of(self.project, kept.labels, kept.noisy_counts, kept.noise_sigma)

    def sketch(self) -> Student:
        """The plain student of what was bought so far, calibrated: it takes seconds."""
        from terrine_models.students.selection import PLAIN_METHOD, choose
        from terrine_models.students.settings import Training

        return choose(self.task, self.answers, Training(method=PLAIN_METHOD)).student

    def order(self) -> Ints:
        """All inputs in an order of which any beginning represents the whole."""
        from terrine_models.students.selection import asking_order

        return asking_order(self.task.x, self.task.spec, self.task.seed)

    def fetch(self) -> int:
        """Fetch what the project has paid for of these inputs, if that is all it can answer.

        Repeated answers are free, and with nothing left to spend no other query is answered: so
        every input may be sent. Returns how many were answered.
        """
        budget = self.client.budget()
        if self.notebook.asked.any() or not budget.charges or budget.affordable:
            return 0
        rows = np.arange(len(self.task.x))
        beliefs = self._uniform(len(rows)) if self.interactive else None
        try:
            self.notebook.record(rows, self.client.label(self.task.x, beliefs))
        except BudgetExhausted:
            return 0
        return int(self.notebook.asked.sum())

    def choose(
        self, order: Ints, count: int, expected: int, sketch: Student | None
    ) -> tuple[Ints, Array | None]:
        """The next `count` rows to send, and the probabilities to send with them.

        Rows that were planned before an interruption come first, with their planned probabilities.
        expected: how many of the rows the budget reaches, about.
        """
        notebook = self.notebook
        planned = np.flatnonzero(notebook.planned & ~notebook.asked)
        fresh = order[~notebook.asked[order] & ~notebook.planned[order]]
        count = max(0, count - len(planned))
        if sketch is not None and self.asks_unsure:
            unsure = 1 - sketch.probabilities(self.task.x[fresh]).max(axis=1)
            window = np.arange(len(fresh)) // (SPREAD * max(1, expected))
            fresh = fresh[np.lexsort((-unsure, window))]
        fresh = fresh[:count]
        rows = np.concatenate([planned, fresh])
        if not self.interactive:
            return rows, None
        if sketch is None:
            beliefs = self._uniform(len(fresh))
        else:
            beliefs = sketch.probabilities(self.task.x[fresh])
        return rows, np.concatenate([notebook.beliefs[planned], beliefs])

    def ask(self, rows: Ints, beliefs: Array | None) -> bool:
        """Send queries and save the answers. True once the budget is spent."""
        for at in range(0, len(rows), CHUNK):
            chunk = rows[at : at + CHUNK]
            sent = None if beliefs is None else beliefs[at : at + CHUNK]
            self.notebook.plan(chunk, sent)
            try:
                answers = self.client.label(self.task.x[chunk], sent)
            except BudgetExhausted:
                return True
            except ClientError as error:
                if error.partial is not None:
                    self.notebook.record(chunk[: len(error.partial)], error.partial)
                raise
            self.notebook.record(chunk, answers)
            if (answers.outcomes == "refused").any():
                return True
        return False

    def _uniform(self, rows: int) -> Array:
        classes = len(self.task.classes)
        return np.full((rows, classes), 1 / classes)

    def finish(self, tell: Callable[[str], None]) -> TrainedStudent:
        """The student that is returned, and how it was chosen."""
        from terrine_models.students.selection import choose

        return choose(self.task, self.answers, self.training, tell=tell)

    def summarise(self, history: list[Round], student: Student | None) -> Round:
        """The round after `history`: what was asked since, even if training was interrupted."""
        budget = self.client.budget()
        new = Counter(self.notebook.outcomes[self.notebook.asked].tolist())
        for earlier in history:
            new.subtract(earlier.outcomes)
        return Round(
            asked=new.total(),
            outcomes={outcome: count for outcome, count in new.items() if count},
            charges=budget.charges,
            epsilon_spent=budget.epsilon_spent,
            accuracy=student.accuracy(*self.held_out) if student and self.held_out else None,
        )

    def report(
        self,
        history: list[Round],
        refused: bool,
        ended: str,
        notes: list[str],
        made: TrainedStudent,
    ) -> Report:
        """Everything that `report.json` holds."""
        budget = self.client.budget()
        outcomes = Counter(self.notebook.outcomes[self.notebook.asked].tolist())
        figures = [] if self.held_out is None else self._by_class(made.student, *self.held_out)
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
            reinforced=outcomes["reinforced"] / self.known if self.interactive else None,
            asking="uncertain" if self.asks_unsure else "representative",
            refused=refused,
            ended=ended,
            queries_left=budget.affordable,
            rounds=history,
            held_out=0 if self.held_out is None else len(self.held_out[0]),
            accuracy=history[-1].accuracy,
            plain=made.plain.accuracy(*self.held_out) if self.held_out else None,
            majority=_share_of_largest(self.held_out[1]) if self.held_out is not None else None,
            by_class=figures,
            notes=notes,
            training=asdict(self.training),
            choice=made.choice,
            spending=[(int(charges), spent) for charges, spent in self.notebook.spending.tolist()],
        )

    def one_sided(self) -> str | None:
        """A warning, if nearly all labels that were bought are of one class.

        A student of noisy counts learns from the votes for every class, not from the winners.
        """
        if self.project.mechanism.name in COUNTED:
            return None
        bought = self.notebook.labels[self.notebook.labels >= 0]
        share = _share_of_largest(bought)
        if len(bought) < 2 or share < ONE_SIDED:
            return None
        name = self.task.classes[int(np.bincount(bought).argmax())]
        return (
            f"{share:.1%} of the {len(bought):,} labels are {name}: teachers agree most there. "
            "A student of such labels tends to say so too often; look at the accuracy by class. "
            "Noisy counts of all inputs (noisy_votes) are not one-sided."
        )

    def below_majority(self, student: Student) -> str | None:
        """A warning, if always to say the largest class is right more often than the student."""
        if self.held_out is None:
            return None
        accuracy = student.accuracy(*self.held_out)
        majority = _share_of_largest(self.held_out[1])
        if accuracy >= majority:
            return None
        said = (
            f"Always to say the largest class would be right on {majority:.2%} of the held-out "
            f"inputs, and the student is on {accuracy:.2%}: it finds more of the rarer classes, or "
            "learned little; the accuracy by class tells which."
        )
        if len(self.task.classes) > 2 or self.training.threshold == "accuracy":
            return said
        return (
            f"{said} That is decided by the probability from which the second class is said "
            f"(--threshold {self.training.threshold}); --threshold accuracy says the likelier one."
        )

    def _by_class(self, student: Student, x: Array, truth: Ints) -> list[ClassFigures]:
        predicted = student.predict(x)
        return [
            ClassFigures(
                name=name,
                inputs=int((truth == k).sum()),
                recall=_share(predicted[truth == k] == k),
                precision=_share(truth[predicted == k] == k),
            )
            for k, name in enumerate(self.task.classes)
        ]


def answers_of(
    project: ProjectInfo, labels: Ints, noisy_counts: Ints | None, noise_sigma: float | None
) -> Answers:
    """What a student learns from: labels [N], -1 where there is none, and of noisy_votes counts."""
    from terrine_models.students.answers import Answers

    facts = project.ensemble
    if noisy_counts is None or noise_sigma is None:
        return Answers.of_labels(labels, len(facts.classes))
    known, teachers = labels >= 0, facts.teachers
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
        matches_prior=facts.matches_prior or by_units,
        voting=min(1.0, teachers / facts.teachers),
    )


ONE_SIDED = 0.9
"""Share of the labels in one class from which there is a warning."""


def _share_of_largest(labels: Ints) -> float:
    return float(np.bincount(labels).max() / len(labels)) if len(labels) else 0.0


def _share(right: npt.NDArray[np.bool_]) -> float | None:
    return float(right.mean()) if len(right) else None
