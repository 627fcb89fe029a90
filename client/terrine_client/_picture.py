"""The plot of a student's progress: its accuracy, and below it what was spent, against queries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from terrine_client._report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
