"""Near-zero cost: students of an immutable noisy argmax, the price that holds, and `stable`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from terrine_experiments.costs import enforced
from terrine_experiments.page import (
    Chapter,
    Figure,
    Item,
    needed,
    number,
    percent,
    shown_epsilon,
    verdict,
)
from terrine_experiments.papers import LNMAX, Name
from terrine_experiments.pate_2017 import (
    GAMMA,
    KINDS,
    POOL,
    TEACHERS,
    accuracies,
    answers_cost,
    curves,
    gaps,
    lnmax,
    measure_all,
    sell_lnmax,
)
from terrine_experiments.pictures import PAPER, Curve, Panel, draw_panels
from terrine_experiments.study import Ints, Study
from terrine_server.privacy import Mechanism, VoteOutcome, build_mechanism
from terrine_server.privacy.mechanisms.stable import StableArgmax, distance_to_instability

NEAR_ZERO: dict[Name, dict[tuple[int, str], float]] = {
    "mnist": {
        (100, LNMAX): 0.635,
        (1_000, LNMAX): 0.898,
        (5_000, LNMAX): 0.941,
        (9_000, LNMAX): 0.934,
        (9_000, "immutable"): 0.951,
        (9_000, "clean votes"): 0.945,
        (9_000, "immutable, 5 teachers"): 0.978,
        (9_000, "clean votes, 5 teachers"): 0.975,
        (9_000, "ground truth"): 0.981,
    },
    "svhn": {
        (500, LNMAX): 0.540,
        (1_000, LNMAX): 0.640,
        (5_000, LNMAX): 0.795,
        (10_000, LNMAX): 0.846,
        (10_000, "immutable"): 0.857,
        (10_000, "clean votes"): 0.858,
        (10_000, "immutable, 5 teachers"): 0.871,
        (10_000, "clean votes, 5 teachers"): 0.871,
        (10_000, "ground truth"): 0.893,
    },
}
"""Students by the near-zero-cost paper's Table 1: after how many answers, and of which."""
NEAR_ZERO_LABELS: dict[Name, dict[str, float]] = {
    "mnist": {LNMAX: 0.9302, "immutable": 0.9433, "clean votes": 0.9437},
    "svhn": {LNMAX: 0.8711, "immutable": 0.8808, "clean votes": 0.8806},
}
"""Its Table 2: how many labels of 250 teachers are right."""
DELTAS: dict[Name, float] = {"mnist": 1e-5, "svhn": 1e-6}
FALSE_CLAIM = "ε ≥ 1e90"
"""What an immutable answer costs at the paper's parameters, at the least."""
DELTA = 1e-5
EXTRA_VOTES = 1_000_000_000
"""The most that `immutable` takes; the paper adds 1e100, and noise of scale 1e10."""
BOOSTS = (0, 10, 50, 250)
"""Extra votes whose price is shown, of 1,000 queries at γ = 0.05."""
STABLE = (("networks", 250, 12.0), ("heads", 1_000, 48.0), ("heads", 2_000, 96.0))
"""Ensembles that `stable` is asked with, and its σ."""
IMMUTABLE, CLEAN, TRUTH = "immutable", "clean votes", "ground truth"


def near_zero(study: Study, pictures: Path) -> Chapter:
    """Recompute the paper, and what holds beside it. Raises DataError without MNIST."""
    items = [
        student_row(study, name, queries, what, printed)
        for name, rows in NEAR_ZERO.items()
        for (queries, what), printed in rows.items()
    ]
    for name, labels in NEAR_ZERO_LABELS.items():
        items += [label_row(study, name, what, printed) for what, printed in labels.items()]
    _draw(study, pictures)
    truth = study.source("mnist").test.labels
    prices = _prices(study.votes("mnist", "networks", TEACHERS)[:1_000], truth[:1_000])
    tables = {"stable": _stable(study), "immutable": prices}
    return Chapter(items, tables, {each: study.has(each) for each in NEAR_ZERO})


def student_row(study: Study, name: Name, queries: int, what: str, printed: float) -> Item:
    """A line of Table 1. The paper's students are supervised, and so are ours."""
    title, paper = f"NZC, {what}, {name}", f"{queries:,} answers: {percent(printed)}"
    private = what == LNMAX
    least = FALSE_CLAIM if what.startswith(IMMUTABLE) else "not private"
    if not study.has(name):
        least = answers_cost(name, queries, DELTAS[name]) if private else least
        return Item(title, paper, needed(name), least)
    if private:
        right, ours, least = sell_lnmax(study, name, queries, DELTAS[name], "supervised")
        return Item(title, paper, ours, least, verdict(right, printed))
    truth, pool = study.source(name).test.labels, POOL[name]
    if what == TRUTH:
        right = study.supervise(name, "ground-truth", truth[:pool])
    else:
        # With so many extra votes the noise never changes the winner, which both teach.
        teachers = 5 if what.endswith("5 teachers") else TEACHERS
        few = study.votes(name, KINDS[name], teachers)[:pool]
        winners = immutable(few, EXTRA_VOTES).release(few).labels
        right = study.supervise(name, f"networks-{teachers}-winners", winners)
    claimed = "ε ≈ 0, which is false: " if what.startswith(IMMUTABLE) else ""
    return Item(title, paper, claimed + percent(right), least, verdict(right, printed))


