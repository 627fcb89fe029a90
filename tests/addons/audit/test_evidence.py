"""What two samples prove: limits are wrong no more often than stated, and imply losses."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from terrine_addons.audit.evidence import Promise, Sample, events, limits


def sample(hits: int, size: int) -> Sample:
    return Sample(Counter({"hit": hits, "miss": size - hits}))


@pytest.mark.parametrize("truth", [0.001, 0.03, 0.5, 0.97])
@pytest.mark.parametrize("level", [0.1, 1e-4])
def test_each_limit_fails_at_most_half_as_often_as_the_level(truth: float, level: float) -> None:
    size = 200
    too_high = too_low = 0.0
    for hits in range(size + 1):
        found = limits(sample(hits, size), sample(hits, size), ("hit",), level)
        chance = float(binom.pmf(hits, size, truth))
        too_high += chance * (found.p > truth)
        too_low += chance * (found.q < truth)
    assert max(too_high, too_low) <= level / 2


def test_the_limits_are_those_of_the_textbook() -> None:
    # Nothing seen in n draws: q = 1 − (level/2)^(1/n). All seen: p = (level/2)^(1/n).
    found = limits(sample(50, 50), sample(0, 50), ("hit",), 0.05)
    assert found.p == pytest.approx(0.025 ** (1 / 50))
    assert found.q == pytest.approx(1 - 0.025 ** (1 / 50))
    found = limits(sample(0, 50), sample(50, 50), ("hit",), 0.05)
    assert (found.p, found.q) == (0.0, 1.0)


def test_a_gaussian_mechanism_on_its_trade_off_curve_loses_exactly_its_price() -> None:
    promise = Promise("μ", 0.8, delta=0.01)
    for q in (0.001, 0.1, 0.3):
        p = float(ndtr(ndtri(q) + 0.8)) + 0.01
        assert promise.loss(p, q) == pytest.approx(0.8)
        epsilon, measured, promised = promise.epsilon_delta(p, q)
        assert epsilon >= 0
        assert measured == pytest.approx(promised)


def test_randomised_response_loses_exactly_its_price() -> None:
    p = math.exp(1.5) / (1 + math.exp(1.5))
    promise = Promise("ε", 1.5)
    assert promise.loss(p, 1 - p) == pytest.approx(1.5)
    assert promise.epsilon_delta(p, 1 - p) == pytest.approx((1.5, 0.0, 0.0))


def test_what_delta_explains_proves_nothing() -> None:
    assert Promise("μ", 1.0, delta=0.1).loss(0.1, 1e-9) == 0
    assert Promise("ε", 1.0, delta=0.1).loss(0.05, 1e-9) == 0
    assert Promise("μ", 1.0).loss(0.3, 1.0) == 0


def test_every_proper_event_is_considered_once() -> None:
    found = [frozenset(event) for event in events(["a", "b", "c", "a"])]
    assert len(found) == len(set(found)) == 2**3 - 2
