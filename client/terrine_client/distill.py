"""Distill a student: buy labels in rounds, train on them, and report.

    with Client(url, token) as client:
        made = distill(client, x, Path("student"), held_out=(x_own, y_own))
    made.student.predict(x_new)

Needs the student extra: pip install 'terrine[student]'. The student's process holds a URL, a
token and public inputs; the only private information that reaches it is the answers it pays for.
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

from terrine_client._notebook import Notebook
from terrine_client._picture import draw
from terrine_client._report import Report, Round, choice_lines, continued, round_line
from terrine_client.client import Client
from terrine_client.errors import BudgetExhausted, TerrineError
from terrine_protocol import ProjectInfo

if TYPE_CHECKING:
    from terrine_models.choice import Choice
    from terrine_models.learning import Training
    from terrine_models.store import InputSpec, TableSchema
    from terrine_models.students import Student

__all__ = ["DistillError", "Distilled", "Examples", "Report", "Round", "distill"]

Array = npt.NDArray[Any]
Examples = tuple[Array, npt.NDArray[np.int64]]
"""Inputs [N, …] and their class indices [N]."""
CHUNK = 128
"""Queries after which the answers are saved and the budget is checked."""
SKETCH = 4
"""Before the last round a student trains for a quarter of the steps: enough to judge it."""


class DistillError(TerrineError):
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
    noisy_counts: npt.NDArray[np.int64] | None = None
    """[N, m], for noisy_votes, as in `Labels`."""
    noise_sigma: float | None = None
    """The standard deviation of the noise in them, in votes."""


def distill(
    client: Client,
    public: Array,
    out: Path,
    *,
    held_out: Examples | None = None,
    rounds: int = 3,
    queries: int | None = None,
    training: Training | None = None,
    encoding: TableSchema | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    on_step: Callable[[int, int], None] = lambda done, steps: None,
) -> Distilled:
    """Buy labels of `public` [N, …] in rounds and train a student into the directory `out`.

    held_out: the student's own labelled data, to measure its accuracy; never trained on.
    queries: the most in total; by default until the budget is spent or all inputs are sent.
    encoding: schema of a table, saved with the student; by default the ensemble's.
    seed: of the order of the queries, and of the training. The server draws the noise.
    tell, on_step: called with each line of progress, and with the steps done and to do.

    With noisy_votes all inputs are asked in one round, and the student learns from the counts
    (`terrine_models.counted`). With interactive_gnmax, the first round sends uniform probabilities,
    which makes it Confident-GNMax; later rounds query where the student is least certain and send
    its predictions.

    The student that is returned is chosen by cross-validation on the bought labels, and checked
    against a plain model (`terrine_models.choice`); the report says what was tried and why.

    After an interruption or a failure, the same call continues where it stopped: answers are saved
    in `answers.npz`, and the server repeats those that were paid for but not saved, at no cost.

    Raises DistillError, and what `Client.label` raises except BudgetExhausted.
    """
    from terrine_models.learning import Training

    if rounds < 1 or (queries is not None and queries < 1):
        raise DistillError("Rounds and queries must be at least 1.")
    project = client.project()
    check_data(public, project, held_out)
    if project.mechanism.name == "noisy_votes":
        rounds = 1  # every count helps every other row, so there is nothing to wait for
    notebook = Notebook.open(out, project, public)
    training = replace(training or Training(), seed=seed)
    encoding = encoding or project.ensemble.encoding
    study = _Study(client, project, public, held_out, training, encoding, on_step, notebook)
    limit = len(public) if queries is None else min(queries, len(public))
    history = [Round(**entry) for entry in json.loads(notebook.rounds)]
    order = study.order(seed)
    student, choice, refused, over = None, None, False, False
    while not over:
        number = min(len(history) + 1, rounds)
        share = limit - int(notebook.asked.sum())
        if number < rounds:
            share = min(share, max(1, client.budget().affordable // (rounds - number + 1)))
        refused = study.ask(*study.choose(order, share, student))
        known = int((notebook.labels >= 0).sum())
        over = refused or number == rounds or int(notebook.asked.sum()) >= limit
        if known == 0 and over:
            raise DistillError(_nothing_learned(notebook, refused))
        if known > 0:
            tell(f"Round {number}: training on {known:,} labels …")
            if over:
                student, choice = study.finish(tell)
            else:
                student = study.sketch()
        history = continued(history, study.summarise(history, student))
        notebook.conclude(json.dumps([asdict(entry) for entry in history]))
        tell(round_line(number, history[-1]))
    if student is None or choice is None:
        raise DistillError(_nothing_learned(notebook, refused))
    for line in choice_lines(choice):
        tell(line)
    student.save(out)
    report = study.report(history, refused, choice)
    (out / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    draw(report, out / "accuracy.png")
    return Distilled(
        student,
        notebook.labels,
        notebook.outcomes,
        report,
        notebook.noisy_counts,
        notebook.noise_sigma,
    )


@dataclass(frozen=True)
class _Study:
    """What stays the same from round to round, and the notebook."""

    client: Client
    project: ProjectInfo
    public: Array
    held_out: Examples | None
    training: Training
    encoding: TableSchema | None
    on_step: Callable[[int, int], None]
    notebook: Notebook

    @property
    def interactive(self) -> bool:
        return self.project.mechanism.name == "interactive_gnmax"

    @property
    def spec(self) -> InputSpec:
        from terrine_models.store import InputSpec

        return InputSpec.model_validate(self.project.ensemble.input.model_dump())

    def order(self, seed: int) -> npt.NDArray[np.int64]:
        from terrine_models.choosing import asking_order

        return asking_order(self.public, self.spec, seed)

    def choose(
        self, order: npt.NDArray[np.int64], count: int, student: Student | None
    ) -> tuple[npt.NDArray[np.int64], Array | None]:
        """The next `count` rows to send, and the probabilities to send with them.

        Rows that were planned before an interruption come first, with their planned probabilities.
        """
        notebook = self.notebook
        planned = np.flatnonzero(notebook.planned & ~notebook.asked)
        fresh = order[~notebook.asked[order] & ~notebook.planned[order]]
        count = max(0, count - len(planned))
        if not self.interactive:
            return np.concatenate([planned, fresh[:count]]), None
        classes = len(self.project.ensemble.classes)
        if student is None:
            beliefs = np.full((len(fresh), classes), 1 / classes)
        else:
            beliefs = student.probabilities(self.public[fresh])
            unsure = np.argsort(beliefs.max(1), kind="stable")
            fresh, beliefs = fresh[unsure], beliefs[unsure]
        return (
            np.concatenate([planned, fresh[:count]]),
            np.concatenate([notebook.beliefs[planned], beliefs[:count]]),
        )

    def ask(self, rows: npt.NDArray[np.int64], beliefs: Array | None) -> bool:
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

    def sketch(self) -> Student:
        """A student for the rounds before the last: it only has to show where they stand."""
        from terrine_models.learning import train_student

        steps = max(1, self.training.steps // SKETCH)
        return train_student(
            self.public,
            self.notebook.labels,
            inputs=self.spec,
            classes=tuple(self.project.ensemble.classes),
            encoding=self.encoding,
            training=replace(self.training, method="supervised", steps=steps),
            on_step=self.on_step,
        )

    def finish(self, tell: Callable[[str], None]) -> tuple[Student, Choice]:
        """The student that is returned, and how it was chosen."""
        from terrine_models.answers import student_from_answers

        made = student_from_answers(
            self.public,
            self.notebook.labels,
            teachers=self.project.ensemble.teachers,
            noisy_counts=self.notebook.noisy_counts,
            noise_sigma=self.notebook.noise_sigma,
            matches_prior=self.project.ensemble.matches_prior,
            inputs=self.spec,
            classes=tuple(self.project.ensemble.classes),
            encoding=self.encoding,
            training=self.training,
            tell=tell,
            on_step=self.on_step,
        )
        return made.student, made.choice

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

    def report(self, history: list[Round], refused: bool, choice: Choice) -> Report:
        budget, outcomes = self.client.budget(), self.notebook.outcomes
        return Report(
            project=self.project.name,
            mechanism=self.project.mechanism.model_dump(mode="json", exclude_none=True),
            guarantee=self.project.guarantee,
            epsilon=budget.epsilon,
            delta=budget.delta,
            epsilon_spent=budget.epsilon_spent,
            charges=budget.charges,
            public_inputs=len(self.public),
            outcomes=dict(Counter(outcomes[self.notebook.asked].tolist())),
            refused=refused,
            rounds=history,
            held_out=0 if self.held_out is None else len(self.held_out[0]),
            accuracy=history[-1].accuracy,
            training=asdict(self.training),
            choice=choice,
            spending=[(int(charges), spent) for charges, spent in self.notebook.spending.tolist()],
        )


def check_data(public: Array, project: ProjectInfo, held_out: Examples | None) -> None:
    """Check inputs against what the project's ensemble takes. Raises DistillError."""
    _check(public, project, "The public inputs")
    if held_out is not None:
        _check(held_out[0], project, "The held-out inputs")
        _check_separate(public, held_out[0])


