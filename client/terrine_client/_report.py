"""The contents of a student's report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from terrine_models.students.answers import EstimatedMetrics
    from terrine_models.students.selection import Choice


@dataclass(frozen=True)
class Round:
    """One round: its queries, and the accuracy of the student after it."""

    asked: int
    outcomes: dict[str, int]
    charges: int
    """Queries that the project has paid for in total."""
    epsilon_spent: float
    accuracy: float | None
    """On the held-out data; None if there is none."""


@dataclass(frozen=True)
class ClassFigures:
    """One class of the held-out data.

    recall: the share of its inputs that are predicted to be in it. precision: the share of the
    inputs that are predicted to be in it and are. None where there is no such input.
    """

    name: str
    inputs: int
    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class Report:
    """`report.json`: the labels that were bought, and the student they trained."""

    project: str
    mechanism: dict[str, Any]
    protects: str
    """What the promise protects one of: a record, or all records of a person."""
    epsilon: float
    delta: float
    epsilon_spent: float
    charges: int
    classes: list[str]
    public_inputs: int
    outcomes: dict[str, int]
    reinforced: float | None
    """Of interactive_gnmax: the share of the labels that confirm the student's own."""
    asking: str
    """Which inputs were asked after the first round."""
    refused: bool
    """True if the project ended because the budget was spent."""
    ended: str
    """Why the project ended, as a sentence."""
    queries_left: int
    """Further queries that are certain to fit into the budget."""
    rounds: list[Round]
    held_out: int
    accuracy: float | None
    plain: float | None
    """That of the plain student of the same answers."""
    majority: float | None
    """Share of the held-out data in their largest class: the accuracy of always saying that."""
    by_class: list[ClassFigures]
    """On the held-out data; empty if there is none."""
    notes: list[str]
    """Warnings."""
    training: dict[str, Any]
    """The settings that were asked for."""
    choice: Choice
    """What was tried, what was returned, and why."""
    spending: list[tuple[int, float]]
    """ε spent after so many charges."""

    def __repr__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        return (
            f"<Report on {self.project}: {self.charges:,} charges, ε = {self.epsilon_spent:.4g} of "
            f"{self.epsilon:g} spent{accuracy}>"
        )


def continued(history: list[Round], new: Round) -> list[Round]:
    """The history with a round added; a round without queries updates the last accuracy."""
    if history and new.asked == 0:
        return [*history[:-1], replace(history[-1], accuracy=new.accuracy)]
    return [*history, new]


def round_line(number: int, done: Round) -> str:
    """A summary of a round in one line."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.outcomes.items()))
    accuracy = "" if done.accuracy is None else f"; accuracy {done.accuracy:.2%}"
    return (
        f"Round {number}: {done.asked} queries ({outcomes or 'no answers'}); "
        f"ε spent {done.epsilon_spent:.3f}{accuracy}"
    )


def choice_lines(choice: Choice) -> list[str]:
    """What was tried, with figures of held-out answers, and what was chosen."""
    lines = [f"{each.method}: {figures_line(each.figures, choice)}." for each in choice.judged]
    if lines:
        of = "; voters err, so this is no accuracy" if choice.noisy else ""
        lines.insert(0, f"By answers that were held out ({choice.folds} folds{of}):")
    return [*lines, f"Student: {choice.chosen}. {choice.why}"]


def figures_line(found: EstimatedMetrics, choice: Choice) -> str:
    """Figures with their standard errors, as in `accuracy 84.0 % ± 0.5`.

    Of noisy counts the figure is a share of votes, and called so. A student can be right far more
    often than that, where each voter by itself is wrong often. An estimate outside 0 to 1 is shown
    as the nearer.
    """
    what = "agrees with single votes" if choice.noisy else "accuracy"
    shown = {
        what: found.accuracy,
        "by class" if choice.noisy else "balanced accuracy": found.balanced_accuracy,
        "AUC": found.auc,
    }
    return ", ".join(
        f"{name} {min(max(each.value, 0), 1):.1%} ± {100 * each.error:.1f}"
        for name, each in shown.items()
        if each
    )
