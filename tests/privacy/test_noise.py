"""The noise is exactly the discrete Gaussian or Laplace, computed from the given bytes."""

from __future__ import annotations

import itertools
import math
import os
import tracemalloc
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest, chi2

from support.processes import calls
from support.wording import refuses
from terrine_server.privacy.noise import (
    CHUNK,
    POINT,
    NoiseTable,
    _exp_minus,
    discrete_gaussian,
    discrete_laplace,
)
from terrine_server.privacy.numbers import DELTA_UNITS, SAMPLER_DELTA
from terrine_server.privacy.parameters import MAX_CLASSES, MAX_EPSILON, MAX_SIGMA, MIN_GAMMA

FALSE_ALARM = 1e-9  # probability that one statistical test here fails by chance
BYTES = 32


def gaussian_tail(sigma: float, k: int) -> mpmath.mpf:
    """Pr[Y ≥ k], k ≥ 1, in the current precision of mpmath."""
    end = int(40 * sigma) + 20
    weights = [mpmath.exp(-(mpmath.mpf(j) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for j in range(end)]
    return mpmath.fsum(weights[k:]) / (2 * mpmath.fsum(weights) - 1)


def laplace_tail(gamma: float, k: int) -> mpmath.mpf:
    a = mpmath.exp(-mpmath.mpf(gamma))
    return a**k / (1 + a)


def bytes_of(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(BYTES) for number in numbers)


def chi_square_p(draws: NDArray[np.int64], table: NoiseTable) -> float:
    """p-value of the draws against the exact law of the table's tails.

    Values that are too rare for chi-square, which would take a single one for a proof, are counted
    together and judged by their exact binomial law.
    """
    tails = table.tails()
    upper = tails - np.append(tails[1:], 0.0)
    mass = np.concatenate([upper[::-1], [1 - 2 * tails[0]], upper])
    expected = mass * len(draws)
    reach = int(np.flatnonzero(expected[len(upper) :] >= 25).max())
    inside = expected[len(upper) - reach : len(upper) + reach + 1]
    observed = np.bincount(
        np.clip(draws, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3
    )
    rest = float(len(draws) - inside.sum())
    statistic = float(np.sum((observed[1:-1] - inside) ** 2 / inside))
    rare = binomtest(int(observed[0] + observed[-1]), len(draws), rest / len(draws))
    return 2 * min(float(chi2.sf(statistic, len(inside))), float(rare.pvalue))


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7])
def test_every_gaussian_boundary_is_the_exact_cumulative_probability(sigma: float) -> None:
    table = discrete_gaussian(sigma)
    with mpmath.workprec(700):
        scale = mpmath.mpf(2) ** 256
        tails = [gaussian_tail(sigma, k) for k in range(1, table.reach + 2)]
        for k, exact in enumerate(tails[:-1], start=1):
            assert table.tail(k) == int(mpmath.floor(exact * scale))
            assert table.boundary(table.reach + k - 1) == int(mpmath.floor((1 - exact) * scale))
        assert tails[-1] * scale < 1, "the table must not end before the tail vanishes"
    assert table.tail(table.reach + 1) == 0


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 10**8), Fraction(2), Fraction(50)])
def test_the_factors_of_a_table_are_right_in_the_last_bits(x: Fraction) -> None:
    with mpmath.workprec(700):
        exact = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator) * mpmath.mpf(2) ** POINT
        assert abs(_exp_minus(x) - exact) <= 2


