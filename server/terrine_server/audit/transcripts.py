"""All that a student of one project can see until it is refused, with exact probabilities.

A student's next query follows from earlier answers. So the law of its whole transcript in either
world is computed answer by answer: from the law of each outcome (`laws`), and the price list, which
decides when the project is exhausted. A transcript counts by its score alone: how much likelier it
is in one world, as a logarithm, with each answer's weight rounded to 1/64. But for that rounding,
no other guess is better than one by the score (Neyman and Pearson).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from terrine_server.audit.laws import Floats, Votes, labels, passes
from terrine_server.privacy import Account, Terms, VoteOutcome
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax

Answer = tuple[int, str, int]
"""The query's kind, the outcome, and the label: −1 if there is none."""
Laws = Mapping[Answer, tuple[float, float]]
"""The probabilities of an answer to a query of its kind, in either world."""
Next = Callable[[int | None], Mapping[int, float]]
"""From the last label of earlier requests: how often the next query is of each kind."""
STEPS = 64
"""To the unit of a score: weights are whole numbers of them, so that sums are exact."""
NEVER = 1e-24
"""What is less likely is not followed further."""


def outcomes(mechanism: ConfidentGNMax, votes: Votes) -> dict[tuple[str, int], float]:
    """Return the probability of each outcome and label."""
    answered, abstained = passes(max(votes) - mechanism.threshold, mechanism.sigma1)
    found = {(str(VoteOutcome.ABSTAINED), -1): abstained}
    for label, share in enumerate(labels(votes, mechanism.sigma2)):
        found[str(VoteOutcome.ANSWERED), label] = answered * float(share)
    return found


@dataclass(frozen=True)
class Guess:
    """The first world, if `first`, is guessed where the score for it is at least `least`.

    `right`, `wrong`: how often that is so where it is right and where it is wrong; exactly.
    """

    first: bool
    least: int
    right: float
    wrong: float

    def made(self, score: int) -> bool:
        """Whether the world is guessed for this score, which is for the first world."""
        return (score if self.first else -score) >= self.least


@dataclass(frozen=True)
class Masses:
    """Probabilities of scores from `low` on, in both worlds, float[2, S]."""

    low: int
    values: Floats

    def plus(self, other: Masses) -> Masses:
        """Return the sum, on all scores of either."""
        low = min(self.low, other.low)
        high = max(each.low + each.values.shape[1] for each in (self, other))
        found = np.zeros((2, high - low))
        for each in (self, other):
            found[:, each.low - low :][:, : each.values.shape[1]] += each.values
        return Masses(low, found)


@dataclass(frozen=True)
class _Place:
    """Where a student is: its account, and place in a request.

    `decided` and `last`: the last label of the requests before, and of this one so far.
    """

    account: Account
    sent: int
    decided: int | None
    last: int | None


@dataclass(frozen=True)
class Transcripts:
    """Whole scores and their probabilities. `weights`: what each answer adds to the score."""

    masses: Masses
    weights: Mapping[Answer, int]

    @classmethod
    def of(cls, terms: Terms, laws: Laws, following: Next, at_once: int) -> Transcripts:
        """Return those of a student who sends `at_once` queries in each request."""
        weights = {
            answer: round(STEPS * math.log(here / there)) for answer, (here, there) in laws.items()
        }
        prices = {outcome: terms.price(VoteOutcome(outcome)) for _, outcome, _ in laws}
        ended = Masses(0, np.zeros((2, 1)))
        states = {_Place(Account(), 0, None, None): Masses(0, np.ones((2, 1)))}
        while states:
            later: dict[_Place, Masses] = {}
            for place, masses in states.items():
                if not terms.admits(place.account):
                    ended = ended.plus(masses)
                    continue
                shares = following(place.decided)
                for answer, both in laws.items():
                    kind, outcome, label = answer
                    chance = np.array(both)[:, None] * shares.get(kind, 0.0)
                    moved = Masses(masses.low + weights[answer], masses.values * chance)
                    if moved.values.sum() < NEVER:
                        continue
                    account = place.account.plus(prices[outcome])
                    last = label if label >= 0 else place.last
                    if place.sent + 1 < at_once:
                        after = _Place(account, place.sent + 1, place.decided, last)
                    else:
                        after = _Place(account, 0, last, last)
                    later[after] = later[after].plus(moved) if after in later else moved
            states = later
        return cls(ended, weights)

    def score(self, answers: Sequence[Answer]) -> int:
        """Return how strongly answers indicate the first world. Unheard-of ones say nothing."""
        return sum(self.weights.get(answer, 0) for answer in answers)

    def guesses(self) -> list[Guess]:
        """Return all guesses, of either world."""
        values, low = self.masses.values, self.masses.low
        from_on = values[:, ::-1].cumsum(axis=1)[:, ::-1]
        up_to = values.cumsum(axis=1)
        found = []
        for at in range(1, values.shape[1]):
            here, there = (float(p) for p in from_on[:, at])
            found.append(Guess(True, low + at, here, there))
            here, there = (float(p) for p in up_to[:, at - 1])
            found.append(Guess(False, 1 - low - at, there, here))
        return found

    @property
    def advantage(self) -> float:
        """How much oftener the best guess is right than wrong: the total variation."""
        here, there = self.masses.values
        return float(np.abs(here - there).sum() / 2)

    def epsilon(self, delta: float) -> float:
        """Return the least ε with which the scores are (ε, `delta`)-indistinguishable."""
        here, there = self.masses.values

        def apart(epsilon: float) -> float:
            """The larger δ of both directions."""
            pairs = (here, there), (there, here)
            return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) for p, q in pairs)

        if apart(0.0) <= delta:
            return 0.0
        return float(brentq(lambda epsilon: apart(epsilon) - delta, 0.0, 60.0, xtol=1e-6))
