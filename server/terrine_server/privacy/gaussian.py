"""The cost of argmax(counts + Gaussian noise): what the answer reveals, not the noisy counts.

docs/privacy/gnmax.md proves that, for any number of classes, any votes and any order of ties, the
answer costs no more than the worst pair of the laws in `_Laws`, and that no pair costs more than is
returned here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from terrine_server.privacy.numbers import SLACK, Floats, log_psi

Integers = NDArray[np.int64]

# α(α−1)/sigma² up to which the answer is priced by itself.
MAX_EXPONENT = 12.0

# The finest grid has at most about so many points to each side of 0; all integers if those do.
POINTS = 480

# Grids that are searched; each is twice as fine as the one before.
LEVELS = 4

# A cell is not divided further if its bound is within this of the largest value seen.
TOLERANCE = 5e-4

# What is lost beyond the grid, as a share of the exponent.
_TINY = 1e-10


@lru_cache(maxsize=4096)  # plans ask for the same orders again and again
def gaussian_argmax_rdp(sigma: float, order: float) -> float:
    """Return a bound on the Rényi divergence of the answer; ∞ if only that of all counts is known.

    It is ln(1 + x)/(α−1), where x is at least Σ P^α Q^(1−α) − 1 for any pair.
    """
    exponent = order * (order - 1) / sigma**2
    if exponent > MAX_EXPONENT:
        return math.inf
    tiny = _TINY * exponent
    level = exponent + math.log((1 + 4 * order) / tiny)
    apart = 2 * order + 2 + 2 * sigma * math.sqrt(level)
    reach = 1 + order + math.sqrt(2 * sigma**2 * (level + 8) + apart**2 / 2)
    laws = _laws(sigma, 4 * math.ceil(reach / sigma / 4))  # which several orders share
    outside = 2 * order * math.exp(exponent - ((laws.reach - 1) / sigma) ** 2 / 2)
    if not (np.isfinite(laws.ratio).all() and outside <= tiny * laws.rarest(math.ceil(apart))):
        return math.inf  # a probability underflows
    worst = max(math.expm1(exponent / 2), *(_supremum(laws, order, sign) for sign in (1, -1)))
    return math.log1p((worst + 4 * tiny) * (1 + SLACK)) / (order - 1) * (1 + SLACK)


@dataclass(frozen=True)
class _Laws:
    """The laws of three outcomes at (u, v) = (i − n, j − n)·step, float[3, 2n + 1, 2n + 1].

    With A = Y + u and B = Y' + v: a wins if A ≥ 0 and A ≥ B, b wins if B ≥ 0 and B > A; else
    neither. `p`: P, before the move. `ratio`: ln(P/Q), with Q the law at (u − 1, v + 1).
    `curved`: bounds, for each outcome, on the sum of the second differences along u and along v, of
    P and of P − Q. float[2, 3].
    """

    step: int
    p: Floats
    ratio: Floats
    curved: Floats

    @property
    def reach(self) -> int:
        """The largest u and v."""
        return int(self.p.shape[1] // 2 * self.step)

    def rarest(self, apart: int) -> float:
        """Return the least probability of a and of b where one is at `reach`, the other `apart`."""
        far = self.p.shape[1] - 1
        near = (2 * self.reach - apart) // self.step
        at = [0, 1], [near, far], [far, near]
        return float(np.minimum(self.p[at], self.p[at] * np.exp(-self.ratio[at])).min())


@lru_cache(maxsize=2)
def _laws(sigma: float, sigmas: int) -> _Laws:
    """Return the laws at shifts up to a number of sigmas, or a little more."""
    step, coarse = math.ceil(sigmas * sigma / POINTS), 1 << (LEVELS - 1)
    n = math.ceil(sigmas * sigma / step / coarse) * coarse
    blocks = n + math.ceil(7 * sigma / step)  # beyond: less than e^-48 of any probability
    last = (blocks + 1) * step + 2
    mass = np.exp(-(np.arange(-last, last + 1.0) ** 2) / (2 * sigma**2))
    total = mass.sum()
    mass /= total
    at_most = np.cumsum(mass)

    def wins(shift: int, behind: int) -> Floats:
        """Σ_{x ≥ 0} p(x − u + shift) F(x − v + behind) at all u and v."""
        rows, columns = (
            table[last + by - blocks * step : last + by + (blocks + 1) * step].reshape(-1, step)
            for table, by in ((mass, shift), (at_most, behind))
        )
        added = rows @ columns.T  # one block of x; the next one moves along the diagonal
        alone = np.cumsum(rows.sum(axis=1)[::-1])  # without the other, so far behind
        sums, found = np.zeros(blocks + n + 1), np.empty((2 * n + 1, 2 * n + 1))
        for i in range(blocks + n + 1):
            sums[1:] = sums[:-1]
            sums[0] = alone[i - 1] if i else 0.0
            sums += added[2 * blocks - i, : blocks - n - 1 : -1]
            if i >= blocks - n:
                found[i - blocks + n] = sums[blocks - n :]
        return found

    u = np.arange(-n, n + 1)[:, None] * step
    v = u.T
    below_u, below_v = at_most[last - 1 - u], at_most[last - 1 - v]  # Pr[A < 0], Pr[B < 0]
    p = np.stack([wins(0, 0), wins(0, -1).T, below_u * below_v])
    q = np.stack([wins(1, -1), wins(-1, 0).T, at_most[last - u] * at_most[last - 2 - v]])
    if np.abs(p.sum(axis=0) - 1).max() > 1e-9 or np.abs(q.sum(axis=0) - 1).max() > 1e-9:
        raise ArithmeticError(f"The laws of the answer do not add up to 1 at sigma = {sigma}.")

    # Σ_{x ≥ 0} p(x − u) p(x − v): a Gaussian in u − v times a tail of x − (u + v)/2.
    half = 2 * last
    wide = np.exp(-(np.arange(-half, half + 1.0) ** 2) / (4 * sigma**2))
    tails = np.empty_like(wide)
    for parity in (0, 1):
        tails[parity::2] = np.cumsum(wide[parity::2][::-1])[::-1]
    level = sum(wide[half + u - by - v] * tails[half - u - v + by] for by in (0, 1)) / total**2
    lost, won = mass[last + u] * below_v, mass[last + v + 1] * at_most[last - u]
    with np.errstate(divide="ignore", invalid="ignore"):  # where a probability underflows
        change = np.stack([level + lost, -level - won, won - lost]) / q
        small = np.abs(change) < 0.5
        ratio = np.log1p(change, where=small, out=change)
        np.log(p / q, where=~small, out=ratio)

    slopes, bends = np.abs(np.diff(mass)).max(), np.diff(mass, 2)
    most, bent, turned = mass.max(), np.abs(bends).max(), bends[bends > 0].sum()
    shape = slopes + 2 * most**2
    moved = 4 * most * turned + bent + most * slopes
    curved = np.array([[shape, shape, 2 * slopes], [moved, moved, 2 * (most * slopes + bent)]])
    return _Laws(step, p, ratio, curved * (1 + SLACK))


def _supremum(laws: _Laws, order: float, sign: int) -> float:
    """Return a bound on the largest Σ P^α Q^(1−α) − 1 on the grid; with `sign` −1, of Q and P."""
    width, size = 1 << (LEVELS - 1), laws.p.shape[1] - 1
    i, j = (index.ravel() for index in np.mgrid[0:size:width, 0:size:width])
    seen = kept = 0.0
    while True:
        values, bounds = _cells(laws, order, sign, i, j, width)
        seen = max(seen, float(values.max(initial=0.0)))
        divided = (bounds > seen * (1 + TOLERANCE)) & (width > 1)
        kept = max(kept, float(bounds[~divided].max(initial=0.0)))
        if not divided.any():
            return max(seen, kept)
        width //= 2
        i, j = (
            (index[divided] + width * np.array(part)[:, None]).ravel()
            for index, part in ((i, (0, 0, 1, 1)), (j, (0, 1, 0, 1)))
        )


def _cells(
    laws: _Laws, order: float, sign: int, i: Integers, j: Integers, width: int
) -> tuple[Floats, Floats]:
    """Return the largest value at the corners of each cell, and a bound within it, float[C] each.

    `i`, `j`: the corner with the least u and v, int[C].
    """
    corners = [(i + width * s, j + width * t) for s, t in ((0, 0), (0, 1), (1, 0), (1, 1))]
    cells = [np.ravel_multi_index(each, laws.p.shape[1:]) for each in corners]
    points, places = np.unique(cells, return_inverse=True)  # cells share corners
    at = places.reshape(len(corners), -1)
    ratios = sign * laws.ratio.reshape(3, -1)[:, points]
    qs = laws.p.reshape(3, -1)[:, points]  # what P, or Q, is compared with
    if sign == 1:
        qs = qs * np.exp(-ratios)
    psis = np.exp(log_psi(ratios, order))
    values = (qs * psis).sum(axis=0)[at].max(axis=0)
    size = width * laws.step
    if size == 1:
        return values, values

    # P/Q is largest where u is least and v most, and the other way round.
    high, low = 1, 2
    ratio, q, psi = ([table[:, each] for each in at] for table in (ratios, qs, psis))
    slope = {c: order * np.expm1((order - 1) * ratio[c]) for c in (high, low)}
    turn = {c: np.abs(psi[c] - np.expm1(ratio[c]) * slope[c]) for c in (high, low)}
    law, move = size**2 / 8 * laws.curved[:, :, None]
    bent = np.maximum(np.abs(slope[high]), np.abs(slope[low])) * move
    bent += np.maximum(turn[high], turn[low]) * law
    # a is likeliest where u is most and v least, b the other way round, neither at the least two.
    likeliest = np.stack([q[low][0], q[high][1], q[0][2]])
    whole = likeliest * np.maximum(psi[high], psi[low])
    return values, values + np.minimum(bent, whole).sum(axis=0)
