"""The rounds of a student: what is asked in each round, what is learned from it, and what is
reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from terrine_client._notebook import Notebook
from terrine_client._report import ClassFigures, Report, Round
from terrine_client.client import Client
from terrine_client.errors import BudgetExhausted, TerrineError
from terrine_protocol import ProjectInfo

if TYPE_CHECKING:
    from terrine_models.data.arrays import InputSpec
    from terrine_models.students.models import Student
    from terrine_models.students.networks import Training
    from terrine_models.students.selection import Choice
    from terrine_models.students.sketching import Asking, Saturation, Sketches
    from terrine_protocol.tables import TableSchema

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Examples = tuple[Array, Ints]
"""Inputs [N, …] and their class indices [N]."""
Ask = Literal["auto", "representative", "uncertain", "disagreement"]
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
    public: Array
    held_out: Examples | None
    training: Training
    encoding: TableSchema | None
    ask_for: Ask
    on_step: Callable[[int, int], None]
    notebook: Notebook

    @property
    def interactive(self) -> bool:
        """Whether queries carry the student's probabilities."""
        return self.project.mechanism.name == "interactive_gnmax"

    @property
    def asking(self) -> Asking:
        """Which inputs are asked once there is a sketch; docs/student.md has the measurements."""
        if self.ask_for != "auto":
            return self.ask_for
        table = len(self.spec.shape) == 1
        return "uncertain" if self.interactive or table else "representative"

    @property
    def sketches_help(self) -> bool:
        """Whether what is asked, or sent with it, depends on a sketch."""
        return self.interactive or self.asking != "representative"

    @property
    def spec(self) -> InputSpec:
        """The kind of input that the project takes."""
        from terrine_models.data.arrays import InputSpec

        return InputSpec.model_validate(self.project.ensemble.input.model_dump())

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.project.ensemble.classes)

    @property
    def known(self) -> int:
        """How many labels were bought."""
        return int((self.notebook.labels >= 0).sum())

    @cached_property
    def sketches(self) -> Sketches:
        """What is learned between rounds."""
        from terrine_models.students.sketching import Sketches

        return Sketches(
            self.public,
            inputs=self.spec,
            classes=self.classes,
            encoding=self.encoding,
            training=self.training,
            on_step=self.on_step,
        )

    def order(self, seed: int) -> Ints:
        """All inputs in an order of which any beginning represents the whole."""
        from terrine_models.students.asking import asking_order

        return asking_order(self.public, self.spec, seed)

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
        if sketch is not None and self.asking != "representative":
            unsure = self.sketches.informative(self.asking, notebook.labels, sketch)[fresh]
            window = np.arange(len(fresh)) // (SPREAD * max(1, expected))
            fresh = fresh[np.lexsort((-unsure, window))]
        fresh = fresh[:count]
        rows = np.concatenate([planned, fresh])
        if not self.interactive:
            return rows, None
        if sketch is None:
            beliefs = np.full((len(fresh), len(self.classes)), 1 / len(self.classes))
        else:
            beliefs = sketch.probabilities(self.public[fresh])
        return rows, np.concatenate([notebook.beliefs[planned], beliefs])

    def ask(self, rows: Ints, beliefs: Array | None) -> bool:
        """Send queries and save the answers. True once the budget is spent."""
        for at in range(0, len(rows), CHUNK):
            chunk = rows[at : at + CHUNK]
            sent = None if beliefs is None else beliefs[at : at + CHUNK]
            self.notebook.plan(chunk, sent)
            try:
                answers = self.client.label(self.public[chunk], sent)
            except BudgetExhausted:
                return True
            except TerrineError as error:
                if error.partial is not None:
                    self.notebook.record(chunk[: len(error.partial)], error.partial)
                raise
            self.notebook.record(chunk, answers)
            if (answers.outcomes == "refused").any():
                return True
        return False

    def finish(self, tell: Callable[[str], None]) -> tuple[Student, Choice]:
        """The student that is returned, and how it was chosen."""
        from terrine_models.students.answers import student_from_answers

        made = student_from_answers(
            self.public,
            self.notebook.labels,
            teachers=self.project.ensemble.teachers,
            noisy_counts=self.notebook.noisy_counts,
            noise_sigma=self.notebook.noise_sigma,
            matches_prior=self.project.ensemble.matches_prior,
            inputs=self.spec,
            classes=self.classes,
            encoding=self.encoding,
            training=self.training,
            tell=tell,
            on_step=self.on_step,
        )
        return made.student, made.choice

    def summarise(
        self, history: list[Round], student: Student | None, saturation: Saturation | None
    ) -> Round:
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
            saturation=None if saturation is None else asdict(saturation),
        )

    def report(
        self,
        history: list[Round],
        refused: bool,
        ended: str,
        notes: list[str],
        student: Student,
        choice: Choice,
    ) -> Report:
        """Everything that `report.json` holds."""
        budget = self.client.budget()
        outcomes = Counter(self.notebook.outcomes[self.notebook.asked].tolist())
        figures = [] if self.held_out is None else self._by_class(student, *self.held_out)
        return Report(
            project=self.project.name,
            mechanism=self.project.mechanism.model_dump(mode="json", exclude_none=True),
            epsilon=budget.epsilon,
            delta=budget.delta,
            epsilon_spent=budget.epsilon_spent,
            charges=budget.charges,
            public_inputs=len(self.public),
            outcomes=dict(outcomes),
            reinforced=outcomes["reinforced"] / self.known if self.interactive else None,
            asking=self.asking,
            refused=refused,
            ended=ended,
            queries_left=budget.affordable,
            rounds=history,
            held_out=0 if self.held_out is None else len(self.held_out[0]),
            accuracy=history[-1].accuracy,
            majority=_share_of_largest(self.held_out[1]) if self.held_out is not None else None,
            by_class=figures,
            notes=notes,
            training=asdict(self.training),
            choice=choice,
            spending=[(int(charges), spent) for charges, spent in self.notebook.spending.tolist()],
        )

    def one_sided(self) -> str | None:
        """A warning, if nearly all labels that were bought are of one class."""
        bought = self.notebook.labels[self.notebook.labels >= 0]
        share = _share_of_largest(bought)
        if len(bought) < 2 or share < ONE_SIDED:
            return None
        name = self.classes[int(np.bincount(bought).argmax())]
        return (
            f"{share:.1%} of the {len(bought):,} labels are {name}: teachers agree most there. "
            "A student of such labels tends to say so too often; look at the accuracy by class."
            + ("" if self.training.balance else " balance=yes makes all classes count alike.")
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
            for k, name in enumerate(self.classes)
        ]


ONE_SIDED = 0.9
"""Share of the labels in one class from which there is a warning."""


def _share_of_largest(labels: Ints) -> float:
    return float(np.bincount(labels).max() / len(labels)) if len(labels) else 0.0


def _share(right: npt.NDArray[np.bool_]) -> float | None:
    return float(right.mean()) if len(right) else None
