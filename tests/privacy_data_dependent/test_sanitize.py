"""The price of a publication covers every function with that smooth sensitivity; U bounds f."""

from __future__ import annotations

import math
import os

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from support.wording import refuses
from terrine_server.privacy import ParameterError
from terrine_server.privacy.published import GRID, ActualCost, BoundRelease, gnss_rdp

PARAMETERS = [
    (order, share / order, sigma)
    for order in (1.5, 4.0, 14.0, 50.0)
    for share in (0.05, 0.25, 0.33, 0.45)
    for sigma in (1.0, 6.0, 30.0)
]
SPEND = ActualCost(cost=0.5, smooth_sensitivity=2e-3)
WORST = 10**13


def gaussian_renyi(
    order: float,
    shift: NDArray[np.float64],
    here: NDArray[np.float64],
    there: NDArray[np.float64],
) -> NDArray[np.float64]:
    """D_λ(N(0, here²)‖N(shift, there²)), infinite where the mixed variance is not positive."""
    mixed = (1 - order) * here**2 + order * there**2
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.log(np.sqrt(mixed) / (here ** (1 - order) * there**order)) / (1 - order)
        return np.where(mixed > 0, order * shift**2 / (2 * mixed) + spread, np.inf)


def allowed_pairs(beta: float, rng: np.random.Generator) -> tuple[NDArray[np.float64], ...]:
    """f(D′) − f(D), SS(D) and SS(D′) of neighbours, extremes included."""
    log_ratio = np.append(rng.uniform(-beta, beta, 3000), [-beta, 0, beta])
    here = np.exp(rng.uniform(-5, 5, len(log_ratio)))
    there = here * np.exp(log_ratio)
    share = np.append(rng.uniform(-1, 1, 3000), [1, 1, 1])
    return share * np.minimum(here, there), here, there


@pytest.mark.parametrize(("order", "beta", "sigma"), PARAMETERS)
def test_no_function_pays_too_little_for_its_release(
    order: float, beta: float, sigma: float
) -> None:
    shift, here, there = allowed_pairs(beta, np.random.default_rng(1))
    leak = gaussian_renyi(order, shift, sigma * here, sigma * there)
    price = gnss_rdp(order, beta, sigma)
    assert np.all(leak <= price * (1 + 1e-12))
    assert leak.max() > 0.5 * price


@pytest.mark.parametrize(("order", "beta", "sigma"), PARAMETERS)
@pytest.mark.parametrize("z", [0.0, 2.5, 4.75])
def test_no_function_pays_too_little_for_its_upper_bound(
    order: float, beta: float, sigma: float, z: float
) -> None:
    shift, here, there = allowed_pairs(beta, np.random.default_rng(2))
    leak = gaussian_renyi(order, shift + z * sigma * (there - here), sigma * here, sigma * there)
    leak2 = gaussian_renyi(order, shift - z * sigma * (there - here), sigma * here, sigma * there)
    assert np.all(np.maximum(leak, leak2) <= BoundRelease(order, beta, sigma, z).cost * (1 + 1e-12))


def published_gnss(order: float, beta: float, sigma: float) -> float:
    """P18, Theorem 23."""
    spread = order * beta - math.log(1 - 2 * order * beta) / 2
    return order * math.exp(2 * beta) / sigma**2 + spread / (order - 1)


@pytest.mark.parametrize(("order", "beta", "sigma"), PARAMETERS)
def test_the_published_price_suffices_only_for_little_smoothing(
    order: float, beta: float, sigma: float
) -> None:
    if order * beta <= 0.25:
        assert gnss_rdp(order, beta, sigma) <= published_gnss(order, beta, sigma)


@pytest.mark.parametrize("order", [1.5, 14.0, 50.0])
@pytest.mark.parametrize("beta", [0.0, -0.1, math.nan, 10.0])
def test_smoothing_outside_the_valid_range_is_refused(order: float, beta: float) -> None:
    with refuses(ParameterError, "beta"):
        BoundRelease(order, beta, 6.0, 4.75)


def test_the_error_says_which_beta_would_work() -> None:
    limit = -math.log1p(-1 / 14) / 2
    with refuses(ParameterError, "beta", f"{limit:.4g}"):
        BoundRelease(14, limit * 1.001, 6.0, 4.75)
    assert math.isinf(gnss_rdp(14, limit * 1.001, 6.0))
    assert math.isfinite(BoundRelease(14, limit * 0.999, 6.0, 4.75).cost)


