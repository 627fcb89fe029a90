"""A student's report: what it holds, as lines of text, as a chart, and as a model card."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from terrine_protocol.base import quantity
from terrine_protocol.names import show_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from terrine_client._privacy import PrivacyStatement
    from terrine_models.students.answers import Estimate, EstimatedMetrics
    from terrine_models.students.models import StudentModel
    from terrine_models.students.selection import Choice
    from terrine_protocol import ProjectInfo


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
    """For `interactive_gnmax`: share of the labels that confirm the student's own."""
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
    auc: Estimate | None = None
    """Of two classes, on the held-out data: how often one of the second is ranked above another."""
    public_labels: int = 0
    """Labels of public inputs that the student learned from, too."""

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
    """Return metrics, each with one standard error about it: `accuracy 84.0% (83.5 to 84.5)`.

    For noisy counts it is agreement with single votes. Where single voters are often wrong, a
    student can be right far more often than that. All ends are clipped to 0 to 1.
    """

    def show(each: Estimate) -> str:
        ends = (each.value, each.value - each.error, each.value + each.error)
        value, low, high = (100 * min(max(end, 0.0), 1.0) for end in ends)
        return f"{value:.1f}% ({low:.1f} to {high:.1f})"

    what = "agrees with single votes" if choice.noisy else "accuracy"
    shown = {
        what: found.accuracy,
        "by class" if choice.noisy else "balanced accuracy": found.balanced_accuracy,
        "AUC": found.auc,
    }
    said = [f"{name} {show(each)}" for name, each in shown.items() if each]
    if choice.largest is not None:
        said.append(f"always the largest class {choice.largest:.1%}")
    return ", ".join(said)


def format_auc(auc: Estimate) -> str:
    """Return an AUC with its range at 95 %, which ends at 0 and at 1."""
    low, high = (auc.value + sign * 1.96 * auc.error for sign in (-1, 1))
    return f"AUC {auc.value:.2%} ({max(0.0, low):.2%} to {min(1.0, high):.2%} at 95 %)"


def describe_cut(model: StudentModel) -> str | None:
    """Return how probabilities become classes, and by which rows; None: the likeliest is said."""
    said = None
    if model.threshold is not None:
        said = f"it says {model.classes[1]} from a probability of {model.threshold:.3f} on"
    elif model.offsets is not None:
        said = "rarer classes are favoured, so that each is said as often as it occurs"
    if said is None or model.cut is None:
        return said
    rows = {
        "drawn": "rows drawn from the schema, which are not like real ones",
        "public": "public inputs",
        "given": "real inputs that were given afterwards",
    }
    return f"{said}; placed on {model.cut.rows:,} {rows[model.cut.source]}"


def find_interval(share: float, inputs: int) -> tuple[float, float]:
    """Return the interval (Wilson's, at 95 %) of a share of so many inputs."""
    from scipy.stats import binomtest

    between = binomtest(round(share * inputs), inputs).proportion_ci(method="wilson")
    return float(between.low), float(between.high)


