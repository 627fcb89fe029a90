"""Exact noise from the operating system's randomness: all noise is drawn and added here.

    noisy = add_noise(counts, discrete_gaussian(sigma), entropy)
    labels = noisy_max(counts, discrete_laplace(gamma), entropy)

A table holds the cumulative distribution of the noise as 256-bit integers. A draw is one uniform
256-bit integer, looked up in the table: every draw takes the same work, with no floating-point
arithmetic on noise and no rejection loop. The distributions are the discrete Gaussian of Canonne,
Kamath & Steinke 2020 (arXiv 2004.00010), Pr[k] ∝ exp(−k²/2σ²), and the discrete Laplace,
Pr[k] ∝ exp(−γ|k|).

Accuracy: every boundary is floor(2²⁵⁶ F(k)) up to one unit, so a draw is within
(entries + 1)·2⁻²⁵⁶ < 2⁻²³⁵ of the ideal in total variation. A query of up to 100,001 draws is
within 2⁻²¹⁸, and even multiplied by 1 + e^ε for ε = 100 that is below 1e-21: the single unit of
1e-18 that every query pays in δ covers it (docs/decisions/0010-noise-of-256-bits.md).
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import mpmath
import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.parameters import check_gamma, check_sigma

# Returns n unpredictable bytes. `os.urandom` in production; tests pass chosen ones.
Entropy = Callable[[int], bytes]

BITS = 256
WORDS = BITS // 64
POINT = BITS + 128  # fractional bits of the fixed-point numbers a table is built from
CHUNK = 1 << 16


@dataclass(frozen=True)
class NoiseTable:
    """Inverse-CDF table of a symmetric integer distribution.

    `words`: uint64[2K, 4], most significant word first; row j is floor(2²⁵⁶ Pr[Y ≤ j − K]).
    """

    words: NDArray[np.uint64]

    @property
    def reach(self) -> int:
        """The largest absolute value K that can be drawn."""
        return len(self.words) // 2

    def boundary(self, row: int) -> int:
        """Row `row` as an integer out of 2²⁵⁶."""
        return _join(self.words[row])

    def tail(self, k: int) -> int:
        """Pr[Y ≥ k] for k ≥ 1, as an integer out of 2²⁵⁶, rounded down; 0 beyond the table."""
        return self.boundary(self.reach - k) if k <= self.reach else 0

    def tails(self) -> NDArray[np.float64]:
        """Pr[Y ≥ k] for k = 1, …, K."""
        scales = 2.0 ** (-64.0 * np.arange(1, WORDS + 1))
        result: NDArray[np.float64] = self.words[: self.reach][::-1].astype(np.float64) @ scales
        return result

    def smallest_with_tail(self, delta: float) -> int:
        """Return the smallest k ≥ 1 with Pr[Y ≥ k] ≤ delta (0 < delta < 1)."""
        allowed = int(Fraction(delta) * (1 << BITS))
        # A rounded-down tail is at most one unit too small, hence the + 1.
        return 1 + bisect_left(
            range(1, self.reach + 1), True, key=lambda k: self.tail(k) + 1 <= allowed
        )

    def sample(self, shape: tuple[int, ...], entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """Draw int64 noise of the given shape."""
        draws = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=np.int64)
        for start in range(0, len(draws), CHUNK):
            part = draws[start : start + CHUNK]
            part[:] = self._locate(_uniform(len(part), entropy))
        return draws.reshape(shape)

    def _locate(self, uniform: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Count the boundaries ≤ each uniform integer; subtract K."""
        high = self.words[:, 0]
        rows = np.searchsorted(high, uniform[:, 0], side="left")
        inside = np.minimum(rows, len(high) - 1)
        for i in np.flatnonzero(high[inside] == uniform[:, 0]):
            # The leading words are equal (about once in 2⁶⁴ draws): compare all 256 bits.
            end = int(np.searchsorted(high, uniform[i, 0], side="right"))
            candidates = range(int(rows[i]), end)
            rows[i] += bisect_right(candidates, _join(uniform[i]), key=self.boundary)
        return rows.astype(np.int64) - self.reach


def add_noise(values: NDArray[np.int64], noise: NoiseTable, entropy: Entropy) -> NDArray[np.int64]:
    """Return whole numbers of any shape, each with fresh noise of its own."""
    noisy: NDArray[np.int64] = values + noise.sample(values.shape, entropy)
    return noisy


