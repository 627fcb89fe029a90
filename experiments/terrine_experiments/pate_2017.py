"""PATE, 2017: how teachers and their aggregate depend on numbers and noise, and students."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from terrine_experiments.costs import MOMENTS, enforced, lnmax_cost
from terrine_experiments.page import (
    TITLES,
    Chapter,
    Figure,
    Item,
    average,
    needed,
    no_data,
    percent,
    shown_epsilon,
    verdict,
)
from terrine_experiments.papers import LNMAX, NOT_PRIVATE, P17, PAPERS, Name, Published
from terrine_experiments.pictures import PAPER, Curve, Panel, draw_panels
from terrine_experiments.study import DRAWS, Ints, Learner, Study
from terrine_server.privacy import Mechanism, VoteOutcome, build_mechanism

SIZES = {"networks": (5, 10, 25, 250), "heads": (10, 50, 250, 1_000, 2_000)}
GAMMA = 0.05
GAMMAS = np.geomspace(0.002, 0.2, 11)
TEACHERS = 250
MEAN_TEACHER, AGGREGATE, GAP = 0.8386, 0.9318, 0.6
"""Of 250 teachers on MNIST, by P17: the mean accuracy of one; that of their aggregate at γ = 0.05;
and what the gap between the two largest counts stays above, as a share of the teachers."""
POOL = {"mnist": 9_000, "svhn": 10_000, "adult": 500, "diabetes": 500}
"""The first test inputs, which are public; all others measure students."""
KINDS: dict[Name, str] = {
    "mnist": "networks",
    "svhn": "networks",
    "adult": "forest",
    "diabetes": "forest",
}
"""The papers' teachers."""
CLASSES: dict[Name, int] = {"mnist": 10, "svhn": 10, "adult": 2, "diabetes": 2}


@dataclass(frozen=True)
class Measured:
    """Of one ensemble's votes on MNIST's test images, in percent."""

    teacher: float
    """Accuracy of one, on average."""
    plurality: float
    gap: float
    """Between the two largest counts, of the number of teachers."""
    far: float
    """How many images have a gap of more than two votes."""


def pate_2017(study: Study, pictures: Path) -> Chapter:
    """Recompute the paper. Raises DataError without MNIST."""
    found, truth = measure_all(study), study.source("mnist").test.labels
    votes = study.votes("mnist", "networks", TEACHERS)
    ours, aggregate = found["networks"][TEACHERS], noisy_accuracy(votes, GAMMA, truth)
    one = enforced((lnmax(votes, GAMMA), {VoteOutcome.ANSWERED: 1}), delta=1e-5)
    items = [
        Item("P17, one of 250 teachers, mnist", percent(MEAN_TEACHER), f"{ours.teacher:.1f} %",
             verdict=verdict(ours.teacher / 100, MEAN_TEACHER)),
        Item("P17, their aggregate, γ = 0.05", percent(AGGREGATE), percent(aggregate),
             f"{shown_epsilon(one)} a query", verdict(aggregate, AGGREGATE)),
        Item("P17, gap of the two largest counts", f"> {percent(GAP)}", f"{ours.gap:.1f} %",
             verdict="agrees" if ours.gap > 100 * GAP else "is smaller than theirs"),
    ]  # fmt: skip
    for name in KINDS:
        papers = [each for each in PAPERS[name] if each.source == P17]
        items.append(not_private(study, "P17", name, papers[0], POOL[name]))
        items += [_row(study, name, each) for each in papers]
    aggregates = []
    for teachers in SIZES["networks"]:
        votes = study.votes("mnist", "networks", teachers)
        right = [noisy_accuracy(votes, gamma, truth) for gamma in GAMMAS]
        aggregates.append(drawn_curve(f"{teachers} networks", GAMMAS, right, "o-"))
    points = [
        Curve(f"P17: {what}", [x], [100 * y], PAPER)
        for what, x, y in (
            ("one of 250", TEACHERS, MEAN_TEACHER),
            ("is above", TEACHERS, GAP),
            ("250 teachers", GAMMA, AGGREGATE),
        )
    ]
    accuracy = "accuracy on MNIST's test images, %"
    lines = [
        *curves(found, "plurality", name=": plurality"),
        *curves(found, "teacher", "s:", ": one"),
        points[0],
    ]
    distances = [*curves(found, "gap"), points[1]]
    panels = [
        Panel("Accuracy against number of teachers", "teachers", accuracy, lines, log_x=True),
        Panel("Gap of the two largest counts", "teachers", "gap, % of the teachers", distances,
              log_x=True),
        Panel("Accuracy of the aggregate against γ", "γ of each query", accuracy,
              [*aggregates, points[2]], log_x=True),
    ]  # fmt: skip
    draw_panels(panels, pictures / "papers-2017.webp")
    heads = ("teachers", "number", "one teacher", "plurality", "gap", "aggregate, γ = 0.05")
    rows = []
    for kind, sizes in found.items():
        for teachers, of in sizes.items():
            noisy = noisy_accuracy(study.votes("mnist", kind, teachers), GAMMA, truth)
            figures: tuple[Figure, ...] = (
                of.teacher / 100,
                of.plurality / 100,
                of.gap / 100,
                noisy,
            )
            rows.append((kind, f"{teachers:,}", *map(percent, figures)))
    return Chapter(items, {"teachers": [heads, *rows]}, {each: study.has(each) for each in KINDS})


