"""PATE, 2017: how teachers and their aggregate depend on numbers and noise, and students."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from terrine_experiments.costs import MOMENTS, enforced, lnmax_cost
from terrine_experiments.page import Chapter, Item, percent, shown_epsilon, table, verdict
from terrine_experiments.papers import LNMAX, P17, PAPERS, Published
from terrine_experiments.pictures import (
    OTHER,
    PAPER,
    PAPERS_OWN,
    PLAIN,
    STUDENT,
    TWIN,
    Curve,
    Panel,
    draw_panels,
)
from terrine_experiments.sources import FILES, Name
from terrine_experiments.study import Ints, Study
from terrine_server.privacy import Mechanism, VoteOutcome, build_mechanism

NETWORKS = (5, 10, 25, 250)
HEADS = (10, 50, 250, 1_000, 2_000)
GAMMA = 0.05
GAMMAS = np.geomspace(0.002, 0.2, 11)
PAPERS_TEACHERS = 250
MEAN_TEACHER, AGGREGATE, GAP = 0.8386, 0.9318, 0.6
"""Of 250 teachers on MNIST, by P17: the mean accuracy of one; that of their aggregate at γ = 0.05;
and what the gap between the two largest counts stays above, as a share of the teachers."""
POOL = {"mnist": 9_000, "svhn": 10_000, "adult": 500, "diabetes": 500}
"""The first test inputs, which are public; all others measure students."""


def kind_of(name: Name) -> str:
    """The papers' teachers: networks for pictures, forests for tables."""
    return "forest" if name in ("adult", "diabetes") else "networks"


def pate_2017(study: Study, pictures: Path) -> Chapter:
    """Recompute the paper. Raises DataError without MNIST."""
    truth = study.source("mnist").test.labels
    rows, measured = [], {}
    for kind, sizes in (("networks", NETWORKS), ("heads", HEADS)):
        for teachers in sizes:
            votes = study.votes("mnist", kind, teachers)
            found = measured[kind, teachers] = measure(votes, truth)
            noisy = noisy_accuracy(votes, GAMMA, truth)
            rows.append((kind, f"{teachers:,}", *map(percent, found), percent(noisy)))
    votes = study.votes("mnist", "networks", PAPERS_TEACHERS)
    _draw(study, measured, pictures)
    mean, _, gap = measured["networks", PAPERS_TEACHERS]
    noisy = noisy_accuracy(votes, GAMMA, truth)
    one = enforced((lnmax(votes, GAMMA), {VoteOutcome.ANSWERED: 1}), delta=1e-5)
    items = [
        Item("P17, one of 250 teachers, MNIST", percent(MEAN_TEACHER), percent(mean),
             verdict=verdict(mean, MEAN_TEACHER)),
        Item("P17, their aggregate, γ = 0.05", percent(AGGREGATE), percent(noisy),
             f"{shown_epsilon(one)} a query", verdict(noisy, AGGREGATE)),
        Item("P17, gap of the two largest counts", f"> {percent(GAP)}", percent(gap),
             verdict="agrees" if gap > GAP else "is smaller than theirs"),
    ]  # fmt: skip
    names: tuple[Name, ...] = ("mnist", "svhn", "adult", "diabetes")
    for name in names:
        for paper in PAPERS[name]:
            if paper.source == P17:
                items.append(lnmax_item(study, name, paper))
    heads = ("teachers", "number", "one teacher", "plurality", "gap", "aggregate, γ = 0.05")
    return Chapter(items, {"teachers": table(heads, rows)})


def measure(votes: Ints, truth: Ints) -> tuple[float, float, float]:
    """The accuracy of a teacher, on average, that of the plurality, and the gap as a share."""
    teachers, rows = votes[0].sum(), np.arange(len(votes))
    gap = float(gaps(votes).mean() / teachers)
    mean = float(votes[rows, truth].mean() / teachers)
    return mean, float((votes.argmax(axis=1) == truth).mean()), gap


