"""The picture of a plan: ε against answers for each accounting method, and what accuracy costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from terrine_server.planning.plan import Candidate, Curve, Plan

# Okabe and Ito's colours, which those who see no red or green tell apart, and a style for each.
STYLES = {
    "basic": ("#000000", ":"),
    "classic RDP": ("#D55E00", "--"),
    "improved RDP": ("#E69F00", "-."),
    "fixed-order RDP": ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
    "GDP": ("#0072B2", "-"),
    "joint RDP": ("#009E73", (0, (8, 2))),
    "data-dependent": ("#56B4E9", (0, (1, 1))),
}
CHOSEN, OTHERS, WARNING = "#0072B2", "#999999", "#D55E00"


def draw(found: Plan, curves: Sequence[Curve], path: Path, *, private: bool) -> None:
    """Draw a plan as a PNG of 1650 x 825 pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.5), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_accounting(left, found, curves)
    _draw_candidates(right, found)
    spec = dict(found.chosen.spec)
    name = spec.pop("name")
    title = f"{name}, {found.chosen.teachers:,} teachers: "
    title += ", ".join(f"{key} {value:g}" for key, value in spec.items())
    if private:
        title = f"NOT PRIVATE, show to nobody: made from private votes\n{title}"
    figure.suptitle(title, color=WARNING if private else "black")
    figure.savefig(path, metadata={"Software": None})


def _draw_accounting(axes: Axes, found: Plan, curves: Sequence[Curve]) -> None:
    for curve in curves:
        points = [
            point
            for point in zip(curve.answers, curve.epsilons, strict=True)
            if math.isfinite(point[1]) and point[1] <= 2 * found.epsilon
        ]
        if points:
            colour, style = STYLES[curve.name]
            axes.plot(
                *zip(*points, strict=True),
                label=curve.name + (" (enforced)" if curve.enforced else ""),
                color=colour,
                lw=2.4 if curve.enforced else 1.4,
                ls=style,
            )
    axes.axhline(found.epsilon, color="black", lw=0.8, ls=":")
    axes.set_xlabel("expected answers")
    axes.set_ylabel(f"ε at δ = {found.delta:g}")
    axes.set_xlim(left=0, right=1.2 * max(line.answers for line in found.lines) + 1)
    axes.set_ylim(0, 2 * found.epsilon)
    _legend(axes)
    axes.grid(alpha=0.25)


def _draw_candidates(axes: Axes, found: Plan) -> None:
    def place(candidate: Candidate) -> tuple[float, float]:
        price = candidate.answers if candidate.epsilon is None else candidate.epsilon
        return price or 0.0, 100 * candidate.accuracy

    points = [place(each) for each in found.candidates if each.answered > 0]
    points = [point for point in points if math.isfinite(point[0]) and point[0] > 0]
    answers, accuracy = zip(*points, strict=True)
    axes.scatter(answers, accuracy, s=14, color=OTHERS, label="candidates of the grid")
    x, y = place(found.chosen)
    axes.scatter([x], [y], s=70, marker="D", color=CHOSEN, label="chosen", zorder=3)
    axes.set_xscale("log")
    wanted = found.chosen.epsilon is not None
    axes.set_xlabel(
        f"ε of {found.wanted:,} answers"
        if wanted
        else f"expected answers for ε = {found.epsilon:g}"
    )
    against = "the labels" if found.labelled else "most teachers"
    axes.set_ylabel(f"answers that agree with {against}, %")
    _legend(axes)
    axes.grid(alpha=0.25)


def _legend(axes: Axes) -> None:
    """Below the axes, so that it hides no curve."""
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
