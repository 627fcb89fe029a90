"""What a query costs at the votes that were cast: at most the worst case, often far less.

A data-dependent cost c(D) bounds D_α(M(D)‖M(D′)) for every neighbour D′ of the actual data D. It is
a function of private votes and therefore secret: nothing that a student can see may depend on it.
`sensitivity` and `sanitize` turn a sum of such costs into a figure that can be published.

All costs are vectorised over queries × orders, in the log domain, and rounded up: never NaN, never
negative, and never above the data-independent `accounting.rdp` of the same event by more than that
rounding.

Sources: P17 = Papernot et al. 2017 (arXiv 1610.05755), P18 = Papernot et al. 2018 (1802.08908).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from terrine_server.privacy.accounting import rdp
from terrine_server.privacy.bits import bit_rdp
from terrine_server.privacy.checks import (
    MARGIN,
    Counts,
    Floats,
    check_orders,
    check_votes,
)
from terrine_server.privacy.costs import (
    Composition,
    CostEvent,
    GaussianNoisyMax,
    GaussianThreshold,
    LaplaceNoisyMax,
    StabilityTest,
)
from terrine_server.privacy.data_dependent.bits import (
    bit_table,
    statistic_of,
    statistic_range,
)
from terrine_server.privacy.data_dependent.noisy_max import (
    gnmax_log_q,
    gnmax_rdp,
    gnmax_terms,
    laplace_log_tails,
    lnmax_log_q,
    lnmax_rdp,
    lnmax_terms,
    noisy_max_order,
    small_q_bound,
    union_bound,
)

__all__ = [
    "MARGIN",
    "Counts",
    "Floats",
    "bit_rdp",
    "bit_table",
    "check_orders",
    "check_votes",
    "data_dependent_rdp",
    "gnmax_log_q",
    "gnmax_rdp",
    "gnmax_terms",
    "laplace_log_tails",
    "lnmax_log_q",
    "lnmax_rdp",
    "lnmax_terms",
    "noisy_max_order",
    "small_q_bound",
    "statistic_of",
    "statistic_range",
    "union_bound",
]


def data_dependent_rdp(
    event: CostEvent, counts: Counts, orders: ArrayLike, baselines: Counts | None = None
) -> Floats:
    """Return the cost of an event at each row of votes and each order, float[B, A].

    `counts`: int[B, m]. `baselines`: int[B, m], what Interactive-GNMax subtracts before its test.
    An event without a data-dependent analysis (a boosted or a claimed one) costs its worst case.
    Raises `ParameterError` on malformed votes or orders; the text does not quote votes.
    """
    alpha, votes = check_orders(orders), check_votes(counts)
    match event:
        case Composition(events):
            parts = [data_dependent_rdp(part, votes, alpha, baselines) for part in events]
            return np.asarray(sum(parts))
        case GaussianNoisyMax(sigma, shift=1):
            return gnmax_rdp(gnmax_log_q(votes, sigma), sigma, alpha)
        case LaplaceNoisyMax(gamma, shift=1):
            return lnmax_rdp(lnmax_log_q(votes, gamma), gamma, alpha)
        case GaussianThreshold() | StabilityTest():
            statistic = statistic_of(event, votes, baselines)
            low, _ = statistic_range(event)
            return bit_table(event, alpha)[:, statistic - low].T
        case _:
            return np.tile(rdp(event, alpha), (len(votes), 1))
