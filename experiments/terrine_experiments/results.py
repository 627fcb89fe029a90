"""Results of experiments: kept in one file, shown as a table and as a picture beside the papers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from scipy.stats import norm, t

from terrine_experiments.papers import PAPERS, Name
from terrine_experiments.pictures import PAPER, UNSAFE, Curve, Panel, draw_panels
from terrine_protocol.files import write_atomically

FILE = "results.json"


def half_width(figures: Sequence[float], tested: int) -> float | None:
    """Return h such that a new run's figure is within h of the mean of `figures`, for 95 %.

    figures: accuracies [K] of K runs, shares of one, all on the same `tested` inputs. With p their
    mean, s their standard deviation, and t and z the two-sided 95 % points of Student's
    distribution with K − 1 degrees of freedom and of the normal one,

        h² = t² s² (1 + 1/K) + z² p (1 − p) / tested.

    The prediction interval of one more run, and the sampling of the test inputs: so it covers what
    a new run has right of all inputs like them. Together they cover at least 95 %: given s,
    coverage is concave in how the variance is divided between them, and 95 % where there is only
    one. None of one run, which does not show how runs differ.
    """
    runs, mean = len(figures), statistics.fmean(figures)
    if runs == 1:
        return None
    of_runs = t.ppf(0.975, runs - 1) ** 2 * statistics.variance(figures) * (1 + 1 / runs)
    of_tests = norm.ppf(0.975) ** 2 * mean * (1 - mean) / tested
    return math.sqrt(of_runs + of_tests)


def shown_interval(figures: Sequence[float], tested: int) -> str:
    """The mean and the interval as text, rounded up; its ends, where one is beyond 0 or 100 %."""
    runs, mean, half = len(figures), statistics.fmean(figures), half_width(figures, tested)
    if half is None:
        return f"{mean:.2%} (one run: no interval)"
    wide = math.ceil(1e4 * half) / 100
    low, high = 100 * mean - wide, 100 * mean + wide
    between = f" ± {wide:.2f}"
    if low < 0 or high > 100:
        between = f", {max(low, 0):.2f} to {min(high, 100):.2f}"
    return f"{mean:.2%}{between} (95 %, {runs} runs)"


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment measured. Accuracies are shares of one, on `tested` inputs."""

    data: Name
    title: str
    protocol: str
    mechanism: dict[str, Any]
    kind: str
    """Of teacher."""
    teachers: int
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
    heads: dict[str, Any]
    """Settings of the teachers."""
    warnings: list[str]

    @property
    def mean(self) -> float:
        """Mean accuracy over the runs."""
        return statistics.fmean(self.accuracies)

    @property
    def accuracy(self) -> str:
        """The mean, and the interval of a new run, as text."""
        return shown_interval(self.accuracies, self.tested)

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes experiments: another result of the same key replaces this one."""
        name = self.mechanism["name"]
        return self.data, self.protocol, name, self.kind, self.teachers, self.epsilon, self.delta


def keep(results: Sequence[ExperimentResult], out: Path) -> list[ExperimentResult]:
    """Add results of one data set and protocol to `results.json`; return all of these, by ε."""
    file, first = out / FILE, results[0]
    text = file.read_text() if file.exists() else "[]"
    kept = [ExperimentResult(**each) for each in json.loads(text)]
    new = {each.key for each in results}
    kept = [*(each for each in kept if each.key not in new), *results]
    text = json.dumps([asdict(each) for each in kept], indent=2, ensure_ascii=False)
    write_atomically(file, text.encode() + b"\n")
    alike = [each for each in kept if (each.data, each.protocol) == (first.data, first.protocol)]
    return sorted(alike, key=lambda each: each.epsilon)


def table(result: ExperimentResult) -> Table:
    """Return a result beside what it is to be compared with."""
    rows = Table("what", title=f"{result.title}, {result.protocol}, δ = {result.delta:g}")
    rows.add_column("accuracy", justify="right")
    rows.add_column("ε", justify="right")
    rows.add_column("kind of ε")
    kind, spent = f"worst case, enforced: {result.rule}", f"{result.epsilon_spent:.3f}"
    if result.papers_epsilon is not None:
        kind += f"; {result.papers_epsilon:.3f} by the papers' accountant (worst case)"
    bought = f"{result.answers:,} answers, {result.mechanism['name']} ({kinds(result.chosen)})"
    plain = "plain student of the same answers: ridge regression on labels"
    rows.add_row(f"student of {bought}", result.accuracy, spent, kind)
    rows.add_row(plain, shown_interval(result.plain, result.tested), spent, "the same")
    twins = f"the same student on the true labels ({kinds(result.true_labels_chosen)})"
    voters = f"plurality of {result.teachers:,} teachers ({result.kind}), without noise"
    beside = {
        twins: result.true_labels,
        voters: statistics.fmean(result.plurality),
        "most frequent class": result.majority,
    }
    for name, figure in beside.items():
        rows.add_row(name, f"{figure:.2%}", "none", "not private")
    for paper in PAPERS[result.data]:
        what = f"{paper.source}: {paper.method}"
        what += f", {paper.labels:,} labels" if paper.labels else ""
        what += f" (its baseline {paper.baseline:.1%})" if paper.baseline else ""
        other_delta = f" (δ {paper.delta:g})" if paper.delta != result.delta else ""
        rows.add_row(what, f"{paper.accuracy:.1%}", f"{paper.epsilon:g}{other_delta}", paper.how)
    return rows


def kinds(chosen: dict[str, int]) -> str:
    """How many students were of each kind."""
    return ", ".join(f"{count} {name}" for name, count in sorted(chosen.items()))


def draw(results: Sequence[ExperimentResult], path: Path) -> None:
    """Draw students, plain ones and those of true labels against ε, with the papers' points."""
    first, curves, groups = results[0], [], dict[str, list[ExperimentResult]]()
    papers = PAPERS[first.data]
    ends = [each.epsilon_spent for each in results] + [paper.epsilon for paper in papers]
    for each in results:
        what = f"{each.mechanism['name']}, {each.teachers:,} {each.kind}"
        groups.setdefault(what, []).append(each)
    for number, (what, chosen) in enumerate(sorted(groups.items())):
        epsilons = [each.epsilon_spent for each in chosen]
        means = np.array([each.mean for each in chosen])
        halves = [half_width(each.accuracies, each.tested) or 0.0 for each in chosen]
        errors = 100 * np.minimum(halves, [means, 1 - means])  # no bar reaches what cannot be
        runs = " or ".join(map(str, sorted({len(each.accuracies) for each in chosen})))
        bars = "one run" if runs == "1" else f"{runs} runs; bars: a new run, 95 %"
        student = f"student: {what}, worst-case ε ({bars})"
        curves.append(Curve(student, epsilons, 100 * means, f"{'oDv'[number % 3]}-", 0, errors))
        plain = [100 * statistics.fmean(each.plain) for each in chosen]
        curves.append(Curve(f"plain student: {what}", epsilons, plain, f"{'sPX'[number % 3]}:", 1))
        level = 2 * [100 * chosen[0].true_labels]
        twins = f"the same on the true labels ({kinds(chosen[0].true_labels_chosen)})"
        curves.append(Curve(twins, [min(ends), max(ends)], level, ("--", "-.", ":")[number % 3], 2))
    for paper in papers:
        name = f"{paper.source.partition(',')[0]}, {paper.method}; ε: {paper.how}"
        style = PAPER if paper.safe else UNSAFE
        curves.append(Curve(name, [paper.epsilon], [100 * paper.accuracy], style))
    x, y = f"ε at δ = {first.delta:g}", f"accuracy on {first.tested:,} inputs, %"
    title = f"{first.title}, {first.protocol}"
    panel = Panel(title, x, y, curves, log_x=True, errors=True)
    draw_panels([panel], path, size=(8, 6), legend_below=True)
