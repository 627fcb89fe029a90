"""What a first project is opened with, if nobody wants to choose: from public figures alone.

    setting = Setting.of(units=32_561, rows=13_000, classes=2, epsilon=1)
    first = setting.of_teachers(setting.numbers_of_teachers[0])
    first.teachers, first.sigma, first.delta, first.cap
    first.of_confident(spec)
    setting.of_neighbours(plan)

Noisy counts of the whole public pool, from trained teachers or from neighbours: of all mechanisms
those whose student depends least on how far teachers agree (docs/results.md). Or labels alone, of
teachers that mostly agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from terrine_server.planning.forecast import Spec, sigma_for_rows
from terrine_server.planning.opening import FEW, choose
from terrine_server.privacy.budget import Terms, find_allowance
from terrine_server.privacy.curves import gdp_budget
from terrine_server.privacy.events import NeighbourCounts
from terrine_server.privacy.mechanisms import Mechanism, build_mechanism
from terrine_server.privacy.parameters import (
    MAX_EPSILON,
    MAX_SIGMA,
    MIN_SIGMA,
    ParameterError,
    check_epsilon,
)
from terrine_server.privacy.quoting import Cap, cap, cap_order, split_delta

LASTING = 0.5
"""Share of the stand-ins that take part until the last query. That the others retire costs nothing:
those that are near most queries do so first (docs/privacy/neighbours.md)."""
TOLERATED = 0.4
"""Noise of one answer in votes, if nobody retired, for which no more units are asked. On Adult at
ε = 1, any number of units from 60 to 200 near a query led to students within half a point."""
FEWEST_NEAR, MOST_NEAR, LEAST_LOCAL = 100, 960, 30
"""Units near a query: at least, at most, and at most one of so many."""
DIGITS = 3


@dataclass(frozen=True)
class NeighbourPlan:
    """What a project of `neighbours` is opened with, and what public rows foretell of it."""

    near: int
    """Units within a query's radius."""
    sigma: float
    queries: int
    norm: int
    allowance: int
    """A, in units of ‖v‖²."""
    retired: float
    """The share of the units that cannot pay for another vote after all queries."""
    votes: float
    """Units that vote on a query, on average over all of them."""

    @property
    def noise(self) -> float:
        """σ, in votes that are cast on a query."""
        return self.sigma / max(self.votes, 1e-9)


