"""The sparse vector: an epoch's price covers all that it reveals, and no epoch outlives a call."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import mpmath
import numpy as np
import pytest
from exact_laws import RequestLaw, histograms, neighbours, request_law
from refusals import holds, refuses
from scipy.stats import chi2

from reference.costs import data_dependent_rdp
from terrine_server.privacy import (
    LaplaceNoisyMax,
    Mechanism,
    ParameterError,
    SparseVectorEpoch,
    VoteOutcome,
    WithinEpoch,
    additive_delta,
    build_mechanism,
    event_from_json,
    gdp_squared,
    rdp,
)
from terrine_server.privacy.mechanisms.base import distance_to_instability
from terrine_server.privacy.mechanisms.stable_svt import log_tail
from terrine_server.privacy.noise import BITS, NoiseTable, discrete_laplace

ORDERS = [1.1, 2.0, 8.0, 64.0]
ROUNDING = 1e-9
Votes = tuple[int, ...]


def spec(epsilon: float, delta: float, most: int) -> dict[str, Any]:
    return {
        "name": "stable_svt",
        "epsilon_per_epoch": epsilon,
        "delta_per_query": delta,
        "answers_per_epoch": most,
    }


def build(epsilon: float, delta: float, most: int, teachers: int, classes: int = 2) -> Mechanism:
    return build_mechanism(spec(epsilon, delta, most), teachers=teachers, classes=classes)


def opening(mechanism: Mechanism) -> SparseVectorEpoch:
    assert isinstance(mechanism.opening, SparseVectorEpoch)
    return mechanism.opening


# ------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("gamma", [0.04, 1 / 3, 1.0, 8.0])
def test_the_tail_of_two_noises_is_their_convolution(gamma: float) -> None:
    with mpmath.workdps(60):
        a = mpmath.exp(-mpmath.mpf(gamma))
        reach = int(200 / gamma) + 60
        mass = [(1 - a) / (1 + a) * a ** abs(k) for k in range(-reach, reach + 1)]
        tails = [mpmath.mpf(0)]
        for p in reversed(mass):
            tails.append(tails[-1] + p)
        tails.reverse()  # Pr[ν ≥ k], k = −K, …, K + 1
        for k in [0, 1, 2, 7, int(25 / gamma)]:
            exact = mpmath.fsum(
                p * tails[min(max(rho + k, -reach) + reach, 2 * reach + 1)]
                for rho, p in zip(range(-reach, reach + 1), mass, strict=True)
            )
            above = log_tail(gamma, k) - float(mpmath.log(exact))
            assert 0 < above < 2e-9


@pytest.mark.parametrize("gamma", [0.05, 1 / 3, 2.0])
def test_the_sampled_tables_have_that_tail(gamma: float) -> None:
    table = discrete_laplace(gamma)
    one = 1 << BITS

    def at_least(k: int) -> int:
        return table.tail(k) if k > 0 else one - table.tail(1 - k)

    for k in [1, 5, int(20 / gamma)]:
        total = sum(
            (at_least(rho) - at_least(rho + 1)) * at_least(rho + k)
            for rho in range(-table.reach, table.reach + 1)
        )
        drawn = float(Fraction(total, one * one))
        assert drawn <= math.exp(log_tail(gamma, k)) <= drawn * (1 + 2e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta", "votes"),
    [(0.5, 1e-10, 150), (1.0, 1e-10, 75), (2.0, 1e-10, 37), (1.0, 1e-6, 46), (30.0, 1e-3, 1)],
)
def test_the_threshold_is_the_least_with_the_promised_tail(
    epsilon: float, delta: float, votes: int
) -> None:
    event = opening(build(epsilon, delta, 10, 1000))
    assert event.threshold == votes
    assert math.exp(log_tail(epsilon / 3, votes + 1)) <= delta
    assert votes == 1 or math.exp(log_tail(epsilon / 3, votes)) > delta


def test_the_extremes_of_the_parameters_have_a_threshold() -> None:
    assert opening(build(0.003, 1e-200, 1, 1_000_000)).threshold > 460_000
    assert opening(build(100.0, 0.999, 1, 3)).threshold == 1


# -------------------------------------------------------------------------------------- price


def test_an_epoch_costs_what_it_says_and_its_queries_nothing() -> None:
    mechanism = build(1.5, 1e-6, 40, 100)
    epoch = opening(mechanism)
    assert epoch.epsilon_threshold + epoch.epsilon_query == pytest.approx(1.5, rel=1e-15)
    pure = LaplaceNoisyMax(0.75)
    assert rdp(epoch, ORDERS) == pytest.approx(rdp(pure, ORDERS), rel=1e-12)
    assert gdp_squared(epoch) == pytest.approx(gdp_squared(pure), rel=1e-12)
    for outcome in (VoteOutcome.ANSWERED, VoteOutcome.ABSTAINED):
        within = mechanism.events()[outcome]
        assert within == WithinEpoch()
        assert gdp_squared(within) == additive_delta(within) == 0
        assert rdp(within, ORDERS).tolist() == [0.0] * 4
    assert set(mechanism.events()) == {VoteOutcome.ANSWERED, VoteOutcome.ABSTAINED}


@pytest.mark.parametrize(("delta", "most"), [(1e-10, 1000), (0.1, 3), (1e-7, 7), (1e-12, 999_999)])
def test_delta_is_reserved_for_every_answer_of_an_epoch(delta: float, most: int) -> None:
    reserved = Fraction(additive_delta(opening(build(20.0, delta, most, 1000))))
    exact = Fraction(delta) * most
    assert exact <= reserved <= exact * (1 + Fraction(2) ** -52)


def test_events_survive_a_round_trip_through_json() -> None:
    for event in (opening(build(1.5, 1e-6, 40, 100)), WithinEpoch()):
        assert event_from_json(event.to_json()) == event
    assert WithinEpoch().to_json() == {"event": "within_epoch"}
    assert opening(build(1.5, 1e-6, 40, 100)).to_json()["event"] == "sparse_vector_epoch"


def test_votes_do_not_make_an_epoch_cheaper() -> None:
    votes = np.array([(100, 0), (50, 50)])
    for event in (opening(build(1.5, 1e-6, 40, 100)), WithinEpoch()):
        assert data_dependent_rdp(event, votes, ORDERS) == pytest.approx(
            np.tile(rdp(event, ORDERS), (2, 1)), rel=1e-9
        )


# --------------------------------------------------------------- no loss exceeds the price


def test_the_distance_is_the_one_of_the_proof() -> None:
    for classes, teachers in [(2, 9), (3, 7), (4, 5)]:
        for votes in histograms(teachers, classes):
            first, second = sorted(votes, reverse=True)[:2]
            expected = max(0, math.floor((first - second - 1) / 2))
            assert distance_to_instability(np.array([votes])).tolist() == [expected]


def split(one: Votes, other: Votes) -> bool:
    """Whether the winners differ."""
    return one.index(max(one)) != other.index(max(other))


def epochs(transcript: tuple[tuple[int, str, int], ...]) -> int:
    return 1 + transcript[-1][0]


CASES = [
    # ε, δ per query, answers per epoch, classes, teachers, queries
    (1.5, 0.15, 3, 2, 9, 3),
    (4.0, 0.03, 2, 2, 8, 3),
    (3.0, 0.05, 9, 2, 7, 4),
    (5.0, 0.02, 2, 3, 5, 2),
]


@pytest.mark.parametrize(("epsilon", "delta", "most", "classes", "teachers", "length"), CASES)
def test_no_request_reveals_more_than_its_epochs_are_charged(
    epsilon: float, delta: float, most: int, classes: int, teachers: int, length: int
) -> None:
    """Every request on every small vote, against every neighbour.

    Every transcript that answers no split query is within e^ε per epoch that it opened. The
    transcripts that answer one have a total probability of at most the reserved δ.
    """
    reserved = additive_delta(opening(build(epsilon, delta, most, teachers, classes)))
    kinds = [
        (votes, other)
        for votes in histograms(teachers, classes)
        for other in neighbours(votes)
        if classes == 2 or votes == tuple(sorted(votes, reverse=True))
    ]
    laws: dict[tuple[Votes, ...], RequestLaw] = {}

    def law_of(rows: tuple[Votes, ...]) -> RequestLaw:
        if rows not in laws:
            laws[rows] = request_law(spec(epsilon, delta, most), rows)
        return laws[rows]

    # Only the two distances of a pair and whether it is split matter: try each kind once.
    distinct = {(_distance(a), _distance(b), split(a, b)): (a, b) for a, b in kinds}
    for pairs in product(distinct.values(), repeat=length):
        p = law_of(tuple(one for one, _ in pairs))
        q = law_of(tuple(other for _, other in pairs))
        bad = 0.0
        for seen, chance in p.items():
            answered_split = any(
                outcome == "answered" and split(*pair)
                for (_, outcome, _), pair in zip(seen, pairs, strict=True)
            )
            if answered_split:
                bad += chance
            else:
                allowed = math.exp(epsilon * epochs(seen)) * q.get(seen, 0.0)
                assert chance <= allowed * (1 + ROUNDING) + 1e-18
        assert bad <= length * reserved  # at most one epoch per query
        first = sum(
            chance
            for seen, chance in p.items()
            if any(
                epoch == 0 and outcome == "answered" and split(*pair)
                for (epoch, outcome, _), pair in zip(seen, pairs, strict=True)
            )
        )
        assert first <= reserved


def test_the_price_of_an_epoch_is_not_idly_large() -> None:
    """Several answers with less agreement, then a query with more, use nearly all of ε."""
    epsilon = 3.0
    given = spec(epsilon, 0.002, 20)
    p = request_law(given, [(18, 1)] * 6 + [(17, 2)])
    q = request_law(given, [(17, 2)] * 6 + [(18, 1)])
    seen = (*((0, "answered", 0),) * 6, (0, "abstained", -1))
    assert 0.99 * epsilon < math.log(p[seen] / q[seen]) <= epsilon


# ---------------------------------------------------------------------------------- releases


def noise_of(table: NoiseTable, values: Sequence[int]) -> Any:
    """A source of randomness from which the table draws these values."""
    data = b"".join(table.boundary(k + table.reach - 1).to_bytes(BITS // 8) for k in values)

    def entropy(count: int) -> bytes:
        assert count == len(data)
        return data

    return entropy


def released(
    mechanism: Mechanism, rows: Sequence[Votes], nu: Sequence[int], rho: Sequence[int]
) -> list[tuple[int, str, int]]:
    gamma = opening(mechanism).epsilon_threshold
    found = mechanism.release(
        np.array(rows), entropy=noise_of(discrete_laplace(gamma), [*nu, *rho])
    )
    assert found.epochs is not None
    return list(
        zip(found.epochs.tolist(), map(str, found.outcomes), found.labels.tolist(), strict=True)
    )


def test_an_abstention_ends_an_epoch_and_the_next_query_opens_one_with_fresh_noise() -> None:
    mechanism = build(3.0, 0.002, 9, 100)  # w = 7
    assert opening(mechanism).threshold == 7
    sure, close = (0, 100), (58, 42)  # d = 49 and 7
    rows = [close, sure, close, sure]
    assert released(mechanism, rows, [0] * 4, [0, -1, 9, 9]) == [
        (0, "abstained", -1),  # 7 is not above 7
        (1, "answered", 1),
        (1, "answered", 0),  # 7 is above 7 − 1
        (1, "answered", 1),
    ]
    assert released(mechanism, rows, [1, -43, 0, 0], [0, 60, -60, 9]) == [
        (0, "answered", 0),
        (0, "abstained", -1),  # 49 − 43 is not above 7
        (1, "abstained", -1),  # 7 is not above 7 + 60
        (2, "answered", 1),
    ]


def test_an_epoch_ends_after_its_answers() -> None:
    mechanism = build(3.0, 0.002, 2, 100)
    rows = [(100, 0)] * 5
    found = released(mechanism, rows, [0] * 5, [0, 0, 80, 0, 0])
    assert [epoch for epoch, _, _ in found] == [0, 0, 1, 1, 2]
    assert [outcome for _, outcome, _ in found] == ["answered"] * 4 + ["abstained"]


def test_an_epoch_never_outlives_a_call() -> None:
    mechanism = build(3.0, 0.002, 100, 100)
    for rho, outcome in [(0, "answered"), (80, "abstained")]:
        assert released(mechanism, [(100, 0)], [0], [rho]) == [(0, outcome, 0 - (rho > 0))]


@pytest.mark.statistical
@pytest.mark.parametrize("most", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_releases_follow_the_exact_law(most: int) -> None:
    """A false alarm less than once in 10⁹ times, also by the exact law of rare cells, whose tail is
    heavier than chi-square's; half the noise is found."""
    given, draws = spec(3.0, 0.02, most), 12_000
    mechanism = build_mechanism(given, teachers=19, classes=2)
    rows = [(16, 3), (4, 15), (15, 4)]
    votes = np.array(rows)
    observed: Counter[Any] = Counter()
    for _ in range(draws):
        found = mechanism.release(votes)
        assert found.epochs is not None
        observed[
            tuple(
                zip(
                    found.epochs.tolist(),
                    map(str, found.outcomes),
                    found.labels.tolist(),
                    strict=True,
                )
            )
        ] += 1
    expected = request_law(given, rows)
    assert set(observed) <= set(expected)
    assert min(expected.values()) * draws > 20
    statistic = sum((observed[o] - draws * p) ** 2 / (draws * p) for o, p in expected.items())
    assert chi2.sf(statistic, len(expected)) > 1e-11