def gaps(votes: Ints) -> Ints:
    """By how much the largest of the counts [N, m] leads the second."""
    ranked = np.sort(votes, axis=1)
    return np.asarray(ranked[:, -1] - ranked[:, -2])


def lnmax(votes: Ints, gamma: float) -> Mechanism:
    """LNMax for an ensemble."""
    teachers, classes = int(votes[0].sum()), votes.shape[1]
    return build_mechanism({"name": "lnmax", "gamma": gamma}, teachers=teachers, classes=classes)


def noisy_accuracy(votes: Ints, gamma: float, truth: Ints) -> float:
    """How many labels of LNMax are right, in one run."""
    return float((lnmax(votes, gamma).release(votes).labels == truth).mean())


def lnmax_item(study: Study, name: Name, paper: Published) -> Item:
    """A student of LNMax, as the paper has it."""
    what = f"P17, {LNMAX}, {name}"
    queries = paper.labels or POOL[name]
    printed = f"{queries:,} answers, ε {paper.epsilon:g}: {percent(paper.accuracy)}"
    if not study.has(name):
        return Item(what, printed, verdict=f"no data: {', '.join(FILES[name])}")
    kind = kind_of(name)
    votes = study.votes(name, kind, PAPERS_TEACHERS)[: min(queries, POOL[name])]
    mechanism = lnmax(votes, GAMMA)
    asked = study.ask(
        name, f"{kind}-{PAPERS_TEACHERS}-lnmax-{len(votes)}", votes, mechanism, POOL[name]
    )
    epsilon = lnmax_cost(votes, GAMMA, MOMENTS).epsilon(paper.delta)
    least = enforced((mechanism, asked.outcomes), delta=paper.delta)
    return Item(
        what,
        printed,
        f"ε {epsilon:.2f} †: {percent(asked.accuracy)}",
        shown_epsilon(least),
        verdict(asked.accuracy, paper.accuracy),
    )


def _draw(
    study: Study, measured: dict[tuple[str, int], tuple[float, float, float]], pictures: Path
) -> None:
    truth = study.source("mnist").test.labels
    kinds = (("networks", NETWORKS, STUDENT), ("heads", HEADS, PLAIN))

    def curves(what: int, style: str, name: str) -> list[Curve]:
        return [
            Curve(
                f"{kind}: {name}",
                sizes,
                [100 * measured[kind, n][what] for n in sizes],
                style,
                colour,
            )
            for kind, sizes, colour in kinds
        ]

    noisy = [
        Curve(
            f"{teachers} networks",
            GAMMAS,
            [
                100 * noisy_accuracy(study.votes("mnist", "networks", teachers), gamma, truth)
                for gamma in GAMMAS
            ],
            "o-",
            colour,
        )
        for teachers, colour in zip(NETWORKS, (OTHER, PLAIN, TWIN, STUDENT), strict=False)
    ]

    def paper(x: float, y: float, name: str) -> Curve:
        return Curve(f"P17: {name}", [x], [100 * y], PAPER, PAPERS_OWN)

    accuracy, gap = "accuracy on MNIST's test images, %", "gap, % of the teachers"
    draw_panels(
        [
            Panel("Accuracy against number of teachers", "teachers", accuracy,
                  [*curves(1, "o-", "plurality"), *curves(0, "s:", "one teacher"),
                   paper(PAPERS_TEACHERS, MEAN_TEACHER, "one of 250")], log_x=True),
            Panel("Gap of the two largest counts", "teachers", gap,
                  [*curves(2, "o-", "gap"), paper(PAPERS_TEACHERS, GAP, "is above")], log_x=True),
            Panel("Accuracy of the aggregate against γ", "γ of each query", accuracy,
                  [*noisy, paper(GAMMA, AGGREGATE, "250 teachers")], log_x=True),
        ],
        pictures / "papers-2017.webp",
    )  # fmt: skip
