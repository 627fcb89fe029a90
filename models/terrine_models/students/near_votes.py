"""Votes of neighbours: how many vote on an input, and for what, follows from the inputs around it.

Of trained teachers, all vote on every input. Of neighbours only the units near it do, and there are
more of them in one place than in another; where many are exhausted, hardly any. A student that
takes each count as a share of the mean number of votes finds inputs undecided where few vote. And
the units near an input are of the classes of all inputs round about: their votes are a blurred
picture of the classes. So what is fitted to the counts are not the shares at an input, but the sum
of those around it (`weigh_surroundings`), as a telescope's picture is fitted with its blur.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array, diags_array, eye_array

from terrine_models.data.workers import side_by_side
from terrine_models.students.answers import (
    Answers,
    Floats,
    Ints,
    fit_shares,
    fit_softmax,
    softmax,
)

MAX_STAND_INS = 10_000
"""Inputs that stand for the units: of more, every second, third, …. That bounds memory."""
MAX_AROUND = 50
"""Stand-ins around each input: an average needs no more."""
MIN_VOTES = 0.2
"""Votes on an input at least, relative to their mean: below that, they could not be told from 0."""
SCORE_VARIANCES = (1.0, 4.0, 16.0)
"""Variances of scores (`answers.SCORE_VARIANCE`) among which answers choose: few columns that tell
classes apart want the largest, many columns the least."""
SCORE_VARIANCES_OF_TWO = (0.2, 0.8)
"""The same for two classes."""
BLOCK_ROWS = 512


def find_surroundings(features: Floats, voting: float) -> csr_array:
    """Return [N, N], of features [N, d]: for each input, the inputs around it, with sum 1.

    voting: the share of all units that vote on an input, so about that of the inputs that are as
    near to it. An input is around itself.
    """
    rows = len(features)
    points = np.arange(0, rows, max(-(-rows // MAX_STAND_INS), int(voting * rows / MAX_AROUND)))
    count = round(voting * len(points))
    if count < 2:
        return eye_array(rows, dtype=np.float32, format="csr")
    rounded = features.astype(np.float32)
    among = rounded[points]
    squares = (among * among).sum(axis=1) / 2

    def nearest(at: int) -> Ints:
        near = rounded[at : at + BLOCK_ROWS] @ among.T - squares  # the farther, the less
        if count == len(points):
            return np.broadcast_to(np.arange(count), near.shape)
        return np.argpartition(near, -count, axis=1)[:, -count:]

    found = side_by_side(nearest, range(0, rows, BLOCK_ROWS))
    columns = points[np.concatenate(found).ravel()]
    each = np.full(len(columns), 1 / count, dtype=np.float32)
    return csr_array((each, columns, np.arange(0, len(each) + 1, count)), shape=(rows, rows))


def weigh_surroundings(features: Floats, answers: Answers, near: csr_array) -> csr_array:
    """Return [K, N]: what a class at each of N inputs adds to its share in each of K answers.

    How many vote on an input is fitted to the sums of its noisy counts. near: [N, N], of `around`.
    """
    known = answers.known
    weights, biases = fit_shares(features[known], answers.shares[known].sum(axis=1, keepdims=True))
    votes = np.maximum(features[known] @ weights + biases, MIN_VOTES).ravel()
    found: csr_array = (diags_array(votes.astype(np.float32)) @ near[known]).tocsr()
    return found


def choose_score_variance(
    features: Floats, answers: Answers, near: csr_array, folds: Ints | None
) -> float:
    """Return the variance of scores with which one half of the answers says most of the other.

    By squared errors, which noise does not bias. folds: [N], of `Answers.folds`; None: too few.
    """
    spreads = SCORE_VARIANCES_OF_TWO if answers.shares.shape[1] == 2 else SCORE_VARIANCES
    if folds is None:
        return spreads[0]
    votes, errors = weigh_surroundings(features, answers, near), np.zeros(len(spreads))
    for half in (0, 1):
        own = (folds >= 0) & (folds % 2 == half)
        rest, expected = answers.only(~own), votes[own[answers.known]]
        for place, spread in enumerate(spreads):
            weights, biases = fit_near(features, rest, near, spread)
            fitted = expected @ softmax(features @ weights + biases)
            errors[place] += ((fitted - answers.shares[own]) ** 2).sum()
    return spreads[int(errors.argmin())]


def fit_near(
    features: Floats, answers: Answers, near: csr_array, spread: float
) -> tuple[Floats, Floats]:
    """Return W [d, m] and b [m] of shares softmax(x·W + b), fitted to the votes around inputs."""
    shares = answers.shares[answers.known]
    votes = weigh_surroundings(features, answers, near)
    return fit_softmax(features, shares, answers.noise, votes=votes, spread=spread)
