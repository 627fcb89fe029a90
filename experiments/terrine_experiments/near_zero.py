"""Near-zero cost: students of an immutable noisy argmax, the price that holds, and `stable`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from terrine_experiments.costs import enforced
from terrine_experiments.page import Chapter, Item, percent, shown_epsilon, table, verdict
from terrine_experiments.papers import LNMAX
from terrine_experiments.pate_2017 import (
    GAMMA,
    POOL,
    TEACHERS,
    curves,
    gaps,
    lnmax,
    measure_all,
    sell_lnmax,
)
from terrine_experiments.pictures import PAPER, Curve, Panel, draw_panels
from terrine_experiments.study import Ints, Study
from terrine_server.privacy import Mechanism, VoteOutcome, build_mechanism
from terrine_server.privacy.mechanisms import StableArgmax, distance_to_instability

NEAR_ZERO: dict[tuple[int, str], float] = {
    (100, LNMAX): 0.635,
    (1_000, LNMAX): 0.898,
    (5_000, LNMAX): 0.941,
    (9_000, LNMAX): 0.934,
    (9_000, "immutable"): 0.951,
    (9_000, "clean votes"): 0.945,
    (9_000, "immutable, 5 teachers"): 0.978,
    (9_000, "clean votes, 5 teachers"): 0.975,
    (9_000, "ground truth"): 0.981,
}
"""Students on MNIST by the near-zero-cost paper's Table 1: after how many answers, and of which."""
NEAR_ZERO_LABELS = {LNMAX: 0.9302, "immutable": 0.9433, "clean votes": 0.9437}
"""Its Table 2: how many labels of 250 teachers on MNIST are right."""
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
    votes = study.votes("mnist", "networks", TEACHERS)
    truth, pool = study.source("mnist").test.labels, POOL["mnist"]
    items = []
    for (queries, what), printed in NEAR_ZERO.items():
        if what == LNMAX:
            asked, ours, least = sell_lnmax(study, "mnist", queries, DELTA)
            accuracy = asked.accuracy
        elif what == TRUTH:
            accuracy = study.taught("mnist", "ground-truth", truth[:pool])
            ours, least = percent(accuracy), "not private"
        else:
            # With so many extra votes the noise never changes the winner, which both teach.
            teachers = 5 if what.endswith("5 teachers") else TEACHERS
            few = study.votes("mnist", "networks", teachers)[:pool]
            winners = immutable(few, EXTRA_VOTES).release(few).labels
            accuracy = study.taught("mnist", f"networks-{teachers}-winners", winners)
            claimed = what.startswith(IMMUTABLE)
            ours = f"{'ε ≈ 0, which is false: ' if claimed else ''}{percent(accuracy)}"
            least = "ε ≥ 1e90" if claimed else "not private"
        paper = f"{queries:,} answers: {percent(printed)}"
        items.append(Item(f"NZC, {what}, mnist", paper, ours, least, verdict(accuracy, printed)))
    labels = {
        LNMAX: lnmax(votes, GAMMA).release(votes).labels,
        IMMUTABLE: immutable(votes, EXTRA_VOTES).release(votes).labels,
        CLEAN: votes.argmax(axis=1),
    }
    for what, printed in NEAR_ZERO_LABELS.items():
        right = float((labels[what] == truth).mean())
        compared = verdict(right, printed)
        items.append(
            Item(f"NZC, right labels, {what}", percent(printed), percent(right), verdict=compared)
        )
    _draw(study, pictures)
    prices = _prices(votes[:1_000], truth[:1_000])
    return Chapter(items, {"stable": _stable(study), "immutable": prices})


def immutable(votes: Ints, extra: int) -> Mechanism:
    """The paper's mechanism, with Laplace noise."""
    spec = {"name": "immutable", "c": extra, "gamma": GAMMA}
    return build_mechanism(spec, teachers=int(votes[0].sum()), classes=votes.shape[1])


def stable(teachers: int, sigma: float) -> StableArgmax:
    """`stable`, with less than a twentieth of δ for all tests."""
    return StableArgmax(teachers, 10, sigma, DELTA / 25 / POOL["mnist"])


def _stable(study: Study) -> str:
    """What answers cost where no vote could change them."""
    rows = []
    for kind, teachers, sigma in STABLE:
        votes, mechanism = study.votes("mnist", kind, teachers), stable(teachers, sigma)
        pool = POOL["mnist"]
        asked = study.ask("mnist", f"{kind}-{teachers}-stable", votes[:pool], mechanism, pool)
        answers = f"{asked.outcomes[VoteOutcome.ANSWERED]:,} of {pool:,}"
        known, truth = asked.labels >= 0, study.source("mnist").test.labels[:pool]
        right = float((asked.labels == truth)[known].mean())
        figures = percent(right), percent(asked.accuracy)
        least = shown_epsilon(enforced((mechanism, asked.outcomes), delta=DELTA))
        rows.append((f"{teachers:,} {kind}", f"{sigma:g}", answers, *figures, least))
    return table(("teachers", "σ", "answered", "right labels", "student", "enforced"), rows)


def _prices(votes: Ints, truth: Ints) -> str:
    """What extra votes buy, and cost."""
    rows = []
    for extra in BOOSTS:
        mechanism = immutable(votes, extra)
        labels = mechanism.release(votes).labels
        told = [percent(float((labels == each).mean())) for each in (votes.argmax(axis=1), truth)]
        least = enforced((mechanism, {VoteOutcome.ANSWERED: len(votes)}), delta=DELTA)
        pure = f"{2 * GAMMA:g}", f"{2 * GAMMA * (1 + extra):g}"
        rows.append((f"{extra:,}", *told, *pure, shown_epsilon(least)))
    heads = ("extra votes", "the winner is told", "right", "claimed ε of a query", "true bound")
    return table((*heads, "enforced, 1,000 queries"), rows)


def _draw(study: Study, pictures: Path) -> None:
    """Figure 2, and the share of queries that no change of d votes could change."""
    found = measure_all(study)
    gap, near = gaps(study.votes("mnist", "networks", TEACHERS)), np.arange(0, TEACHERS + 1, 5)
    qualified = Curve("250 networks", near, [100 * float((gap > n).mean()) for n in near])
    paper = Curve("NZC: clean votes", [TEACHERS], [100 * NEAR_ZERO_LABELS[CLEAN]], PAPER)
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
