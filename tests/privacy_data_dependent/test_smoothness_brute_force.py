"""Every histogram of small ensembles: every sensitivity is large enough and smooth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from reference.costs import data_dependent_rdp
from reference.sensitivity import (
    Charged,
    bit_sensitivity,
    noisy_max_sensitivity,
    secret_spend,
    smooth_sensitivity,
)
from reference.vote_paths import levels_away, levels_towards
from support.laws import VoteGraph, full_walk
from terrine_server.privacy import (
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    StabilityTest,
)
from terrine_server.privacy.published import FLOOR

SIZES = [(1, 2), (2, 3), (5, 3), (9, 2), (12, 2), (12, 3), (12, 4)]
ROUNDING = 1e-9
BETAS = (0.01, 0.1, 0.5)

NOISY_MAXIMA = [
    *(GaussianNoisyMax(s) for s in (0.5, 1.0, 1.7, 3.0)),
    *(LaplaceNoisyMax(g) for g in (0.2, 0.5, 1.0, 3.0)),
]


def check_against_everything(
    graph: VoteGraph, cost: NDArray[np.float64], bounds: NDArray[np.float64]
) -> None:
    """Bounds at every distance cover every change, grow with d and exceed the neighbours'."""
    distances = bounds.shape[1]
    change = graph.within(graph.largest_change(cost), distances)
    assert np.all(change <= bounds * (1 + ROUNDING) + 1e-15)
    assert np.all(np.diff(bounds, axis=1) >= -1e-15)
    for here, there in graph.pairs():
        assert np.all(bounds[here, :-1] <= bounds[there, 1:] * (1 + ROUNDING) + 1e-15)
    for beta in BETAS:
        smooth = (bounds * np.exp(-beta * np.arange(distances))).max(axis=1)
        ratio = smooth[:, None] / np.maximum(smooth[None, :], 1e-300)
        assert np.all(ratio[graph.adjacent] <= math.exp(beta) * (1 + ROUNDING))


@pytest.mark.parametrize("event", NOISY_MAXIMA, ids=str)
@pytest.mark.parametrize("order", [1.5, 2.0, 4.0, 10.0])
def test_noisy_maxima(event: GaussianNoisyMax | LaplaceNoisyMax, order: float) -> None:
    """P18's condition C6 fails in many of these cases and holds in some."""
    for teachers, classes in SIZES:
        graph = VoteGraph(teachers, classes)
        cost = data_dependent_rdp(event, graph.votes, order)[:, 0]
        sensitivity = noisy_max_sensitivity(event, classes, order)
        bounds = full_walk(sensitivity.walk(graph.votes), teachers)
        assert np.all(bounds <= sensitivity.ceiling)
        check_against_everything(graph, cost, bounds)


def test_the_cases_include_plateaus_consensus_and_both_kinds_of_curve() -> None:
    curves = {
        noisy_max_sensitivity(event, 3, order).monotone
        for event, order in itertools.product(NOISY_MAXIMA, (1.5, 2.0, 4.0, 10.0))
    }
    assert curves == {True, False}
    votes = VoteGraph(12, 3).votes
    for event in (GaussianNoisyMax(1.7), LaplaceNoisyMax(1.0)):
        cost = data_dependent_rdp(event, votes, 2.0)[:, 0]
        assert cost.min() < 0.5 * cost.max()


def test_a_larger_ensemble() -> None:
    graph = VoteGraph(40, 3)
    for event, order in ((GaussianNoisyMax(5.0), 4.0), (LaplaceNoisyMax(0.3), 6.0)):
        cost = data_dependent_rdp(event, graph.votes, order)[:, 0]
        sensitivity = noisy_max_sensitivity(event, 3, order)
        bounds = full_walk(sensitivity.walk(graph.votes), 40)
        assert np.sum(cost < cost.max()) > 60
        check_against_everything(graph, cost, bounds)


