"""Scalable PATE, 2018: selective aggregators, their cost, and Interactive-GNMax in two rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from terrine_experiments.costs import (
    ORDERS,
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
from terrine_experiments.page import Chapter, Item, no_data, percent, shown_epsilon, table, verdict
from terrine_experiments.papers import (
    CONFIDENT,
    INTERACTIVE,
    P18,
    PAPERS,
    Name,
    Published,
)
from terrine_experiments.pate_2017 import lnmax
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

MNIST_ROW = Selective(200, 150, 40, 640, 14, 0.0329, 6.23, 2.52, (8, 0.2 / 8, 4.28))
ADULT_ROW = Selective(300, 200, 40, 1_500, 15.5, 0.031, 7.92, 2.09, (8, 0.25 / 8, 6.27))
GLYPH_ROW = Selective(1_000, 500, 100, 12_000, 20.5, 0.0205, 11.9, 2.29, (14, 0.2 / 14, 9.49))
ROUNDS = (
    Selective(3_500, 1_500, 100, 0, 50, 0.009, 26.4),
    Selective(3_500, 2_000, 200, 0, 50, 0.008, 38.7),
)
"""Of Interactive-GNMax on Glyph. What each would publish is not known to us."""
OWN_ROUNDS = 2 * (Selective(2_000, 750, 200, 0, 50, 0.009, 26.4),)
"""Of teachers of our letters, who agree less: their largest count is 2,000 of 5,000 on average."""
MODERATE, AGGRESSIVE = Selective(3_500, 1_500, 100), Selective(5_000, 1_500, 100)
"""Of Figure 5. The Laplace noise beside them has scale 50."""

POOL = {"mnist": 9_000, "adult": 1_500, "glyph": 8_000}
"""The first public inputs, of which a row asks some; all others measure students."""
ROWS: dict[Name, tuple[str, int, Selective]] = {
    "mnist": ("networks", 250, MNIST_ROW),
    "adult": ("forest", 250, ADULT_ROW),
    "glyph": ("heads", 5_000, GLYPH_ROW),
}
GLYPH_GAMMA = 1 / 50
"""Of the Laplace noise on Glyph, by the code of the paper."""
GLYPH_LNMAX_QUERIES = 4_000
FIRST_ROUND = 4_000
"""Public characters that are asked before there is a student."""
CONFIDENCE = 0.9
"""From which probability the student's label counts as confirmed where the test is not passed."""
FEWER = (1_000, 5_000)
"""Teachers of Figure 4."""
LAPLACE_SCALES = (25, 50, 100, 200)
SIGMAS = (50, 100, 200, 400, 800)


def scalable_2018(study: Study, pictures: Path) -> Chapter:
    """Recompute the paper. Raises DataError for files that are damaged."""
    items, sanitised = [], []
    for name, (kind, teachers, row) in ROWS.items():
        if not study.has(name):
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
    lacking: list[Name] = [name for name in ROWS if not study.has(name)]
    for lacked in (*lacking, "svhn"):
        items += [no_data("P18", lacked, each) for each in PAPERS[lacked] if each.source == P18]
    return Chapter(items, {"sanitised": table(SANITISED_HEADS, sanitised)})


def selective(votes: Ints, row: Selective, *, interactive: bool = False) -> Mechanism:
    """The mechanism of a row.

    With more votes than there are teachers as the threshold, which a project refuses, as many more
    are assumed that never vote: the test and its price are the same.
    """
    teachers = max(int(votes[0].sum()), row.threshold)
    spec: dict[str, object] = {
        "name": "confident_gnmax",
        "threshold": row.threshold,
        "sigma1": float(row.sigma1),
        "sigma2": float(row.sigma2),
    }
    if interactive:
        spec |= {"name": "interactive_gnmax", "confidence": CONFIDENCE}
    return build_mechanism(spec, teachers=teachers, classes=votes.shape[1])


def glyph_lnmax(study: Study, votes: Ints) -> Item:
    """LNMax on Glyph, as Table 1 has it."""
    paper, mechanism = PAPERS["glyph"][0], lnmax(votes, GLYPH_GAMMA)
    rows = votes[: min(paper.labels or 0, POOL["glyph"])]
    asked = study.ask("glyph", f"lnmax-{len(rows)}", rows, mechanism, POOL["glyph"])
    epsilon = lnmax_cost(rows, GLYPH_GAMMA).epsilon(paper.delta)
    least = enforced((mechanism, asked.outcomes), delta=paper.delta)
    return _item("glyph", paper, len(rows), epsilon, asked.accuracy, least)


def _item(
    name: Name, paper: Published, answers: int, epsilon: float, accuracy: float, least: float | None
) -> Item:
    ours = f"{answers:,} answers, ε {epsilon:.2f} †: {percent(accuracy)}"
    what = f"P18, {paper.method}, {'our letters' if name == 'glyph' else name}"
    compared = verdict(accuracy, paper.accuracy)
    return Item(what, paper.row, ours, shown_epsilon(least), compared)


