"""The picture of a plan: ε against answers for each accounting method, and what accuracy costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from terrine_server.planning.plan import Candidate, Curve, Plan

COLORS = {
    "basic": "#888888",
    "classic RDP": "#b5452c",
    "improved RDP": "#d99a2b",
    "fixed-order RDP": "#7a5fa8",
    "GDP": "#1b6ca8",
    "joint RDP": "#c2185b",
    "data-dependent": "#2e8b57",
}


def draw(found: Plan, curves: Sequence[Curve], path: Path, *, private: bool) -> None:
    """Draw a plan as a PNG of 1650 x 750 pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_accounting(left, found, curves)
    _draw_candidates(right, found)
    spec = dict(found.chosen.spec)
    name = spec.pop("name")
    title = f"{name}, {found.chosen.teachers:,} teachers: "
    title += ", ".join(f"{key} {value:g}" for key, value in spec.items())
    if private:
        title = f"NOT PRIVATE, show to nobody: made from private votes\n{title}"
    figure.suptitle(title, color="#b5452c" if private else "black")
    figure.savefig(path, metadata={"Software": None})


def _draw_accounting(axes: Axes, found: Plan, curves: Sequence[Curve]) -> None:
    for curve in curves:
        points = [
            point
            for point in zip(curve.answers, curve.epsilons, strict=True)
            if math.isfinite(point[1]) and point[1] <= 2 * found.epsilon
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                label=curve.name + (" (enforced)" if curve.enforced else ""),
                color=COLORS[curve.name],
                lw=2.4 if curve.enforced else 1.4,
                ls="--" if curve.name == "fixed-order RDP" and not curve.enforced else "-",
            )
    axes.axhline(found.epsilon, color="black", lw=0.8, ls=":")
    axes.set_xlabel("expected answers")
    axes.set_ylabel(f"ε at δ = {found.delta:g}")
    axes.set_xlim(left=0, right=1.2 * max(line.answers for line in found.lines) + 1)
    axes.set_ylim(0, 2 * found.epsilon)
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(alpha=0.25)


def _draw_candidates(axes: Axes, found: Plan) -> None:
    def place(candidate: Candidate) -> tuple[float, float]:
        price = candidate.answers if candidate.epsilon is None else candidate.epsilon
        return price or 0.0, 100 * candidate.accuracy

    points = [place(each) for each in found.candidates if each.answered > 0]
    points = [point for point in points if math.isfinite(point[0]) and point[0] > 0]
    answers, accuracy = zip(*points, strict=True)
    axes.scatter(answers, accuracy, s=14, color="#888888", label="candidates of the grid")
    x, y = place(found.chosen)
    axes.scatter([x], [y], s=70, color=COLORS["GDP"], label="chosen", zorder=3)
    axes.set_xscale("log")
    wanted = found.chosen.epsilon is not None
    axes.set_xlabel(
        f"ε of {found.wanted:,} answers"
        if wanted
        else f"expected answers for ε = {found.epsilon:g}"
    )
    against = "the labels" if found.labelled else "most teachers"
    axes.set_ylabel(f"answers that agree with {against}, %")
    axes.legend(fontsize=8, loc="lower right" if wanted else "lower left")
    axes.grid(alpha=0.25)
