"""From scores to probabilities and classes: what the answers say of how sure a student may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.optimize import minimize
from scipy.special import softmax

from terrine_models.students.answers import (
    Answers,
    Floats,
)
from terrine_models.sums import cut_at_share
from terrine_protocol.base import Record

# How shares of two classes become labels; see `choose_threshold`.
Threshold = Literal["prior", "accuracy"] | Annotated[float, Field(gt=0, lt=1)]


# Which rows: drawn from the schema and released histograms; public ones that the student learned
# from, or the owner published; or those of whoever uses it.
CutSource = Literal["drawn", "public", "given"]


@dataclass(frozen=True)
class Cut:
    """On which rows it was placed how often a student says each class."""

    source: CutSource
    rows: int


@dataclass(frozen=True)
class CutPlaces:
    """What makes classes of probabilities. None of both: the likeliest is said."""

    threshold: float | None = None
    """Probability from which the second of two classes is said."""
    offsets: tuple[float, ...] | None = None
    """Of more classes: what is added to the logarithm of each probability."""


class Calibration(Record):
    """What makes probabilities of scores: a factor, and for two classes a shift of the second."""

    scale: float = Field(default=1.0, gt=0)
    shift: float = 0.0

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities [B, m] of scores [B, m]."""
        scores = self.scale * scores
        scores[:, 1] += self.shift
        found: NDArray[np.float64] = softmax(scores, axis=1)
        return found


MIN_SCORE_FACTOR, MAX_SCORE_FACTOR = 1 / 32, 32.0
# The greatest shift of the scores of two classes.
MAX_SCORE_SHIFT = 5.0
# The greatest standard error of a prior that is worth a cut.
MAX_PRIOR_ERROR = 0.02
# Variance of what features do not say of a label, relative to what they say (on the scale of a
# probit model): about an area of 0.9 under the ROC curve.
LABEL_NOISE = 0.35
# Share of the votes' variance that features explain, up to which that does not count. Those of late
# flights explain 0.13: to predict the rarer class less often would only find fewer of them.
MIN_EXPLAINED_SHARE = 0.1
# Share from which it counts in full. Adult's features explain 0.23: to predict the rarer class less
# often made 83.8 instead of 83.3 % right.
FULLY_EXPLAINED_SHARE = 0.2

# Shares of the rows that the rarer class is said of by its prior, to which it may be confined.
CONFINED_SHARES = tuple(k / 10 for k in range(3, 10))


def calibrate(probabilities: Floats, shares: Floats) -> Calibration:
    """Return what brings probabilities [K, m] nearest to shares [K, m] that they did not see.

    By squared errors, which the noise of shares does not bias. One factor, and for two classes a
    shift: with more, a shift would only move noise into what is predicted.
    """
    scores = np.log(np.maximum(probabilities, 1e-12))
    two = shares.shape[1] == 2

    def of(found: Floats) -> Calibration:
        return Calibration(scale=float(np.exp(found[0])), shift=float(found[1]) if two else 0.0)

    def missed(found: Floats) -> float:
        return float(((of(found).probabilities(scores) - shares) ** 2).mean())

    steepness = (math.log(MIN_SCORE_FACTOR), math.log(MAX_SCORE_FACTOR))
    bounds = [steepness, (-MAX_SCORE_SHIFT, MAX_SCORE_SHIFT)] if two else [steepness]
    return of(minimize(missed, np.zeros(len(bounds)), method="Powell", bounds=bounds).x)


def confine_rarer_class(probabilities: Floats, answers: Answers) -> float:
    """Return the least share of the prior at which predicting the rarer class is worth it.

    Where all that is known of the rarer class is in a few rows, to predict it for others is to
    guess: balanced accuracy stays what it is, and accuracy falls. probabilities: [K, 2], of the
    answers that are known, which they did not see. 1 unless balanced accuracy over these noisy
    counts is as high with fewer.
    """
    at = choose_threshold("prior", probabilities, answers)
    if at is None or not answers.noise:
        return 1.0
    shares = answers.shares[answers.known]
    said = probabilities[:, 1] >= at
    rarer = 1 if said.mean() <= 1 / 2 else 0
    gains = (shares / shares.mean(axis=0)) @ ([-1, 1] if rarer else [1, -1])
    found = gains[np.argsort(-probabilities[:, rarer], kind="stable")].cumsum()
    rows = int(said.sum() if rarer else (~said).sum())
    for fewer in CONFINED_SHARES:
        if found[max(0, round(fewer * rows) - 1)] >= found[max(0, rows - 1)]:
            return fewer
    return 1.0


