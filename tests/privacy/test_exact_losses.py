"""No price is below the true loss: every small vote, every neighbour, every set of outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtri

from support.laws import (
    Law,
    allowed_by_gdp,
    events_of,
    gaussian_pmf,
    histograms,
    law,
    neighbours,
    probability,
    renyi,
    tail,
)
from terrine_server.privacy import (
    CostEvent,
    VoteOutcome,
    additive_delta,
    build_mechanism,
    gdp_squared,
    quote,
    rdp,
)
from terrine_server.privacy.events import GaussianThreshold

Spec = Mapping[str, Any]
ORDERS = [1.1, 2.0, 8.0, 64.0]
ROUNDING = 1e-9

SPECS: list[Spec] = [
    {"name": "lnmax", "gamma": 0.7},
    {"name": "gnmax", "sigma": 0.5},
    {"name": "gnmax", "sigma": 2.0},
    {"name": "confident_gnmax", "threshold": 4, "sigma1": 1.5, "sigma2": 1.0},
    {"name": "confident_gnmax", "threshold": 0, "sigma1": 0.5, "sigma2": 3.0},
    {
        "name": "interactive_gnmax",
        "threshold": 2,
        "sigma1": 1.0,
        "sigma2": 1.5,
        "confidence": 0.5,
    },
    {"name": "immutable", "c": 3, "gamma": 0.4},
    {"name": "immutable", "c": 2, "sigma": 2.5},
    {"name": "immutable", "c": 0, "sigma": 2.5},
    {"name": "stable", "sigma": 0.8, "delta_per_query": 0.05},
    {"name": "noisy_votes", "sigma": 2.0},
    {"name": "lnmax", "gamma": 0.1},
    {"name": "gnmax", "sigma": 0.8},
    {"name": "gnmax", "sigma": 3.0},
]
BALLOTS = [(2, 5), (2, 6), (3, 5), (3, 6), (4, 5)]  # classes, teachers
STUDENTS = {2: [0.5, 0.5], 3: [0.1, 0.75, 0.15], 4: [0.25, 0.25, 0.25, 0.25]}


def worst_event(spec: Spec, teachers: int, classes: int) -> CostEvent:
    events = build_mechanism(spec, teachers=teachers, classes=classes).events()
    return events[VoteOutcome.ANSWERED]


def pairs(spec: Spec, teachers: int, classes: int) -> list[tuple[Law, Law]]:
    student = STUDENTS[classes]
    laws = {votes: law(spec, votes, student) for votes in histograms(teachers, classes)}
    return [(laws[votes], laws[other]) for votes in laws for other in neighbours(votes)]


@pytest.mark.parametrize(("classes", "teachers"), BALLOTS)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_no_event_reveals_more_than_its_gaussian_dp_price(
    spec: Spec, classes: int, teachers: int
) -> None:
    event = worst_event(spec, teachers, classes)
    mu, delta = math.sqrt(gdp_squared(event)), additive_delta(event)
    for p, q in pairs(spec, teachers, classes):
        for outcomes in events_of(p, q):
            allowed = allowed_by_gdp(probability(q, outcomes), mu) + delta
            assert probability(p, outcomes) <= allowed * (1 + ROUNDING) + 1e-15


@pytest.mark.parametrize(("classes", "teachers"), BALLOTS)
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec["name"] != "stable"], ids=str)
def test_no_divergence_exceeds_its_renyi_price(spec: Spec, classes: int, teachers: int) -> None:
    price = rdp(worst_event(spec, teachers, classes), ORDERS)
    for p, q in pairs(spec, teachers, classes):
        divergences = np.array([renyi(p, q, order) for order in ORDERS])
        assert np.all(divergences <= price * (1 + ROUNDING) + 1e-12)


@pytest.mark.parametrize(("classes", "teachers"), BALLOTS)
@pytest.mark.parametrize(
    ("spec", "epsilon"), [(SPECS[0], 1.4), (SPECS[6], 2 * 0.4 * 4)], ids=["lnmax", "immutable"]
)
def test_laplace_mechanisms_keep_their_pure_epsilon(
    spec: Spec, epsilon: float, classes: int, teachers: int
) -> None:
    for p, q in pairs(spec, teachers, classes):
        for outcomes in events_of(p, q):
            allowed = math.exp(epsilon) * probability(q, outcomes)
            assert probability(p, outcomes) <= allowed * (1 + ROUNDING) + 1e-15


def test_prices_are_not_idly_large() -> None:
    """The worst case comes close to the price, so a price that is too small would fail here."""
    event = worst_event({"name": "gnmax", "sigma": 2.0}, 6, 2)
    reached = max(
        float(ndtri(p["answered", 0]) - ndtri(q["answered", 0]))
        for p, q in pairs({"name": "gnmax", "sigma": 2.0}, 6, 2)
    )
    assert 0.98 < reached / math.sqrt(gdp_squared(event)) <= 1

    threshold = GaussianThreshold(sigma=1.5, threshold=4, low=0, high=6)
    bits = [tail(gaussian_pmf(1.5), 4 - v) for v in range(7)]
    worst = max(abs(float(ndtri(a) - ndtri(b))) for a, b in pairwise(bits))
    assert worst == pytest.approx(math.sqrt(gdp_squared(threshold)), rel=1e-9)
    exact = max(
        renyi({("y", 0): a, ("n", 0): 1 - a}, {("y", 0): b, ("n", 0): 1 - b}, 8.0)
        for v, a in enumerate(bits)
        for b in bits[max(0, v - 1) : v + 2]
    )
    assert exact == pytest.approx(float(rdp(threshold, 8.0)), rel=1e-9)


def test_neighbours_with_different_winners_are_both_unstable() -> None:
    """The lemma behind the stable mechanism's proof, for every vote of up to 9 teachers."""
    for classes, teachers in [(2, 8), (2, 9), (3, 7), (4, 5)]:
        for votes in histograms(teachers, classes):
            for other in neighbours(votes):
                here, there = _distance(votes), _distance(other)
                assert abs(here - there) <= 1
                if votes.index(max(votes)) != other.index(max(other)):
                    assert here == there == 0


