"""Distill a student: buy labels in rounds, train on them, and report.

    with Client(url, token) as client:
        made = distill(client, x, Path("student"), held_out=(x_own, y_own))
    made.student.predict(x_new)

Needs the student extra (in a checkout: pip install '.[student]'). The student's process holds a
URL, a token and public inputs; the only private information that reaches it is the answers it pays
for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from terrine_client._distillation import Distillation, Examples
from terrine_client._notebook import Notebook
from terrine_client._report import Report, Round, choice_lines, continued, draw, round_line
from terrine_client.client import Client
from terrine_client.errors import ClientError
from terrine_protocol import ProjectInfo
from terrine_protocol.mechanisms import COUNTED

if TYPE_CHECKING:
    from terrine_models.students.answers import Answers
    from terrine_models.students.models import Student, Task
    from terrine_models.students.settings import Training
    from terrine_protocol.tables import TableSchema

__all__ = ["DistillError", "Distilled", "Examples", "Report", "Round", "distill"]

Array = npt.NDArray[Any]


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
    answers: Answers
    """What it learned from: these labels, or noisy counts; to train another student of."""

    def __repr__(self) -> str:
        return f"<Distilled {self.report.choice.chosen} student: {self.report!r}>"


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
) -> Distilled:
    """Buy labels of `public` [N, …] in rounds and train a student into the directory `out`.

    held_out: the student's own labelled data, to measure its accuracy; never trained on.
    queries: the most in total; by default until the budget is spent or all inputs are sent.
    encoding: schema of a table, saved with the student; by default the ensemble's.
    seed: of the order of the queries, and of the training. The server draws the noise.
    tell: called with each line of progress.

    With noisy counts all inputs are asked in one round, and the student learns from the counts.
    With interactive_gnmax, the first round sends uniform probabilities, which makes it
    Confident-GNMax; later rounds send the student's predictions.

    The student that is returned is compared with a plain one by answers that both did not see
    (`terrine_models.students.selection`); the report says what was tried and why.

    Answers that the project has paid for are fetched first, free, once its budget is spent: so to
    train again, in another way or with another threshold, costs nothing.

    After an interruption or a failure, the same call continues where it stopped: answers are saved
    in `answers.npz`, and the server repeats those that were paid for but not saved, at no cost.

    Raises DistillError, and what `Client.label` raises except BudgetExhausted.
    """
    from terrine_models.students.settings import Training

    training = training or Training()
    if rounds < 1 or (queries is not None and queries < 1):
        raise DistillError("Rounds and queries must be at least 1.")
    project = client.project()
    check_data(public, project, held_out)
    task = task_of(public, project, encoding, seed)
    check_training(training, task)
    if project.mechanism.name in COUNTED:
        rounds = 1  # every count helps every other row, so there is nothing to wait for
    notebook = Notebook.open(out, project, public)
    distillation = Distillation(client, project, held_out, task, training, notebook)
    if fetched := distillation.fetch():
        tell(f"The budget is spent. {fetched:,} inputs were answered before: fetched, free.")
    limit = len(public) if queries is None else min(queries, len(public))
    history = [Round(**entry) for entry in json.loads(notebook.rounds)]
    order = distillation.order()
    made, refused, ended, sketch = None, False, "", None
    while not ended:
        number = min(len(history) + 1, rounds)
        left, affordable = limit - int(notebook.asked.sum()), client.budget().affordable
        share = max(1, affordable // (rounds - number + 1))
        if sketch is None and number > 1 and distillation.known > 0 and distillation.asks_unsure:
            sketch = distillation.sketch()
        count = min(left, share) if number < rounds else left
        refused = distillation.ask(*distillation.choose(order, count, share, sketch))
        if refused:
            ended = "The budget is spent."
        elif int(notebook.asked.sum()) >= limit:
            ended = "All inputs were asked." if limit == len(public) else "Enough was asked."
        elif number == rounds:
            ended = "The last round is over."
        if distillation.known == 0 and ended:
            raise DistillError(_nothing_learned(notebook, refused))
        if distillation.known > 0:
            tell(f"Round {number}: training on {distillation.known:,} answers …")
            if ended:
                made = distillation.finish(tell)
            else:
                sketch = distillation.sketch()
        latest = distillation.summarise(history, made.student if made else sketch)
        history = continued(history, latest)
        notebook.conclude(json.dumps([asdict(entry) for entry in history]))
        tell(round_line(number, history[-1]))
    if made is None:
        raise DistillError(_nothing_learned(notebook, refused))
    for line in choice_lines(made.choice):
        tell(line)
    student = made.student.with_model(image=project.ensemble.image)
    student.save(out)
    warnings = (distillation.one_sided(), distillation.below_majority(made.student))
    notes = [note for note in warnings if note is not None]
    report = distillation.report(history, refused, ended, notes, made)
    (out / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    if not draw(report, out / "accuracy.png"):
        tell(
            "There is no accuracy.png: matplotlib is not installed. In a checkout: pip install "
            "'.[student]'"
        )
    return Distilled(
        student,
        notebook.labels,
        notebook.outcomes,
        report,
        distillation.answers,
    )


def check_data(public: Array, project: ProjectInfo, held_out: Examples | None) -> None:
    """Check inputs against what the project's ensemble takes. Raises DistillError."""
    _check(public, project, "The public inputs")
    if held_out is not None:
        _check(held_out[0], project, "The held-out inputs")
        _check_labels(held_out, project)
        _check_separate(public, held_out[0])


def _check(x: Array, project: ProjectInfo, what: str) -> None:
    spec = project.ensemble.input
    if x.ndim < 1 or x.shape[1:] != spec.shape or len(x) == 0:
        raise DistillError(
            f"{what} have shape {list(x.shape)}; the project {project.name} takes "
            f"[N, {', '.join(map(str, spec.shape))}]."
        )


def _check_labels(held_out: Examples, project: ProjectInfo) -> None:
    x, labels = held_out
    classes = len(project.ensemble.classes)
    if labels.shape != (len(x),) or labels.min() < 0 or labels.max() >= classes:
        raise DistillError(
            f"The held-out labels must be one class index below {classes} for each of the "
            f"{len(x)} held-out inputs."
        )


def task_of(
    public: Array, project: ProjectInfo, encoding: TableSchema | None = None, seed: int = 0
) -> Task:
    """What a student of this project is to learn from its public inputs."""
    from terrine_models.students.models import Task

    facts = project.ensemble
    encoding = encoding or facts.encoding
    return Task(public, facts.input, tuple(facts.classes), encoding, seed)


def check_training(training: Training, task: Task) -> None:
    """Check that such a student can be trained, before anything is bought. Raises DistillError."""
    from terrine_models.students.models import check_method

    try:
        check_method(training.method, task)
    except ValueError as error:
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


def _nothing_learned(notebook: Notebook, refused: bool) -> str:
    if notebook.asked.any() and (notebook.outcomes[notebook.asked] == "exhausted").all():
        return (
            f"{int(notebook.asked.sum())} inputs were sent and none was answered: near all of them "
            "people are used up. Nothing was charged. Send other inputs, or ask the data owner for "
            "a new project."
        )
    if refused and not notebook.asked.any():
        return (
            "The project's budget is spent and none of these inputs was sent before, so there is "
            "nothing to learn from. Ask the data owner for a new project."
        )
    return (
        f"{int(notebook.asked.sum())} inputs were sent and none was labelled: the teachers "
        "disagree on them. Are they like the data that the teachers were trained on?"
    )
