"""Results of experiments: kept in one file, shown as a table, drawn with the papers' points."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from terrine_client._report import scale_accuracy_axis
from terrine_experiments.interval import half_width, shown
from terrine_experiments.papers import PAPERS
from terrine_protocol.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE = "results.json"
# Okabe and Ito's colours, which those who see no red or green tell apart, too.
STUDENT = "#0072B2"
TWIN = "#009E73"
PLAIN = "#E69F00"
PAPERS_OWN = "#D55E00"
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.6, 1, 2, 3, 5, 8, 15, 30, 60, 100)
MARKERS = "oDv"
"""Of our groups of results."""
PLAIN_MARKERS = "sPX"
PAPER_MARKERS = "*^hp"
"""Of papers."""


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment measured. Accuracies are shares of one, on `tested` inputs."""

    data: str
    title: str
    protocol: str
    mechanism: dict[str, Any]
    teachers: int
    private_records: int
    public_inputs: int
    tested: int
    epsilon: float
    delta: float
    epsilon_spent: float
    """The most that any of the runs' projects spent, by the rule that refuses."""
    rule: str
    papers_epsilon: float | None
    """Of the last run's answers, by the papers' accountant for the worst case."""
    answers: int
    """Of the last run."""
    partitions: list[int]
    """The seed by which each run partitioned the private records."""
    accuracies: list[float]
    """Of each run's students."""
    plain: list[float]
    """Of each run's plain students: ridge regression on the same answers, as labels."""
    chosen: dict[str, int]
    """How many students were of each kind."""
    true_labels: float
    """The same student with the same settings on the true labels of the same public inputs."""
    true_labels_chosen: dict[str, int]
    """How many of these were of each kind."""
    plurality: list[float]
    """Of each run's votes, without noise."""
    majority: float
    """Of the most frequent class."""
    training: dict[str, Any]
    heads: dict[str, Any]
    warnings: list[str]
    seconds: float
    kind: str = "heads"
    """Of teacher."""
    data_dependent: float | None = None
    """ε of the last run's answers as P17 states it, computed from private votes; of lnmax."""

    @property
    def mean(self) -> float:
        """Mean accuracy over the runs."""
        return statistics.fmean(self.accuracies)

    @property
    def accuracy(self) -> str:
        """The mean, and the interval of a new run, as text."""
        return shown(self.accuracies, self.tested)

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes experiments: another result of the same key replaces this one."""
        name = self.mechanism["name"]
        return self.data, self.protocol, name, self.kind, self.teachers, self.epsilon, self.delta


def keep(results: Sequence[ExperimentResult], out: Path) -> list[ExperimentResult]:
    """Add results of one data set and protocol to `results.json`; return all of these, by ε."""
    file, first = out / FILE, results[0]
    kept = (
        [ExperimentResult(**each) for each in json.loads(file.read_bytes())]
        if file.exists()
        else []
    )
    new = {each.key for each in results}
    kept = [*(each for each in kept if each.key not in new), *results]
    text = json.dumps([asdict(each) for each in kept], indent=2, ensure_ascii=False)
    write_atomically(file, text.encode() + b"\n")
    alike = [each for each in kept if (each.data, each.protocol) == (first.data, first.protocol)]
    return sorted(alike, key=lambda each: each.epsilon)


def table(result: ExperimentResult) -> Table:
    """Return a result beside what it is to be compared with."""
    rows = Table(title=f"{result.title}, {result.protocol}, δ = {result.delta:g}")
    rows.add_column("what")
    rows.add_column("accuracy", justify="right")
    rows.add_column("ε", justify="right")
    rows.add_column("kind of ε")
    papers_epsilon = ""
    if result.papers_epsilon is not None:
        papers_epsilon = f"; {result.papers_epsilon:.3f} by the papers' accountant (worst case)"
    if result.data_dependent is not None:
        papers_epsilon += f"; {result.data_dependent:.3f} data-dependent, as 2017 (not private)"
    rows.add_row(
        f"student of {result.answers:,} answers, {result.mechanism['name']} "
        f"({_kinds(result.chosen)})",
        result.accuracy,
        f"{result.epsilon_spent:.3f}",
        f"worst case, enforced: {result.rule}{papers_epsilon}",
    )
    rows.add_row(
        "plain student of the same answers: ridge regression on labels",
        shown(result.plain, result.tested),
        f"{result.epsilon_spent:.3f}",
        "the same",
    )
    teachers = f"{result.teachers:,} teachers ({result.kind})"
    for name, figure in (
        (
            f"the same student on the true labels ({_kinds(result.true_labels_chosen)})",
            result.true_labels,
        ),
        (f"plurality of {teachers}, without noise", statistics.fmean(result.plurality)),
        ("most frequent class", result.majority),
    ):
        rows.add_row(name, f"{figure:.2%}", "none", "not private")
    for paper in PAPERS[result.data]:
        what = f"{paper.source}: {paper.method}"
        if paper.labels is not None:
            what += f", {paper.labels:,} labels"
        if paper.baseline is not None:
            what += f" (its baseline {paper.baseline:.1%})"
        epsilon = f"{paper.epsilon:g}"
        if paper.delta != result.delta:
            epsilon += f" (δ {paper.delta:g})"
        rows.add_row(what, f"{paper.accuracy:.1%}", epsilon, paper.how)
    return rows


def _kinds(chosen: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(chosen.items()))


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
            label=f"the same student on the true labels ({_kinds(chosen[0].true_labels_chosen)})",
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
