"""The data-dependent cost of a query at its votes: at most the worst case, often far less.

A reference for `terrine_server.privacy.published`, which instead counts queries by an integer
statistic of their votes. A data-dependent cost c(D) bounds D_α(M(D)‖M(D′)) for every
neighbour D′ of the actual data D. All costs are vectorised over queries × orders, in the log
domain, and rounded up: never NaN, never negative, and never above the data-independent
`accounting.curves.rdp` of the same event by more than that rounding.

Sources: P17 = Papernot et al. 2017 (arXiv 1610.05755), P18 = Papernot et al. 2018 (1802.08908).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from terrine_server.privacy.curves import rdp
from terrine_server.privacy.events import (
    Composition,
    CostEvent,
    GaussianArgmax,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceArgmax,
    LaplaceNoisyMax,
    StabilityTest,
)
from terrine_server.privacy.numbers import Counts, Floats, check_orders, check_votes
from terrine_server.privacy.parameters import check_gamma, check_sigma
from terrine_server.privacy.published import (
    bit_table,
    gnmax_rdp,
    laplace_log_tails,
    lnmax_rdp,
    statistic_of,
    statistic_range,
    union_bound,
)

ORDERS = np.concatenate(
    [
        [1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5],
        [5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192],
        [256, 384, 512, 768, 1024],
    ]
)
"""Rényi orders for reporting. A budget is enforced at a single order."""


def data_dependent_rdp(
    event: CostEvent, counts: Counts, orders: ArrayLike, baselines: Counts | None = None
) -> Floats:
    """Return the cost of an event at each row of votes and each order, float[B, A].

    `counts`: int[B, m]. `baselines`: int[B, m], what Interactive-GNMax subtracts before its test.
    An event without a data-dependent analysis (a boosted one) costs its worst case.
    Raises `ParameterError` on malformed votes or orders; its message does not quote votes.
    """
    alpha, votes = check_orders(orders), check_votes(counts)
    match event:
        case Composition(events):
            parts = [data_dependent_rdp(part, votes, alpha, baselines) for part in events]
            return np.asarray(sum(parts))
        case GaussianNoisyMax(sigma, shift=1):
            return gnmax_rdp(gnmax_log_q(votes, sigma), sigma, alpha)
        case GaussianArgmax(sigma):
            return np.minimum(data_dependent_rdp(event.counts, votes, alpha), rdp(event, alpha))
        case LaplaceNoisyMax(gamma, shift=1):
            return lnmax_rdp(lnmax_log_q(votes, gamma), gamma, alpha)
        case LaplaceArgmax(gamma):
            counts_alone = lnmax_rdp(lnmax_log_q(votes, gamma), gamma, alpha)
            return np.minimum(counts_alone, rdp(event, alpha))
        case GaussianThreshold() | StabilityTest():
            statistic = statistic_of(event, votes, baselines)
            low, _ = statistic_range(event)
            return bit_table(event, alpha)[:, statistic - low].T
        case _:
            return np.tile(rdp(event, alpha), (len(votes), 1))


def gnmax_log_q(counts: NDArray[np.int64], sigma: float, lattice: int = 1) -> Floats:
    """Return ln of a bound on Pr[argmax(n + noise) ≠ argmax n] per row of votes (P18, Prop. 7).

    A union bound over the other classes j of Pr[Y₁ − Y₂ ≥ Δ_j] ≤ Q((Δ_j − 1)/(√2 σ)) for
    Y ~ N_Z(0, σ²). By Poisson summation Pr[Y₁ − Y₂ = k] is at most the density of N(0, 2σ²) at k
    times 1 + 2.1·exp(−π²σ²), and for σ ≥ 1/2 the integral of that decreasing density over
    [k − 1, k] is larger by at least 1 + (k − 1/3)/4σ². `lattice` = 0 is the paper's continuous
    noise, too optimistic for the integer noise that is drawn. At most ln(1 − 1/m): no class is
    more likely to win than the largest.
    """
    check_sigma("sigma", sigma)
    votes = check_votes(counts)
    gaps = np.arange(votes.max(initial=0) + 1)
    return union_bound(votes, log_ndtr((lattice - gaps) / (math.sqrt(2) * sigma)))


def lnmax_log_q(counts: NDArray[np.int64], gamma: float) -> Floats:
    """Return ln of a bound on Pr[argmax(n + noise) ≠ argmax n] for discrete Laplace noise.

    A union bound of the exact tails. P17's Lemma 4 is for continuous noise, and smaller.
    """
    check_gamma(gamma)
    votes = check_votes(counts)
    return union_bound(votes, laplace_log_tails(gamma, int(votes.max(initial=0))))