def measure_all(study: Study) -> dict[str, dict[int, Measured]]:
    """Measure ensembles of all `SIZES`, by kind and number."""
    truth = study.source("mnist").test.labels
    return {
        kind: {n: measure(study.votes("mnist", kind, n), truth) for n in sizes}
        for kind, sizes in SIZES.items()
    }


def measure(votes: Ints, truth: Ints) -> Measured:
    """Measure votes [N, m]."""
    teachers, gap = int(votes[0].sum()), gaps(votes)
    return Measured(
        teacher=100 * float(votes[np.arange(len(votes)), truth].mean()) / teachers,
        plurality=100 * float((votes.argmax(axis=1) == truth).mean()),
        gap=100 * float(gap.mean()) / teachers,
        far=100 * float((gap > 2).mean()),
    )


def curves(
    found: dict[str, dict[int, Measured]], what: str, style: str = "o-", name: str = ""
) -> list[Curve]:
    """One property of all ensembles, against their number of teachers."""
    return [
        Curve(f"{kind}{name}", list(of), [getattr(each, what) for each in of.values()], style, at)
        for at, (kind, of) in enumerate(found.items())
    ]


def gaps(votes: Ints) -> Ints:
    """By how much the largest of the counts [N, m] leads the second."""
    ranked = np.sort(votes, axis=1)
    return np.asarray(ranked[:, -1] - ranked[:, -2])


def lnmax(votes: Ints, gamma: float) -> Mechanism:
    """LNMax for an ensemble."""
    teachers, classes = int(votes[0].sum()), votes.shape[1]
    return build_mechanism({"name": "lnmax", "gamma": gamma}, teachers=teachers, classes=classes)


def noisy_accuracy(votes: Ints, gamma: float, truth: Ints) -> list[float]:
    """The share of the labels of LNMax that is right, in each draw."""
    return accuracies(lnmax(votes, gamma), votes, truth)


def accuracies(mechanism: Mechanism, votes: Ints, truth: Ints) -> list[float]:
    """The share of a mechanism's labels that is right, in each draw."""
    return [float((mechanism.release(votes).labels == truth).mean()) for _ in range(DRAWS)]


def drawn_curve(
    label: str, x: ArrayLike, shares: Sequence[Figure], style: str = "-", colour: int | None = None
) -> Curve:
    """A curve of figures in percent, with bars for their spread from draw to draw."""
    means, spreads = zip(*map(average, shares), strict=True)
    return Curve(label, x, 100 * np.array(means), style, colour, 100 * np.array([spreads] * 2))


def not_private(study: Study, source: str, name: Name, paper: Published, pool: int) -> Item:
    """The paper's baseline: a model of all private records. Ours, of images: a student of the true
    labels of the pool."""
    assert paper.baseline is not None  # noqa: S101 - each paper has one
    what, theirs = f"{source}, {NOT_PRIVATE}, {TITLES.get(name, name)}", percent(paper.baseline)
    if not study.has(name):
        return Item(what, theirs, needed(name), "not private")
    test = study.source(name).test
    if test.encoding is not None:
        ours = study.open_forest(name, pool)
    else:
        ours = study.taught(name, f"ground-truth-{pool}", test.labels[:pool])
    return Item(what, theirs, percent(ours), "not private", verdict(ours, paper.baseline))


def sell_lnmax(
    study: Study, name: Name, queries: int, delta: float, learn: Learner = "default"
) -> tuple[list[float], str, str]:
    """Accuracies of students of LNMax; what its answers cost by the paper's rules, and enforced."""
    kind, pool = KINDS[name], POOL[name]
    votes = study.votes(name, kind, TEACHERS)[: min(queries, pool)]
    mechanism = lnmax(votes, GAMMA)
    what = f"{kind}-{TEACHERS}-lnmax-{len(votes)}{'' if learn == 'default' else f'-{learn}'}"
    asked = study.ask(name, what, votes, mechanism, pool, learn)
    right = [each.accuracy for each in asked]
    epsilon = lnmax_cost(votes, GAMMA, MOMENTS).epsilon(delta)
    ours = f"ε {epsilon:.2f} †: {percent(right)}"
    return right, ours, shown_epsilon(enforced((mechanism, asked[0].outcomes), delta=delta))


def answers_cost(name: Name, answers: int, delta: float) -> str:
    """What so many answers of LNMax cost, which depends on no votes."""
    mechanism = build_mechanism(
        {"name": "lnmax", "gamma": GAMMA}, teachers=TEACHERS, classes=CLASSES[name]
    )
    return shown_epsilon(enforced((mechanism, {VoteOutcome.ANSWERED: answers}), delta=delta))


def _row(study: Study, name: Name, paper: Published) -> Item:
    queries = paper.labels or POOL[name]
    if not study.has(name):
        return no_data("P17", name, paper, answers_cost(name, queries, paper.delta))
    right, ours, least = sell_lnmax(study, name, queries, paper.delta)
    what = f"P17, {LNMAX}, {name}"
    return Item(what, paper.row, ours, least, verdict(right, paper.accuracy))
