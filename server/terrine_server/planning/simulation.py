"""Ask votes that are public or synthetic until a budget refuses, with the service's own code."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from terrine_server.planning.opening import choose
from terrine_server.privacy.budget import Terms
from terrine_server.privacy.mechanisms.base import ComparesWithStudent, Mechanism, Probabilities
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.noise import Entropy
from terrine_server.privacy.numbers import check_votes
from terrine_server.privacy.rules import GDP, Rule

REFUSED = "refused"


@dataclass(frozen=True, eq=False)
class Simulation:
    """What B queries were answered, in order.

    `labels`: int64[B], −1 where there is none. `outcomes`: str[B], of which "refused" ones cost
    nothing. `counts`: int64[B, m], noisy ones, 0 where refused; None of mechanisms that release
    labels alone. `epsilon`: what was spent, at the δ of the terms.
    """

    labels: NDArray[np.int64]
    outcomes: NDArray[np.str_]
    counts: NDArray[np.int64] | None
    epsilon: float
    terms: Terms


def simulate(
    votes: ArrayLike,
    mechanism: Mechanism,
    epsilon: float,
    delta: float,
    *,
    probabilities: Probabilities | None = None,
    cap_rule: Rule = GDP,
    pass_rate: float | None = None,
    entropy: Entropy = os.urandom,
) -> Simulation:
    """Ask each row of `votes`, int[B, m], once and in order, until the budget (ε, δ) refuses.

    `probabilities`, float[B, m], are the student's, for mechanisms that need them. `cap_rule` is
    that of the ensemble that the project would be opened on, and `pass_rate` the share of queries
    that are expected to be answered: both decide what an outcome costs, as in `opening.choose`.
    `entropy` draws the noise; a seeded one repeats a simulation. Raises `ParameterError` if the
    budget pays for no query, and on votes that are not one of each teacher.
    """
    votes = np.asarray(votes)
    if not isinstance(mechanism, Neighbours):  # these cast what their accounts allow
        votes = check_votes(votes, mechanism.teachers)
    quoted = choose(mechanism, epsilon, delta, cap_rule=cap_rule, pass_rate=pass_rate)
    terms, drawn = quoted.terms, quoted.mechanism.release(votes, probabilities, entropy)
    queries = len(drawn.labels)
    baselines = [0] * queries
    if isinstance(mechanism, ComparesWithStudent) and probabilities is not None:
        least = mechanism.canonical_baseline(probabilities).min(axis=1).tolist()
        baselines = [terms.priced_baseline(baseline) for baseline in least]
    account = terms.start
    for outcome, baseline in zip(drawn.outcomes, baselines, strict=True):
        if not terms.admits(account, baseline):
            break
        account = account.plus(terms.price(outcome, baseline))
    paid = np.arange(queries) < account.queries
    return Simulation(
        labels=np.where(paid, drawn.labels, -1),
        outcomes=np.where(paid, drawn.outcomes.astype(np.str_), REFUSED),
        counts=None if drawn.counts is None else np.where(paid[:, None], drawn.counts, 0),
        epsilon=terms.epsilon_spent(account.spent),
        terms=terms,
    )
