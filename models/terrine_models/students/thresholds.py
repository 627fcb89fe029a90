"""From shares to labels: probabilities are calibrated, and shares of two classes are cut.

Where one of two classes is rare, its share hardly ever is the larger one, so a student that says
the likelier class says the same of all rows, however well it ranks them. So it says the second
class of as many public inputs as the mean share of that class lets expect: `prior`. `accuracy` says
the likelier class, and a number is the probability from which the second class is said. All of it
uses public inputs and bought answers that the judged student did not see, and costs no privacy.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from scipy.optimize import minimize

from terrine_models.students.answers import Answers, Floats
from terrine_models.students.models import Calibration
from terrine_models.students.settings import Threshold

SCALES = (1 / 32, 32.0)
"""The least and the greatest factor of a student's scores."""
FARTHEST = 5.0
"""The greatest shift of the scores of two classes."""
DOUBTFUL = 0.02
"""The greatest standard error of a prior that is worth a cut."""
LABEL_NOISE = 0.35
"""Variance of what features do not say of a label, relative to what they say (on the scale of a
probit model): about an area of 0.9 under the ROC curve."""
LITTLE, ENOUGH = 0.1, 0.2
"""Share of the votes' variance that features say, up to which that does not count, and from which
it counts in full. Adult's say 0.23 of it: to say the rarer class less often made 83.8 instead of
83.3 % right. Those of late flights say 0.13: it would only find fewer of them."""

FEWER = tuple(k / 10 for k in range(3, 10))
"""Shares of the rows that the rarer class is said of by its prior, to which it may be confined."""


def calibrated(probabilities: Floats, shares: Floats) -> Calibration:
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

    steepness = tuple(np.log(SCALES))
    bounds = [steepness, (-FARTHEST, FARTHEST)] if two else [steepness]
    return of(minimize(missed, np.zeros(len(bounds)), method="Powell", bounds=bounds).x)


def confined(probabilities: Floats, answers: Answers) -> float:
    """Return the least share of the rows by the prior of which saying the rarer class is worth it.

    Where all that is known of the rarer class is in a few rows, to say it of others is to guess: it
    finds as many of one class as it loses of the other, so balanced accuracy stays what it is, and
    accuracy falls. probabilities: [K, 2], of the answers that are known, which they did not see. 1
    unless balanced accuracy over these noisy counts is as high with fewer.
    """
    at = cut("prior", probabilities, answers)
    if at is None or not answers.noise:
        return 1.0
    shares = answers.shares[answers.known]
    said = probabilities[:, 1] >= at
    rarer = 1 if said.mean() <= 1 / 2 else 0
    gains = (shares / shares.mean(axis=0)) @ ([-1, 1] if rarer else [1, -1])
    found = gains[np.argsort(-probabilities[:, rarer], kind="stable")].cumsum()
    rows = int(said.sum() if rarer else (~said).sum())
    for fewer in FEWER:
        if found[max(0, round(fewer * rows) - 1)] >= found[max(0, rows - 1)]:
            return fewer
    return 1.0


def cut(
    wanted: Threshold, probabilities: Floats, answers: Answers, fewer: float = 1.0
) -> float | None:
    """Return the probability from which the second class is said; None: the likelier class is said.

    `probabilities` [N, m]: calibrated, of public inputs. Of labels their mean is the prior, as
    inputs without a label count, too; of noisy counts, the mean of all. Of more than two classes
    the likeliest is said. Of teachers that match their prior, a
    plurality errs towards the larger class, as each of them is unsure in its own way; one that knew
    all records would say the rarer class less often than the prior only by what features leave
    open, `LABEL_NOISE`. Where features say little, the rarer class is said as often as it is.
    fewer: of that, the share that is said, as `confined` finds it.
    """
    if wanted == "accuracy" or probabilities.shape[1] != 2:
        return None
    second = probabilities[:, 1]
    if wanted != "prior":
        return wanted
    error = answers.noise / np.sqrt(2 * answers.known.sum())
    prior = float(answers.prior[1] if answers.noise else second.mean())
    if error > DOUBTFUL or not 2 * error < prior < 1 - 2 * error or np.ptp(second) < 1e-9:
        return None
    share = prior
    if answers.matches_prior:
        normal = NormalDist()
        said = float(second.var()) / (prior * (1 - prior))
        open_ = LABEL_NOISE * float(np.clip((said - LITTLE) / (ENOUGH - LITTLE), 0, 1))
        share = normal.cdf(normal.inv_cdf(prior) * (1 + open_) ** 0.5)
    share = share * fewer if share <= 1 / 2 else 1 - (1 - share) * fewer
    return float(np.clip(np.quantile(second, 1 - share), 1e-9, 1 - 1e-9))
