"""The contents of a student's report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


# Okabe and Ito's colours, which those who see no red or green tell apart, too.
ACCURACY, PLAIN, TRUE, EPSILON = "#0072B2", "#E69F00", "#009E73", "#D55E00"
ERRORS = (
    (90, 70, 50, 30, 20, 10, 5, 3, 2, 1, 0.5, 0.3, 0.2, 0.1),
    (90, 80, 70, 60, 50, 40, 30, 25, 20, 15, 10, 7, 5, 4, 3, 2, 1.5, 1.2, 1, 0.8, 0.5, 0.3, 0.2),
    tuple(range(90, 0, -1)),
    tuple(error / 10 for error in range(100, 0, -1)),
)
"""In percent, where ticks may be: the first that has enough."""
LEAST_ERROR = 0.05
"""In percent: what has no errors is drawn here."""
FEWEST_TICKS, MOST_TICKS = 4, 10


def draw(report: Report, path: Path, *, true_labels: float | None = None) -> bool:
    """Draw `report` as a PNG of 1200 x 1050 pixels, and return True. See `picture`.

    Where matplotlib is not installed, as beside a server, draw nothing and return False.
    """
    if find_spec("matplotlib") is None:
        return False
    picture(report, true_labels=true_labels).savefig(path, metadata={"Software": None})
    return True


def picture(report: Report, *, true_labels: float | None = None) -> Figure:
    """Accuracy, with its baselines, above what was spent.

    true_labels: accuracy on the same held-out inputs of the same student of true labels, if known.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), dpi=150, layout="constrained")
    points = [(r.charges, r.accuracy * 100) for r in report.rounds if r.accuracy is not None]
    if points:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        upper.plot(
            *zip(*points, strict=True), "o-", color=ACCURACY, label="accuracy of the student"
        )
        for x, y in points:
            upper.annotate(
                f"{y:.1f} %",
                (x, y),
                xytext=(-6, 6),
                textcoords="offset points",
                ha="right",
                color=ACCURACY,
                fontsize=9,
            )
        if true_labels is not None:
            upper.axhline(
                true_labels * 100,
                color=TRUE,
                lw=1.5,
                ls="--",
                label="the same student on true labels",
            )
        if report.majority is not None:
            upper.axhline(
                report.majority * 100,
                color=PLAIN,
                lw=1.5,
                ls=":",
                label="always the largest class",
            )
        upper.set_ylabel(f"accuracy on {report.held_out:,} held-out inputs, %")
        accuracy_scale(upper)
        upper.grid(alpha=0.3)
    else:
        lower = figure.subplots()
    spent = sorted({(0, 0.0), *((int(c), float(e)) for c, e in report.spending)})
    lower.plot(*zip(*spent, strict=True), color=EPSILON, lw=1.5, label="ε spent")
    budget = f"budget: ε = {report.epsilon:g}, δ = {report.delta:g}"
    lower.axhline(report.epsilon, color=EPSILON, lw=1, ls=":", label=budget)
    lower.set_ylabel("ε spent")
    lower.set_ylim(0, report.epsilon * 1.08)
    lower.set_xlabel("queries paid for")
    lower.set_xlim(left=0)
    lower.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    agreed = report.choice.figures
    agreement = "" if agreed is None else f", agreement {agreed.accuracy.value:.1%}"
    figure.suptitle(
        f"Project {report.project}, {report.mechanism['name']}\n"
        f"student: {report.choice.chosen}{agreement}",
        fontsize=10,
    )
    return figure


def accuracy_scale(axes: Axes) -> None:
    """Scale the axis of accuracies in percent by the logarithm of the errors.

    So 90, 99 and 99.9 % are equally far apart, and a baseline that is far below remains in sight.
    """
    import numpy as np
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axes.dataLim.intervaly
    most, least = max(100 - low, LEAST_ERROR), max(100 - high, LEAST_ERROR)
    most, least = min(most * 1.15, 100), max(least / 1.15, LEAST_ERROR)
    axes.set_yscale(
        "function",
        functions=(
            lambda y: -np.log(np.maximum(100 - np.asarray(y), LEAST_ERROR / 2)),
            lambda scaled: 100 - np.exp(-np.asarray(scaled)),
        ),
    )
    axes.set_ylim(100 - most, 100 - least)
    for errors in ERRORS:
        ticks = [100 - error for error in errors if least <= error <= most]
        if len(ticks) >= FEWEST_TICKS:
            break
    axes.yaxis.set_major_locator(FixedLocator(ticks[:: max(1, len(ticks) // MOST_TICKS)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
