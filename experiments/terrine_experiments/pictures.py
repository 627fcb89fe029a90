"""Pictures: accuracy against ε with the papers' points, and panels of curves."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from terrine_client._report import scale_accuracy_axis
from terrine_experiments.interval import half_width
from terrine_experiments.papers import PAPERS
from terrine_experiments.results import ExperimentResult, kinds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which those who see no red or green tell apart, too.
STUDENT = "#0072B2"
TWIN = "#009E73"
PLAIN = "#E69F00"
PAPERS_OWN = "#D55E00"
OTHER = "#CC79A7"
COLOURS = (STUDENT, PLAIN, TWIN, OTHER)
PAPER = "*"
"""Style of a paper's point in a panel."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.6, 1, 2, 3, 5, 8, 15, 30, 60, 100)
MARKERS = "oDv"
"""Of our groups of results."""
PLAIN_MARKERS = "sPX"
PAPER_MARKERS = "*^hp"
"""Of papers."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a panel, or its bars."""

    label: str
    x: ArrayLike
    y: ArrayLike
    style: str = "-"
    colour: int | None = None
    """Which of `COLOURS`; None: that of its place. A paper's points have their own."""


@dataclass(frozen=True, eq=False)
class Panel:
    """A plot with its axes. `bars`: how wide; 0 draws lines."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    bars: float = 0


def draw_panels(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side, as a WebP of 90 dots per inch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(panels), 4.2), dpi=90, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for place, curve in enumerate(panel.curves):
            of_paper = curve.style == PAPER
            number = place if curve.colour is None else curve.colour
            colour = PAPERS_OWN if of_paper else COLOURS[number % len(COLOURS)]
            if panel.bars:
                axes.bar(curve.x, curve.y, panel.bars, alpha=0.45, color=colour, label=curve.label)
                continue
            size = 12 if of_paper else 5
            axes.plot(curve.x, curve.y, curve.style, ms=size, color=colour, label=curve.label)
        axes.set_xscale("log" if panel.log_x else "linear")
        axes.set_yscale("log" if panel.log_y else "linear")
        if panel.log_x:
            axes.xaxis.set_major_formatter("{x:g}")
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, pil_kwargs={"quality": 82, "method": 6})


def draw(results: Sequence[ExperimentResult], path: Path) -> None:
    """Draw accuracy against ε, with the papers' points, as a PNG of 1200 x 1050 pixels."""
    figure = picture(results)
    figure.savefig(path, metadata={"Software": None})


def picture(results: Sequence[ExperimentResult]) -> Figure:
    """Students, plain students and those of true labels against ε, with the papers' points.

    Accuracies are on a scale of the errors' logarithm, so that baselines far below remain in sight.
    Where a paper's ε is not safe to publish, its marker is hollow.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(8, 7), dpi=150, layout="constrained")
    axes = figure.subplots()
    first = results[0]
    for number, group in enumerate(sorted({_group(each) for each in results})):
        chosen = [each for each in results if _group(each) == group]
        name, kind, teachers = group
        epsilons = [each.epsilon_spent for each in chosen]
        axes.errorbar(
            epsilons,
            [100 * each.mean for each in chosen],
            np.transpose([_bar(each) for each in chosen]),
            fmt=f"{MARKERS[number % len(MARKERS)]}-",
            color=STUDENT,
            capsize=3,
            label=f"student: {name}, {teachers:,} {kind}, worst-case ε ({_interval(chosen)})",
        )
        axes.plot(
            epsilons,
            [100 * statistics.fmean(each.plain) for each in chosen],
            f"{PLAIN_MARKERS[number % len(MARKERS)]}:",
            color=PLAIN,
            label="plain student: ridge regression on the same answers, as labels",
        )
        axes.axhline(
            100 * chosen[0].true_labels,
            color=TWIN,
            ls=("--", "-.", (0, (1, 1)))[number % 3],
            label=f"the same student on the true labels ({kinds(chosen[0].true_labels_chosen)})",
        )
    for number, paper in enumerate(PAPERS[first.data]):
        axes.plot(
            paper.epsilon,
            100 * paper.accuracy,
            PAPER_MARKERS[number % len(PAPER_MARKERS)],
            ms=11,
            ls="none",
            color=PAPERS_OWN,
            fillstyle="full" if paper.safe else "none",
            label=f"{paper.source.partition(',')[0]}, {paper.method}; ε: {paper.how}",
        )
    scale_accuracy_axis(axes)
    axes.set_xscale("log")
    epsilons = [each.epsilon_spent for each in results]
    epsilons += [paper.epsilon for paper in PAPERS[first.data]]
    axes.set_xlim(min(epsilons) / 1.3, max(epsilons) * 1.3)
    axes.set_xticks([tick for tick in TICKS if min(epsilons) / 1.3 < tick < max(epsilons) * 1.3])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"ε at δ = {first.delta:g}")
    axes.set_ylabel(f"accuracy on {first.tested:,} inputs, %")
    axes.set_title(f"{first.title}, {first.protocol}", fontsize=10)
    axes.grid(alpha=0.3, which="both")
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    ordered = sorted(by_label, key=lambda label: not label.startswith("student:"))
    figure.legend(
        [by_label[label] for label in ordered],
        ordered,
        loc="outside lower center",
        fontsize=8,
        frameon=False,
    )
    return figure


def _bar(result: ExperimentResult) -> tuple[float, float]:
    """How far its bar reaches down and up, in percent: not beyond what can be."""
    half = half_width(result.accuracies, result.tested) or 0.0
    return 100 * min(half, result.mean), 100 * min(half, 1 - result.mean)


def _interval(results: Sequence[ExperimentResult]) -> str:
    runs = sorted({len(each.accuracies) for each in results})
    many = " or ".join(str(number) for number in runs)
    return f"{many} runs; bars: a new run, 95 %" if runs != [1] else "one run"


def _group(result: ExperimentResult) -> tuple[str, str, int]:
    return str(result.mechanism["name"]), result.kind, result.teachers
