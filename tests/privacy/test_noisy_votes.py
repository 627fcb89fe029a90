"""Noisy votes are the votes with exact noise, and cost what the noisy maximum costs, always."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import chi2

from support.laws import allowed_by_gdp, gaussian_pmf
from support.wording import refuses
from terrine_server.privacy import (
    GDP,
    BoundRelease,
    GaussianNoisyCounts,
    GaussianNoisyMax,
    ParameterError,
    Rule,
    VoteOutcome,
    additive_delta,
    build_mechanism,
    event_from_json,
    gdp_squared,
    price,
    quote,
    rdp,
)
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.published import Meter, gnmax_rdp
from terrine_server.privacy.quoting import check_publishable

CHI_SQUARE = 1e-11
"""Rare cells have a heavier tail than chi-square's: by their exact laws, 4·10⁻¹⁰ for this."""
SIGMAS = [0.5, 0.7, 1.0, 2.0, 3.3, 10.0, 40.0, 1000.0]
BYTES = 32


def noisy_votes(sigma: float, teachers: int = 10, classes: int = 3) -> NoisyVotes:
    made = build_mechanism(
        {"name": "noisy_votes", "sigma": sigma}, teachers=teachers, classes=classes
    )
    assert isinstance(made, NoisyVotes)
    return made


def released(sigma: float, votes: list[int], draws: int) -> NDArray[np.int64]:
    """The counts of many releases, [draws, classes]."""
    mechanism = noisy_votes(sigma, sum(votes), len(votes))
    counts = mechanism.release(np.array([votes] * draws)).counts
    assert counts is not None
    return counts


def fits(seen: NDArray[np.int64], expected: NDArray[np.float64]) -> bool:
    """A chi-square test of how often each cell was seen; rare cells are pooled."""
    mean = expected * seen.sum()
    rare = mean < 20
    pooled = [(seen[rare].sum(), max(20.0, mean[rare].sum()))]
    cells = [*zip(seen[~rare], mean[~rare], strict=True), *pooled]
    statistic = sum((s - m) ** 2 / m for s, m in cells if s > m or m > 20)
    return bool(chi2.sf(statistic, len(cells)) > CHI_SQUARE / 3)  # of three in a test


@pytest.mark.statistical
@pytest.mark.parametrize("sigma", [0.5, 3.0])
@pytest.mark.parametrize("votes", [[5, 4, 1], [0, 0, 10]], ids=str)
def test_each_count_is_its_votes_and_a_discrete_gaussian(sigma: float, votes: list[int]) -> None:
    """A false alarm once in 10⁹ times; half the noise is found, and at σ = 3 a tenth less."""
    pmf = gaussian_pmf(sigma)
    reach = len(pmf) // 2
    noise = released(sigma, votes, 60_000) - votes
    assert np.abs(noise).max() <= reach
    for column in noise.T:
        assert fits(np.bincount(column + reach, minlength=len(pmf)), pmf)


@pytest.mark.statistical
def test_the_noise_of_the_classes_is_independent() -> None:
    """One draw for two classes would be found with certainty; a false alarm is one in 10⁹."""
    pmf = gaussian_pmf(1.0)
    reach, width = len(pmf) // 2, len(pmf)
    noise = released(1.0, [5, 4, 1], 60_000) - [5, 4, 1] + reach
    for one, other in ((0, 1), (0, 2), (1, 2)):
        pairs = np.bincount(noise[:, one] * width + noise[:, other], minlength=width**2)
        assert fits(pairs, np.outer(pmf, pmf).ravel())


def test_the_label_is_the_first_class_with_the_largest_count() -> None:
    votes = np.array([[3, 3, 4], [10, 0, 0], [0, 5, 5]] * 2000)
    result = noisy_votes(2.0).release(votes)
    assert result.counts is not None
    assert result.counts.shape == votes.shape
    assert result.counts.dtype == result.labels.dtype == np.int64
    largest = result.counts.max(axis=1, keepdims=True)
    assert (result.counts == largest).argmax(axis=1).tolist() == result.labels.tolist()
    assert ((result.counts == largest).sum(axis=1) > 1).any(), "there were ties"
    assert set(result.outcomes.tolist()) == {VoteOutcome.ANSWERED}
    assert (result.counts < 0).any()
    assert (result.counts > 10).any(), "counts are not cut off where votes end"


