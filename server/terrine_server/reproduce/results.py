"""Results of experiments: kept in one file, shown as a table, drawn with the papers' points."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from terrine_models.store import write_atomically
from terrine_server.reproduce.papers import PAPERS

FILE = "results.json"
OURS, TRUE, TEACHERS = "#1b6ca8", "#2e8b57", "#888888"
TICKS = (*(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.6), *(1, 2, 3, 5, 8, 15, 30, 60, 100))
PAPER = {"LNMax": "#d99a2b", "Confident-GNMax": "#b5452c"}


@dataclass(frozen=True)
class Result:
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
    """The most that any of the seeds' studies spent, by the rule that refuses."""
    rule: str
    papers_epsilon: float | None
    """Of the last seed's answers, by the papers' accountant for the worst case."""
    answers: int
    accuracies: list[float]
    """One for each seed: fresh noise of the server, another order of queries and of training."""
    chosen: dict[str, int]
    """How many students were of each kind."""
    true_labels: float
    """A model of the same kind on the true labels of the same public inputs."""
    plurality: float
    """Of all teachers' votes, without noise."""
    majority: float
    """Of the most frequent class."""
    training: dict[str, Any]
    heads: dict[str, Any]
    warnings: list[str]
    seconds: float
    kind: str = "heads"
    """Of teacher."""
    data_dependent: float | None = None
    """ε of the last seed's answers as P17 states it, computed from private votes; of lnmax."""

    @property
    def mean(self) -> float:
        """Mean accuracy over the seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None of one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def accuracy(self) -> str:
        """The mean and its spread, in words."""
        seeds = len(self.accuracies)
        if self.spread is None:
            return f"{self.mean:.2%} (one seed)"
        return f"{self.mean:.2%} ± {100 * self.spread:.2f} ({seeds} seeds)"

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes experiments: another result of the same key replaces this one."""
        name = self.mechanism["name"]
        return self.data, self.protocol, name, self.kind, self.teachers, self.epsilon, self.delta


def keep(result: Result, out: Path) -> list[Result]:
    """Add a result to `results.json` and return all of its data set and protocol, by ε."""
    file = out / FILE
    kept = [Result(**each) for each in json.loads(file.read_bytes())] if file.exists() else []
    kept = [each for each in kept if each.key != result.key] + [result]
    text = json.dumps([asdict(each) for each in kept], indent=2, ensure_ascii=False)
    write_atomically(file, text.encode() + b"\n")
    alike = [each for each in kept if (each.data, each.protocol) == (result.data, result.protocol)]
    return sorted(alike, key=lambda each: each.epsilon)


def table(result: Result) -> Table:
    """Return a result beside what it is to be compared with."""
    shown = Table(title=f"{result.title}, {result.protocol}, δ = {result.delta:g}")
    shown.add_column("what")
    shown.add_column("accuracy", justify="right")
    shown.add_column("ε", justify="right")
    shown.add_column("kind of ε")
    papers_epsilon = ""
    if result.papers_epsilon is not None:
        papers_epsilon = f"; {result.papers_epsilon:.3f} by the papers' accountant (worst case)"
    if result.data_dependent is not None:
        papers_epsilon += f"; {result.data_dependent:.3f} data-dependent, as 2017 (not private)"
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(result.chosen.items()))
    shown.add_row(
        f"student of {result.answers:,} answers, {result.mechanism['name']} ({kinds})",
        result.accuracy,
        f"{result.epsilon_spent:.3f}",
        f"worst case, enforced: {result.rule}{papers_epsilon}",
    )
    teachers = f"{result.teachers:,} teachers ({result.kind})"
    for name, figure in (
        ("same kind of model on the true labels of the same inputs", result.true_labels),
        (f"plurality of {teachers}, without noise", result.plurality),
        ("most frequent class", result.majority),
    ):
        shown.add_row(name, f"{figure:.2%}", "none", "not private")
    for paper in PAPERS[result.data]:
        what = f"{paper.source}: {paper.method}"
        if paper.labels is not None:
            what += f", {paper.labels:,} labels"
        if paper.baseline is not None:
            what += f" (its baseline {paper.baseline:.1%})"
        epsilon = f"{paper.epsilon:g}"
        if paper.delta != result.delta:
            epsilon += f" (δ {paper.delta:g})"
        shown.add_row(what, f"{paper.accuracy:.1%}", epsilon, paper.how)
    return shown


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw accuracy against ε, with the papers' points, as a PNG of 1200 x 750 pixels."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    first = results[0]
    groups = sorted({_group(each) for each in results})
    for number, (name, kind, teachers) in enumerate(groups):
        chosen = [each for each in results if _group(each) == (name, kind, teachers)]
        axes.errorbar(
            [each.epsilon_spent for each in chosen],
            [100 * each.mean for each in chosen],
            [100 * (each.spread or 0) for each in chosen],
            fmt="os^Dv"[number % 5] + "-",
            color=OURS,
            alpha=1 - 0.6 * number / len(groups),
            capsize=3,
            label=f"Terrine: {name}, {teachers:,} {kind}, worst case",
        )
    axes.axhline(
        100 * first.true_labels, color=TRUE, lw=1, ls="--", label="Same kind of model, true labels"
    )
    for paper in PAPERS[first.data]:
        axes.plot(
            paper.epsilon,
            100 * paper.accuracy,
            "*",
            ms=12,
            color=PAPER.get(paper.method, "#7a5fa8"),
            label=f"{paper.source.partition(',')[0]}: {paper.method}",
        )
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
    axes.legend(fontsize=8, loc="best")
    figure.savefig(path, metadata={"Software": None})


def _group(result: Result) -> tuple[str, str, int]:
    return str(result.mechanism["name"]), result.kind, result.teachers