def choose_threshold(
    wanted: Threshold, probabilities: Floats, answers: Answers, fewer: float = 1.0
) -> float | None:
    """Return the probability from which the second class is predicted; None: the likelier class.

    Where one of two classes is rare, its share hardly ever is the larger one. So `prior` predicts
    the second class for as many public inputs as its mean share lets expect; `accuracy` predicts
    the likelier class, and a number is the threshold. Of more classes, the likeliest is predicted.

    `probabilities` [N, m]: calibrated, of public inputs. Of labels their mean is the prior, as
    inputs without a label count, too; of noisy counts, the mean of all. Of teachers that match
    their prior, a plurality errs towards the larger class, as each of them is unsure in its own
    way; one that knew all records would predict the rarer class less often than the prior only by
    what features leave open, `LABEL_NOISE`. Where features say little, the rarer class is predicted
    as often as it occurs. fewer: the share of that which is predicted (`confine_rarer_class`).
    Nothing is cut where the likelier class is predicted as often, as far as noise lets the prior be
    known. Of classes that are told apart with certainty, a prior that is one percent too small
    would be met by a threshold of nearly 1, which was wrong about one new picture in twenty.
    """
    if wanted == "accuracy" or probabilities.shape[1] != 2:
        return None
    second = probabilities[:, 1]
    if wanted != "prior":
        return wanted
    error = answers.noise / np.sqrt(2 * answers.known.sum())
    prior = float(answers.prior[1] if answers.noise else second.mean())
    if error > MAX_PRIOR_ERROR or not 2 * error < prior < 1 - 2 * error or np.ptp(second) < 1e-9:
        return None
    share = prior
    if answers.matches_prior:
        normal = NormalDist()
        said = float(second.var()) / (prior * (1 - prior))
        open_ = LABEL_NOISE * float(
            np.clip(
                (said - MIN_EXPLAINED_SHARE) / (FULLY_EXPLAINED_SHARE - MIN_EXPLAINED_SHARE), 0, 1
            )
        )
        share = normal.cdf(normal.inv_cdf(prior) * (1 + open_) ** 0.5)
    share = share * fewer if share <= 1 / 2 else 1 - (1 - share) * fewer
    likelier = float((second >= 1 / 2).mean())
    if fewer == 1 and abs(likelier - share) <= 2 * answers.noise / np.sqrt(answers.known.sum()):
        return None
    return cut_at_share(second, share)


OFFSET_STEPS = 300
# Share of the way to the wanted offset that the first step takes, and after how many it has halved.
OFFSET_PACE, OFFSET_HALVING_STEPS = 0.3, 30


def place_cut(probabilities: Floats, prior: Floats) -> CutPlaces:
    """Return what says each class as often as `prior` [m] has it, of rows [N, m] like real ones.

    A student of rows that are not like real ones knows which row is likelier to be of a class than
    another, but not how many are. Of more than two classes, a class that is said too rarely is
    raised, and another lowered, until shares agree. To match mean probabilities instead, which
    would suit accuracy if they were right, costs points, as they are not: of the textures of
    `benchmarks/datasets.py` 46 % were right, and 62 % so.
    """
    if probabilities.shape[1] == 2:
        return CutPlaces(threshold=cut_at_share(probabilities[:, 1], float(prior[1])))
    scores, least = np.log(np.maximum(probabilities, 1e-12)), 1 / len(probabilities)
    wanted, offsets = np.log(np.maximum(prior, least)), np.zeros(len(prior))
    for step in range(OFFSET_STEPS):
        said = np.bincount((scores + offsets).argmax(axis=1), minlength=len(prior)) * least
        pace = OFFSET_PACE / (1 + step / OFFSET_HALVING_STEPS)
        offsets += pace * (wanted - np.log(np.maximum(said, least)))
    return CutPlaces(offsets=tuple(float(each) for each in offsets - offsets.mean()))


# A class is expected as often as its share of all votes to this power, relative to others: votes
# are more uneven than the classes are.
CLASS_SHARE_POWER = 0.5
# Standard errors of a share: by how much a lead counts.
LEAD_SOFTNESS = 0.5
# Standard errors of a share: how much a class is favoured that is chosen e times too rarely. With
# 150 classes of characters it made 53 instead of 49 % of the labels right.
RARE_CLASS_PULL = 4.0
BIAS_STEPS = 200
# Share of the way to the wanted bias that a step takes.
BIAS_PACE = 0.2


def class_biases(shares: Floats, means: Floats, error: float) -> Floats:
    """Return what to add to shares [N, m] of this standard error, so that rare classes win rows.

    With many classes, the shard of a teacher lacks some of them, so it never votes for these. A
    class that is chosen less often than its share of all votes lets one expect gets a lead, and one
    that is chosen more often a handicap; they add up to 0. Distribution alignment (Berthelot et
    al., "ReMixMatch", ICLR 2020) in the units of the noise, and not to the full, as what to expect
    is uncertain itself.
    """
    least = error / len(shares) ** 0.5
    expected = np.maximum(means, least) ** CLASS_SHARE_POWER
    expected /= expected.sum()
    biases = np.zeros(shares.shape[1])
    softness = max(LEAD_SOFTNESS * error, 1e-9)
    for _ in range(BIAS_STEPS):
        odds = (shares + biases) / softness
        odds = np.exp(odds - odds.max(axis=1, keepdims=True))
        chosen = (odds / odds.sum(axis=1, keepdims=True)).mean(axis=0)
        wanted = (
            RARE_CLASS_PULL * error * np.log(expected / np.maximum(chosen, 1 / len(shares) ** 2))
        )
        biases += BIAS_PACE * (wanted - biases)
    centred: Floats = biases - biases.mean()
    return centred
