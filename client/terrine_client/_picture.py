"""The plot of a student's progress: accuracy and ε against queries."""

from __future__ import annotations

from pathlib import Path

from terrine_client._report import Report

# Of Okabe and Ito's palette, which the colour-blind tell apart.
ACCURACY, EPSILON, BASELINE = "#0072B2", "#D55E00", "#009E73"


def draw(report: Report, path: Path) -> None:
    """Draw `report` as a PNG of 1200 x 900 pixels: accuracy above, ε below, against queries."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=150, layout="constrained")
    points = [(r.charges, r.accuracy * 100) for r in report.rounds if r.accuracy is not None]
    if points:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        top.plot(*zip(*points, strict=True), "o-", color=ACCURACY, label="the student")
        for x, y in points:
            top.annotate(
                f"{y:.1f} %",
                (x, y),
                xytext=(-6, 6),
                textcoords="offset points",
                ha="right",
                color=ACCURACY,
                fontsize=9,
            )
        lowest = min(y for _, y in points)
        if report.majority is not None:
            top.axhline(
                report.majority * 100,
                color=BASELINE,
                lw=1.5,
                ls="--",
                label="always the largest class",
            )
            lowest = min(lowest, report.majority * 100)
        top.set_ylabel(f"right on {report.held_out:,} held-out inputs, %")
        top.set_ylim(max(0, lowest - (102 - lowest) * 0.3), 102)
        top.grid(alpha=0.3)
        titled = top
    else:
        titled = bottom = figure.subplots()
    spent = sorted({(0, 0.0), *((int(c), float(e)) for c, e in report.spending)})
    bottom.plot(*zip(*spent, strict=True), color=EPSILON, lw=2, label="ε spent")
    budget = f"budget: ε = {report.epsilon:g}, δ = {report.delta:g}"
    bottom.axhline(report.epsilon, color=EPSILON, lw=1.5, ls=":", label=budget)
    bottom.set_ylabel("ε spent")
    bottom.set_ylim(0, report.epsilon * 1.08)
    bottom.set_xlabel("queries paid for")
    bottom.set_xlim(left=0)
    bottom.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    agreed = report.choice.agreement
    agreement = "" if agreed is None else f", agreement {agreed:.1%}"
    guarantee = "" if report.guarantee == "proven" else f"   (guarantee: {report.guarantee})"
    titled.set_title(
        f"Project {report.project}, {report.mechanism['name']}{guarantee}\n"
        f"student: {report.choice.chosen}{agreement}",
        fontsize=10,
    )
    figure.savefig(path, metadata={"Software": None})
