"""Scalable PATE, 2018: selective aggregators, their cost, and Interactive-GNMax in two rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from terrine_experiments.costs import (
    Floats,
    PaperCost,
    Selective,
    enforced,
    gnmax_cost,
    lnmax_cost,
    publishable,
    sanitised_as_stated,
    selective_cost,
)
from terrine_experiments.page import (
    TITLES,
    Chapter,
    Item,
    needed,
    no_data,
    number,
    percent,
    shown_epsilon,
    verdict,
)
from terrine_experiments.papers import (
    CONFIDENT,
    INTERACTIVE,
    LNMAX,
    P18,
    PAPERS,
    Name,
    Published,
)
from terrine_experiments.pate_2017 import accuracies, drawn_curve, lnmax, not_private
from terrine_experiments.pictures import Curve, Panel, draw_panels
from terrine_experiments.study import Asked, Ints, Study
from terrine_server.privacy import (
    Composition,
    CostEvent,
    GaussianArgmax,
    GaussianThreshold,
    Mechanism,
    VoteOutcome,
    build_mechanism,
)

MNIST_ROW = Selective(
    200, 150, 40, 640, 14, 0.0329, 6.23, "2.00 → 2.52 ± 0.385", (8, 0.2 / 8, 4.28)
)
SVHN_ROW = Selective(300, 200, 40, 8_500, 7.5, 0.0533, 4.88, "4.96 → 5.45")
ADULT_ROW = Selective(
    300, 200, 40, 1_500, 15.5, 0.031, 7.92, "1.68 → 2.09 ± 0.263", (8, 0.25 / 8, 6.27)
)
GLYPH_ROW = Selective(
    1_000, 500, 100, 12_000, 20.5, 0.0205, 11.9, "2.07 → 2.29 ± 0.152", (14, 0.2 / 14, 9.49)
)
ROUNDS = (
    Selective(3_500, 1_500, 100, 6_000, 50, 0.009, 26.4),
    Selective(3_500, 2_000, 200, 10_000, 50, 0.008, 38.7),
)
"""Of Interactive-GNMax on Glyph."""
BOTH_ROUNDS = "0.837 → 1.00 ± 0.081"
"""What both would publish together, by the paper's Table 2."""
OWN_ROUNDS = (
    Selective(2_000, 750, 200, 6_000, 50, 0.009, 26.4),
    Selective(2_000, 750, 200, 10_000, 50, 0.009, 26.4),
)
"""Of teachers of our letters, who agree less: their largest count is 2,000 of 5,000 on average."""
MODERATE, AGGRESSIVE = Selective(3_500, 1_500, 100), Selective(5_000, 1_500, 100)
"""Of Figure 5. The Laplace noise beside them has scale 50."""

POOL: dict[Name, int] = {"mnist": 5_000, "adult": 8_140, "glyph": 14_000}
"""The first public inputs, of which a row asks some; all others measure students. The paper halves
each test set, and has 100,000 of Glyph."""
ROWS: dict[Name, tuple[str, int, Selective]] = {
    "mnist": ("networks", 250, MNIST_ROW),
    "svhn": ("networks", 250, SVHN_ROW),
    "adult": ("forest", 250, ADULT_ROW),
    "glyph": ("heads", 5_000, GLYPH_ROW),
}
CLASSES: dict[Name, int] = {"mnist": 10, "svhn": 10, "adult": 2, "glyph": 150}
GLYPH_GAMMA = 1 / 50
"""Of the Laplace noise on Glyph, by the code of the paper."""
GLYPH_LNMAX_QUERIES = 4_000
CONFIDENCE = 0.9
"""From which probability the student's label counts as confirmed where the test is not passed."""
FEWER = (1_000, 5_000)
"""Teachers of Figure 4."""
LAPLACE_SCALES = (25, 50, 100, 200)
SIGMAS = (50, 100, 200, 400, 800)


