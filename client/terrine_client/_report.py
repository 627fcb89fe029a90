"""A student's report: what it holds, as lines of text, and as a chart."""

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
class ClassMetrics:
    """One class of the held-out data.

    recall: share of its inputs that are predicted as it. precision: share of the inputs predicted
    as it that are of it. None where there is no such input.
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
    """Whose contribution the guarantee hides: a record, or all records of a person."""
    epsilon: float
    delta: float
    epsilon_spent: float
    charges: int
    classes: list[str]
    public_inputs: int
    outcomes: dict[str, int]
    reinforced: float | None
    """For interactive_gnmax: share of the labels that confirm the student's own."""
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
    """Accuracy of the plain student of the same answers."""
    majority: float | None
    """Share of the held-out data in their largest class: the accuracy of always predicting it."""
    by_class: list[ClassMetrics]
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


def append_round(history: list[Round], new: Round) -> list[Round]:
    """Return the history with a round added. One without queries updates the last accuracy."""
    if history and new.asked == 0:
        return [*history[:-1], replace(history[-1], accuracy=new.accuracy)]
    return [*history, new]


def format_round(number: int, done: Round) -> str:
    """Return a summary of a round in one line."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.outcomes.items()))
    accuracy = "" if done.accuracy is None else f"; accuracy {done.accuracy:.2%}"
    return (
        f"Round {number}: {done.asked} queries ({outcomes or 'no answers'}); "
        f"ε spent {done.epsilon_spent:.3f}{accuracy}"
    )


def format_choice(choice: Choice) -> list[str]:
    """Return what was tried, with its metrics on held-out answers, and what was chosen."""
    lines = [f"{each.method}: {format_metrics(each.figures, choice)}." for each in choice.judged]
    if lines:
        of = "; voters err, so this is not accuracy" if choice.noisy else ""
        lines.insert(0, f"By answers that were held out ({choice.folds} folds{of}):")
    return [*lines, f"Student: {choice.chosen}. {choice.why}"]


def format_metrics(found: EstimatedMetrics, choice: Choice) -> str:
    """Return metrics with their standard errors, as in `accuracy 84.0 % ± 0.5`.

    For noisy counts it is agreement with single votes. Where single voters are often wrong, a
    student can be right far more often than that. Estimates are clipped to 0 to 1.
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


# Okabe and Ito's colours, which people with red-green colour blindness can tell apart.
ACCURACY_COLOUR = "#0072B2"
MAJORITY_COLOUR = "#E69F00"
TRUE_LABELS_COLOUR = "#009E73"
EPSILON_COLOUR = "#D55E00"
TICK_ERRORS_PERCENT = (
    (90, 70, 50, 30, 20, 10, 5, 3, 2, 1, 0.5, 0.3, 0.2, 0.1),
    (90, 80, 70, 60, 50, 40, 30, 25, 20, 15, 10, 7, 5, 4, 3, 2, 1.5, 1.2, 1, 0.8, 0.5, 0.3, 0.2),
    tuple(range(90, 0, -1)),
    tuple(error / 10 for error in range(100, 0, -1)),
)
"""Errors in percent at which there may be ticks: the first row that has enough of them."""
MIN_ERROR_PERCENT = 0.05
"""An accuracy without errors is drawn here."""
MIN_TICKS, MAX_TICKS = 4, 10


def draw(report: Report, path: Path, *, true_labels: float | None = None) -> bool:
    """Draw `report` as a PNG of 1200 x 1050 pixels, and return True. See `draw_figure`.

    Where matplotlib is not installed, as beside a server, draw nothing and return False.
    """
    if find_spec("matplotlib") is None:
        return False
    draw_figure(report, true_labels=true_labels).savefig(path, metadata={"Software": None})
    return True


def draw_figure(report: Report, *, true_labels: float | None = None) -> Figure:
    """Draw accuracy, with its baselines, above what was spent.

    true_labels: accuracy on the same held-out inputs of the same student of true labels, if known.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), dpi=150, layout="constrained")
    points = [(r.charges, r.accuracy * 100) for r in report.rounds if r.accuracy is not None]
    if points:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        upper.plot(
            *zip(*points, strict=True), "o-", color=ACCURACY_COLOUR, label="accuracy of the student"
        )
        for x, y in points:
            upper.annotate(
                f"{y:.1f} %",
                (x, y),
                xytext=(-6, 6),
                textcoords="offset points",
                ha="right",
                color=ACCURACY_COLOUR,
                fontsize=9,
            )
        if true_labels is not None:
            upper.axhline(
                true_labels * 100,
                color=TRUE_LABELS_COLOUR,
                lw=1.5,
                ls="--",
                label="the same student on true labels",
            )
        if report.majority is not None:
            upper.axhline(
                report.majority * 100,
                color=MAJORITY_COLOUR,
                lw=1.5,
                ls=":",
                label="always the largest class",
            )
        upper.set_ylabel(f"accuracy on {report.held_out:,} held-out inputs, %")
        scale_accuracy_axis(upper)
        upper.grid(alpha=0.3)
    else:
        lower = figure.subplots()
    spent = sorted({(0, 0.0), *((int(c), float(e)) for c, e in report.spending)})
    lower.plot(*zip(*spent, strict=True), color=EPSILON_COLOUR, lw=1.5, label="ε spent")
    budget = f"budget: ε = {report.epsilon:g}, δ = {report.delta:g}"
    lower.axhline(report.epsilon, color=EPSILON_COLOUR, lw=1, ls=":", label=budget)
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


def scale_accuracy_axis(axes: Axes) -> None:
    """Scale the axis of accuracies in percent by the logarithm of the errors.

    So 90, 99 and 99.9 % are equally far apart, and a baseline far below them stays in view.
    """
    import numpy as np
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axes.dataLim.intervaly
    most, least = max(100 - low, MIN_ERROR_PERCENT), max(100 - high, MIN_ERROR_PERCENT)
    most, least = min(most * 1.15, 100), max(least / 1.15, MIN_ERROR_PERCENT)
    axes.set_yscale(
        "function",
        functions=(
            lambda y: -np.log(np.maximum(100 - np.asarray(y), MIN_ERROR_PERCENT / 2)),
            lambda scaled: 100 - np.exp(-np.asarray(scaled)),
        ),
    )
    axes.set_ylim(100 - most, 100 - least)
    for errors in TICK_ERRORS_PERCENT:
        ticks = [100 - error for error in errors if least <= error <= most]
        if len(ticks) >= MIN_TICKS:
            break
    axes.yaxis.set_major_locator(FixedLocator(ticks[:: max(1, len(ticks) // MAX_TICKS)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