@pytest.mark.parametrize(
    ("order", "sigma", "z", "why"),
    [
        (1.0, 6.0, 4.0, "orders finite 1"),
        (2.0, 0.0, 4.0, "sigma 0 0.001"),
        (2.0, 1.1e9, 4.0, "sigma 1.1e+09 1e+09"),
        (2.0, 6.0, -1e-9, "z -1e-09 0 30"),
        (2.0, 6.0, 30.1, "z 30.1 0 30"),
    ],
)
def test_malformed_publications_are_refused(order: float, sigma: float, z: float, why: str) -> None:
    with refuses(ParameterError, *why.split()):
        BoundRelease(order, 0.01, sigma, z)


def test_publications_at_the_ends_of_the_range_are_allowed() -> None:
    assert BoundRelease(2.0, 0.01, 1e-3, 0.0).failure == pytest.approx(0.5)
    assert BoundRelease(2.0, 0.01, 1e9, 30.0).failure < 1e-190


@pytest.mark.parametrize(("cost", "smooth"), [(math.nan, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_malformed_spends_are_refused(cost: float, smooth: float) -> None:
    with refuses(ParameterError, "sensitivity"):
        BoundRelease(6, 0.025, 31.2, 4.75).release(ActualCost(cost, smooth), WORST)


def release(publication: BoundRelease, uniform: int, worst: int = WORST) -> int:
    return publication.release(SPEND, worst, lambda count: uniform.to_bytes(count))


def test_the_release_is_the_inverse_normal_of_a_256_bit_uniform() -> None:
    publication = BoundRelease(6, 0.025, 31.2, 4.75)
    quantiles = (np.arange(64) + 0.5) / 64
    uniforms = [(2 * k + 1) << 249 for k in range(64)]  # (k + ½)/64 of 2²⁵⁶
    expected = SPEND.cost + SPEND.smooth_sensitivity * 31.2 * (ndtri(quantiles) + 4.75)
    drawn = [release(publication, uniform) for uniform in uniforms]
    assert all(value % GRID == 0 for value in drawn)
    np.testing.assert_array_equal(drawn, np.ceil(expected * 1e3).astype(np.int64) * GRID)


def test_even_the_rarest_draw_is_within_range() -> None:
    """Φ⁻¹(2⁻²⁵⁷) is about −18.7, a point that no double-precision uniform can reach."""
    publication = BoundRelease(6, 0.025, 31.2, 4.75)
    lowest, highest = release(publication, 0), release(publication, 2**256 - 1)
    assert lowest == 0
    with mpmath.workdps(100):
        top = mpmath.sqrt(2) * mpmath.erfinv(1 - mpmath.mpf(2) ** -256)
    expected = SPEND.cost + SPEND.smooth_sensitivity * 31.2 * (float(top) + 4.75)
    assert highest == math.ceil(expected * 1e3) * GRID
    assert release(publication, 2**256 - 1, worst=123) == 123


def test_every_release_draws_fresh_randomness() -> None:
    publication = BoundRelease(6, 0.025, 31.2, 4.75)
    wide = ActualCost(500.0, 2.0)
    assert len({publication.release(wide, 10**16) for _ in range(20)}) > 15
    requests: list[int] = []

    def entropy(count: int) -> bytes:
        requests.append(count)
        return os.urandom(count)

    publication.release(SPEND, WORST, entropy)
    assert requests == [32]
    with refuses(RuntimeError, "bytes"):
        publication.release(SPEND, WORST, lambda count: b"\x00" * (count - 1))


def test_another_threads_precision_does_not_matter() -> None:
    publication = BoundRelease(6, 0.025, 31.2, 4.75)
    expected = release(publication, 3 << 200)
    with mpmath.workprec(20):
        assert release(publication, 3 << 200) == expected


def test_the_bound_fails_as_rarely_as_promised() -> None:
    """z = 1: U < f in Φ(−1) = 15.9 % of draws; rounding up only helps."""
    publication = BoundRelease(6, 0.025, 31.2, 1.0)
    below = sum(
        release(publication, ((2 * k + 1) << 256) // 1000) < SPEND.cost * 1e12 for k in range(500)
    )
    assert below / 500 <= publication.failure
    assert below / 500 > publication.failure - 0.02
    assert publication.failure == pytest.approx(0.158655, rel=1e-4)
