"""Compare the noise itself, draw by draw, with its definition: of the sampler, and as released.

A privacy loss in the far tail of the noise rarely shows in a label, but it shows here. The
frequencies of the tails are compared with probabilities computed from the definition of the
distribution, and the smallest and the largest integer that the source of randomness can return must
map to the two ends of a table that omits next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from terrine_server.findings import AuditFinding
from terrine_server.privacy import build_mechanism
from terrine_server.privacy.noise import NoiseTable, discrete_gaussian, discrete_laplace

BEYOND = 2.0**-180
"""The mass that a table may omit on one side, bounded by the density at its end."""
AT_A_TIME = 1_000_000


@dataclass(frozen=True)
class NoiseAudit:
    """A distribution: the production sampler, and its unnormalised definition.

    `draw` returns so many draws, or a few more, int64; None: those of the sampler.
    """

    title: str
    table: Callable[[], NoiseTable]
    weight: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    draw: Callable[[int], NDArray[np.int64]] | None = None


COUNTED = (20, 10, 7, 3, 0)
"""Votes whose noisy counts are released, to see the noise in them."""


def _released(draws: int) -> NDArray[np.int64]:
    """Return what `noisy_votes` adds to the votes of every class."""
    spec = {"name": "noisy_votes", "sigma": 4.0}
    mechanism = build_mechanism(spec, teachers=sum(COUNTED), classes=len(COUNTED))
    votes = np.tile(np.array(COUNTED), (-(-draws // len(COUNTED)), 1))
    counts = mechanism.release(votes).counts
    if counts is None:
        raise TypeError("noisy_votes released no counts")
    return np.asarray(counts - votes).ravel()


NOISES = (
    NoiseAudit(
        "discrete Gaussian, σ = 4",
        lambda: discrete_gaussian(4.0),
        lambda k: np.exp(-(k**2) / (2 * 4.0**2)),
    ),
    NoiseAudit(
        "discrete Laplace, γ = 0.5",
        lambda: discrete_laplace(0.5),
        lambda k: np.exp(-0.5 * np.abs(k)),
    ),
    NoiseAudit(
        "counts of noisy_votes less the votes, σ = 4",
        lambda: discrete_gaussian(4.0),
        lambda k: np.exp(-(k**2) / (2 * 4.0**2)),
        _released,
    ),
)


def audit_noise(draws: int, level: float) -> Iterator[AuditFinding]:
    """Yield a finding for each kind of noise; each is a false alarm with probability ≤ level/2."""
    for noise in NOISES:
        problems = [*_ends(noise), *_tails(noise, draws, level / len(NOISES))]
        yield AuditFinding(
            "noise",
            noise.title,
            "exceeded" if problems else "holds",
            "; ".join(problems) or f"{draws:,} draws: all tails as defined, to the table's end",
        )


def _ends(noise: NoiseAudit) -> Iterator[str]:
    table = noise.table()
    lowest, highest = (int(table.sample((1,), entropy)[0]) for entropy in (_zeros, _ones))
    if (lowest, highest) != (-table.reach, table.reach):
        yield f"the ends of the table are never drawn: the extremes are {lowest} and {highest}"
    mass = float(noise.weight(np.array([float(table.reach)]))[0])
    if mass > BEYOND:
        yield f"the table ends at {table.reach}, where a mass of 2^{math.log2(mass):.0f} is missing"


def _zeros(count: int) -> bytes:
    return b"\x00" * count


def _ones(count: int) -> bytes:
    return b"\xff" * count


def _tails(noise: NoiseAudit, draws: int, level: float) -> Iterator[str]:
    """Compare the tails of both sides with their definition; yield one misfit per side at most."""
    reach = noise.table().reach
    weights = noise.weight(np.arange(-reach, reach + 1, dtype=np.float64))
    exact = np.cumsum(weights / weights.sum())[:reach]  # Pr[Y ≤ −reach], …, Pr[Y ≤ −1]
    seen = np.zeros(2 * reach + 1, dtype=np.int64)
    for start in range(0, draws, AT_A_TIME):
        size = min(AT_A_TIME, draws - start)
        drawn = noise.table().sample((size,)) if noise.draw is None else noise.draw(size)[:size]
        # Draws beyond the table are counted at its ends: they are too far out for any tail.
        seen += np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=2 * reach + 1)
    each = level / (2 * reach)
    for sign, side in (("≤ −", seen), ("≥ ", seen[::-1])):
        hits = np.cumsum(side)[:reach]
        low = np.where(hits > 0, beta.ppf(each / 2, hits, draws - hits + 1), 0.0)
        high = np.asarray(beta.isf(each / 2, hits + 1, draws - hits))
        misfits = np.flatnonzero((exact < low) | (exact > high))
        if len(misfits):
            k = int(misfits[-1])
            yield (
                f"Pr[Y {sign}{reach - k}] is {exact[k]:.3g} by definition, but between "
                f"{low[k]:.3g} and {high[k]:.3g} in {draws:,} draws"
            )
