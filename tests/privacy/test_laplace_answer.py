"""The answer of the Laplace noisy maximum costs no less than it reveals, and hardly more."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from support.laws import (
    Floats,
    divergences,
    laplace_pmf,
    largest_divergences,
)
from terrine_server.privacy import (
    LaplaceArgmax,
    LaplaceNoisyMax,
    build_mechanism,
    event_from_json,
    gdp_squared,
    rdp,
)

ORDERS = np.array([1.1, 2.0, 5.0, 8.0, 20.0, 64.0, 200.0])
ROUNDING = 1e-9

gammas = st.floats(math.log(0.001), math.log(50)).map(math.exp)
orders = st.floats(math.log(0.01), math.log(1e9)).map(lambda x: 1 + math.exp(x))


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("gamma", [0.05, 0.25, 0.7, 1.5])
def test_no_vote_of_up_to_nine_teachers_reveals_more_than_its_price(
    gamma: float, classes: int
) -> None:
    """Every histogram, every move and every vote that is missing, with every order of ties."""
    revealed = largest_divergences(laplace_pmf(gamma), classes, range(1, 10), ORDERS)
    assert np.all(revealed <= rdp(LaplaceArgmax(gamma), ORDERS) * (1 + ROUNDING))


@pytest.mark.parametrize("gamma", [0.02, 0.25, 0.7])
def test_a_tie_of_two_classes_reveals_as_much_as_is_charged(gamma: float) -> None:
    """Exactly as much, at orders of up to 1/gamma: there no smaller price would do."""
    alpha = np.array([1.1, 1.4, 4.0, 18.0])
    alpha = alpha[alpha * gamma < 1.1]
    revealed = largest_divergences(laplace_pmf(gamma), 2, [20, 21], alpha)
    np.testing.assert_allclose(rdp(LaplaceArgmax(gamma), alpha), revealed, rtol=1e-8)


def lattice(gamma: float, reach: int) -> tuple[Floats, Floats]:
    """All pairs of the proof, float[U, V, 3]: a or b wins at the shifts u and v, or a third does.

    The third's value is geometric from 0. a must reach it and not be below b, b must reach it and
    be above a. A vote moves from a to b.
    """
    middle, q = math.ceil(60 / gamma) + 2 * reach, math.exp(-gamma)
    pmf = q ** np.abs(np.arange(-middle, middle + 1.0))
    pmf /= pmf.sum()
    at_most = np.cumsum(pmf)
    shifts = np.arange(-reach - 1, reach + 2)
    x = np.arange(middle - reach - 1)
    reached = 1 - q ** (x + 1.0)
    mass = pmf[middle + x - shifts[:, None]]
    below = at_most[middle + x - 1 - shifts[:, None]]
    level = at_most[middle + x - shifts[:, None]]
    a, b = (mass * reached) @ level.T, (below * reached) @ mass.T
    third = np.zeros_like(a)
    for value in range(middle - reach - 1):
        lost = at_most[middle + value - 1 - shifts]
        third += (1 - q) * q**value * np.outer(lost, lost)
    law = np.stack([a, b, third], axis=-1)
    assert np.abs(law.sum(axis=-1) - 1).max() < 1e-12
    return law[1:, :-1], law[:-1, 1:]


@pytest.mark.parametrize(("gamma", "reach"), [(0.25, 60), (0.7, 30), (1.0, 26), (3.0, 10)])
def test_the_price_is_the_supremum_over_all_shifts(gamma: float, reach: int) -> None:
    p, q = lattice(gamma, reach)
    alpha = ORDERS[:-1]
    both = np.maximum(divergences(p, q, alpha), divergences(q, p, alpha)).max(axis=(0, 1))
    price = rdp(LaplaceArgmax(gamma), alpha)
    assert np.all(both <= price * (1 + ROUNDING))
    assert np.all(both >= price * 0.99), "the division of diagonals adds no more than this"

    mu = math.sqrt(gdp_squared(LaplaceArgmax(gamma)))
    widths = [np.abs(scores(p, one) - scores(q, one)).max() for one in range(3)]
    assert 0.9999 * mu < max(widths) <= mu * (1 + ROUNDING)


def scores(law: Floats, outcome: int) -> Floats:
    """Φ⁻¹ of an outcome's probability; that of its complement is the same, negative."""
    others = np.delete(law, outcome, axis=-1).sum(axis=-1)
    return np.where(law[..., outcome] < others, ndtri(law[..., outcome]), -ndtri(others))