def test_a_request_takes_as_long_whatever_its_outcomes() -> None:
    """Every query draws both noises, so the amount of randomness hides the number of epochs."""

    def drawn(votes: Votes) -> list[int]:
        sizes = []

        def counting(count: int) -> bytes:
            sizes.append(count)
            return os.urandom(count)

        build(3.0, 0.002, 4, 100).release(np.array([votes] * 50), entropy=counting)
        return sizes

    assert drawn((100, 0)) == drawn((50, 50)) == drawn((0, 0)) == [2 * 50 * BITS // 8]


@pytest.mark.statistical
@pytest.mark.parametrize("votes", [(50, 50, 0), (0, 0, 0), (34, 33, 33), (51, 49, 0)])
def test_a_winner_that_one_vote_decides_is_never_released_but_for_delta(votes: Votes) -> None:
    # δ of 1e-14 in each of 2,000 queries: once in 5·10¹⁰ times one is released. A test of the
    # votes without their distance to a change would release all of (51, 49, 0).
    found = build(3.0, 1e-14, 4, 100, classes=3).release(np.array([votes] * 2000))
    assert (found.labels == -1).all()
    assert found.epochs is not None
    assert found.epochs.tolist() == list(range(2000))


@pytest.mark.statistical
def test_unanimous_teachers_are_answered() -> None:
    """By the exact law one of 2,000 is not answered once in 10¹⁹ times."""
    found = build(3.0, 1e-9, 500, 200, classes=3).release(np.array([(0, 0, 200)] * 2000))
    assert (found.labels == 2).all()
    assert found.epochs is not None
    assert found.epochs.tolist() == [row // 500 for row in range(2000)]


@pytest.mark.parametrize("teachers", [1, 2, 3, 10])
def test_too_few_teachers_get_a_clear_error(teachers: int) -> None:
    with refuses(ParameterError, "answered") as refusal:
        build(1.0, 1e-6, 10, teachers)
    holds(str(refusal.value), teachers, "unanimous")
    with refuses(ParameterError, "answered"):
        build(100.0, 0.9, 10, 1)


def test_no_other_mechanism_has_epochs() -> None:
    mechanism = build_mechanism({"name": "gnmax", "sigma": 2.0}, teachers=10, classes=2)
    assert mechanism.opening is None
    assert mechanism.release(np.array([(6, 4)])).epochs is None


def _distance(votes: Votes) -> int:
    first, second = sorted(votes, reverse=True)[:2]
    return max(0, math.floor((first - second - 1) / 2))
