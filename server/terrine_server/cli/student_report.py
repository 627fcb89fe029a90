"""How a project is printed: what was bought, what came of it, and the figures of each class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from terrine_client.distill import Report


def summary(report: Report, out: Path) -> Table:
    """A table of what was bought and the result."""
    from terrine_client._report import figures_line

    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(report.outcomes.items()))
    table = Table(show_header=False, box=None, pad_edge=False)
    if report.accuracy is not None:
        table.add_row(
            "accuracy",
            f"{report.accuracy:.2%} of {report.held_out:,} held-out inputs; of the plain student "
            f"{report.plain:.2%}; always to say their largest class: {report.majority:.2%}",
        )
    found = report.choice.figures
    if found is not None:
        table.add_row("agreement", f"{figures_line(found, report.choice)}; held-out answers")
    if report.choice.threshold is not None:
        table.add_row(
            "threshold",
            f"from a probability of {report.choice.threshold:.3f} on it is {report.classes[1]}",
        )
    table.add_row("protects", report.protects)
    table.add_row(
        "ε spent", f"{report.epsilon_spent:.4g} of {report.epsilon:g}, δ {report.delta:g}"
    )
    table.add_row("method", f"{report.choice.chosen} ({report.choice.asked} was asked for)")
    table.add_row("queries", f"{sum(report.outcomes.values()):,}: {outcomes}")
    if exhausted := report.outcomes.get("exhausted"):
        table.add_row(
            "exhausted",
            f"{exhausted:,} inputs, near which people are used up: free, and left out of training",
        )
    if report.reinforced is not None:
        table.add_row("reinforced", f"{report.reinforced:.1%} of the labels: the student was right")
    table.add_row("ended by", "the budget" if report.refused else f"the student. {report.ended}")
    if report.queries_left:
        table.add_row("left", f"budget for at least {report.queries_left:,} more queries")
    table.add_row("student", f"{out / 'model.json'}, {out / 'model.safetensors'}")
    drawn = out / "accuracy.png"
    table.add_row("report", f"{out / 'report.json'}{f', {drawn}' if drawn.exists() else ''}")
    return table


def class_figures(report: Report) -> Table:
    """Recall and precision of each class on the held-out inputs."""

    def percent(share: float | None) -> str:
        return "–" if share is None else f"{share:.2%}"

    table = Table("class")
    for heading in ("held out", "recall", "precision"):
        table.add_column(heading, justify="right")
    for each in report.by_class:
        row = (f"{each.inputs:,}", percent(each.recall), percent(each.precision))
        table.add_row(each.name, *row)
    return table
