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


def cut(wanted: Threshold, probabilities: Floats, answers: Answers) -> float | None:
    """Return the probability from which the second class is said; None: the likelier class is said.

    `probabilities` [N, m]: calibrated, of public inputs. Of labels their mean is the prior, as
    inputs without a label count, too; of noisy counts, the mean of all. Of more than two classes
    the likeliest is said. Of teachers that match their prior, a
    plurality errs towards the larger class, as each of them is unsure in its own way; one that knew
    all records would say the rarer class less often than the prior only by what features leave
    open, `LABEL_NOISE`. Where features say little, the rarer class is said as often as it is.
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
    return float(np.clip(np.quantile(second, 1 - share), 1e-9, 1 - 1e-9))