def scalable_2018(study: Study, pictures: Path) -> Chapter:
    """Recompute the paper. Raises DataError for files that are damaged."""
    items, sanitised = list[Item](), list[Sequence[str]]()
    for name, (kind, teachers, row) in ROWS.items():
        papers = [each for each in PAPERS[name] if each.source == P18]
        items.append(not_private(study, "P18", name, papers[0], POOL.get(name, 0)))
        if not study.has(name):
            lacked = {each.method: lacking(name, teachers, each, row) for each in papers}
            items += lacked.values()
            least = lacked[CONFIDENT].enforced
            sanitised.append(
                [TITLES.get(name, name), row.printed, needed(name), "–", "–", "–", least]
            )
            continue
        votes = study.votes(name, kind, teachers)
        if name == "glyph":
            items.append(glyph_lnmax(study, votes))
        item, line = confident(study, name, votes, row)
        items.append(item)
        sanitised.append(line)
        if name == "glyph":
            for own, rounds in (("", ROUNDS), ("own-", OWN_ROUNDS)):
                item, lines = interactive(study, votes, rounds, own)
                items.append(item)
                sanitised += lines
            _draw_figure_4(study, pictures)
            _draw_figure_5(votes[: POOL[name]], 1e-8, pictures)
    at_hand = {TITLES.get(name, name): study.has(name) for name in ROWS}
    return Chapter(items, {"sanitised": [SANITISED_HEADS, *sanitised]}, at_hand)


def lacking(name: Name, teachers: int, paper: Published, row: Selective) -> Item:
    """A row that files are missing of: what the paper's numbers of outcomes cost, if they are
    known, for any votes."""
    least = "–"
    if paper.method == CONFIDENT and paper.labels is not None:
        outcomes = {
            VoteOutcome.ANSWERED: paper.labels,
            VoteOutcome.ABSTAINED: row.queries - paper.labels,
        }
        mechanism = selective_of(teachers, CLASSES[name], row)
        least = shown_epsilon(enforced((mechanism, outcomes), delta=paper.delta))
    elif paper.method == LNMAX and paper.labels is not None:
        spec: dict[str, object] = {"name": "lnmax", "gamma": GLYPH_GAMMA}
        mechanism = build_mechanism(spec, teachers=teachers, classes=CLASSES[name])
        answers = {VoteOutcome.ANSWERED: paper.labels}
        least = shown_epsilon(enforced((mechanism, answers), delta=paper.delta))
    return no_data("P18", name, paper, least)


def selective(votes: Ints, row: Selective, *, interactive: bool = False) -> Mechanism:
    """The mechanism of a row, for an ensemble of whose votes some are given."""
    teachers, classes = int(votes[0].sum()), votes.shape[1]
    return selective_of(teachers, classes, row, interactive=interactive)


def selective_of(
    teachers: int, classes: int, row: Selective, *, interactive: bool = False
) -> Mechanism:
    """The mechanism of a row.

    With more votes than there are teachers as the threshold, which a project refuses, as many more
    are assumed that never vote: the test and its price are the same.
    """
    spec: dict[str, object] = {
        "name": "confident_gnmax",
        "threshold": row.threshold,
        "sigma1": float(row.sigma1),
        "sigma2": float(row.sigma2),
    }
    if interactive:
        spec |= {"name": "interactive_gnmax", "confidence": CONFIDENCE}
    return build_mechanism(spec, teachers=max(teachers, row.threshold), classes=classes)


def glyph_lnmax(study: Study, votes: Ints) -> Item:
    """LNMax on Glyph, as Table 1 has it."""
    paper, mechanism = PAPERS["glyph"][0], lnmax(votes, GLYPH_GAMMA)
    rows = votes[: min(paper.labels or 0, POOL["glyph"])]
    asked = study.ask("glyph", f"lnmax-{len(rows)}", rows, mechanism, POOL["glyph"])
    epsilon = lnmax_cost(rows, GLYPH_GAMMA).epsilon(paper.delta)
    least = enforced((mechanism, asked[0].outcomes), delta=paper.delta)
    right = [each.accuracy for each in asked]
    return _item("glyph", paper, [len(rows)], [epsilon], right, [least])


def _item(
    name: Name,
    paper: Published,
    answers: Sequence[float],
    epsilon: Sequence[float],
    accuracy: Sequence[float],
    least: Sequence[float | None],
) -> Item:
    ours = f"{number(answers)} answers, ε {number(epsilon, 2)} †: {percent(accuracy)}"
    what = f"P18, {paper.method}, {TITLES.get(name, name)}"
    compared = verdict(accuracy, paper.accuracy)
    return Item(what, paper.row, ours, shown_epsilon(least), compared)