@pytest.mark.parametrize("teachers", [3, 12, 25])
def test_threshold_bits(teachers: int) -> None:
    values = np.arange(teachers + 1)
    for sigma, threshold, order in itertools.product((1.0, 4.0), (0, teachers // 2), (1.5, 8.0)):
        for event in (
            GaussianThreshold(sigma, threshold, low=0, high=teachers),
            StabilityTest(sigma, threshold + 1, high=teachers, delta=1e-6),
        ):
            votes = np.stack([values, 0 * values], axis=1)
            if isinstance(event, StabilityTest):
                votes[:, 0] = 2 * values + 1  # distance to instability = value
            cost = data_dependent_rdp(event, votes, order)[:, 0]
            bounds = full_walk(bit_sensitivity(event, order).walk(values), teachers + 1)
            near = np.abs(values[:, None] - values[None, :]) <= 1
            change = np.where(near, np.abs(cost[:, None] - cost[None, :]), 0).max(axis=1)
            for d in range(teachers):
                within = np.abs(values[:, None] - values[None, :]) <= d
                largest = np.where(within, change[None, :], 0).max(axis=1)
                np.testing.assert_allclose(bounds[:, d], largest, rtol=1e-12)


@pytest.mark.parametrize(("teachers", "classes"), SIZES)
def test_paths_reach_the_extremes_at_every_distance(teachers: int, classes: int) -> None:
    """Towards a tie and away from it, no votes at distance d have a more extreme q."""
    graph = VoteGraph(teachers, classes)
    distances = np.arange(teachers + 1)
    for event in (GaussianNoisyMax(1.0), GaussianNoisyMax(4.0), LaplaceNoisyMax(0.7)):
        log_tail = noisy_max_sensitivity(event, classes, 2.0).curve.log_tails(teachers)
        level = levels_towards(graph.votes, log_tail, distances[:1])[:, 0]
        away = levels_away(graph.votes, log_tail, distances)
        np.testing.assert_allclose(away, graph.within(level, teachers + 1), rtol=1e-12)
        towards = levels_towards(graph.votes, log_tail, distances)
        least = -graph.within(-level, teachers + 1)
        to_a_tie = (graph.votes[:, 0] - graph.votes[:, 1]) // 2
        consensus = distances[None, :] <= to_a_tie[:, None]
        np.testing.assert_allclose(towards[consensus], least[consensus], rtol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_a_whole_transcript_is_smooth(beta: float) -> None:
    """One teacher moves a vote of every query at once; sums keep both properties."""
    rng = np.random.default_rng(5)
    graph = VoteGraph(8, 3)
    test = GaussianThreshold(2.0, 6, low=0, high=8)
    answer = GaussianNoisyMax(1.5)
    for _ in range(60):
        picks = rng.integers(len(graph.votes), size=6)
        moved = [rng.choice(np.flatnonzero(graph.adjacent[i])) for i in picks]
        spends = []
        for rows in (picks, moved):
            votes = graph.votes[rows]
            transcript = [Charged(test, votes), Charged(answer, votes[:4])]
            spends.append(secret_spend(transcript, teachers=8, order=3.0, beta=beta))
        here, there = spends
        assert abs(here.cost - there.cost) <= here.smooth_sensitivity
        ratio = here.smooth_sensitivity / there.smooth_sensitivity
        assert math.exp(-beta) * (1 - ROUNDING) <= ratio <= math.exp(beta) * (1 + ROUNDING)


def test_stopping_early_finds_the_same_maximum() -> None:
    graph = VoteGraph(40, 3)
    sensitivity = noisy_max_sensitivity(GaussianNoisyMax(5.0), 3, 4.0)
    bounds = full_walk(sensitivity.walk(graph.votes), 40)
    for beta in (0.001, 0.03, 0.5):
        smooth = smooth_sensitivity(sensitivity.walk(graph.votes), sensitivity.ceiling, beta)
        exact = (bounds * np.exp(-beta * np.arange(40))).max(axis=1)
        np.testing.assert_allclose(smooth, exact, rtol=1e-9)
    votes = graph.votes[:50]
    spend = secret_spend([Charged(GaussianNoisyMax(5.0), votes)], teachers=40, order=4.0, beta=0.03)
    total = sum(full_walk(sensitivity.walk(row[None]), 40)[0] for row in votes)
    exact_sum = np.max(total * np.exp(-0.03 * np.arange(40)))
    assert spend.smooth_sensitivity == pytest.approx(exact_sum + FLOOR, rel=1e-9)