@dataclass(frozen=True, eq=False)
class Sale:
    """Queries of one row, and what came of them. `baselines`: what a student said of each."""

    what: str
    row: Selective
    votes: Ints
    asked: Asked
    baselines: Ints | None = None

    @property
    def mechanism(self) -> Mechanism:
        """What was asked."""
        return selective(self.votes, self.row, interactive=self.baselines is not None)

    @property
    def answers(self) -> int:
        """How many queries were answered."""
        return self.asked.outcomes.get(VoteOutcome.ANSWERED, 0)

    def cost(self, orders: Floats = ORDERS) -> PaperCost:
        """By the paper's rules."""
        return selective_cost(self.votes, self.row, self.baselines, orders)

    def sanitised(self, paper: str, delta: float) -> Sequence[str]:
        """A line of Table 2."""
        own = "–"
        if self.row.own is not None:
            sold = self.asked.labels[: len(self.votes)] >= 0
            charged = {
                VoteOutcome.ANSWERED: self.votes[sold],
                VoteOutcome.ABSTAINED: self.votes[~sold],
            }
            own = (
                f"{publishable(events_of(self.votes, self.row), charged, self.row.own, delta):.2f}"
            )
        stated = sanitised_as_stated(self.row, self.cost(self.row.orders), delta)
        least = enforced((self.mechanism, self.asked.outcomes), delta=delta)
        figures = [f"{each:.2f}" for each in (self.cost().epsilon(delta), *stated)]
        queries = f"{self.what}, {len(self.votes):,} queries"
        return [queries, paper, *figures, own, shown_epsilon(least)]


def confident(study: Study, name: Name, votes: Ints, row: Selective) -> tuple[Item, Sequence[str]]:
    """Confident-GNMax with a student, and what its data-dependent ε costs to publish."""
    (paper,) = (each for each in PAPERS[name] if each.method == CONFIDENT)
    rows = votes[: min(row.queries, POOL[name])]
    asked = study.ask(name, f"confident-{len(rows)}", rows, selective(votes, row), POOL[name])
    sale = Sale("our letters" if name == "glyph" else name, row, rows, asked)
    least = enforced((sale.mechanism, asked.outcomes), delta=paper.delta)
    epsilon = sale.cost().epsilon(paper.delta)
    item = _item(name, paper, sale.answers, epsilon, asked.accuracy, least)
    return item, sale.sanitised(f"{paper.epsilon:g} → {row.sanitised:g}", paper.delta)


def events_of(votes: Ints, row: Selective) -> dict[VoteOutcome, CostEvent]:
    """What a test, and a test that is passed, are charged as, each release by itself."""
    test = GaussianThreshold(row.sigma1, row.threshold, low=0, high=int(votes[0].sum()))
    answer = Composition((test, GaussianArgmax(row.sigma2)))
    return {VoteOutcome.ABSTAINED: test, VoteOutcome.ANSWERED: answer}


def interactive(
    study: Study, votes: Ints, rounds: Sequence[Selective], own: str = ""
) -> tuple[Item, list[Sequence[str]]]:
    """Interactive-GNMax: confident answers teach a student, whose errors are then corrected.

    Its first round asks `FIRST_ROUND` characters; its second asks all that got no answer, with the
    probabilities of the student of the first. A student of both is measured.
    """
    (paper,) = (each for each in PAPERS["glyph"] if each.method == INTERACTIVE)
    pool, delta = POOL["glyph"], paper.delta
    rows, correcting = votes[:FIRST_ROUND], selective(votes, rounds[1], interactive=True)
    first = study.ask("glyph", f"{own}round-1", rows, selective(votes, rounds[0]), pool)
    second = study.ask("glyph", f"{own}round-2", votes[:pool], correcting, pool, first.labels)
    again, who = votes[:pool][first.labels < 0], f"our letters{', own thresholds' if own else ''}"
    sales = [
        Sale(f"{who}, round 1", rounds[0], rows, first),
        Sale(f"{who}, round 2", rounds[1], again, second, second.baselines),
    ]
    total = np.asarray(sum(sale.cost().total for sale in sales))
    epsilon = sales[0].cost().epsilon(delta, of=total)
    least = enforced(*((sale.mechanism, sale.asked.outcomes) for sale in sales), delta=delta)
    answers = sum(sale.answers for sale in sales)
    item = _item("glyph", paper, answers, epsilon, second.accuracy, least)
    return replace(item, what=f"P18, {paper.method}, {who}"), [
        sale.sanitised("not known to us", delta) for sale in sales
    ]


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

    def points(teachers: int, gaussian: bool) -> tuple[list[float], list[float]]:
        votes = study.votes("glyph", "heads", teachers)[:GLYPH_LNMAX_QUERIES]
        epsilons, accuracies = [], []
        for scale in SIGMAS if gaussian else LAPLACE_SCALES:
            cost = gnmax_cost(votes, scale) if gaussian else lnmax_cost(votes, 1 / scale)
            spec: dict[str, object] = {"name": "gnmax", "sigma": float(scale)}
            mechanism = build_mechanism(spec, teachers=teachers, classes=votes.shape[1])
            used = mechanism if gaussian else lnmax(votes, 1 / scale)
            epsilons.append(cost.epsilon(1e-8))
            accuracies.append(100 * float((used.release(votes).labels == truth).mean()))
        return epsilons, accuracies

    names, most = ("ε †, of 4,000 queries", "right labels, %"), FEWER[-1]
    laplace = f"LNMax, scale {', '.join(map(str, LAPLACE_SCALES))}"
    gaussian = f"GNMax, σ {', '.join(map(str, SIGMAS))}"
    noises = [
        Curve(gaussian, *points(most, gaussian=True), "o-"),
        Curve(laplace, *points(most, gaussian=False), "s--"),
    ]
    sizes = [Curve(f"{n:,} teachers", *points(n, gaussian=True), "o-") for n in FEWER[::-1]]
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