@dataclass(frozen=True, eq=False)
class Sale:
    """Queries of one row, of which `votes` [B, m] are known, and what came of them in one draw."""

    row: Selective
    votes: Ints
    asked: Asked

    @property
    def mechanism(self) -> Mechanism:
        """What was asked."""
        return selective(self.votes, self.row, interactive=self.asked.baselines is not None)

    @property
    def answers(self) -> int:
        """How many queries were answered."""
        return self.asked.outcomes.get(VoteOutcome.ANSWERED, 0)

    @cached_property
    def cost(self) -> PaperCost:
        """By the paper's rules."""
        return selective_cost(self.votes, self.row, self.asked.baselines)

    def at(self, orders: Floats) -> PaperCost:
        """The same, at other orders."""
        return selective_cost(self.votes, self.row, self.asked.baselines, orders)

    def publishable(self, delta: float) -> float | None:
        """ε by our rules, where their parameters were chosen on other queries."""
        if self.row.own is None:
            return None
        sold = self.asked.labels[self.asked.rows] >= 0
        charged = {
            VoteOutcome.ANSWERED: self.votes[sold],
            VoteOutcome.ABSTAINED: self.votes[~sold],
        }
        return publishable(events_of(self.votes, self.row), charged, self.row.own, delta)


def sales_of(row: Selective, votes: Ints, asked: Sequence[Asked]) -> list[Sale]:
    """All draws of one round, of an ensemble's votes."""
    return [Sale(row, votes[each.rows], each) for each in asked]


@dataclass(frozen=True)
class Totals:
    """What the sales of each draw, of one or several rounds, cost together."""

    rounds: Sequence[Sequence[Sale]]
    delta: float

    @property
    def draws(self) -> list[tuple[Sale, ...]]:
        """The sales of each draw."""
        return list(zip(*self.rounds, strict=True))

    @cached_property
    def epsilon(self) -> list[float]:
        """By the paper's rules, not sanitised."""
        return [
            sales[0].cost.epsilon(
                self.delta, of=np.sum([sale.cost.total for sale in sales], axis=0)
            )
            for sales in self.draws
        ]

    @cached_property
    def enforced(self) -> list[float | None]:
        """As a project enforces it, or several of one ensemble."""
        return [
            enforced(*((sale.mechanism, sale.asked.outcomes) for sale in sales), delta=self.delta)
            for sales in self.draws
        ]

    def sanitised(self, what: str, paper: str) -> Sequence[str]:
        """A line of Table 2."""
        queries = sum(len(sale.votes) for sale in self.draws[0])
        stated = [
            sanitised_as_stated(
                [(sale.row, sale.at(sale.row.orders)) for sale in sales], self.delta
            )
            for sales in self.draws
        ]
        figures = [number(each, 2) for each in (self.epsilon, *zip(*stated, strict=True))]
        each = [sales[0].publishable(self.delta) for sales in self.draws]
        known = [value for value in each if value is not None]
        own = number(known, 2) if known and len(self.rounds) == 1 else "–"
        least = shown_epsilon(self.enforced)
        return [f"{what}, {queries:,} queries", paper, *figures, own, least]


def confident(study: Study, name: Name, votes: Ints, row: Selective) -> tuple[Item, Sequence[str]]:
    """Confident-GNMax with a student, and what its data-dependent ε costs to publish."""
    (paper,) = (each for each in PAPERS[name] if each.method == CONFIDENT)
    rows = votes[: min(row.queries, POOL[name])]
    asked = study.ask(name, f"confident-{len(rows)}", rows, selective(votes, row), POOL[name])
    sales = sales_of(row, votes, asked)
    totals, right = Totals([sales], paper.delta), [each.accuracy for each in asked]
    answers = [sale.answers for sale in sales]
    item = _item(name, paper, answers, totals.epsilon, right, totals.enforced)
    return item, totals.sanitised(TITLES.get(name, name), row.printed)


def events_of(votes: Ints, row: Selective) -> dict[VoteOutcome, CostEvent]:
    """What a test, and a test that is passed, are charged as, each release by itself."""
    test = GaussianThreshold(row.sigma1, row.threshold, low=0, high=int(votes[0].sum()))
    answer = Composition((test, GaussianArgmax(row.sigma2)))
    return {VoteOutcome.ABSTAINED: test, VoteOutcome.ANSWERED: answer}


def interactive(
    study: Study, votes: Ints, rounds: Sequence[Selective], own: str = ""
) -> tuple[Item, list[Sequence[str]]]:
    """Interactive-GNMax: confident answers teach a student, whose errors are then corrected.

    The second round asks about characters that got no answer, with the probabilities of the student
    of the first. A student of both is measured.
    """
    (paper,) = (each for each in PAPERS["glyph"] if each.method == INTERACTIVE)
    pool, (one, two) = POOL["glyph"], rounds
    first = study.ask(
        "glyph", f"{own}round-1", votes[: one.queries], selective(votes, one), pool, None
    )
    correcting = selective(votes, two, interactive=True)
    second = study.ask_again("glyph", f"{own}round-2", votes[:pool], correcting, first, two.queries)
    sales = sales_of(one, votes, first), sales_of(two, votes, second)
    both, right = Totals(sales, paper.delta), [each.accuracy for each in second]
    answers = [sum(sale.answers for sale in draw) for draw in both.draws]
    item = _item("glyph", paper, answers, both.epsilon, right, both.enforced)
    who = f"{TITLES['glyph']}{', own thresholds' if own else ''}"
    lines = [
        Totals([each], paper.delta).sanitised(f"{who}, round {at}", "–")
        for at, each in enumerate(sales, 1)
    ]
    lines.append(both.sanitised(f"{who}, both rounds", BOTH_ROUNDS))
    return replace(item, what=f"P18, {paper.method}, {who}"), lines


