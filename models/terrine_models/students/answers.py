"""What a student learns from: for each input, the shares of the teachers for every class.

    Answers.of_labels(labels, classes=10)                        # -1 where there is none
    Answers.of_counts(counts, teachers=1000, sigma=500.0)        # all rows, or those of `known`

A bought label is the whole share of one class. Noisy counts are shares with a noise that is known
and has mean 0, so whatever is linear in the shares is estimated from them without bias: how many of
the teachers agree with predictions, and where a student that did not see the answers ranks them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array, diags_array, eye_array

from terrine_models.data.workers import side_by_side

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
FOLDS = 5
# With fewer answers than this per class on average, there is nothing to judge by.
MIN_ANSWERS_PER_CLASS = 2


@dataclass(frozen=True, eq=False)
class Answers:
    """Shares [N, m] of the teachers, where `known` [N]; 0 elsewhere.

    `noise`: the standard deviation of each share; 0 for labels. `matches_prior`: whether the
    teachers of counts, for two classes, choose each as often as their records have it. `voting`:
    the share of the teachers that vote on an input, on average; less than 1 of neighbours.
    """

    shares: Floats
    known: Bools
    noise: float = 0.0
    matches_prior: bool = False
    voting: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError if nothing is known."""
        if not self.known.any():
            raise ValueError("there is nothing to learn from: no input has a label")

    @classmethod
    def of_labels(cls, labels: Ints, classes: int) -> Answers:
        """Labels [N], -1 where there is none."""
        known = labels >= 0
        return cls(np.eye(classes)[labels] * known[:, None], known)

    @classmethod
    def of_counts(
        cls,
        counts: Ints,
        *,
        teachers: int,
        sigma: float,
        known: Bools | None = None,
        matches_prior: bool = False,
        voting: float = 1.0,
    ) -> Answers:
        """Counts [N, m] with noise of `sigma` votes, of all rows or of those that are `known`.

        teachers: that vote on an input, on average.
        """
        known = np.ones(len(counts), dtype=bool) if known is None else known
        shares = np.where(known[:, None], counts, 0) / teachers
        return cls(shares, known, sigma / teachers, matches_prior, voting)

    @property
    def labels(self) -> Ints:
        """The class with the largest share [N], -1 where nothing is known."""
        labels: Ints = np.where(self.known, self.shares.argmax(axis=1), -1)
        return labels

    @property
    def prior(self) -> Floats:
        """The mean share [m] of each class."""
        prior: Floats = self.shares[self.known].mean(axis=0)
        return prior

    def only(self, rows: Bools) -> Answers:
        """The same answers, of which those outside `rows` [N] are not known."""
        return replace(self, shares=self.shares * rows[:, None], known=self.known & rows)

    def of(self, rows: Ints) -> Answers:
        """The answers to some of the inputs, in that order."""
        return replace(self, shares=self.shares[rows], known=self.known[rows])

    def folds(self, seed: int, inputs: Ints) -> Ints | None:
        """The fold [N] of each known answer: FOLDS, fewer if answers are few; -1 for the others.

        `inputs` [N]: which input each row is. One that was asked twice has one answer, with one
        draw of noise, so it is in one fold. Each fold has about as many of a class as any other.
        None where answers are too few to judge by.
        """
        _, first, rows = np.unique(inputs[self.known], return_index=True, return_inverse=True)
        labels = self.labels[self.known][first]
        count = min(FOLDS, len(labels) // self.shares.shape[1])
        if count < MIN_ANSWERS_PER_CLASS:
            return None
        shuffled = np.random.default_rng(seed).permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        places = np.empty(len(labels), dtype=np.int64)
        places[by_class] = np.arange(len(labels)) % count
        folds = np.full(len(self.known), -1)
        folds[self.known] = places[rows]
        return folds


@dataclass(frozen=True)
class Estimate:
    """A figure, and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class EstimatedMetrics:
    """How predictions agree with answers that they were made without.

    accuracy: the share of the answers, of noisy counts that of the teachers' votes.
    balanced_accuracy: the mean of that over the classes. auc: of two classes, how often an answer
    for the second has a higher probability than one for the first; else None.
    """

    accuracy: Estimate
    balanced_accuracy: Estimate
    auc: Estimate | None


def estimate_metrics(
    shares: Floats, predicted: Ints, probabilities: Floats, inputs: Ints
) -> EstimatedMetrics:
    """Figures of predictions [K] with probabilities [K, m] against shares [K, m] of the same rows.

    Unbiased, or nearly so, if the noise of the shares had no part in what was predicted. Errors are
    those of the distinct `inputs` [K], noise included, by the delta method; of the AUC, after
    DeLong et al., 1988.
    """
    rows, classes = np.arange(len(shares)), shares.shape[1]
    right = shares[rows, predicted]
    prior = shares.mean(axis=0)
    shown = np.flatnonzero(prior > 0)
    chosen = predicted[:, None] == np.arange(classes)
    recalls = (shares * chosen).mean(axis=0)[shown] / prior[shown]
    parts = shares[:, shown] * (chosen[:, shown] - recalls) / prior[shown]
    return EstimatedMetrics(
        accuracy=_mean(right, inputs),
        balanced_accuracy=Estimate(float(recalls.mean()), _mean(parts.mean(axis=1), inputs).error),
        auc=_auc(shares, probabilities[:, 1], inputs) if classes == 2 and len(shown) == 2 else None,
    )


def estimate_lead(shares: Floats, one: Ints, other: Ints, inputs: Ints) -> Estimate:
    """By how much more of the shares [K, m] of `inputs` [K] one prediction agrees with."""
    rows = np.arange(len(shares))
    return _mean(shares[rows, one] - shares[rows, other], inputs)


def estimate_auc_lead(shares: Floats, one: Floats, other: Floats, inputs: Ints) -> Estimate:
    """By how much larger the AUC of one score [K] of the second of two classes is than another's.

    shares: [K, 2]. Both are of the same answers, whose noise is then nearly the same (DeLong).
    """
    (area, parts), (less, others) = (_auc_parts(shares, each) for each in (one, other))
    return Estimate(area - less, _mean(parts - others, inputs).error)


def _mean(values: Floats, inputs: Ints) -> Estimate:
    """The mean, and its error, as if one more input's value were one further from it."""
    spread = np.bincount(np.unique(inputs, return_inverse=True)[1], values - values.mean())
    squares = float((spread**2).sum()) + 1
    return Estimate(float(values.mean()), float(np.sqrt(squares)) / len(values))


def _auc(shares: Floats, scores: Floats, inputs: Ints) -> Estimate:
    area, parts = _auc_parts(shares, scores)
    return Estimate(area, _mean(parts, inputs).error)


def _auc_parts(shares: Floats, scores: Floats) -> tuple[float, Floats]:
    """The AUC of scores [K], and by how much each row moves it, times K."""
    order = np.argsort(scores)
    of_no, of_yes = shares.T
    prior_no, prior_yes = of_no.mean(), of_yes.mean()

    def below(weights: Floats) -> Floats:
        """The mean of `weights` over rows with a smaller score, and half of those with the same."""
        sums = np.concatenate([[0.0], weights[order].cumsum()])
        first, last = (np.searchsorted(scores[order], scores, side) for side in ("left", "right"))
        half: Floats = (sums[first] + sums[last]) / 2 / len(weights)
        return half

    own = of_yes * of_no / (2 * len(scores))
    under, over = below(of_no), prior_yes - below(of_yes)
    area = float((of_yes * under - own).mean() / (prior_yes * prior_no))
    parts = of_yes * (under / prior_no - area) / prior_yes
    parts += of_no * (over / prior_yes - area) / prior_no
    return area, parts


Real = TypeVar("Real", np.float32, np.float64)
# Variance that a score x·w of one of several classes is expected to have before any count is seen,
# along the features' usual size. The penalty on w is the variance of the noise divided by that of
# w. Chosen on Fashion-MNIST's training images, where 0.5 to 1.5 did nearly as well.
SCORE_VARIANCE = 1.0
# The same for two classes. Chosen on Adult, where 0.1 to 0.4 did nearly as well; where features say
# little, as of late flights, 0.1 shrinks too much.
SCORE_VARIANCE_OF_TWO = 0.2
# Variance that the logarithm of a class's frequency is expected to have before any count is seen.
# Where noise is large, a class would otherwise win or lose rows by the noise of its total alone.
# Two classes get a threshold afterwards (`models.choose_threshold`).
LOG_FREQUENCY_VARIANCE = 0.1
# Steps of L-BFGS at most, in single precision: what is left is far below the noise.
MAX_LBFGS_STEPS = 40


def usual_spread(classes: int) -> float:
    """Return the variance of scores of so many classes that is expected before any is seen."""
    return SCORE_VARIANCE if classes > 2 else SCORE_VARIANCE_OF_TWO


def fit_softmax(
    features: Floats,
    shares: Floats,
    noise: float,
    *,
    votes: csr_array | None = None,
    spread: float | None = None,
    base: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Return W [d, m] and b [m] of shares softmax(x·W + b), fitted to noisy ones [K, m].

    Near 0 and 1 a linear regression bends where it should not, and spends noise on classes that no
    teacher would choose; a softmax saturates there.

    Squared errors on features [N, d], with penalties on W, and on the differences of b, that follow
    from the known `noise` of each share. votes: [K, N], what the shares at each input add to those
    that were seen (`weigh_surroundings`); without it, they are the same. spread: None is the usual
    one. base: scores [N, m] to which these are added.
    """
    centre = features.mean(axis=0)
    rows, classes = (features - centre).astype(np.float32), shares.shape[1]
    size = float((rows**2).sum(axis=1).mean())
    seen = shares.astype(np.float32)
    variance, least = noise**2, 1e-9 * len(seen)
    several = classes > 2
    spread = spread or usual_spread(classes)
    penalty = max(variance * size / spread, least)
    evening = variance / LOG_FREQUENCY_VARIANCE if several else 0.0
    back = None if votes is None else votes.T.tocsr()
    known = None if base is None else base.astype(np.float32)

    def loss_of(flat: Floats) -> tuple[float, Floats]:
        weights, biases = flat[classes:].reshape(-1, classes), flat[:classes]
        scores = rows @ weights.astype(np.float32) + biases.astype(np.float32)
        fitted = softmax(scores if known is None else scores + known)
        missed = (fitted if votes is None else votes @ fitted) - seen
        steep = missed if back is None else back @ missed
        slopes = 2 * fitted * (steep - (steep * fitted).sum(axis=1, keepdims=True))
        uneven = biases - biases.mean()
        of_biases = slopes.sum(axis=0) + 2 * evening * uneven
        slope = np.concatenate([of_biases, (rows.T @ slopes + 2 * penalty * weights).flat])
        loss = float(np.square(missed, dtype=np.float64).sum())
        loss += penalty * float((weights**2).sum()) + evening * float((uneven**2).sum())
        return loss / len(seen), slope / len(seen)

    start = np.zeros(classes * (1 + features.shape[1]))
    if base is None:
        start[:classes] = np.log(shares.mean(axis=0).clip(0.01))
    found = minimize(
        loss_of, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_LBFGS_STEPS}
    ).x
    weights = found[classes:].reshape(-1, classes)
    return weights, found[:classes] - centre @ weights


def softmax(scores: NDArray[Real]) -> NDArray[Real]:
    """Shares [N, m] of scores [N, m], in their precision."""
    fitted: NDArray[Real] = np.exp(scores - scores.max(axis=1, keepdims=True))
    fitted /= fitted.sum(axis=1, keepdims=True)
    return fitted


# Ridge penalties that are tried, relative to the mean variance of a feature.
RIDGE_PENALTIES = np.geomspace(1e-6, 1e2, 41)
# What a row that decides its own fit leaves open: nothing.
MIN_RESIDUAL_SHARE = 1e-9


def fit_shares(features: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return weights [d, m] and biases [m] of the ridge regression of shares [N, m] on features.

    The penalty is the one with the least error on rows that are left out, one at a time, in closed
    form. features: [N, d].
    """
    centre, level = features.mean(axis=0), shares.mean(axis=0)
    left, values, right = np.linalg.svd(features - centre, full_matrices=False)
    rotated, squares = left.T @ (shares - level), values**2
    unit = float(squares.sum()) / features.shape[1] or 1.0  # constant features: any penalty

    def error_of(penalty: float) -> float:
        shrunk = squares / (squares + penalty * unit)
        leverage = (left**2) @ shrunk + 1 / len(shares)
        missed = shares - level - left @ (rotated * shrunk[:, None])
        return float(((missed / np.maximum(1 - leverage, MIN_RESIDUAL_SHARE)[:, None]) ** 2).mean())

    errors = [error_of(penalty) for penalty in RIDGE_PENALTIES]
    best = RIDGE_PENALTIES[np.flatnonzero(errors == np.min(errors))[-1]]  # of equals, the strongest
    weights: Floats = right.T @ (rotated * (values / (squares + best * unit))[:, None])
    return weights, level - centre @ weights


# How many neighbours vote on an input, and for what, follows from the inputs around it. Of trained
# teachers, all vote on every input. Of neighbours only the units near it do, and there are more of
# them in one place than in another; where many are exhausted, hardly any. A student that takes each
# count as a share of the mean number of votes finds inputs undecided where few vote. And the units
# near an input are of the classes of all inputs round about: their votes are a blurred picture of
# the classes. So what is fitted to the counts are not the shares at an input, but the sum of those
# around it (`weigh_surroundings`), as a telescope's picture is fitted with its blur.

# Inputs that stand for the units: of more, every second, third, …. That bounds memory.
MAX_STAND_INS = 10_000
# Stand-ins around each input: an average needs no more.
MAX_AROUND = 50
# Votes on an input at least, relative to their mean: below that, they could not be told from 0.
MIN_VOTES = 0.2
# Variances of scores (`SCORE_VARIANCE`) among which answers choose: few columns that tell classes
# apart want the largest, many columns the least.
SCORE_VARIANCES = (1.0, 4.0, 16.0)
# The same for two classes.
SCORE_VARIANCES_OF_TWO = (0.2, 0.8)
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
        shares, of_rest = rest.shares[rest.known], weigh_surroundings(features, rest, near)
        for place, spread in enumerate(spreads):
            weights, biases = fit_softmax(
                features, shares, rest.noise, votes=of_rest, spread=spread
            )
            fitted = expected @ softmax(features @ weights + biases)
            errors[place] += ((fitted - answers.shares[own]) ** 2).sum()
    return spreads[int(errors.argmin())]


def fit_near(
    features: Floats,
    answers: Answers,
    near: csr_array,
    spread: float,
    base: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Return W [d, m] and b [m] of shares softmax(x·W + b), fitted to the votes around inputs.

    base: scores [N, m] to which these are added.
    """
    shares = answers.shares[answers.known]
    votes = weigh_surroundings(features, answers, near)
    return fit_softmax(features, shares, answers.noise, votes=votes, spread=spread, base=base)
