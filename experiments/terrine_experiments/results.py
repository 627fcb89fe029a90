"""Results of experiments: kept in one file, and shown as a table with the papers' figures."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from terrine_experiments.interval import shown
from terrine_experiments.papers import PAPERS, Name
from terrine_protocol.files import write_atomically

FILE = "results.json"


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment measured. Accuracies are shares of one, on `tested` inputs."""

    data: Name
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
    rows.add_row(
        f"student of {result.answers:,} answers, {result.mechanism['name']} "
        f"({kinds(result.chosen)})",
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
            f"the same student on the true labels ({kinds(result.true_labels_chosen)})",
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


def kinds(chosen: dict[str, int]) -> str:
    """How many students were of each kind."""
    return ", ".join(f"{count} {name}" for name, count in sorted(chosen.items()))
