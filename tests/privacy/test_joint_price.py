"""The joint price of a threshold test and its noisy maximum, against exact laws."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.laws import ROUNDING, histograms, moments, neighbours, release
from support.wording import refuses
from terrine_server.privacy.curves import rdp
from terrine_server.privacy.events import ConfidentMax, event_from_json
from terrine_server.privacy.joint import (
    MAX_EXPONENT,
    counts_excess,
    label_excess,
    label_table,
    outcome_costs,
    release_cells,
)

SIGMAS = [(1.5, 1.5), (0.6, 3.0), (4.0, 2.0)]
SHARES = (1.0, 0.6, 0.2, 0.05)


@pytest.mark.parametrize("order", [1.3, 2.0, 6.0])
@pytest.mark.parametrize(("sigma1", "sigma2"), SIGMAS)
@pytest.mark.parametrize(
    ("teachers", "classes", "threshold"),
    [
        (9, 2, 6),
        (9, 3, 7),
        (9, 3, 4),
        (8, 4, 5),
        (8, 4, 2),
        (9, 4, 8),
        (7, 3, 4),
        (5, 3, 5),
        (2, 3, 2),
    ],
)
def test_every_histogram_and_move_costs_at_most_the_price(
    teachers: int, classes: int, threshold: int, sigma1: float, sigma2: float, order: float
) -> None:
    event = release(teachers, classes, threshold, sigma1, sigma2)
    more = order - 1
    prices = [outcome_costs(replace(event, answer_share=share), order) for share in SHARES]
    assert prices[0] is not None
    flat = prices[0].flat
    for before in histograms(teachers, classes):
        for after in neighbours(before):
            abstained, answered = moments(before, after, event, order)
            assert math.log(abstained + answered) / more <= flat * (1 + ROUNDING)
            for price in filter(None, prices):
                paid = abstained * math.exp(-more * price.abstention)
                paid += answered * math.exp(-more * price.answer)
                assert paid <= 1 + ROUNDING * (abstained + answered)


@pytest.mark.parametrize(("sigma1", "sigma2"), SIGMAS)
@pytest.mark.parametrize(("teachers", "classes", "threshold"), [(9, 2, 6), (9, 3, 4), (7, 4, 5)])
def test_every_move_has_a_cell_that_bounds_what_each_outcome_tells(
    teachers: int, classes: int, threshold: int, sigma1: float, sigma2: float
) -> None:
    """Whether the top class loses the vote, gains it or has no part in it: the price alone, which
    is that of the worst cell, would not show that one is missing."""
    event, order = release(teachers, classes, threshold, sigma1, sigma2), 2.0
    cells = release_cells(event, order, label_excess(event.sigma2, order))
    for before in histograms(teachers, classes):
        for after in neighbours(before):
            abstained, answered = moments(before, after, event, order)
            same = np.isclose(cells.abstained, abstained, rtol=1e-9, atol=1e-300)
            assert same.any(), (before, after)
            assert answered <= cells.answered[same].max() * (1 + ROUNDING), (before, after)


@pytest.mark.parametrize("order", [2.0, 8.0])
@pytest.mark.parametrize("teachers", [4, 6, 7])
def test_no_baseline_costs_more_than_the_price_for_the_least_of_them(
    teachers: int, order: float
) -> None:
    """All baselines of whole votes that a student's probabilities can have, and some others."""
    classes = 3
    rng = np.random.default_rng(7)
    uniform = (teachers // classes,) * classes
    baselines = [uniform, (0, 0, teachers), (teachers, 0, 0)]
    baselines += [tuple(map(int, rng.integers(0, teachers + 1, classes))) for _ in range(9)]
    for own, threshold in product(baselines, (0, teachers // 2, teachers)):
        for least in {0, min(own)}:
            priced: Any = {"share": 0.4, "low": -teachers, "baseline": least}
            event = release(teachers, classes, threshold, 1.5, 2.0, **priced)
            price = outcome_costs(event, order)
            if price is None:
                continue
            for before in histograms(teachers, classes):
                for after in neighbours(before):
                    abstained, answered = moments(before, after, event, order, own)
                    paid = abstained * math.exp(-(order - 1) * price.abstention)
                    paid += answered * math.exp(-(order - 1) * price.answer)
                    assert paid <= 1 + ROUNDING * (abstained + answered)


@pytest.mark.parametrize(
    ("teachers", "classes", "threshold", "needed"), [(9, 3, 6, 0.9), (11, 3, 4, 0.97)]
)
def test_a_price_that_is_lower_is_too_low(
    teachers: int, classes: int, threshold: int, needed: float
) -> None:
    """At its worst histogram: the brute force above would notice. Also where a tie is likely."""
    event, order = release(teachers, classes, threshold, 0.6, 3.0), 2.0
    costs = outcome_costs(event, order)
    assert costs is not None
    worst = max(
        math.log(sum(moments(before, after, event, order))) / (order - 1)
        for before in histograms(teachers, classes)
        for after in neighbours(before)
    )
    assert worst > needed * costs.flat


@pytest.mark.parametrize(
    ("sigma", "order"), [(1.2, 2.0), (2.0, 4.0), (3.0, 8.0), (6.0, 3.0), (6.0, 16.0)]
)
@pytest.mark.parametrize(("side", "by"), [("lose", -2), ("gain", 2)])
def test_no_label_that_is_wrong_as_often_tells_more_than_its_row(
    sigma: float, order: float, side: str, by: int
) -> None:
    """Whatever the votes: the label tells the worst two steps in D that are wrong as often.

    The first rows, k = 0 among them, where the other class wins as often as not.
    """
    reach = math.ceil(14 * sigma)
    mass = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    mass /= mass.sum()
    d = np.convolve(mass, mass)
    before, after = (d[2:-2], d[:-4] if by < 0 else d[4:])
    zero = len(before) // 2

    def psi(ratio: np.ndarray) -> np.ndarray:
        return ratio**order - order * ratio + order - 1

    terms = after * psi(before / after)
    tail, after_tail, told = (np.cumsum(x[::-1])[::-1] for x in (before, after, terms))
    table = label_table(sigma, order)
    for row in range(4):
        # A step that is wrong too often, and one that is wrong too rarely, mixed to be right.
        often = np.arange(max(0, zero - math.ceil(8 * sigma)), zero + row + 1)[:, None]
        rarely = np.arange(zero + row + 1, zero + math.ceil(8 * sigma))
        weight = (tail[zero + row] - tail[rarely]) / (tail[often] - tail[rarely])
        wrong, wrong_after, revealed = (
            weight * x[often] + (1 - weight) * x[rarely] for x in (tail, after_tail, told)
        )
        most = (revealed + (1 - wrong_after) * psi((1 - wrong) / (1 - wrong_after))).max()
        assert most <= getattr(table, side)[row] * (1 + ROUNDING)
        # With two classes that are never certain, no votes at all are that bad.
        if row == 0:
            assert label_excess(sigma, order) < getattr(table, side)[row]


@settings(max_examples=50)
@given(
    st.integers(3, 400),
    st.integers(2, 12),
    st.floats(0.3, 1.0),
    st.floats(0.6, 200.0),
    st.floats(0.6, 200.0),
    st.floats(1.05, 40.0),
    st.floats(0.001, 1.0),
)
def test_prices_are_sound_wherever_they_are_given(
    teachers: int,
    classes: int,
    high: float,
    sigma1: float,
    sigma2: float,
    order: float,
    share: float,
) -> None:
    """Whatever the parameters: every cell is paid for, and apart is what both cost at most."""
    event = release(teachers, classes, round(high * teachers), sigma1, sigma2, share=share)
    costs = outcome_costs(event, order)
    separate = [float(rdp(replace(event, answered=a).parts, order)) for a in (False, True)]
    if costs is None:
        assert float(rdp(event, order)) == separate[1]
        assert float(rdp(replace(event, answered=False), order)) == separate[0]
        return
    full = min(counts_excess(sigma2, order), label_excess(sigma2, order))
    cells = release_cells(replace(event, answer_share=1.0), order, full)
    paid = cells.abstained * math.exp(-(order - 1) * costs.abstention)
    paid = paid + cells.answered * math.exp(-(order - 1) * costs.answer)
    assert np.all(paid <= 1 + ROUNDING * (cells.abstained + cells.answered))
    # One price for both is at most what test and maximum cost apart, up to the margins.
    assert costs.flat <= separate[1] * (1 + 1e-6)
    assert costs.answer == share * costs.flat


def test_the_price_depends_on_the_outcome_and_public_parameters_alone() -> None:
    event = release(250, 10, 200, 50.0, 37.5, share=0.5)
    assert event_from_json(event.to_json()) == event
    answered, abstained = event, replace(event, answered=False)
    assert float(rdp(answered, 17.8)) < float(rdp(abstained, 17.8))


@pytest.mark.parametrize("share", [0.001, 0.5, 3.0])
def test_a_test_that_tells_too_much_for_a_number_is_charged_apart(share: float) -> None:
    event = release(40, 10, 24, 0.6, 4.0, share=share)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome_costs(event, 60.0) is None
    assert float(rdp(event, 60.0)) == float(rdp(event.parts, 60.0))


def test_an_order_that_is_too_high_is_charged_apart() -> None:
    event = release(250, 10, 200, 50.0, 2.0, share=0.5)
    order = 1 + 2 * math.sqrt(MAX_EXPONENT)
    assert outcome_costs(event, order) is None
    assert float(rdp(event, order)) == float(rdp(event.parts, order))
    with refuses(ValueError, "sigma", 2):
        label_table(2.0, order)


class Adversary:
    """The best adaptive attack on a budget at one order, by dynamic programming.

    At each step it chooses any histogram and move that the rule admits, having seen all outcomes so
    far. Reached is the largest Σ P^α Q^(1−α) over transcripts; e^((α−1)·budget) is promised.
    """

    def __init__(self, event: ConfidentMax, order: float, answer: float, abstention: float) -> None:
        self.charges = (abstention, answer)
        self.more = order - 1
        pairs = [
            (before, after)
            for before in histograms(event.teachers, event.classes)
            for after in neighbours(before)
        ]
        self.queries = {moments(*pair, event, order) for pair in pairs}

    def reached(self, budget: float, reserve: float) -> float:
        """Admit a query while `reserve` is left; charge what its outcome costs."""

        @cache
        def best(left: float) -> float:
            if left < reserve - 1e-12:
                return 1.0
            abstained, answered = (best(round(left - charge, 9)) for charge in self.charges)
            return max(1.0, *(f * abstained + p * answered for f, p in self.queries))

        return best(budget)


def test_no_adaptive_student_learns_more_than_the_budget() -> None:
    """And rules that are only a little more generous let one do it."""
    event, order = release(12, 2, 9, 2.0, 6.0, share=0.5), 1.5
    costs = outcome_costs(event, order)
    assert costs is not None
    budget = 8.5 * costs.abstention
    promised = math.exp((order - 1) * budget)
    sound = Adversary(event, order, costs.answer, costs.abstention)
    assert 0.8 * promised < sound.reached(budget, reserve=costs.abstention) <= promised

    # Half of every answer is handed back.
    generous = Adversary(event, order, 0.5 * costs.answer, costs.abstention)
    assert generous.reached(budget, reserve=costs.abstention) > promised
    # Both prices are a tenth too low.
    cheap = Adversary(event, order, 0.9 * costs.answer, 0.9 * costs.abstention)
    assert cheap.reached(budget, reserve=0.9 * costs.abstention) > promised
    # A query is admitted while anything is left, not only what its most expensive outcome costs.
    assert sound.reached(budget, reserve=1e-9) > promised