@pytest.mark.parametrize("gamma", [0.01, 0.3, 1.0, 50.0])
def test_every_laplace_boundary_is_the_exact_cumulative_probability(gamma: float) -> None:
    table = discrete_laplace(gamma)
    with mpmath.workprec(700):
        scale = mpmath.mpf(2) ** 256
        for k in range(1, table.reach + 1, max(1, table.reach // 500)):
            assert table.tail(k) == int(mpmath.floor(laplace_tail(gamma, k) * scale))
        assert laplace_tail(gamma, table.reach + 1) * scale < 1


@pytest.mark.parametrize(
    "table", [discrete_gaussian(0.5), discrete_gaussian(40.0), discrete_laplace(0.05)]
)
def test_a_draw_is_the_first_value_whose_cumulative_probability_exceeds_the_bits(
    table: NoiseTable,
) -> None:
    # Far rows share their leading 64 bits with each other (all 0 or all 1), so these draws also
    # take the path that compares all 256 bits.
    last = 2 * table.reach - 1
    boundaries = [table.boundary(row) for row in range(last + 1)]
    bits = [
        boundaries[row] + offset
        for row in (0, 1, 2, table.reach // 2, table.reach - 1, table.reach, last - 2, last)
        for offset in (-1, 0, 1)
    ]
    draws = table.sample((len(bits),), lambda _: bytes_of(*bits))
    assert draws.tolist() == [bisect_right(boundaries, u) - table.reach for u in bits]


def test_every_draw_uses_the_same_number_of_bytes() -> None:
    requests: list[int] = []

    def counting(count: int) -> bytes:
        requests.append(count)
        return os.urandom(count)

    discrete_gaussian(3.0).sample((2, 2), counting)
    assert requests == [4 * BYTES]
    requests.clear()
    draws = discrete_gaussian(3.0).sample((70_000, 2), counting)
    assert draws.shape == (70_000, 2)
    assert sum(requests) == 140_000 * BYTES


def test_an_exhausted_source_of_randomness_is_an_error() -> None:
    with refuses(RuntimeError, "bytes"):
        discrete_gaussian(3.0).sample((4,), lambda count: os.urandom(count - 1))


@pytest.mark.parametrize(
    "table",
    [*map(discrete_gaussian, (0.5, 5.0, 40.0)), *map(discrete_laplace, (0.05, 2.0))],
    ids=["gaussian-0.5", "gaussian-5", "gaussian-40", "laplace-0.05", "laplace-2"],
)
@pytest.mark.statistical
def test_draws_from_the_operating_system_follow_the_exact_law(table: NoiseTable) -> None:
    # By its exact law, a rare cell has a heavier tail than chi-square's: less than 1e-9 for this.
    assert chi_square_p(table.sample((400_000,)), table) > FALSE_ALARM / 100


@pytest.mark.statistical
def test_the_chi_square_test_notices_wrong_noise() -> None:
    table = discrete_gaussian(5.0)
    generator = np.random.default_rng(1)
    rounded = np.rint(generator.normal(0, 1.0, 400_000)).astype(np.int64)
    assert chi_square_p(rounded, discrete_gaussian(1.0)) < FALSE_ALARM, "rounded Gaussian"
    assert chi_square_p(discrete_gaussian(4.9).sample((400_000,)), table) < FALSE_ALARM
    truncated = table.sample((400_000,))
    assert chi_square_p(truncated[abs(truncated) < 16], table) < FALSE_ALARM, "cut tails"


@pytest.mark.parametrize(
    ("sigma", "delta"), [*itertools.product([0.5, 2.0, 8.0], [0.2, 1e-5, 1e-10])]
)
def test_the_threshold_is_the_smallest_with_that_tail(sigma: float, delta: float) -> None:
    w = discrete_gaussian(sigma).smallest_with_tail(delta)
    with mpmath.workprec(400):
        assert gaussian_tail(sigma, w) <= mpmath.mpf(delta)
        assert w == 1 or gaussian_tail(sigma, w - 1) > mpmath.mpf(delta)


def test_a_threshold_is_compared_with_the_next_larger_tail() -> None:
    """A tail is rounded down, so one unit more may be its exact value."""
    boundaries = [2**250, 2**254 - 1, 2**256 - 2**254, 2**256 - 2**250]
    words = np.frombuffer(bytes_of(*boundaries), dtype=">u8").astype(np.uint64).reshape(-1, 4)
    table = NoiseTable(words)
    assert [table.tail(k) for k in (1, 2, 3)] == [2**254 - 1, 2**250, 0]
    assert [table.smallest_with_tail(2.0**-n) for n in (1, 2, 3, 5, 6, 9)] == [1, 1, 2, 2, 3, 3]


def test_tables_built_by_several_threads_at_once_are_the_same() -> None:
    build = discrete_gaussian.__wrapped__
    with ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(build, [3.0, 40.0, 7.7] * 8))
    for sigma, table in zip([3.0, 40.0, 7.7] * 8, tables, strict=True):
        assert (table.words == discrete_gaussian(sigma).words).all()


def test_one_unit_of_delta_covers_the_sampler_at_every_epsilon() -> None:
    entries = max(
        len(table.words) for table in (discrete_gaussian(MAX_SIGMA), discrete_laplace(MIN_GAMMA))
    )
    distance = Fraction(entries + 1, 2**256) * (MAX_CLASSES + 1)
    multiplied = distance * (1 + int(math.exp(MAX_EPSILON)) + 1)
    assert multiplied < Fraction(SAMPLER_DELTA, DELTA_UNITS)


def test_many_draws_are_as_few_steps_as_one_and_take_little_memory() -> None:
    """So 10,000 queries of ten classes take milliseconds: numpy looks each draw up in the table.

    A loop over draws would take more steps, a comparison with each of the 1,490 rows more memory.
    """
    table = discrete_gaussian(40.0)
    assert steps(table, CHUNK) == steps(table, 1)
    assert steps(table, 10 * CHUNK) < 10 * steps(table, 1)
    tracemalloc.start()
    table.sample((10_000, 10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * CHUNK * BYTES


def steps(table: NoiseTable, draws: int) -> int:
    return calls(lambda: table.sample((draws,)))
