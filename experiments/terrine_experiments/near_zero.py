"""Near-zero cost: students of an immutable noisy argmax, the price that holds, and `stable`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from terrine_experiments.costs import MOMENTS, enforced, lnmax_cost
from terrine_experiments.page import Chapter, Item, percent, shown_epsilon, table, verdict
from terrine_experiments.papers import LNMAX, NEAR_ZERO, NEAR_ZERO_LABELS
from terrine_experiments.pate_2017 import (
    GAMMA,
    HEADS,
    NETWORKS,
    PAPERS_TEACHERS,
    POOL,
    gaps,
    lnmax,
    measure,
)
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
from terrine_experiments.study import Ints, Study
from terrine_server.privacy import Mechanism, VoteOutcome, build_mechanism
from terrine_server.privacy.mechanisms import StableArgmax, distance_to_instability

DELTA = 1e-5
QUERIES = POOL["mnist"]
EXTRA_VOTES = 1_000_000_000
"""The most that `immutable` takes; the paper adds 1e100, and noise of scale 1e10."""
BOOSTS = (0, 10, 50, 250)
"""Extra votes whose price is shown, of 1,000 queries at γ = 0.05."""
STABLE = (("networks", 250, 12.0), ("heads", 1_000, 48.0), ("heads", 2_000, 96.0))
"""Ensembles that `stable` is asked with, and its σ."""
IMMUTABLE, CLEAN, TRUTH = "immutable", "clean votes", "ground truth"


def near_zero(study: Study, pictures: Path) -> Chapter:
    """Recompute the paper, and what holds beside it. Raises DataError without MNIST."""
    votes = study.votes("mnist", "networks", PAPERS_TEACHERS)
    truth = study.source("mnist").test.labels
    items = []
    for (queries, what), printed in NEAR_ZERO.items():
        teachers = 5 if what.endswith("5 teachers") else PAPERS_TEACHERS
        few = study.votes("mnist", "networks", teachers)[: min(queries, QUERIES)]
        paper = f"{queries:,} answers: {percent(printed)}"
        title, theirs, least = f"NZC, {what}, mnist", "no noise, no ε", "ε = ∞"
        if what == LNMAX:
            mechanism = lnmax(few, GAMMA)
            asked = study.ask(
                "mnist", f"networks-{teachers}-lnmax-{len(few)}", few, mechanism, QUERIES
            )
            accuracy, sold = asked.accuracy, (mechanism, asked.outcomes)
            theirs = f"ε {lnmax_cost(few, GAMMA, MOMENTS).epsilon(DELTA):.2f} †"
            least = shown_epsilon(enforced(sold, delta=DELTA))
        elif what == TRUTH:
            accuracy = study.taught("mnist", "ground-truth", truth[:QUERIES])
        else:
            # With so many extra votes the noise never changes the winner, which both teach.
            winners = immutable(few, EXTRA_VOTES).release(few).labels
            accuracy = study.taught("mnist", f"networks-{teachers}-winners", winners)
            if what.startswith(IMMUTABLE):
                theirs, least = "ε ≈ 0, a false claim", "ε ≥ 1e90"
        ours = f"{theirs}: {percent(accuracy)}"
        items.append(Item(title, paper, ours, least, verdict(accuracy, printed)))
    stable = []
    for kind, teachers, sigma in STABLE:
        few = study.votes("mnist", kind, teachers)[:QUERIES]
        spec = {"name": "stable", "sigma": sigma, "delta_per_query": DELTA / 25 / QUERIES}
        mechanism = build_mechanism(spec, teachers=teachers, classes=10)
        asked = study.ask("mnist", f"{kind}-{teachers}-stable", few, mechanism, QUERIES)
        epsilon = shown_epsilon(enforced((mechanism, asked.outcomes), delta=DELTA))
        answers = asked.outcomes[VoteOutcome.ANSWERED]
        share = f"{answers:,} of {QUERIES:,}"
        row = (f"{teachers:,} {kind}", f"{sigma:g}", share, percent(asked.right))
        stable.append((*row, percent(asked.accuracy), epsilon))
    items += _labels(votes, truth)
    _draw(study, pictures)
    heads = ("teachers", "σ", "answered", "right labels", "student", "enforced")
    prices = _prices(votes[:1_000], truth[:1_000])
    return Chapter(items, {"stable": table(heads, stable), "immutable": prices})


def immutable(votes: Ints, extra: int) -> Mechanism:
    """The paper's mechanism, with Laplace noise."""
    spec = {"name": "immutable", "c": extra, "gamma": GAMMA}
    return build_mechanism(spec, teachers=int(votes[0].sum()), classes=votes.shape[1])


