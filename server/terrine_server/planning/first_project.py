"""What a first project is opened with, if nobody wants to choose: from public figures alone.

    first = FirstProject.of(units=32_561, rows=13_000, classes=2, epsilon=1)
    first.teachers, first.sigma, first.delta, first.cap
    first.of_neighbours(plan)
    first.of_confident(spec)

Noisy counts of the whole public pool, from trained teachers or from neighbours: of all mechanisms
those whose student depends least on how far teachers agree (docs/results.md). Or labels alone, of
teachers that mostly agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from terrine_server.planning.counts import fitted_noise, sigma_for_rows
from terrine_server.planning.grid import Spec
from terrine_server.planning.neighbour_plan import NeighbourPlan
from terrine_server.planning.opening import choose
from terrine_server.planning.remaining import FEW
from terrine_server.privacy.budget.quoting import Cap, cap, cap_order
from terrine_server.privacy.budget.terms import Terms
from terrine_server.privacy.mechanisms import build_mechanism
from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.parameters import MAX_EPSILON, ParameterError, check_epsilon

MOST, USUAL = 2_000, 1_000
"""Teachers. On Adult, 500 to 1,400 of them differ by less than 0.3 points."""
FEWEST_UNITS, MANY_UNITS = 4, 30
"""Units of a teacher: how few still help if teachers are few, and for more teachers than usual."""
CAP = 3.0
"""The cap's ε, in those of the first project."""
FEATURES = 30
"""Of a model so small that it says little, but something, of most tables."""
TOO_NOISY = 0.25
"""Noise of a share of the teachers, fitted to so few features, above which little is learned. At
this noise, students of 120 teachers of digits are right on about 7 of 10."""


@dataclass(frozen=True)
class FirstProject:
    """A project and its ensemble's cap."""

    units: int
    rows: int
    """Public rows of which no two are equal: equal ones have one answer, paid for once."""
    classes: int
    teachers: int
    """Of neighbours, the units."""
    epsilon: float
    delta: float
    sigma: float
    cap: Cap
    share: float
    """Of the cap, that the project reserves."""
    neighbours: NeighbourPlan | None = None
    """None: teachers are trained."""
    confident: Spec | None = None
    """Of labels alone; None: noisy counts."""
    joins: bool = False
    """Whether the cap is there already, and is to be shared."""

    @classmethod
    def of(
        cls, *, units: int, rows: int, classes: int, epsilon: float, joined: Cap | None = None
    ) -> FirstProject:
        """Propose one for private units (records or people), and different public rows, all asked.

        `joined`: the cap of the population that these units are of, if it is fixed already. Raises
        `ParameterError` for what cannot work, which says what would.
        """
        epsilon = check_epsilon(epsilon)
        if rows < FEW * classes:
            raise ParameterError(
                f"Too small: {rows:,} different public rows for {classes:,} classes teach a "
                f"student nothing. At least {FEW * classes:,} are needed, and thousands are better."
            )
        teachers, delta, sigma, noise = _counts(units, rows, classes, epsilon)
        if noise > TOO_NOISY:
            raise ParameterError(
                f"Too small: of {units:,} private units, {teachers:,} teachers of "
                f"{units // teachers} can be trained, and at ε = {epsilon:g} noise would drown "
                f"their votes. It needs {_enough(units, rows, classes, epsilon)}."
            )
        total = cap(min(CAP * epsilon, MAX_EPSILON), delta) if joined is None else joined
        first = cls(units, rows, classes, teachers, epsilon, delta, sigma, total, share=0)
        return replace(first, joins=joined is not None)._reserving()

    def of_neighbours(self, plan: NeighbourPlan) -> FirstProject:
        """Return the same of units that vote themselves, with nothing trained."""
        first = replace(self, teachers=self.units, sigma=plan.sigma, neighbours=plan, share=0)
        return first._reserving()

    def of_confident(self, spec: Spec) -> FirstProject:
        """Return the same of teachers that answer, with labels alone, where they mostly agree.

        A new cap is in Rényi DP, where a test and its maximum are priced together. Raises
        `ParameterError` if the budget pays for no query.
        """
        total = self.cap
        if not self.joins:
            total = cap(self.cap.epsilon, self.delta, cap_order(self.cap.epsilon, self.delta))
        return replace(self, confident=spec, cap=total, share=0)._reserving()

    def _reserving(self) -> FirstProject:
        terms = self.terms
        costs = terms.cap_budget / self.cap.budget, terms.delta_budget / self.cap.delta_budget
        return replace(self, share=max(costs))

    @property
    def way(self) -> str:
        """How the records are asked."""
        if self.confident is not None:
            return "confident answers"
        return "trained teachers" if self.neighbours is None else "neighbours"

    @property
    def spec(self) -> dict[str, object]:
        """The specification of the mechanism that the project is opened with."""
        if self.confident is not None:
            return dict(self.confident)
        plan = self.neighbours
        if plan is None:
            return {"name": "noisy_votes", "sigma": self.sigma}
        norm = {} if plan.norm == 1 else {"norm": plan.norm}
        return {"name": "neighbours", "sigma": self.sigma, "queries": plan.queries, **norm}

    @property
    def mechanism(self) -> Mechanism:
        """That mechanism."""
        return build_mechanism(self.spec, teachers=self.teachers, classes=self.classes)

    @property
    def terms(self) -> Terms:
        """What the project is opened under."""
        return choose(self.mechanism, self.epsilon, self.delta, cap_rule=self.cap.rule).terms

    @property
    def fitted_noise(self) -> float:
        """σ/(n·√rows), the noise of a fitted share for each √feature, whatever the rows.

        n: the votes on a query, of each teacher or of the units that are near and still take part.
        """
        votes = self.teachers if self.neighbours is None else max(1e-9, self.neighbours.votes)
        return self.sigma / votes / math.sqrt(self.rows)


