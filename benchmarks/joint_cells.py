"""Every histogram and move of small ensembles, priced: no cell may cost more than is charged.

    python benchmarks/joint_cells.py

Exact laws of the label and of the test, from their definitions (tests/support/laws.py),
against `outcome_costs`. Prints how many cells there were, and how near the worst is to its price.
"""

from __future__ import annotations

import math
import sys
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.laws import ROUNDING, histograms, label_law, neighbours, passing, release
from terrine_server.privacy.joint import (
    MAX_EXPONENT,
    costs_up_to,
    counts_excess,
    label_excess,
    outcome_costs,
)

SIZES = ((5, 3), (8, 2), (9, 3), (12, 2), (11, 3), (7, 4), (9, 4), (7, 5), (16, 2), (12, 3))
SIGMAS1 = (0.7, 1.5, 4.0)
SIGMAS2 = (1.2, 2.0, 3.0, 6.0)
ORDERS = (1.3, 2.0, 4.0, 8.0, 16.0)
SHARES = (1.0, 0.5, 1.7)

if __name__ == "__main__":
    cells, cheaper, worst, label = 0, 0, 0.0, 0.0
    for teachers, classes in SIZES:
        pairs = [
            (before, after)
            for before in histograms(teachers, classes)
            for after in neighbours(before)
        ]
        top, top2 = (np.array([max(pair[at]) for pair in pairs]) for at in (0, 1))
        for sigma2, order in product(SIGMAS2, ORDERS):
            if order * (order - 1) > MAX_EXPONENT * sigma2**2:
                continue
            laws = {votes: label_law(votes, sigma2) for votes in histograms(teachers, classes)}
            with np.errstate(over="ignore"):
                told = np.array(
                    [np.sum(laws[a] ** order * laws[b] ** (1 - order)) for a, b in pairs]
                )
            label = max(label, float((told - 1).max()) / label_excess(sigma2, order))
            for sigma1, threshold in product(SIGMAS1, range(teachers + 1)):
                tests = [passing(votes - threshold, sigma1) for votes in range(teachers + 2)]
                p, f = (np.array(side) for side in zip(*tests, strict=True))
                with np.errstate(all="ignore"):
                    abstained = f[top] ** order * f[top2] ** (1 - order)
                    answered = p[top] ** order * p[top2] ** (1 - order) * told
                for share in SHARES:
                    event = release(teachers, classes, threshold, sigma1, sigma2, share=share)
                    costs = outcome_costs(event, order)
                    if costs is None:
                        continue
                    (counts,) = costs_up_to(event, (share,), order, counts_excess(sigma2, order))
                    cheaper += counts is None or costs.flat < counts.flat * (1 - 1e-9)
                    paid = abstained * math.exp(-(order - 1) * costs.abstention)
                    paid += answered * math.exp(-(order - 1) * costs.answer)
                    seen = np.isfinite(paid) & (paid > 0)
                    slack = 1 + ROUNDING * (abstained + answered)[seen]
                    cells += int(seen.sum())
                    worst = max(worst, float((paid[seen] / slack).max(initial=0.0)))
    print(
        f"{cells:,} cells; the most that is owed, of what is paid: {worst:.9f} (sound: at most 1)"
    )
    print(f"the most that a label told, of its bound for any votes: {label:.6f}")
    print(f"{cheaper:,} prices are lower than if a label told all noisy counts")
    sys.exit(worst > 1)
