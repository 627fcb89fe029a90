"""The plot of a student's progress: accuracy and ε against queries."""

from __future__ import annotations

from pathlib import Path

from terrine_client._report import Report

ACCURACY, EPSILON = "#1b6ca8", "#b5452c"


def draw(report: Report, path: Path) -> None:
    """Draw `report` as a PNG of 1200 x 700 pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.67), dpi=150, layout="constrained")
    left = figure.subplots()
    spent = sorted({(0, 0.0), *((int(c), float(e)) for c, e in report.spending)})
    right = left.twinx()
    right.plot(*zip(*spent, strict=True), color=EPSILON, lw=1.5, label="ε spent")
    budget = f"budget: ε = {report.epsilon:g}, δ = {report.delta:g}"
    right.axhline(report.epsilon, color=EPSILON, lw=1, ls=":", label=budget)
    right.set_ylabel("ε spent", color=EPSILON)
    right.set_ylim(0, report.epsilon * 1.08)
    points = [(r.charges, r.accuracy * 100) for r in report.rounds if r.accuracy is not None]
    if points:
        left.plot(*zip(*points, strict=True), "o-", color=ACCURACY, label="accuracy of the student")
        for x, y in points:
            left.annotate(
                f"{y:.1f} %",
                (x, y),
                xytext=(-6, 6),
                textcoords="offset points",
                ha="right",
                color=ACCURACY,
                fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
            )
        if report.majority is not None:
            left.axhline(
                report.majority * 100,
                color=ACCURACY,
                lw=1,
                ls=":",
                label="always the largest class",
            )
        left.set_ylabel(f"accuracy on {report.held_out:,} held-out inputs, %", color=ACCURACY)
        worst = min([y for _, y in points] + [100 * (report.majority or 1)])
        left.set_ylim(max(0, worst - (102 - worst) * 0.6), 100.5)
    else:
        left.set_yticks([])
    left.set_xlabel("queries paid for")
    left.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    left.set_zorder(right.get_zorder() + 1)  # its labels lie over the other line
    left.patch.set_visible(False)
    tried = {each.method: each.agreement for each in report.choice.judged}
    agreement = f", agreement {tried[report.choice.chosen]:.1%}" if tried else ""
    left.set_title(
        f"Project {report.project}, {report.mechanism['name']}\n"
        f"student: {report.choice.chosen}{agreement}",
        fontsize=10,
    )
    figure.savefig(path, metadata={"Software": None})
