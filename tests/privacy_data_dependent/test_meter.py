"""A tally of small integers holds the secret spend; no cost and no sensitivity is too small."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from support.laws import VoteGraph
from support.reference.costs import data_dependent_rdp
from support.reference.sensitivity import Charged, secret_spend
from support.wording import refuses
from terrine_server.privacy import GaussianNoisyMax, ParameterError, VoteOutcome, build_mechanism
from terrine_server.privacy.published import FLOOR, Meter

Spec = dict[str, Any]
SPECS: list[Spec] = [
    {"name": "gnmax", "sigma": 1.0},
    {"name": "gnmax", "sigma": 3.0},
    {"name": "lnmax", "gamma": 0.3},
    {"name": "lnmax", "gamma": 1.5},
    {"name": "confident_gnmax", "threshold": 6, "sigma1": 2.0, "sigma2": 1.5},
    {"name": "stable", "sigma": 0.5, "delta_per_query": 0.2},
    {"name": "immutable", "c": 1, "gamma": 0.5},
]
SIZES = [(5, 3), (9, 2), (12, 3), (12, 4)]
BETAS = (0.01, 0.1, 0.5)


def meter(spec: Spec, teachers: int, classes: int, order: float = 4.0) -> Meter:
    events = build_mechanism(spec, teachers=teachers, classes=classes).events()
    return Meter(events, teachers=teachers, classes=classes, order=order)


def tally_of(reader: Meter, outcome: VoteOutcome, votes: np.ndarray) -> np.ndarray:
    tally = np.zeros(reader.size, dtype=np.int64)
    np.add.at(tally, np.array(reader.places(outcome, votes)), 1)
    return tally


@pytest.mark.parametrize("order", [1.5, 4.0, 12.0])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_vote_is_counted_at_no_less_than_it_costs(spec: Spec, order: float) -> None:
    for teachers, classes in SIZES:
        if spec["name"] == "confident_gnmax" and spec["threshold"] > teachers:
            continue
        mechanism = build_mechanism(spec, teachers=teachers, classes=classes)
        reader = meter(spec, teachers, classes, order)
        graph = VoteGraph(teachers, classes)
        for outcome, event in mechanism.events().items():
            exact = data_dependent_rdp(event, graph.votes, order)[:, 0]
            for row, cost in zip(graph.votes, exact, strict=True):
                counted = reader.spend(tally_of(reader, outcome, row[None]), 0.1).cost
                assert cost <= counted <= reader.worst(outcome) * (1 + 1e-8)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_one_teacher_moves_a_spend_by_no_more_than_its_smooth_sensitivity(spec: Spec) -> None:
    """Nor the sensitivity by a factor above e^β. One vote of every query moves at once."""
    rng = np.random.default_rng(3)
    for (teachers, classes), beta in itertools.product(SIZES, BETAS):
        if spec["name"] == "confident_gnmax" and spec["threshold"] > teachers:
            continue
        reader, graph = meter(spec, teachers, classes), VoteGraph(teachers, classes)
        outcomes = list(build_mechanism(spec, teachers=teachers, classes=classes).events())
        one_query = [np.array([i]) for i in range(len(graph.votes))]
        transcripts = [rng.integers(len(graph.votes), size=5) for _ in range(20)]
        for outcome, picks in itertools.product(outcomes, one_query + transcripts):
            moved = [rng.choice(np.flatnonzero(graph.adjacent[i])) for i in picks]
            here, there = (
                reader.spend(tally_of(reader, outcome, graph.votes[rows]), beta)
                for rows in (picks, moved)
            )
            assert abs(here.cost - there.cost) <= here.smooth_sensitivity
            ratio = here.smooth_sensitivity / there.smooth_sensitivity
            assert math.exp(-beta) * (1 - 1e-9) <= ratio <= math.exp(beta) * (1 + 1e-9)


def test_a_tally_is_close_to_the_analysis_query_by_query() -> None:
    rng = np.random.default_rng(1)
    shares = rng.dirichlet([30, 2, 1, 1], size=200)
    votes = np.array([rng.multinomial(300, p) for p in shares])
    event = GaussianNoisyMax(15.0)
    reader = Meter({VoteOutcome.ANSWERED: event}, teachers=300, classes=4, order=6.0)
    exact = secret_spend([Charged(event, votes)], teachers=300, order=6.0, beta=0.025)
    counted = reader.spend(tally_of(reader, VoteOutcome.ANSWERED, votes), 0.025)
    assert exact.cost <= counted.cost <= 1.01 * exact.cost
    assert counted.smooth_sensitivity <= 2 * exact.smooth_sensitivity


def test_a_tally_says_how_many_queries_it_counts_and_nothing_is_counted_twice() -> None:
    spec = SPECS[4]
    reader = meter(spec, 12, 3)
    votes = VoteGraph(12, 3).votes
    tally = tally_of(reader, VoteOutcome.ANSWERED, votes[:4]) + tally_of(
        reader, VoteOutcome.ABSTAINED, votes[4:9]
    )
    outcomes = {VoteOutcome.ANSWERED: 4, VoteOutcome.ABSTAINED: 5}
    assert reader.queries(tally) == reader.expected_queries(outcomes)
    assert sorted(reader.queries(tally)) == [4, 9]


def test_an_empty_tally_costs_nothing_and_has_no_sensitivity() -> None:
    for spec in SPECS:
        reader = meter(spec, 12, 3)
        spend = reader.spend(np.zeros(reader.size, dtype=np.int64), 0.1)
        assert (spend.cost, spend.smooth_sensitivity) == (0.0, FLOOR)


def test_no_value_of_votes_is_an_error_and_each_is_counted_within_the_tally() -> None:
    """It is asked between the votes and their charge, where an error would tell of them."""
    for spec in SPECS:
        reader = meter(spec, 12, 3)
        anything = np.array([[5, 5, 5], [-1, 0, 99], [0, 0, 0], [2**62, 2**62, 2**62], [4, 4, 4]])
        baselines = np.full(anything.shape, 4) if spec["name"] == "interactive_gnmax" else None
        for outcome in build_mechanism(spec, teachers=12, classes=3).events():
            places = reader.places(outcome, anything, baselines)
            assert {len(each) for each in places} == {len(places[0])}
            assert all(0 <= place < reader.size for each in places for place in each)


def test_bad_orders_and_rates_are_refused() -> None:
    with refuses(ParameterError, 1):
        meter(SPECS[0], 12, 3, 1.0)
    with refuses(ParameterError, "beta"):
        meter(SPECS[0], 12, 3).spend(np.zeros(12 * 16 + 1), 0.0)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec["name"]))
def test_a_tally_of_public_votes_is_metered_in_less_time_and_alike(spec: dict[str, Any]) -> None:
    reader = meter(spec, 60, 3)
    tally = np.zeros(reader.size)
    tally[np.random.default_rng(2).integers(0, reader.size, 3)] = 1.5
    betas = [0.05, 0.2, 2.0]
    alike = zip(reader.spends(tally, betas), reader.spends(tally, betas, known=True), strict=True)
    for found, quick in alike:
        assert quick.cost == found.cost
        assert quick.smooth_sensitivity == pytest.approx(found.smooth_sensitivity, rel=1e-12)


def test_distances_that_are_not_followed_change_nothing_that_matters() -> None:
    """Far away, the largest change of all stands in: smooth, and below every other term."""
    reader = meter({"name": "gnmax", "sigma": 60.0}, 3000, 4, order=8.0)
    votes = np.array([[2000, 600, 300, 100], [1600, 1300, 60, 40], [3000, 0, 0, 0]])
    tally = tally_of(reader, VoteOutcome.ANSWERED, votes)
    distances = np.arange(3000)
    for beta in (0.02, 0.1, 1.0):
        every = reader.local_sensitivities(tally, 3000) * np.exp(-beta * distances)
        found = reader.spend(tally, beta).smooth_sensitivity
        assert found == pytest.approx(every.max(), rel=1e-9, abs=2 * FLOOR)
        assert found >= every.max()