def noisy_max(counts: NDArray[np.int64], noise: NoiseTable, entropy: Entropy) -> NDArray[np.int64]:
    """Return argmax_j (counts_j + fresh noise) of each row; ties go to the lowest class."""
    winners: NDArray[np.int64] = add_noise(counts, noise, entropy).argmax(axis=1)
    return winners


def draw_normal(exact: mpmath.MPContext, entropy: Entropy) -> mpmath.mpf:
    """Return Z ~ N(0, 1) in the arithmetic of `exact`, from one uniform integer of 256 bits."""
    data = entropy(BITS // 8)
    if len(data) != BITS // 8:
        raise RuntimeError("The source of randomness returned too few bytes; nothing was drawn.")
    # 2u − 1 with u = (k + ½)/2²⁵⁶, exactly.
    centred = exact.ldexp(2 * int.from_bytes(data) + 1 - (1 << BITS), -BITS)
    return exact.sqrt(2) * exact.erfinv(centred)


@lru_cache(maxsize=16)
def discrete_gaussian(sigma: float) -> NoiseTable:
    """Return the table of N_Z(0, sigma²), sigma in votes."""
    half_precision = 1 / (2 * Fraction(check_sigma("sigma", sigma)) ** 2)
    return _tabulate(_gaussian_weights(_exp_minus(half_precision), _exp_minus(2 * half_precision)))


@lru_cache(maxsize=16)
def discrete_laplace(gamma: float) -> NoiseTable:
    """Return the table of the discrete Laplace distribution of scale 1/gamma, in votes."""
    return _tabulate(_geometric_weights(_exp_minus(Fraction(check_gamma(gamma)))))


def _exp_minus(x: Fraction) -> int:
    """Return e^(−x) for x ≥ 0 in fixed point with POINT fractional bits, within a unit or two.

    Computed as 1 / e^x from the Taylor series, whose terms are all positive, with 64 extra bits. It
    uses integers because the precision of an arbitrary-precision library is shared by all threads.
    """
    one = 1 << (POINT + 64)
    total, term, k = one, one, 1
    while term := term * x.numerator // (x.denominator * k):
        total, k = total + term, k + 1
    return (one << POINT) // total


def _gaussian_weights(ratio: int, step: int) -> Iterator[int]:
    """Yield exp(−k²/2σ²), k = 1, 2, …, until it vanishes.

    w(k+1) = w(k)·r(k) and r(k+1) = r(k)·e^{−1/σ²}. Each product loses at most one unit of 2⁻³⁸⁴,
    so after 2¹⁸ steps a weight is off by less than 2³⁷ units: 2⁻³⁴⁷, far below 2⁻²⁵⁶.
    """
    weight = 1 << POINT
    while weight := weight * ratio >> POINT:
        yield weight
        ratio = ratio * step >> POINT


def _geometric_weights(ratio: int) -> Iterator[int]:
    """Yield exp(−γk), k = 1, 2, …, until it vanishes."""
    weight = 1 << POINT
    while weight := weight * ratio >> POINT:
        yield weight


def _tabulate(weights: Iterator[int]) -> NoiseTable:
    """Build the table from the weights of k = 1, 2, …, relative to the weight of 0."""
    tails = list(accumulate(reversed(list(weights))))  # from the far tail inwards
    total = (1 << POINT) + 2 * tails[-1]
    lower = [tail for tail in tails if tail << BITS >= total]
    cumulative = lower + [total - tail for tail in reversed(lower)]
    packed = b"".join(((value << BITS) // total).to_bytes(BITS // 8) for value in cumulative)
    words = np.frombuffer(packed, dtype=">u8").astype(np.uint64).reshape(-1, WORDS)
    words.flags.writeable = False
    return NoiseTable(words)


def _uniform(count: int, entropy: Entropy) -> NDArray[np.uint64]:
    data = entropy(count * BITS // 8)
    if len(data) != count * BITS // 8:
        raise RuntimeError("The source of randomness returned too few bytes; nothing was drawn.")
    return np.frombuffer(data, dtype=">u8").astype(np.uint64).reshape(count, WORDS)


def _join(words: NDArray[np.uint64]) -> int:
    return int.from_bytes(words.astype(">u8").tobytes())
