"""The answer of the Gaussian noisy maximum costs no less than it reveals, and hardly more."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from support.laws import Floats, divergences, gaussian_pmf, largest_divergences, noisy_max_law
from terrine_server.privacy import (
    GaussianArgmax,
    GaussianNoisyMax,
    build_mechanism,
    event_from_json,
    gaussian,
    gdp_squared,
    rdp,
)

ORDERS = np.array([1.1, 2.0, 4.0, 8.0, 15.0, 40.0])
ROUNDING = 1e-9

sigmas = st.floats(math.log(0.5), math.log(2000)).map(math.exp)
orders = st.floats(math.log(0.01), math.log(1e6)).map(lambda x: 1 + math.exp(x))


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("sigma", [0.8, 2.0, 5.0])
def test_no_vote_of_up_to_nine_teachers_reveals_more_than_its_price(
    sigma: float, classes: int
) -> None:
    """Every histogram, every move and every vote that is missing, with every order of ties."""
    revealed = largest_divergences(gaussian_pmf(sigma), classes, range(1, 10), ORDERS)
    assert np.all(revealed <= rdp(GaussianArgmax(sigma), ORDERS) * (1 + ROUNDING))


def lattice(sigma: float, reach: int) -> tuple[Floats, Floats]:
    """All pairs of the proof, float[U, V, 3]: a or b wins at the shifts u and v, or neither does.

    a must reach 0 and not be below b, b must reach 0 and be above a. A vote moves from a to b.
    """
    middle = 2 * reach + math.ceil(10 * sigma) + 4
    pmf = np.exp(-(np.arange(-middle, middle + 1.0) ** 2) / (2 * sigma**2))
    pmf /= pmf.sum()
    at_most = np.cumsum(pmf)
    shifts, x = np.arange(-reach - 1, reach + 2), np.arange(middle - reach - 1)
    mass = pmf[middle + x - shifts[:, None]]
    below = at_most[middle + x - 1 - shifts[:, None]]
    lost = at_most[middle - 1 - shifts]
    law = np.stack([mass @ (below + mass).T, below @ mass.T, np.outer(lost, lost)], axis=-1)
    assert np.abs(law.sum(axis=-1) - 1).max() < 1e-12
    return law[1:, :-1], law[:-1, 1:]


def supremum(sigma: float, reach: int, alpha: Floats) -> Floats:
    p, q = lattice(sigma, reach)
    both = np.maximum(divergences(p, q, alpha), divergences(q, p, alpha))
    return np.asarray(both.max(axis=(0, 1)))


@pytest.mark.parametrize(
    ("sigma", "alpha", "excess"),
    [
        (0.8, [1.1, 2.0], 1e-3),
        (3.0, [1.5, 4.0, 10.0], 1e-3),
        (12.0, [1.1, 8.0, 20.0], 1e-3),
        (45.0, [2.0, 18.0, 40.0], 3e-3),
    ],
)
def test_the_price_is_the_supremum_over_all_shifts(
    sigma: float, alpha: list[float], excess: float
) -> None:
    """By every pair of shifts up to 9 sigma. Up to sigma = 30 or so all of them are priced."""
    largest = supremum(sigma, math.ceil(9 * sigma), np.array(alpha))
    price = rdp(GaussianArgmax(sigma), alpha)
    assert np.all(largest <= price * (1 + ROUNDING))
    assert np.all(price <= largest * (1 + excess))


@pytest.mark.parametrize("sigma", [0.8, 3.0, 20.0])
def test_what_the_bound_in_a_cell_rests_on(sigma: float) -> None:
    """Ratios are monotone in both shifts, and laws bend no more than is said."""
    laws = gaussian._laws(sigma, 12)
    assert laws.step == 1
    assert np.all(np.diff(laws.ratio, axis=1) <= 1e-12)
    assert np.all(np.diff(laws.ratio, axis=2) >= -1e-12)
    q = laws.p * np.exp(-laws.ratio)
    for table, bounds in (
        (laws.p, laws.curved[0]),
        (q, laws.curved[0]),
        (laws.p - q, laws.curved[1]),
    ):
        bends = sum(np.abs(np.diff(table, 2, axis=axis)).max(axis=(1, 2)) for axis in (1, 2))
        assert np.all(bends <= bounds)
        assert np.all(bends > bounds / 5)


def crowd(sigma: float, classes: int, a: int, b: int) -> Floats:
    """The law of a, b and all others together, of which none has a vote."""
    pmf = gaussian_pmf(sigma)
    rows = np.zeros((3, max(a, b) + len(pmf)))
    for row, count in zip(rows, (a, b, 0), strict=True):
        row[count : count + len(pmf)] = pmf
    at_most = np.cumsum(rows, axis=1)
    others = at_most[2] ** (classes - 2)
    wins = np.sum(rows[0] * at_most[1] * others)
    loses = np.sum(rows[1, 1:] * at_most[0, :-1] * others[1:])
    return np.array([wins, loses, 1 - wins - loses])


def test_the_price_of_two_classes_would_be_too_low() -> None:
    """Controls: a tie of two classes is not the worst vote, nor is any vote of two classes."""
    sigma, alpha = 5.0, np.array([1.5, 4.0])
    price = rdp(GaussianArgmax(sigma), alpha)
    pmf = gaussian_pmf(sigma)
    tie = np.maximum.reduce(
        [
            divergences(np.array(noisy_max_law(p, pmf)), np.array(noisy_max_law(q, pmf)), alpha)
            for p, q in (((20, 20), (19, 21)), ((19, 21), (20, 20)), ((21, 20), (20, 21)))
        ]
    )
    two = largest_divergences(gaussian_pmf(sigma), 2, [40, 41], alpha)
    pairs = [
        (crowd(sigma, 1000, a, b), crowd(sigma, 1000, a - 1, b + 1))
        for a, b in ((22, 20), (24, 19))
    ]
    many = np.max(
        [divergences(*each, alpha) for p, q in pairs for each in ((p, q), (q, p))], axis=0
    )
    assert np.all(tie < two)
    assert np.all(two < many)
    assert np.all(many <= price)
    assert np.all(price < many * 1.005)


def exact_lattice(sigma: float, u: int, v: int) -> list[mpmath.mpf]:
    """P(a), P(b) and P(neither) by 50-digit sums over all values of both noises."""
    top = math.ceil(18 * sigma)
    mass = {
        k: mpmath.exp(-mpmath.mpf(k * k) / (2 * mpmath.mpf(sigma) ** 2))
        for k in range(-top, top + 1)
    }
    total = mpmath.fsum(mass.values())
    at_most, running = {}, mpmath.mpf(0)
    for k in range(-top, top + 1):
        running += mass[k] / total
        at_most[k] = running

    def below(k: int) -> mpmath.mpf:
        return at_most[min(k, top)] if k >= -top else mpmath.mpf(0)

    a = mpmath.fsum(mass[k] / total * below(k + u - v) for k in range(max(-u, -top), top + 1))
    b = mpmath.fsum(mass[k] / total * below(k + v - u - 1) for k in range(max(-v, -top), top + 1))
    return [a, b, below(-u - 1) * below(-v - 1)]


def test_the_laws_to_fifty_digits() -> None:
    """Golden values; the laws that prices are computed from agree with them."""
    with mpmath.workdps(50):
        p, q = exact_lattice(5.0, 4, 3), exact_lattice(5.0, 3, 4)
        assert mpmath.fsum(p) == pytest.approx(1, rel=1e-30)
        tie, two = exact_lattice(40.0, 700, 700), exact_lattice(40.0, 700, 702)
    assert list(map(float, p)) == pytest.approx(
        [0.557200001928, 0.398428063424, 0.044371934648], rel=1e-9
    )
    assert list(map(float, q)) == pytest.approx(
        [0.447127327023, 0.508500738329, 0.044371934648], rel=1e-9
    )
    assert float(tie[0]) == pytest.approx(0.503526184897, rel=1e-9)
    assert float(two[0]) == pytest.approx(0.489422547155, rel=1e-9)

    laws = gaussian._laws(5.0, 16)
    i, j = laws.reach + 4, laws.reach + 3
    assert laws.step == 1
    np.testing.assert_allclose(laws.p[:, i, j], [float(x) for x in p], rtol=1e-12)
    ratios = [float(mpmath.log(x / y)) for x, y in zip(p, q, strict=True)]
    np.testing.assert_allclose(laws.ratio[:, i, j], ratios, rtol=1e-11, atol=1e-15)


def test_the_least_that_the_answer_costs_is_not_that_of_a_tie() -> None:
    """For small α/sigma it follows from the Fisher information, whose maximum is off the tie."""

    def fisher(x: float) -> float:
        """That of the three outcomes along (−1, 1) at u = v = x·sigma, times sigma²."""
        density, below = math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi), float(ndtr(-x))
        either = (1 - below**2) / 2
        slope = density * below + float(ndtr(math.sqrt(2) * x)) / math.sqrt(math.pi)
        return 2 * slope**2 / either

    found = minimize_scalar(lambda x: -fisher(x), bounds=(0.1, 3), options={"xatol": 1e-10})
    assert found.x == pytest.approx(0.739407872777, abs=1e-7)
    assert -found.fun == pytest.approx(1.27994256935, rel=1e-9)
    assert fisher(9.0) == pytest.approx(4 / math.pi, rel=1e-9)
    assert fisher(found.x) / fisher(9.0) == pytest.approx(1.00526454322, rel=1e-9)
    share = float(rdp(GaussianArgmax(300.0), 1.5)) / (1.5 / 300**2)
    assert -found.fun / 2 < share < -found.fun / 2 * 1.002


@given(sigma=sigmas, order=orders)
@settings(max_examples=20, deadline=None)
def test_the_answer_costs_less_than_the_counts_and_no_less_than_one_of_them(
    sigma: float, order: float
) -> None:
    price = float(rdp(GaussianArgmax(sigma), order))
    assert price <= float(rdp(GaussianNoisyMax(sigma), order))
    # A third class can make the answer tell whether one noisy count is at least 0.
    assert price >= order / (2 * sigma**2) * (1 - ROUNDING)
    assert gdp_squared(GaussianArgmax(sigma)) == gdp_squared(GaussianNoisyMax(sigma))


def test_beyond_the_orders_that_are_searched_all_counts_are_paid() -> None:
    for sigma, order in ((0.5, 5.0), (5.0, 30.0), (40.0, 1000.0), (300.0, 1e9)):
        assert rdp(GaussianArgmax(sigma), order) == rdp(GaussianNoisyMax(sigma), order)


def test_the_mechanism_charges_this_event() -> None:
    built = build_mechanism({"name": "gnmax", "sigma": 4.0}, teachers=10, classes=3)
    (event,) = built.events().values()
    assert event == GaussianArgmax(4.0) == event_from_json(event.to_json())
    assert event.to_json() == {"event": "gaussian_argmax", "sigma": 4.0}