def label_row(study: Study, name: Name, what: str, printed: float) -> Item:
    """A line of Table 2."""
    title = f"NZC, right labels, {what}, {name}"
    if not study.has(name):
        return Item(title, percent(printed), needed(name))
    votes, truth = study.votes(name, KINDS[name], TEACHERS), study.source(name).test.labels
    right: Figure = float((votes.argmax(axis=1) == truth).mean())
    if what != CLEAN:
        mechanism = lnmax(votes, GAMMA) if what == LNMAX else immutable(votes, EXTRA_VOTES)
        right = accuracies(mechanism, votes, truth)
    return Item(title, percent(printed), percent(right), verdict=verdict(right, printed))


def immutable(votes: Ints, extra: int) -> Mechanism:
    """The paper's mechanism, with Laplace noise."""
    spec = {"name": "immutable", "c": extra, "gamma": GAMMA}
    return build_mechanism(spec, teachers=int(votes[0].sum()), classes=votes.shape[1])


def stable(teachers: int, sigma: float) -> StableArgmax:
    """`stable`, with less than a twentieth of δ for all tests."""
    return StableArgmax(teachers, 10, sigma, DELTA / 25 / POOL["mnist"])


def _stable(study: Study) -> list[Sequence[str]]:
    """What answers cost where no vote could change them."""
    rows = []
    for kind, teachers, sigma in STABLE:
        votes, mechanism = study.votes("mnist", kind, teachers), stable(teachers, sigma)
        pool = POOL["mnist"]
        what = f"{kind}-{teachers}-stable"
        asked = study.ask("mnist", what, votes[:pool], mechanism, pool, "supervised")
        truth = study.source("mnist").test.labels[:pool]
        known = [each.outcomes[VoteOutcome.ANSWERED] for each in asked]
        right = [float((each.labels == truth)[each.labels >= 0].mean()) for each in asked]
        figures = percent(right), percent([each.accuracy for each in asked])
        least = [enforced((mechanism, each.outcomes), delta=DELTA) for each in asked]
        answers = f"{number(known)} of {pool:,}"
        rows.append((f"{teachers:,} {kind}", f"{sigma:g}", answers, *figures, shown_epsilon(least)))
    return [("teachers", "σ", "answered", "right labels", "student", "enforced"), *rows]


def _prices(votes: Ints, truth: Ints) -> list[Sequence[str]]:
    """What extra votes buy, and cost."""
    rows = []
    for extra in BOOSTS:
        mechanism = immutable(votes, extra)
        told = [percent(accuracies(mechanism, votes, of)) for of in (votes.argmax(axis=1), truth)]
        least = enforced((mechanism, {VoteOutcome.ANSWERED: len(votes)}), delta=DELTA)
        pure = f"{2 * GAMMA:g}", f"{2 * GAMMA * (1 + extra):g}"
        rows.append((f"{extra:,}", *told, *pure, shown_epsilon(least)))
    heads = ("extra votes", "the winner is told", "right", "claimed ε of a query", "true bound")
    return [(*heads, "enforced, 1,000 queries"), *rows]


def _draw(study: Study, pictures: Path) -> None:
    """Figure 2, and the share of queries that no change of d votes could change."""
    found = measure_all(study)
    gap, near = gaps(study.votes("mnist", "networks", TEACHERS)), np.arange(0, TEACHERS + 1, 5)
    qualified = Curve("250 networks", near, [100 * float((gap > n).mean()) for n in near])
    paper = Curve("NZC: clean votes", [TEACHERS], [100 * NEAR_ZERO_LABELS["mnist"][CLEAN]], PAPER)
    share, right = "queries, %", [*curves(found, "plurality"), paper]
    far = curves(found, "far")
    panels = [
        Panel("Accuracy of the ensemble", "teachers", "right labels, %", right, log_x=True),
        Panel("Gap of more than n votes", "n, of 250 votes", share, [qualified]),
        Panel("Gap of more than 2 votes", "teachers", share, far, log_x=True),
    ]
    draw_panels(panels, pictures / "papers-near-zero.webp")
    margins, at = [], np.linspace(0, 0.5, 101)
    for colour, (kind, teachers, sigma) in enumerate(STABLE):
        distance = distance_to_instability(study.votes("mnist", kind, teachers))
        passed = [100 * float((distance >= part * teachers).mean()) for part in at]
        margins.append(Curve(f"{teachers:,} {kind}", 100 * at, passed, "-", colour))
        w = stable(teachers, sigma).threshold
        reached, name = 100 * float((distance >= w).mean()), f"w = {w} at σ = {sigma:g}"
        margins.append(Curve(name, [100 * w / teachers], [reached], "o", colour))
    what = "How many votes must change to change the winner"
    panel = Panel(what, "d, % of the teachers", "queries with at least d, %", margins)
    draw_panels([panel], pictures / "papers-margins.webp")