def _check(x: Array, project: ProjectInfo, what: str) -> None:
    spec = project.ensemble.input
    if x.ndim < 1 or list(x.shape[1:]) != spec.shape or len(x) == 0:
        raise DistillError(
            f"{what} have shape {list(x.shape)}; the project {project.name} takes "
            f"[N, {', '.join(map(str, spec.shape))}]."
        )


def _check_separate(public: Array, held_out: Array) -> None:
    """Accuracy on training inputs would mean nothing."""
    from terrine_models.data import row_digests

    held = np.ascontiguousarray(held_out, dtype=public.dtype)
    shared = int(np.isin(row_digests(held), row_digests(np.ascontiguousarray(public))).sum())
    if shared > len(held) // 100:  # rows of a table may coincide by chance
        raise DistillError(
            f"{shared} of {len(held)} held-out inputs are also public inputs, so the accuracy "
            "would mean nothing. Hold out data that the student is not trained on."
        )


def _nothing_learned(notebook: Notebook, refused: bool) -> str:
    if refused and not notebook.asked.any():
        return (
            "The project's budget is spent and none of these inputs was sent before, so there is "
            "nothing to learn from. Ask the data owner for a new project."
        )
    return (
        f"{int(notebook.asked.sum())} inputs were sent and none was labelled: the teachers "
        "disagree on them. Are they like the data that the teachers were trained on?"
    )