def _labels(votes: Ints, truth: Ints) -> list[Item]:
    """Table 2: labels that are right."""
    found = {
        LNMAX: lnmax(votes, GAMMA).release(votes).labels,
        IMMUTABLE: immutable(votes, EXTRA_VOTES).release(votes).labels,
        CLEAN: votes.argmax(axis=1),
    }
    return [
        Item(f"NZC, right labels, {what}", percent(printed), percent(right), "–",
             verdict(right, printed))
        for what, printed in NEAR_ZERO_LABELS.items()
        for right in [float((found[what] == truth).mean())]
    ]  # fmt: skip


def _prices(votes: Ints, truth: Ints) -> str:
    """What extra votes buy, and cost."""
    rows = []
    for extra in BOOSTS:
        mechanism = immutable(votes, extra)
        labels = mechanism.release(votes).labels
        least = enforced((mechanism, {VoteOutcome.ANSWERED: len(votes)}), delta=DELTA)
        winners = percent(float((labels == votes.argmax(axis=1)).mean()))
        claim = f"ε {len(votes) * 2 * GAMMA:g}"
        rows.append((f"{extra:,}", winners, percent(float((labels == truth).mean())), claim,
                     f"{2 * GAMMA * (1 + extra):g}", shown_epsilon(least)))  # fmt: skip
    heads = ("extra votes", "the winner is told", "right", "claimed", "true, of one query, pure",
             "enforced, 1,000 queries")  # fmt: skip
    return table(heads, rows)


def _draw(study: Study, pictures: Path) -> None:
    """Figure 2, and the share of queries that no change of d votes could change."""
    truth = study.source("mnist").test.labels
    kinds = (("networks", NETWORKS, STUDENT), ("heads", HEADS, PLAIN))
    plurality, distant = [], []
    for kind, sizes, colour in kinds:
        all_votes = [study.votes("mnist", kind, teachers) for teachers in sizes]
        right = [100 * measure(votes, truth)[1] for votes in all_votes]
        plurality.append(Curve(kind, sizes, right, "o-", colour))
        shares = [100 * float((gaps(votes) > 2).mean()) for votes in all_votes]
        distant.append(Curve(kind, sizes, shares, "o-", colour))
    gap = gaps(study.votes("mnist", "networks", PAPERS_TEACHERS))
    near = np.arange(0, 251, 5)
    qualified = Curve("250 networks", near, [100 * (gap > n).mean() for n in near])
    paper = Curve("NZC: clean votes", [250], [100 * NEAR_ZERO_LABELS[CLEAN]], PAPER, PAPERS_OWN)
    share = "queries, %"
    draw_panels(
        [
            Panel("Accuracy of the ensemble", "teachers", "right labels, %",
                  [*plurality, paper], log_x=True),
            Panel("Gap of more than n votes", "n, of 250 votes", share, [qualified]),
            Panel("Gap of more than 2 votes", "teachers", share, distant, log_x=True),
        ],
        pictures / "papers-near-zero.webp",
    )  # fmt: skip
    margins = []
    for (kind, teachers, sigma), colour in zip(STABLE, (STUDENT, TWIN, OTHER), strict=False):
        votes = study.votes("mnist", kind, teachers)
        d = distance_to_instability(votes)
        mechanism = StableArgmax(teachers, 10, sigma, DELTA / 25 / QUERIES)
        at = np.linspace(0, 0.5, 101)
        passed = [100 * float((d >= share * teachers).mean()) for share in at]
        margins.append(Curve(f"{teachers:,} {kind}", 100 * at, passed, "-", colour))
        w = mechanism.threshold
        half = 100 * float((d >= w).mean())
        name = f"threshold w = {w} at σ = {sigma:g}"
        margins.append(Curve(name, [100 * w / teachers], [half], "o", colour))
    panel = Panel("How many votes are needed to change the winner", "d, % of the teachers",
                  "queries with at least d, %", margins)  # fmt: skip
    draw_panels([panel], pictures / "papers-margins.webp")