SANITISED_HEADS = (
    "queries",
    "the paper: † → sanitised",
    "its rules, our votes †",
    "sanitised, as it claims",
    "sanitised, at the price that holds",
    "published by our rules",
    "enforced",
)


def _draw_figure_4(study: Study, pictures: Path) -> None:
    """Accuracy and ε of labels, Laplace against Gaussian noise, and against teachers."""
    truth = study.source("glyph").test.labels[:GLYPH_LNMAX_QUERIES]

    def curve(name: str, teachers: int, style: str, *, gaussian: bool = True) -> Curve:
        votes = study.votes("glyph", "heads", teachers)[:GLYPH_LNMAX_QUERIES]
        epsilons, right = [], []
        for scale in SIGMAS if gaussian else LAPLACE_SCALES:
            cost = gnmax_cost(votes, scale) if gaussian else lnmax_cost(votes, 1 / scale)
            spec: dict[str, object] = {"name": "gnmax", "sigma": float(scale)}
            mechanism = build_mechanism(spec, teachers=teachers, classes=votes.shape[1])
            used = mechanism if gaussian else lnmax(votes, 1 / scale)
            epsilons.append(cost.epsilon(1e-8))
            right.append(accuracies(used, votes, truth))
        return drawn_curve(name, epsilons, right, style)

    names, most = ("ε †, of 4,000 queries", "right labels, %"), FEWER[-1]
    laplace = f"LNMax, scale {', '.join(map(str, LAPLACE_SCALES))}"
    gaussian = f"GNMax, σ {', '.join(map(str, SIGMAS))}"
    noises = [
        curve(gaussian, most, "o-"),
        curve(laplace, most, "s--", gaussian=False),
    ]
    sizes = [curve(f"{n:,} teachers", n, "o-") for n in FEWER[::-1]]
    panels = [
        Panel("Laplace against Gaussian noise, 5,000 teachers", *names, noises, log_x=True),
        Panel("GNMax against number of teachers", *names, sizes, log_x=True),
    ]
    draw_panels(panels, pictures / "papers-2018-noise.webp")


def _draw_figure_5(votes: Ints, delta: float, pictures: Path) -> None:
    """Queries by how many teachers agree, which of them pass, and what answers add up to."""
    agreement = votes.max(axis=1) / votes[0].sum()
    bins, middles = np.minimum((10 * agreement).astype(int), 9), 10 * np.arange(10) + 5
    every = gnmax_cost(votes, MODERATE.sigma2, np.array([50.0])).answer[:, 0]
    spent = [every[bins == k].mean() if (bins == k).any() else math.nan for k in range(10)]
    asked, laplace = np.arange(1, len(votes) + 1), lnmax_cost(votes, GLYPH_GAMMA)
    passing = [Curve("all: LNMax answers", middles, np.bincount(bins, minlength=10))]
    running = [Curve("LNMax, scale 50", asked, laplace.running(delta), "--")]
    for colour, row in enumerate((MODERATE, AGGRESSIVE), 1):
        name, test = f"Confident-GNMax, T = {row.threshold:,}", selective_cost(votes, row)
        answers = np.cumsum(test.passed)
        tests = replace(test, answer=np.zeros_like(test.answer))
        passing.append(Curve(name, middles, np.bincount(bins, test.passed, 10)))
        running.append(Curve(name, answers, test.running(delta), "-", colour))
        running.append(Curve("of which tests", answers, tests.running(delta), ":", colour))
    agree = "teachers that agree, %"
    cost = Curve("GNMax, σ = 100: mean", middles, np.maximum(spent, 1e-200), "o")
    panels = [
        Panel("Queries, and which are answered", agree, "queries", passing, bars=9),
        Panel("What an answer costs", agree, "Rényi divergence at 50 †", [cost], log_y=True),
        Panel("Cost of all answers", "queries answered", f"ε † at δ = {delta:g}", running),
    ]
    draw_panels(panels, pictures / "papers-2018-selective.webp")
