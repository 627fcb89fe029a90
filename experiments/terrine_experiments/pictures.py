"""Pictures: panels of curves side by side, with points of papers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from terrine_client._report import scale_accuracy_axis

# Okabe and Ito's colours, which those who see no red or green tell apart, too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#F0E442", "#D55E00")
PAPERS_OWN = COLOURS[-1]
PAPER, UNSAFE = "*", "p"
"""Styles of a paper's points; where its ε is not safe to publish, the marker is hollow."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a panel, or its bars."""

    label: str
    x: ArrayLike
    y: ArrayLike
    style: str = "-"
    colour: int | None = None
    """Which of `COLOURS`; None: that of its place. A paper's points have their own."""
    error: ArrayLike | None = None
    """How far a bar reaches down and up from each point, [2, N]."""


@dataclass(frozen=True, eq=False)
class Panel:
    """A plot with its axes."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    bars: float = 0
    """How wide bars are; 0 draws lines."""
    errors: bool = False
    """y is an accuracy, on a scale of the errors' logarithm, so that baselines far below remain in
    sight."""
    lowest: float | None = None
    """What y begins with."""


def draw_panels(
    panels: Sequence[Panel],
    path: Path,
    *,
    size: tuple[float, float] = (4.4, 4.2),
    across: int = 4,
    legend_below: bool = False,
) -> None:
    """Draw panels, so many side by side, as a picture of the kind that the path ends in."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    across = min(across, len(panels))
    down = -(-len(panels) // across)
    figsize = (size[0] * across, size[1] * down + legend_below)
    figure, named = Figure(figsize=figsize, dpi=90, layout="constrained"), dict[str, Any]()
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for unused in grid[len(panels) :]:
        unused.set_axis_off()
    for axes, panel in zip(grid, panels, strict=False):
        for place, curve in enumerate(panel.curves):
            of_paper = curve.style in (PAPER, UNSAFE)
            colour = COLOURS[(place if curve.colour is None else curve.colour) % len(COLOURS)]
            if panel.bars:
                axes.bar(curve.x, curve.y, panel.bars, alpha=0.45, color=colour, label=curve.label)
                continue
            named[curve.label] = axes.errorbar(
                curve.x,
                curve.y,
                curve.error,
                fmt=curve.style,
                ms=12 if of_paper else 5,
                capsize=3,
                color=PAPERS_OWN if of_paper else colour,
                fillstyle="none" if curve.style == UNSAFE else "full",
                label=curve.label,
            )
        axes.set_xscale("log" if panel.log_x else "linear")
        axes.set_yscale("log" if panel.log_y else "linear")
        if panel.log_x:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=panel.lowest)
        if panel.errors:
            scale_accuracy_axis(axes)
        if not legend_below:
            axes.legend(fontsize=7.5)
    if legend_below:
        where: Any = {"loc": "outside lower center", "ncols": min(2, across), "frameon": False}
        figure.legend(list(named.values()), list(named), fontsize=8, **where)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
