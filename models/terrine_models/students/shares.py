"""Learn from noisy vote counts: fit the teachers' shares to public features.

A single row's noisy counts say little. But all rows share a few features, and the noise is known,
so least squares averages it out: the variance of a fitted share is about d/N of a single one's. One
budget for N rows makes each row's noise grow with √N, and the fitted noise stays the same, however
many rows are asked. So ask all of them.

Everything here is post-processing of released counts and public inputs: it costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PENALTIES = np.geomspace(1e-6, 1e2, 41)
"""Ridge penalties that are tried, relative to the mean variance of a feature."""
FEWEST, CLEAREST = 0.2, 0.8
"""The least and the most of the rows that a class wins that become labels, the clearest first. A
class without labels would be forgotten."""
DEVIATIONS = 2.0
"""By how many standard deviations a class must lead, to become a label."""
FOLDS = 5


@dataclass(frozen=True, eq=False)
class FittedShares:
    """Shares of the teachers, by a regression on public features.

    `shares`: float[N, m], fitted; they add up to 1, and may leave [0, 1] a little. `held_out`:
    float[N, m], what is predicted of each row by a regression without its counts. `weights`
    [d, m], `biases` [m]: the regression. `penalty`: of ridge, relative to the mean variance of a
    feature. `link`: `tanh` if shares are (1 + tanh score) / 2, of two classes (`tanh_shares.py`);
    `softmax` if they are a softmax of the scores (`softmax_shares.py`).
    `errors`: float[N], the standard error of each row's shares: what is left of the noise, which
    is known, and what the features miss, as far as rows that were left out show it.
    """

    shares: Floats
    held_out: Floats
    weights: Floats
    biases: Floats
    penalty: float
    errors: Floats
    link: Literal["identity", "tanh", "softmax"] = "identity"

    def predict(self, features: Floats) -> Floats:
        """Shares [B, m] of features [B, d]."""
        scores: Floats = features @ self.weights + self.biases
        if self.link == "softmax":
            return np.asarray(softmax(scores, axis=1))
        return scores if self.link == "identity" else (1 + np.tanh(scores)) / 2

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

    def clear_labels(self) -> Ints:
        """Return labels [N] for the rows that are clear, −1 for the rest.

        Of the rows that a class wins, those that lead by `DEVIATIONS` standard deviations, but at
        least `FEWEST` and at most `CLEAREST` of them.
        """
        winners, leads = self.winners, self.leads
        labels = np.full(len(winners), -1, dtype=np.int64)
        for winner in np.unique(winners):
            rows = np.flatnonzero(winners == winner)
            rows = rows[np.argsort(-leads[rows], kind="stable")]
            clear = int((leads[rows] >= DEVIATIONS * np.sqrt(2) * self.errors[rows]).sum())
            least, most = math.ceil(FEWEST * len(rows)), math.ceil(CLEAREST * len(rows))
            labels[rows[: min(max(clear, least), most)]] = winner
        return labels


def fit_shares(features: Floats, counts: Ints, teachers: int, sigma: float) -> FittedShares:
    """Return the ridge regression of counts [N, m] on features [N, d], N > 1.

    `sigma`: of the noise in each count, in votes. The penalty is the one with the least error on
    rows that are left out, one at a time, in closed form; as the noise is the same for all
    penalties and independent of what was fitted without the row, noisy rows rank them as true
    shares would. Raises ValueError on shapes that do not fit.
    """
    noisy = noisy_shares(features, counts, teachers)
    centre, level = features.mean(axis=0), noisy.mean(axis=0)
    left, values, right = np.linalg.svd(features - centre, full_matrices=False)
    rotated, squares = left.T @ (noisy - level), values**2
    unit = float(squares.sum()) / features.shape[1] or 1.0  # constant features: any penalty
    noise = (sigma / teachers) ** 2

    def missed_of(penalty: float) -> Floats:
        """By how much each row is missed without its own counts, in closed form."""
        shrunk = squares / (squares + penalty * unit)
        leverage = (left**2) @ shrunk + 1 / len(counts)
        missed: Floats = noisy - level - left @ (rotated * shrunk[:, None])
        return missed / (1 - leverage)[:, None]

    errors = [float((missed_of(penalty) ** 2).mean()) for penalty in PENALTIES]
    best = int(np.flatnonzero(errors == np.min(errors))[-1])  # of equals, the strongest
    inverse = values / (squares + PENALTIES[best] * unit)
    remaining = noise * ((left * (values * inverse)) ** 2).sum(axis=1) + noise / len(counts)
    missed = max(0.0, errors[best] - noise - float(remaining.mean()))
    weights = right.T @ (rotated * inverse[:, None])
    biases = level - centre @ weights
    return FittedShares(
        shares=features @ weights + biases,
        held_out=noisy - missed_of(PENALTIES[best]),
        weights=weights,
        biases=biases,
        penalty=float(PENALTIES[best]),
        errors=np.sqrt(remaining + missed),
    )


def noisy_shares(features: Floats, counts: Ints, teachers: int) -> Floats:
    """Return counts [N, m] as noisy shares. Raises ValueError unless features are [N, d], N > 1."""
    if features.ndim != 2 or counts.ndim != 2 or len(features) != len(counts) or len(counts) < 2:
        raise ValueError(
            f"features {features.shape} and counts {counts.shape} need the same rows, at least 2"
        )
    noisy: Floats = counts / teachers
    return noisy


def noisy_agreement(predicted: Ints, counts: Ints, teachers: int) -> float:
    """Return an unbiased estimate of the share of the teachers that agree with predictions [N].

    Unbiased for rows whose counts had no part in the predictions: noise has mean 0.
    """
    return float(counts[np.arange(len(predicted)), predicted].mean() / teachers)


Fit = Callable[[Floats, Ints, int, float], FittedShares]
"""Of features [N, d] and counts [N, m], with the number of teachers and σ."""


def by_folds(fit: Fit, features: Floats, counts: Ints, teachers: int, sigma: float) -> Floats:
    """Return shares [N, m] of each row as predicted by a fit without its fold."""
    held_out = np.empty(counts.shape)
    if len(counts) < 2 * FOLDS:  # there is nothing to judge by: the mean
        held_out[:] = counts.mean(axis=0) / teachers
        return held_out
    fold = np.random.default_rng(0).permutation(len(counts)) % FOLDS
    for number in range(FOLDS):
        own = fold == number
        fitted = fit(features[~own], counts[~own], teachers, sigma)
        held_out[own] = fitted.predict(features[own])
    return held_out


def judged(
    fit: Fit,
    remaining: Callable[[FittedShares], Floats],
    features: Floats,
    counts: Ints,
    teachers: int,
    sigma: float,
) -> FittedShares:
    """Return the fit of all rows, with what fits without each row's fold predict of it.

    `remaining`: the variance [N] that the noise leaves in its shares. Its errors are that and what
    held-out rows are missed by. Raises ValueError on shapes that do not fit.
    """
    noisy = noisy_shares(features, counts, teachers)
    held_out = by_folds(fit, features, counts, teachers, sigma)
    fitted = fit(features, counts, teachers, sigma)
    squared = remaining(fitted)
    error = float(((held_out - noisy) ** 2).mean()) - (sigma / teachers) ** 2
    missed = max(0.0, error - float(squared.mean()))
    return replace(fitted, held_out=held_out, errors=np.sqrt(squared + missed))


def better(
    linked: FittedShares, ridge: FittedShares, of_ridge: Floats, noisy: Floats, noise: float
) -> tuple[FittedShares, str]:
    """Return the better of a regression with a link and one without, and a sentence that says why.

    Both predict rows that they were not fitted on, `of_ridge` [N, m] what ridge does; the mean
    squared error of that, less the known variance of the noise, is an unbiased estimate of the
    error against the true shares.
    """
    with_link, without = (
        float(((held_out - noisy) ** 2).mean()) - noise for held_out in (linked.held_out, of_ridge)
    )
    chosen = linked if with_link <= without else ridge
    why = (
        f"On rows that were held out, shares are missed by a mean square of {with_link:.5f} "
        f"with a {linked.link} link and {without:.5f} without, noise taken off: "
        f"{'the first' if chosen is linked else 'the second'} is used."
    )
    return chosen, why