def near_for(units: int, queries: int, epsilon: float, delta: float) -> int:
    """Return how many units to have near a query: more, the more the noise is.

    With k units near each of Q queries, an account spends about Qk/N, and the noise is about
    √(2Q/(N·k))/μ of the votes.
    """
    wanted = 2 * queries / (units * gdp_budget(epsilon, delta) * TOLERATED**2)
    most = max(1, min(MOST_NEAR, units // LEAST_LOCAL))
    return min(most, max(FEWEST_NEAR, math.ceil(wanted)))


def quieter(units: int, near: int, teachers: int) -> bool:
    """Whether the votes of units have less noise than those of so many trained teachers.

    About √(2Q/(N·k))/μ of the votes against √(2Q)/(n·μ), for whatever Q and μ.
    """
    return math.sqrt(units * near) > teachers


def plan_neighbours(
    spent: NDArray[np.float64],
    *,
    units: int,
    near: int,
    queries: int,
    epsilon: float,
    delta: float,
    norm: int = 1,
) -> NeighbourPlan:
    """Choose noise and allowance for `queries`. `spent`: float[S], ‖v‖² of a stand-in in a query.

    On average over queries such as will be asked. Raises `ParameterError` if no noise that can be
    drawn allows each unit a single vote.
    """
    in_all = spent * queries
    wanted = max(norm**2, int(np.quantile(in_all, LASTING)))
    sigma = _least_sigma(wanted, norm, queries, epsilon, delta)
    return forecast_neighbours(
        spent,
        units=units,
        near=near,
        sigma=sigma,
        queries=queries,
        allowed=_most(sigma, norm, queries, epsilon, delta),
        norm=norm,
    )


def forecast_neighbours(
    spent: NDArray[np.float64],
    *,
    units: int,
    near: int,
    sigma: float,
    queries: int,
    allowed: int,
    norm: int = 1,
) -> NeighbourPlan:
    """Return what `spent` foretells of a project whose terms are known. Arguments as above."""
    in_all = spent * queries
    return NeighbourPlan(
        near=near,
        sigma=sigma,
        queries=queries,
        norm=norm,
        allowance=allowed,
        retired=float((in_all > allowed - 1).mean()),
        votes=float(np.minimum(in_all, allowed).mean() / queries * units),
    )


def _least_sigma(wanted: int, norm: int, queries: int, epsilon: float, delta: float) -> float:
    """Return the least σ with three digits whose allowance is at least `wanted`."""
    if _most(MAX_SIGMA, norm, queries, epsilon, delta) < wanted:
        raise ParameterError(
            f"{queries:,} queries need more noise than can be drawn, σ = {MAX_SIGMA:,.0f}, for "
            f"ε = {epsilon:g}. Ask fewer, or use a larger epsilon or a smaller radius."
        )
    low, high = MIN_SIGMA, MAX_SIGMA
    while high > low * (1 + 10 ** -(DIGITS + 1)):
        middle = math.sqrt(low * high)
        if _most(middle, norm, queries, epsilon, delta) < wanted:
            low = middle
        else:
            high = middle
    step = 10.0 ** (math.floor(math.log10(high)) - DIGITS + 1)
    return float(f"{math.ceil(high / step) * step:.10g}")


def _most(sigma: float, norm: int, queries: int, epsilon: float, delta: float) -> int:
    conversion = split_delta([NeighbourCounts(sigma, norm)], delta).conversion
    try:
        return find_allowance(sigma, norm, queries, epsilon, conversion)[1].most
    except ParameterError:
        return 0  # not a single vote


USUAL, MANY, MOST = 1_000, 2_000, 16_000
"""Teachers: at small noise, with many units, and where noise is large. On Adult at ε = 1, 500 to
1,400 of them differ by less than 0.3 points. There, 8,000 train in 12 seconds of a processor."""
FEWEST_UNITS, MANY_UNITS = 4, 30
"""Units of a teacher: how few still help, and for more teachers than usual."""
CALM = 0.04
"""Noise of a share of the teachers, fitted to `FEATURES`, above which more and smaller ones are
better: on Adult, where a teacher of four rows knows little, at ε = 0.1 8,000 of four rows were
better than 2,000 of sixteen, and at ε = 1 no better than 1,000."""
FAR = 4
"""How many times the usual number is so many that one between them is tried, too."""
CAP = 3.0
"""The cap's ε, in those of the first project."""
FEATURES = 30
"""Of a model so small that it says little, but something, of most tables."""
TOO_NOISY = 0.25
"""Noise of a share of the votes, fitted to so few features, above which little is learned. At
this noise, students of 120 teachers of digits are right on about 7 of 10."""


@dataclass(frozen=True)
class Setting:
    """What a first project has to start from: public figures alone."""

    units: int
    rows: int
    """Public rows of which no two are equal: equal ones have one answer, paid for once."""
    classes: int
    epsilon: float
    delta: float
    cap: Cap
    joins: bool
    """Whether the cap is there already, and is to be shared."""

    @classmethod
    def of(
        cls, *, units: int, rows: int, classes: int, epsilon: float, joined: Cap | None = None
    ) -> Setting:
        """Return that of private units (records or people), and different public rows, all asked.

        `joined`: the cap of the population that these units are of, if it is fixed already. Raises
        `ParameterError` for too few rows, whatever votes on them.
        """
        epsilon = check_epsilon(epsilon)
        if rows < FEW * classes:
            raise ParameterError(
                f"Too small: {rows:,} different public rows for {classes:,} classes teach a "
                f"student nothing. At least {FEW * classes:,} are needed, and thousands are better."
            )
        delta = delta_for(units)
        total = cap(min(CAP * epsilon, MAX_EPSILON), delta) if joined is None else joined
        return cls(units, rows, classes, epsilon, delta, total, joined is not None)

    @property
    def numbers_of_teachers(self) -> tuple[int, ...]:
        """How many teachers are worth a try: as usual, as many as noise asks for, and between."""
        usual = teachers_for(self.units, self.classes)
        calm = teachers_for(self.units, self.classes, self.mu)
        between = [round(math.sqrt(usual * calm))] if calm > FAR * usual else []
        return tuple(sorted({usual, *between, calm}))

    @property
    def mu(self) -> float:
        """The budget in Gaussian DP."""
        return math.sqrt(gdp_budget(self.epsilon, self.delta))

    def of_teachers(self, teachers: int) -> FirstProject:
        """Return a project of so many trained teachers, with noisy counts of their votes.

        Raises `ParameterError` if their noise cannot be drawn.
        """
        sigma = sigma_for_rows(self.rows, teachers, self.classes, self.epsilon, self.delta)
        return FirstProject(**vars(self), teachers=teachers, sigma=sigma)._reserving()

    def of_neighbours(self, plan: NeighbourPlan) -> FirstProject:
        """Return a project of units that vote themselves, with nothing trained."""
        first = FirstProject(**vars(self), teachers=self.units, sigma=plan.sigma, neighbours=plan)
        return first._reserving()


@dataclass(frozen=True)
class FirstProject(Setting):
    """A project and its ensemble's cap."""

    teachers: int
    """Of neighbours, the units."""
    sigma: float
    share: float = 0
    """Of the cap, that the project reserves."""
    neighbours: NeighbourPlan | None = None
    """None: teachers are trained."""
    confident: Spec | None = None
    """Of labels alone; None: noisy counts."""

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

    @property
    def too_noisy(self) -> bool:
        """Whether so much noise is left, fitted to few features, that little is learned."""
        return self.fitted_noise * math.sqrt(min(FEATURES, self.rows)) > TOO_NOISY


def teachers_for(units: int, classes: int, mu: float = math.inf) -> int:
    """Return how many teachers to train on so many units, at most one for each few of them.

    Noise falls with their number, as long as a teacher knows something: so up to 1,000 of four
    units each, or one for each class; up to 2,000 where each still has thirty; and, of four units
    each, as many as hold the noise of μ (Gaussian DP) down.
    """
    few = units // max(FEWEST_UNITS, classes)
    many = units // max(MANY_UNITS, classes)
    calm = min(MOST, math.ceil(math.sqrt(2 * FEATURES) / (mu * CALM)))
    return max(1, min(USUAL, few), min(MANY, many), min(calm, few))


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
