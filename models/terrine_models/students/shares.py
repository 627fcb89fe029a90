"""Fit the teachers' shares to public features: labels, which are certain, or noisy counts.

A single row's noisy counts say little. But all rows share a few features, and the noise is known,
so least squares averages it out: the variance of a fitted share is about d/N of a single one's. One
budget for N rows makes each row's noise grow with √N, and the fitted noise stays the same, however
many rows are asked. So ask all of them.

Everything here is post-processing of released counts and public inputs: it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from terrine_models.students.answers import Floats, Ints

PENALTIES = np.geomspace(1e-6, 1e2, 41)
"""Ridge penalties that are tried, relative to the mean variance of a feature."""
FEWEST, CLEAREST = 0.2, 0.8
"""The least and the most of the rows that a class wins that become labels, the clearest first. A
class without labels would be forgotten."""
DEVIATIONS = 2.0
"""By how many standard deviations a class must lead, to become a label."""
TINY = 1e-9
"""What a row that decides its own fit leaves open: nothing."""


@dataclass(frozen=True, eq=False)
class FittedShares:
    """Shares of the teachers, by a regression on public features.

    `shares`: float[N, m], fitted; they add up to 1, and may leave [0, 1] a little. `weights`
    [d, m], `biases` [m]: the regression. `penalty`: of ridge, relative to the mean variance of a
    feature. `errors`: float[N], the standard error of each row's shares: what is left of the noise,
    which is known, and what the features miss, as far as rows that were left out show it.
    """

    shares: Floats
    weights: Floats
    biases: Floats
    penalty: float
    errors: Floats

    @property
    def winners(self) -> Ints:
        """The class with the largest share of each row, int64[N]."""
        winners: Ints = self.shares.argmax(axis=1)
        return winners

    @property
    def leads(self) -> Floats:
        """By how much the largest share exceeds the next, float[N]."""
        second, first = np.partition(self.shares, -2, axis=1)[:, -2:].T
        return np.asarray(first - second)

    def clear_labels(self, deviations: float = DEVIATIONS, most: float = CLEAREST) -> Ints:
        """Return labels [N] for the rows that are clear, −1 for the rest.

        Of the rows that a class wins, those that lead by so many standard deviations, but at least
        the share `FEWEST` of them and at most the share `most`.
        """
        winners, leads = self.winners, self.leads
        labels = np.full(len(winners), -1, dtype=np.int64)
        for winner in np.unique(winners):
            rows = np.flatnonzero(winners == winner)
            rows = rows[np.argsort(-leads[rows], kind="stable")]
            clear = int((leads[rows] >= deviations * np.sqrt(2) * self.errors[rows]).sum())
            taught = max(clear, math.ceil(FEWEST * len(rows)))
            labels[rows[: min(taught, math.ceil(most * len(rows)))]] = winner
        return labels


def fit_shares(features: Floats, shares: Floats, noise: float) -> FittedShares:
    """Return the ridge regression of shares [N, m] on features [N, d].

    `noise`: the standard deviation in each share; 0 for labels. The penalty is the one with the
    least error on rows that are left out, one at a time, in closed form; as the noise is the same
    for all penalties and independent of what was fitted without the row, noisy rows rank them as
    true shares would.
    """
    centre, level = features.mean(axis=0), shares.mean(axis=0)
    left, values, right = np.linalg.svd(features - centre, full_matrices=False)
    rotated, squares = left.T @ (shares - level), values**2
    unit = float(squares.sum()) / features.shape[1] or 1.0  # constant features: any penalty
    variance = noise**2

    def missed_of(penalty: float) -> Floats:
        """By how much each row is missed without its own counts, in closed form."""
        shrunk = squares / (squares + penalty * unit)
        leverage = (left**2) @ shrunk + 1 / len(shares)
        missed: Floats = shares - level - left @ (rotated * shrunk[:, None])
        return missed / np.maximum(1 - leverage, TINY)[:, None]

    errors = [float((missed_of(penalty) ** 2).mean()) for penalty in PENALTIES]
    best = int(np.flatnonzero(errors == np.min(errors))[-1])  # of equals, the strongest
    inverse = values / (squares + PENALTIES[best] * unit)
    remaining = variance * (((left * (values * inverse)) ** 2).sum(axis=1) + 1 / len(shares))
    missed = max(0.0, errors[best] - variance - float(remaining.mean()))
    weights = right.T @ (rotated * inverse[:, None])
    biases = level - centre @ weights
    return FittedShares(
        shares=features @ weights + biases,
        weights=weights,
        biases=biases,
        penalty=float(PENALTIES[best]),
        errors=np.sqrt(remaining + missed),
    )