def test_labels_follow_the_law_of_the_noisy_maximum() -> None:
    """The same bits give the same label as gnmax."""
    votes = np.array([[5, 4, 1], [3, 3, 4]] * 500)
    bits = os.urandom(votes.size * BYTES)
    gnmax = build_mechanism({"name": "gnmax", "sigma": 2.0}, teachers=10, classes=3)
    ours = noisy_votes(2.0).release(votes, None, lambda count: bits[:count])
    theirs = gnmax.release(votes, None, lambda count: bits[:count])
    assert ours.labels.tolist() == theirs.labels.tolist()
    assert theirs.counts is None


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_price_is_that_of_the_noisy_maximum_to_the_last_unit(sigma: float) -> None:
    (event,) = noisy_votes(sigma, 250, 10).events().values()
    assert event == GaussianNoisyCounts(sigma)
    for rule in (GDP, Rule("rdp", 1.5), Rule("rdp", 14.0), Rule("rdp", 333.0)):
        for cap_rule in (GDP, Rule("rdp", 8.0)):
            ours = price(event, rule, cap_rule)
            assert ours == price(GaussianNoisyMax(sigma), rule, cap_rule)
            assert ours.cost > 0
    assert additive_delta(event) == 0


def moved(sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact laws of the two counts that one changed vote moves, before and after, as vectors.

    All other counts have the same law before and after, and are independent of these.
    """
    pmf = gaussian_pmf(sigma)
    low, high = np.pad(pmf, (0, 1)), np.pad(pmf, (1, 0))
    return np.outer(low, high).ravel(), np.outer(high, low).ravel()


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 2.0])
def test_the_best_test_of_all_counts_is_within_the_gaussian_dp_price(sigma: float) -> None:
    """Every most powerful test, by Neyman and Pearson, on the whole release."""
    p, q = moved(sigma)
    mu = math.sqrt(gdp_squared(GaussianNoisyCounts(sigma)))
    with np.errstate(divide="ignore", invalid="ignore"):  # where neither has any mass
        order = np.argsort(np.log(q) - np.log(p), kind="stable")
    powers, levels = np.cumsum(p[order]), np.cumsum(q[order])
    for power, level in zip(powers, levels, strict=True):
        assert power <= allowed_by_gdp(min(1.0, level), mu) + 1e-12
    # And the price is not idly large: the likeliest ratio is nearly as telling as it says.
    middle = (levels > 1e-6) & (levels < 1 - 1e-6)
    reached = ndtri(np.minimum(powers[middle], 1 - 1e-16)) - ndtri(levels[middle])
    assert 0.9 < reached.max() / mu <= 1 + 1e-9


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_the_divergence_of_all_counts_is_the_renyi_price(sigma: float) -> None:
    """For noise that is not too little, exactly: there is nothing left to save."""
    p, q = moved(sigma)
    both = (p > 0) & (q > 0)
    for order in (1.5, 2.0, 4.0):
        terms = order * np.log(p[both]) + (1 - order) * np.log(q[both])
        exact = float(np.logaddexp.reduce(terms)) / (order - 1)
        bound = float(rdp(GaussianNoisyCounts(sigma), order))
        assert exact <= bound * (1 + 1e-9)
        if sigma >= 1 and order >= 2:
            assert exact == pytest.approx(bound, rel=1e-3)


# ----------------------------------------------------------------------- what does not hold for it


def test_the_data_dependent_price_of_the_winner_does_not_cover_the_counts() -> None:
    """Where all teachers agree, the winner alone is nearly free, and the counts are not."""
    sigma, order = 10.0, 4.0
    winner = float(gnmax_rdp(np.array([-60.0]), sigma, order)[0, 0])
    counts = float(rdp(GaussianNoisyCounts(sigma), order))
    assert winner < counts / 1000
    meter = Meter(noisy_votes(sigma, 250, 10).events(), teachers=250, classes=10, order=order)
    agreed, doubtful = [250, *[0] * 9], [25] * 10
    places = meter.places(VoteOutcome.ANSWERED, np.array([agreed, doubtful]))
    assert places[0] == places[1], "a tally counts them alike"
    assert meter.worst(VoteOutcome.ANSWERED) == counts


def test_data_dependent_accounting_is_refused_with_a_reason() -> None:
    mechanism = noisy_votes(40.0, 1000, 10)
    with refuses(ParameterError, "gnmax"):
        check_publishable(mechanism)
    release = BoundRelease(14.0, 0.01, 10.0, 5.0)
    with refuses(ParameterError, "noisy_votes"):
        quote(mechanism, 4.0, 1e-5, cap_rule=Rule("rdp", 14.0), publishing=(release, [100]))


def test_its_event_is_not_the_noisy_maximums() -> None:
    event = GaussianNoisyCounts(3.0)
    assert not isinstance(event, GaussianNoisyMax)
    written: Any = json.loads(json.dumps(event.to_json()))
    assert written == {"event": "gaussian_noisy_counts", "sigma": 3.0}
    assert event_from_json(written) == event
    with pytest.raises(ParameterError):
        event_from_json(written | {"shift": 1})


# -------------------------------------------------------------------------------- its specification
