"""What still fits under a population's cap, for whoever is told that something does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from terrine_protocol import ProjectStatus
from terrine_server.errors import CapExceeded
from terrine_server.ledger import EnsembleRecord, Ledger, PopulationRecord, ProjectRecord
from terrine_server.planning.opening import choose
from terrine_server.privacy import Mechanism, NoisyVotes, ParameterError, Terms
from terrine_server.privacy.parameters import MAX_SIGMA

LEAST, HALVINGS = 512.0, 8
"""The cap's ε in those of the least project that is looked for, and how finely: to a fortieth."""

PAGE = 100


def epsilon_that_fits(
    ensemble: EnsembleRecord, mechanism: Mechanism | None = None, terms: Terms | None = None
) -> float | None:
    """Return about the largest ε of a further project, rounded down; None if the cap is full.

    It is with the `mechanism` of these `terms`, by default of noisy counts at the cap's δ: another
    mechanism may take more of a cap.
    """
    population = ensemble.population
    if mechanism is None or terms is None:
        # With so much noise that any ε pays for a query: how many it buys is not the question.
        facts = ensemble.facts
        mechanism = NoisyVotes(facts.teachers, len(facts.classes), MAX_SIGMA)
        most, delta, rate = population.epsilon, population.delta, None
    else:
        most, delta = min(terms.epsilon, population.epsilon), terms.delta
        rate = terms.choice.pass_rate if terms.choice else None

    like = mechanism

    def fits(epsilon: float, *, surely: bool = False) -> bool:
        try:
            of = choose(like, epsilon, delta, cap_rule=population.rule, pass_rate=rate).terms
        except ParameterError:
            return not surely  # it pays for nothing: too little, and not too much
        return (
            population.reserved + of.cap_budget <= population.cap
            and population.delta_reserved + of.delta_budget <= population.delta_cap
        )

    if fits(most, surely=True):
        return most
    low, high = most / LEAST, most
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    step = 10.0 ** (math.floor(math.log10(low)) - 1)
    found = float(f"{math.floor(low / step) * step:.2g}")
    return found if fits(found, surely=True) else None


def gives_back(ledger: Ledger, population: PopulationRecord) -> tuple[ProjectRecord, float] | None:
    """Return the project that, closed, returns most to the cap, and the share of the cap."""
    best = last = None
    while found := ledger.projects(last, PAGE):
        for record in found:
            of_it = record.ensemble.population.id == population.id
            if of_it and record.status is not ProjectStatus.CLOSED:
                back = (record.terms.cap_budget - record.cap_spent) / population.cap
                if back > (best[1] if best else 0):
                    best = record, back
        last = found[-1].name
    return best


def advice(ledger: Ledger, ensemble: EnsembleRecord, mechanism: Mechanism, terms: Terms) -> str:
    """Say what still fits under a cap that has no room for a project, and what would make room."""
    epsilon = epsilon_that_fits(ensemble, mechanism, terms)
    fits = (
        "Nothing like it fits"
        if epsilon is None
        else f"With up to about ε = {epsilon:g} it would fit"
    )
    found = gives_back(ledger, ensemble.population)
    if found is None:
        return f"{fits}; closing a project would give nothing back."
    record, share = found
    return (
        f"{fits}. To close {record.name}, which has spent {record.spent_share:.1%} of its budget, "
        f"would give {share:.1%} of the cap back."
    )


@contextmanager
def explained(
    ledger: Ledger, ensemble: EnsembleRecord, mechanism: Mechanism, terms: Terms
) -> Iterator[None]:
    """Add this advice to a `CapExceeded` that is raised within."""
    try:
        yield
    except CapExceeded as error:
        why = f"{error.detail} {advice(ledger, ensemble, mechanism, terms)}"
        raise CapExceeded(why, **error.extras) from error