def write_card(
    report: Report, project: ProjectInfo, statement: PrivacyStatement, model: StudentModel
) -> str:
    """Return a model card, as Hugging Face reads them: metadata in YAML, and text for people.

    The owner adds a license, and edits what it says, except how people are protected.
    """
    kind = "tabular" if len(model.input.shape) == 1 else "image"
    task = f"{kind}-classification"
    title, of_sums = project.title or project.name, project.mechanism.free
    lines = [
        "---",
        "# license: yours to choose, such as cc-by-4.0",
        "library_name: terrine",
        f"pipeline_tag: {task}",
        "tags:",
        *(f"- {tag}" for tag in ("terrine", "differential-privacy", "pate", task)),
        *_list_metrics(report, title, task),
        "---",
        "",
        f"# {_escape(title)}",
        "",
        f"A classifier of {len(model.classes)} classes for "
        f"{'rows of a table' if kind == 'tabular' else 'pictures'}, a "
        f"{report.choice.chosen} student of the project `{project.name}`. It was trained by "
        f"Terrine {statement.versions['terrine']} on {report.public_inputs:,} public inputs and on "
        + (
            "noisy sums of private records."
            if of_sums
            else "differentially private answers to them."
        ),
        "",
        "## What it is for",
        "",
        f"The project states its purpose: {_escape(project.purpose)}"
        if project.purpose
        else "The project states no purpose; who publishes this model should.",
        "",
        *_describe_inputs(model),
        "",
        "## Whose data it is about",
        "",
        *_describe_data(project, model),
        "",
        "## How right it is",
        "",
        *_describe_accuracy(report),
        "",
        "## How people are protected",
        "",
        "The model learned from public inputs, and from "
        + ("noisy sums of private records" if of_sums else "noisy answers to them")
        + " that were paid for from a privacy budget. It never saw a private record. Whatever is "
        "done with it tells no more of what one of the people contributed than the guarantee "
        "allows.",
        "",
        statement.table(),
        "",
        "[`privacy.json`](privacy.json) has all of it for programs. `terrine student verify DIR`, "
        "with a token of the project, compares it with the service and its transparency log.",
        "",
        "## Limits",
        "",
        *_describe_limits(report, model, of_sums),
        "",
        "## To use it",
        "",
        "```python",
        "from pathlib import Path",
        "",
        "from terrine_models.students.models import Student",
        "",
        'student = Student.load(Path("."))  # this directory',
        "student.predict_frame(frame).names  # of a data frame's rows"
        if model.encoding
        else "student.predictions(x).names  # of inputs "
        f"[B, {', '.join(map(str, model.input.shape))}]",
        "```",
        "",
        "It needs `pip install '.[student]'` in a checkout of Terrine, and no PyTorch. `terrine "
        "student export . --onnx FILE` writes it for runtimes without Terrine.",
        "",
    ]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Return text of others so that it is text in Markdown too, and in a table."""
    flat = show_name(" ".join(text.split()))
    return re.sub(r"([\\`*_{}\[\]<>#|~!$&])", r"\\\1", flat)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


def _list_metrics(report: Report, title: str, task: str) -> list[str]:
    if report.accuracy is None:
        return []
    low, high = find_interval(report.accuracy, report.held_out)
    named = {"accuracy": (report.accuracy, f"accuracy, 95 % interval {low:.4f} to {high:.4f}")}
    recalls = [each.recall for each in report.by_class if each.recall is not None]
    if recalls:
        mean = sum(recalls) / len(recalls)
        named["balanced_accuracy"] = (mean, "mean recall of the classes")
    lines = [
        "model-index:",
        f"- name: {json.dumps(title)}",
        "  results:",
        "  - task:",
        f"      type: {task}",
        "    dataset:",
        f'      name: "{report.held_out:,} held-out inputs of the student"',
        "      type: held-out",
        "    metrics:",
    ]
    for kind, (value, name) in named.items():
        lines += [f"    - type: {kind}", f"      value: {value:.6f}", f'      name: "{name}"']
    return lines


def _describe_inputs(model: StudentModel) -> list[str]:
    lines = []
    if model.encoding is not None:
        columns = ", ".join(f"`{name}`" for name in map(_escape, model.encoding.features))
        lines = [f"It takes rows with the columns {columns}.", ""]
    elif model.image is not None:
        shape = " × ".join(map(str, model.image.shape))
        lines = [f"It takes pictures, which it makes {shape}.", ""]
    else:
        shape = ", ".join(map(str, model.input.shape))
        low, high = model.input.low, model.input.high
        lines = [f"It takes numbers [B, {shape}] from {low:g} to {high:g}.", ""]
    classes = ", ".join(map(_escape, model.classes))
    return [*lines, f"It says one of: {classes}."]


def _describe_data(project: ProjectInfo, model: StudentModel) -> list[str]:
    ensemble = project.ensemble
    whose = "" if ensemble.population is None else f" of the population `{ensemble.population}`"
    lines = [
        (
            f"It follows from sums of private records, of {ensemble.protects}, the "
            if project.mechanism.free
            else f"Its labels come from {ensemble.teachers:,} teachers or voters on private "
            "records, the "
        )
        + f"ensemble `{ensemble.name}`{whose}. Who operates the service is the curator of these "
        "records, and knows what they are; neither the project nor this model holds any of them."
    ]
    if (count := model.training.get("public_labels")) is not None:
        lines += [
            "",
            f"It learned from {quantity(int(count), 'label')} of public inputs, too. Nothing "
            "protects these: it may tell what they are.",
        ]
    if ensemble.disjoint_by is not None:
        declared = _escape(ensemble.disjoint_by)
        lines += ["", f"That nobody is in two teachers is declared, not checked: {declared}"]
    return lines


def _describe_accuracy(report: Report) -> list[str]:
    if report.accuracy is None:
        lines = ["Its accuracy is not known: no labelled inputs were held out (`--held-out`)."]
        if report.choice.figures is not None:
            agreement = format_metrics(report.choice.figures, report.choice)
            lines += ["", f"By answers that it did not see: {agreement}."]
        return lines
    low, high = find_interval(report.accuracy, report.held_out)
    lines = [
        f"Right on **{report.accuracy:.2%}** of {report.held_out:,} held-out inputs ({low:.2%} to "
        f"{high:.2%} at 95 %). Always to say their largest class is right on "
        f"{_percent(report.majority)}." + (f" {format_auc(report.auc)}." if report.auc else ""),
        "",
        "| class | held out | recall | precision |",
        "|---|--:|--:|--:|",
    ]
    for each in report.by_class:
        figures = f"{each.inputs:,} | {_percent(each.recall)} | {_percent(each.precision)}"
        lines.append(f"| {_escape(each.name)} | {figures} |")
    return lines


def _describe_limits(report: Report, model: StudentModel, of_sums: bool) -> list[str]:
    limits = [
        "It learned from noisy sums of features: what these do not tell of a class, it guesses."
        if of_sums
        else "It learned from noisy answers: where the private records disagree or are few, it "
        "guesses.",
        "It is as good as the public inputs are like those that it is used on.",
        "What is true of the people as a group, it may tell: differential privacy hides what one "
        "of them contributes, not what all have in common.",
        *report.notes,
    ]
    if (cut := describe_cut(model)) is not None:
        limits.append(f"Of probabilities: {cut}.")
    if any(each.inputs == 0 for each in report.by_class):
        names = ", ".join(each.name for each in report.by_class if each.inputs == 0)
        limits.append(f"None of the held-out inputs is of: {names}.")
    return [f"- {_escape(limit)}" for limit in limits]


def replace_cut(card: str, before: StudentModel, after: StudentModel) -> str:
    """Return a card with what it says of the cut, if its owner has left that as it was."""
    old, new = (_escape(f"Of probabilities: {describe_cut(each)}.") for each in (before, after))
    return card.replace(old, new)


# Okabe and Ito's colours, which people with red-green colour blindness can tell apart.
ACCURACY_COLOUR = "#0072B2"
MAJORITY_COLOUR = "#E69F00"
EPSILON_COLOUR = "#D55E00"
# Errors in percent at which there may be ticks: the first row that has enough of them.
TICK_ERRORS_PERCENT = (
    (90, 70, 50, 30, 20, 10, 5, 3, 2, 1, 0.5, 0.3, 0.2, 0.1),
    (90, 80, 70, 60, 50, 40, 30, 25, 20, 15, 10, 7, 5, 4, 3, 2, 1.5, 1.2, 1, 0.8, 0.5, 0.3, 0.2),
    tuple(range(90, 0, -1)),
    tuple(error / 10 for error in range(100, 0, -1)),
)
# An accuracy without errors is drawn here.
MIN_ERROR_PERCENT = 0.05
MIN_TICKS, MAX_TICKS = 4, 10


def draw(report: Report, path: Path) -> bool:
    """Draw `report` as a PNG of 1200 x 1050 pixels, and return True. See `draw_figure`.

    Where matplotlib is not installed, as beside a server, draw nothing and return False.
    """
    if find_spec("matplotlib") is None:
        return False
    draw_figure(report).savefig(path, metadata={"Software": None})
    return True


def draw_figure(report: Report) -> Figure:
    """Draw accuracy, with that of the largest class, above what was spent."""
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
