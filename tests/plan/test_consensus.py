"""The real mechanisms do what a forecast says."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from support.wording import refuses
from terrine_server.planning.expected import (
    Consensus,
    NoiseModel,
    Votes,
    expected_outcomes,
    gaussian_noise,
    laplace_noise,
    win_probability,
)
from terrine_server.privacy import ParameterError, VoteOutcome, build_mechanism

TEACHERS, CLASSES, DRAWS = 200, 5, 6000

SPECS: dict[str, dict[str, Any]] = {
    "gnmax": {"name": "gnmax", "sigma": 30.0},
    "noisy-votes": {"name": "noisy_votes", "sigma": 30.0},
    "little-noise": {"name": "gnmax", "sigma": 1.0},
    "lnmax": {"name": "lnmax", "gamma": 0.03},
    "confident": {"name": "confident_gnmax", "threshold": 120, "sigma1": 40.0, "sigma2": 25.0},
    "interactive": {
        "name": "interactive_gnmax",
        "threshold": 70,
        "sigma1": 30.0,
        "sigma2": 25.0,
        "confidence": 0.9,
    },
    "stable": {"name": "stable", "sigma": 12.0, "delta_per_query": 1e-4},
    "immutable": {"name": "immutable", "c": 10, "sigma": 40.0},
    "immutable-laplace": {"name": "immutable", "c": 10, "gamma": 0.03},
}

KINDS = np.array(
    [[120, 40, 20, 20, 0], [0, 200, 0, 0, 0], [60, 60, 40, 40, 0], [40, 40, 40, 40, 40]]
)
LABELS = np.array([0, 1, 1, 4])


@pytest.mark.parametrize("name", SPECS)
def test_a_forecast_agrees_with_what_the_mechanism_releases(name: str) -> None:
    mechanism = build_mechanism(SPECS[name], teachers=TEACHERS, classes=CLASSES)
    votes = Votes.observed(KINDS, LABELS, teachers=TEACHERS)
    if mechanism.needs_probabilities:
        votes = votes.with_student(0.7)
    expected, source = expected_outcomes(mechanism, votes), np.random.default_rng(3)
    for row, counts in enumerate(votes.counts):
        many = np.tile(counts, (DRAWS, 1))
        student = None
        if votes.probabilities is not None:
            student = np.tile(votes.probabilities[row], (DRAWS, 1))
        released = mechanism.release(many, student, source.bytes)
        for outcome in (VoteOutcome.ANSWERED, VoteOutcome.REINFORCED, VoteOutcome.ABSTAINED):
            here = released.outcomes == outcome
            predicted = expected.probability.get(outcome, np.zeros(len(votes.counts)))[row]
            assert (
                abs(here.mean() - predicted)
                < 5 * (predicted * (1 - predicted) / DRAWS) ** 0.5 + 1e-3
            )
            if outcome is not VoteOutcome.ABSTAINED:
                right = (here & (released.labels == votes.labels[row])).mean()
                predicted = expected.right.get(outcome, np.zeros(len(votes.counts)))[row]
                assert (
                    abs(right - predicted) < 5 * (predicted * (1 - predicted) / DRAWS) ** 0.5 + 1e-3
                )
    assert sum(expected.shares.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_small_votes_agree_with_exact_enumeration_ties_included(kind: str) -> None:
    noise = gaussian_noise(0.8) if kind == "gaussian" else laplace_noise(1.5)
    reach = np.arange(-noise.reach, noise.reach + 1)
    mass = np.diff(noise.cdf[:-1])
    keep = mass > 1e-9
    counts, chances = np.array([3, 3, 2]), np.zeros(3)
    drawn = list(zip(reach[keep], mass[keep], strict=True))
    for draws in product(drawn, repeat=3):
        winner = np.argmax(counts + np.array([value for value, _ in draws]))
        chances[winner] += np.prod([weight for _, weight in draws])
    votes = Votes.observed(np.tile(counts, (3, 1)), np.arange(3), teachers=8)
    assert win_probability(votes, noise) == pytest.approx(chances, abs=1e-6)


def at_every_vote(noise: NoiseModel) -> NoiseModel:
    """The same noise, integrated over every integer."""
    return replace(
        noise, nodes=np.arange(-noise.reach, noise.reach + 1), node_weights=np.diff(noise.cdf[:-1])
    )


def test_coarse_nodes_lose_nothing_that_a_plan_could_notice() -> None:
    votes = Votes.synthetic([Consensus(c) for c in (0.4, 0.7)], teachers=5000, classes=10)
    for noise, error in ((gaussian_noise(400.0), 1e-9), (laplace_noise(1 / 300), 1e-3)):
        assert len(noise.nodes) < noise.reach
        assert win_probability(votes, noise) == pytest.approx(
            win_probability(votes, at_every_vote(noise)), abs=error
        )


# ------------------------------------------------------------------------- votes, good and bad


@pytest.mark.parametrize("agreement", [0.1, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("runner_up", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("teachers", "classes"), [(1, 10), (2, 10), (250, 10), (251, 150)])
def test_consensus_makes_votes_that_the_teachers_could_have_cast(
    agreement: float, runner_up: float, teachers: int, classes: int
) -> None:
    level = Consensus(agreement, 1.0, runner_up)
    votes = Votes.synthetic([level], teachers=teachers, classes=classes)
    counts = votes.counts[0]
    assert counts.sum() == teachers
    assert counts.min() >= 0
    assert counts.argmax() == 0
    assert counts[0] == max(counts)
    assert counts[1] == max(counts[1:])
    assert counts[0] >= agreement * teachers - 1e-6


@pytest.mark.parametrize(
    ("level", "message"),
    [
        (Consensus(0.05), "10 classes"),
        (Consensus(1.2), "consensus 1.2"),
        (Consensus(float("nan")), "finite"),
        (Consensus(0.9, runner_up=2.0), "runner-up 2"),
        (Consensus(0.9, share=-1.0), "share"),
        (Consensus(0.9, share=0.0), "share 0"),
    ],
)
def test_an_impossible_consensus_is_explained(level: Consensus, message: str) -> None:
    with refuses(ParameterError, *message.split()):
        Votes.synthetic([level], teachers=100, classes=10)


@pytest.mark.parametrize(
    ("counts", "labels", "message"),
    [
        ([[5, 4]], None, "sum 10"),
        ([[10, 0], [11, -1]], None, "negative"),
        ([[10]], None, "m 2"),
        ([[5.0, 5.0]], None, "integers"),
        (np.zeros((0, 2), dtype=np.int64), None, "votes"),
        ([[5, 5]], [0, 1], "1 integers"),
        ([[5, 5]], [2], "0 1"),
        ([[5, 5]], [0.5], "integers"),
    ],
)
def test_votes_that_ten_teachers_did_not_cast_are_refused(
    counts: Any, labels: Any, message: str
) -> None:
    with refuses(ParameterError, *message.split()):
        Votes.observed(np.array(counts), labels, teachers=10)


def test_an_interactive_mechanism_asks_for_its_student() -> None:
    mechanism = build_mechanism(SPECS["interactive"], teachers=TEACHERS, classes=CLASSES)
    with refuses(ParameterError, "accurate"):
        expected_outcomes(mechanism, Votes.observed(KINDS, teachers=TEACHERS))