def exact_behind(gamma: float, k: int) -> mpmath.mpf:
    """Pr[L′ − L ≥ k] from the definition, to 50 digits."""
    q = mpmath.exp(-mpmath.mpf(gamma))
    reach = int(130 / gamma) + abs(k)
    mass = [(1 - q) / (1 + q) * q ** abs(j) for j in range(-reach, reach + 1)]
    tail, tails = mpmath.mpf(0), []
    for probability in reversed(mass):
        tail += probability
        tails.append(tail)
    tails.reverse()  # tails[j + reach] = Pr[L ≥ j]
    at_least = [tails[max(0, j + k + reach)] for j in range(-reach, reach + 1) if j + k <= reach]
    return mpmath.fsum(m * t for m, t in zip(mass, at_least, strict=False))


def exact_divergence(p: Sequence[mpmath.mpf], q: Sequence[mpmath.mpf], order: float) -> float:
    alpha = mpmath.mpf(order)
    total = mpmath.fsum(a**alpha * b ** (1 - alpha) for a, b in zip(p, q, strict=True))
    return float(mpmath.log(total) / (alpha - 1))


@pytest.mark.parametrize(
    ("gamma", "order", "k", "printed"),
    [
        (0.02, 2.0, 0, 0.000399983333094775),
        pytest.param(0.02, 18.4, 4, 0.00362202575632787, marks=pytest.mark.nightly),
        (0.25, 1.5, 0, 0.0469297405337042),
        (0.25, 4.5, 1, 0.127092253206344),
        (1.0, 1.1, 0, 0.571917787660468),
    ],
)
def test_two_classes_to_fifty_digits(gamma: float, order: float, k: int, printed: float) -> None:
    """Golden values: two classes, k votes apart, from the definition of the noise."""
    with mpmath.workdps(50):
        behind, after = exact_behind(gamma, k), exact_behind(gamma, k + 2)
        exact = exact_divergence((behind, 1 - behind), (after, 1 - after), order)
    assert exact == pytest.approx(printed, rel=1e-9)
    price = float(rdp(LaplaceArgmax(gamma), order))
    assert exact <= price <= exact * (1 + 1e-8)


@given(gamma=gammas, order=orders)
@settings(max_examples=60)
def test_the_answer_costs_less_than_the_counts_and_no_less_than_one_of_them(
    gamma: float, order: float
) -> None:
    price = float(rdp(LaplaceArgmax(gamma), order))
    assert 0 < price <= float(rdp(LaplaceNoisyMax(gamma), order))
    # A third class can make the answer tell whether one noisy count is at least 0.
    one = LaplaceNoisyMax(gamma / 2)
    assert price >= float(rdp(one, order))
    squared = gdp_squared(LaplaceArgmax(gamma))
    assert gdp_squared(one) <= squared <= gdp_squared(LaplaceNoisyMax(gamma))


def test_small_noise_scales_alike() -> None:
    """γ²α(α − 1)/2 is what two classes reveal as γ → 0; pure 2γ-DP allows four times as much."""
    for gamma in (0.001, 0.01):
        price = rdp(LaplaceArgmax(gamma), [2.0, 4.0])
        np.testing.assert_allclose(price, gamma**2 * np.array([2.0, 4.0]) / 2, rtol=3e-3)
        pure = rdp(LaplaceNoisyMax(gamma), [2.0, 4.0])
        np.testing.assert_allclose(pure / price, 4, rtol=3e-3)


def test_the_worst_of_the_noise_costs_what_pure_dp_allows() -> None:
    """At orders beyond the search the price is that of 2γ-DP, which it approaches."""
    for gamma in (0.001, 1.0, 50.0):
        assert float(rdp(LaplaceArgmax(gamma), 1e12)) == pytest.approx(2 * gamma)


def test_the_mechanism_charges_this_event() -> None:
    built = build_mechanism({"name": "lnmax", "gamma": 0.1}, teachers=10, classes=3)
    (event,) = built.events().values()
    assert event == LaplaceArgmax(0.1) == event_from_json(event.to_json())
    assert event.to_json() == {"event": "laplace_argmax", "gamma": 0.1}