def test_an_unstable_winner_passes_with_at_most_the_charged_delta() -> None:
    for sigma, delta in [(0.8, 0.05), (2.0, 1e-3), (8.0, 1e-10)]:
        spec = {"name": "stable", "sigma": sigma, "delta_per_query": delta}
        passed = law(spec, [125, 125])["answered", 0]
        assert passed <= delta
        terms = quote(build_mechanism(spec, teachers=250, classes=2), 20.0, 0.99)
        assert terms.prices[VoteOutcome.ANSWERED].delta >= delta * 10**18
        assert terms.prices[VoteOutcome.ABSTAINED] == terms.prices[VoteOutcome.ANSWERED]


def test_several_stability_tests_stay_within_epsilon_and_the_sum_of_deltas() -> None:
    """End to end: four queries, stable and unstable mixed, against the filter's guarantee."""
    spec = {"name": "stable", "sigma": 0.9, "delta_per_query": 0.02}
    mechanism = build_mechanism(spec, teachers=9, classes=2)
    event = mechanism.events()[VoteOutcome.ANSWERED]
    left, right = {"stable": (8, 1), "tied": (5, 4)}, {"stable": (7, 2), "tied": (4, 5)}
    epsilon = 2.0
    for plan in [("stable",) * 4, ("tied",) * 4, ("stable", "tied") * 2]:
        for here, there in [(left, right), (right, left)]:
            joint = [(1.0, 1.0)]
            for kind in plan:
                p, q = law(spec, here[kind]), law(spec, there[kind])
                outcomes = set(p) | set(q)
                joint = [(a * p.get(o, 0.0), b * q.get(o, 0.0)) for a, b in joint for o in outcomes]
            loss = sum(max(0.0, a - math.exp(epsilon) * b) for a, b in joint)
            mu = math.sqrt(4 * gdp_squared(event))
            conversion = allowed_delta(epsilon, mu)
            assert loss <= conversion + 4 * additive_delta(event)


def allowed_delta(epsilon: float, mu: float) -> float:
    """δ(ε) of μ-GDP by numeric integration of the Gaussian pair's privacy loss."""
    x = np.linspace(-40, 40, 2_000_001)
    p = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    q = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.trapezoid(np.maximum(0, p - math.exp(epsilon) * q), x))


def _distance(votes: tuple[int, ...]) -> int:
    first, second = sorted(votes, reverse=True)[:2]
    return max(0, math.floor((first - second - 1) / 2))