def teachers_for(units: int, classes: int) -> int:
    """Return how many teachers to train on so many units, at most one for each few of them.

    Noise falls with their number, as long as a teacher knows something: so up to 1,000 of four
    units each, or one for each class; more, up to 2,000, only where each still has thirty.
    """
    few = units // max(FEWEST_UNITS, classes)
    many = units // max(MANY_UNITS, classes)
    return max(1, min(USUAL, few), min(MOST, many))


def delta_for(units: int) -> float:
    """Return the largest power of ten that is at most 1/(10·units)."""
    return float(f"1e-{len(str(10 * units - 1))}")


def right_at_most(epsilon: float, delta: float) -> float:
    """Return how often a guess between two equally likely versions of a unit is right, at most."""
    return (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))


def caught_at_most(epsilon: float, delta: float, accused: float = 0.01) -> float:
    """Return of how many a suspicion is confirmed, at most, if true, by one who may be wrong.

    `accused`: the share of those for whom it is false who may be accused. The trade-off function of
    (ε, δ)-DP (Dong, Roth and Su 2022, Prop. 2.5), attained by the worst data and the best attacker.
    """
    upper = math.exp(epsilon) * accused + delta
    return min(1.0, upper, 1 - math.exp(-epsilon) * (1 - accused - delta))


def _counts(units: int, rows: int, classes: int, epsilon: float) -> tuple[int, float, float, float]:
    """Return teachers, δ, σ, and the noise of a share that few features are fitted to."""
    teachers, delta = teachers_for(units, classes), delta_for(units)
    sigma = sigma_for_rows(rows, teachers, classes, epsilon, delta)
    return teachers, delta, sigma, fitted_noise(rows, teachers, sigma, FEATURES)


def _enough(units: int, rows: int, classes: int, epsilon: float) -> str:
    """Say how many units, or what ε, would do."""
    more, larger = float(units), epsilon
    while _counts(_whole(more), rows, classes, epsilon)[-1] > TOO_NOISY:
        more *= 1.05
    while larger <= MAX_EPSILON and _counts(units, rows, classes, larger)[-1] > TOO_NOISY:
        larger = float(f"{larger * 1.1:.2g}")
    other = f", or --epsilon {larger:g}" if larger <= MAX_EPSILON else ""
    return f"about {_whole(more):,} units at this ε{other}"


def _whole(number: float) -> int:
    """Round up to two digits."""
    step = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / step) * step
