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
            f"{report.accuracy:.2%}, within {_interval(report.accuracy, report.held_out)} at 95 %, "
            f"of {report.held_out:,} held-out inputs; of the plain student {report.plain:.2%}; "
            f"always to say their largest class: {report.majority:.2%}",
        )
    else:
        table.add_row(
            "accuracy",
            "not known: answers are not the truth. Labelled inputs of your own tell: --held-out",
        )
    found = report.choice.figures
    if found is not None:
        table.add_row("agreement", f"{figures_line(found, report.choice)}; {_meaning(report)}")
    if report.choice.threshold is not None:
        table.add_row(
            "threshold",
            f"from a probability of {report.choice.threshold:.3f} on it is {report.classes[1]}",
        )
    table.add_row("protects", report.protects)
    table.add_row(
        "ε spent",
        f"{report.epsilon_spent:.4g} of {report.epsilon:g}, δ {report.delta:g}"
        f"{spent_by_whom(str(report.mechanism['name']))}",
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
        more = f"budget for at least {report.queries_left:,} more queries"
        table.add_row("left", more + _of_what(report))
    table.add_row("student", f"{out / 'model.json'}, {out / 'model.safetensors'}")
    drawn = out / "accuracy.png"
    table.add_row("report", f"{out / 'report.json'}{f', {drawn}' if drawn.exists() else ''}")
    return table


def spent_by_whom(mechanism: str) -> str:
    """Say why few answers of neighbours spend much, and further ones little."""
    if mechanism != "neighbours":
        return ""
    return (
        ": what a person near every query so far has spent, at most. It grows fast at first, and "
        "stops at ε: who has spent it votes no more"
    )


def _interval(share: float, inputs: int) -> str:
    from scipy.stats import binomtest

    between = binomtest(round(share * inputs), inputs).proportion_ci(method="wilson")
    return f"{between.low:.1%} to {between.high:.1%}"


def _meaning(report: Report) -> str:
    """Say what the figures of answers are shares of."""
    if report.choice.noisy:
        return (
            "of held-out answers. This is no accuracy: a voter by itself is often "
            "wrong, and a good student is right more often"
        )
    return (
        "by held-out answers. Labels are on inputs that teachers agree on, so it is right less "
        "often on others"
    )


def _of_what(report: Report) -> str:
    """Say why budget is left although all inputs were asked."""
    asked = sum(report.outcomes.values())
    return ", of other inputs: to ask these again is free" * (asked >= report.public_inputs)


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
